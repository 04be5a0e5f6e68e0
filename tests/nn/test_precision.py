"""How much is lost to rounding in half precision, against float64."""

import copy

import pytest
import torch
import torch.nn.functional as F

from equicolor.groups import cyclic_algorithm
from equicolor.nn import CEConv2d, CELiftConv2d
from equicolor.nn.functional import hue_orbit
from equicolor.nn.mixing import exact_matmul

HALF = [torch.float16, torch.bfloat16]


def run(layer, x, mode):
    """The output under ``.bfloat16()`` or autocast."""
    if mode == "module":
        return copy.deepcopy(layer).bfloat16()(x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x)


@pytest.mark.parametrize("mode", ["module", "autocast"])
@pytest.mark.parametrize("separable", [True, False], ids=["separable", "full"])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 8, 12])
def test_cyclic_loses_at_most_twice_what_dense_does(n, separable, mode, relative_error):
    layer = CEConv2d(8, 8, 3, rotations=n, separable=separable, algorithm="dense")
    x = torch.randn(2, 8, n, 8, 8)
    exact = copy.deepcopy(layer).double()(x.double())
    dense = relative_error(run(layer, x, mode), exact)
    layer.algorithm = "cyclic"
    cyclic = relative_error(run(layer, x, mode), exact)
    assert 1e-4 < dense < 1e-2
    assert cyclic <= 2 * dense


def float16_errors(layer, x, g, relative_error):
    """The errors of the output and of the gradient of the input, in a layer of float16."""
    y, gradient = torch.func.vjp(layer, x)
    exact, exact_gradient = torch.func.vjp(copy.deepcopy(layer).double(), x.double())
    (d_x,), (d_exact,) = gradient(g), exact_gradient(g.double())
    return relative_error(y, exact), relative_error(d_x, d_exact)


@pytest.mark.parametrize("size", [1e-3, 1, 4000])
@pytest.mark.parametrize("n", [6, 24])
def test_auto_has_the_range_of_dense_in_float16(n, size, relative_error):
    layer = CEConv2d(16, 16, 3, rotations=n, bias=False).half()
    x, g = (size * torch.randn(2, 16, n, 8, 8).half() for _ in range(2))
    g = g[..., :6, :6]
    auto = float16_errors(layer, x, g, relative_error)
    layer.algorithm = "dense"
    assert auto == pytest.approx(float16_errors(layer, x, g, relative_error), rel=1e-6)
    assert max(auto) < 0.03


def test_auto_has_the_range_of_dense_under_float16_autocast():
    layer, x = CEConv2d(16, 16, 3, rotations=24), 4000 * torch.randn(2, 16, 24, 8, 8)
    with torch.autocast("cpu", torch.float16):
        assert layer(x).isfinite().all()
        layer.algorithm = "cyclic"
        assert not layer(x).isfinite().all()


@pytest.mark.parametrize("size", [0.03, 1, 500])
@pytest.mark.parametrize("n", [3, 12])
def test_cyclic_in_float16_in_the_range_documented(n, size, relative_error):
    layer = CEConv2d(16, 16, 3, rotations=n, bias=False, algorithm="cyclic").half()
    x, g = (size * torch.randn(2, 16, n, 8, 8).half() for _ in range(2))
    assert max(float16_errors(layer, x, g[..., :6, :6], relative_error)) < 0.01


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_mixing_rounds_only_its_result(autocast):
    matrix, x = torch.rand(8, 5), torch.randn(5, 100).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        mixed = exact_matmul(matrix, x)
    assert mixed.dtype == torch.float32
    assert (mixed - matrix.double() @ x.double()).abs().max() < 1e-5


@pytest.mark.parametrize("n", [3, 6])
def test_half_precision_cyclic_mixes_in_full_precision(n, relative_error):
    layer = CEConv2d(8, 8, 3, rotations=n, separable=False, bias=False, algorithm="cyclic")
    layer.bfloat16()
    x = torch.randn(2, 8, n, 8, 8).bfloat16()
    exact = copy.deepcopy(layer).double()(x.double())
    # The best possible: mixing in float64, bfloat16 only between the mixing and convolutions.
    a, b, c = cyclic_algorithm(n)
    filters = torch.einsum("pn,oinhw->poihw", b, layer.weight.double()).bfloat16()
    parts = torch.einsum("pn,bcnhw->pbchw", a, x.double()).bfloat16()
    products = [F.conv2d(*pair) for pair in zip(parts, filters, strict=True)]
    y = torch.einsum("pn,pbchw->bcnhw", c, torch.stack(products).double()).bfloat16()
    assert relative_error(layer(x), exact) <= 1.05 * relative_error(y, exact)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("lifting", ["rgb", "hsv"])
def test_half_precision_lifting_rounds_colors_once(lifting, dtype, relative_error):
    layer = CELiftConv2d(3, 8, 3, rotations=12, lifting=lifting).to(dtype)
    images = torch.rand(2, 3, 16, 16).to(dtype)
    exact = copy.deepcopy(layer).double()(images.double())
    # The best possible: colours transformed in float64, rounded to the dtype of the layer.
    orbit = hue_orbit(images.double(), 12, lifting).to(dtype)
    rows = [F.conv2d(x, layer.weight.squeeze(2), layer.bias) for x in orbit]
    best = relative_error(torch.stack(rows, 2), exact)
    assert relative_error(layer(images), exact) <= 1.1 * best


def test_autocast_does_not_round_a_learnable_group(relative_error):
    learnable = CELiftConv2d(3, 8, 3, rotations=12, learnable=True)
    fixed = CELiftConv2d(3, 8, 3, rotations=12)
    fixed.load_state_dict({"weight": learnable.weight, "bias": learnable.bias})
    images = torch.rand(2, 3, 16, 16)
    exact = fixed(images)
    errors = [relative_error(run(layer, images, "autocast"), exact) for layer in (learnable, fixed)]
    assert errors[0] <= 1.2 * errors[1]


@pytest.mark.parametrize("dtype", HALF)
def test_constants_survive_a_trip_through_half_precision(dtype):
    for layer in (CEConv2d(2, 2, 3, rotations=5), CELiftConv2d(3, 2, 3, rotations=5)):
        fresh = copy.deepcopy(layer).double()
        returned = layer.to(dtype).double()
        assert len(list(returned.buffers())) > 0
        for (name, value), (_, exact) in zip(
            returned.named_buffers(), fresh.named_buffers(), strict=True
        ):
            assert torch.equal(value, exact), name


def test_constants_are_float32_at_least():
    layer = CEConv2d(2, 2, 3, rotations=5)
    for dtype, expected in {
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
        torch.float32: torch.float32,
        torch.float64: torch.float64,
    }.items():
        assert {buffer.dtype for buffer in layer.to(dtype).buffers()} == {expected}
