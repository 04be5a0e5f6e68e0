"""Mixing over the group: torch operations, and one kernel in Triton's interpreter or on a GPU."""

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import equicolor
from equicolor.groups import cyclic_algorithm
from equicolor.models import resnet18
from equicolor.nn import CEConv2d, mixing
from equicolor.nn.algorithm import choose_algorithm
from equicolor.nn.batched import BatchedCEConv2d
from equicolor.nn.functional import pack_filters
from equicolor.nn.mixing import mix_apart, mix_rotations, mix_together

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Relative errors of one rounding. Triton's interpreter cuts bfloat16 instead of rounding.
ROUNDING = {torch.float32: 1e-6, torch.float16: 5e-4, torch.bfloat16: 8e-3}
SHAPES = {  # images, channels, height, width
    "odd": (3, 5, 7, 3),
    "one element": (1, 1, 1, 1),
    "one pixel": (2, 16, 1, 1),
    "whole tiles": (2, 64, 4, 4),
}

# Every group in every dtype, and the smallest and the largest group in every shape.
each_case = pytest.mark.parametrize(
    ("n", "shape", "dtype"),
    [
        *((n, "odd", dtype) for n in (2, 3, 6, 12) for dtype in DTYPES),
        *((n, shape, torch.float32) for n in (2, 12) for shape in SHAPES if shape != "odd"),
    ],
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def launches(monkeypatch):
    """The mixing as a kernel on the CPU too; a list of what it was called with."""
    pytest.importorskip("triton", reason="Triton is not installed; it comes with CUDA builds")
    kernels = importlib.import_module("equicolor.nn._fused.mix_kernels")
    calls, mix = [], kernels.mix

    def counted(matrix, parts):
        calls.append((tuple(matrix.shape), len(parts), parts[0].dtype))
        return mix(matrix, parts)

    monkeypatch.setattr(kernels, "mix", counted)
    monkeypatch.setattr(mixing, "DEVICES", (DEVICE,))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return calls


@pytest.fixture
def ordinary(monkeypatch):
    """Call a function with the mixing in torch operations."""

    def call(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(mixing, "DEVICES", ())
            return function(*arguments)

    return call


def features(n, shape, dtype=torch.float32):
    """Rotations ``[n, B, C, H, W]`` in the memory of this package."""
    batch, channels, height, width = SHAPES.get(shape, shape)
    x = torch.randn(n, batch, height, width, channels, device=DEVICE).to(dtype)
    return x.permute(0, 1, 4, 2, 3).requires_grad_()


def table(n, dtype=torch.float32):
    return cyclic_algorithm(n).analysis.to(DEVICE, dtype)


def exact(matrix, x):
    return torch.einsum("mn,nbchw->mbchw", matrix.double(), x.detach().double())


def in_channels_last_memory(images):
    return images.movedim(-3, -1).is_contiguous()


# Values and gradients


@each_case
def test_apart(n, shape, dtype, launches, relative_error):
    matrix, x = cyclic_algorithm(n).analysis.to(DEVICE), features(n, shape, dtype)
    parts = mix_apart(matrix.float(), x)
    assert all(part.dtype == dtype and in_channels_last_memory(part) for part in parts)
    assert relative_error(torch.stack(parts), exact(matrix, x)) < ROUNDING[dtype]

    gradients = [torch.randn_like(part) for part in parts]
    (gradient,) = torch.autograd.grad(parts, x, gradients)
    assert gradient.dtype == dtype
    assert in_channels_last_memory(gradient)
    expected = exact(matrix.T, torch.stack(gradients))
    assert relative_error(gradient, expected) < ROUNDING[dtype]
    r = len(matrix)
    assert launches == [((r, n), n, dtype), ((n, r), r, dtype)]


@each_case
def test_together(n, shape, dtype, launches, relative_error):
    matrix = cyclic_algorithm(n).synthesis.T.to(DEVICE)
    products = features(matrix.shape[1], shape, dtype).detach()
    parts = [part.clone().requires_grad_() for part in products]
    mixed = mix_together(matrix.float(), parts)
    assert mixed.dtype == dtype
    assert in_channels_last_memory(mixed)
    assert relative_error(mixed, exact(matrix, products)) < ROUNDING[dtype]

    slope = torch.randn_like(mixed)
    gradients = torch.stack(torch.autograd.grad(mixed, parts, slope))
    assert gradients.dtype == dtype
    assert relative_error(gradients, exact(matrix.T, slope)) < ROUNDING[dtype]
    r = matrix.shape[1]
    assert launches == [((n, r), r, dtype), ((r, n), n, dtype)]


@pytest.mark.parametrize("layout", [(0, 1, 2, 3, 4), (1, 2, 0, 3, 4), (4, 3, 2, 1, 0)])
def test_any_memory(layout, launches, relative_error):
    matrix, x = table(3), features(3, "odd").detach()
    inverse = [layout.index(dim) for dim in range(5)]
    x = x.permute(layout).contiguous().permute(inverse)
    assert relative_error(torch.stack(mix_apart(matrix, x)), exact(matrix, x)) < 1e-6
    assert relative_error(mix_together(matrix, x.unbind()), exact(matrix, x)) < 1e-6
    assert len(launches) == 2


def test_gradients_without_memory_of_their_own(launches, relative_error):
    matrix, x = table(3), features(3, "odd")
    ones = torch.ones(len(matrix), *x.shape[1:])
    (gradient,) = torch.autograd.grad(sum(part.sum() for part in mix_apart(matrix, x)), x)
    assert relative_error(gradient, exact(matrix.T, ones.to(DEVICE))) < 1e-6
    (gradient,) = torch.autograd.grad(mix_apart(matrix, x)[1].sum(), x)
    ones[[0, *range(2, len(ones))]] = 0
    assert relative_error(gradient, exact(matrix.T, ones.to(DEVICE))) < 1e-6


def test_float64_tables_with_other_features(launches, relative_error):
    matrix, x = table(6, torch.float64), features(6, "odd")
    assert relative_error(torch.stack(mix_apart(matrix, x)), exact(matrix, x)) < 1e-6
    assert launches


def test_results_may_be_changed_in_place(launches):
    matrix, x = table(3), features(3, "odd")
    parts = mix_apart(matrix, x)
    result = mix_together(matrix.T, [part * part for part in parts])
    nn.functional.relu_(result.flatten(0, 1)).sum().backward()
    assert len(launches) == 4
    assert x.grad.abs().sum() > 0


# Layers and networks


def layer_of(n, **options):
    layer = CEConv2d(4, 6, 3, padding=1, rotations=n, bias=False, algorithm="cyclic", **options)
    return layer.to(DEVICE)


@pytest.mark.parametrize("n", [2, 3, 6, 12])
def test_layer(n, launches, ordinary, relative_error):
    layer = layer_of(n)
    x = torch.randn(2, 4, n, 5, 5, device=DEVICE, requires_grad=True)
    leaves = [x, *layer.parameters()]
    slope = torch.randn(2, 6, n, 5, 5, device=DEVICE)
    y = layer(x)
    gradients = torch.autograd.grad(y, leaves, slope)
    assert len(launches) == 4
    expected = ordinary(layer, x)
    assert relative_error(y, expected) < 1e-5
    expected_gradients = ordinary(torch.autograd.grad, expected, leaves, slope)
    assert len(launches) == 4
    for one, other in zip(gradients, expected_gradients, strict=True):
        assert relative_error(one, other) < 1e-5


def second_derivative(layer, x):
    """Gradients of a penalty on the gradient, for the input and the filters."""
    (gradient,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
    return torch.autograd.grad(gradient.pow(2).sum(), [x, *layer.parameters()])


@pytest.mark.parametrize("n", [3, 6])
def test_second_derivatives(n, launches, relative_error):
    layer, x = layer_of(n), torch.randn(1, 4, n, 4, 4, device=DEVICE, requires_grad=True)
    actual = second_derivative(layer, x)
    count = len(launches)
    assert count > 4
    expected = second_derivative(
        copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
    )
    assert len(launches) == count  # float64 takes torch operations
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) < 1e-4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Input #:UserWarning")
def test_derivatives_of_the_mixing_alone(launches):
    """As gradgradcheck does, but in float32, in which a linear function is exact enough."""
    matrix, x = table(3), features(3, (1, 2, 2, 1))

    def function(x):
        return torch.stack(mix_apart(matrix, x)), mix_together(matrix, x.unbind())

    tolerances = {"eps": 1e-1, "atol": 1e-3, "rtol": 1e-3, "nondet_tol": 0.0, "fast_mode": True}
    assert torch.autograd.gradcheck(function, x, **tolerances)
    assert torch.autograd.gradgradcheck(function, x, **tolerances)
    assert launches


@pytest.mark.slow
def test_converted_network(launches, relative_error):
    network = equicolor.convert(resnet18(5, width=8), 3).to(DEVICE).train()
    for layer in network.modules():
        if isinstance(layer, BatchedCEConv2d):
            layer.reset_parameters()
            layer.algorithm = "cyclic"
    images, labels = torch.rand(2, 3, 32, 32, device=DEVICE), torch.tensor([1, 3], device=DEVICE)

    def step(model):
        logits = model(images.to(model.lift.mean.dtype))
        return torch.autograd.grad(F.cross_entropy(logits, labels), list(model.parameters()))

    expected = step(copy.deepcopy(network).double())
    assert not launches
    actual = step(network)
    layers = [layer for layer in network.modules() if isinstance(layer, BatchedCEConv2d)]
    assert len(launches) == 4 * len(layers) == 4 * 19
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) < 1e-2


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["plain", "autocast"])
@pytest.mark.parametrize("size", [1, 3])
def test_packed_filters(dtype, size):
    filters = torch.randn(4, 6, 5, size, size, requires_grad=True)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        result = pack_filters(filters)
        assert pack_filters(filters.double()).dtype == torch.float64  # autocast leaves it alone
    assert result.dtype == (dtype or torch.float32)
    assert in_channels_last_memory(result)
    assert torch.equal(result, filters.to(result.dtype))
    slope = torch.randn_like(result)
    assert torch.equal(torch.autograd.grad(result, filters, slope)[0], slope.float())


# Where it stays a matrix product


def fails(matrix, parts):
    raise AssertionError("the kernel was launched")


@pytest.fixture
def no_launch(launches, monkeypatch):
    kernels = importlib.import_module("equicolor.nn._fused.mix_kernels")
    monkeypatch.setattr(kernels, "mix", fails)


def test_kernel_would_be_launched(no_launch):
    with pytest.raises(AssertionError, match="launched"):
        mix_apart(table(3), features(3, "odd"))
    with pytest.raises(AssertionError, match="launched"):
        mix_together(table(3), features(3, "odd").unbind())


@pytest.mark.parametrize(
    ("matrix", "x"),
    [
        (table(3, torch.float64), features(3, "odd", torch.float64)),
        (table(17), features(17, "odd")),
        (table(3).requires_grad_(), features(3, "odd")),
        (table(3), features(3, (0, 4, 2, 2))),
        (table(3).to("meta"), features(3, "odd").to("meta")),
    ],
    ids=["float64", "many rotations", "learnt", "empty", "meta"],
)
def test_other_tensors(matrix, x, no_launch):
    expected = mix_rotations(matrix, x)
    for mixed in (torch.stack(mix_apart(matrix, x)), mix_together(matrix, x.unbind())):
        assert mixed.shape == expected.shape
        assert mixed.is_meta or torch.equal(mixed, expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit")
def test_other_circumstances(no_launch):
    matrix, x, layer = table(3), features(3, "odd").detach(), layer_of(3)
    images = torch.rand(2, 4, 3, 4, 4, device=DEVICE)
    torch.vmap(lambda x: torch.stack(mix_apart(matrix, x)))(x[None])
    torch.func.grad(lambda x: mix_together(matrix, x.unbind()).sum())(x)
    torch.func.jvp(lambda x: mix_together(matrix, x.unbind()), (x,), (x,))
    torch.jit.trace(layer, images, check_trace=False)
    torch.export.export(layer, (images,))
    with FlopCounterMode(display=False) as counter:
        layer(images)
    assert counter.get_total_flops() > 0
    with torch.autograd.forward_ad.dual_level():
        layer(torch.autograd.forward_ad.make_dual(images, images))


def test_many_gradients_at_once(launches, relative_error):
    layer, x = layer_of(3), torch.rand(1, 4, 3, 4, 4, device=DEVICE, requires_grad=True)
    y = layer(x)
    slopes = torch.randn(2, *y.shape, device=DEVICE)
    (batched,) = torch.autograd.grad(y, x, slopes, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(y, x, slope, retain_graph=True)[0] for slope in slopes]
    assert relative_error(batched, torch.stack(single)) < 1e-5


def test_torch_operations_are_those_of_a_matrix_product():
    """Bit for bit: without a GPU nothing depends on the kernel."""
    matrix, x = cyclic_algorithm(6).analysis.float(), torch.randn(6, 2, 5, 7, 3).bfloat16()
    pixels = x.permute(0, 1, 3, 4, 2).reshape(6, -1)
    expected = (matrix @ pixels.float()).bfloat16().view(-1, 2, 7, 3, 5).permute(0, 1, 4, 2, 3)
    assert torch.equal(torch.stack(mix_apart(matrix, x)), expected)
    assert torch.equal(mix_together(matrix, x.unbind()), expected)


# In pieces, on a CPU


@pytest.fixture
def pieces(monkeypatch):
    """Everything is large, and pieces are small; a list of how many tensors were joined."""
    calls, mix = [], mixing._mix_in_pieces

    def counted(matrix, parts):
        calls.append(len(parts))
        return mix(matrix, parts)

    monkeypatch.setattr(mixing, "_mix_in_pieces", counted)
    monkeypatch.setattr(mixing, "_LARGE", 1)
    monkeypatch.setattr(mixing, "_PIECE", 50)
    return calls


def on_cpu(n, dtype=torch.float32):
    return torch.randn(n, 2, 5, 7, 3, dtype=dtype).movedim(-1, 2).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [3, 12])
def test_pieces_make_the_whole(n, dtype, pieces, relative_error, tolerance):
    matrix = cyclic_algorithm(n).analysis.to(dtype)
    r = len(matrix)
    x, products = on_cpu(n, dtype), on_cpu(r, dtype)
    apart, together = mix_apart(matrix, x), mix_together(matrix.T, products.unbind())
    slope, slopes = torch.randn_like(together), torch.randn_like(products)
    (back,) = torch.autograd.grad(together, products, slope)
    (forth,) = torch.autograd.grad(apart, x, slopes.unbind())
    for actual, expected in (
        (torch.stack(apart), exact(matrix, x)),
        (together, exact(matrix.T, products)),
        (back, exact(matrix, slope)),
        (forth, exact(matrix.T, slopes)),
    ):
        assert relative_error(actual, expected) < tolerance[dtype]
        assert in_channels_last_memory(actual)
    assert pieces == [r, r]  # what comes as one tensor is not joined
    together.relu_()


def test_pieces_have_all_derivatives(pieces):
    matrix = cyclic_algorithm(3).analysis
    x = on_cpu(3, torch.float64)[:, :1, :2, :2].detach().requires_grad_()

    def function(x):
        return torch.stack(mix_apart(matrix, x)), mix_together(matrix, x.unbind())

    assert torch.autograd.gradcheck(function, x, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, x, fast_mode=True)
    assert pieces


def test_pieces_only_where_they_are_the_same(pieces, monkeypatch):
    matrix, x = cyclic_algorithm(3).analysis.float(), on_cpu(3).detach()
    with torch.autocast("cpu", torch.bfloat16):  # would round products of matrices
        mix_together(matrix, x.unbind())
    mix_together(matrix, x.bfloat16().unbind())
    mix_together(matrix.requires_grad_(), x.unbind())
    matrix.requires_grad_(False)
    torch.vmap(lambda x: mix_together(matrix, x.unbind()))(x[None])
    torch.func.jvp(lambda x: mix_together(matrix, x.unbind()), (x,), (x,))
    monkeypatch.setattr(mixing, "_LARGE", x[0].numel() + 1)
    mix_together(matrix, x.unbind())
    assert not pieces


# On a GPU


@needs_gpu
def test_gpu_training_step_of_a_converted_network_launches_kernels(launches):
    network = equicolor.convert(resnet18(5, width=64), 6, "hsv").cuda()
    network = network.to(memory_format=torch.channels_last).train()
    images = torch.rand(4, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    used = []
    for layer in network.modules():
        if isinstance(layer, BatchedCEConv2d):
            layer.register_forward_hook(lambda layer, _, y: used.append((layer, y)))
    with torch.autocast("cuda", torch.bfloat16):
        loss = network(images).float().square().sum()
    cyclic = [
        layer for layer, _ in used if choose_algorithm(6, layer.weight.shape, 1, "cuda") == "cyclic"
    ]
    assert len(cyclic) >= 16
    assert len(launches) == 2 * len(cyclic)
    assert all(y.is_contiguous(memory_format=torch.channels_last) for _, y in used)
    loss.backward()
    assert len(launches) == 4 * len(cyclic)
    assert {dtype for _, _, dtype in launches} == {torch.bfloat16}
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        network.eval()(images)
    assert len(launches) == 6 * len(cyclic)


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gpu_more_elements_than_int32_counts(dtype, launches, relative_error):
    size = 2**29 + 64  # of one of four parts: the last one ends beyond 2^31
    if torch.cuda.get_device_properties(0).total_memory < 14 * size * dtype.itemsize:
        pytest.skip("needs more GPU memory")
    matrix = table(3)
    x = torch.zeros(3, 1, size // 64, 1, 64, device="cuda", dtype=dtype).permute(0, 1, 4, 2, 3)
    x[..., -1:, :] = torch.randn(3, 1, 64, 1, 1, device="cuda").to(dtype)
    end = x[..., -2:, :]
    mixed = torch.stack([part[..., -2:, :] for part in mix_apart(matrix, x)])
    assert relative_error(mixed, exact(matrix, end)) < ROUNDING[dtype]


@needs_gpu
def test_gpu_recorded_as_a_graph(launches, relative_error):
    layer = layer_of(6)
    x = torch.randn(2, 4, 6, 5, 5, device="cuda")
    with torch.no_grad():
        expected = layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        graph.replay()
    assert relative_error(y, expected) < 1e-6
