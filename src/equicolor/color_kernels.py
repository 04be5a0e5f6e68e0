"""The hue of the HSV hexcone in Triton kernels, and the hue shift of images as one kernel.

The operations of :func:`equicolor.color.shift_hue` each read and write all images. The kernel does
so once, and is 10 times as fast. Colours are float32 until they are written.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equicolor.devices import on_device_of

_PIXELS = tl.constexpr(1024)  # of a tile
_WARPS = 4


class _Images(NamedTuple):
    """``[B, 3, H, W]`` in any memory layout."""

    pointer: Tensor
    steps: tuple[int, ...]  # strides


@triton.jit
def decompose(red, green, blue):
    """RGB to the hue in sixths of a turn, from -1 to 5, chroma (max - min) and low (min).

    Low is NaN where a channel is.
    """
    high = tl.maximum(tl.maximum(red, green), blue)
    low = tl.minimum(red, green, propagate_nan=tl.PropagateNan.ALL)
    low = tl.minimum(low, blue, propagate_nan=tl.PropagateNan.ALL)
    chroma = high - low
    scale = tl.where(chroma < 1.17549435e-38, 1.0, chroma)  # the smallest normal number
    is_red, is_green = high == red, high == green
    primary = tl.where(is_red, 0.0, tl.where(is_green, 2.0, 4.0))
    ahead = tl.where(is_red, green - blue, tl.where(is_green, blue - red, red - green))
    return primary + ahead / scale, chroma, low


@triton.jit
def place_of(hue, color):
    """How far a hue is past the complement of red, green or blue (0, 1, 2), in sixths: 0 to 6."""
    past = hue + 3 - 2 * color
    return past - tl.floor(past / 6.0) * 6.0


@triton.jit
def compose(place, chroma, low):
    """A channel of the colour whose hue is at a place from -6 to 6."""
    # A trapezoid over the hue circle, twice.
    return low + chroma * tl.clamp(2 - tl.abs(tl.abs(place) - 3), 0.0, 1.0)


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
        value = compose(place_of(hue, color), chroma, low).to(out.pointer.dtype.element_ty)
        tl.store(out.pointer + target + color * out.steps[1], value, inside)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Shift images ``[..., 3, H, W]`` by float32 turns on their device, one for all or one each.

    A batch ``[B, 3, H, W]`` keeps its memory format.
    """
    flat = images.flatten(0, -4) if images.ndim > 3 else images[None]
    out = torch.empty_like(flat)
    height, width = images.shape[-2:]
    tiles = -(-height * width // _PIXELS.value)
    turns_step = 0 if turns.numel() == 1 else 1
    numbers = turns_step, width, height * width, tiles
    with on_device_of(images):
        _shift_kernel[(len(flat) * tiles,)](
            _Images(flat, flat.stride()),
            turns.contiguous(),
            _Images(out, out.stride()),
            *numbers,
            num_warps=_WARPS,
        )
    return out.view_as(images)
