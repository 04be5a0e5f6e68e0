"""The operations of the fused path: each launches one or two Triton kernels.

Products are tuples of tensors ``[B, P, H, W]`` or ``[B, 2 P, H, W]`` in channels_last memory. P is
the number of channels rounded up (:mod:`equicolor.nn._fused.layout`); spare channels are zero. The
inputs of convolutions are one tensor ``[m, B, H, W, P]`` of m planes. A kernel sees both as a
matrix of rows and L lanes. A row holds one or several pixels, so that lanes fill the tiles.

The vectors of a batch norm are float32 ``[5, L]``: mean, scale, shift, inverse standard deviation
and unbiased variance of every channel, repeated for the pixels of a row. The slopes of its
gradient are ``[4, L]``: the slope on centred features, the constant, and the gradients of weight
and bias.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equicolor.nn._fused import block_kernels as kernels
from equicolor.nn._fused.layout import Features, Planes, Products, padded_channels

_LANES = 64  # of a tile: 128 bytes in half precision, one cache line
_WARPS = 4
_PROGRAMS = 2048  # of a reduction: several for each multiprocessor
_PARTS, _CHANNELS = 512, 8  # tile of the partial sums


class _Size(NamedTuple):
    """The size of a matrix that kernels work on."""

    rows: int
    lanes: int
    padded: int  # lanes of one pixel
    channels: int  # lanes of one pixel that are used
    spare: tl.constexpr  # whether some are not


class _Source(NamedTuple):
    """Features to read; ``row_step`` is None for rows that are ``padded`` apart."""

    pointer: Tensor | None
    rotation_step: int | None
    row_step: int | None


_NO_SOURCE = _Source(None, None, None)


def analyse(x: Features, dtype: torch.dtype, *, paired: bool) -> Tensor:
    """The inputs ``A x`` of the products of some features, planes ``[m, B, H, W, P]``."""
    n, size = x.rotations, _size(x.images, x.channels)
    shape = Planes.of(n, paired=paired).total, *x.images, size.padded
    out = torch.empty(shape, dtype=dtype, device=x.tensor.device)
    _elementwise(kernels.analyse_kernel, n, size, _source(x), out, paired)
    return out


def analyse_backward(
    gradients: Products,
    others: Products | None,
    residual: Features | None,
    *,
    n: int,
    channels: int,
    dtype: torch.dtype,
) -> Features:
    """The gradient ``A^T g`` of features from the gradients of the inputs of their products.

    ``others`` (gradients of the same inputs from other products) and ``residual`` (a gradient of
    the features) are added to it.
    """
    images = _images(gradients)
    out = Features.empty(images, channels, n, dtype, gradients[0].device)
    source = _NO_SOURCE if residual is None else _source(residual)
    size = _size(images, channels)
    _elementwise(kernels.analyse_backward_kernel, n, size, gradients, others, source, out.tensor)
    return out


def moments(products: Products, weight: Tensor, bias: Tensor, *, n: int, eps: float) -> Tensor:
    """Vectors of a batch norm in training, from the features of some products, ``[5, L]``."""
    images, channels = _images(products), len(weight)
    size = _size(images, channels)
    pivots = torch.empty(size.padded, device=weight.device)
    vectors = torch.empty(5, size.lanes, device=weight.device)
    sums = _reduce(kernels.moments_kernel, n, size, products, pivots)
    numbers = sums.shape[1], size.padded, channels, _count(n, size), eps
    arguments = pivots, weight, bias, vectors, *numbers
    _finish(kernels.finish_moments_kernel, sums, *arguments, options=[_fold(size)])
    return vectors


def empty_planes(products: Products, planes: Planes) -> Tensor:
    """Uninitialised memory ``[m, B, H, W, P]`` for planes as large as the products."""
    return products[0].new_empty(planes.total, *_images(products), products[0].shape[1])


def running_vectors(
    products: Products, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, eps: float
) -> Tensor:
    """Vectors of a batch norm with running statistics, ``[5, L]``."""
    return row_vectors(channel_vectors(weight, bias, mean, var, eps=eps), products)


def channel_vectors(
    weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, eps: float
) -> Tensor:
    """Vectors of a batch norm with running statistics, for one pixel: ``[5, P]``."""
    mean, var, weight, bias = (one.detach().float() for one in (mean, var, weight, bias))
    inverse = torch.rsqrt(var + eps)
    vectors = torch.stack([mean, weight * inverse, bias, inverse, var])
    return torch.nn.functional.pad(vectors, (0, padded_channels(len(mean)) - len(mean)))


def row_vectors(vectors: Tensor, products: Products) -> Tensor:
    """Vectors ``[5, P]`` of one pixel, repeated for the rows of some products: ``[5, L]``."""
    fold = pixels_in_a_row(products)
    return vectors if fold == 1 else vectors.repeat(1, fold)


def pixels_in_a_row(products: Products) -> int:
    """How many pixels of some products share a row."""
    return _fold(_products_size(products))


def norm_analyse(products: Products, vectors: Tensor, *, n: int, paired: bool = False) -> Tensor:
    """Batch norm and ReLU of features, given as products, and the inputs of the next products.

    ``paired`` says whether the next layer's planes are in pairs.
    """
    size, out = _products_size(products), empty_planes(products, Planes.of(n, paired=paired))
    _elementwise(kernels.norm_analyse_kernel, n, size, products, vectors, out, paired)
    return out


def norm_analyse_sums(
    products: Products,
    gradients: Products,
    vectors: Tensor,
    out: Tensor | None,
    *,
    n: int,
    training: bool,
) -> Tensor:
    """The slopes ``[4, L]`` of :func:`norm_analyse`, from the gradients of its output.

    ``out``, unless None, is filled with the output of :func:`norm_analyse` again. ``training``
    says whether the statistics come from the products.
    """
    size = _products_size(products)
    sums = _reduce(kernels.norm_analyse_sums_kernel, n, size, products, gradients, vectors, out)
    return slopes_of(sums, vectors, _count(n, size), training=training)


def norm_analyse_backward(
    products: Products, gradients: Products, vectors: Tensor, slopes: Tensor, *, n: int
) -> Tensor:
    """The gradient of the input of :func:`norm_analyse`, ``[m, B, H, W, P]``."""
    size, out = _products_size(products), _empty_like(products, n)
    arguments = products, gradients, vectors, slopes, out
    _elementwise(kernels.norm_analyse_backward_kernel, n, size, *arguments)
    return out


def norm_add(
    products: Products,
    vectors: Tensor,
    residual: Features | tuple[Products, Tensor],
    *,
    n: int,
    channels: int,
    dtype: torch.dtype,
) -> Features:
    """Batch norm of features given as products, plus a residual, and ReLU.

    The residual is features, or products and the vectors of their own norm.
    """
    images = _images(products)
    out = Features.empty(images, channels, n, dtype, vectors.device)
    source: Any
    if isinstance(residual, Features):
        source, other = _source(residual), None
    else:
        source, other = residual
    size = _size(images, channels)
    _elementwise(kernels.norm_add_kernel, n, size, products, vectors, source, other, out.tensor)
    return out


def norm_add_sums(
    gradient: Features,
    output: Features | None,
    products: Products,
    vectors: Tensor,
    *,
    training: bool,
) -> tuple[Tensor, Features]:
    """The slopes ``[4, L]`` of :func:`norm_add`, and its gradient before ReLU.

    Without ``output``, ``gradient`` is the one before ReLU already.
    """
    n, images, channels = gradient.rotations, gradient.images, gradient.channels
    size, inner, source = _size(images, channels), gradient, _NO_SOURCE
    if output is not None:
        # It is also the gradient of the residual, so it has the dtype of that and of the output.
        inner = Features.empty(images, channels, n, output.tensor.dtype, vectors.device)
        source = _source(output)
    arguments = _source(gradient), source, products, vectors, inner.tensor
    sums = _reduce(kernels.norm_add_sums_kernel, n, size, *arguments)
    return slopes_of(sums, vectors, _count(n, size), training=training), inner


def norm_backward(
    gradient: Features, products: Products, vectors: Tensor, slopes: Tensor
) -> Tensor:
    """The gradient of products from that of their normalised features: ``[m, B, H, W, P]``."""
    n, size = gradient.rotations, _size(gradient.images, gradient.channels)
    out = _empty_like(products, n)
    arguments = _source(gradient), products, vectors, slopes, out
    _elementwise(kernels.norm_backward_kernel, n, size, *arguments)
    return out


def _size(images: tuple[int, int, int], channels: int) -> _Size:
    pixels, padded, fold = math.prod(images), padded_channels(channels), 1
    while fold * padded % _LANES and pixels % (2 * fold) == 0:
        fold *= 2
    spare = tl.constexpr(channels != padded)
    return _Size(pixels // fold, fold * padded, padded, channels, spare)


def _empty_like(products: Products, n: int) -> Tensor:
    return empty_planes(products, Planes.of_products(products, n))


def _products_size(products: Products) -> _Size:
    return _size(_images(products), products[0].shape[1])


def _fold(size: _Size) -> int:
    """The number of pixels in a row."""
    return size.lanes // size.padded


def _count(n: int, size: _Size) -> float:
    """How many numbers of a channel the statistics are of."""
    return float(n * size.rows * _fold(size))


def _source(x: Features) -> _Source:
    return _Source(x.tensor, x.rotation_step, None if x.padded else x.row_step)


def _images(products: Products) -> tuple[int, int, int]:
    batch, _, height, width = products[0].shape
    return batch, height, width


def _rows_of_tile(n: int, largest: int) -> int:
    """Rows of a tile: eight numbers a thread for up to ``largest`` rotations, four for more.

    A thread keeps all rotations and products of its numbers in its 255 registers.
    """
    numbers = 8 if n <= largest else 4
    return numbers * _WARPS * 32 // _LANES


def _elementwise(kernel: Any, n: int, size: _Size, *arguments: Any) -> None:
    rows = _rows_of_tile(n, largest=6)
    grid = triton.cdiv(size.rows, rows) * triton.cdiv(size.lanes, _LANES)
    kernel[(grid,)](*arguments, size, n, rows, _LANES, num_warps=_WARPS)


def _reduce(kernel: Any, n: int, size: _Size, *arguments: Any) -> Tensor:
    """Partial sums of a kernel, ``[2, parts, P]``."""
    rows, columns = _rows_of_tile(n, largest=4), triton.cdiv(size.lanes, _LANES)
    wanted = max(1, _PROGRAMS // columns)
    steps = triton.cdiv(triton.cdiv(size.rows, wanted), rows)
    blocks = triton.cdiv(size.rows, steps * rows)
    device = arguments[0][0].device
    sums = torch.empty(2, blocks * _fold(size), size.padded, device=device)
    grid = (blocks * columns,)
    loop = loop_of(steps)
    kernel[grid](*arguments, sums, size, blocks, loop, n, rows, _LANES, num_warps=_WARPS)
    return sums


def loop_of(steps: int) -> Any:
    """The number of steps of a loop; Triton's interpreter needs it as a constant."""
    return tl.constexpr(steps) if triton.knobs.runtime.interpret else steps


def _finish(kernel: Any, sums: Tensor, *arguments: Any, options: Any) -> None:
    _, parts, padded = sums.shape
    grid, loop = (triton.cdiv(padded, _CHANNELS),), loop_of(triton.cdiv(parts, _PARTS))
    kernel[grid](sums, *arguments, loop, *options, _PARTS, _CHANNELS, num_warps=2 * _WARPS)


def slopes_of(sums: Tensor, vectors: Tensor, count: float, *, training: bool) -> Tensor:
    """The slopes ``[4, L]`` of a norm's gradient from partial sums ``[2, parts, P]``.

    Args:
        sums: of the gradient after the norm, and of that times the centred features.
        vectors: of the norm.
        count: how many numbers of a channel the statistics are of.
        training: whether the statistics come from the features.
    """
    _, parts, padded = sums.shape
    slopes = vectors.new_empty(4, vectors.shape[1])
    arguments, fold = (vectors, slopes, parts, padded, count), vectors.shape[1] // padded
    _finish(kernels.finish_sums_kernel, sums, *arguments, options=[training, fold])
    return slopes
