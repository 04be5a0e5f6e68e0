"""Which pixels the elements of a tensor depend on, and what operations do to that.

The **planes** of a tensor are eight tensors of its shape. For every element they hold the first
and the last row, and the first and the last column, of the pixels it depends on; the last ones
negated, so that the union of two dependences is the smaller of both numbers, and infinity is
no dependence at all. The first four planes are **exact**: they end where the picture ends. The
other four are **nominal**: they go on into the padding, as if the picture did, and leave out
what an element learns from global pooling. Where the exact ones say what a unit can see, the
nominal ones say where it looks.

Planes rarely differ along every axis. Where they do not, they are kept expanded (stride 0) and
computed once.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["EXACT", "NOMINAL", "Planes", "pixel_planes"]

Planes = tuple[Tensor, ...]
EXACT, NOMINAL = range(4), range(4, 8)
_GLOBAL = 0.75  # of the picture: pooling over more than that is no longer a look at a place


def pixel_planes(height: int, width: int, *, device: torch.device | None = None) -> Planes:
    """The planes of a picture ``[1, 3, H, W]``: every pixel depends on itself.

    Example:
        >>> planes = pixel_planes(4, 5)
        >>> len(planes), planes[0].shape, planes[3][0, 0, 2].tolist()
        (8, torch.Size([1, 3, 4, 5]), [-0.0, -1.0, -2.0, -3.0, -4.0])
    """
    rows = torch.arange(height, dtype=torch.float32, device=device).view(1, 1, -1, 1)
    columns = torch.arange(width, dtype=torch.float32, device=device).view(1, 1, 1, -1)
    four = tuple(x.expand(1, 3, height, width) for x in (rows, -rows, columns, -columns))
    return four + four


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
    sizes: Sequence[int],
) -> Planes:
    """Windows over the last axes, one after another; ``sizes`` are those of the result."""

    def windows(index: int, plane: Tensor) -> Tensor:
        plane = collapse(plane)
        for place, size in enumerate(sizes):
            axis = plane.ndim - len(sizes) + place
            if plane.shape[axis] == 1 and size > 1:  # equal along the axis, and stays so
                continue
            reach = dilation[place] * (kernel[place] - 1) + 1
            # As many as there are results of: some windows of pooling end outside (ceil_mode).
            after = (size - 1) * stride[place] + reach - plane.shape[axis] - padding[place]
            plane = pad_axis(plane, axis, padding[place], max(after, 0), index in NOMINAL)
            view = plane.unfold(axis, reach, stride[place])[..., :: dilation[place]]
            plane = view.amin(-1).narrow(axis, 0, size)
        return plane

    return tuple(windows(index, plane) for index, plane in enumerate(planes))


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

    return tuple(map(windows, planes))


def pad_axis(plane: Tensor, axis: int, before: int, after: int, nominal: bool) -> Tensor:
    """Padding depends on nothing; nominally, it continues the picture. Negative padding cuts."""
    size = plane.shape[axis]
    if before < 0 or after < 0:
        kept = plane.narrow(axis, max(-before, 0), size + min(before, 0) + min(after, 0))
        return pad_axis(kept, axis, max(before, 0), max(after, 0), nominal)
    sides = []
    for count, edge, inner in ((before, 0, 1), (after, size - 1, size - 2)):
        outside = torch.full_like(plane.narrow(axis, 0, 1), math.inf)
        steps = torch.arange(1, count + 1, dtype=plane.dtype, device=plane.device)
        steps = steps.flip(0) if edge == 0 else steps
        steps = steps.view(-1, *[1] * (plane.ndim - axis - 1))
        if nominal and size > 1:
            last = plane.narrow(axis, edge, 1)
            outside = last + steps * (last - plane.narrow(axis, inner, 1))
            outside = outside.nan_to_num(math.inf, math.inf, math.inf)  # inf - inf
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


def reduce(planes: Planes, axes: Sequence[int], picture: tuple[int, int]) -> Planes:
    """Elements that depend on all along some axes, which are kept with size 1."""
    axes = list(axes)
    result: list[Tensor] = []
    for index in range(0, len(planes), 2):
        pair = [collapse(plane) for plane in planes[index : index + 2]]
        lowest = [plane.amin(axes, keepdim=True) for plane in pair]
        if index in NOMINAL:
            # Of each result alone: local ones cover the picture together, but do not pool it.
            reach = (1 - lowest[1] - lowest[0]).nan_to_num(neginf=0.0).amax()
            varied = any(
                bool((plane.amax(axes, keepdim=True) > low).any())
                for plane, low in zip(pair, lowest, strict=True)
            )
            extent = picture[index // 2 % 2]
            if varied and float(reach) >= _GLOBAL * extent:
                lowest = [torch.full_like(low, math.inf) for low in lowest]
        result += lowest
    return tuple(result)


def bins(planes: Planes, sizes: Sequence[int], picture: tuple[int, int]) -> Planes:
    """Adaptive pooling of the last axes to some sizes."""
    axes = range(-len(sizes), 0)
    if all(size == 1 for size in sizes):
        return reduce(planes, axes, picture)

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

    return tuple(map(cut, planes))


def multiply(
    left: Planes | None, right: Planes | None, values: tuple[Tensor, Tensor], shape: Sequence[int]
) -> Planes:
    """A matrix product ``left @ right``, either of which may be constant.

    Zeros of a constant matrix count: filters written as banded matrices stay local.
    """
    a, b = values
    parts = []
    if left is not None:
        weight = None if right is not None or b.ndim < 2 else b.mT
        found = [_contract(plane, weight) for plane in left]
        parts.append(tuple(f if b.ndim > 1 else f.squeeze(-1) for f in found))
    if right is not None:
        weight = None if left is not None or a.ndim < 2 else a
        turned = [plane if plane.ndim == 1 else plane.mT for plane in right]
        found = [_contract(plane, weight) for plane in turned]
        found = [f if b.ndim == 1 else f.mT for f in found]
        parts.append(tuple(f if a.ndim > 1 or b.ndim == 1 else f.squeeze(-2) for f in found))
    return union(parts, shape)


def _contract(plane: Tensor, weight: Tensor | None) -> Tensor:
    """Planes ``[..., m, k]`` to ``[..., m, 1 or n]``, for a constant ``[..., n, k]`` if any."""
    plane = collapse(plane)
    if weight is None or plane.shape[-1] == 1 or bool((weight != 0).all()):
        return plane.amin(-1, keepdim=True)
    used = torch.where(weight != 0, 0.0, math.inf).to(plane).unsqueeze(-3)
    return (plane.unsqueeze(-2) + used).amin(-1)


def apply(planes: Planes, operation: Callable[[Tensor], Tensor]) -> Planes:
    """What moves elements moves their planes."""
    return tuple(map(operation, planes))
