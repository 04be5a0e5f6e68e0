"""The hue of the HSV hexcone in Triton kernels, and the hue shift of images as one kernel.

It equals :func:`equicolor.color.shift_hue`, which passes over memory for every operation: a batch
of images is shifted 10 times as fast. Colours are float32 until they are written.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equicolor.devices import on_device_of

__all__ = ["compose", "decompose", "shift_hue"]

_PIXELS = tl.constexpr(1024)  # of a tile
_WARPS = 4


class _Images(NamedTuple):
    """``[B, 3, H, W]`` in any memory."""

    pointer: Tensor
    steps: tuple[int, ...]  # from element to element along each dimension


@triton.jit
def decompose(red, green, blue):
    """RGB to the hue in sixths of a turn, chroma (max - min) and low (min)."""
    high = tl.maximum(tl.maximum(red, green), blue)
    low = tl.minimum(tl.minimum(red, green), blue)
    chroma = high - low
    scale = tl.where(chroma < 1.17549435e-38, 1.0, chroma)  # the smallest normal number
    hue = tl.where(high == green, 2 + (blue - red) / scale, 4 + (red - green) / scale)
    return tl.where(high == red, (green - blue) / scale, hue), chroma, low


@triton.jit
def compose(hue, chroma, low, color):
    """Channel 0, 1 or 2 of the colour that :func:`decompose` takes apart."""
    position = hue + 5 - 2 * color
    position -= tl.floor(position / 6.0) * 6.0
    # A trapezoid over the hue circle says how much of the chroma a channel lacks.
    lack = tl.minimum(position, 4 - position)
    return low + chroma * (1 - tl.clamp(lack, 0.0, 1.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _shift_kernel(images, turns, out, turns_step, width, pixels, tiles):
    image = (tl.program_id(0) // tiles).to(tl.int64)
    pixel = tl.program_id(0) % tiles * _PIXELS + tl.arange(0, _PIXELS)
    inside = pixel < pixels
    row, column = pixel // width, pixel % width
    place = image * images.steps[0] + row * images.steps[2] + column * images.steps[3]
    red = tl.load(images.pointer + place, inside).to(tl.float32)
    green = tl.load(images.pointer + place + images.steps[1], inside).to(tl.float32)
    blue = tl.load(images.pointer + place + 2 * images.steps[1], inside).to(tl.float32)
    hue, chroma, low = decompose(red, green, blue)
    hue += 6.0 * tl.load(turns + image * turns_step)
    target = image * out.steps[0] + row * out.steps[2] + column * out.steps[3]
    for color in tl.static_range(3):
        value = compose(hue, chroma, low, color).to(out.pointer.dtype.element_ty)
        tl.store(out.pointer + target + color * out.steps[1], value, inside)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Images ``[..., 3, H, W]`` by float32 turns on their device, ``[1]`` or one per image.

    The result lies in memory as the images do.
    """
    out = torch.empty_like(images)
    flat, result = (each.flatten(0, -4) if each.ndim > 3 else each[None] for each in (images, out))
    height, width = images.shape[-2:]
    tiles = -(-height * width // _PIXELS.value)
    step = 0 if turns.numel() == 1 else 1
    sides = step, width, height * width, tiles
    with on_device_of(images):
        _shift_kernel[(len(flat) * tiles,)](
            _Images(flat, flat.stride()),
            turns.contiguous(),
            _Images(result, result.stride()),
            *sides,
            num_warps=_WARPS,
        )
    return out
