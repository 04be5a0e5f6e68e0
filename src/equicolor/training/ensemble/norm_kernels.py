"""Batch norm over the hues of a channel, ReLU and dropout as four Triton kernels.

After a convolution everything is memory traffic. Forward reads the activations twice (for the
moments, then to normalise) and writes once; backward reads activations and gradients twice and
writes once. Between the kernels, what depends on a channel alone is folded into one scale and one
offset per lane. A compiler fuses the same sums less well: it recomputes the statistics' gradient
for every pixel.

The tests compare with ``norm_and_cut`` of ``network``.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from equicolor.training.ensemble.network import EPS, join_hues, to_lanes

_ROWS, _LANES = 32, 128  # a tile, the fastest of eight on one H200
_PROGRAMS = 2048  # for a reduction, several for each multiprocessor


@triton.jit
def _tile(rows, lanes, start, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Rows, lanes, places in memory and mask of a tile."""
    row = start + tl.arange(0, ROWS).to(tl.int64)
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = (row < rows)[:, None] & (lane < lanes)[None, :]
    return row, lane, row[:, None] * lanes + lane[None, :], inside


@triton.jit
def _cut_gradient(
    y, gradient, scale, offset, factors, row, lane, place, inside, lanes, pixels,
    HAS_FACTORS: tl.constexpr,
):  # fmt: skip
    """The activations before the norm, and the gradient after it."""
    value = tl.load(y + place, inside, 0.0).to(tl.float32)
    slope = tl.load(gradient + place, inside, 0.0).to(tl.float32)
    if HAS_FACTORS:
        factor = (row // pixels)[:, None] * lanes + lane[None, :]
        slope *= tl.load(factors + factor, inside, 0.0)
    scales = tl.load(scale + lane, lane < lanes, 0.0)[None, :]
    offsets = tl.load(offset + lane, lane < lanes, 0.0)[None, :]
    return value, tl.where(value * scales + offsets > 0, slope, 0.0)


@triton.jit
def _moments_kernel(
    y, out, rows, lanes, STEPS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr
):
    """Sums of a chunk of rows and of their squares, about the first row."""
    first = tl.program_id(1).to(tl.int64) * STEPS * ROWS
    total = tl.zeros([ROWS, LANES], tl.float32)
    squares = tl.zeros([ROWS, LANES], tl.float32)
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    # Subtracting any value of the lane keeps the squares from cancelling.
    pivot = tl.load(y + lane, lane < lanes, 0.0).to(tl.float32)[None, :]
    for step in range(STEPS):
        _, lane, place, inside = _tile(rows, lanes, first + step * ROWS, ROWS, LANES)
        value = tl.where(inside, tl.load(y + place, inside, 0.0).to(tl.float32) - pivot, 0.0)
        total += value
        squares += value * value
    place = tl.program_id(1) * 2 * lanes + lane
    tl.store(out + place, tl.sum(total, 0), lane < lanes)
    tl.store(out + place + lanes, tl.sum(squares, 0), lane < lanes)


@triton.jit
def _forward_kernel(
    y, out, scale, offset, factors, rows, lanes, pixels,
    HAS_FACTORS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Scale, shift, cut and drop."""
    start = tl.program_id(1).to(tl.int64) * ROWS
    row, lane, place, inside = _tile(rows, lanes, start, ROWS, LANES)
    value = tl.load(y + place, inside, 0.0).to(tl.float32)
    scales = tl.load(scale + lane, lane < lanes, 0.0)[None, :]
    offsets = tl.load(offset + lane, lane < lanes, 0.0)[None, :]
    value = tl.maximum(value * scales + offsets, 0.0)
    if HAS_FACTORS:
        factor = (row // pixels)[:, None] * lanes + lane[None, :]
        value *= tl.load(factors + factor, inside, 0.0)
    tl.store(out + place, value.to(out.dtype.element_ty), inside)


@triton.jit
def _sums_kernel(
    y, gradient, scale, offset, factors, mean, out, rows, lanes, pixels,
    STEPS: tl.constexpr, HAS_FACTORS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient, and of the gradient times the centred activation."""
    first = tl.program_id(1).to(tl.int64) * STEPS * ROWS
    total = tl.zeros([ROWS, LANES], tl.float32)
    weighted = tl.zeros([ROWS, LANES], tl.float32)
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    means = tl.load(mean + lane, lane < lanes, 0.0)[None, :]
    for step in range(STEPS):
        row, lane, place, inside = _tile(rows, lanes, first + step * ROWS, ROWS, LANES)
        value, slope = _cut_gradient(
            y, gradient, scale, offset, factors, row, lane, place, inside, lanes, pixels,
            HAS_FACTORS,
        )  # fmt: skip
        total += slope
        weighted += slope * (value - means)
    place = tl.program_id(1) * 2 * lanes + lane
    tl.store(out + place, tl.sum(total, 0), lane < lanes)
    tl.store(out + place + lanes, tl.sum(weighted, 0), lane < lanes)


@triton.jit
def _backward_kernel(
    y, gradient, scale, offset, factors, slope_y, constant, out, rows, lanes, pixels,
    HAS_FACTORS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The gradient before the norm."""
    start = tl.program_id(1).to(tl.int64) * ROWS
    row, lane, place, inside = _tile(rows, lanes, start, ROWS, LANES)
    value, slope = _cut_gradient(
        y, gradient, scale, offset, factors, row, lane, place, inside, lanes, pixels, HAS_FACTORS
    )
    scales = tl.load(scale + lane, lane < lanes, 0.0)[None, :]
    slopes = tl.load(slope_y + lane, lane < lanes, 0.0)[None, :]
    constants = tl.load(constant + lane, lane < lanes, 0.0)[None, :]
    value = slope * scales + value * slopes + constants
    tl.store(out + place, value.to(out.dtype.element_ty), inside)


def norm_and_cut(
    y: Tensor, weight: Tensor, shift: Tensor, factors: Tensor | None, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``norm_and_cut`` of ``network``, which describes the arguments."""
    return _NormAndCut.apply(y, weight, shift, factors, n)


class _NormAndCut(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, weight: Tensor, shift: Tensor, factors: Tensor | None, n: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        y = y.contiguous(memory_format=torch.channels_last)
        factors = None if factors is None else factors.contiguous()
        rows, lanes, pixels = _sizes(y)
        blocks, steps = _chunks(rows, lanes)
        sums = torch.empty(blocks, 2, lanes, device=y.device)
        _moments_kernel[_grid(lanes, blocks)](y, sums, rows, lanes, steps, _ROWS, _LANES)
        first, second = sums.sum(0) / rows
        lane_mean = first + y.permute(0, 2, 3, 1).reshape(rows, lanes)[0].float()
        mean, var = join_hues(lane_mean, second - first.square(), weight.shape, n)
        inverse = torch.rsqrt(var + EPS)
        scale = weight * inverse
        scales, offsets = to_lanes(scale, n, lanes), to_lanes(shift - mean * scale, n, lanes)
        out = torch.empty_like(y)
        _forward_kernel[_grid(lanes, triton.cdiv(rows, _ROWS))](
            y, out, scales, offsets, factors, rows, lanes, pixels, factors is not None, _ROWS,
            _LANES,
        )  # fmt: skip
        ctx.save_for_backward(y, factors, mean, inverse, scale, scales, offsets)
        ctx.n = n
        ctx.mark_non_differentiable(mean, var)
        return out, mean, var

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        y, factors, mean, inverse, scale, scales, offsets = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        n, has_factors = ctx.n, factors is not None
        rows, lanes, pixels = _sizes(y)
        networks, channels = mean.shape
        blocks, steps = _chunks(rows, lanes)
        sums = torch.empty(blocks, 2, lanes, device=y.device)
        common = y, gradient, scales, offsets, factors
        _sums_kernel[_grid(lanes, blocks)](
            *common, to_lanes(mean, n, lanes), sums, rows, lanes, pixels, steps, has_factors,
            _ROWS, _LANES,
        )  # fmt: skip
        by_hue = sums.sum(0).view(2, networks, -1)[..., : n * channels]
        d_shift, d_centred = by_hue.unflatten(2, (n, channels)).sum(2)
        d_weight = d_centred * inverse
        # w rstd (g - mean(g) - xhat mean(g xhat)) as scale * g + slope * y + constant
        count = n * rows
        slope = -scale * inverse * d_weight / count
        constant = -scale * d_shift / count - slope * mean
        out = torch.empty_like(y)
        _backward_kernel[_grid(lanes, triton.cdiv(rows, _ROWS))](
            *common, to_lanes(slope, n, lanes), to_lanes(constant, n, lanes), out, rows, lanes,
            pixels, has_factors, _ROWS, _LANES,
        )  # fmt: skip
        return out, d_weight, d_shift, None, None


def _sizes(y: Tensor) -> tuple[int, int, int]:
    """Rows and lanes of the activations as a matrix, and rows of one image."""
    batch, lanes, height, width = y.shape
    return batch * height * width, lanes, height * width


def _chunks(rows: int, lanes: int) -> tuple[int, int]:
    """How many programs share the rows of a reduction, and how many tiles each has.

    Tiles are a power of two, since the kernel is compiled for every number of them.
    """
    programs = max(1, _PROGRAMS // triton.cdiv(lanes, _LANES))
    steps = triton.next_power_of_2(triton.cdiv(triton.cdiv(rows, programs), _ROWS))
    return triton.cdiv(rows, steps * _ROWS), steps


def _grid(lanes: int, blocks: int) -> tuple[int, int]:
    return triton.cdiv(lanes, _LANES), blocks
