"""Functions on tiles for the Triton kernels of the fused path: mix, load, store, arithmetic.

A thread keeps all rotations, or all products, of its pixels and channels, as tuples of tiles.
``size`` is a ``_Size`` and features are a ``_Source`` of :mod:`equicolor.nn._fused.launchers`.
"""

# Triton knows no starred tuples, and mypy no tuples that grow in a loop.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

import triton
import triton.language as tl
from triton.language import constexpr

from equicolor.nn._fused import stages

ANALYSIS = tl.constexpr(stages.ANALYSIS)
ANALYSIS_T = tl.constexpr(stages.ANALYSIS_T)
SYNTHESIS = tl.constexpr(stages.SYNTHESIS)
SYNTHESIS_T = tl.constexpr(stages.SYNTHESIS_T)

# Mixing. Imports are inside, since Triton does not let kernels refer to ordinary functions.


@triton.constexpr_function
def _terms(kind, n, stage, row):
    from equicolor.nn._fused.stages import terms

    return terms(kind, n, stage, row)


@triton.constexpr_function
def _outputs(kind, n, stage):
    from equicolor.nn._fused.stages import outputs

    return outputs(kind, n, stage)


@triton.jit
def _stage(xs, KIND: constexpr, N: constexpr, STAGE: constexpr):
    ys = ()
    for row in tl.static_range(_outputs(KIND, N, STAGE)):
        total = xs[_terms(KIND, N, STAGE, row)[0]]
        if _terms(KIND, N, STAGE, row)[1] != 1:
            total = total * _terms(KIND, N, STAGE, row)[1]
        for term in tl.static_range(2, len(_terms(KIND, N, STAGE, row)), 2):
            value = xs[_terms(KIND, N, STAGE, row)[term]]
            if _terms(KIND, N, STAGE, row)[term + 1] == 1:
                total += value
            else:
                total += value * _terms(KIND, N, STAGE, row)[term + 1]
        ys = ys + (total,)
    return ys


@triton.jit
def mix(xs, KIND: constexpr, N: constexpr):
    """Tiles of features to tiles of products, or back."""
    xs = _stage(_stage(xs, KIND, N, 0), KIND, N, 1)
    return _stage(_stage(xs, KIND, N, 2), KIND, N, 3)


@triton.constexpr_function
def alone(n, paired):
    """How many planes are single images."""
    from equicolor.nn._fused.layout import Planes

    return Planes.of(n, paired=bool(paired)).alone


@triton.constexpr_function
def is_paired(images, n):
    """Whether this number of images means planes in pairs."""
    from equicolor.groups.cyclic import cyclic_products

    return images < cyclic_products(n)


@triton.constexpr_function
def kind_of(kind, paired):
    """A kind of mixing, with modes instead of products if paired."""
    from equicolor.nn._fused.stages import PAIRED

    return kind + PAIRED if paired else kind


# Tiles


@triton.jit
def columns(size, LANES: constexpr):
    """The block of rows, and the lanes, of this program."""
    blocks = tl.cdiv(size.lanes, LANES)
    program = tl.program_id(0)
    return program // blocks, (program % blocks) * LANES + tl.arange(0, LANES)


@triton.jit
def tile(block, lane, size, ROWS: constexpr):
    """Rows, offsets in memory and mask of a tile."""
    row = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (row < size.rows)[:, None] & (lane < size.lanes)[None, :]
    return row, row[:, None] * size.lanes + lane[None, :], inside


@triton.jit
def _beside(place, row, lane, size):
    """Offsets in the first of two planes that lie side by side."""
    return place + (row * size.lanes)[:, None] + (lane // size.padded * size.padded)[None, :]


@triton.jit
def load(parts, place, inside):
    """Tiles of a tuple of tensors."""
    tiles = ()
    for part in tl.static_range(len(parts)):
        tiles = tiles + (tl.load(parts[part] + place, inside, 0.0).to(tl.float32),)
    return tiles


@triton.jit
def _load_planes(images, row, lane, place, inside, size, N: constexpr):
    """Tiles of planes: single images, and pairs side by side in one image."""
    ALONE: tl.constexpr = alone(N, is_paired(len(images), N))
    tiles = ()
    for image in tl.static_range(ALONE):
        tiles = tiles + (tl.load(images[image] + place, inside, 0.0).to(tl.float32),)
    if len(images) > ALONE:
        beside = _beside(place, row, lane, size)
        for image in tl.static_range(ALONE, len(images)):
            first = tl.load(images[image] + beside, inside, 0.0).to(tl.float32)
            second = tl.load(images[image] + size.padded + beside, inside, 0.0).to(tl.float32)
            tiles = tiles + (first, second)
    return tiles


@triton.jit
def load_mixed(images, KIND: constexpr, row, lane, place, inside, size, N: constexpr):
    """Planes, mixed to features."""
    planes = _load_planes(images, row, lane, place, inside, size, N)
    return mix(planes, kind_of(KIND, is_paired(len(images), N)), N)


@triton.jit
def load_features(x, row, lane, place, inside, size, N: constexpr):
    """Tiles of features, zero in the spare channels."""
    if x.row_step is not None:
        within = lane // size.padded * x.row_step + lane % size.padded
        place = (row * (size.lanes // size.padded) * x.row_step)[:, None] + within[None, :]
        inside = inside & (lane % size.padded < size.channels)[None, :]
    tiles = ()
    for k in tl.static_range(N):
        source = x.pointer + tl.cast(x.rotation_step, tl.int64) * k + place
        value = tl.load(source, inside, 0.0).to(tl.float32)
        if size.spare:
            # With a mask instead, the load would take one number at a time.
            value = tl.where((lane % size.padded < size.channels)[None, :], value, 0.0)
        tiles = tiles + (value,)
    return tiles


@triton.jit
def store(out, place, inside, size, tiles):
    """Store tiles one after the other in one tensor."""
    step = tl.cast(size.rows, tl.int64) * size.lanes
    for part in tl.static_range(len(tiles)):
        tl.store(out + step * part + place, tiles[part].to(out.dtype.element_ty), inside)


@triton.jit
def store_mixed(
    out, KIND: constexpr, PAIRED: constexpr, row, lane, place, inside, size, features, N: constexpr
):
    """Mix features to planes, and store their images one after the other."""
    ALONE: tl.constexpr = alone(N, PAIRED)
    planes = mix(features, kind_of(KIND, PAIRED), N)
    step = tl.cast(size.rows, tl.int64) * size.lanes
    beside = _beside(place, row, lane, size)
    for part in tl.static_range(len(planes)):
        value = planes[part].to(out.dtype.element_ty)
        if part < ALONE:
            tl.store(out + step * part + place, value, inside)
        else:
            first = out + step * (part - (part - ALONE) % 2) + (part - ALONE) % 2 * size.padded
            tl.store(first + beside, value, inside)


@triton.jit
def store_sums(out, block, blocks, lane, size, first, second):
    """Store two tiles, summed over rows, as this program's part of the sums."""
    place = block * size.lanes + lane
    tl.store(out + place, tl.sum(first, 0), lane < size.lanes)
    tl.store(out + blocks * size.lanes + place, tl.sum(second, 0), lane < size.lanes)


# Elementwise operations on tuples of tiles


@triton.jit
def vector(vectors, index, lane, size):
    """Load one number for every lane."""
    return tl.load(vectors + index * size.lanes + lane, lane < size.lanes, 0.0)[None, :]


@triton.jit
def centre(ys, vectors, lane, size):
    """Subtract the means of a norm."""
    mean = vector(vectors, 0, lane, size)
    out = ()
    for k in tl.static_range(len(ys)):
        out = out + (ys[k] - mean,)
    return out


@triton.jit
def affine(centred, vectors, lane, size):
    """Scale and shift of a norm."""
    scale, shift = vector(vectors, 1, lane, size), vector(vectors, 2, lane, size)
    out = ()
    for k in tl.static_range(len(centred)):
        out = out + (centred[k] * scale + shift,)
    return out


@triton.jit
def affine_gradient(gs, centred, vectors, slopes, lane, size):
    """The gradient before a norm from that after it."""
    scale = vector(vectors, 1, lane, size)
    slope, constant = vector(slopes, 0, lane, size), vector(slopes, 1, lane, size)
    out = ()
    for k in tl.static_range(len(gs)):
        out = out + (gs[k] * scale + centred[k] * slope + constant,)
    return out


@triton.jit
def relu(xs):
    """ReLU of tiles."""
    out = ()
    for k in tl.static_range(len(xs)):
        out = out + (tl.maximum(xs[k], 0.0, propagate_nan=tl.PropagateNan.ALL),)
    return out


@triton.jit
def where_positive(zs, xs):
    """The gradient of ReLU."""
    out = ()
    for k in tl.static_range(len(xs)):
        out = out + (tl.where(zs[k] <= 0, 0.0, xs[k]),)  # as torch does it, for NaN
    return out


@triton.jit
def add(xs, others):
    """Sums of tiles."""
    out = ()
    for k in tl.static_range(len(xs)):
        out = out + (xs[k] + others[k],)
    return out
