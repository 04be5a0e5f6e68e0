"""Functions on tiles for the Triton kernels of the fused path: mix, load, store, arithmetic.

A thread keeps all rotations, or all products, of its pixels and channels, as tuples of tiles.
``size`` is a ``_Size`` of :mod:`equicolor.nn._fused.launchers`.
``at`` says where a tile is: rows, lanes, offsets in memory, the mask of existing elements, and the
offsets of their pixels, which are those in memory again for two planes side by side.
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
_MODES = tl.constexpr(stages.PAIRED)

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


# Tiles


@triton.jit
def columns(size):
    """The block of rows, and the lanes, of this program."""
    blocks = tl.cdiv(size.lanes, size.tile_lanes)
    lane = (tl.program_id(0) % blocks) * size.tile_lanes + tl.arange(0, size.tile_lanes)
    return tl.program_id(0) // blocks, lane


@triton.jit
def tile(block, lane, size):
    """Where a tile is."""
    row = block.to(tl.int64) * size.tile_rows + tl.arange(0, size.tile_rows)
    inside = (row < size.rows)[:, None] & (lane < size.lanes)[None, :]
    first = (row * size.lanes)[:, None] + (lane // size.padded * size.padded)[None, :]
    return row, lane, row[:, None] * size.lanes + lane[None, :], inside, first


@triton.jit
def coarse_tile(at, coarse, size):
    """Where a tile is in images of every few rows and columns, which lack most of its pixels."""
    row, lane, _, inside, _ = at
    # There are fewer pixels than int32 counts, and it is divided many times as fast.
    pixel = row.to(tl.int32)[:, None]
    if coarse.fold > 1:
        pixel = pixel * coarse.fold + (lane // size.padded)[None, :]
    line, x = pixel // coarse.width, pixel % coarse.width
    image, y = line // coarse.height, line % coarse.height
    there = inside & (y % coarse.rows == 0) & (x % coarse.columns == 0)
    line = image * coarse.coarse_height + y // coarse.rows
    first = (line * coarse.coarse_width + x // coarse.columns).to(tl.int64) * size.padded
    return row, lane, first + (lane % size.padded)[None, :], there, first


@triton.jit
def load(pointer, place, inside):
    """A tile as float32, zero outside."""
    return tl.load(pointer + place, inside, 0.0).to(tl.float32)


@triton.jit
def load_mixed(images, KIND: constexpr, at, size):
    """Planes, mixed to features. They are single images, and pairs side by side in one image."""
    PAIRED: tl.constexpr = is_paired(len(images), size.n)
    ALONE: tl.constexpr = alone(size.n, PAIRED)
    _, _, place, inside, first = at
    planes = ()
    for image in tl.static_range(ALONE):
        planes = planes + (load(images[image], place, inside),)
    if len(images) > ALONE:
        beside = place + first
        for image in tl.static_range(ALONE, len(images)):
            real = load(images[image], beside, inside)
            planes = planes + (real, load(images[image] + size.padded, beside, inside))
    return mix(planes, KIND + _MODES * PAIRED, size.n)


@triton.jit
def _place_of_features(x, at, size):
    """Offsets of the first rotation of features."""
    row, lane, place, _, _ = at
    if x.row_step is not None:
        within = lane // size.padded * x.row_step + lane % size.padded
        place = (row * (size.lanes // size.padded) * x.row_step)[:, None] + within[None, :]
    return place


@triton.jit
def load_features(x, at, size):
    """Tiles of features, zero in the spare channels."""
    _, lane, _, inside, _ = at
    place = _place_of_features(x, at, size)
    if x.readable is not None:
        inside = inside & (lane % size.padded < x.readable)[None, :]
    tiles = ()
    for k in tl.static_range(size.n):
        value = load(x.tensor + tl.cast(x.rotation_step, tl.int64) * k, place, inside)
        if size.spare:
            # With a mask instead, the load would take one number at a time.
            value = tl.where((lane % size.padded < size.channels)[None, :], value, 0.0)
        tiles = tiles + (value,)
    return tiles


@triton.jit
def store_features(out, tiles, at, size):
    """Store tiles of features in memory of our own, spare channels included."""
    place = _place_of_features(out, at, size)
    for k in tl.static_range(size.n):
        target = out.tensor + tl.cast(out.rotation_step, tl.int64) * k + place
        tl.store(target, tiles[k].to(out.tensor.dtype.element_ty), at[3])


@triton.jit
def store(out, tiles, at, size):
    """Store tiles one after the other in one tensor."""
    _, _, place, inside, _ = at
    step = tl.cast(size.rows, tl.int64) * size.lanes
    for part in tl.static_range(len(tiles)):
        tl.store(out + step * part + place, tiles[part].to(out.dtype.element_ty), inside)


@triton.jit
def store_mixed(out, KIND: constexpr, PAIRED: constexpr, features, at, size):
    """Mix features to planes, and store their images one after the other."""
    ALONE: tl.constexpr = alone(size.n, PAIRED)
    planes = mix(features, KIND + _MODES * PAIRED, size.n)
    _, _, place, inside, first = at
    step = tl.cast(size.rows, tl.int64) * size.lanes
    for part in tl.static_range(len(planes)):
        value = planes[part].to(out.dtype.element_ty)
        if part < ALONE:
            tl.store(out + step * part + place, value, inside)
        else:
            pair = out + step * (part - (part - ALONE) % 2) + (part - ALONE) % 2 * size.padded
            tl.store(pair + place + first, value, inside)


@triton.jit
def store_signs(out, tiles, at, size):
    """Store where tiles are positive: a bit for each of them, in bytes of eight."""
    _, _, place, inside, _ = at
    step = tl.cast(size.rows, tl.int64) * size.lanes
    for first in tl.static_range(0, len(tiles), 8):
        bits = tl.zeros([size.tile_rows, size.tile_lanes], tl.int32)
        for k in tl.static_range(8):
            if first + k < len(tiles):
                bits |= tl.where(tiles[first + k] <= 0, 0, 1 << k)  # NaN counts as positive
        tl.store(out + step * (first // 8) + place, bits.to(tl.uint8), inside)


@triton.jit
def load_signs(signs, at, size):
    """Tiles of ones and zeros from :func:`store_signs`."""
    _, _, place, inside, _ = at
    step = tl.cast(size.rows, tl.int64) * size.lanes
    tiles = ()
    for first in tl.static_range(0, size.n, 8):
        bits = tl.load(signs + step * (first // 8) + place, inside, 0).to(tl.int32)
        for k in tl.static_range(8):
            if first + k < size.n:
                tiles = tiles + ((bits >> k) & 1,)
    return tiles


@triton.jit
def store_sums(out, block, blocks, lane, size, first, second):
    """Store two tiles, summed over rows, as this program's part of the sums."""
    place = block * size.lanes + lane
    tl.store(out + place, tl.sum(first, 0), lane < size.lanes)
    tl.store(out + blocks * size.lanes + place, tl.sum(second, 0), lane < size.lanes)


# Elementwise operations on tuples of tiles


@triton.jit
def _vector(vectors, index, at, size):
    """One number for every lane."""
    _, lane, _, _, _ = at
    return tl.load(vectors + index * size.lanes + lane, lane < size.lanes, 0.0)[None, :]


@triton.jit
def load_centred(products, vectors, at, size):
    """The features of some products, less the means of a norm."""
    ys, mean = load_mixed(products, SYNTHESIS, at, size), _vector(vectors, 0, at, size)
    out = ()
    for k in tl.static_range(len(ys)):
        out = out + (ys[k] - mean,)
    return out


@triton.jit
def affine(centred, vectors, at, size):
    """Scale and shift of a norm."""
    scale, shift = _vector(vectors, 1, at, size), _vector(vectors, 2, at, size)
    out = ()
    for k in tl.static_range(len(centred)):
        out = out + (centred[k] * scale + shift,)
    return out


@triton.jit
def affine_gradient(gs, centred, vectors, slopes, at, size):
    """The gradient before a norm from that after it."""
    scale = _vector(vectors, 1, at, size)
    slope, constant = _vector(slopes, 0, at, size), _vector(slopes, 1, at, size)
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
def rounded(xs, out):
    """Tiles rounded to the dtype of memory, as float32."""
    ys = ()
    for k in tl.static_range(len(xs)):
        ys = ys + (xs[k].to(out.dtype.element_ty).to(tl.float32),)
    return ys


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


@triton.jit
def maximum(xs):
    """The largest of tiles."""
    largest = xs[0]
    for k in tl.static_range(1, len(xs)):
        largest = tl.maximum(largest, xs[k], propagate_nan=tl.PropagateNan.ALL)
    return largest


@triton.jit
def shared_by_largest(gradient, xs):
    """The gradient of a maximum for each of its tiles; as torch does it, for NaN."""
    largest = maximum(xs)
    count = tl.zeros_like(largest)
    for k in tl.static_range(len(xs)):
        count += (xs[k] == largest).to(tl.float32)
    out = ()
    for k in tl.static_range(len(xs)):
        out = out + (gradient / count * (xs[k] == largest).to(tl.float32),)
    return out
