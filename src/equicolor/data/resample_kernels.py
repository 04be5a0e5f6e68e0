"""Crops of packed images as one Triton kernel: cut, resized and scaled in a single pass.

:func:`equicolor.data.crops.resample` takes matrix products over whole images. The kernel reads
only the pixels that a box needs, from the bytes of its image.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_HEIGHT, _WIDTH, _WARPS = 8, 32, 4


class _Images(NamedTuple):
    """Packed images, and those of a batch among them."""

    pixels: Tensor  # uint8, H × W × 3 each
    offsets: Tensor  # int64 [N]
    sizes: Tensor  # int64 [N, 2]
    indices: Tensor  # int64 [B]


@triton.jit
def _axis(start, stop, place, size):
    """First pixel, its distance to the centre of the filter, and the filter's support.

    Positions in a large image need float64, distances to the centre only float32.
    """
    scale = tl.abs(stop - start) / size
    # Mirroring the place instead of the formula makes flips exact to the last bit.
    place = tl.where(start > stop, size - 1 - place, place)
    centre = tl.minimum(start, stop) + (place.to(tl.float64) + 0.5) * scale
    support = tl.maximum(scale, 1.0)
    first = tl.floor(centre - support - 0.5) + 1
    return first.to(tl.int32), (first + 0.5 - centre).to(tl.float32), support.to(tl.float32)


@triton.jit
def _weight(first, distance, support, tap, extent):
    weight = tl.maximum(1 - tl.abs(distance + tap) / support, 0.0)
    return tl.where((first + tap >= 0) & (first + tap < extent), weight, 0.0)


@triton.jit
def _total(first, distance, support, taps, extent):
    total = tl.zeros_like(distance)
    for tap in range(taps):
        total += _weight(first, distance, support, tap, extent)
    return tl.where(total > 0, total, 1.0)


@triton.jit
def _crop_kernel(
    images,
    boxes,
    out,
    size,
    limit,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    image = tl.program_id(2)
    index = tl.load(images.indices + image)
    base = images.pixels + tl.load(images.offsets + index)
    height = tl.load(images.sizes + 2 * index).to(tl.int32)
    width = tl.load(images.sizes + 2 * index + 1).to(tl.int32)
    left, top = tl.load(boxes + 4 * image), tl.load(boxes + 4 * image + 1)
    right, bottom = tl.load(boxes + 4 * image + 2), tl.load(boxes + 4 * image + 3)
    y = tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)
    x = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    row, row_distance, row_support = _axis(top, bottom, y, size)
    column, column_distance, column_support = _axis(left, right, x, size)
    if limit is None:
        row_taps = tl.ceil(2 * row_support).to(tl.int32)
        column_taps = tl.ceil(2 * column_support).to(tl.int32)
    else:
        row_taps, column_taps = limit, limit
    red = tl.zeros([HEIGHT, WIDTH], tl.float32)
    green = tl.zeros([HEIGHT, WIDTH], tl.float32)
    blue = tl.zeros([HEIGHT, WIDTH], tl.float32)
    for row_tap in range(row_taps):
        vertical = _weight(row, row_distance, row_support, row_tap, height)
        start = (row + row_tap) * width
        for column_tap in range(column_taps):
            horizontal = _weight(column, column_distance, column_support, column_tap, width)
            weight = vertical[:, None] * horizontal[None, :]
            place = (start[:, None] + (column + column_tap)[None, :]) * 3
            used = weight > 0
            red += weight * tl.load(base + place, used, 0).to(tl.float32)
            green += weight * tl.load(base + place + 1, used, 0).to(tl.float32)
            blue += weight * tl.load(base + place + 2, used, 0).to(tl.float32)
    row_total = _total(row, row_distance, row_support, row_taps, height)
    column_total = _total(column, column_distance, column_support, column_taps, width)
    scale = 255 * row_total[:, None] * column_total[None, :]
    target = out + ((image.to(tl.int64) * size + y[:, None]) * size + x[None, :]) * 3
    inside = (y < size)[:, None] & (x < size)[None, :]
    tl.store(target, red / scale, inside)
    tl.store(target + 1, green / scale, inside)
    tl.store(target + 2, blue / scale, inside)


def crops(
    pixels: Tensor, offsets: Tensor, sizes: Tensor, indices: Tensor, boxes: Tensor, size: int
) -> Tensor:
    """As :meth:`equicolor.data.decoding.Decoded.crops`; the result is in channels_last memory."""
    boxes = boxes.double().contiguous()
    batch = len(indices)
    out = torch.empty(batch, size, size, 3, device=pixels.device)
    images = _Images(pixels, offsets, sizes.contiguous(), indices)
    # Triton's interpreter needs the length of loops on the host.
    limit = tl.constexpr(_most_taps(boxes, size)) if triton.knobs.runtime.interpret else None
    grid = triton.cdiv(size, _WIDTH), triton.cdiv(size, _HEIGHT), batch
    _crop_kernel[grid](images, boxes, out, size, limit, _HEIGHT, _WIDTH, num_warps=_WARPS)
    return out.permute(0, 3, 1, 2)


def _most_taps(boxes: Tensor, size: int) -> int:
    scale = (boxes[:, 2:] - boxes[:, :2]).abs().amax() / size
    return int((2 * scale.clamp(min=1)).ceil())
