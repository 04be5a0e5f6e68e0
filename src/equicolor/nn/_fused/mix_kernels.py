"""Mixing over the group as one Triton kernel.

With torch operations, half-precision features are copied to float32, mixed and copied back, and
products are copied into one tensor before. This kernel reads its input once, from wherever it
lies, and writes its output once; sums are float32.
"""

# Triton knows no starred tuples, and mypy no tuples that grow in a loop.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc"

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from equicolor.devices import on_device_of
from equicolor.nn._fused.tile_kernels import load

_WARPS = 4


@triton.jit
def _mix_kernel(parts, matrix, steps, out, size, OUTPUTS: constexpr, TILE: constexpr):
    # Offsets count more elements than int32 does.
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = place < size
    tiles = ()
    for part in tl.static_range(len(parts)):
        tiles = tiles + (load(parts[part], place, inside),)
    for row in tl.static_range(OUTPUTS):
        total = tiles[0] * tl.load(matrix + row * steps[0])
        for column in tl.static_range(1, len(parts)):
            total += tiles[column] * tl.load(matrix + row * steps[0] + column * steps[1])
        target = out + tl.cast(size, tl.int64) * row + place
        tl.store(target, total.to(out.dtype.element_ty), inside)


def mix(matrix: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The sums ``sum_j matrix[i, j] * parts[j]``, stacked, contiguous; no gradients.

    The parts are contiguous tensors of one shape and dtype, float32 or half precision.
    """
    first, matrix = parts[0], matrix.float()
    out = first.new_empty(len(matrix), *first.shape)
    # A thread keeps all parts of its elements in its 255 registers.
    elements = 8 if len(parts) <= 12 else 4
    tile = elements * _WARPS * 32
    grid = (triton.cdiv(first.numel(), tile),)
    arguments = tuple(parts), matrix, matrix.stride(), out, first.numel()
    with on_device_of(first):
        _mix_kernel[grid](*arguments, len(matrix), tile, num_warps=_WARPS)
    return out
