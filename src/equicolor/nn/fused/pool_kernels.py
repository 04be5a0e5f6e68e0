"""Batch norm, ReLU and 3×3 max pooling with stride 2 as Triton kernels, forward and backward.

The stem of a network works on its largest activations. Here they are read once for the moments
and once to normalise, cut and pool; nothing of their size is written but their gradient, and one
byte an output, the tap of the window it came from, is kept for it.

Activations are images ``[N, P, H, W]`` in channels_last memory. The norm is ``[5, L]`` and what its
gradient needs ``[4, L]`` as in :mod:`equicolor.nn.fused.launchers`, where P divides L.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equicolor.nn.fused.launchers import loop_of, slopes_of

__all__ = ["norm_pool", "norm_pool_backward", "norm_pool_sums", "pooled"]

_ROWS, _LANES, _WARPS = 16, 64, 4
_PROGRAMS = 4096  # of the reduction
_NO_TAP = tl.constexpr(9)  # of a window where nothing is positive


class _Shape(NamedTuple):
    """Of the activations and of the pooled ones; lanes are those of one pixel."""

    images: int
    height: int
    width: int
    pooled_height: int
    pooled_width: int
    lanes: tl.constexpr  # so that loads are whole even where it is no multiple of 16
    vector_step: int


def pooled(size: int) -> int:
    """Pixels along a side after pooling.

    Example:
        >>> [pooled(size) for size in (1, 7, 110)]
        [1, 4, 55]
    """
    return (size - 1) // 2 + 1


@triton.jit
def _columns(shape, LANES: tl.constexpr):
    """The block of rows, the lanes and the lanes' mask of this program."""
    blocks = tl.cdiv(shape.lanes, LANES)
    lane = (tl.program_id(0) % blocks) * LANES + tl.arange(0, LANES)
    return tl.program_id(0) // blocks, lane, lane < shape.lanes


@triton.jit
def _pixel(row, height, width):
    """The image and the place in it of some rows."""
    return row // (height * width), row // width % height, row % width


@triton.jit
def _place(image, y, x, height, width, lane, lanes):
    pixel = (image * height + y) * width + x
    return pixel.to(tl.int64)[:, None] * lanes + lane[None, :]


@triton.jit
def _vector(vectors, index, lane, shape):
    return tl.load(vectors + index * shape.vector_step + lane, lane < shape.lanes, 0.0)[None, :]


@triton.jit
def _norm_pool_kernel(
    activations, vectors, out, taps, shape, ROWS: tl.constexpr, LANES: tl.constexpr
):
    block, lane, used = _columns(shape, LANES)
    mean = _vector(vectors, 0, lane, shape)
    scale, shift = _vector(vectors, 1, lane, shape), _vector(vectors, 2, lane, shape)
    row = block * ROWS + tl.arange(0, ROWS)
    inside = row < shape.images * shape.pooled_height * shape.pooled_width
    image, top, left = _pixel(row, shape.pooled_height, shape.pooled_width)
    best = tl.zeros([ROWS, LANES], tl.float32)
    tap = tl.full([ROWS, LANES], _NO_TAP, tl.int32)
    for index in tl.static_range(9):
        y, x = 2 * top - 1 + index // 3, 2 * left - 1 + index % 3
        there = inside & (y >= 0) & (y < shape.height) & (x >= 0) & (x < shape.width)
        mask = there[:, None] & used[None, :]
        place = _place(image, y, x, shape.height, shape.width, lane, shape.lanes)
        value = tl.load(activations + place, mask, 0.0).to(tl.float32)
        value = (value - mean) * scale + shift
        # The first of equal ones, and any that is not a number, as torch does it.
        better = mask & ((value > best) | (value != value))
        best = tl.where(better, value, best)
        tap = tl.where(better, index, tap)
    place = row.to(tl.int64)[:, None] * shape.lanes + lane[None, :]
    mask = inside[:, None] & used[None, :]
    tl.store(out + place, best.to(out.dtype.element_ty), mask)
    tl.store(taps + place, tap.to(tl.uint8), mask)


@triton.jit
def _gradient(gradients, taps, row, lane, used, shape):
    """The gradient of normalised activations: of the up to four windows that chose a pixel."""
    inside = row < shape.images * shape.height * shape.width
    image, y, x = _pixel(row, shape.height, shape.width)
    total = 0.0
    for window in tl.static_range(4):
        top, left = (y + 1) // 2 - window // 2, (x + 1) // 2 - window % 2
        tap_y, tap_x = y + 1 - 2 * top, x + 1 - 2 * left
        there = inside & (tap_y < 3) & (top >= 0) & (top < shape.pooled_height)
        there = there & (tap_x < 3) & (left >= 0) & (left < shape.pooled_width)
        mask = there[:, None] & used[None, :]
        place = _place(image, top, left, shape.pooled_height, shape.pooled_width, lane, shape.lanes)
        tap = tl.load(taps + place, mask, _NO_TAP).to(tl.int32)
        gradient = tl.load(gradients + place, mask, 0.0).to(tl.float32)
        total += tl.where(tap == (tap_y * 3 + tap_x)[:, None], gradient, 0.0)
    place = row.to(tl.int64)[:, None] * shape.lanes + lane[None, :]
    return total, place, inside[:, None] & used[None, :]


@triton.jit
def _norm_pool_sums_kernel(
    activations,
    gradients,
    taps,
    vectors,
    sums,
    shape,
    blocks,
    steps,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    block, lane, used = _columns(shape, LANES)
    mean = _vector(vectors, 0, lane, shape)
    total = tl.zeros([ROWS, LANES], tl.float32)
    weighted = tl.zeros([ROWS, LANES], tl.float32)
    for step in range(steps):
        row = (block * steps + step) * ROWS + tl.arange(0, ROWS)
        gradient, place, mask = _gradient(gradients, taps, row, lane, used, shape)
        value = tl.load(activations + place, mask, 0.0).to(tl.float32)
        total += gradient
        weighted += gradient * (value - mean)
    place = block * shape.lanes + lane
    tl.store(sums + place, tl.sum(total, 0), used)
    tl.store(sums + blocks * shape.lanes + place, tl.sum(weighted, 0), used)


@triton.jit
def _norm_pool_backward_kernel(
    activations,
    gradients,
    taps,
    vectors,
    slopes,
    out,
    shape,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    block, lane, used = _columns(shape, LANES)
    row = block * ROWS + tl.arange(0, ROWS)
    gradient, place, mask = _gradient(gradients, taps, row, lane, used, shape)
    value = tl.load(activations + place, mask, 0.0).to(tl.float32)
    centred = value - _vector(vectors, 0, lane, shape)
    slope, constant = _vector(slopes, 0, lane, shape), _vector(slopes, 1, lane, shape)
    value = gradient * _vector(vectors, 1, lane, shape) + centred * slope + constant
    tl.store(out + place, value.to(out.dtype.element_ty), mask)


def norm_pool(activations: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised, cut and pooled activations ``[N, H', W', P]``, and the taps they came from."""
    shape = _shape(activations, vectors)
    size = shape.images, shape.pooled_height, shape.pooled_width, activations.shape[1]
    out, taps = activations.new_empty(size), activations.new_empty(size, dtype=torch.uint8)
    grid = _grid(shape.images * shape.pooled_height * shape.pooled_width, shape)
    arguments = activations, vectors, out, taps, shape, _ROWS, _LANES
    _norm_pool_kernel[grid](*arguments, num_warps=_WARPS)
    return out, taps


def norm_pool_sums(
    activations: Tensor, gradients: Tensor, taps: Tensor, vectors: Tensor, *, training: bool
) -> Tensor:
    """What the gradient of :func:`norm_pool` needs from sums, ``[4, L]``.

    Args:
        activations: what went in.
        gradients: of what came out, ``[N, H', W', P]``.
        taps: what came out too.
        vectors: of the norm.
        training: whether the statistics are those of the activations.
    """
    shape = _shape(activations, vectors)
    rows = shape.images * shape.height * shape.width
    columns = triton.cdiv(activations.shape[1], _LANES)
    wanted = max(1, _PROGRAMS // columns)
    steps = triton.cdiv(triton.cdiv(rows, wanted), _ROWS)
    blocks = triton.cdiv(rows, steps * _ROWS)
    sums = vectors.new_empty(2, blocks, activations.shape[1])
    arguments = activations, gradients, taps, vectors, sums, shape, blocks, loop_of(steps)
    grid = (blocks * columns,)
    _norm_pool_sums_kernel[grid](*arguments, _ROWS, _LANES, num_warps=_WARPS)
    return slopes_of(sums, vectors, float(rows), training=training)


def norm_pool_backward(
    activations: Tensor, gradients: Tensor, taps: Tensor, vectors: Tensor, slopes: Tensor
) -> Tensor:
    """The gradient of the activations, ``[N, P, H, W]`` in channels_last memory."""
    shape, out = _shape(activations, vectors), torch.empty_like(activations)
    grid = _grid(shape.images * shape.height * shape.width, shape)
    arguments = activations, gradients, taps, vectors, slopes, out, shape, _ROWS, _LANES
    _norm_pool_backward_kernel[grid](*arguments, num_warps=_WARPS)
    return out


def _shape(activations: Tensor, vectors: Tensor) -> _Shape:
    images, lanes, height, width = activations.shape
    sides = height, width, pooled(height), pooled(width)
    return _Shape(images, *sides, tl.constexpr(lanes), vectors.shape[1])


def _grid(rows: int, shape: _Shape) -> tuple[int]:
    return (triton.cdiv(rows, _ROWS) * triton.cdiv(shape.lanes.value, _LANES),)
