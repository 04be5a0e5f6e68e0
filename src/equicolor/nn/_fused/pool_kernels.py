"""Batch norm, ReLU and 3×3 max pooling with stride 2 as Triton kernels, forward and backward.

The stem of a network has its largest activations. They are read once for the moments and once
for norm, ReLU and pooling. Nothing of their size is written except their gradient. For that,
one byte is kept for each output: which of the nine taps of its window it came from.

Activations are images ``[N, P, H, W]`` in channels_last memory, or ``[N, n * P, H, W]`` with the
rotations beside the channels. Vectors ``[5, L]`` and slopes ``[4, L]`` of the norm are those of
:mod:`equicolor.nn._fused.launchers`; P divides L.
"""

# Triton knows no starred tuples, and mypy no tuples that grow in a loop.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from equicolor.nn._fused.launchers import loop_of, slopes_of
from equicolor.nn._fused.layout import padded_channels
from equicolor.nn._fused.norm import Norm
from equicolor.nn._fused.tile_kernels import load, store_sums

_TILE, _MOST_LANES = 1024, 64  # elements of a tile, and of them in one row
_WARPS = 4
_PROGRAMS = 4096  # of the reduction
_NO_TAP = tl.constexpr(9)  # for a window where nothing is positive
_MOST_SHIFT = tl.constexpr(8.0)  # of a norm, in multiples of its weight
_LEAST_SCALE = tl.constexpr(1e-30)  # of a norm; float32 has no inverse of the smallest numbers


class _Shape(NamedTuple):
    """The shapes of the activations and of the pooled ones.

    Sides are constants for the compiler since every row of a tile is divided by them. So are the
    lanes of a pixel, so that loads are vectorised even for lanes that are no multiple of 16.
    """

    images: int
    vector_step: int
    padded: constexpr  # P
    height: constexpr
    width: constexpr
    pooled_height: constexpr
    pooled_width: constexpr
    lanes: constexpr
    tile_rows: constexpr
    tile_lanes: constexpr


@triton.jit
def _columns(shape):
    """The block of rows, the lanes, and their mask, of this program."""
    blocks = tl.cdiv(shape.lanes, shape.tile_lanes)
    lane = (tl.program_id(0) % blocks) * shape.tile_lanes + tl.arange(0, shape.tile_lanes)
    return tl.program_id(0) // blocks, lane, lane < shape.lanes


@triton.jit
def _windows(block, shape):
    """The windows of a block: their rows, whether they exist, image, and place in the image."""
    row = block * shape.tile_rows + tl.arange(0, shape.tile_rows)
    height, width = shape.pooled_height, shape.pooled_width
    inside = row < shape.images * height * width
    return row, inside, row // (height * width), row // width % height, row % width


@triton.jit
def _place(image, y, x, height, width, lane, lanes):
    pixel = (image * height + y) * width + x
    return pixel.to(tl.int64)[:, None] * lanes + lane[None, :]


@triton.jit
def _vector(vectors, index, lane, shape):
    place = index * shape.vector_step + lane % shape.padded
    return tl.load(vectors + place, lane < shape.lanes, 0.0)[None, :]


@triton.jit
def _norm_pool_kernel(activations, vectors, out, taps, shape):
    block, lane, used = _columns(shape)
    mean = _vector(vectors, 0, lane, shape)
    scale, shift = _vector(vectors, 1, lane, shape), _vector(vectors, 2, lane, shape)
    row, inside, image, top, left = _windows(block, shape)
    mask = inside[:, None] & used[None, :]
    if taps is None:
        best = _largest(activations, scale, top, left, image, lane, mask, shape)
        best = tl.maximum((best - mean) * scale + shift, 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        best = tl.zeros([shape.tile_rows, shape.tile_lanes], tl.float32)
        tap = tl.full([shape.tile_rows, shape.tile_lanes], _NO_TAP, tl.int32)
        for index in tl.static_range(9):
            y, x = 2 * top - 1 + index // 3, 2 * left - 1 + index % 3
            there = inside & (y >= 0) & (y < shape.height) & (x >= 0) & (x < shape.width)
            used_there = there[:, None] & used[None, :]
            place = _place(image, y, x, shape.height, shape.width, lane, shape.lanes)
            value = (load(activations, place, used_there) - mean) * scale + shift
            # As torch does: the first of equal values, and any NaN.
            better = used_there & ((value > best) | (value != value))
            best = tl.where(better, value, best)
            tap = tl.where(better, index, tap)
    place = row.to(tl.int64)[:, None] * shape.lanes + lane[None, :]
    tl.store(out + place, best.to(out.dtype.element_ty), mask)
    if taps is not None:
        tl.store(taps + place, tap.to(tl.uint8), mask)


@triton.jit
def _largest(activations, scale, top, left, image, lane, mask, shape):
    """The activation of a window that a norm with this scale makes the largest.

    Pixels outside are replaced by their neighbours, which are in the window, too.
    """
    sign = tl.where(scale < 0, -1.0, 1.0)
    largest = tl.full(mask.shape, float("-inf"), tl.float32)
    for index in tl.static_range(9):
        y = tl.minimum(tl.maximum(2 * top - 1 + index // 3, 0), shape.height - 1)
        x = tl.minimum(tl.maximum(2 * left - 1 + index % 3, 0), shape.width - 1)
        place = _place(image, y, x, shape.height, shape.width, lane, shape.lanes)
        value = load(activations, place, mask) * sign
        largest = tl.maximum(largest, value, propagate_nan=tl.PropagateNan.ALL)
    return largest * sign


@triton.jit
def _norm_pool_sums_kernel(
    activations, outputs, gradients, taps, vectors, sums, shape, blocks, steps
):
    """Sums over the windows: only the pixel that a window has chosen has a gradient.

    Its activation follows from the output. Reading it would take four times as long, and is needed
    only where the shift of a norm hides what it scales, since the output is rounded too coarsely
    there, and where the scale has no inverse. (Where both are zero, no output is positive.)
    """
    block, lane, used = _columns(shape)
    mean, inverse = _vector(vectors, 0, lane, shape), _vector(vectors, 3, lane, shape)
    scale, shift = _vector(vectors, 1, lane, shape), _vector(vectors, 2, lane, shape)
    tiny = (scale != 0) & (tl.abs(scale) < _LEAST_SCALE)
    coarse = tl.abs(shift) * inverse > tl.abs(scale) * _MOST_SHIFT
    hidden = tl.max((tiny | coarse).to(tl.int32))
    back = 1.0 / tl.where(scale == 0, 1.0, scale)
    total = tl.zeros([shape.tile_rows, shape.tile_lanes], tl.float32)
    weighted = tl.zeros([shape.tile_rows, shape.tile_lanes], tl.float32)
    for step in range(steps):
        row, inside, image, top, left = _windows(block * steps + step, shape)
        place = row.to(tl.int64)[:, None] * shape.lanes + lane[None, :]
        mask = inside[:, None] & used[None, :]
        output = load(outputs, place, mask)
        gradient = tl.where(output <= 0, 0.0, load(gradients, place, mask))
        if hidden == 0:
            centred = (output - shift) * back
        else:
            tap = tl.load(taps + place, mask, _NO_TAP).to(tl.int32)
            corner = (image * shape.height + 2 * top - 1) * shape.width + 2 * left - 1
            pixel = corner[:, None] + tap // 3 * shape.width + tap % 3
            place = pixel.to(tl.int64) * shape.lanes + lane[None, :]
            centred = load(activations, place, mask & (tap != _NO_TAP)) - mean
        total += gradient
        weighted += gradient * centred
    store_sums(sums, block, blocks, lane, shape, total, weighted)


@triton.jit
def _norm_pool_backward_kernel(activations, gradients, taps, vectors, slopes, out, shape):
    """Two by two pixels at a time, which at most two by two windows can have chosen."""
    block, lane, used = _columns(shape)
    mean, scale = _vector(vectors, 0, lane, shape), _vector(vectors, 1, lane, shape)
    slope, constant = _vector(slopes, 0, lane, shape), _vector(slopes, 1, lane, shape)
    _, inside, image, top, left = _windows(block, shape)
    chosen, given = (), ()
    for window in tl.static_range(4):
        y, x = top + window // 2, left + window % 2
        there = inside & (y < shape.pooled_height) & (x < shape.pooled_width)
        mask = there[:, None] & used[None, :]
        place = _place(image, y, x, shape.pooled_height, shape.pooled_width, lane, shape.lanes)
        chosen = chosen + (tl.load(taps + place, mask, _NO_TAP).to(tl.int32),)
        given = given + (load(gradients, place, mask),)
    for pixel in tl.static_range(4):
        gradient = tl.zeros([shape.tile_rows, shape.tile_lanes], tl.float32)
        for window in tl.static_range(4):
            # Even rows belong to one window, odd ones to two; and so do columns.
            if window // 2 <= pixel // 2 and window % 2 <= pixel % 2:
                tap_y = pixel // 2 + 1 - 2 * (window // 2)
                tap_x = pixel % 2 + 1 - 2 * (window % 2)
                gradient += tl.where(chosen[window] == tap_y * 3 + tap_x, given[window], 0.0)
        y, x = 2 * top + pixel // 2, 2 * left + pixel % 2
        mask = (inside & (y < shape.height) & (x < shape.width))[:, None] & used[None, :]
        place = _place(image, y, x, shape.height, shape.width, lane, shape.lanes)
        centred = load(activations, place, mask) - mean
        value = gradient * scale + centred * slope + constant
        tl.store(out + place, value.to(out.dtype.element_ty), mask)


def norm_pool(
    activations: Tensor, norm: Norm, *, keep_taps: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Norm, ReLU and pooling of activations, ``[N, H', W', P]``, and the taps they came from.

    Only a gradient needs the taps: without ``keep_taps`` they are None.
    """
    shape = _shape(activations, norm)
    sides = shape.pooled_height.value, shape.pooled_width.value
    out = activations.new_empty(shape.images, *sides, activations.shape[1])
    taps = torch.empty_like(out, dtype=torch.uint8) if keep_taps else None
    arguments = activations, norm.vectors, out, taps, shape
    _norm_pool_kernel[_grid(out)](*arguments, num_warps=_WARPS)
    return out, taps


def norm_pool_sums(
    activations: Tensor, outputs: Tensor, gradients: Tensor, taps: Tensor, norm: Norm
) -> Tensor:
    """The slopes ``[4, L]`` of :func:`norm_pool`, from its outputs and their gradients."""
    rows, lanes = taps[..., 0].numel(), activations.shape[1]
    tile_rows, tile_lanes = _tile(lanes)
    columns = triton.cdiv(lanes, tile_lanes)
    programs = max(1, _PROGRAMS // columns)
    steps = triton.cdiv(triton.cdiv(rows, programs), tile_rows)
    blocks = triton.cdiv(rows, steps * tile_rows)
    sums, shape = norm.vectors.new_empty(2, blocks, lanes), _shape(activations, norm)
    pixels, where = (activations, outputs, gradients), (shape, blocks, loop_of(steps))
    arguments = *pixels, taps, norm.vectors, sums, *where
    _norm_pool_sums_kernel[(blocks * columns,)](*arguments, num_warps=_WARPS)
    # The sums of each rotation are parts of those of a channel.
    sums, padded = sums.view(2, -1, shape.padded.value), shape.padded.value
    return slopes_of(sums, norm, activations.numel() / padded)


def norm_pool_backward(
    activations: Tensor, gradients: Tensor, taps: Tensor, norm: Norm, slopes: Tensor
) -> Tensor:
    """The gradient of the activations, ``[N, P, H, W]`` in channels_last memory."""
    shape, out = _shape(activations, norm), torch.empty_like(activations)
    arguments = activations, gradients, taps, norm.vectors, slopes, out, shape
    _norm_pool_backward_kernel[_grid(taps)](*arguments, num_warps=_WARPS)
    return out


def _shape(activations: Tensor, norm: Norm) -> _Shape:
    images, lanes, height, width = activations.shape
    # Pooling takes 110 pixels to 55.
    sides = height, width, (height - 1) // 2 + 1, (width - 1) // 2 + 1
    constants = padded_channels(norm.channels), *sides, lanes, *_tile(lanes)
    return _Shape(images, norm.vectors.shape[1], *map(constexpr, constants))


def _tile(lanes: int) -> tuple[int, int]:
    """Rows and lanes of a tile: a few channels share it with more rows."""
    at_once = min(triton.next_power_of_2(lanes), _MOST_LANES)
    return _TILE // at_once, at_once


def _grid(windows: Tensor) -> tuple[int]:
    """One program for each tile of a tensor ``[N, H', W', P]``."""
    rows, lanes = windows[..., 0].numel(), windows.shape[-1]
    tile_rows, tile_lanes = _tile(lanes)
    return (triton.cdiv(rows, tile_rows) * triton.cdiv(lanes, tile_lanes),)
