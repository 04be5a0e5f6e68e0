"""The grey baseline: a network that sees the mean of the channels."""

from torch import Tensor, nn

from equicolor.color import to_gray
from equicolor.models.registry import Network

__all__ = ["GrayInput"]

_INNER = "network."


class GrayInput(Network):
    """A network that sees the mean of the channels: the grey baseline.

    The grey is part of the network, not of the images: a hue shift comes before it, and
    may change the mean. ``create_model(NAME, gray=True)`` makes one, and so do checkpoints of
    one.

    Args:
        network: maps images :math:`[B, 3, H, W]` to logits :math:`[B, C]`.

    Example:
        >>> import torch
        >>> GrayInput(nn.Flatten())(torch.tensor([1.0, 0.5, 0.0]).view(1, 3, 1, 1)).tolist()
        [[0.5, 0.5, 0.5]]
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.image_size = getattr(network, "image_size", self.image_size)
        if isinstance(network, Network):
            self.class_names, self.origin = network.class_names, network.origin
            if network.config:
                self.config = {**network.config, "gray": True}

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in [0, 1] to logits ``[B, C]``."""
        logits: Tensor = self.network(to_gray(images))
        return logits

    def reference_key(self, key: str) -> str:
        """The name of a state-dict entry in the paper authors' code, which makes images grey."""
        inner = key.removeprefix(_INNER)
        return self.network.reference_key(inner) if isinstance(self.network, Network) else inner
