"""Properties that hold for every shape, option, dtype and number of rotations."""

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equicolor.nn import CEConv2d, CELiftConv2d
from equicolor.testing import equivariance_error

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@dataclass(frozen=True)
class Setting:
    """A layer, the Conv2d it should resemble, and the size of its input."""

    options: dict
    rotations: int
    size: tuple[int, int]
    batch: int


@st.composite
def layer_settings(draw, *, lifting=False):
    small = st.integers(1, 2)
    groups = 1 if lifting else draw(st.integers(1, 3))
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.tuples(small, small))
    padding = draw(st.sampled_from([0, 1, (0, 2), "same", "valid"]))
    stride = 1 if padding == "same" else draw(st.tuples(st.integers(1, 3), small))
    extent = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    options = {
        "in_channels": 3 if lifting else groups * draw(small),
        "out_channels": groups * draw(small),
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "bias": draw(st.booleans()),
        "padding_mode": draw(st.sampled_from(["zeros", "replicate", "circular", "reflect"])),
    }
    if not lifting:
        options["groups"] = groups
    # At least 5 pixels: reflecting 4 ("same", dilated 3) needs more pixels than that.
    size = tuple(max(e, 5) + draw(st.integers(0, 2)) for e in extent)
    return Setting(options, draw(st.integers(1, 6)), size, draw(small))


def hidden(setting, dtype, **choices):
    layer = CEConv2d(**setting.options, rotations=setting.rotations, **choices).to(dtype)
    shape = setting.batch, setting.options["in_channels"], setting.rotations, *setting.size
    return layer, torch.randn(shape).to(dtype)


@given(
    layer_settings(),
    st.booleans(),
    st.sampled_from(["dense", "cyclic", "auto"]),
    st.sampled_from(DTYPES),
)
@settings(max_examples=60)
def test_hidden_output_has_the_shape_of_conv2d(setting, separable, algorithm, dtype):
    layer, x = hidden(setting, dtype, separable=separable, algorithm=algorithm)
    y = layer(x)
    batch, channels, height, width = nn.Conv2d(**setting.options)(x[:, :, 0].float()).shape
    assert y.shape == (batch, channels, setting.rotations, height, width)
    assert y.dtype == dtype
    assert y.isfinite().all()


@given(layer_settings(lifting=True), st.sampled_from(["rgb", "hsv"]), st.sampled_from(DTYPES))
@settings(max_examples=40)
def test_lifted_output_has_the_shape_of_conv2d(setting, lifting, dtype):
    layer = CELiftConv2d(**setting.options, rotations=setting.rotations, lifting=lifting).to(dtype)
    images = torch.rand(setting.batch, 3, *setting.size)
    y = layer(images.to(dtype))
    batch, channels, height, width = nn.Conv2d(**setting.options)(images).shape
    assert y.shape == (batch, channels, setting.rotations, height, width)
    assert y.dtype == dtype
    assert y.isfinite().all()


@given(
    layer_settings(), st.booleans(), st.sampled_from(["dense", "cyclic"]), st.sampled_from(DTYPES)
)
@settings(max_examples=60)
def test_hidden_layers_are_equivariant(tolerance, setting, separable, algorithm, dtype):
    layer, x = hidden(setting, dtype, separable=separable, algorithm=algorithm)
    assert equivariance_error(layer, x, setting.rotations) <= tolerance[dtype]


@given(layer_settings(lifting=True), st.sampled_from(["rgb", "hsv"]))
@settings(max_examples=40)
def test_lifting_is_equivariant(tolerance, setting, lifting):
    layer = CELiftConv2d(**setting.options, rotations=setting.rotations, lifting=lifting).double()
    images = torch.rand(setting.batch, 3, *setting.size, dtype=torch.float64)
    assert equivariance_error(layer, images, setting.rotations, lifting) <= tolerance[torch.float64]


@given(layer_settings(), st.booleans(), st.sampled_from([torch.float64, torch.float32]))
@settings(max_examples=60)
def test_cyclic_equals_dense(tolerance, relative_error, setting, separable, dtype):
    layer, x = hidden(setting, dtype, separable=separable, algorithm="dense")
    dense = layer(x)
    layer.algorithm = "cyclic"
    assert relative_error(layer(x), dense) <= tolerance[dtype]


@given(layer_settings(), st.integers(1, 5))
@settings(max_examples=20)
def test_images_of_a_batch_do_not_mix(relative_error, setting, batch):
    layer, _ = hidden(setting, torch.float64, algorithm="cyclic")
    shape = batch, setting.options["in_channels"], setting.rotations, *setting.size
    x = torch.randn(shape, dtype=torch.float64)
    one_by_one = torch.cat([layer(image) for image in x.split(1)])
    assert relative_error(layer(x), one_by_one) < 1e-12
