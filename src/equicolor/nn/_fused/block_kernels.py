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
    coarse_tile,
    columns,
    is_paired,
    load,
    load_centred,
    load_features,
    load_mixed,
    load_signs,
    maximum,
    relu,
    rounded,
    shared_by_largest,
    store,
    store_features,
    store_mixed,
    store_signs,
    store_sums,
    tile,
    where_positive,
)


@triton.jit
def analyse_kernel(x, out, PAIRED: constexpr, size):
    """Features to the inputs of their products."""
    block, lane = columns(size)
    at = tile(block, lane, size)
    store_mixed(out, ANALYSIS, PAIRED, load_features(x, at, size), at, size)


@triton.jit
def analyse_backward_kernel(gradients, others, coarse, residual, out, size):
    """Gradients of the inputs of products, and of the residual, to those of features."""
    block, lane = columns(size)
    at = tile(block, lane, size)
    gs = load_mixed(gradients, ANALYSIS_T, at, size)
    if others is not None:
        where = at
        if coarse is not None:
            where = coarse_tile(at, coarse, size)
        gs = add(gs, load_mixed(others, ANALYSIS_T, where, size))
    if residual.tensor is not None:
        gs = add(gs, load_features(residual, at, size))
    store_features(out, gs, at, size)


@triton.jit
def moments_kernel(products, pivots, sums, size, blocks, steps):
    """Sums of some rows and of their squares, about the first pixel."""
    block, lane = columns(size)
    # Subtracting any value of the channel keeps the squares from cancelling.
    channel = tl.max_contiguous(tl.multiple_of(lane % size.padded, 8), 8)
    zero = tl.zeros([1], tl.int64)
    first = zero, channel, channel[None, :], (lane < size.lanes)[None, :], zero[:, None]
    pivot = load_mixed(products, SYNTHESIS, first, size)[0]
    total = tl.zeros([size.tile_rows, size.tile_lanes], tl.float32)
    squares = tl.zeros([size.tile_rows, size.tile_lanes], tl.float32)
    for step in range(steps):
        at = tile(block * steps + step, lane, size)
        ys = load_mixed(products, SYNTHESIS, at, size)
        for k in tl.static_range(size.n):
            value = tl.where(at[3], ys[k] - pivot, 0.0)
            total += value
            squares += value * value
    store_sums(sums, block, blocks, lane, size, total, squares)
    tl.store(pivots + lane[None, :], pivot, (lane < size.padded)[None, :] & (block == 0))


@triton.jit
def _totals(sums):
    """Lanes of this program, and both of their sums over all parts."""
    lane = tl.program_id(0) * sums.tile_lanes + tl.arange(0, sums.tile_lanes)
    first = tl.zeros([sums.tile_parts, sums.tile_lanes], tl.float32)
    second = tl.zeros([sums.tile_parts, sums.tile_lanes], tl.float32)
    for step in range(sums.steps):
        part = step * sums.tile_parts + tl.arange(0, sums.tile_parts)
        place = part[:, None] * sums.padded + lane[None, :]
        inside = (part < sums.parts)[:, None] & (lane < sums.padded)[None, :]
        first += tl.load(sums.pointer + place, inside, 0.0)
        second += tl.load(sums.pointer + sums.parts * sums.padded + place, inside, 0.0)
    return lane, tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def _store_vectors(out, lane, padded, vectors, FOLD: constexpr):
    """Store vectors, repeated for each pixel of a row."""
    place = tl.arange(0, FOLD)[:, None] * padded + lane[None, :]
    for index in tl.static_range(len(vectors)):
        values = tl.broadcast_to(vectors[index][None, :], place.shape)
        tl.store(out + index * FOLD * padded + place, values, lane[None, :] < padded)


@triton.jit
def _over_elements(values, ELEMENTS: constexpr):
    """Sums over neighbouring lanes, the elements of a spatial group, in each of these lanes."""
    groups: constexpr = values.shape[0] // ELEMENTS
    total = tl.sum(tl.reshape(values, (groups, ELEMENTS)), 1)
    return tl.reshape(tl.broadcast_to(total[:, None], (groups, ELEMENTS)), values.shape)


@triton.jit
def _follow(running, place, new, share, inside):
    """Move running statistics towards new ones; from the nearer end, so that nothing cancels."""
    old = load(running, place, inside)
    step = new - old
    moved = tl.where(share < 0.5, old + share * step, new - (1 - share) * step)
    tl.store(running + place, moved.to(running.dtype.element_ty), inside)


@triton.jit
def finish_moments_kernel(
    sums, pivots, norm, vectors, channels, count, FOLD: constexpr, ELEMENTS: constexpr
):
    """From sums about the pivots to the vectors of a batch norm; updates running statistics.

    ELEMENTS neighbouring lanes have their own pivots, but share weight, bias and statistics.
    ``count`` is the number of values of one lane.
    """
    lane, first, second = _totals(sums)
    first, second = first / count, second / count
    mean = first + tl.load(pivots + lane, lane < sums.padded, 0.0)
    var = tl.maximum(second - first * first, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if ELEMENTS > 1:
        common = _over_elements(mean, ELEMENTS) / ELEMENTS
        var = _over_elements(var + (mean - common) * (mean - common), ELEMENTS) / ELEMENTS
        mean = common
        count *= ELEMENTS
    inverse = 1.0 / tl.sqrt_rn(var + norm.eps)
    channel = lane // ELEMENTS
    scale = load(norm.weight, channel, channel < channels) * inverse
    shift = load(norm.bias, channel, channel < channels)
    unbiased = var * (count / (count - 1))
    _store_vectors(vectors, lane, sums.padded, (mean, scale, shift, inverse, unbiased), FOLD)
    share = norm.momentum
    if norm.momentum is None:
        share = 1.0 / tl.load(norm.batches).to(tl.float32)
    kept = (channel < channels) & (lane % ELEMENTS == 0)
    _follow(norm.mean, channel, mean, share, kept)
    _follow(norm.var, channel, unbiased, share, kept)


@triton.jit
def finish_sums_kernel(
    sums, vectors, slopes, count, TRAINING: constexpr, FOLD: constexpr, ELEMENTS: constexpr
):
    """From sums of the gradient g, and of g times the centred features, to the slopes.

    ``w rstd (g - mean(g) - xhat mean(g xhat))`` is ``scale g + slope centred + constant``.
    """
    lane, d_shift, d_centred = _totals(sums)
    if ELEMENTS > 1:
        d_shift = _over_elements(d_shift, ELEMENTS)
        d_centred = _over_elements(d_centred, ELEMENTS)
        count *= ELEMENTS
    padded = sums.padded
    scale = tl.load(vectors + FOLD * padded + lane, lane < padded, 0.0)
    inverse = tl.load(vectors + 3 * FOLD * padded + lane, lane < padded, 0.0)
    slope = tl.zeros_like(scale)
    constant = tl.zeros_like(scale)
    if TRAINING:  # else the statistics do not depend on the features
        slope = -scale * inverse * inverse * d_centred / count
        constant = -scale * d_shift / count
    _store_vectors(slopes, lane, padded, (slope, constant, d_centred * inverse, d_shift), FOLD)


@triton.jit
def norm_analyse_kernel(products, vectors, out, PAIRED: constexpr, size):
    """Norm, ReLU, and the inputs of the next products."""
    block, lane = columns(size)
    at = tile(block, lane, size)
    zs = relu(affine(load_centred(products, vectors, at, size), vectors, at, size))
    store_mixed(out, ANALYSIS, PAIRED, zs, at, size)


@triton.jit
def norm_analyse_sums_kernel(products, gradients, vectors, out, sums, size, blocks, steps):
    """Sums of the gradient after a norm; also writes the inputs of the next products again."""
    block, lane = columns(size)
    total = tl.zeros([size.tile_rows, size.tile_lanes], tl.float32)
    weighted = tl.zeros([size.tile_rows, size.tile_lanes], tl.float32)
    for step in range(steps):
        at = tile(block * steps + step, lane, size)
        centred = load_centred(products, vectors, at, size)
        zs = affine(centred, vectors, at, size)
        gs = where_positive(zs, load_mixed(gradients, ANALYSIS_T, at, size))
        for k in tl.static_range(size.n):
            total += gs[k]
            weighted += gs[k] * centred[k]
        if out is not None:
            store_mixed(out, ANALYSIS, is_paired(len(gradients), size.n), relu(zs), at, size)
    store_sums(sums, block, blocks, lane, size, total, weighted)


@triton.jit
def norm_analyse_backward_kernel(products, gradients, vectors, slopes, out, size):
    """The gradient before a norm, from that of the inputs of the next products."""
    block, lane = columns(size)
    at = tile(block, lane, size)
    centred = load_centred(products, vectors, at, size)
    zs = affine(centred, vectors, at, size)
    gs = where_positive(zs, load_mixed(gradients, ANALYSIS_T, at, size))
    gs = affine_gradient(gs, centred, vectors, slopes, at, size)
    store_mixed(out, SYNTHESIS_T, is_paired(len(products), size.n), gs, at, size)


@triton.jit
def norm_add_kernel(
    products, vectors, residual, residual_vectors, out, planes, signs, PAIRED: constexpr, size
):
    """Norm, residual and ReLU; the residual is features, or products and a norm.

    ``planes`` are the inputs of the next products, ``signs`` the signs of the result; or None.
    """
    block, lane = columns(size)
    at = tile(block, lane, size)
    zs = affine(load_centred(products, vectors, at, size), vectors, at, size)
    if residual_vectors is None:
        rs = load_features(residual, at, size)
    else:
        centred = load_centred(residual, residual_vectors, at, size)
        rs = affine(centred, residual_vectors, at, size)
    zs = rounded(relu(add(zs, rs)), out)
    store(out, zs, at, size)
    if signs is not None:
        store_signs(signs, zs, at, size)
    if planes is not None:
        store_mixed(planes, ANALYSIS, PAIRED, zs, at, size)


@triton.jit
def norm_add_sums_kernel(gradient, signs, products, vectors, out, sums, size, blocks, steps):
    """Sums of the gradient after a norm.

    With the signs of ReLU's output, also writes the gradient: zero where that is not positive.
    """
    block, lane = columns(size)
    total = tl.zeros([size.tile_rows, size.tile_lanes], tl.float32)
    weighted = tl.zeros([size.tile_rows, size.tile_lanes], tl.float32)
    for step in range(steps):
        at = tile(block * steps + step, lane, size)
        gs = load_features(gradient, at, size)
        if signs is not None:
            gs = where_positive(load_signs(signs, at, size), gs)
            store(out, gs, at, size)
        centred = load_centred(products, vectors, at, size)
        for k in tl.static_range(size.n):
            total += gs[k]
            weighted += gs[k] * centred[k]
    store_sums(sums, block, blocks, lane, size, total, weighted)


@triton.jit
def norm_backward_kernel(gradient, products, vectors, slopes, out, size):
    """The gradient before a norm, from that after it."""
    block, lane = columns(size)
    at = tile(block, lane, size)
    gs = load_features(gradient, at, size)
    centred = load_centred(products, vectors, at, size)
    gs = affine_gradient(gs, centred, vectors, slopes, at, size)
    store_mixed(out, SYNTHESIS_T, is_paired(len(products), size.n), gs, at, size)


@triton.jit
def coset_max_kernel(x, out, size):
    """The maximum over the rotations."""
    block, lane = columns(size)
    at = tile(block, lane, size)
    store(out, (maximum(load_features(x, at, size)),), at, size)


@triton.jit
def coset_max_backward_kernel(x, gradient, out, size):
    """The gradient of the features, shared by rotations that are equally large, as torch does."""
    block, lane = columns(size)
    at = tile(block, lane, size)
    xs = load_features(x, at, size)
    store(out, shared_by_largest(load(gradient, at[2], at[3]), xs), at, size)
