"""A converted network, and how it is put together."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from equicolor import _checks
from equicolor._observed import is_traced
from equicolor.conversion.dry_run import tensors_of
from equicolor.conversion.layers import replace, replacement
from equicolor.conversion.plan import Conversion, Exit, Plan
from equicolor.models.checkpoints import set_dtypes
from equicolor.models.registry import Network
from equicolor.nn.batched import BatchedCosetPool, HueLift


class ConvertedNetwork(Network):
    """A network with its images lifted to every hue in front of it; made by ``convert``.

    Args:
        lift: images in every hue.
        network: takes them as one batch ``[n * B, 3, H, W]``.
        pool: pools the hues of every tensor that comes out; the identity if the network itself
            does, before its classifier or in the middle.

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

    def __init__(self, lift: HueLift, network: nn.Module, pool: nn.Module) -> None:
        super().__init__()
        self.lift, self.network, self.pool = lift, network, pool
        self.rotations = lift.rotations
        self.head, self.batch_comes_first = "", False

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], *args: Any) -> None:
        super()._load_from_state_dict(state_dict, *args)
        self.lift.leave_meta(state_dict)

    def forward(self, images: Tensor) -> Any:
        """Images ``[B, 3, H, W]`` in [0, 1] to what the original network returns."""
        outputs = self.pool(self.network(self.lift(images)))
        if self.batch_comes_first and isinstance(images, Tensor) and not is_traced():
            self._check_batch(images, outputs)
        return outputs

    def _check_batch(self, images: Tensor, outputs: Any) -> None:
        """Refuse outputs that still hold the hues: their pool was removed."""
        for tensor in tensors_of(outputs):
            if tensor.shape[:1] != images.shape[:1]:
                raise RuntimeError(
                    f"{len(images)} images came in, but an output is {list(tensor.shape)}: the "
                    "hues are pooled in front of the classifier, and replacing that by hand "
                    "removes the pool. Use reset_classifier(num_classes) of the converted "
                    "network, or convert after the classifier was replaced"
                )

    def reset_classifier(self, num_classes: int) -> None:
        """Draw a new last layer with ``num_classes`` outputs; everything in front of it stays.

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
        parts = self.network.get_submodule(self.head).named_modules(prefix=self.head)
        path, old = [(path, part) for path, part in parts if isinstance(part, nn.Linear)][-1]
        like = {"device": old.weight.device, "dtype": old.weight.dtype}
        new = nn.Linear(old.in_features, num_classes, old.bias is not None, **like)
        self.network.set_submodule(path, new.train(old.training))
        self.class_names = ()
        options = self.config.get("source_options", {})
        if "num_classes" in options:
            options["num_classes"] = num_classes

    def same_outputs(self, rebuilt: Network) -> bool:
        """Whether a network with equal names and shapes of weights computes the same from them.

        It may not: strides, dilations and kinds of pooling have no weights. The weights of
        ``rebuilt``, which a checkpoint of this network builds, are overwritten.
        """
        return compute_same(self, rebuilt, lambda images: as_taken(self.lift, images))


def compute_same(
    network: Network, rebuilt: Network, prepare: Callable[[Tensor], Tensor] = lambda images: images
) -> bool:
    """Whether two networks with equal names and shapes of weights compute the same from them.

    ``prepare`` makes their input of images in [0, 1]. The weights of ``rebuilt`` are overwritten.
    """
    twin = copy.deepcopy(network).cpu().eval()
    dtype = next(twin.parameters()).dtype
    generator = torch.Generator().manual_seed(0)
    state = twin.state_dict()
    for key, value in state.items():
        if value.is_floating_point() and not value.any():  # a zero scale would hide its block
            drawn = torch.rand(value.shape, generator=generator, device="cpu")
            state[key] = (0.1 * drawn).to(value.dtype)
    shape = 1, 3, network.image_size, network.image_size
    images = torch.rand(shape, generator=generator.manual_seed(1), device="cpu")
    outputs = []
    set_dtypes(rebuilt.cpu().eval(), state)
    for each in (twin, rebuilt):
        each.load_state_dict(state)
        with torch.no_grad():
            values = each(prepare(images.to(dtype)))
        outputs.append([tensor.double() for tensor in tensors_of(values)])
    tolerance = torch.finfo(dtype).eps ** 0.5
    return len(outputs[0]) == len(outputs[1]) and all(
        a.shape == b.shape and _close(a, b, tolerance) for a, b in zip(*outputs, strict=True)
    )


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether tensors are equal up to rounding; if not finite, whether in the same places."""
    if not (a.isfinite().all() and b.isfinite().all()):
        return bool(torch.equal(a.isfinite(), b.isfinite()))
    return bool((a - b).norm() <= tolerance * b.norm())


def as_taken(lift: HueLift, images: Tensor) -> Tensor:
    """Images in [0, 1], normalised if a converted network takes them so."""
    if lift.takes == "images":
        return images
    return (images - lift.mean.to(images.device)) / lift.std.to(images.device)


def assemble(original: nn.Module, plan: Plan, options: Conversion) -> ConvertedNetwork:
    """Convert a copy of a network as planned; the new hue filters are the identity."""
    network = copy.deepcopy(original)
    modules = dict(network.named_modules())
    for path, kind in plan.replaced.items():
        replace(network, modules[path], replacement(modules[path], kind, options.rotations))
    pool: nn.Module = PoolEach(BatchedCosetPool(options.rotations, options.coset_pool))
    head = plan.head
    if plan.exit.where != "output":
        module = network.get_submodule(plan.exit.path)
        parts = {"body": module, "pool": pool}
        if plan.exit.where == "before":
            parts, head = {"pool": pool, "head": module}, f"{head}.head"
        both = nn.Sequential(OrderedDict(parts))
        both.training = module.training  # not train(), which would change what is inside
        replace(network, module, both)
        pool = nn.Identity()
    converted = ConvertedNetwork(options.lift(next(original.parameters())), network, pool)
    converted.head = head
    for module in (converted, converted.lift, pool):  # the others have their own modes
        module.training = original.training
    return converted


def new_path(path: str, exit_: Exit) -> str:
    """Where a replaced module of the original is in the converted network."""
    if exit_.where == "after" and f"{path}.".startswith(f"{exit_.path}."):
        path = f"{exit_.path}.body{path.removeprefix(exit_.path)}"
    return f"network.{path}"


class PoolEach(nn.Module):
    """Pools every tensor of what a module returns, such as a dictionary of features."""

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
