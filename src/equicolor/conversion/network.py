"""A network that was made equivariant."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from equicolor import _checks
from equicolor.conversion.dry_run import tensors_of
from equicolor.models.registry import Network
from equicolor.nn.batched import BatchedCosetPool, HueLift

__all__ = ["ConvertedNetwork", "PoolEach", "map_tensors"]


class ConvertedNetwork(Network):
    """A network with its images lifted to every hue in front of it; made by ``convert``.

    Args:
        lift: images in every hue.
        network: takes them as one batch ``[n * B, 3, H, W]``.
        pool: what is done to every tensor that comes out; the identity if the network itself
            pools the hues, before its classifier or in the middle.

    Attributes:
        rotations: the number n of hues.
        head: the path of the classifier inside ``network``; empty if there is none.
        batch_comes_first: whether every output begins with the batch.
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
        self.head, self.batch_comes_first = "", False

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], *args: Any) -> None:
        super()._load_from_state_dict(state_dict, *args)
        self.lift.follow(state_dict)

    def forward(self, images: Tensor) -> Any:
        """Images ``[B, 3, H, W]`` in [0, 1] to what the original network returns."""
        outputs = self.network(self.lift(images))
        if not isinstance(self.pool, nn.Identity):
            return map_tensors(self.pool, outputs)
        if self.batch_comes_first and not torch.compiler.is_compiling():
            self._check_batch(images, outputs)
        return outputs

    def _check_batch(self, images: Tensor, outputs: Any) -> None:
        """Refuse outputs that still hold the hues: what pooled them is gone."""
        if torch._C._get_tracing_state() is not None or not isinstance(images, Tensor):
            return
        for tensor in tensors_of(outputs):
            if tensor.shape[:1] != images.shape[:1]:
                raise RuntimeError(
                    f"{len(images)} images came in, but an output is {list(tensor.shape)}: the "
                    "hues are pooled in front of the classifier, so whoever replaces that by "
                    "hand removes the pool. Use reset_classifier(num_classes) of the converted "
                    "network, or convert after the classifier was replaced"
                )

    def reset_classifier(self, num_classes: int) -> None:
        """Draw a new last layer with other outputs; everything in front of it stays.

        Args:
            num_classes: outputs.

        Example:
            >>> import equicolor, torch
            >>> from equicolor.models import resnet18
            >>> network = equicolor.convert(resnet18(10, width=4))
            >>> network.reset_classifier(3)
            >>> network(torch.rand(2, 3, 32, 32)).shape
            torch.Size([2, 3])
        """
        _checks.positive_int("num_classes", num_classes)
        if not self.head:
            raise ValueError(
                f"{type(self.network).__name__} does not end in one linear classifier: replace "
                "it in the original network, and convert that"
            )
        head = self.network.get_submodule(self.head)
        linear = [path for path, m in head.named_modules() if isinstance(m, nn.Linear)][-1]
        path = f"{self.head}.{linear}" if linear else self.head
        old = self.network.get_submodule(path)
        assert isinstance(old, nn.Linear)
        like = {"device": old.weight.device, "dtype": old.weight.dtype}
        new = nn.Linear(old.in_features, num_classes, old.bias is not None, **like)
        self.network.set_submodule(path, new.train(old.training))
        self.class_names = ()
        options = self.config.get("source_options", {})
        if "num_classes" in options:
            options["num_classes"] = num_classes


class PoolEach(nn.Module):
    """Pools every tensor of what a module returns, such as a dictionary of features.

    Args:
        pool: of one tensor.

    Example:
        >>> import torch
        >>> features = {"low": torch.rand(6, 4), "high": torch.rand(6, 8)}
        >>> pooled = PoolEach(BatchedCosetPool(3))(features)
        >>> pooled["high"].shape
        torch.Size([2, 8])
    """

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, features: Any) -> Any:
        """The same lists and dictionaries, of pooled tensors."""
        return map_tensors(self.pool, features)


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
