"""A converted network, and how it is put together."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from equicolor import _checks
from equicolor.conversion.dry_run import tensors_of
from equicolor.conversion.layers import replace, replacement
from equicolor.conversion.plan import Exit, Plan
from equicolor.models.registry import Network
from equicolor.nn.batched import BatchedCosetPool, HueLift

__all__ = ["Conversion", "ConvertedNetwork", "PoolEach", "as_taken", "assemble", "new_path"]


@dataclass(frozen=True)
class Conversion:
    """The options of a conversion that decide what the result computes.

    Attributes:
        rotations, lifting, until, coset_pool, takes, check_range: of :func:`equicolor.convert`.
        mean, std: of the normalisation; None for a network that takes images in [0, 1].
        padded: whether images come with zeros around them, as in detectors.
    """

    rotations: int
    lifting: str
    until: str | None
    coset_pool: str | None
    takes: str
    check_range: bool
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    padded: bool = False

    def lift(self, like: Tensor) -> HueLift:
        """What the converted network begins with, of the device and dtype of a tensor."""
        lift = HueLift(
            self.rotations,
            self.lifting,
            mean=self.mean,
            std=self.std,
            takes=self.takes,
            padded=self.padded,
            check_range=self.check_range,
        )
        return lift.to(like.device, like.dtype)


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
            return _map_tensors(self.pool, outputs)
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
        _checks.positive_int("num_classes", num_classes, at_most=_checks.MOST["num_classes"])
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

    def same_outputs(self, rebuilt: Network) -> bool:
        """Whether a network with equal names and shapes of weights computes the same from them.

        It may not: strides, dilations and kinds of pooling have no weights.

        Args:
            rebuilt: what a checkpoint of this network builds; its weights are overwritten.

        Example:
            >>> import equicolor
            >>> from equicolor.models import create_model, z2cnn
            >>> network = equicolor.convert(z2cnn(3), rotations=4)
            >>> options = {key: value for key, value in network.config.items() if key != "model"}
            >>> network.same_outputs(create_model("converted", **options))
            True
        """
        twin = copy.deepcopy(self).cpu().eval()
        generator = torch.Generator().manual_seed(0)
        state = {
            # A block that starts at zero would hide what it does.
            key: value if not value.is_floating_point() or value.any() else _some(value, generator)
            for key, value in twin.state_dict().items()
        }
        tensor = next(twin.parameters())
        shape = 1, 3, self.image_size, self.image_size
        images = torch.rand(shape, generator=generator.manual_seed(1), device="cpu")
        images = as_taken(twin.lift, images.to(tensor.dtype))
        outputs = []
        for network in (twin, rebuilt.cpu().to(tensor.dtype).eval()):
            network.load_state_dict(state)
            with torch.no_grad():
                outputs.append(list(tensors_of(network(images))))
        tolerance = torch.finfo(tensor.dtype).eps ** 0.5
        return len(outputs[0]) == len(outputs[1]) and all(
            a.shape == b.shape and _close(a.double(), b.double(), tolerance)
            for a, b in zip(*outputs, strict=True)
        )


def _some(like: Tensor, generator: torch.Generator) -> Tensor:
    return (0.1 * torch.rand(like.shape, generator=generator, device="cpu")).to(like.dtype)


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether tensors are equal to rounding; what is not finite says nothing."""
    if not (a.isfinite().all() and b.isfinite().all()):
        return bool(torch.equal(a.isfinite(), b.isfinite()))
    return bool((a - b).norm() <= tolerance * b.norm())


def as_taken(lift: HueLift, images: Tensor) -> Tensor:
    """Images in [0, 1] as a converted network takes them."""
    return images if lift.takes == "images" else (images - lift.mean) / lift.std


def assemble(original: nn.Module, plan: Plan, how: Conversion) -> ConvertedNetwork:
    """Convert a copy of a network as planned; the new hue filters are the identity."""
    network = copy.deepcopy(original)
    modules = dict(network.named_modules())
    for path, kind in plan.replaced.items():
        replace(network, modules[path], replacement(modules[path], kind, how.rotations))
    pool: BatchedCosetPool | nn.Identity = BatchedCosetPool(how.rotations, how.coset_pool)
    exit_, head = plan.exit_for(how.coset_pool), plan.head
    if exit_.where != "output":
        _end_with(network, exit_, pool)
        pool = nn.Identity()
        head = f"{head}.head" if exit_.where == "before" else head
    converted = ConvertedNetwork(how.lift(next(original.parameters())), network, pool)
    converted.head = head
    for module in (converted, converted.lift, converted.pool):  # the others have their own modes
        module.training = original.training
    return converted


def _end_with(network: nn.Module, exit_: Exit, pool: nn.Module) -> None:
    """Pool the hues before or after a module."""
    module = network.get_submodule(exit_.path)
    parts = {"pool": pool, "head": module}
    if exit_.where == "after":
        parts = {"body": module, "pool": PoolEach(pool)}
    both = nn.Sequential(OrderedDict(parts))
    both.training = module.training  # not train(), which would change what is inside
    replace(network, module, both)


def new_path(path: str, exit_: Exit) -> str:
    """Where a replaced module of the original is in the converted network.

    Example:
        >>> new_path("layer2.0.conv1", Exit("after", "layer2"))
        'network.layer2.body.0.conv1'
    """
    if exit_.where == "after" and f"{path}.".startswith(f"{exit_.path}."):
        path = f"{exit_.path}.body{path.removeprefix(exit_.path)}"
    return f"network.{path}"


class PoolEach(nn.Module):
    """Pools every tensor of what a module returns, such as a dictionary of features.

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
        return _map_tensors(self.pool, features)


def _map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to the tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, (Tensor, fx.Proxy)):
        return function(value)  # type: ignore[arg-type]
    if isinstance(value, dict):
        items = {key: _map_tensors(function, item) for key, item in value.items()}
        return items if type(value) is dict else type(value)(items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_tensors(function, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(function, item) for item in value)
    return value
