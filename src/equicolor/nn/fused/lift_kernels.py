"""The orbit of images under the hue group as one Triton kernel, in the memory convolutions want.

Equal to :func:`equicolor.nn.functional.hue_orbit`, which takes a pass over memory for every
operation. Colours are float32 until they are written.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equicolor.nn.fused.layout import BLOCK

__all__ = ["orbit"]

_ROWS, _WARPS = 256, 4


class _Images(NamedTuple):
    """``[B, 3, H, W]`` in any memory."""

    pointer: Tensor
    batch: int
    height: int
    width: int
    steps: tuple[int, ...]  # from element to element along each dimension


@triton.jit
def _modulo(x, divisor):
    return x - tl.floor(x / divisor) * divisor


@triton.jit
def _channel(sextant, chroma, low, OFFSET: tl.constexpr):
    """A trapezoid over the hue circle says how much of the chroma a channel lacks."""
    position = _modulo(sextant + OFFSET, 6.0)
    lack = tl.minimum(position, 4 - position)
    lack = tl.clamp(lack, 0.0, 1.0, propagate_nan=tl.PropagateNan.ALL)
    return low + chroma * (1 - lack)


@triton.jit
def _orbit_kernel(
    images, matrices, out, N: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = images.batch * images.height * images.width
    x, y = row % images.width, row // images.width % images.height
    image = (row // (images.width * images.height)).to(tl.int64)
    place = image * images.steps[0] + y * images.steps[2] + x * images.steps[3]
    inside = row < rows
    red = tl.load(images.pointer + place, inside, 0.0).to(tl.float32)
    green = tl.load(images.pointer + place + images.steps[1], inside, 0.0).to(tl.float32)
    blue = tl.load(images.pointer + place + 2 * images.steps[1], inside, 0.0).to(tl.float32)
    if matrices is None:
        high = tl.maximum(tl.maximum(red, green), blue)
        low = tl.minimum(tl.minimum(red, green), blue)
        chroma = high - low
        scale = tl.where(chroma < 1.17549435e-38, 1.0, chroma)  # the smallest normal number
        sextant = tl.where(high == green, 2 + (blue - red) / scale, 4 + (red - green) / scale)
        sextant = tl.where(high == red, (green - blue) / scale, sextant)
    channel = tl.arange(0, CHANNELS)[None, :]
    target = row.to(tl.int64)[:, None] * CHANNELS + channel
    step = tl.cast(rows, tl.int64) * CHANNELS
    for k in tl.static_range(N):
        if matrices is None:
            shifted = sextant - 6.0 * k / N
            first = _channel(shifted, chroma, low, 5)
            second = _channel(shifted, chroma, low, 3)
            third = _channel(shifted, chroma, low, 1)
        else:
            # Filters see H(k) psi, so images see the transpose.
            m = matrices + 9 * k
            first = red * tl.load(m) + green * tl.load(m + 3) + blue * tl.load(m + 6)
            second = red * tl.load(m + 1) + green * tl.load(m + 4) + blue * tl.load(m + 7)
            third = red * tl.load(m + 2) + green * tl.load(m + 5) + blue * tl.load(m + 8)
        value = tl.where(channel == 0, first[:, None], 0.0)
        value = tl.where(channel == 1, second[:, None], value)
        value = tl.where(channel == 2, third[:, None], value)
        tl.store(out + step * k + target, value.to(out.dtype.element_ty), inside[:, None])


def orbit(images: Tensor, n: int, matrices: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Every image under the inverse of every group element, in channels_last memory.

    Args:
        images: RGB images ``[B, 3, H, W]``.
        n: the order of the group.
        matrices: the group as float32 matrices ``[n, 3, 3]`` acting on filters, or None for
            shifts of the HSV hue.
        dtype: of the result.

    Returns:
        Images ``[n * B, 8, H, W]``, zero beyond the three colours.
    """
    batch, _, height, width = images.shape
    out = torch.empty(n * batch, height, width, BLOCK, dtype=dtype, device=images.device)
    source = _Images(images, batch, height, width, images.stride())
    grid = (triton.cdiv(batch * height * width, _ROWS),)
    _orbit_kernel[grid](source, matrices, out, n, _ROWS, BLOCK, num_warps=_WARPS)
    return out.permute(0, 3, 1, 2)
