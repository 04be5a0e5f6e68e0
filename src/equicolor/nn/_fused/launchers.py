"""The operations of the fused path: each launches one or two Triton kernels.

Products are tuples of tensors ``[B, P, H, W]`` or ``[B, 2 P, H, W]`` in channels_last memory. P is
the number of channels rounded up (:mod:`equicolor.nn._fused.layout`); spare channels are zero. The
inputs of convolutions are one tensor ``[m, B, H, W, P]`` of m planes. A kernel sees both as a
matrix of rows and L lanes. A row holds one or several pixels, so that lanes fill the tiles.

The vectors of a batch norm are float32 ``[5, L]``: mean, scale, shift, inverse standard deviation
and unbiased variance of every channel, repeated for the pixels of a row. The slopes of its
gradient are ``[4, L]``: the slope on centred features, the constant, and the gradients of weight
and bias. The elements of a spatial group are neighbouring lanes that share these numbers.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.autograd.graph import increment_version
from triton.language import constexpr

from equicolor.groups import cyclic_products
from equicolor.nn._fused import block_kernels as kernels
from equicolor.nn._fused.layout import Features, Planes, Products, ceil_div, padded_channels
from equicolor.nn._fused.norm import Norm, TrainingNorm

_LANES = 64  # of a tile: 128 bytes in half precision, one cache line
_WARPS = 4
_PROGRAMS = 1024  # of a reduction: several for each multiprocessor, but few sums to add up
_PARTS, _CHANNELS = 512, 8  # tile of the partial sums: no spatial group has more elements
_NO_FEATURES: Any = Features(None, None, None, None)  # type: ignore[arg-type]


class _Size(NamedTuple):
    """The size of a matrix that kernels work on, and of their tiles."""

    rows: int
    lanes: int
    padded: int  # lanes of one pixel
    channels: int  # lanes of one pixel that are used
    spare: constexpr  # whether some are not
    n: constexpr
    tile_rows: constexpr
    tile_lanes: constexpr

    @classmethod
    def of(cls, images: tuple[int, int, int], channels: int, n: int) -> "_Size":
        """The size of B, H and W images of ``n`` rotations, in tiles of elementwise kernels."""
        pixels, padded, fold = math.prod(images), padded_channels(channels), 1
        while fold * padded % _LANES and pixels % (2 * fold) == 0:
            fold *= 2
        constants = channels != padded, n, _rows_of_tile(8 if n <= 6 else 4), _LANES
        return cls(pixels // fold, fold * padded, padded, channels, *map(constexpr, constants))

    @classmethod
    def of_products(cls, products: Products, n: int) -> "_Size":
        """The size of products; spare channels count as used."""
        return cls.of(_images(products), products[0].shape[1], n)

    @property
    def pixels_in_a_row(self) -> int:
        return self.lanes // self.padded

    @property
    def samples(self) -> float:
        """How many numbers of a channel the statistics are of."""
        return float(self.n.value * self.rows * self.pixels_in_a_row)


class _Coarse(NamedTuple):
    """The sides of images, and those of images of every few of their rows and columns."""

    height: int
    width: int
    coarse_height: int
    coarse_width: int
    rows: constexpr  # of the images, for one of the coarse images
    columns: constexpr
    fold: constexpr  # pixels in a row of the matrix


class _Sums(NamedTuple):
    """Partial sums ``[2, parts, P]``, and the tiles in which a kernel adds them up."""

    pointer: Tensor
    parts: int
    padded: int
    steps: Any
    tile_parts: constexpr
    tile_lanes: constexpr


def analyse(x: Features, dtype: torch.dtype, *, paired: bool) -> Tensor:
    """The inputs ``A x`` of the products of some features, planes ``[m, B, H, W, P]``."""
    size = _Size.of(x.images, x.channels, x.rotations)
    shape = Planes.of(x.rotations, paired=paired).total, *x.images, size.padded
    out = torch.empty(shape, dtype=dtype, device=x.tensor.device)
    _elementwise(kernels.analyse_kernel, size, x, out, paired)
    return out


def analyse_backward(
    gradients: Products,
    others: Products | None,
    residual: Features | None,
    out: Features,
    steps: tuple[int, int] = (1, 1),
) -> None:
    """Fill ``out`` with the gradient ``A^T g`` of features, from that of their products' inputs.

    ``others`` (gradients of the same inputs from other products) and ``residual`` (a gradient of
    the features) are added to it. Others are of every ``steps``-th row and column.
    """
    size = _Size.of(out.images, out.channels, out.rotations)
    coarse = None
    if others is not None and steps != (1, 1):
        _, height, width = out.images
        constants = map(constexpr, (*steps, size.pixels_in_a_row))
        coarse = _Coarse(height, width, *others[0].shape[2:], *constants)
    arguments = gradients, others, coarse, residual or _NO_FEATURES, out
    _elementwise(kernels.analyse_backward_kernel, size, *arguments)


def moments(products: Products, norm: TrainingNorm, *, n: int, elements: int = 1) -> Tensor:
    """Vectors of a batch norm in training, from the features of some products, ``[5, L]``.

    Also updates its running statistics.
    """
    weight, channels = norm.weight, len(norm.weight)
    size = _Size.of(_images(products), channels * elements, n)
    pivots = torch.empty(size.padded, device=weight.device)
    vectors = torch.empty(5, size.lanes, device=weight.device)
    sums = _reduce(kernels.moments_kernel, size, products, pivots)
    arguments = pivots, norm, vectors, channels, size.samples, size.pixels_in_a_row
    _finish(kernels.finish_moments_kernel, sums, *arguments, elements)
    # Torch counts its own in-place changes, by which caches and autograd notice them.
    increment_version([norm.mean, norm.var])
    return vectors


def empty_planes(products: Products, planes: Planes) -> Tensor:
    """Uninitialised memory ``[m, B, H, W, P]`` for planes as large as the products."""
    return products[0].new_empty(planes.total, *_images(products), products[0].shape[1])


def empty_signs(products: Products, n: int) -> Tensor:
    """Uninitialised memory ``[bytes, B, H, W, P]``, a bit for each number of ``n`` rotations."""
    shape = ceil_div(n, 8), *_images(products), products[0].shape[1]
    return products[0].new_empty(shape, dtype=torch.uint8)


def channel_vectors(
    weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, eps: float, elements: int = 1
) -> Tensor:
    """Vectors of a batch norm with running statistics, for one pixel: ``[5, P]``."""
    mean, var, weight, bias = (one.detach().float() for one in (mean, var, weight, bias))
    inverse = torch.rsqrt(var + eps)
    vectors = torch.stack([mean, weight * inverse, bias, inverse, var])
    vectors = vectors.repeat_interleave(elements, 1) if elements > 1 else vectors
    channels = vectors.shape[1]
    return F.pad(vectors, (0, padded_channels(channels) - channels))


def row_vectors(vectors: Tensor, products: Products) -> Tensor:
    """Vectors ``[5, P]`` of one pixel, repeated for the rows of some products: ``[5, L]``."""
    pixels = pixels_in_a_row(products)
    return vectors if pixels == 1 else vectors.repeat(1, pixels)


def pixels_in_a_row(products: Products) -> int:
    """How many pixels of some products share a row."""
    return _Size.of_products(products, 1).pixels_in_a_row


def norm_analyse(products: Products, norm: Norm, *, n: int, paired: bool = False) -> Tensor:
    """Batch norm and ReLU of features, given as products, and the inputs of the next products.

    ``paired`` says whether the next layer's planes are in pairs.
    """
    out = empty_planes(products, Planes.of(n, paired=paired))
    size = _Size.of_products(products, n)
    _elementwise(kernels.norm_analyse_kernel, size, products, norm.vectors, out, paired)
    return out


def norm_analyse_sums(
    products: Products, gradients: Products, norm: Norm, out: Tensor | None, *, n: int
) -> Tensor:
    """The slopes ``[4, L]`` of :func:`norm_analyse`, from the gradients of its output.

    ``out``, unless None, is filled with the output of :func:`norm_analyse` again.
    """
    size, arguments = _Size.of_products(products, n), (products, gradients, norm.vectors, out)
    # Twice as many features are mixed as in other sums.
    sums = _reduce(kernels.norm_analyse_sums_kernel, size, *arguments, numbers=8 if n <= 4 else 2)
    return slopes_of(sums, norm, size.samples)


def norm_analyse_backward(
    products: Products, gradients: Products, norm: Norm, slopes: Tensor, *, n: int
) -> Tensor:
    """The gradient of the input of :func:`norm_analyse`, ``[m, B, H, W, P]``."""
    out = empty_planes(products, Planes.of_products(products, n))
    arguments = products, gradients, norm.vectors, slopes, out
    _elementwise(kernels.norm_analyse_backward_kernel, _Size.of_products(products, n), *arguments)
    return out


def norm_add(
    products: Products,
    norm: Norm,
    residual: Features | tuple[Products, Norm],
    out: Features,
    planes: Tensor | None = None,
    signs: Tensor | None = None,
) -> None:
    """Fill ``out`` with batch norm of features given as products, plus a residual, and ReLU.

    The residual is features, or products and their own norm. ``planes``, unless None, is filled
    with the result of :func:`analyse` for ``out``, and ``signs`` with the signs of ``out``.
    """
    source: Any = residual, None
    if not isinstance(residual, Features):
        source = residual[0], residual[1].vectors
    size = _Size.of(out.images, out.channels, out.rotations)
    paired = planes is not None and len(planes) < cyclic_products(out.rotations)
    arguments = products, norm.vectors, *source, out.tensor, planes, signs, paired
    _elementwise(kernels.norm_add_kernel, size, *arguments)


def norm_add_sums(
    gradient: Features, signs: Tensor | None, products: Products, norm: Norm
) -> tuple[Tensor, Features]:
    """The slopes ``[4, L]`` of :func:`norm_add`, and its gradient before ReLU.

    ``signs`` are those of ReLU's output; None if ``gradient`` is already the one before ReLU.
    """
    inner, written = gradient, None
    if signs is not None:
        # It is also the gradient of the residual. Like any gradient, it has the output's dtype.
        inner = Features.empty(gradient.tensor.shape, gradient.tensor.dtype, gradient.tensor.device)
        written = inner.tensor
    size = _Size.of(gradient.images, gradient.channels, gradient.rotations)
    arguments = gradient, signs, products, norm.vectors, written
    sums = _reduce(kernels.norm_add_sums_kernel, size, *arguments)
    return slopes_of(sums, norm, size.samples), inner


def norm_backward(gradient: Features, products: Products, norm: Norm, slopes: Tensor) -> Tensor:
    """The gradient of products from that of their normalised features: ``[m, B, H, W, P]``."""
    size = _Size.of(gradient.images, gradient.channels, gradient.rotations)
    out = empty_planes(products, Planes.of_products(products, gradient.rotations))
    arguments = gradient, products, norm.vectors, slopes, out
    _elementwise(kernels.norm_backward_kernel, size, *arguments)
    return out


def coset_max(x: Features) -> Tensor:
    """The maximum over the rotations, ``[B, H, W, P]``."""
    size = _Size.of(x.images, x.channels, x.rotations)
    out = torch.empty(*x.images, size.padded, dtype=x.tensor.dtype, device=x.tensor.device)
    _elementwise(kernels.coset_max_kernel, size, x, out)
    return out


def coset_max_backward(x: Features, gradient: Features) -> Features:
    """The gradient of features from that of :func:`coset_max`, packed and with one rotation."""
    size = _Size.of(x.images, x.channels, x.rotations)
    out = Features.empty(x.tensor.shape, x.tensor.dtype, x.tensor.device)
    arguments = x, gradient.tensor, out.tensor
    _elementwise(kernels.coset_max_backward_kernel, size, *arguments)
    return out


def slopes_of(sums: Tensor, norm: Norm, count: float) -> Tensor:
    """The slopes ``[4, L]`` of a norm's gradient from partial sums ``[2, parts, P]``.

    The sums are of the gradient after the norm, and of that gradient times the centred features.
    ``count`` says how many numbers of a channel the statistics are of.
    """
    lanes = norm.vectors.shape[1]
    slopes, fold = norm.vectors.new_empty(4, lanes), lanes // sums.shape[2]
    arguments = norm.vectors, slopes, count, norm.training, fold, norm.elements
    _finish(kernels.finish_sums_kernel, sums, *arguments)
    return slopes


def loop_of(steps: int) -> Any:
    """The number of steps of a loop; Triton's interpreter needs a constant."""
    return constexpr(steps) if triton.knobs.runtime.interpret else steps


def _images(products: Products) -> tuple[int, int, int]:
    batch, _, height, width = products[0].shape
    return batch, height, width


def _rows_of_tile(numbers: int) -> int:
    """Rows of a tile of so many numbers a thread.

    A thread keeps all rotations and products of its numbers in its 255 registers.
    """
    return numbers * _WARPS * 32 // _LANES


def _elementwise(kernel: Any, size: _Size, *arguments: Any) -> None:
    grid = ceil_div(size.rows, size.tile_rows.value) * ceil_div(size.lanes, _LANES)
    kernel[(grid,)](*arguments, size, num_warps=_WARPS)


def _reduce(kernel: Any, size: _Size, *arguments: Any, numbers: int | None = None) -> Tensor:
    """Partial sums of a kernel, ``[2, parts, P]``, from tiles of so many numbers a thread."""
    numbers = numbers or (8 if size.n.value <= 4 else 4)
    rows, columns = _rows_of_tile(numbers), ceil_div(size.lanes, _LANES)
    size = size._replace(tile_rows=constexpr(rows))
    programs = max(1, _PROGRAMS // columns)
    steps = ceil_div(ceil_div(size.rows, programs), rows)
    blocks = ceil_div(size.rows, steps * rows)
    device = arguments[0][0].device
    sums = torch.empty(2, blocks * size.pixels_in_a_row, size.padded, device=device)
    loop = loop_of(steps)
    kernel[(blocks * columns,)](*arguments, sums, size, blocks, loop, num_warps=_WARPS)
    return sums


def _finish(kernel: Any, sums: Tensor, *arguments: Any) -> None:
    """Launch a kernel that adds up partial sums."""
    _, parts, padded = sums.shape
    tile = constexpr(_PARTS), constexpr(_CHANNELS)
    source = _Sums(sums, parts, padded, loop_of(ceil_div(parts, _PARTS)), *tile)
    kernel[(ceil_div(padded, _CHANNELS),)](source, *arguments, num_warps=2 * _WARPS)
