"""Try a conversion with numbers before it is returned.

Hues lie in the batch, so a conversion is right only if the network's code treats every image of
a batch alike and by itself. A copy with few hues is tried on small images:

* with hue filters as they start, what the layers for hues see and what is pooled must be the
  original's in every hue, and grey images, which have no hue, must give what the original gives;
* with random hue filters, what those layers see and what is pooled must shift with the hue of
  the image, and what comes out must stay. This must hold in train mode, too, where norms see all
  hues of a batch, for the same random numbers.

The trial is about how a network computes, not about what it has learnt. So norms get statistics
that fit, and scales that start at zero get a value: otherwise a block would add nothing, and its
mistakes would not show.
"""

import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import random
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equicolor.color import to_gray
from equicolor.conversion.dry_run import own_random_numbers, tensors_of
from equicolor.conversion.network import (
    Conversion,
    ConvertedNetwork,
    as_taken,
    assemble,
    new_path,
)
from equicolor.conversion.plan import Exit, Plan
from equicolor.conversion.supported import ConversionError
from equicolor.nn import functional
from equicolor.nn.batched import BatchedCEConv2d, BatchedCosetPool

__all__ = ["WHAT_WORKS", "check_numbers"]

WHAT_WORKS = (
    "What works: code that treats every image of a batch alike and by itself, the batch being the "
    "first dimension. Views of an image go through the network one after the other, or beside "
    "each other, torch.stack(views, 1).flatten(0, 1); what compares images goes behind the "
    "network; and until='NAME' ends the equivariant part before whatever else it is"
)
Tensors = dict[tuple[str, int], Tensor]  # by the name of a place and the number of the call
Errors = dict[tuple[str, int], float]

_POOL, _BEHIND = "the pool of the hues", "what comes after the pool of the hues"
_HUES, _BATCH = 3, 2
_SIDES = (32, 64, 96, 128)  # of the images, where the network takes such small ones
_SILENT = 1e-3  # parameters below are drawn anew
_PERTURBATION = 0.5  # of the hue filters
_NOISE = 1e3  # of images, in units of rounding errors


def check_numbers(original: nn.Module, plan: Plan, how: Conversion, size: int) -> None:
    """Refuse a conversion that does not compute what it should.

    A network on the meta device is not tried.

    Args:
        original: the network, as wide as it is converted; it is not changed.
        plan: of its conversion.
        how: the options of the conversion.
        size: height and width of images that the network takes; smaller ones are tried first.

    Raises:
        ConversionError: with what was seen, and where.
    """
    if any(tensor.is_meta for tensor in original.parameters()):
        return
    with torch.no_grad(), own_random_numbers(original):
        trial = _set_up(original, plan, how, size)
        if trial is None:
            warnings.warn(
                f"{type(original).__name__} was converted without a trial with numbers: it gives "
                "none for images of any size that was tried",
                stacklevel=5,
            )
            return
        pools = how.coset_pool is not None
        _check_hues(trial)
        if pools:
            _check_grey(trial)
        _mix_hues(trial.converted)
        _check_shift(trial, pools=pools)
        _check_training(trial, pools=pools)


@dataclasses.dataclass(frozen=True)
class _Trial:
    """What is tried.

    Attributes:
        original: the network.
        converted: made of it.
        pooled: the original with hues and their pool, but without layers that mix hues.
        replaced: the paths of those layers.
        exit: where the hues are pooled.
        images: in [0, 1].
    """

    original: nn.Module
    converted: ConvertedNetwork
    pooled: ConvertedNetwork
    replaced: tuple[str, ...]
    exit: Exit
    images: Tensor

    def compare(
        self, tensors: Tensors, expected: Tensors, finding: str, allowed: Errors | None = None
    ) -> None:
        """Refuse the network if something is not as expected, naming the first place."""
        for place, tensor in tensors.items():
            if place not in expected:
                how = "which the original does not compute"
            else:
                how = _difference(tensor, expected[place], (allowed or {}).get(place, 0.0))
            if not how:
                continue
            name = place[0]
            if name not in (_POOL, _BEHIND):
                kind = type(self.original.get_submodule(name)).__name__
                name = f"{name!r} ({kind}), which gets {list(tensor.shape)}"
            mode = "in train mode, " if self.converted.training else ""
            raise ConversionError(
                f"{type(self.original).__name__} was converted and tried with numbers, and {mode}"
                f"{finding}: "
                f"its code mixes or reorders the images of a batch, in which the hues lie. The "
                f"first to see something else is {name} ({how}). {WHAT_WORKS} (verify=False "
                "converts without this trial)"
            )


def _set_up(original: nn.Module, plan: Plan, how: Conversion, size: int) -> _Trial | None:
    """A trial, in float64 if the network's code allows it; None where it gives no numbers."""
    sides = [side for side in _SIDES if side < size]
    few = dataclasses.replace(how, rotations=min(how.rotations, _HUES), check_range=False)
    for dtype, side in itertools.product((torch.float64, torch.float32), (*sides, size)):
        settled = _settled(original, few, dtype, side)
        if settled is not None:
            model, images = settled
            converted = assemble(model, plan, few)
            pooled = assemble(model, dataclasses.replace(plan, replaced={}), few)
            exit_ = plan.exit_for(how.coset_pool)
            return _Trial(model, converted, pooled, tuple(plan.replaced), exit_, images)
    return None


def _settled(
    original: nn.Module, how: Conversion, dtype: torch.dtype, side: int
) -> tuple[nn.Module, Tensor] | None:
    """A copy of a network for trials and images that it takes; None if it does not."""
    try:
        model = copy.deepcopy(original).to(dtype).eval()
        images = _blocks(side).to(next(model.parameters()).device, dtype)
        lift = how.lift(images)
        outputs = _settle(model, lift(as_taken(lift, images)))
    except Exception:  # whatever the network's own code does at another size, in another dtype
        return None
    finite = all(bool(tensor.isfinite().all()) for tensor in outputs)
    return (model, images) if finite else None


def _blocks(side: int) -> Tensor:
    """Images of coloured blocks, each of a colour of its own: noise would be grey on average."""
    generator = torch.Generator().manual_seed(0)
    tint, blocks = (
        torch.rand(_BATCH, 3, n, n, generator=generator, dtype=torch.float64, device="cpu")
        for n in (1, 8)
    )
    return 0.2 + 0.4 * tint + F.interpolate(0.2 * blocks, (side, side))


def _settle(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Wake what is silent, fit statistics of norms to images, and run the network."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        silent = parameter.numel() > 0 and parameter.abs().max() < _SILENT
        if silent and not name.endswith("bias"):
            drawn = 0.5 + 0.5 * torch.rand(parameter.shape, generator=generator, device="cpu")
            fan_in = parameter[0].numel() if parameter.squeeze().ndim > 1 else 1
            parameter.copy_(drawn / fan_in)
    handles = [
        module.register_forward_pre_hook(_take_statistics)
        for module in model.modules()
        if isinstance(getattr(module, "running_var", None), Tensor)
    ]
    outputs = list(tensors_of(model(images)))
    for handle in handles:
        handle.remove()
    return outputs


def _take_statistics(norm: Any, inputs: tuple[Any, ...]) -> None:
    var, mean = torch.var_mean(inputs[0].transpose(0, 1).flatten(1), 1, correction=0)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var.clamp(min=0.1 * float(var.mean())))


def _mix_hues(converted: ConvertedNetwork) -> None:
    """Random hue filters that keep the scale of features, one for every output."""
    generator = torch.Generator().manual_seed(2)
    for module in converted.modules():
        if isinstance(module, BatchedCEConv2d):
            weight = module.pointwise_weight
            assert weight is not None
            shape = module.out_channels, 1, module.rotations, 1, 1
            noise = torch.randn(shape, generator=generator, device="cpu").to(weight)
            scale = (1 + module.rotations * _PERTURBATION**2) ** 0.5
            weight.add_(_PERTURBATION * noise).div_(scale)


def _check_hues(trial: _Trial) -> None:
    """Entry k of what layers see and what is pooled must be the original's in hue k."""
    images = as_taken(trial.converted.lift, trial.images)
    hues = trial.converted.lift(images).unflatten(0, (trial.converted.rotations, -1))
    runs = [_run_original(trial, hue) for hue in hues]
    expected = {
        place: torch.cat([torch.atleast_1d(run[place]) for run in runs]) for place in runs[0]
    }
    features, _ = _run_converted(trial, images)
    trial.compare(features, expected, "hue k is not the original network on the shifted image")


def _check_grey(trial: _Trial) -> None:
    """All hues of grey images are alike, so pooling them changes nothing."""
    lift = trial.pooled.lift
    grey = as_taken(lift, to_gray(trial.images))
    expected = _outputs(trial.original(lift(grey)[:_BATCH]))
    finding = "for grey images it does not give what the original network gives"
    trial.compare(_outputs(trial.pooled(grey)), expected, finding)


def _check_shift(trial: _Trial, *, pools: bool) -> None:
    """What layers see and what is pooled must roll with the hue of the image, outputs must not."""
    lift, n = trial.converted.lift, trial.converted.rotations
    shifted = functional.hue_orbit(trial.images, n, lift.lifting)[n - 1]  # by +1/n
    features, outputs = _run_converted(trial, as_taken(lift, trial.images))
    shifted_features, shifted_outputs = _run_converted(trial, as_taken(lift, shifted))
    training = trial.converted.training
    allowed = _effect_of_rounding(trial, features | outputs) if training else None
    rolled = {
        place: tensor.unflatten(0, (n, -1)).roll(1, 0).flatten(0, 1)
        for place, tensor in features.items()
    }
    finding = "once its hue filters are trained, features do not shift with the hue"
    trial.compare(shifted_features, rolled, finding, allowed)
    if pools:
        finding = "once its hue filters are trained, outputs change with the hue"
        trial.compare(shifted_outputs, outputs, finding, allowed)


def _effect_of_rounding(trial: _Trial, exact: Tensors) -> Errors:
    """How much noise, a little more than rounding, changes what is seen and returned.

    Norms of few images make small differences larger, layer by layer: behind a hundred of them,
    or where no colour is left, rounding errors can be as large as features.
    """
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(trial.images.shape, generator=generator, device="cpu").to(trial.images)
    noisy = trial.images * (1 + _NOISE * torch.finfo(noise.dtype).eps * noise)
    features, outputs = _run_converted(trial, as_taken(trial.converted.lift, noisy))
    return {
        place: 10 * float((tensor - exact[place]).abs().max())
        for place, tensor in (features | outputs).items()
        if tensor.is_floating_point() and tensor.numel()
        if place in exact and tensor.shape == exact[place].shape
    }


def _check_training(trial: _Trial, *, pools: bool) -> None:
    """The same in train mode, unless the original wants more than images there."""
    original, converted = trial.original.train(), trial.converted.train()
    images = as_taken(converted.lift, trial.images)
    try:
        _as_new(original)(converted.lift(images)[:_BATCH])
    except Exception:  # whatever the network's own code does
        return
    try:
        _check_shift(trial, pools=pools)
    except ConversionError:
        raise
    except Exception as error:  # that the original does not raise
        reason = str(error).partition("\n")[0]
        raise ConversionError(
            f"{type(original).__name__} was converted and tried with numbers, and in train mode it "
            f"fails: {reason}. {WHAT_WORKS} (verify=False converts without this trial)"
        ) from error


def _run_original(trial: _Trial, images: Tensor) -> Tensors:
    """What the original has where the converted network mixes and pools hues."""
    modules = dict(trial.original.named_modules())
    places = {path: modules[path] for path in trial.replaced}
    exit_ = trial.exit
    if exit_.where == "before":
        places[_POOL] = modules[exit_.path]
    after = {_POOL: modules[exit_.path]} if exit_.where == "after" else {}
    with _recorded(places, after) as tensors:
        outputs = trial.original(images)
    if exit_.where == "output":
        tensors |= {(_POOL, call): tensor for call, tensor in enumerate(tensors_of(outputs))}
    return tensors


def _run_converted(trial: _Trial, images: Tensor) -> tuple[Tensors, Tensors]:
    """What the layers for hues and the pool of a converted network get, and what it returns."""
    converted = _as_new(trial.converted)
    modules = dict(converted.named_modules())
    places = {path: modules[new_path(path, trial.exit)] for path in trial.replaced}
    places[_POOL] = next(m for m in modules.values() if isinstance(m, BatchedCosetPool))
    with _recorded(places, {}) as tensors:
        outputs = converted(images)
    return tensors, _outputs(outputs)


def _as_new(network: nn.Module) -> nn.Module:
    """A copy that shares the weights but no other state; it will draw the same random numbers."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    return copy.deepcopy(network, {id(tensor): tensor for tensor in network.parameters()})


def _outputs(value: Any) -> Tensors:
    return {(_BEHIND, index): tensor for index, tensor in enumerate(tensors_of(value))}


@contextlib.contextmanager
def _recorded(
    inputs: Mapping[str, nn.Module], outputs: Mapping[str, nn.Module]
) -> Iterator[Tensors]:
    """Copies of what modules get, or give, by names and in the order of the calls."""
    tensors: Tensors = {}
    calls = collections.Counter[str]()

    def record(name: str, value: Any) -> None:
        for tensor in tensors_of(value):
            tensors[name, calls[name]] = tensor.clone()
            calls[name] += 1

    with contextlib.ExitStack() as stack:
        for name, module in inputs.items():
            hook: Any = functools.partial(lambda name, module, args: record(name, args), name)
            stack.enter_context(module.register_forward_pre_hook(hook))
        for name, module in outputs.items():
            hook = functools.partial(lambda name, module, args, value: record(name, value), name)
            stack.enter_context(module.register_forward_hook(hook))
        yield tensors


def _difference(one: Tensor, other: Tensor, allowed: float) -> str:
    """How tensors differ, by more than rounding of what differs within a batch; or nothing."""
    if one.shape != other.shape:
        return f"{list(one.shape)} instead of {list(other.shape)}"
    if not (one.is_floating_point() and one.numel()):
        return ""
    if not (one.isfinite().all() and other.isfinite().all()):
        return ""  # says nothing
    error = float((one - other).abs().max())
    spread = float((other - other.mean(0)).abs().max()) if other.ndim else 0.0
    size, eps = float(other.abs().max()), torch.finfo(one.dtype).eps
    # What is wrong is so by as much as images differ. In float64 these are 1e-4 and 2e-10: deep
    # networks make rounding errors much larger, and one that sees no colour has nothing else.
    if error <= max(eps**0.25 * spread + eps**0.625 * size, allowed):
        return ""
    return f"off by {error:.2g}, of values up to {size:.2g}"
