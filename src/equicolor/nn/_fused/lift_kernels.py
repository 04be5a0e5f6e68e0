"""Images laid out for the first convolution, in every hue if need be, as one Triton kernel.

The hues equal those of :func:`equicolor.nn.functional.hue_orbit`, whose operations each read and
write images. Colours are float32 until they are written.

A convolution of three channels leaves tensor cores mostly idle, so the kernel writes more channels:
for every column of the result, all pixels that a row of the filter sees, of as many rows as the
stride. This leaves a convolution along one column with stride one and ``stride * kernel width * 3``
channels, 42 for the 7×7 filters of a ResNet. It is 3 times as fast, forward and backward.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from equicolor.color_kernels import compose, decompose, place_of
from equicolor.nn._fused.layout import Options, padded_channels
from equicolor.nn._fused.tile_kernels import load

_ROWS = tl.constexpr(32)  # columns of the result, of a tile
_WARPS = 4


class _Images(NamedTuple):
    """``[B, 3, H, W]`` in any memory layout."""

    pointer: Tensor
    height: int
    width: int
    steps: tuple[int, ...]  # strides


class _Windows(NamedTuple):
    """The output, and which pixels of the images each of its columns and channels comes from."""

    lines: int  # of all images
    stride: tuple[int, int]
    padding: tuple[int, int]
    height: constexpr
    width: constexpr
    kernel_width: constexpr


@triton.jit
def _columns_kernel(
    images, out, windows, N: constexpr, LINES: constexpr, LANES: constexpr, CHANNELS: constexpr
):
    """N hues of the images, the first as they are; a program computes parts of some lines."""
    blocks = tl.cdiv(windows.width, _ROWS)
    begin, place = tl.program_id(0) // blocks * LINES, tl.program_id(0) % blocks * _ROWS
    row, lane = place + tl.arange(0, _ROWS)[:, None], tl.arange(0, LANES)[None, :]
    # A channel is a row of the stride, a column of the filter and a colour.
    color, tap = lane % 3, lane // 3
    column, phase = tap % windows.kernel_width, tap // windows.kernel_width
    left = row * windows.stride[1] - windows.padding[1]
    across = (row < windows.width) & ((left + column).to(tl.uint32) < images.width)
    across = across & (phase < windows.stride[0])
    pixel = left * images.steps[3] + (phase * images.steps[2] + column * images.steps[3])
    target = row * CHANNELS + lane
    step = tl.cast(windows.lines, tl.int64) * windows.width * CHANNELS
    for part in range(LINES):
        line = begin + part
        top = line % windows.height * windows.stride[0] - windows.padding[0]
        image = tl.cast(line // windows.height, tl.int64)
        first = images.pointer + image * images.steps[0] + top * images.steps[2]
        written = (row < windows.width) & (lane < CHANNELS) & (line < windows.lines)
        inside = across & ((top + phase).to(tl.uint32) < images.height) & (line < windows.lines)
        begun = out + tl.cast(line, tl.int64) * windows.width * CHANNELS
        # Pixels outside are zero, and stay zero in every hue.
        if N == 1:
            value = load(first, pixel + color * images.steps[1], inside)
            tl.store(begun + target, value.to(out.dtype.element_ty), written)
        else:
            red = load(first, pixel, inside)
            green = load(first, pixel + images.steps[1], inside)
            blue = load(first, pixel + 2 * images.steps[1], inside)
            hue, chroma, low = decompose(red, green, blue)
            there = place_of(hue, color)
            for k in tl.static_range(N):
                value = compose(there - 6.0 * k / N, chroma, low)
                tl.store(begun + step * k + target, value.to(out.dtype.element_ty), written)


def columns(
    images: Tensor, n: int, dtype: torch.dtype, kernel_size: tuple[int, int], options: Options
) -> Tensor:
    """Every image in n HSV hues, shifted by ``-k / n`` turns, as columns that a filter sees.

    ``options`` are those of the convolution, without dilation.

    Returns ``[n * B, P, H'', W']`` in channels_last memory, with W' columns of the convolution's
    result and zeros in the spare channels. A convolution with :func:`column_filters`, stride one
    and no padding gives ``[n * B, O, H', W']``.
    """
    stride, padding, _ = options
    batch, _, *sides = images.shape
    if _reach(images) >= 2**31:  # int32 offsets
        images = images.contiguous()
    height, width = (
        (side + 2 * pad - size) // step + 1
        for side, pad, size, step in zip(sides, padding, kernel_size, stride, strict=True)
    )
    height += -(-kernel_size[0] // stride[0]) - 1
    channels = padded_channels(stride[0] * kernel_size[1] * 3)
    out = torch.empty(n * batch, height, width, channels, dtype=dtype, device=images.device)
    source = _Images(images, sides[0], sides[1], images.stride())
    lines = batch * height
    windows = _Windows(lines, stride, padding, *map(constexpr, (height, width, kernel_size[1])))
    # A program divides by the sides of filters once. That tells where there is little else to do.
    at_once, lanes = (8 if n == 1 else 1), triton.next_power_of_2(channels)
    programs = triton.cdiv(lines, at_once) * triton.cdiv(width, _ROWS.value)
    constants = n, at_once, lanes, channels
    _columns_kernel[(programs,)](source, out, windows, *constants, num_warps=_WARPS)
    return out.permute(0, 3, 1, 2)


def _reach(images: Tensor) -> int:
    """How far the last element of an image lies after its first."""
    dimensions = zip(images.shape[1:], images.stride()[1:], strict=True)
    return sum((size - 1) * step for size, step in dimensions)


def column_filters(filters: Tensor, stride: int) -> Tensor:
    """Filters ``[O, 3, kh, kw]`` for the result of :func:`columns`: ``[O, P, kh', 1]``."""
    _, colors, height, width = filters.shape
    blocks = -(-height // stride)
    rows = torch.nn.functional.pad(filters, (0, 0, 0, blocks * stride - height))
    rows = rows.unflatten(2, (blocks, stride)).permute(0, 2, 3, 4, 1).flatten(2)
    spare = padded_channels(stride * width * colors) - rows.shape[2]
    rows = torch.nn.functional.pad(rows, (0, spare))
    return rows.permute(0, 2, 1)[..., None]
