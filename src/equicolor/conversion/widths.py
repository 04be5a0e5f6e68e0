"""Narrower layers, so that a converted network has as many parameters as the original.

Every count of channels ``c`` becomes ``c * p / u`` with one ``p`` for all, where ``u`` divides
all counts: sums, concatenations and flattened maps then still fit, whatever the network does.
Networks whose counts have no large common divisor (EfficientNet, RegNet) get each count rounded
by itself, which fits as long as they only add maps of equal counts. A dry run decides.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from equicolor.conversion.dry_run import dry_run, ghost_of
from equicolor.conversion.plan import Plan
from equicolor.conversion.supported import ConversionError

__all__ = ["match_parameters", "scale_channels"]

_FINE = 16  # common divisors from here on are fine enough a scale
_NEAR = 0.03  # of the parameters: no other scale is tried
_STEPS = 256  # of the scale, where every count is rounded by itself
_MULTIPLE = 8  # of channels that hardware likes, for counts from _LARGE on
_LARGE = 128

Scale = Callable[[int], int]


def match_parameters(model: nn.Module, plan: Plan, rotations: int, size: int) -> dict[int, int]:
    """New channel counts, by old ones, at which a converted network is as large as the original.

    Args:
        model: the original network.
        plan: what will be converted.
        rotations: the number of hues.
        size: height and width of images to try it with.

    Raises:
        ConversionError: if the network does not allow it.

    Example:
        >>> from equicolor.conversion.plan import make_plan
        >>> model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3), nn.AvgPool2d(4),
        ...                       nn.Flatten(), nn.Linear(64, 10))
        >>> plan = make_plan(model, dry_run(model, 8))
        >>> match_parameters(model, plan, rotations=6, size=8)
        {64: 50}
    """
    if plan.exit.where == "after":
        raise ConversionError("match_parameters makes all layers narrower: it does not take until")
    if plan.exit.where != "before":
        raise ConversionError(
            "match_parameters keeps the outputs of a classifier, but this network ends in none"
        )
    target = sum(parameter.numel() for parameter in model.parameters())
    counts = sorted(set(_counts(model, plan)))
    unit = math.gcd(*counts, *_group_units(model, plan))
    multiples = _multiples(model, plan)
    exact = [_exact(step, unit) for step in range(1, unit + 1)] if unit >= _FINE else []
    rounded = [_rounded(step / _STEPS, multiples) for step in range(8, _STEPS + 1)]
    ghost, reason, found = ghost_of(model), "", dict[int, int]()
    nearest = math.inf
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
        except ValueError as error:
            reason = str(error)
            continue
        found, nearest = channels, distance
    if not found:
        raise ConversionError(
            f"{type(model).__name__} cannot be made narrower layer by layer ({reason}); build it "
            "narrower yourself and convert that"
        )
    return found


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

    # More channels, more parameters: look for the first scale that has enough.
    low, high = 0, len(scales) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if parameters(scales[middle]) >= target else (middle + 1, high)
    near = {scale: parameters(scale) for scale in scales[max(low - 1, 0) : low + 1]}
    best = min(near, key=lambda scale: abs(near[scale] - target))
    return {count: best(count) for count in counts}, near[best]


def scale_channels(network: nn.Module, plan: Plan, channels: dict[int, int]) -> None:
    """Give the layers of a network new channel counts, with weights drawn anew.

    The images' channels and the outputs of the classifier stay.

    Args:
        network: changed in place.
        plan: of its conversion.
        channels: new counts by old ones.
    """
    head = _last_linear(network, plan)
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


def _last_linear(network: nn.Module, plan: Plan) -> nn.Module:
    head = network.get_submodule(plan.exit.path)
    return [module for module in head.modules() if isinstance(module, nn.Linear)][-1]


def _counts(model: nn.Module, plan: Plan) -> Iterator[int]:
    """Every count of channels that is scaled."""
    head = _last_linear(model, plan)
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            yield module.out_channels
            if path != plan.first:
                yield module.in_channels
        elif isinstance(module, nn.Linear):
            yield module.in_features
            if module is not head:
                yield module.out_features
        elif isinstance(module, _NormBase):
            yield module.num_features
        elif isinstance(module, nn.GroupNorm):
            yield module.num_channels
        elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            yield from module.normalized_shape


def _group_units(model: nn.Module, plan: Plan) -> Iterator[int]:
    """What the unit must divide beside the counts, so that groups keep their width."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.groups > 1:
            yield module.groups
        elif isinstance(module, nn.GroupNorm):
            yield module.num_channels // module.num_groups


def _multiples(model: nn.Module, plan: Plan) -> dict[int, int]:
    """What a new count must be a multiple of, where layers work in groups."""
    found: dict[int, int] = {}
    for module in model.modules():
        pairs: list[tuple[int, int]] = []
        if isinstance(module, nn.Conv2d) and module.groups > 1:
            sides = module.in_channels, module.out_channels
            pairs = [(count, count // module.groups) for count in sides]
        elif isinstance(module, nn.GroupNorm):
            pairs = [(module.num_channels, module.num_groups)]
        for count, multiple in pairs:
            found[count] = math.lcm(found.get(count, 1), multiple)
    return found


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
