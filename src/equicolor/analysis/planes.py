"""Which pixels the elements of a tensor depend on, and what operations do to that.

The **planes** of a tensor are twelve tensors of its shape. For every element they hold the first
and the last row, and the first and the last column, of the pixels it depends on; the last ones
negated, so that the union of two dependences is the smaller of both numbers, and infinity is
no dependence at all. The first four planes are **exact**: they end where the image ends. The
next four are **nominal**: they go on into the padding, as if the image did, and leave out
what an element learns from global pooling. Where the exact ones say what a unit can see, the
nominal ones say where it looks; minus infinity if nobody knows.

How nominal planes go on follows from neighbouring positions. A map of one row or column has no
neighbours, so the last four planes keep its **steps**: how far the next row would be, from the
smallest to the largest (negated) number, and the same for columns. Infinity is not known, as of
larger maps, where the positions say it. Rows go along the last axis but one, columns along the
last.

Planes rarely differ along every axis. Where they do not, they are kept expanded (stride 0) and
computed once.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["EXACT", "NOMINAL", "STEPS", "Planes", "pixel_planes"]

Planes = tuple[Tensor, ...]
EXACT, NOMINAL, STEPS = range(4), range(4, 8), range(8, 12)
_STEPS_ALONG = {-2: (8, 9), -1: (10, 11)}  # by the axis
_GLOBAL = 0.75  # of the image: pooling over more than that is no longer a look at a place


def pixel_planes(height: int, width: int, *, device: torch.device | None = None) -> Planes:
    """The planes of an image ``[1, 3, H, W]``: every pixel depends on itself.

    Example:
        >>> planes = pixel_planes(4, 5)
        >>> len(planes), planes[0].shape, planes[3][0, 0, 2].tolist()
        (12, torch.Size([1, 3, 4, 5]), [-0.0, -1.0, -2.0, -3.0, -4.0])
    """
    rows = torch.arange(height, dtype=torch.float32, device=device).view(1, 1, -1, 1)
    columns = torch.arange(width, dtype=torch.float32, device=device).view(1, 1, 1, -1)
    four = tuple(x.expand(1, 3, height, width) for x in (rows, -rows, columns, -columns))
    unknown = torch.full((), math.inf, device=device).expand(1, 3, height, width)
    return four + four + (unknown,) * len(STEPS)


def collapse(plane: Tensor) -> Tensor:
    """A plane with one element along axes on which all are equal."""
    strides = plane.stride()
    for axis, size in enumerate(plane.shape):
        if size > 1 and strides[axis] == 0:
            plane = plane.narrow(axis, 0, 1)
    for axis, size in enumerate(plane.shape):
        if size > 1 and bool((plane == (first := plane.narrow(axis, 0, 1))).all()):
            plane = first
    return plane


def union(parts: Iterable[Planes], shape: Sequence[int]) -> Planes:
    """Elements that depend on all that the given ones do; broadcasts."""
    return tuple(
        functools.reduce(torch.minimum, map(collapse, planes)).expand(tuple(shape))
        for planes in zip(*parts, strict=True)
    )


def hull(parts: Iterable[Planes], shape: Sequence[int]) -> Planes:
    """Elements that each depend on everything: what is safe to say of an unknown operation."""
    lowest = [tuple(plane.amin() for plane in planes) for planes in parts]
    return union(lowest, shape)


def slide(
    planes: Planes,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    before: Sequence[int],
    sizes: Sequence[int],
) -> Planes:
    """Windows over the last axes, one after another, of sizes ``before``; the result's ``sizes``.

    Example:
        >>> planes = pixel_planes(3, 3)
        >>> for before, after in ((3, 2), (2, 1), (1, 1)):  # a network down to one position
        ...     options = (3, 3), (2, 2), (1, 1), (1, 1), (before, before), (after, after)
        ...     planes = slide(planes, *options)
        >>> [plane.flatten().tolist() for plane in (planes[4], -planes[5], planes[8])]
        [[-7.0], [7.0], [8.0]]
    """

    def windows(index: int) -> Tensor:
        plane = collapse(planes[index])
        for place, size in enumerate(sizes):
            axis = plane.ndim - len(sizes) + place
            plane, step = with_step(plane, planes, index, axis, before[place])
            if plane.shape[axis] == 1 and size > 1 and step is None:
                continue  # equal along the axis, and stays so
            reach = dilation[place] * (kernel[place] - 1) + 1
            # As many as there are results of: some windows of pooling end outside (ceil_mode).
            after = (size - 1) * stride[place] + reach - plane.shape[axis] - padding[place]
            plane = pad_axis(
                plane, axis, padding[place], max(after, 0), nominal=index in NOMINAL, step=step
            )
            view = plane.unfold(axis, reach, stride[place])[..., :: dilation[place]]
            plane = view.amin(-1).narrow(axis, 0, size)
        return plane

    moved = tuple(windows(index) for index in (*EXACT, *NOMINAL))
    return moved + _slide_steps(planes, stride, before, sizes)


def _slide_steps(
    planes: Planes, stride: Sequence[int], before: Sequence[int], sizes: Sequence[int]
) -> Planes:
    """The steps of what windows give: read off where a single position arises, then kept."""
    steps: list[Tensor] = []
    for axis, pair in _STEPS_ALONG.items():
        if len(sizes) < -axis or sizes[axis] > 1:
            steps += _unknown_steps(planes)[:2]
            continue
        bounds = [collapse(planes[index]) for index in pair]
        if before[axis] > 1:
            plane = collapse(planes[NOMINAL[0] if axis == -2 else NOMINAL[2]])
            apart = plane.diff(dim=axis) if plane.shape[axis] > 1 else torch.zeros_like(plane)
            # Equal ones were spread from a single one, or see nothing: that is no step.
            nothing = (apart == 0) | ~apart.isfinite()
            bounds = [bound.masked_fill(nothing, math.inf) for bound in (apart, -apart)]
        steps += [_over_map(bound) * stride[axis] for bound in bounds]
    return tuple(steps)


def _unknown_steps(planes: Planes) -> Planes:
    return (torch.full((), math.inf, device=planes[0].device),) * len(STEPS)


def _over_map(plane: Tensor) -> Tensor:
    return plane.amin(list(range(-min(2, plane.ndim), 0)), keepdim=True)


def with_step(
    plane: Tensor, planes: Planes, index: int, axis: int, size: int
) -> tuple[Tensor, Tensor | None]:
    """A collapsed plane ready for :func:`pad_axis`, and the step that takes.

    Args:
        plane: to be padded.
        planes: all of them, as they were.
        index: which it is.
        axis: to pad.
        size: of the features along the axis.
    """
    step = _step_outside(planes, index, axis - plane.ndim, size)
    if step is not None:  # several positions that were one
        plane = plane.expand(*plane.shape[:axis], size, *plane.shape[axis + 1 :])
    return plane, step


def _step_outside(planes: Planes, index: int, axis: int, size: int) -> Tensor | None:
    """How far a plane goes on along an axis, where its positions do not say it.

    Args:
        planes: all of them.
        index: which.
        axis: counted from the end.
        size: of the features along the axis.

    Returns:
        NaN where it is not known; None if the positions say it, or if it does not go on.
    """
    if index not in NOMINAL or axis != (-2 if index < NOMINAL[2] else -1):
        return None
    if size > 1:  # equal ones were spread from a single one, and nobody knows what is beside it
        spread = collapse(planes[index]).shape[axis] == 1
        return torch.full((), math.nan, device=planes[index].device) if spread else None
    smallest, largest = (_over_map(collapse(planes[bound])) for bound in _STEPS_ALONG[axis])
    step = torch.where(smallest == -largest, smallest, math.nan)
    return step if index % 2 == 0 else -step  # the last rows and columns are negated


def spread(
    planes: Planes,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    sizes: Sequence[int],
) -> Planes:
    """The same for a transposed convolution, whose windows are on the side of the result."""

    def windows(plane: Tensor) -> Tensor:
        plane = collapse(plane)
        for place, size in enumerate(sizes):
            axis = plane.ndim - len(sizes) + place
            if plane.shape[axis] == 1 and size > 1 and kernel[place] < size:
                continue
            moved = plane.movedim(axis, -1)
            apart = moved.new_full(
                (*moved.shape[:-1], (moved.shape[-1] - 1) * stride[place] + 1), math.inf
            )
            apart[..., :: stride[place]] = moved
            reach = dilation[place] * (kernel[place] - 1) + 1
            before = reach - 1 - padding[place]
            apart = F.pad(
                apart, (before, size + reach - 1 - before - apart.shape[-1]), value=math.inf
            )
            view = apart.unfold(-1, reach, 1)[..., :: dilation[place]]
            plane = view.amin(-1).movedim(-1, axis)
        return plane

    return (*map(windows, planes[: STEPS[0]]), *_unknown_steps(planes))


def pad_axis(
    plane: Tensor, axis: int, before: int, after: int, *, nominal: bool, step: Tensor | None = None
) -> Tensor:
    """Padding depends on nothing; nominally, it continues the image. Negative padding cuts.

    Args:
        plane: one of the planes.
        axis: to pad.
        before, after: how much.
        nominal: whether it is a nominal plane.
        step: as of :func:`with_step`.
    """
    if step is not None:  # channels may have different ones
        plane = plane.expand(torch.broadcast_shapes(plane.shape, step.shape))
    size = plane.shape[axis]
    if before < 0 or after < 0:
        kept = plane.narrow(axis, max(-before, 0), size + min(before, 0) + min(after, 0))
        before, after = max(before, 0), max(after, 0)
        return pad_axis(kept, axis, before, after, nominal=nominal, step=step)
    sides = []
    for side, count, edge in ((-1, before, 0), (1, after, size - 1)):
        outside = torch.full_like(plane.narrow(axis, 0, 1), math.inf)
        steps = torch.arange(1, count + 1, dtype=plane.dtype, device=plane.device)
        steps = -steps.flip(0) if side < 0 else steps
        steps = steps.view(-1, *[1] * (plane.ndim - axis - 1))
        last = plane.narrow(axis, edge, 1)
        if nominal and size > 1 and step is None:
            outside = last + steps * side * (last - plane.narrow(axis, edge - side, 1))
            outside = outside.nan_to_num(math.inf, math.inf, math.inf)  # inf - inf
        elif step is not None:
            outside = last + steps * step
            nobody_knows = torch.where(last.isinf(), last, -math.inf)
            outside = torch.where(outside.isnan(), nobody_knows, outside)
        shape = list(outside.shape)
        shape[axis] = count
        sides.append(outside.expand(shape))
    return torch.cat([sides[0], plane, sides[1]], axis)


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
    """Elements that depend on all along some axes, which are kept with size 1."""
    axes = list(axes)
    result: list[Tensor] = []
    for index in range(0, len(planes), 2):
        pair = [collapse(plane) for plane in planes[index : index + 2]]
        lowest = [plane.amin(axes, keepdim=True) for plane in pair]
        if index in NOMINAL:
            # Of each result alone: local ones cover the image together, but do not pool it.
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

    return (*map(cut, planes[: STEPS[0]]), *_unknown_steps(planes))


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
        found = [_contract(plane, used) for plane in left]
        parts.append(tuple(f if b.ndim > 1 else f.squeeze(-1) for f in found))
    if right is not None:
        used = None if left is not None or a.ndim < 2 else _used(a)
        turned = [plane if plane.ndim == 1 else plane.mT for plane in right]
        found = [_contract(plane, used) for plane in turned]
        found = [f if b.ndim == 1 else f.mT for f in found]
        parts.append(tuple(f if a.ndim > 1 or b.ndim == 1 else f.squeeze(-2) for f in found))
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


def apply(planes: Planes, operation: Callable[[Tensor], Tensor]) -> Planes:
    """What moves elements moves their planes."""
    return tuple(map(operation, planes))
