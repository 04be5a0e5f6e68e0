"""Try a conversion before it is returned, with shapes and with numbers.

Hues lie in the batch, so a conversion is right only if the network's code treats every image of
a batch alike and by itself. A copy with few hues is tried on small images:

* with the initial hue filters, the layers for hues and the pool must see what they see in the
  original in every hue, and for grey images, which have no hue, the outputs must be the same;
* with random hue filters, what those layers and the pool see must shift with the hue of the
  image, and the outputs must stay. This must hold in train mode, too, where norms see all hues
  of a batch, for the same random numbers.

The trial is about how a network computes, not about what it has learnt. So norms get statistics
that fit, and scales that start at zero get a value: otherwise a block would add nothing, and its
mistakes would not show.
"""

import collections
import copy
import dataclasses
import functools
import itertools
import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equicolor.color import to_gray
from equicolor.conversion.dry_run import (
    BATCH,
    DryRun,
    RunError,
    dry_run,
    kept_random_states,
    tensors_of,
)
from equicolor.conversion.network import ConvertedNetwork, as_taken, assemble, new_path
from equicolor.conversion.plan import Conversion, Plan
from equicolor.conversion.supported import ConversionError
from equicolor.nn import functional
from equicolor.nn.batched import BatchedCEConv2d, BatchedCosetPool

_WHAT_WORKS = (
    "What works: code that treats every image of a batch alike and by itself, the batch being the "
    "first dimension. Views of an image go through the network one after the other, or beside "
    "each other, torch.stack(views, 1).flatten(0, 1); what compares images goes behind the "
    "network; and until='NAME' ends the equivariant part before whatever else it is"
)
Place = tuple[str, int]  # its name, and the number of the call
Tensors = dict[Place, Tensor]
# The finding if tensors differ from the expected ones; the tensors; the expected ones.
_Comparison = tuple[str, Tensors, Tensors]

_POOL, _BEHIND = "the pool of the hues", "what comes after the pool of the hues"
_HUES = 3
_SIDES = (32, 64, 96, 128)  # of the images, where the network takes such small ones
_NEAR_ZERO = 1e-3  # smaller parameters are drawn anew
_PERTURBATION = 0.5  # of the hue filters
_NOISE = 1e3  # of images, in units of rounding errors
_HOOKS = [name for name in vars(nn.Module()) if name.endswith("_hooks")]


def check_shapes(network: ConvertedNetwork, plan: Plan, options: Conversion, run: DryRun) -> None:
    """Refuse a result if its outputs or the inputs of its layers have wrong shapes.

    ``run`` is a pass through the original. Layers for hues must see n times as many images.
    """
    expected = run.outputs
    if options.coset_pool is None:
        expected = [[BATCH, options.rotations, *shape[1:]] for shape in expected]
    outputs: object
    try:
        new_run = dry_run(network, options.image_size)
        _check_batch_first(network, plan, run, new_run)
        outputs = new_run.outputs
    except RunError as error:
        outputs = error.reason
    if outputs == expected:
        return
    if options.until is not None:
        raise ConversionError(
            f"until={options.until!r} cannot end the equivariant part: data flows past it, so "
            "plain and equivariant features would meet. Name a module that everything passes, such "
            f"as a whole stage ({outputs})"
        )
    raise ConversionError(
        f"{type(network.network).__name__} does something to the batch that conversion does not "
        f"know: expected outputs {expected}, got {outputs}. {_WHAT_WORKS}"
    )


def _check_batch_first(
    network: ConvertedNetwork, plan: Plan, before: DryRun, after: DryRun
) -> None:
    """Refuse a layer for hues that gets them anywhere but in front, or not all of them."""
    n = network.rotations
    for path in plan.replaced:
        new = new_path(path, plan.exit)
        for old_shape, shape in itertools.zip_longest(before.inputs[path], after.inputs[new]):
            whole = old_shape is not None and shape is not None and not old_shape[0] % BATCH
            if not whole or shape[0] != n * old_shape[0]:
                kind = type(network.get_submodule(new)).__name__
                raise ConversionError(
                    f"{type(network.network).__name__} does not keep the batch first: for "
                    f"{BATCH} images {path!r} sees {old_shape}, and for {BATCH} images in {n} "
                    f"hues, which lie in the batch, it ({kind}) sees {shape}. {_WHAT_WORKS}"
                )


def check_numbers(original: nn.Module, plan: Plan, options: Conversion) -> None:
    """Refuse a conversion that does not compute what it should.

    ``original`` is as wide as it is converted; it is not changed. Images smaller than its own are
    tried first. A network on the meta device is not tried.
    """
    if any(tensor.is_meta for tensor in original.parameters()):
        return
    with torch.no_grad(), kept_random_states(original):
        trial = _set_up(original, plan, options)
        if trial is None:
            warnings.warn(
                f"{type(original).__name__} was converted without a trial with numbers: it gives "
                "none for images of any size that was tried",
                stacklevel=5,
            )
            return
        for finding, tensors, expected in _comparisons(trial):
            _check(trial, finding, tensors, expected)


class _Trial(NamedTuple):
    """The networks and images of a trial; all networks pool the hues at the same place."""

    original: ConvertedNetwork  # in one hue
    copies: ConvertedNetwork  # the original in every hue, without layers that mix hues
    converted: ConvertedNetwork
    plan: Plan
    pools: bool  # whether the hues are pooled, or kept apart
    images: Tensor  # in [0, 1]

    def run(self, network: ConvertedNetwork, images: Tensor) -> tuple[Tensors, Tensors]:
        """The inputs of the layers for hues and of the pool, and the network's outputs."""
        # A copy shares the weights but no other state; it draws the same random numbers each time.
        shared: dict[int, Any] = {id(tensor): tensor for tensor in network.parameters()}
        for module in network.modules():  # empty, but they take half of the time of copying
            hooks = [vars(module)[name] for name in _HOOKS if name in vars(module)]
            shared |= {id(each): each for each in hooks if not each}
        network = copy.deepcopy(network, shared)
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        modules = dict(network.named_modules())
        places = {path: modules[new_path(path, self.plan.exit)] for path in self.plan.replaced}
        places[_POOL] = next(m for m in modules.values() if isinstance(m, BatchedCosetPool))
        inputs: Tensors = {}
        calls = collections.Counter[str]()

        def record(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
            for tensor in tensors_of([args, kwargs]):
                inputs[name, calls[name]] = tensor.clone()
                calls[name] += 1

        handles = [
            module.register_forward_pre_hook(functools.partial(record, name), with_kwargs=True)
            for name, module in places.items()
        ]
        try:
            outputs = tensors_of(network(as_taken(network.lift, images)))
        finally:
            for handle in handles:
                handle.remove()
        return inputs, {(_BEHIND, index): tensor for index, tensor in enumerate(outputs)}


def _set_up(model: nn.Module, plan: Plan, options: Conversion) -> _Trial | None:
    """A trial, in float64 if the network's code allows it; None where it gives no numbers."""
    sides = [*(side for side in _SIDES if side < options.image_size), options.image_size]
    few = dataclasses.replace(options, rotations=min(options.rotations, _HUES), check_range=False)
    for dtype, side in itertools.product((torch.float64, torch.float32), sides):
        try:
            network = copy.deepcopy(model).to(dtype).eval()
            images = _blocks(side).to(next(network.parameters()).device, dtype)
            lift = few.lift(images)
            outputs = _calibrate(network, lift(as_taken(lift, images)))
        except Exception:  # whatever the network's own code does at another size, in another dtype
            continue
        if all(bool(tensor.isfinite().all()) for tensor in outputs):
            plain = plan._replace(replaced={})
            original = assemble(network, plain, dataclasses.replace(few, rotations=1))
            copies, converted = (assemble(network, each, few) for each in (plain, plan))
            pools = options.coset_pool is not None
            return _Trial(original, copies, converted, plan, pools, images)
    return None


def _blocks(side: int) -> Tensor:
    """Images of blocks in random colours: noise would be grey on average."""
    generator = torch.Generator().manual_seed(0)
    tint, blocks = (
        torch.rand(BATCH, 3, n, n, generator=generator, dtype=torch.float64, device="cpu")
        for n in (1, 8)
    )
    return 0.2 + 0.4 * tint + F.interpolate(0.2 * blocks, (side, side))


def _calibrate(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Draw parameters that are nearly zero, fit norms to images, and return the outputs."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        is_zero = parameter.numel() > 0 and parameter.abs().max() < _NEAR_ZERO
        if is_zero and not name.endswith("bias"):
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


def _comparisons(trial: _Trial) -> Iterator[_Comparison]:
    """The comparisons of a trial, one after the other."""
    lift = trial.converted.lift
    hues = functional.hue_orbit(trial.images, lift.rotations, lift.lifting)
    runs = [trial.run(trial.original, hue)[0] for hue in hues]
    expected = {
        place: torch.cat([torch.atleast_1d(run[place]) for run in runs]) for place in runs[0]
    }
    features, _ = trial.run(trial.converted, trial.images)
    yield "hue k is not the original network on the shifted image", features, expected
    if trial.pools:  # which changes nothing for grey images: all their hues are alike
        grey = to_gray(trial.images)
        _, outputs = trial.run(trial.copies, grey)
        _, expected = trial.run(trial.original, grey)
        finding = "for grey images it does not give what the original network gives"
        yield finding, outputs, expected
    _mix_hues(trial.converted)
    yield from _shifted(trial)
    trial.original.train()
    trial.converted.train()
    try:
        yield from _shifted(trial)
    except Exception as error:
        try:
            trial.run(trial.original, trial.images)
        except Exception:  # in train mode, the original needs more than images
            return
        reason = str(error).partition("\n")[0]
        raise _refusal(trial, f"in train mode it fails: {reason}") from error


def _shifted(trial: _Trial) -> Iterator[_Comparison]:
    """What layers see and what is pooled must roll with the hue of the image, outputs must not."""
    lift, n = trial.converted.lift, trial.converted.rotations
    shifted = functional.hue_orbit(trial.images, n, lift.lifting)[n - 1]  # by +1/n
    features, outputs = trial.run(trial.converted, trial.images)
    shifted_features, shifted_outputs = trial.run(trial.converted, shifted)
    rolled = {
        place: tensor.unflatten(0, (n, -1)).roll(1, 0).flatten(0, 1)
        for place, tensor in features.items()
    }
    finding = "once its hue filters are trained, features do not shift with the hue"
    yield finding, shifted_features, rolled
    if trial.pools:
        finding = "once its hue filters are trained, outputs change with the hue"
        yield finding, shifted_outputs, outputs


def _effect_of_rounding(trial: _Trial) -> dict[Place, float]:
    """How much noise, a little more than rounding, changes inputs of layers, and outputs.

    Norms of few images amplify small differences, layer by layer: behind a hundred of them, or
    where no colour is left, rounding errors can be as large as features.
    """
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(trial.images.shape, generator=generator, device="cpu").to(trial.images)
    noisy = trial.images * (1 + _NOISE * torch.finfo(noise.dtype).eps * noise)
    features, outputs = trial.run(trial.converted, trial.images)
    exact = features | outputs
    features, outputs = trial.run(trial.converted, noisy)
    return {
        place: 10 * float((tensor - exact[place]).abs().max())
        for place, tensor in (features | outputs).items()
        if tensor.is_floating_point() and tensor.numel()
        if place in exact and tensor.shape == exact[place].shape
    }


def _check(trial: _Trial, finding: str, tensors: Tensors, expected: Tensors) -> None:
    """Refuse the network if something is not as expected, naming the first place."""
    allowed: dict[Place, float] = {}
    for place, tensor in tensors.items():
        difference = "which the original does not compute"
        if place in expected:
            difference = _difference(tensor, expected[place], 0.0)
            if difference and trial.converted.training:
                allowed = allowed or _effect_of_rounding(trial)  # two runs, which few need
                difference = _difference(tensor, expected[place], allowed.get(place, 0.0))
        if not difference:
            continue
        name = place[0]
        if name not in (_POOL, _BEHIND):
            layer = trial.original.get_submodule(new_path(name, trial.plan.exit))
            name = f"{name!r} ({type(layer).__name__}), which gets {list(tensor.shape)}"
        mode = "in train mode, " if trial.converted.training else ""
        raise _refusal(
            trial,
            f"{mode}{finding}: its code mixes or reorders the images of a batch, in "
            f"which the hues lie. The first to see something else is {name} ({difference})",
        )


def _refusal(trial: _Trial, finding: str) -> ConversionError:
    return ConversionError(
        f"{type(trial.original.network).__name__} was converted and tried with numbers, and "
        f"{finding}. {_WHAT_WORKS} (verify=False converts without this trial)"
    )


def _difference(one: Tensor, other: Tensor, allowed: float) -> str:
    """How tensors differ by more than rounding; empty if they do not, or cannot be compared."""
    if one.shape != other.shape:
        return f"{list(one.shape)} instead of {list(other.shape)}"
    comparable = one.is_floating_point() and one.numel()
    if not comparable or not (one.isfinite().all() and other.isfinite().all()):
        return ""
    error = float((one - other).abs().max())
    spread = float((other - other.mean(0)).abs().max()) if other.ndim else 0.0
    size, eps = float(other.abs().max()), torch.finfo(one.dtype).eps
    # A mistake is about as large as images differ. In float64 the factors are 1e-4 and 2e-10: deep
    # networks enlarge rounding errors, and a network that sees no colour has only those.
    if error <= max(eps**0.25 * spread + eps**0.625 * size, allowed):
        return ""
    return f"off by {error:.2g}, of values up to {size:.2g}"
