"""The kernels of the fused path against the same in torch, in Triton's interpreter or on a GPU."""

import functools

import pytest
import torch
import torch.nn.functional as F

from equicolor.groups import cyclic_algorithm
from equicolor.nn._fused import blocks, functions
from equicolor.nn._fused.layout import Features, Planes, padded_channels
from equicolor.nn._fused.norm import Norm, TrainingNorm
from equicolor.nn._fused.stages import (
    ANALYSIS,
    ANALYSIS_T,
    PAIRED,
    SYNTHESIS,
    SYNTHESIS_T,
    stages,
)
from equicolor.nn.functional import hue_orbit

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch's CUDA builds")

import triton
import triton.language as tl
from triton.language import constexpr

from equicolor.nn._fused import filter_kernels, launchers, lift_kernels, pool_kernels
from equicolor.nn._fused.filter_kernels import _start

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
forms = pytest.mark.parametrize("paired", [False, True])


@pytest.mark.parametrize("n", range(1, 17))
def test_stages_make_up_the_tables(n):
    tables = cyclic_algorithm(n)
    matrices = {
        ANALYSIS: tables.analysis,
        ANALYSIS_T: tables.analysis.T,
        SYNTHESIS: tables.synthesis.T,
        SYNTHESIS_T: tables.synthesis,
    }
    for kind, matrix in matrices.items():
        with torch.device("meta"):  # the default device does not matter
            product = functools.reduce(lambda x, stage: stage @ x, stages(kind, n))
        torch.testing.assert_close(product, matrix, rtol=0, atol=1e-14)


@pytest.mark.parametrize("n", range(3, 17))
def test_one_convolution_of_a_pair_is_a_complex_product(n):
    """Modes times packed filters, mixed back, are the correlation over the rotations."""
    planes, width = Planes.of(n, paired=True), 16
    x, w = torch.randn(n, 3, device=DEVICE), torch.randn(n, 2, 3, device=DEVICE)
    table = blocks._paired_table(n, x.device)
    packed = filter_kernels.mix(
        w.permute(1, 2, 0)[..., None, None], None, table, torch.float32, planes
    )
    modes = F.pad(matrix_of(ANALYSIS, n, True, x) @ x, (0, width - 3))
    inputs = *modes[: planes.alone], *modes[planes.alone :].view(-1, 2 * width)
    each = zip(planes.filters(packed), inputs, strict=True)
    outputs = torch.cat([(one[..., 0, 0] @ mode).view(-1, width)[:, :2] for one, mode in each])
    result = matrix_of(SYNTHESIS, n, True, x) @ outputs
    steps = torch.arange(n)
    shifted = w[(steps[None] - steps[:, None]) % n]  # [k, r, o, c]
    expected = torch.einsum("rc,kroc->ko", x, shifted)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def packed_filters(weight, pointwise, table, planes):
    """What :func:`filter_kernels.mix` gives, one filter after the other."""
    spare = padded_channels(weight.shape[1]) - weight.shape[1]
    rows = padded_channels(len(weight)) - len(weight)
    filters = weight if pointwise is None else weight * pointwise
    mixed = torch.einsum("mn,ocnhw->mohwc", table, filters)
    mixed = F.pad(mixed, (0, spare, 0, 0, 0, 0, 0, rows))
    alone, pairs = mixed[: planes.alone], mixed[planes.alone :].unflatten(0, (-1, 2, 2))
    # Of a pair, the filters of two outputs and two inputs: inputs side by side.
    wide = pairs.permute(0, 1, 3, 4, 5, 2, 6).reshape(-1, *mixed.shape[1:])
    return torch.cat([alone, wide])


@pytest.mark.parametrize(
    # Filters of several tiles with few rotations, and one tile with any; two make no pair.
    ("shape", "n", "paired"),
    [
        *(((3, 2, 2, 1), n, False) for n in (1, 2, 3, 12)),
        *(((3, 2, 2, 1), n, True) for n in (3, 12)),
        *(((17, 70, 1, 2), n, n == 3) for n in (2, 3)),
    ],
)
@pytest.mark.parametrize("separable", [False, True])
def test_filters_are_mixed_and_packed(n, shape, separable, paired, relative_error):
    outputs, inputs, *size = shape
    planes = Planes.of(n, paired=paired)
    table = cyclic_algorithm(n).filters.float().to(DEVICE)
    if planes.paired:
        table = blocks._paired_table(n, table.device)
    weight = torch.randn(outputs, inputs, 1 if separable else n, *size, device=DEVICE)
    pointwise = torch.randn(outputs, inputs, n, 1, 1, device=DEVICE) if separable else None
    leaves = [one.requires_grad_() for one in (weight, pointwise) if one is not None]
    expected = planes.filters(packed_filters(weight, pointwise, table, planes))
    packed = functions.MixFilters.apply(weight, pointwise, table, torch.float32, planes)
    assert len(packed) == planes.number
    for one, other in zip(packed, expected, strict=True):
        assert one.is_contiguous(memory_format=torch.channels_last)
        assert relative_error(one, other) < 1e-6
    gradients = [torch.randn_like(one) for one in packed]
    expected_gradients = torch.autograd.grad(expected, leaves, gradients)
    actual = torch.autograd.grad(packed, leaves, gradients)
    for one, other in zip(actual, expected_gradients, strict=True):
        assert relative_error(one, other) < 1e-5
    half = filter_kernels.mix(weight, pointwise, table, torch.bfloat16, planes)
    for one, other in zip(planes.filters(half), packed, strict=True):
        assert relative_error(one, other) < 5e-3


def test_planes_of_an_empty_batch():
    images = Planes.of(4, paired=True).images(torch.empty(4, 0, 3, 2, 16))
    assert [one.shape for one in images] == [(0, 16, 3, 2), (0, 16, 3, 2), (0, 32, 3, 2)]


@triton.jit
def _start_kernel(filters, out, MIX: constexpr):
    tl.store(out + tl.zeros([1], tl.int64), _start(filters, MIX))


@pytest.mark.parametrize(("alone", "start"), [(2, 14), (17, 14), (3, 11)])
def test_filters_start_where_int32_does_not_count(alone, start):
    constants = map(constexpr, (9, 12, 17, alone))
    filters = filter_kernels._Filters(None, None, None, 4096, 4096, 4096, 4096, *constants)
    out = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    _start_kernel[(1,)](filters, out, 14)
    assert out.item() == start * 9 * 4096**2


def test_features_are_viewed_where_their_memory_allows_it():
    features = Features.empty((2, 5, 3, 3, 4), torch.float32, torch.device("cpu")).tensor
    channels_last = torch.rand(3, 2, 3, 4, 16).permute(1, 4, 0, 2, 3)
    rotations_inside = torch.rand(2, 3, 4, 3, 5).permute(0, 4, 3, 1, 2)
    for x, padded in ((features, True), (channels_last, True), (rotations_inside, False)):
        view = Features.of(x)
        assert view.tensor is x
        assert view.padded == padded
    assert Features.packed(features).tensor is features
    assert Features.packed(rotations_inside).tensor is not rotations_inside
    beside = Features.empty((2, 5, 3, 3, 4), torch.float32, torch.device("cpu"), beside=True)
    assert Features.of(beside.tensor) == beside
    assert beside.beside
    assert not beside.padded
    assert Features.packed(beside.tensor, beside=True).tensor is beside.tensor
    copy = Features.packed(rotations_inside, beside=True)
    assert copy.beside
    assert torch.equal(copy.tensor, rotations_inside)


@pytest.mark.parametrize(
    "make", [torch.rand, lambda *shape: torch.rand(2, 5, 1, 1, 1).expand(shape)]
)
def test_other_features_are_copied_once(make):
    x = make(2, 5, 3, 3, 4)
    view = Features.of(x)
    assert view.padded
    assert torch.equal(view.tensor, x)


def test_the_last_row_is_not_read_beyond_the_storage():
    x = torch.rand(3 * 2 * 4 * 4 * 16 - 3).as_strided((2, 5, 3, 4, 4), (256, 1, 512, 64, 16))
    assert Features.of(x).readable == 5
    assert not Features.of(x).padded


# Kernels, each against the same in torch

SHAPES = {  # rotations, channels, images, height, width
    "spare channels": (3, 5, 2, 3, 4),
    "pixels that share no row": (2, 16, 1, 3, 3),
    "lanes over several tiles": (4, 80, 2, 2, 1),
    "many rotations": (12, 16, 1, 2, 2),
    "rows over several programs": (3, 64, 1, 5, 7),
}
shapes = pytest.mark.parametrize("name", SHAPES)


def features_of(name, offset=0.0):
    n, channels, images, height, width = SHAPES[name]
    return (torch.randn(images, channels, n, height, width) + offset).to(DEVICE)


def products_of(name, offset=0.0, *, paired=False):
    """Products with zeros in the spare channels."""
    n, channels, images, height, width = SHAPES[name]
    planes, spare = Planes.of(n, paired=paired), padded_channels(channels) - channels
    values = torch.randn(planes.total, images, channels, height, width, device=DEVICE) + offset
    values = F.pad(values.permute(0, 1, 3, 4, 2), (0, spare)).contiguous()
    pairs = values[planes.alone :].unflatten(0, (-1, 2)).permute(0, 2, 3, 4, 1, 5).flatten(4)
    return tuple(one.permute(0, 3, 1, 2) for one in (*values[: planes.alone], *pairs))


def planes_of(products, name):
    """Products as planes ``[m, B, C, H, W]``."""
    _, channels, *_ = SHAPES[name]
    padded = products[0].shape[1]
    return torch.cat([one.unflatten(1, (-1, padded)).transpose(0, 1) for one in products])[
        :, :, :channels
    ]


def matrix_of(kind, n, paired, like):
    kind += PAIRED if paired else 0
    return functools.reduce(lambda x, stage: stage @ x, stages(kind, n)).to(like)


def analyse(x, paired=False):
    """``A x``, planes ``[m, B, C, H, W]``."""
    return torch.einsum("rn,bcnhw->rbchw", matrix_of(ANALYSIS, x.shape[2], paired, x), x)


def synthesise(products, name, paired=False):
    """``C^T P``, ``[B, C, n, H, W]``."""
    n = SHAPES[name][0]
    planes = planes_of(products, name)
    return torch.einsum("nr,rbchw->bcnhw", matrix_of(SYNTHESIS, n, paired, planes), planes)


def written(memory, name, paired=False):
    """What kernels write as planes ``[m, B, C, H, W]``; the spare channels are zero."""
    n, channels, *_ = SHAPES[name]
    images = Planes.of(n, paired=paired).images(memory)
    for one in images:
        assert not one.unflatten(1, (-1, padded_channels(channels)))[:, :, channels:].any()
    return planes_of(images, name)


def affine(name):
    channels = SHAPES[name][1]
    return torch.randn(channels, device=DEVICE), torch.randn(channels, device=DEVICE)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@shapes
@forms
def test_analyse(name, paired):
    x = features_of(name)
    result = launchers.analyse(Features.of(x), x.dtype, paired=paired)
    close(written(result, name, paired), analyse(x, paired))


@pytest.mark.parametrize("layout", [(0, 1, 2, 3, 4), (2, 0, 3, 4, 1), (0, 3, 4, 2, 1)])
def test_analyse_takes_any_memory(layout):
    x = features_of("spare channels")
    inverse = [layout.index(dim) for dim in range(5)]
    x = x.permute(layout).contiguous().permute(inverse)
    result = launchers.analyse(Features.of(x), x.dtype, paired=False)
    close(written(result, "spare channels"), analyse(x))


def test_analyse_does_not_read_what_lies_between_the_features():
    memory = torch.full((3, 2, 3, 4, 16), torch.nan, device=DEVICE)
    x = memory[..., :5].permute(1, 4, 0, 2, 3).copy_(features_of("spare channels"))
    assert Features.of(x).padded
    result = launchers.analyse(Features.of(x), x.dtype, paired=False)
    close(written(result, "spare channels"), analyse(x))


@shapes
@forms
@pytest.mark.parametrize(("added", "beside"), [(False, False), (True, True)])
def test_analyse_backward(name, paired, added, beside):
    x, residual = features_of(name).requires_grad_(), features_of(name)
    gradients, others = (products_of(name, paired=paired) for _ in range(2))
    total = planes_of(gradients, name) + added * planes_of(others, name)
    (expected,) = torch.autograd.grad(analyse(x, paired), x, total)
    result = Features.empty(x.shape, x.dtype, x.device, beside=beside)
    more = (others, Features.of(residual)) if added else (None, None)
    launchers.analyse_backward(gradients, *more, result)
    close(result.tensor, expected + added * residual)


@pytest.mark.parametrize("channels", [5, 16, 64])  # several pixels in a row of a kernel, or one
@pytest.mark.parametrize(("steps", "paired"), [((2, 2), True), ((1, 3), False), ((2, 1), True)])
def test_analyse_backward_of_layers_that_skip_pixels(channels, steps, paired, monkeypatch):
    n, (height, width) = 4, (5, 6)
    coarse = -(-height // steps[0]), -(-width // steps[1])
    for name, sides in (("fine", (height, width)), ("coarse", coarse)):
        monkeypatch.setitem(SHAPES, name, (n, channels, 2, *sides))
    gradients, others = products_of("fine", paired=paired), products_of("coarse", paired=paired)
    x = features_of("fine").requires_grad_()
    y = analyse(x, paired)
    (expected,) = torch.autograd.grad(y, x, planes_of(gradients, "fine"), retain_graph=True)
    skipped = torch.zeros_like(y)
    skipped[..., :: steps[0], :: steps[1]] = planes_of(others, "coarse")
    (more,) = torch.autograd.grad(y, x, skipped)
    result = Features.empty(x.shape, x.dtype, x.device)
    launchers.analyse_backward(gradients, others, None, result, steps)
    close(result.tensor, expected + more)


def trained(weight, bias, momentum=0.1, batches=1):
    """A batch norm in training that has seen nothing yet."""
    mean, var = torch.zeros_like(weight), torch.ones_like(weight)
    count = torch.tensor(batches, device=weight.device)
    return TrainingNorm(weight, bias, mean, var, count, momentum, 1e-3)


@shapes
@forms
def test_moments(name, paired):
    products, (weight, bias) = products_of(name, offset=30, paired=paired), affine(name)
    n, channels, *_ = SHAPES[name]
    vectors = launchers.moments(products, trained(weight, bias), n=n)
    y = synthesise([product.double() for product in products], name, paired)
    y = y.transpose(0, 1).flatten(1)
    inverse = (y.var(1, correction=0) + 1e-3).rsqrt()
    expected = torch.stack([y.mean(1), weight * inverse, bias, inverse, y.var(1)]).float()
    close(vectors.unflatten(1, (-1, padded_channels(channels)))[:, 0, :channels], expected)
    assert not vectors.unflatten(1, (-1, padded_channels(channels)))[1:3, :, channels:].any()


@pytest.mark.parametrize(("momentum", "share"), [(0.1, 0.1), (1.0, 1.0), (None, 0.25)])
def test_moments_update_running_statistics(momentum, share):
    name = "spare channels"
    products, parameters, (n, channels, *_) = products_of(name, 3), affine(name), SHAPES[name]
    norm = trained(*parameters, momentum, batches=4)
    before = norm.mean._version
    assert norm.var._version == before
    vectors = launchers.moments(products, norm, n=n)
    close(norm.mean, share * vectors[0, :channels])
    close(norm.var, 1 + share * (vectors[4, :channels] - 1))
    # Caches that follow from them must notice the change.
    assert min(norm.mean._version, norm.var._version) > before


def statistics(products, name, parameters, training):
    """The norm of a kernel, and the same in torch as a function of the features."""
    n, channels, *_ = SHAPES[name]
    if training:
        vectors = launchers.moments(products, trained(*parameters), n=n)
        norm = Norm(*parameters, vectors, training=True)
        return norm, lambda y, *affine: F.batch_norm(y, None, None, *affine, True, 0, 1e-3)
    mean, var = torch.randn(channels, device=DEVICE), torch.rand(channels, device=DEVICE)
    vectors = launchers.channel_vectors(*parameters, mean, var, eps=1e-3)
    norm = Norm(*parameters, vectors, training=False).for_rows(products)
    return norm, lambda y, *affine: F.batch_norm(y, mean, var, *affine, False, 0, 1e-3)


# Every option on one shape; on the others, which differ in how they are cut, two opposites.
@pytest.mark.parametrize(
    ("name", "training", "before", "paired"),
    [
        *((name, True, False, False) for name in SHAPES),
        *((name, True, True, True) for name in SHAPES),
        ("spare channels", False, False, True),
        ("spare channels", False, True, False),
    ],
)
def test_norm_analyse(name, training, before, paired):
    products, parameters = products_of(name, paired=before), affine(name)
    n, channels, *_ = SHAPES[name]
    norm, expected_norm = statistics(products, name, parameters, training)
    leaves = [leaf.clone().requires_grad_() for leaf in (*parameters, *products)]
    expected = expected_norm(synthesise(leaves[2:], name, before), *leaves[:2]).relu()
    expected = analyse(expected, paired)
    result = launchers.norm_analyse(products, norm, n=n, paired=paired)
    close(written(result, name, paired), expected)

    gradients = products_of(name, paired=paired)
    expected_gradients = torch.autograd.grad(expected, leaves, planes_of(gradients, name))
    again = torch.empty_like(result)
    slopes = launchers.norm_analyse_sums(products, gradients, norm, again, n=n)
    close(written(again, name, paired), expected)
    close(slopes[2, :channels], expected_gradients[0])
    close(slopes[3, :channels], expected_gradients[1])
    back = launchers.norm_analyse_backward(products, gradients, norm, slopes, n=n)
    close(written(back, name, before), planes_of(expected_gradients[2:], name))


@pytest.mark.parametrize(
    ("name", "paired", "projected"),
    [
        *((name, False, True) for name in SHAPES),
        *((name, True, False) for name in SHAPES),
        ("spare channels", False, False),
        ("spare channels", True, True),
    ],
)
def test_norm_add(name, paired, projected):
    products, parameters = products_of(name, paired=paired), affine(name)
    others = products_of(name, paired=True)
    _, channels, *_ = SHAPES[name]
    norm, expected_norm = statistics(products, name, parameters, training=True)
    other_norm, expected_other_norm = statistics(others, name, parameters, training=False)
    identity = features_of(name)
    residual = (others, other_norm) if projected else Features.of(identity)
    leaves = [leaf.clone().requires_grad_() for leaf in (*parameters, *products)]
    expected, added = expected_norm(synthesise(leaves[2:], name, paired), *leaves[:2]), identity
    if projected:
        added = expected_other_norm(synthesise(others, name, True), *parameters)
    expected = (expected + added).relu()
    out = Features.empty(identity.shape, torch.float32, identity.device)
    signs = launchers.empty_signs(products, out.rotations)
    launchers.norm_add(products, norm, residual, out, signs=signs)
    close(out.tensor, expected)

    gradient = features_of(name)
    expected_gradients = torch.autograd.grad(expected, leaves, gradient)
    slopes, inner = launchers.norm_add_sums(Features.of(gradient), signs, products, norm)
    close(inner.tensor, gradient * (expected > 0))
    close(slopes[2, :channels], expected_gradients[0])
    close(slopes[3, :channels], expected_gradients[1])
    back = launchers.norm_backward(inner, products, norm, slopes)
    close(written(back, name, paired), planes_of(expected_gradients[2:], name))
    # Given the gradient before ReLU, the sums are the same.
    again, _ = launchers.norm_add_sums(inner, None, products, norm)
    close(again, slopes)


@shapes
def test_coset_max(name):
    x = features_of(name).relu()  # with ties
    x.requires_grad_()
    expected = x.amax(2)
    result = launchers.coset_max(Features.of(x.detach()))
    channels = x.shape[1]
    assert torch.equal(result[..., :channels].permute(0, 3, 1, 2), expected)
    gradient = torch.randn_like(expected)
    (expected_gradient,) = torch.autograd.grad(expected, x, gradient)
    packed = Features.packed(gradient.unsqueeze(2))
    close(launchers.coset_max_backward(Features.of(x.detach()), packed).tensor, expected_gradient)


@pytest.mark.parametrize("weight", [1.0, 1e-2])  # outputs tell what was pooled, or they do not
@pytest.mark.parametrize("shape", [(2, 16, 5, 4), (1, 80, 4, 1), (1, 48, 5, 6), (2, 16, 1, 1)])
def test_norm_pool(shape, weight):
    y = torch.randn(shape, device=DEVICE).to(memory_format=torch.channels_last)
    parameters = [torch.rand(shape[1], device=DEVICE) + 0.2 for _ in range(2)]
    parameters[0] *= weight * torch.randn(shape[1], device=DEVICE).sign()
    vectors = launchers.moments((y,), trained(*parameters), n=1)
    norm = Norm(*parameters, vectors, training=True)
    leaves = [leaf.clone().requires_grad_() for leaf in (*parameters, y)]
    normal = F.batch_norm(leaves[2], None, None, *leaves[:2], True, 0, 1e-3)
    expected = F.max_pool2d(normal.relu(), 3, 2, 1)
    out, taps = pool_kernels.norm_pool(y, norm)
    close(out.permute(0, 3, 1, 2), expected)
    again, nothing = pool_kernels.norm_pool(y, norm, keep_taps=False)
    close(again, out)
    assert nothing is None

    gradient = torch.randn_like(out)
    expected_gradients = torch.autograd.grad(expected, leaves, gradient.permute(0, 3, 1, 2))
    pooled = out if weight == 1 else torch.zeros_like(out) + (out > 0)  # is not read
    slopes = pool_kernels.norm_pool_sums(y, pooled, gradient, taps, norm)
    close(slopes[2, : shape[1]], expected_gradients[0])
    close(slopes[3, : shape[1]], expected_gradients[1])
    close(pool_kernels.norm_pool_backward(y, gradient, taps, norm, slopes), expected_gradients[2])


@pytest.mark.parametrize("weight", [0.0, 1e-39])  # which has no inverse in float32
def test_norm_pool_with_the_smallest_weights(weight):
    y = torch.randn(2, 16, 5, 4, device=DEVICE).to(memory_format=torch.channels_last)
    weights, zeros = torch.full((16,), weight, device=DEVICE), torch.zeros(16, device=DEVICE)
    vectors = launchers.moments((y,), trained(weights, zeros), n=1)
    norm = Norm(weights, zeros, vectors, training=True)
    leaf = weights.double().requires_grad_()
    normal = F.batch_norm(y.double(), None, None, leaf, zeros.double(), True, 0, 1e-3)
    expected = F.max_pool2d(normal.relu(), 3, 2, 1)
    out, taps = pool_kernels.norm_pool(y, norm)
    gradient = torch.randn_like(out)
    (expected,) = torch.autograd.grad(expected, leaf, gradient.permute(0, 3, 1, 2).double())
    slopes = pool_kernels.norm_pool_sums(y, out, gradient, taps, norm)
    close(slopes[2, :16].double(), expected)
    assert pool_kernels.norm_pool_backward(y, gradient, taps, norm, slopes).isfinite().all()


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [((1, 1), (1, 1), (0, 0)), ((7, 7), (2, 2), (1, 1)), ((3, 2), (1, 3), (1, 0))],
)
def test_columns(n, memory, size, stride, padding, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    images = torch.rand(2, 3, 9, 8, device=DEVICE) * 2 - 0.5
    images[0, :, 0, 0] = 0.3  # grey
    images[0, :, 0, 1] = 0
    images = images.contiguous(memory_format=memory)[..., 1:]
    filters = torch.randn(5, 3, *size, device=DEVICE)
    rows = lift_kernels.column_filters(filters, stride[0])
    result = lift_kernels.columns(images, n, images.dtype, size, (stride, padding, (1, 1)))
    orbit = hue_orbit(images, n, "hsv").flatten(0, 1)
    close(torch.conv2d(result, rows), torch.conv2d(orbit, filters, None, stride, padding))
    assert not result[:, 3 * stride[0] * size[1] :].any()


@pytest.mark.parametrize("n", [1, 4])
def test_columns_of_colors_that_lie_far_apart(n):
    try:
        memory = torch.empty(2**31 + 64, dtype=torch.float16, device=DEVICE)  # hardly touched
    except (RuntimeError, MemoryError):
        pytest.skip("needs 4 GB of addresses")
    images = memory.as_strided((1, 3, 8, 8), (64, 2**30, 8, 1)).copy_(torch.rand(1, 3, 8, 8))
    options = torch.float16, (3, 3), ((1, 1), (1, 1), (1, 1))
    expected = lift_kernels.columns(images.contiguous(), n, *options)
    assert torch.equal(lift_kernels.columns(images, n, *options), expected)


@pytest.mark.slow
def test_sums_do_not_depend_on_how_they_are_shared_out(monkeypatch):
    name = "rows over several programs"
    products, gradient, parameters = products_of(name), features_of(name), affine(name)
    images = products[0].contiguous(memory_format=torch.channels_last)

    def sums():
        norm, _ = statistics(products, name, parameters, training=True)
        slopes, _ = launchers.norm_add_sums(Features.of(gradient), None, products, norm)
        vectors = launchers.moments((images,), trained(*parameters), n=1)
        one = Norm(*parameters, vectors, training=True)
        out, taps = pool_kernels.norm_pool(images, one)
        pooled = pool_kernels.norm_pool_sums(images, out, out, taps, one)
        return torch.cat([norm.vectors, slopes, vectors, pooled])

    expected = sums()
    for module in (launchers, pool_kernels):
        monkeypatch.setattr(module, "_PROGRAMS", 1)  # that take several tiles
    monkeypatch.setattr(launchers, "_PARTS", 2)
    close(sums(), expected)


def test_what_is_not_a_number_stays_so():
    products = products_of("spare channels")
    products[0][0, 0, 0, 0] = torch.nan
    norm, _ = statistics(products, "spare channels", affine("spare channels"), training=True)
    assert launchers.norm_analyse(products, norm, n=3)[..., 0].isnan().all()
    identity = features_of("spare channels")
    out = Features.empty(identity.shape, torch.float32, identity.device)
    signs = launchers.empty_signs(products, 3)
    launchers.norm_add(products, norm, Features.of(identity), out, signs=signs)
    ones = Features.of(torch.ones_like(identity))  # torch lets gradients through where NaN are
    _, inner = launchers.norm_add_sums(ones, signs, products, norm)
    assert out.tensor.isnan().any()
    assert inner.tensor[out.tensor.isnan()].eq(1).all()
    y = torch.ones(1, 8, 3, 3, device=DEVICE).to(memory_format=torch.channels_last)
    y[0, 0, 0, 0] = torch.nan
    one = torch.ones(8, device=DEVICE)
    vectors = launchers.channel_vectors(one, one, one, one, eps=0)
    norm = Norm(one, one, vectors, training=False).for_rows((y,))
    for keep_taps in (True, False):
        out, _ = pool_kernels.norm_pool(y, norm, keep_taps=keep_taps)
        assert out.isnan().sum() == 1
    images = torch.rand(1, 3, 1, 2, device=DEVICE)
    images[0, 1, 0, 0] = torch.nan
    x = torch.rand(1, 5, 3, 1, 2, device=DEVICE)
    x[0, 0, 1, 0, 0] = torch.nan
    gradient = Features.packed(torch.ones(1, 5, 1, 1, 2, device=DEVICE))
    back = launchers.coset_max_backward(Features.of(x), gradient).tensor
    assert back.isnan().sum() == 3
    options = (1, 1), (0, 0), (1, 1)
    columns = lift_kernels.columns(images, 4, images.dtype, (1, 1), options)
    assert columns[:, :, 0, 0].isnan().any()
    assert not columns[:, :, 0, 1].isnan().any()
