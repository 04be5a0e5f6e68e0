"""How features and products lie in memory on the fused path, and in which dtype."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from equicolor.groups.cyclic import cyclic_products

# The r products [B, P, H, W] of a layer, where P is the padded number of channels; or, paired,
# [B, P, H, W] for each real frequency and [B, 2 P, H, W] for each of the others.
Products = tuple[Tensor, ...]
Options = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # stride, padding, dilation
# Channels are rounded up to a multiple of it. Tensor cores need multiples of 8, but convolutions of
# 64 channels take two thirds of the time that 56 take, and those of 48 four fifths of that of 40.
BLOCK = 16
# Up to this width, a step is faster with one convolution of twice the channels, and two planes to
# write and read, than with three convolutions and planes.
_PAIRED_CHANNELS = 128


def ceil_div(number: int, divisor: int) -> int:
    """A quotient rounded up; ``triton.cdiv`` takes microseconds."""
    return -(-number // divisor)


def padded_channels(channels: int) -> int:
    """Channels rounded up to a multiple of ``BLOCK``: 55 become 64."""
    return ceil_div(channels, BLOCK) * BLOCK


class Planes(NamedTuple):
    """The planes of an equivariant layer's convolutions: features mixed over the rotations.

    A complex product takes three real ones. Instead, the real and the imaginary part can lie
    side by side, as 2C channels, for one convolution. It has four thirds of the arithmetic, but
    larger matrices, and two planes to write and read instead of three.
    """

    total: int  # planes of C channels
    alone: int  # how many of them are single images; the others are in pairs

    @classmethod
    def of(cls, n: int, *, paired: bool) -> Self:
        """The planes of ``n`` rotations: 17 single ones for twelve, or 2 and five pairs."""
        products = cyclic_products(n)
        return cls(n, 2 - n % 2) if paired and n > 2 else cls(products, products)

    @classmethod
    def of_products(cls, products: Products, n: int) -> Self:
        """The planes that products of ``n`` rotations are made of."""
        return cls.of(n, paired=len(products) < cyclic_products(n))

    @property
    def paired(self) -> bool:
        """Whether some planes are in pairs."""
        return self.alone < self.total

    @property
    def number(self) -> int:
        """How many images the planes are: single ones and pairs."""
        return self.alone + (self.total - self.alone) // 2

    def images(self, memory: Tensor) -> Products:
        """Planes ``[total, B, H, W, P]`` as images ``[B, P, H, W]`` and ``[B, 2 P, H, W]``."""
        return self._parts(memory, rows=1)

    def filters(self, memory: Tensor) -> Products:
        """Filters ``[m, O, kh, kw, C]`` as ``[O, C, kh, kw]`` and ``[2 O, 2 C, kh, kw]``.

        The four filters of a pair lie in memory as one filter of twice the channels.
        """
        return self._parts(memory, rows=2)

    def _parts(self, memory: Tensor, rows: int) -> Products:
        """Single planes, and pairs with ``rows`` times the rows and twice the channels."""
        alone = memory[: self.alone].permute(0, 1, 4, 2, 3).unbind(0)
        if not self.paired:
            return alone
        _, count, height, width, channels = memory.shape
        pairs = (self.total - self.alone) // 2  # not -1: an empty batch has no numbers
        wide = memory[self.alone :].reshape(pairs, rows * count, height, width, 2 * channels)
        return alone + wide.permute(0, 1, 4, 2, 3).unbind(0)


def pairs_pay(channels: int) -> bool:
    """Whether planes of this width should be paired; see ``docs/speed.md``."""
    return padded_channels(channels) <= _PAIRED_CHANNELS


class Features(NamedTuple):
    """Features ``[B, C, n, H, W]`` in memory where the channels of a pixel lie together.

    Element (rotation k, pixel p, channel c) lies ``k * rotation_step + p * row_step + c``
    elements after the first. Memory of our own is ``[n, B, H, W, P]`` or, if the rotations lie
    beside the channels, ``[B, H, W, n, P]``. Its spare channels may hold anything.
    """

    tensor: Tensor
    rotation_step: int
    row_step: int | None  # None: P, so that the rows of a rotation are one block
    readable: int | None  # channels of a pixel that may be read; None: P

    @property
    def channels(self) -> int:
        return self.tensor.shape[1]

    @property
    def rotations(self) -> int:
        return self.tensor.shape[2]

    @property
    def images(self) -> tuple[int, int, int]:
        """B, H and W."""
        batch, _, _, height, width = self.tensor.shape
        return batch, height, width

    @property
    def padded(self) -> bool:
        """Whether the memory is ``[n, B, H, W, P]``, or a part of such rows."""
        return self.row_step is None and self.readable is None

    @property
    def beside(self) -> bool:
        """Whether the memory is ``[B, H, W, n, P]``."""
        padded = padded_channels(self.channels)
        steps = self.rotation_step, self.row_step
        return self.readable is None and steps == (padded, self.rotations * padded)

    @classmethod
    def empty(
        cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, beside: bool = False
    ) -> Self:
        """New features of a shape ``[B, C, n, H, W]``, not filled, in memory of our own."""
        batch, channels, rotations, height, width = shape
        padded, images = padded_channels(channels), (batch, height, width)
        if not beside or rotations == 1:
            memory = torch.empty(rotations, *images, padded, dtype=dtype, device=device)
            return cls.of_memory(memory, channels)
        memory = torch.empty(*images, rotations, padded, dtype=dtype, device=device)
        features = memory[..., :channels].permute(0, 4, 3, 1, 2)
        return cls(features, padded, rotations * padded, None)

    @classmethod
    def of(cls, x: Tensor) -> Self:
        """A view of features where their memory allows it, else one copy."""
        row_step = _row_step(x)
        if row_step is None:
            return cls._copy(x)
        padded = padded_channels(x.shape[1])
        readable = None if _last_row_is_whole(x, row_step, padded) else x.shape[1]
        return cls(x, x.stride(2), None if row_step == padded else row_step, readable)

    @classmethod
    def packed(cls, x: Tensor, *, beside: bool = False) -> Self:
        """A view of features in memory ``[n, B, H, W, P]`` or ``[B, H, W, n, P]``, else a copy."""
        features = cls.of(x)
        elements = math.prod(features.images) * padded_channels(features.channels)
        if features.beside if beside else features.padded and features.rotation_step == elements:
            return features
        return cls._copy(x, beside=beside)

    @classmethod
    def _copy(cls, x: Tensor, *, beside: bool = False) -> Self:
        features = cls.empty(x.shape, x.dtype, x.device, beside=beside)
        features.tensor.copy_(x)
        return features

    @classmethod
    def of_memory(cls, memory: Tensor, channels: int) -> Self:
        """The features in memory ``[n, B, H, W, P]``."""
        features = memory[..., :channels].permute(1, 4, 0, 2, 3)
        return cls(features, memory.stride(0), None, None)


def rows_of(product: Tensor) -> Tensor:
    """A product ``[B, P, H, W]`` in channels_last memory."""
    return product.contiguous(memory_format=torch.channels_last)


def with_lanes(images: Tensor, lanes: int) -> Tensor:
    """Channels_last images ``[N, P, H, W]`` as ``[N, lanes, H, P * W / lanes]``: a view."""
    batch, channels, height, width = images.shape
    rows = images.permute(0, 2, 3, 1)
    return rows.view(batch, height, channels * width // lanes, lanes).permute(0, 3, 1, 2)


def _row_step(x: Tensor) -> int | None:
    """Elements from pixel to pixel; None unless channels lie together and pixels evenly."""
    batch, channels, _, height, width = x.shape
    steps, sizes = (x.stride(4), x.stride(3), x.stride(0)), (width, height, batch)
    if channels > 1 and x.stride(1) != 1:
        return None
    # The stride of a dimension of size one means nothing.
    row_step, pixels = None, 1
    for step, size in zip(steps, sizes, strict=True):
        if size > 1:
            row_step = step if row_step is None else row_step
            if step != pixels * row_step:
                return None
        pixels *= size
    row_step = channels if row_step is None else row_step
    return row_step if row_step >= channels else None


def _last_row_is_whole(x: Tensor, row_step: int, padded: int) -> bool:
    batch, _, rotations, height, width = x.shape
    last = (rotations - 1) * x.stride(2) + (batch * height * width - 1) * row_step
    end = x.storage_offset() + last + padded
    return end * x.element_size() <= x.untyped_storage().nbytes()
