"""The filters of a hidden layer as its convolutions take them, and their gradients, as kernels.

Filters are mixed over the rotations, rounded, padded and laid out in one pass. With torch
operations this takes a dozen launches a layer, which cost more than the work itself.
"""

# Triton knows no starred tuples, and mypy no tuples that grow in a loop.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc"

from typing import NamedTuple, Self

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from equicolor.devices import on_device_of
from equicolor.nn._fused.layout import Planes, Products, ceil_div, padded_channels
from equicolor.nn._fused.tile_kernels import load

_ROWS, _COLUMNS = tl.constexpr(16), tl.constexpr(32)  # of a tile: outputs and inputs
_WARPS = 8


class _Filters(NamedTuple):
    """A layer's filters, ``[O, C, n, K]``, or ``[O, C, K]`` and ``[O, C, n]``, and their mixes."""

    weight: Tensor
    pointwise: Tensor | None
    table: Tensor  # [m, n]
    outputs: int
    inputs: int
    padded_outputs: int
    padded_inputs: int
    size: constexpr  # K
    n: constexpr
    mixes: constexpr  # m
    alone: constexpr  # mixes that are not of a pair

    @classmethod
    def of(cls, weight: Tensor, pointwise: Tensor | None, table: Tensor, planes: Planes) -> Self:
        outputs, inputs, _, height, width = weight.shape
        mixes, n = table.shape
        return cls(
            weight.contiguous(),
            None if pointwise is None else pointwise.contiguous(),
            table.float().contiguous(),
            outputs,
            inputs,
            padded_channels(outputs),
            padded_channels(inputs),
            *map(constexpr, (height * width, n, mixes, planes.alone)),
        )

    @property
    def grid(self) -> tuple[int]:
        rows = ceil_div(self.padded_outputs, _ROWS.value)
        return (rows * ceil_div(self.padded_inputs, _COLUMNS.value),)


@triton.jit
def _tile(filters):
    """Outputs and inputs of this program, the index of each pair of them, and which exist."""
    blocks = tl.cdiv(filters.padded_inputs, _COLUMNS)
    row = tl.program_id(0) // blocks * _ROWS + tl.arange(0, _ROWS)[:, None].to(tl.int64)
    column = tl.program_id(0) % blocks * _COLUMNS + tl.arange(0, _COLUMNS)[None, :]
    inside = (row < filters.outputs) & (column < filters.inputs)
    return row, column, row * filters.inputs + column, inside


@triton.constexpr_function
def _convolution(mix, alone):
    """The convolution that a mix belongs to; a pair has four."""
    return mix if mix < alone else alone + (mix - alone) // 4


@triton.jit
def _offset(filters, MIX: constexpr, k, row, column):
    """The offset of tap k of a mix in the filters of its convolution."""
    if filters.alone > MIX:
        return (row * filters.size + k) * filters.padded_inputs + column
    PART: constexpr = (MIX - filters.alone) % 4
    wide = (PART // 2 * filters.padded_outputs + row) * filters.size + k
    return PART % 2 * filters.padded_inputs + wide * 2 * filters.padded_inputs + column


@triton.jit
def _start(filters, MIX: constexpr):
    """The offset of the filters of one convolution in memory for all."""
    whole = tl.cast(filters.padded_outputs, tl.int64) * filters.size * filters.padded_inputs
    return whole * (MIX if filters.alone > MIX else MIX - (MIX - filters.alone) % 4)


@triton.jit
def _rotations(pointer, place, step, inside, N: constexpr):
    """The numbers of all rotations, ``step`` apart."""
    tiles = ()
    for rotation in tl.static_range(N):
        tiles = tiles + (load(pointer, place + rotation * step, inside),)
    return tiles


@triton.jit
def _product(matrix, row_step, column_step, tiles, ROWS: constexpr):
    """A matrix, with these strides, times tiles."""
    sums = ()
    for row in tl.static_range(ROWS):
        total = tiles[0] * tl.load(matrix + row * row_step)
        for column in tl.static_range(1, len(tiles)):
            total += tiles[column] * tl.load(matrix + row * row_step + column * column_step)
        sums = sums + (total,)
    return sums


@triton.jit
def _mixed(filters, rotations):
    """The table times the tiles of all rotations."""
    return _product(filters.table, filters.n, 1, rotations, filters.mixes)


@triton.jit
def _mixed_back(filters, mixes):
    """The transpose of the table times the tiles of all mixes."""
    return _product(filters.table, 1, filters.n, mixes, filters.n)


@triton.jit
def _mix_kernel(filters, out):
    row, column, pair, inside = _tile(filters)
    there = (row < filters.padded_outputs) & (column < filters.padded_inputs)
    if filters.pointwise is not None:
        scales = _rotations(filters.pointwise, pair * filters.n, 1, inside, filters.n)
        mixed = _mixed(filters, scales)
    for k in range(filters.size):
        if filters.pointwise is not None:
            value = load(filters.weight, pair * filters.size + k, inside)
        else:
            value = 1.0
            place = pair * (filters.n * filters.size) + k
            tiles = _rotations(filters.weight, place, filters.size, inside, filters.n)
            mixed = _mixed(filters, tiles)
        for index in tl.static_range(filters.mixes):
            place = _start(filters, index) + _offset(filters, index, k, row, column)
            tl.store(out + place, (mixed[index] * value).to(out.dtype.element_ty), there)


@triton.jit
def _gradients(filters, gradients, k, row, column, inside):
    """The gradients of all mixes of number k."""
    tiles = ()
    for index in tl.static_range(filters.mixes):
        gradient = gradients[_convolution(index, filters.alone)]
        place = _offset(filters, index, k, row, column)
        tiles = tiles + (load(gradient, place, inside),)
    return tiles


@triton.jit
def _mix_backward_kernel(filters, gradients, of_weight, of_pointwise):
    row, column, pair, inside = _tile(filters)
    if filters.pointwise is None:
        for k in range(filters.size):
            tiles = _gradients(filters, gradients, k, row, column, inside)
            sums = _mixed_back(filters, tiles)
            for rotation in tl.static_range(filters.n):
                place = (pair * filters.n + rotation) * filters.size + k
                tl.store(of_weight + place, sums[rotation].to(of_weight.dtype.element_ty), inside)
    else:
        scales = _rotations(filters.pointwise, pair * filters.n, 1, inside, filters.n)
        mixed = _mixed(filters, scales)
        slopes = ()
        for _ in tl.static_range(filters.mixes):
            slopes = slopes + (tl.zeros([_ROWS, _COLUMNS], tl.float32),)
        for k in range(filters.size):
            place = pair * filters.size + k
            value = load(filters.weight, place, inside)
            tiles = _gradients(filters, gradients, k, row, column, inside)
            total = tiles[0] * mixed[0]
            for index in tl.static_range(1, filters.mixes):
                total += tiles[index] * mixed[index]
            tl.store(of_weight + place, total.to(of_weight.dtype.element_ty), inside)
            before, slopes = slopes, ()
            for index in tl.static_range(filters.mixes):
                slopes = slopes + (before[index] + value * tiles[index],)
        sums = _mixed_back(filters, slopes)
        for rotation in tl.static_range(filters.n):
            value = sums[rotation].to(of_pointwise.dtype.element_ty)
            tl.store(of_pointwise + pair * filters.n + rotation, value, inside)


def mix(
    weight: Tensor, pointwise: Tensor | None, table: Tensor, dtype: torch.dtype, planes: Planes
) -> Tensor:
    """Filters mixed by ``table [m, n]``, in memory ``[m, O, kh, kw, C]`` with padded channels.

    Args:
        weight: full filters ``[O, C, n, kh, kw]``, or the spatial part ``[O, C, 1, kh, kw]``.
        pointwise: the group part ``[O, C, n, 1, 1]`` of separable filters, else None.
        table: the matrix, which is converted to float32.
        dtype: of the result.
        planes: those of the layer; a pair takes four mixes as one filter of twice the channels.
    """
    filters = _Filters.of(weight, pointwise, table, planes)
    shape = len(table), filters.padded_outputs, *weight.shape[3:], filters.padded_inputs
    out = weight.new_empty(shape, dtype=dtype)
    with on_device_of(weight):
        _mix_kernel[filters.grid](filters, out, num_warps=_WARPS)
    return out


def mix_backward(
    gradients: Products, weight: Tensor, pointwise: Tensor | None, table: Tensor, planes: Planes
) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``weight`` and ``pointwise`` from those of the filters of the convolutions.

    ``gradients`` are ``[O, C, kh, kw]`` or ``[2 O, 2 C, kh, kw]`` in channels_last memory.
    """
    filters = _Filters.of(weight, pointwise, table, planes)
    of_weight = torch.empty_like(filters.weight)
    of_pointwise = None if filters.pointwise is None else torch.empty_like(filters.pointwise)
    arguments = filters, gradients, of_weight, of_pointwise
    with on_device_of(weight):
        _mix_backward_kernel[filters.grid](*arguments, num_warps=_WARPS)
    return of_weight, of_pointwise
