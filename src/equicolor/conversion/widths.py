"""Narrower layers, so that a converted network has as many parameters as the original.

Every count of channels ``c`` becomes ``c * p / u`` with one ``p`` for all, where ``u`` divides
all counts: sums, concatenations and flattened maps then still fit, whatever the network does.
In networks whose counts have no large common divisor (EfficientNet, RegNet), each count is rounded
by itself, which fits if they only add maps of equal counts. A dry run tells whether it fits.
"""

import bisect
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from equicolor.conversion.dry_run import RunError, dry_run, meta_copy
from equicolor.conversion.plan import Conversion, Plan
from equicolor.conversion.supported import ConversionError, Kind

_LEAST_DIVISOR = 16  # a smaller common divisor has too few steps
_CLOSE = 0.03  # relative difference in parameters at which no other scale is tried
_STEPS = 256  # of the scale, where every count is rounded by itself
_MULTIPLE = 8  # channels from _LARGE on are a multiple of it, for fast kernels
_LARGE = 128

Scale = Callable[[int], int]


def match_widths(model: nn.Module, plan: Plan, options: Conversion) -> list[tuple[int, int]]:
    """Pairs of old and new channel counts that make a converted network as large as the original.

    A dry run on images of the network's size tells whether the new counts fit.
    """
    if options.until is not None:
        raise ConversionError("match_parameters makes all layers narrower: it does not take until")
    if not plan.head:
        raise ConversionError(
            "match_parameters keeps the outputs of a classifier, but this network ends in none"
        )
    target = sum(parameter.numel() for parameter in model.parameters())
    seen = _Counts()
    scale_channels(meta_copy(model), plan, seen)
    counts = sorted(seen)
    multiples: dict[int, int] = {}
    unit = math.gcd(*counts)
    for count, multiple in _group_multiples(model):
        multiples[count] = math.lcm(multiples.get(count, 1), multiple)
        unit = math.gcd(unit, count // multiple)  # so that groups keep their width
    exact = [_exact(step, unit) for step in range(1, unit + 1)] if unit >= _LEAST_DIVISOR else []
    rounded = [_rounded(step / _STEPS, multiples) for step in range(8, _STEPS + 1)]

    def narrowed(scale: Scale) -> nn.Module:
        candidate = meta_copy(model)
        scale_channels(candidate, plan, {count: scale(count) for count in counts})
        return candidate

    @functools.cache
    def excess(scale: Scale) -> float:
        return _converted_parameters(narrowed(scale), plan, options.rotations) / target - 1

    reason, best, nearest = "", None, math.inf
    for scales in (exact, rounded):
        if not scales or nearest <= _CLOSE:
            continue
        # More channels, more parameters: the first scale that has enough, and the one before.
        first = bisect.bisect_left(range(len(scales) - 1), 0.0, key=lambda i: excess(scales[i]))
        scale = min(scales[max(first - 1, 0) : first + 1], key=lambda scale: abs(excess(scale)))
        if abs(excess(scale)) >= nearest:
            continue
        try:
            dry_run(narrowed(scale), options.image_size)
        except RunError as error:
            reason = str(error)
            continue
        best, nearest = scale, abs(excess(scale))
    if best is None:
        raise ConversionError(
            f"{type(model).__name__} cannot be made narrower layer by layer ({reason}); build it "
            "narrower yourself and convert that"
        )
    return [(count, best(count)) for count in counts]


def scale_channels(network: nn.Module, plan: Plan, channels: dict[int, int]) -> None:
    """Give the layers of a network new channel counts, by old ones; weights are drawn anew.

    The network changes in place. The images' channels and the outputs of the classifier stay.
    """
    classifier = network.get_submodule(plan.head)
    head = [module for module in classifier.modules() if isinstance(module, nn.Linear)][-1]
    for path, module in list(network.named_modules()):
        _scale(module, channels, first=path == plan.first, last=module is head)


def _scale(module: Any, channels: dict[int, int], *, first: bool, last: bool) -> None:
    is_layer = True
    shapes: dict[str, tuple[int, ...]] = {}
    if isinstance(module, nn.Conv2d):
        width = module.in_channels // module.groups
        depthwise = module.groups == module.in_channels and module.groups > 1
        if not first:
            module.in_channels = channels[module.in_channels]
        module.out_channels = channels[module.out_channels]
        if module.groups > 1:
            module.groups = module.in_channels if depthwise else module.in_channels // width
        inputs = module.in_channels // module.groups
        weight = module.out_channels, inputs, *module.kernel_size
        shapes = {"weight": weight, "bias": (module.out_channels,)}
    elif isinstance(module, nn.Linear):
        module.in_features = channels[module.in_features]
        module.out_features = module.out_features if last else channels[module.out_features]
        sizes = module.out_features, module.in_features
        shapes = {"weight": sizes, "bias": sizes[:1]}
    elif isinstance(module, _NormBase):
        module.num_features = channels[module.num_features]
        names = "weight", "bias", "running_mean", "running_var"
        shapes = dict.fromkeys(names, (module.num_features,))
    elif isinstance(module, nn.GroupNorm):
        module.num_channels = channels[module.num_channels]
        shapes = dict.fromkeys(("weight", "bias"), (module.num_channels,))
    elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        module.normalized_shape = tuple(channels[size] for size in module.normalized_shape)
        shapes = dict.fromkeys(("weight", "bias"), module.normalized_shape)
    else:
        is_layer = False
        for name, parameter in module.named_parameters(recurse=False):
            shapes[name] = tuple(channels.get(size, size) for size in parameter.shape)
    for name, shape in shapes.items():
        _resize(module, name, shape)
    if is_layer:
        module.reset_parameters()


def _resize(module: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    """Give a tensor another shape, filled with what it was on average."""
    old = getattr(module, name, None)
    if old is None:
        return
    new = torch.empty(shape, device=old.device, dtype=old.dtype)
    if not old.is_meta:
        new.fill_(old.detach().double().mean().item())
    trained = isinstance(old, nn.Parameter)
    setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad) if trained else new)


class _Counts(dict[int, int]):
    """Channel counts that stay as they are; its keys are all that were asked for."""

    def __missing__(self, count: int) -> int:
        self[count] = count
        return count


def _group_multiples(model: nn.Module) -> Iterator[tuple[int, int]]:
    """Counts of channels in groups, each with a number that a new count must be a multiple of."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.groups > 1:
            for count in (module.in_channels, module.out_channels):
                yield count, count // module.groups
        elif isinstance(module, nn.GroupNorm):
            yield module.num_channels, module.num_groups


def _exact(step: int, unit: int) -> Scale:
    return lambda count: count // unit * step


def _rounded(factor: float, multiples: dict[int, int]) -> Scale:
    def scale(count: int) -> int:
        multiple = multiples.get(count, 1)
        if count >= _LARGE:
            multiple = math.lcm(multiple, _MULTIPLE)
        return max(1, round(count * factor / multiple)) * multiple

    return scale


def _converted_parameters(network: nn.Module, plan: Plan, rotations: int) -> int:
    """Parameters with the hue filters that conversion will add."""
    total = sum(parameter.numel() for parameter in network.parameters())
    for path, kind in plan.replaced.items():
        if kind is Kind.MIX:
            weight: Any = network.get_submodule(path).weight
            total += rotations * weight.shape[0] * weight.shape[1]
    return total
