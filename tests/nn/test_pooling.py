import pytest
import torch
from torch import nn

from equicolor.nn import (
    CEAdaptiveAvgPool2d,
    CEAvgPool2d,
    CEMaxPool2d,
    CosetAvgPool,
    CosetFlatten,
    CosetMaxPool,
)
from equicolor.nn.functional import coset_avg_pool, coset_flatten, coset_max_pool

# Each option of the plain layer, to show that none is ignored.
SPATIAL = [
    (CEMaxPool2d, nn.MaxPool2d, {"kernel_size": 2}),
    (CEMaxPool2d, nn.MaxPool2d, {"kernel_size": (3, 2), "stride": (2, 1), "padding": 1}),
    (CEMaxPool2d, nn.MaxPool2d, {"kernel_size": 2, "dilation": 2, "stride": 1}),
    (CEMaxPool2d, nn.MaxPool2d, {"kernel_size": 2, "ceil_mode": True}),
    (CEAvgPool2d, nn.AvgPool2d, {"kernel_size": 2}),
    (CEAvgPool2d, nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1}),
    (CEAvgPool2d, nn.AvgPool2d, {"kernel_size": 3, "padding": 1, "count_include_pad": False}),
    (CEAvgPool2d, nn.AvgPool2d, {"kernel_size": 2, "ceil_mode": True}),
    (CEAvgPool2d, nn.AvgPool2d, {"kernel_size": 2, "divisor_override": 3}),
    (CEAdaptiveAvgPool2d, nn.AdaptiveAvgPool2d, {"output_size": 1}),
    (CEAdaptiveAvgPool2d, nn.AdaptiveAvgPool2d, {"output_size": (3, None)}),
]


@pytest.mark.parametrize(("layer", "plain", "options"), SPATIAL)
def test_spatial_pooling_is_the_plain_layer_on_each_rotation(layer, plain, options):
    x = torch.randn(2, 3, 4, 7, 9, dtype=torch.float64)
    expected = torch.stack([plain(**options)(x[:, :, k]) for k in range(4)], 2)
    assert (layer(**options)(x) - expected).abs().max() < 1e-15


@pytest.mark.parametrize(("layer", "plain", "options"), SPATIAL)
def test_gradients_are_those_of_the_plain_layer(layer, plain, options):
    x = torch.randn(2, 2, 3, 7, 9, dtype=torch.float64, requires_grad=True)
    y = layer(**options)(x)
    expected = torch.stack([plain(**options)(x[:, :, k]) for k in range(3)], 2)
    upstream = torch.randn_like(y)
    (actual,) = torch.autograd.grad(y, x, upstream)
    (reference,) = torch.autograd.grad(expected, x, upstream)
    assert (actual - reference).abs().max() < 1e-14


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (CosetMaxPool, coset_max_pool),
        (CosetAvgPool, coset_avg_pool),
        (CosetFlatten, coset_flatten),
    ],
)
def test_coset_modules_are_their_functions(layer, function):
    x = torch.randn(2, 3, 4, 5, 6)
    assert torch.equal(layer()(x), function(x))
    assert layer().state_dict() == {}


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (
            CEMaxPool2d(2, ceil_mode=True),
            "CEMaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=True)",
        ),
        (CEAvgPool2d(3, 1), "CEAvgPool2d(kernel_size=3, stride=1, padding=0)"),
        (CEAdaptiveAvgPool2d(1), "CEAdaptiveAvgPool2d(output_size=1)"),
        (CosetMaxPool(), "CosetMaxPool()"),
    ],
)
def test_repr_names_the_layer_and_its_options(layer, text):
    assert repr(layer) == text
