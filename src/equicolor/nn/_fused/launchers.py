"""The fused path's operations on memory, each a Triton kernel or two.

Products are tuples of tensors ``[B, P, H, W]`` or ``[B, 2 P, H, W]`` in channels_last memory, where
P is the number of channels rounded up (:mod:`equicolor.nn._fused.layout`) and spare channels are
zero; what is written for convolutions is one tensor ``[m, B, H, W, P]`` of m planes. To a kernel
either is a matrix of rows and L lanes, one or several pixels to a row so that lanes fill the tiles.

What a batch norm does is five numbers a channel, repeated for the pixels of a row, float32
``[5, L]``: mean, scale, shift, inverse standard deviation, unbiased variance. What its gradient
needs is ``[4, L]``: the slope on centred features and the constant, and the gradients of weight
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

__all__ = [
    "analyse",
    "analyse_backward",
    "channel_vectors",
    "empty_planes",
    "loop_of",
    "moments",
    "norm_add",
    "norm_add_sums",
    "norm_analyse",
    "norm_analyse_backward",
    "norm_analyse_sums",
    "norm_backward",
    "pixels_in_a_row",
    "row_vectors",
    "running_vectors",
    "slopes_of",
]

_LANES = 64  # of a tile: 128 bytes at half precision, a line of the cache
_WARPS = 4
_PROGRAMS = 2048  # of a reduction, several for each multiprocessor
_PARTS, _CHANNELS = 512, 8  # a tile of the partial sums


class _Size(NamedTuple):
    """Of a matrix: rows of several pixels, lanes; and the lanes of one pixel, used or not."""

    rows: int
    lanes: int
    padded: int
    channels: int
    spare: tl.constexpr  # whether some lanes of a pixel are not used


class _Source(NamedTuple):
    """Features to read; rows that are ``padded`` apart need no step."""

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
    """The gradient ``A^T g`` of features from those of the inputs of their products.

    Args:
        gradients: of the inputs.
        others: gradients of the same inputs from other products, to be added.
        residual: what else comes back to the features, to be added.
        n: rotations.
        channels: of the features.
        dtype: of the result.
    """
    images = _images(gradients)
    out = Features.empty(images, channels, n, dtype, gradients[0].device)
    source = _NO_SOURCE if residual is None else _source(residual)
    size = _size(images, channels)
    _elementwise(kernels.analyse_backward_kernel, n, size, gradients, others, source, out.tensor)
    return out


def moments(products: Products, weight: Tensor, bias: Tensor, *, n: int, eps: float) -> Tensor:
    """What batch norm does to the features of some products, ``[5, L]`` (see the module)."""
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
    """Memory ``[m, B, H, W, P]`` for planes of as many pixels as products have, not filled."""
    return products[0].new_empty(planes.total, *_images(products), products[0].shape[1])


def running_vectors(
    products: Products, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, eps: float
) -> Tensor:
    """What batch norm does with given statistics, ``[5, L]`` (see the module)."""
    return row_vectors(channel_vectors(weight, bias, mean, var, eps=eps), products)


def channel_vectors(
    weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, eps: float
) -> Tensor:
    """What batch norm does with given statistics, for one pixel: ``[5, P]``."""
    mean, var, weight, bias = (one.detach().float() for one in (mean, var, weight, bias))
    inverse = torch.rsqrt(var + eps)
    vectors = torch.stack([mean, weight * inverse, bias, inverse, var])
    return torch.nn.functional.pad(vectors, (0, padded_channels(len(mean)) - len(mean)))


def row_vectors(vectors: Tensor, products: Products) -> Tensor:
    """Vectors ``[5, P]`` of one pixel for the rows of some products, ``[5, L]``."""
    fold = pixels_in_a_row(products)
    return vectors if fold == 1 else vectors.repeat(1, fold)


def pixels_in_a_row(products: Products) -> int:
    """How many pixels of some products share a row, so that lanes fill the tiles."""
    return _fold(_products_size(products))


def norm_analyse(products: Products, vectors: Tensor, *, n: int, paired: bool = False) -> Tensor:
    """Batch norm and ReLU of features, given as products, and the inputs of the next products.

    Args:
        products: of the features.
        vectors: of the norm.
        n: rotations.
        paired: how the next products want their inputs.
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
    """What the gradient of :func:`norm_analyse` needs from sums, ``[4, L]`` (see the module).

    Args:
        products: what went in.
        gradients: of what came out.
        vectors: of the norm.
        out: filled with what :func:`norm_analyse` gave, unless None.
        n: rotations.
        training: whether the statistics are those of the products.
    """
    size = _products_size(products)
    sums = _reduce(kernels.norm_analyse_sums_kernel, n, size, products, gradients, vectors, out)
    return slopes_of(sums, vectors, _count(n, size), training=training)


def norm_analyse_backward(
    products: Products, gradients: Products, vectors: Tensor, slopes: Tensor, *, n: int
) -> Tensor:
    """The gradient of the products that went into :func:`norm_analyse`, ``[m, B, H, W, P]``."""
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

    The residual is features, or products and the vectors of a norm of their own.
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
    """What the gradient of :func:`norm_add` needs from sums, ``[4, L]``, and that before ReLU.

    Without an output to look at, the gradient is taken to be the one before ReLU.
    """
    n, images, channels = gradient.rotations, gradient.images, gradient.channels
    size, inner, source = _size(images, channels), gradient, _NO_SOURCE
    if output is not None:
        # The residual's gradient too, so in its dtype, which is the output's.
        inner = Features.empty(images, channels, n, output.tensor.dtype, vectors.device)
        source = _source(output)
    arguments = _source(gradient), source, products, vectors, inner.tensor
    sums = _reduce(kernels.norm_add_sums_kernel, n, size, *arguments)
    return slopes_of(sums, vectors, _count(n, size), training=training), inner


def norm_backward(
    gradient: Features, products: Products, vectors: Tensor, slopes: Tensor
) -> Tensor:
    """The gradient of products from that of their normalised features, ``[m, B, H, W, P]``."""
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
    """Pixels that share a row."""
    return size.lanes // size.padded


def _count(n: int, size: _Size) -> float:
    """Numbers of a channel."""
    return float(n * size.rows * _fold(size))


def _source(x: Features) -> _Source:
    return _Source(x.tensor, x.rotation_step, None if x.padded else x.row_step)


def _images(products: Products) -> tuple[int, int, int]:
    batch, _, height, width = products[0].shape
    return batch, height, width


def _rows_of_tile(n: int, largest: int) -> int:
    """Rows such that a thread has eight numbers of a small group, four of a large one.

    A thread keeps all rotations and products of its numbers in registers, 255 at most.
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
    """The number of steps of a loop; Triton's interpreter takes none known at run time alone."""
    return tl.constexpr(steps) if triton.knobs.runtime.interpret else steps


def _finish(kernel: Any, sums: Tensor, *arguments: Any, options: Any) -> None:
    _, parts, padded = sums.shape
    grid, loop = (triton.cdiv(padded, _CHANNELS),), loop_of(triton.cdiv(parts, _PARTS))
    kernel[grid](sums, *arguments, loop, *options, _PARTS, _CHANNELS, num_warps=2 * _WARPS)


def slopes_of(sums: Tensor, vectors: Tensor, count: float, *, training: bool) -> Tensor:
    """What the gradient of a norm needs, ``[4, L]``, from partial sums ``[2, parts, P]``.

    Args:
        sums: of the gradient after the norm, and of it times what the norm centred.
        vectors: of the norm.
        count: the numbers of a channel that its statistics are of.
        training: whether the statistics depend on what was normalised.
    """
    _, parts, padded = sums.shape
    slopes = vectors.new_empty(4, vectors.shape[1])
    arguments, fold = (vectors, slopes, parts, padded, count), vectors.shape[1] // padded
    _finish(kernels.finish_sums_kernel, sums, *arguments, options=[training, fold])
    return slopes
