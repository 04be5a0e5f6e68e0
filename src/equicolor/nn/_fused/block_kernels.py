"""Triton kernels for what lies between the convolutions of a colour-equivariant network.

A hidden layer is ``y = C^T((A x) * (B w))``. Its products ``(A x) * (B w)`` are convolutions;
mixing, batch norm, ReLU and the residual are memory traffic. These kernels go from products to
the inputs of the next products in one pass, so that features ``y`` never reach memory, forward
or backward. Arithmetic is float32 for any dtype in memory.

:mod:`equicolor.nn._fused.launchers` launches them and explains their arguments.
"""

import triton
import triton.language as tl
from triton.language import constexpr

from equicolor.nn._fused.tile_kernels import (
    ANALYSIS,
    ANALYSIS_T,
    SYNTHESIS,
    SYNTHESIS_T,
    add,
    affine,
    affine_gradient,
    centre,
    columns,
    is_paired,
    load_features,
    load_mixed,
    relu,
    store,
    store_mixed,
    store_sums,
    tile,
    where_positive,
)


@triton.jit
def analyse_kernel(
    x, out, PAIRED: constexpr, size, N: constexpr, ROWS: constexpr, LANES: constexpr
):
    """Features to the inputs of their products."""
    block, lane = columns(size, LANES)
    row, place, inside = tile(block, lane, size, ROWS)
    xs = load_features(x, row, lane, place, inside, size, N)
    store_mixed(out, ANALYSIS, PAIRED, row, lane, place, inside, size, xs, N)


@triton.jit
def analyse_backward_kernel(
    gradients, others, residual, out, size, N: constexpr, ROWS: constexpr, LANES: constexpr
):
    """Gradients of the inputs of products, and of the residual, to those of features."""
    block, lane = columns(size, LANES)
    row, place, inside = tile(block, lane, size, ROWS)
    gs = load_mixed(gradients, ANALYSIS_T, row, lane, place, inside, size, N)
    if others is not None:
        gs = add(gs, load_mixed(others, ANALYSIS_T, row, lane, place, inside, size, N))
    if residual.pointer is not None:
        gs = add(gs, load_features(residual, row, lane, place, inside, size, N))
    store(out, place, inside, size, gs)


@triton.jit
def moments_kernel(
    products, pivots, sums, size, blocks, steps, N: constexpr, ROWS: constexpr, LANES: constexpr
):
    """Sums of some rows and of their squares, about the first pixel."""
    block, lane = columns(size, LANES)
    # Subtracting any value of the channel keeps the squares from cancelling.
    channel = tl.max_contiguous(tl.multiple_of(lane % size.padded, 8), 8)
    pixel, used = tl.zeros([1], tl.int64), (lane < size.lanes)[None, :]
    at = channel[None, :]
    pivot = load_mixed(products, SYNTHESIS, pixel, channel, at, used, size, N)[0]
    total = tl.zeros([ROWS, LANES], tl.float32)
    squares = tl.zeros([ROWS, LANES], tl.float32)
    for step in range(steps):
        row, place, inside = tile(block * steps + step, lane, size, ROWS)
        ys = load_mixed(products, SYNTHESIS, row, lane, place, inside, size, N)
        for k in tl.static_range(N):
            value = tl.where(inside, ys[k] - pivot, 0.0)
            total += value
            squares += value * value
    store_sums(sums, block, blocks, lane, size, total, squares)
    tl.store(pivots + lane[None, :], pivot, (lane < size.padded)[None, :] & (block == 0))


@triton.jit
def _totals(sums, parts, padded, lane, steps, PARTS: constexpr, LANES: constexpr):
    first = tl.zeros([PARTS, LANES], tl.float32)
    second = tl.zeros([PARTS, LANES], tl.float32)
    for step in range(steps):
        part = step * PARTS + tl.arange(0, PARTS)
        place = part[:, None] * padded + lane[None, :]
        inside = (part < parts)[:, None] & (lane < padded)[None, :]
        first += tl.load(sums + place, inside, 0.0)
        second += tl.load(sums + parts * padded + place, inside, 0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _store_vectors(out, lane, padded, vectors, FOLD: constexpr):
    """Store vectors, repeated for each pixel of a row."""
    place = tl.arange(0, FOLD)[:, None] * padded + lane[None, :]
    for index in tl.static_range(len(vectors)):
        values = tl.broadcast_to(vectors[index][None, :], place.shape)
        tl.store(out + index * FOLD * padded + place, values, lane[None, :] < padded)


@triton.jit
def finish_moments_kernel(
    sums,
    pivots,
    weight,
    bias,
    vectors,
    parts,
    padded,
    channels,
    count,
    eps,
    steps,
    FOLD: constexpr,
    PARTS: constexpr,
    LANES: constexpr,
):
    """From sums about the pivots to the vectors of a batch norm."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    first, second = _totals(sums, parts, padded, lane, steps, PARTS, LANES)
    first, second = first / count, second / count
    mean = first + tl.load(pivots + lane, lane < padded, 0.0)
    var = tl.maximum(second - first * first, 0.0, propagate_nan=tl.PropagateNan.ALL)
    inverse = 1.0 / tl.sqrt_rn(var + eps)
    scale = tl.load(weight + lane, lane < channels, 0.0).to(tl.float32) * inverse
    shift = tl.load(bias + lane, lane < channels, 0.0).to(tl.float32)
    unbiased = var * (count / (count - 1))
    _store_vectors(vectors, lane, padded, (mean, scale, shift, inverse, unbiased), FOLD)


@triton.jit
def finish_sums_kernel(
    sums,
    vectors,
    slopes,
    parts,
    padded,
    count,
    steps,
    TRAINING: constexpr,
    FOLD: constexpr,
    PARTS: constexpr,
    LANES: constexpr,
):
    """From sums of the gradient g, and of g times the centred features, to the slopes.

    ``w rstd (g - mean(g) - xhat mean(g xhat))`` is ``scale g + slope centred + constant``.
    """
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    d_shift, d_centred = _totals(sums, parts, padded, lane, steps, PARTS, LANES)
    scale = tl.load(vectors + FOLD * padded + lane, lane < padded, 0.0)
    inverse = tl.load(vectors + 3 * FOLD * padded + lane, lane < padded, 0.0)
    slope = tl.zeros([LANES], tl.float32)
    constant = tl.zeros([LANES], tl.float32)
    if TRAINING:  # else the statistics do not depend on the features
        slope = -scale * inverse * inverse * d_centred / count
        constant = -scale * d_shift / count
    _store_vectors(slopes, lane, padded, (slope, constant, d_centred * inverse, d_shift), FOLD)


@triton.jit
def norm_analyse_kernel(
    products, vectors, out, PAIRED: constexpr, size, N: constexpr, ROWS: constexpr, LANES: constexpr
):
    """Norm, ReLU, and the inputs of the next products."""
    block, lane = columns(size, LANES)
    row, place, inside = tile(block, lane, size, ROWS)
    ys = load_mixed(products, SYNTHESIS, row, lane, place, inside, size, N)
    zs = relu(affine(centre(ys, vectors, lane, size), vectors, lane, size))
    store_mixed(out, ANALYSIS, PAIRED, row, lane, place, inside, size, zs, N)


@triton.jit
def norm_analyse_sums_kernel(
    products,
    gradients,
    vectors,
    out,
    sums,
    size,
    blocks,
    steps,
    N: constexpr,
    ROWS: constexpr,
    LANES: constexpr,
):
    """Sums of the gradient after a norm; also writes the inputs of the next products again."""
    block, lane = columns(size, LANES)
    total = tl.zeros([ROWS, LANES], tl.float32)
    weighted = tl.zeros([ROWS, LANES], tl.float32)
    for step in range(steps):
        row, place, inside = tile(block * steps + step, lane, size, ROWS)
        ys = load_mixed(products, SYNTHESIS, row, lane, place, inside, size, N)
        centred = centre(ys, vectors, lane, size)
        zs = affine(centred, vectors, lane, size)
        gs = load_mixed(gradients, ANALYSIS_T, row, lane, place, inside, size, N)
        gs = where_positive(zs, gs)
        for k in tl.static_range(N):
            total += gs[k]
            weighted += gs[k] * centred[k]
        if out is not None:
            paired: tl.constexpr = is_paired(len(gradients), N)
            zs = relu(zs)
            store_mixed(out, ANALYSIS, paired, row, lane, place, inside, size, zs, N)
    store_sums(sums, block, blocks, lane, size, total, weighted)


@triton.jit
def norm_analyse_backward_kernel(
    products, gradients, vectors, slopes, out, size, N: constexpr, ROWS: constexpr, LANES: constexpr
):
    """The gradient before a norm, from that of the inputs of the next products."""
    block, lane = columns(size, LANES)
    row, place, inside = tile(block, lane, size, ROWS)
    ys = load_mixed(products, SYNTHESIS, row, lane, place, inside, size, N)
    centred = centre(ys, vectors, lane, size)
    zs = affine(centred, vectors, lane, size)
    gs = load_mixed(gradients, ANALYSIS_T, row, lane, place, inside, size, N)
    gs = where_positive(zs, gs)
    gs = affine_gradient(gs, centred, vectors, slopes, lane, size)
    paired: tl.constexpr = is_paired(len(products), N)
    store_mixed(out, SYNTHESIS_T, paired, row, lane, place, inside, size, gs, N)


@triton.jit
def norm_add_kernel(
    products,
    vectors,
    residual,
    residual_vectors,
    out,
    size,
    N: constexpr,
    ROWS: constexpr,
    LANES: constexpr,
):
    """Norm, residual and ReLU; the residual is features, or products and a norm."""
    block, lane = columns(size, LANES)
    row, place, inside = tile(block, lane, size, ROWS)
    ys = load_mixed(products, SYNTHESIS, row, lane, place, inside, size, N)
    zs = affine(centre(ys, vectors, lane, size), vectors, lane, size)
    if residual_vectors is None:
        rs = load_features(residual, row, lane, place, inside, size, N)
    else:
        ys = load_mixed(residual, SYNTHESIS, row, lane, place, inside, size, N)
        rs = affine(centre(ys, residual_vectors, lane, size), residual_vectors, lane, size)
    store(out, place, inside, size, relu(add(zs, rs)))


@triton.jit
def norm_add_sums_kernel(
    gradient,
    output,
    products,
    vectors,
    out,
    sums,
    size,
    blocks,
    steps,
    N: constexpr,
    ROWS: constexpr,
    LANES: constexpr,
):
    """Sums of the gradient after a norm; also writes it, zero where the output is not positive."""
    block, lane = columns(size, LANES)
    total = tl.zeros([ROWS, LANES], tl.float32)
    weighted = tl.zeros([ROWS, LANES], tl.float32)
    for step in range(steps):
        row, place, inside = tile(block * steps + step, lane, size, ROWS)
        gs = load_features(gradient, row, lane, place, inside, size, N)
        if output.pointer is not None:
            zs = load_features(output, row, lane, place, inside, size, N)
            gs = where_positive(zs, gs)
            store(out, place, inside, size, gs)
        ys = load_mixed(products, SYNTHESIS, row, lane, place, inside, size, N)
        centred = centre(ys, vectors, lane, size)
        for k in tl.static_range(N):
            total += gs[k]
            weighted += gs[k] * centred[k]
    store_sums(sums, block, blocks, lane, size, total, weighted)


@triton.jit
def norm_backward_kernel(
    gradient, products, vectors, slopes, out, size, N: constexpr, ROWS: constexpr, LANES: constexpr
):
    """The gradient before a norm, from that after it."""
    block, lane = columns(size, LANES)
    row, place, inside = tile(block, lane, size, ROWS)
    gs = load_features(gradient, row, lane, place, inside, size, N)
    ys = load_mixed(products, SYNTHESIS, row, lane, place, inside, size, N)
    centred = centre(ys, vectors, lane, size)
    gs = affine_gradient(gs, centred, vectors, slopes, lane, size)
    paired: tl.constexpr = is_paired(len(products), N)
    store_mixed(out, SYNTHESIS_T, paired, row, lane, place, inside, size, gs, N)
