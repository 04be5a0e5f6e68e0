"""The layers of a network by name, what their units see, and their features."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._text import did_you_mean, enumerated
from equicolor.analysis.dependence import Dependence
from equicolor.analysis.planes import NOMINAL, Planes
from equicolor.analysis.receptive_field import ReceptiveField, field_from_planes
from equicolor.analysis.taps import TIMES, run_tapped
from equicolor.evaluation.runner import Runner

# By name, since other libraries have classes of their own.
_ACTIVATIONS = {
    "celu", "elu", "gelu", "gelutanh", "hardmish", "hardswish", "hardswishme", "leakyrelu", "mish",
    "prelu", "quickgelu", "relu", "relu6", "rrelu", "selu", "silu", "softplus", "squaredrelu",
    "swish",
}  # fmt: skip
# Rectifiers that are functions cannot be tapped. The norms before them serve as well, since
# negative activations count as 0.
_NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm2d, nn.LayerNorm)
_CONVOLUTIONS = {"ceconv2d", "celiftconv2d", "conv2d"}
# By default, all layers of the first kind that a network has are looked at.
_KINDS: tuple[Callable[[nn.Module], bool], ...] = (
    lambda module: type(module).__name__.lower() in _ACTIVATIONS,
    lambda module: isinstance(module, _NORMS),
    lambda module: type(module).__name__.lower() in _CONVOLUTIONS,
)
_LISTED = 12  # layers that an error names


class LayerError(ValueError):
    """A layer cannot be looked at: it does not exist, or it gives no features of units."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a network, for images of one size.

    Attributes:
        name: of the module, with the number of the call if there are several.
        channels: :math:`C`; a channel at a position is a unit.
        rotations: :math:`n`, 1 for an ordinary layer.
        height, width: of the map of positions.
        channels_last: whether its features are :math:`[B, H, W, C]`.
        field: what its units can see.
    """

    name: str
    channels: int
    rotations: int
    height: int
    width: int
    channels_last: bool
    field: ReceptiveField

    def features(self, output: object, batch: int) -> Tensor:
        """The output of the layer as features of units.

        Args:
            output: ``[B, C]``, ``[B, C, H, W]`` or ``[B, C, n, H, W]``; or ``[n * B, C, H, W]``
                from networks that keep the rotations in the batch (:mod:`equicolor.nn.batched`).
            batch: the number :math:`B` of images.

        Returns:
            :math:`[B, C, n, H, W]`.
        """
        return _features(self.name, output, batch, self.channels_last)


def _features(name: str, output: object, batch: int, channels_last: bool) -> Tensor:
    shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if not isinstance(output, Tensor) or output.ndim not in (2, 4, 5) or len(output) % batch:
        raise LayerError(
            f"layer {name!r} must give [B, C], [B, C, H, W] or [B, C, n, H, W] for {batch} "
            f"images, got {shape}"
        )
    if output.ndim == 5:
        return output
    maps = output if output.ndim == 4 else output[..., None, None]
    maps = maps.movedim(3, 1) if channels_last else maps
    by_rotation: Tensor = maps.unflatten(0, (-1, batch))
    return by_rotation.movedim(0, 2)


def find_layers(
    network: nn.Module, size: int | tuple[int, int], layers: Sequence[str] | None = None
) -> dict[str, Layer]:
    """The layers to look at, in the order of execution.

    The network runs once, in eval mode, on a grey image.

    Args:
        network: takes images :math:`[B, 3, H, W]` in [0, 1].
        size: of the images, height and width.
        layers: names of modules; ``name#2`` is the second call of one that is called several
            times in a pass. By default the network's nonlinearities before pooling over the
            whole image; if these are functions, which cannot be tapped, the norms before them, or
            else the convolutions. By default, layers that give no map :math:`[B, C, H, W]`, as in
            transformers, are left out: see :func:`layers_left_out`.

    Raises:
        ValueError: for a name that the network does not have, or that is ambiguous.

    Example:
        >>> from equicolor.models import resnet44
        >>> network = resnet44(width=2)
        >>> list(find_layers(network, 32))[:3]
        ['relu', 'layers.0.0.relu#1', 'layers.0.0.relu#2']
        >>> layer = find_layers(network, 32, ["layers.1"])["layers.1"]
        >>> layer.channels, layer.rotations, layer.height, layer.width
        (4, 1, 16, 16)
    """
    image = _checks.int_pair("size", size, minimum=1)
    calls = _watch(network, image)
    if layers is None:
        names = _first_kind({name: call for name, call in calls.items() if call.is_map})
        if not names:
            network_type = type(network).__name__
            raise ValueError(
                f"{network_type} has no layers of features [B, C, H, W] to look at; name some"
            )
    else:
        names = [_check_name(name, calls) for name in layers]
        if not names:
            raise ValueError("layers must name at least one layer, got none")
    return {name: _layer(name, call, image) for name, call in calls.items() if name in names}


def layers_left_out(network: nn.Module, size: int | tuple[int, int]) -> dict[str, list[int]]:
    """The layers that :func:`find_layers` leaves out by default, as they give no map of the image.

    Args:
        network, size: as in :func:`find_layers`.

    Returns:
        The shapes of the outputs of nonlinearities for one image, by the name of the layer, in
        the order of execution: tokens :math:`[1, N, C]`, or the features :math:`[1, C]` of a
        flattened map. If nonlinearities are functions, those of the norms before them, or else
        of other layers of tokens with weights. Layers after global pooling do not count.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.Flatten(2), nn.GELU())
        >>> list(find_layers(network, 8)), layers_left_out(network, 8)
        (['0'], {'2': [1, 4, 16]})
    """
    calls = _watch(network, _checks.int_pair("size", size, minimum=1))
    others = {name: call for name, call in calls.items() if call.shape and not call.is_map}
    names = _first_kind(others) or [
        name
        for name, call in others.items()
        if len(call.shape) > 2 and [*call.module.parameters(recurse=False)]
    ]
    return {name: others[name].shape for name in names}


def receptive_fields(
    network: nn.Module, size: int | tuple[int, int], layers: Sequence[str] | None = None
) -> dict[str, ReceptiveField]:
    """The receptive fields of all units of some layers, for images of one size.

    Args:
        network, size, layers: as in :func:`find_layers`.

    Returns:
        By the name of the layer, in the order of execution, on the CPU.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        >>> field = receptive_fields(network, 8, ["2"])["2"]
        >>> field.size(), field.box(0, 0), field.frame(0, 0)  # of the upper left unit
        ((4, 4), (0, 0, 3, 3), (-1, -1, 3, 3))
        >>> field.box(0, 5)
        (1, 1, 5, 5)
    """
    return {name: layer.field for name, layer in find_layers(network, size, layers).items()}


class _Call(NamedTuple):
    """A call of a module and the planes of its output, None if it depends on no pixel."""

    module: nn.Module
    planes: Planes | None
    unknown: frozenset[str]

    @property
    def shape(self) -> list[int]:
        """The shape of the output; empty if it has no local features, as after global pooling."""
        # Nominal planes are infinite after global pooling.
        if self.planes is None or all((self.planes[i] == torch.inf).all() for i in NOMINAL):
            return []
        return list(self.planes[0].shape)

    @property
    def is_map(self) -> bool:
        """Whether the output is a map of positions in the image."""
        return len(self.shape) in (4, 5)


def _watch(network: nn.Module, image: tuple[int, int]) -> dict[str, _Call]:
    """Every call of a module in one pass, in order, by the name of the layer."""
    runner = Runner(network, None)
    modules = {name: module for name, module in network.named_modules() if name}
    in_order: list[tuple[str, _Call]] = []

    def record(name: str, output: object) -> None:
        if isinstance(output, Tensor):
            unknown = frozenset(dependence.unknown)
            in_order.append((name, _Call(modules[name], dependence.planes(output), unknown)))

    with torch.inference_mode():
        images = torch.full((1, 3, *image), 0.5, device=runner.device, dtype=runner.dtype)
        with Dependence(images) as dependence:
            run_tapped(network, images, modules, record)
    totals, seen, calls = Counter(name for name, _ in in_order), Counter[str](), {}
    for name, call in in_order:
        seen[name] += 1
        calls[f"{name}{TIMES}{seen[name]}" if totals[name] > 1 else name] = call
    return calls


def _layer(name: str, call: _Call, image: tuple[int, int]) -> Layer:
    planes = call.planes
    if planes is None:
        raise LayerError(f"layer {name!r} does not depend on the image")
    last = _is_channels_last(planes)
    shaped = tuple(_features(name, plane, 1, last) for plane in planes)
    _, channels, rotations, height, width = shaped[0].shape
    field = field_from_planes(shaped, image, call.unknown)
    return Layer(name, channels, rotations, height, width, last, field)


def _is_channels_last(planes: Planes) -> bool:
    """Whether rows go along the second axis of four, and columns along the third."""
    if planes[0].ndim != 4:
        return False

    def varies(pair: Planes, axis: int) -> bool:
        return any(bool((plane != plane.narrow(axis, 0, 1)).any()) for plane in pair)

    # Nominal planes, too: exact ones are all equal if every unit sees the whole image.
    rows, columns = planes[0:2] + planes[4:6], planes[2:4] + planes[6:8]
    return varies(rows, 1) and varies(columns, 2) and not varies(rows + columns, 3)


def _first_kind(calls: Mapping[str, _Call]) -> list[str]:
    """All layers of the first of :data:`_KINDS` that there are any of."""
    by_kind = ([n for n, call in calls.items() if is_kind(call.module)] for is_kind in _KINDS)
    return next(filter(None, by_kind), [])


def _check_name(name: str, calls: Mapping[str, _Call]) -> str:
    if name in calls:
        return name
    times = sum(layer.startswith(f"{name}{TIMES}") for layer in calls)
    if times:
        raise LayerError(
            f"layer {name!r} is called {times} times: use {name}{TIMES}1 to {name}{TIMES}{times}"
        )
    names = dict.fromkeys([*(call.partition(TIMES)[0] for call in calls), *calls])
    hint = did_you_mean(name, names, f"it has {enumerated(list(calls), _LISTED)}")
    raise LayerError(f"the network has no layer {name!r}; {hint}")


def stage_ends(layers: Mapping[str, Layer]) -> list[str]:
    """The last layer at every resolution but 1 × 1, unless there is no other.

    Args:
        layers: of :func:`find_layers`.

    Example:
        >>> from equicolor.models import resnet44
        >>> stage_ends(find_layers(resnet44(width=2), 32))
        ['layers.0.6.relu#2', 'layers.1.6.relu#2', 'layers.2.6.relu#2']
    """
    last = {(layer.height, layer.width): name for name, layer in layers.items()}
    return [name for size, name in last.items() if size != (1, 1)] or list(last.values())
