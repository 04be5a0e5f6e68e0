"""Which pixels the elements of a tensor depend on, and how operations change that.

The **planes** of a tensor are twelve tensors of its shape. Four of them hold, for every element,
the first and last row and the first and last column of the pixels it depends on. Last rows and
columns are negated, so that the union of two dependences is the minimum; infinity means no
dependence.

- The first four planes are **exact**: they end where the image ends. They say what a unit sees.
- The next four are **nominal**: they continue into the padding as if the image did, and leave out
  global pooling. They say where a unit looks; minus infinity if that is unknown.
- The last four are **steps**. Nominal planes are continued from neighbouring positions, but a map
  of one row or column has no neighbours. Its steps are the smallest and the (negated) largest
  distance to the next row, and the same for columns; infinity if unknown, or if the map is larger.

Rows lie along the last axis but one, columns along the last. Planes rarely differ along every axis;
along the others they are expanded (stride 0) and computed once.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Planes = tuple[Tensor, ...]
EXACT, NOMINAL, STEPS = range(4), range(4, 8), range(8, 12)
_STEPS_ALONG = {-2: (8, 9), -1: (10, 11)}  # by the axis
_GLOBAL = 0.75  # of the image: pooling over this much or more counts as global


def pixel_planes(height: int, width: int, *, device: torch.device | None = None) -> Planes:
    """The planes of an image ``[1, 3, H, W]``: every pixel depends on itself."""
    rows = torch.arange(height, dtype=torch.float32, device=device).view(1, 1, -1, 1)
    columns = torch.arange(width, dtype=torch.float32, device=device).view(1, 1, 1, -1)
    four = rows, -rows, columns, -columns
    planes = four + four + nothing(device, len(STEPS))
    return tuple(plane.expand(1, 3, height, width) for plane in planes)


def nothing(device: torch.device | None, count: int = 12) -> Planes:
    """Planes of elements that depend on nothing, or ``count`` of them, such as unknown steps."""
    return (torch.full((), math.inf, device=device),) * count


def collapse(plane: Tensor) -> Tensor:
    """A plane with size 1 along the axes on which it is constant."""
    strides = plane.stride()
    for axis, size in enumerate(plane.shape):
        if size > 1 and strides[axis] == 0:
            plane = plane.narrow(axis, 0, 1)
    for axis, size in enumerate(plane.shape):
        if size > 1 and bool((plane == (first := plane.narrow(axis, 0, 1))).all()):
            plane = first
    return plane


def union(parts: Iterable[Planes], shape: Sequence[int]) -> Planes:
    """Elements that depend on whatever those of any part do; broadcasts."""
    return tuple(
        functools.reduce(torch.minimum, map(collapse, planes)).expand(tuple(shape))
        for planes in zip(*parts, strict=True)
    )


def hull(parts: Iterable[Planes], shape: Sequence[int]) -> Planes:
    """Elements that each depend on everything, as for an unknown operation."""
    lowest = [tuple(plane.amin() for plane in planes) for planes in parts]
    return union(lowest, shape)


class Windows(NamedTuple):
    """Windows over the last axes of a tensor, one number for each axis."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]  # before the first element; negative numbers cut
    dilation: Sequence[int]

    def reach(self, place: int) -> int:
        """How many elements a window spans along an axis."""
        return self.dilation[place] * (self.kernel[place] - 1) + 1


def slide(planes: Planes, windows: Windows, before: Sequence[int], sizes: Sequence[int]) -> Planes:
    """The planes of windows over the last axes: from sizes ``before`` to ``sizes``.

    Example:
        >>> planes, windows = pixel_planes(3, 3), Windows((3, 3), (2, 2), (1, 1), (1, 1))
        >>> for before, after in ((3, 2), (2, 1), (1, 1)):  # a network down to one position
        ...     planes = slide(planes, windows, (before, before), (after, after))
        >>> [plane.flatten().tolist() for plane in (planes[4], -planes[5], planes[8])]
        [[-7.0], [7.0], [8.0]]
    """

    def slid(index: int) -> Tensor:
        plane = collapse(planes[index])
        for place, size in enumerate(sizes):
            axis = place - len(sizes)
            step = _step_outside(planes, index, axis, before[place])
            if step is None and plane.shape[axis] == 1:
                continue  # the plane is constant along the axis, and stays so
            if step is not None:  # the plane may be constant, but not its padding
                plane = _expanded(plane, axis, before[place], step)
            reach, stride = windows.reach(place), windows.stride[place]
            start = windows.padding[place]
            # Enough for all results: some windows of pooling end outside (ceil_mode).
            end = max((size - 1) * stride + reach - plane.shape[axis] - start, 0)
            padded = _pad(plane, axis, (start, end), step, nominal=index in NOMINAL)
            view = padded.unfold(axis, reach, stride)[..., :: windows.dilation[place]]
            plane = view.amin(-1).narrow(axis, 0, size)
        return plane

    moved = tuple(slid(index) for index in (*EXACT, *NOMINAL))
    return moved + _slide_steps(planes, windows.stride, before, sizes)


def _slide_steps(
    planes: Planes, stride: Sequence[int], before: Sequence[int], sizes: Sequence[int]
) -> Planes:
    """The steps of the results of windows: measured where one position is left, then kept."""
    steps: list[Tensor] = []
    for axis, pair in _STEPS_ALONG.items():
        bounds = [collapse(planes[index]) for index in pair]
        if len(sizes) < -axis:  # windows over the columns alone
            steps += map(_over_map, bounds)
            continue
        if sizes[axis] > 1:
            steps += nothing(planes[0].device, len(bounds))
            continue
        if before[axis] > 1:
            plane = collapse(planes[NOMINAL[0] if axis == -2 else NOMINAL[2]])
            apart = plane.diff(dim=axis) if plane.shape[axis] > 1 else torch.zeros_like(plane)
            # Equal positions were spread from one, or see nothing: there is no step.
            no_step = (apart == 0) | ~apart.isfinite()
            bounds = [bound.masked_fill(no_step, math.inf) for bound in (apart, -apart)]
        steps += [_over_map(bound) * stride[axis] for bound in bounds]
    return tuple(steps)


def _over_map(plane: Tensor) -> Tensor:
    return plane.amin(list(range(-min(2, plane.ndim), 0)), keepdim=True)


def _step_outside(planes: Planes, index: int, axis: int, size: int) -> Tensor | None:
    """The step by which a nominal plane continues from its end into the padding of an axis.

    None if the step follows from the positions, or if the plane does not continue along the axis;
    NaN where it is unknown.
    """
    if index not in NOMINAL or axis != (-2 if index < NOMINAL[2] else -1):
        return None
    if size > 1:  # equal positions were spread from one, and the next one is unknown
        is_spread = collapse(planes[index]).shape[axis] == 1
        return torch.full((), math.nan, device=planes[index].device) if is_spread else None
    smallest, largest = (_over_map(collapse(planes[bound])) for bound in _STEPS_ALONG[axis])
    step = torch.where(smallest == -largest, smallest, math.nan)
    return step if index % 2 == 0 else -step  # last rows and columns are negated


def _expanded(plane: Tensor, axis: int, size: int, step: Tensor) -> Tensor:
    """A plane with all positions of an axis, and all channels whose steps differ."""
    shape = list(plane.shape)
    shape[axis] = size
    return plane.expand(shape).expand(torch.broadcast_shapes(shape, step.shape))


def _pad(
    plane: Tensor, axis: int, amounts: tuple[int, int], step: Tensor | None, *, nominal: bool
) -> Tensor:
    """Pad a plane along an axis before and after; negative amounts cut.

    Exactly, padding depends on nothing; nominally, it continues the image.
    """
    before, after = amounts
    plane = plane.narrow(axis, max(-before, 0), plane.shape[axis] + min(before, 0))
    sides = [
        _outside(plane, axis, side, max(count, 0), step, nominal=nominal)
        for side, count in ((-1, before), (1, after))
    ]
    return torch.cat([sides[0], plane, sides[1]], axis)


def _outside(
    plane: Tensor, axis: int, side: int, count: int, step: Tensor | None, *, nominal: bool
) -> Tensor:
    """``count`` positions before (side -1) or after (side 1) a plane."""
    size = plane.shape[axis]
    edge = 0 if side < 0 else size - 1
    last = plane.narrow(axis, edge, 1)
    steps = torch.arange(1, count + 1, dtype=plane.dtype, device=plane.device)
    steps = -steps.flip(0) if side < 0 else steps
    steps = steps.view(-1, *[1] * (-axis - 1))
    if step is not None:
        outside = last + steps * step
        unknown = torch.where(last.isinf(), last, -math.inf)
        outside = torch.where(outside.isnan(), unknown, outside)
    elif nominal and size > 1:
        outside = last + steps * side * (last - plane.narrow(axis, edge - side, 1))
        outside = outside.nan_to_num(math.inf, math.inf, math.inf)  # inf - inf
    else:
        outside = torch.full_like(last, math.inf)
    shape = list(last.shape)
    shape[axis] = count
    return outside.expand(shape)


def spread(planes: Planes, windows: Windows, sizes: Sequence[int]) -> Planes:
    """As :func:`slide` for a transposed convolution, whose windows are in the result."""

    def spread_one(plane: Tensor) -> Tensor:
        plane = collapse(plane)
        for place, size in enumerate(sizes):
            axis = plane.ndim - len(sizes) + place
            if plane.shape[axis] == 1 and size > 1 and windows.kernel[place] < size:
                continue
            reach, stride = windows.reach(place), windows.stride[place]
            moved = plane.movedim(axis, -1)
            count = (moved.shape[-1] - 1) * stride + 1
            apart = moved.new_full((*moved.shape[:-1], count), math.inf)
            apart[..., ::stride] = moved
            before = reach - 1 - windows.padding[place]
            apart = F.pad(apart, (before, size + reach - 1 - before - count), value=math.inf)
            view = apart.unfold(-1, reach, 1)[..., :: windows.dilation[place]]
            plane = view.amin(-1).movedim(-1, axis)
        return plane

    return (*map(spread_one, planes[: STEPS[0]]), *nothing(planes[0].device, len(STEPS)))


def mix_channels(planes: Planes, groups: int, outputs: int) -> Planes:
    """Every output channel depends on all input channels of its group; channels are axis 1."""

    def mix(plane: Tensor) -> Tensor:
        plane = collapse(plane)
        if plane.shape[1] == 1:
            return plane
        lowest: Tensor = plane.unflatten(1, (groups, -1)).amin(2)
        return lowest if groups == 1 else lowest.repeat_interleave(outputs // groups, 1)

    return tuple(map(mix, planes))


def reduce(planes: Planes, axes: Sequence[int], image: tuple[int, int]) -> Planes:
    """Elements that depend on all elements along some axes, which are kept with size 1."""
    axes = list(axes)
    result: list[Tensor] = []
    for index in range(0, len(planes), 2):
        pair = [collapse(plane) for plane in planes[index : index + 2]]
        lowest = [plane.amin(axes, keepdim=True) for plane in pair]
        if index in NOMINAL:
            # The reach of each result alone: local ones cover the image only together.
            reach = (1 - lowest[1] - lowest[0]).nan_to_num(neginf=0.0).amax()
            varied = any(
                bool((plane.amax(axes, keepdim=True) > low).any())
                for plane, low in zip(pair, lowest, strict=True)
            )
            extent = image[index // 2 % 2]
            if varied and float(reach) >= _GLOBAL * extent:
                lowest = [torch.full_like(low, math.inf) for low in lowest]
        result += lowest
    return tuple(result)


def bins(planes: Planes, sizes: Sequence[int], image: tuple[int, int]) -> Planes:
    """Adaptive pooling of the last axes to some sizes."""
    axes = range(-len(sizes), 0)
    if all(size == 1 for size in sizes):
        return reduce(planes, axes, image)

    def cut(plane: Tensor) -> Tensor:
        plane = collapse(plane)
        for axis, size in zip(axes, sizes, strict=True):
            count = plane.shape[axis]
            if count == 1:
                continue
            ends = [(i * count // size, -(-(i + 1) * count // size)) for i in range(size)]
            parts = [plane.narrow(axis, a, b - a).amin(axis, keepdim=True) for a, b in ends]
            plane = torch.cat(parts, axis)
        return plane

    return (*map(cut, planes[: STEPS[0]]), *nothing(planes[0].device, len(STEPS)))


def multiply(
    left: Planes | None, right: Planes | None, values: tuple[Tensor, Tensor], shape: Sequence[int]
) -> Planes:
    """A matrix product ``left @ right``, either of which may be constant.

    Zeros of a constant matrix count: filters written as banded matrices stay local.
    """
    a, b = values
    parts = []
    if left is not None:
        used = None if right is not None or b.ndim < 2 else _used(b.mT)
        planes = [_contract(plane, used) for plane in left]
        parts.append(tuple(plane if b.ndim > 1 else plane.squeeze(-1) for plane in planes))
    if right is not None:
        used = None if left is not None or a.ndim < 2 else _used(a)
        turned = [plane if plane.ndim == 1 else plane.mT for plane in right]
        planes = [_contract(plane, used) for plane in turned]
        if b.ndim > 1:
            planes = [plane.mT if a.ndim > 1 else plane.mT.squeeze(-2) for plane in planes]
        parts.append(tuple(planes))
    return union(parts, shape)


def _used(weight: Tensor) -> Tensor | None:
    """Which elements of a constant matrix are not zero; None if all are."""
    used = weight != 0
    return None if bool(used.all()) else used


def _contract(plane: Tensor, used: Tensor | None) -> Tensor:
    """Planes ``[..., m, k]`` to ``[..., m, 1 or n]``, for a constant ``[..., n, k]`` if any."""
    plane = collapse(plane)
    if used is None or plane.shape[-1] == 1:
        return plane.amin(-1, keepdim=True)
    return torch.where(used.unsqueeze(-3), plane.unsqueeze(-2), math.inf).amin(-1)
