"""A network that was made equivariant."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, fx, nn

from equicolor.models.registry import Network
from equicolor.nn.batched import BatchedCosetPool, HueLift

__all__ = ["ConvertedNetwork", "map_tensors"]


class ConvertedNetwork(Network):
    """A network with its images lifted to every hue in front of it; made by ``convert``.

    Args:
        lift: images in every hue.
        network: takes them as one batch ``[n * B, 3, H, W]``.
        pool: what is done to every tensor that comes out; the identity if the network itself
            pools the hues, before its classifier or in the middle.

    Attributes:
        rotations: the number n of hues.
        config: the conversion and where the network came from, if that is known.

    Example:
        >>> import equicolor, torch
        >>> from equicolor.models import resnet18
        >>> network = equicolor.convert(resnet18(10, width=4), rotations=6)
        >>> network(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, lift: HueLift, network: nn.Module, pool: BatchedCosetPool | nn.Identity
    ) -> None:
        super().__init__()
        self.lift, self.network, self.pool = lift, network, pool
        self.rotations = lift.rotations

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], *args: Any) -> None:
        super()._load_from_state_dict(state_dict, *args)
        self.lift.follow(state_dict)

    def forward(self, images: Tensor) -> Any:
        """Images ``[B, 3, H, W]`` in [0, 1] to what the original network returns."""
        outputs = self.network(self.lift(images))
        return outputs if isinstance(self.pool, nn.Identity) else map_tensors(self.pool, outputs)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to the tensors in nested lists, tuples and dictionaries.

    Example:
        >>> import torch
        >>> map_tensors(torch.neg, {"a": [torch.ones(1)]})
        {'a': [tensor([-1.])]}
    """
    if isinstance(value, (Tensor, fx.Proxy)):
        return function(value)  # type: ignore[arg-type]
    if isinstance(value, dict):
        items = {key: map_tensors(function, item) for key, item in value.items()}
        return items if type(value) is dict else type(value)(items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(function, item) for item in value)
    return value
