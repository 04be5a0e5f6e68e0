"""Narrower layers, so that a converted network has as many parameters as the original.

Every count of channels ``c`` becomes ``c * p / u`` with one ``p`` for all, where ``u`` divides
all counts: sums, concatenations and flattened maps then still fit, whatever the network does.
Networks whose counts have no large common divisor (EfficientNet, RegNet) get each count rounded
by itself, which fits as long as they only add maps of equal counts. A dry run tells whether it
fits.
"""

import bisect
import math
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from equicolor.conversion.dry_run import RunError, dry_run, ghost_of
from equicolor.conversion.plan import Plan
from equicolor.conversion.supported import ConversionError

__all__ = ["match_widths", "scale_channels"]

_FINE = 16  # a smaller common divisor has too few steps
_NEAR = 0.03  # relative distance in parameters at which no other scale is tried
_STEPS = 256  # of the scale, where every count is rounded by itself
_MULTIPLE = 8  # channels from _LARGE on are a multiple of it, for fast kernels
_LARGE = 128

Scale = Callable[[int], int]


def match_widths(model: nn.Module, plan: Plan, rotations: int, size: int) -> dict[int, int]:
    """New channel counts, by old ones, at which a converted network is as large as the original.

    Images of height and width ``size`` are tried.

    Example:
        >>> from equicolor.conversion.plan import make_plan
        >>> model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3), nn.AvgPool2d(4),
        ...                       nn.Flatten(), nn.Linear(64, 10))
        >>> plan = make_plan(model, dry_run(model, 8))
        >>> match_widths(model, plan, rotations=6, size=8)
        {64: 50}
    """
    if plan.exit.where == "after":
        raise ConversionError("match_parameters makes all layers narrower: it does not take until")
    if plan.exit.where != "before":
        raise ConversionError(
            "match_parameters keeps the outputs of a classifier, but this network ends in none"
        )
    target = sum(parameter.numel() for parameter in model.parameters())
    ghost = ghost_of(model)
    counts = _counts(ghost, plan)
    unit = math.gcd(*counts, *_group_units(model))
    multiples = _multiples(model)
    exact = [_exact(step, unit) for step in range(1, unit + 1)] if unit >= _FINE else []
    rounded = [_rounded(step / _STEPS, multiples) for step in range(8, _STEPS + 1)]
    reason, best, nearest = "", dict[int, int](), math.inf
    for scales in (exact, rounded):
        if not scales or nearest <= _NEAR:
            continue
        channels, parameters = _search(ghost, plan, rotations, counts, scales, target)
        distance = abs(parameters / target - 1)
        if distance >= nearest:
            continue
        candidate = ghost_of(ghost)
        scale_channels(candidate, plan, channels)
        try:
            dry_run(candidate, size)
        except RunError as error:
            reason = str(error)
            continue
        best, nearest = channels, distance
    if not best:
        raise ConversionError(
            f"{type(model).__name__} cannot be made narrower layer by layer ({reason}); build it "
            "narrower yourself and convert that"
        )
    return best


def _search(
    ghost: nn.Module,
    plan: Plan,
    rotations: int,
    counts: list[int],
    scales: list[Scale],
    target: int,
) -> tuple[dict[int, int], int]:
    """The channels of the scale whose parameters are nearest to a target, and how many."""

    def parameters(scale: Scale) -> int:
        candidate = ghost_of(ghost)
        scale_channels(candidate, plan, {count: scale(count) for count in counts})
        return _converted_parameters(candidate, plan, rotations)

    # More channels, more parameters: the first scale that has enough, and the one before.
    first = bisect.bisect_left(
        range(len(scales) - 1), target, key=lambda index: parameters(scales[index])
    )
    near = {scale: parameters(scale) for scale in scales[max(first - 1, 0) : first + 1]}
    best = min(near, key=lambda scale: abs(near[scale] - target))
    return {count: best(count) for count in counts}, near[best]


def scale_channels(network: nn.Module, plan: Plan, channels: dict[int, int]) -> None:
    """Give the layers of a network new channel counts, by old ones; weights are drawn anew.

    The network changes in place. The images' channels and the outputs of the classifier stay.
    """
    classifier = network.get_submodule(plan.exit.path)
    head = [module for module in classifier.modules() if isinstance(module, nn.Linear)][-1]
    for path, module in list(network.named_modules()):
        _scale(module, channels, first=path == plan.first, last=module is head)


def _scale(module: nn.Module, channels: dict[int, int], *, first: bool, last: bool) -> None:
    if isinstance(module, nn.Conv2d):
        width = module.in_channels // module.groups
        depthwise = module.groups == module.in_channels and module.groups > 1
        if not first:
            module.in_channels = channels[module.in_channels]
        module.out_channels = channels[module.out_channels]
        if module.groups > 1:
            module.groups = module.in_channels if depthwise else module.in_channels // width
        inputs = module.in_channels // module.groups
        _resize(module, "weight", (module.out_channels, inputs, *module.kernel_size))
        _resize(module, "bias", (module.out_channels,))
    elif isinstance(module, nn.Linear):
        module.in_features = channels[module.in_features]
        module.out_features = module.out_features if last else channels[module.out_features]
        _resize(module, "weight", (module.out_features, module.in_features))
        _resize(module, "bias", (module.out_features,))
    elif isinstance(module, _NormBase):
        module.num_features = channels[module.num_features]
        for name in ("weight", "bias", "running_mean", "running_var"):
            _resize(module, name, (module.num_features,))
    elif isinstance(module, nn.GroupNorm):
        module.num_channels = channels[module.num_channels]
        for name in ("weight", "bias"):
            _resize(module, name, (module.num_channels,))
    elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        shape = tuple(channels[size] for size in module.normalized_shape)
        module.normalized_shape = shape
        for name in ("weight", "bias"):
            _resize(module, name, shape)
    else:
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                shape = tuple(channels.get(size, size) for size in parameter.shape)
                _resize(module, name, shape)
        return
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
    """Channel counts that stay, each noted when it is asked for."""

    def __missing__(self, count: int) -> int:
        self[count] = count
        return count


def _counts(ghost: nn.Module, plan: Plan) -> list[int]:
    """Every count of channels that is scaled."""
    counts = _Counts()
    scale_channels(ghost_of(ghost), plan, counts)
    return sorted(counts)


def _group_units(model: nn.Module) -> Iterator[int]:
    """What the unit must divide beside the counts, so that groups keep their width."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.groups > 1:
            yield module.groups
        elif isinstance(module, nn.GroupNorm):
            yield module.num_channels // module.num_groups


def _multiples(model: nn.Module) -> dict[int, int]:
    """What a new count must be a multiple of, where layers work in groups."""
    multiples: dict[int, int] = {}
    for module in model.modules():
        pairs: list[tuple[int, int]] = []
        if isinstance(module, nn.Conv2d) and module.groups > 1:
            sides = module.in_channels, module.out_channels
            pairs = [(count, count // module.groups) for count in sides]
        elif isinstance(module, nn.GroupNorm):
            pairs = [(module.num_channels, module.num_groups)]
        for count, multiple in pairs:
            multiples[count] = math.lcm(multiples.get(count, 1), multiple)
    return multiples


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
        if kind in ("conv", "linear"):
            weight = network.get_submodule(path).weight
            assert isinstance(weight, torch.Tensor)
            total += rotations * weight.shape[0] * weight.shape[1]
    return total
