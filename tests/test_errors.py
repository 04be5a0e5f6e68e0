"""What users see when they get it wrong: every message names what was expected and what came."""

import re

import pytest
import torch
from torch import nn

from equicolor import HueGroup
from equicolor.color import hsv_to_rgb, rgb_to_hsv, rotate_hue, shift_hue
from equicolor.groups import cyclic_algorithm, cyclic_products, dense_algorithm
from equicolor.nn import (
    CEAdaptiveAvgPool2d,
    CEAvgPool2d,
    CEBatchNorm2d,
    CEConv2d,
    CEDropout2d,
    CELiftConv2d,
    CEMaxPool2d,
    CosetAvgPool,
    CosetFlatten,
    CosetMaxPool,
)
from equicolor.nn.functional import ce_conv2d, ce_lift_conv2d, hue_orbit
from equicolor.testing import equivariance_error

IMAGES = torch.rand(2, 3, 8, 8)
FEATURES = torch.rand(2, 5, 3, 8, 8)
FILTERS = torch.rand(4, 5, 3, 3, 3)
LIFT_FILTERS = torch.rand(4, 3, 1, 3, 3)
LIFT_HINT = "; lift images with CELiftConv2d first, or add the batch dimension to features"

# (what the user writes, exception, the whole message)
BAD = [
    # Colours
    (
        lambda: shift_hue([0.5], 0.1),
        TypeError,
        "shift_hue expects a torch.Tensor, got list",
    ),
    (
        lambda: shift_hue(torch.zeros(3, 4, 4, dtype=torch.uint8), 0.1),
        TypeError,
        "shift_hue expects floating-point images in [0, 1], got torch.uint8; "
        "divide 8-bit images by 255 first",
    ),
    (
        lambda: shift_hue(torch.rand(2, 4, 8, 8), 0.1),
        ValueError,
        "shift_hue expects RGB images [..., 3, H, W], got [2, 4, 8, 8]",
    ),
    (
        lambda: shift_hue(torch.rand(8, 8, 3), 0.1),
        ValueError,
        "shift_hue expects RGB images [..., 3, H, W], got [8, 8, 3]",
    ),
    (
        lambda: shift_hue(IMAGES, torch.rand(3)),
        ValueError,
        "shift_hue expects one number of turns or one per image [2], got [3]",
    ),
    (
        lambda: rotate_hue(IMAGES, torch.rand(2, 1)),
        ValueError,
        "rotate_hue expects one number of turns or one per image [2], got [2, 1]",
    ),
    (
        lambda: rgb_to_hsv(torch.rand(3)),
        ValueError,
        "rgb_to_hsv expects RGB images [..., 3, H, W], got [3]",
    ),
    # Groups
    (lambda: HueGroup(0), ValueError, "HueGroup order must be at least 1, got 0"),
    (lambda: HueGroup(3.0), TypeError, "HueGroup order must be an int, got float: 3.0"),
    (lambda: cyclic_algorithm(0), ValueError, "n must be at least 1, got 0"),
    (lambda: dense_algorithm("3"), TypeError, "n must be an int, got str: '3'"),
    # Making layers
    (
        lambda: CELiftConv2d(1, 4, 3),
        ValueError,
        "CELiftConv2d lifts RGB images: in_channels is 3, got 1",
    ),
    (
        lambda: CELiftConv2d(3, 4, 3, lifting="lab"),
        ValueError,
        "lifting must be one of 'rgb', 'hsv'; got 'lab'",
    ),
    (
        lambda: CELiftConv2d(3, 4, 3, lifting="hsv", learnable=True),
        ValueError,
        "learnable=True needs lifting='rgb', got lifting='hsv'",
    ),
    (lambda: CEConv2d(0, 4, 3), ValueError, "in_channels must be at least 1, got 0"),
    (lambda: CEConv2d(4, 4.0, 3), TypeError, "out_channels must be an int, got float: 4.0"),
    (lambda: CEConv2d(4, 4, 0), ValueError, "kernel_size must be at least 1, got 0"),
    (
        lambda: CEConv2d(4, 4, (3, 3, 3)),
        TypeError,
        "kernel_size must be an int or a pair of ints, got (3, 3, 3)",
    ),
    (
        lambda: CEConv2d(4, 4, torch.rand(2, 3)),
        TypeError,
        "kernel_size must be an int or a pair of ints, got a tensor [2, 3]",
    ),
    (lambda: CEConv2d(4, 4, 3, stride=(1, 0)), ValueError, "stride must be at least 1, got (1, 0)"),
    (
        lambda: CEConv2d(4, 4, 3, padding=-1),
        ValueError,
        "padding (or 'same' or 'valid') must be at least 0, got -1",
    ),
    (
        lambda: CEConv2d(4, 4, 3, padding="full"),
        ValueError,
        "padding must be one of 'same', 'valid'; got 'full'",
    ),
    (
        lambda: CEConv2d(4, 4, 3, stride=2, padding="same"),
        ValueError,
        "padding='same' needs stride 1, got stride 2",
    ),
    (
        lambda: CEConv2d(4, 4, 3, dilation=True),
        TypeError,
        "dilation must be an int or a pair of ints, got True",
    ),
    (
        lambda: CEConv2d(5, 4, 3, groups=2),
        ValueError,
        "in_channels must be divisible by groups, got 5 and 2",
    ),
    (
        lambda: CEConv2d(4, 5, 3, groups=2),
        ValueError,
        "out_channels must be divisible by groups, got 5 and 2",
    ),
    (
        lambda: CEConv2d(4, 4, 3, padding_mode="mirror"),
        ValueError,
        "padding_mode must be one of 'zeros', 'reflect', 'replicate', 'circular'; got 'mirror'",
    ),
    (lambda: CEConv2d(4, 4, 3, rotations=0), ValueError, "rotations must be at least 1, got 0"),
    (
        lambda: CEConv2d(4, 4, 3, algorithm="fft"),
        ValueError,
        "algorithm must be one of 'auto', 'dense', 'cyclic'; got 'fft'",
    ),
    (
        lambda: CEConv2d(4, 4, 3, algorithm=["dense"]),
        ValueError,
        "algorithm must be one of 'auto', 'dense', 'cyclic'; got ['dense']",
    ),
    (lambda: CEDropout2d(1.5), ValueError, "CEDropout2d p must lie in [0, 1], got 1.5"),
    (
        lambda: CEMaxPool2d(2, return_indices=True),
        ValueError,
        "CEMaxPool2d does not return indices: return_indices must be False",
    ),
    # Calling layers
    (
        lambda: CELiftConv2d(3, 4, 3)(IMAGES[0]),
        ValueError,
        "CELiftConv2d(rotations=3) expects a batch of RGB images [B, 3, H, W], got [3, 8, 8]; "
        "add the batch dimension with images.unsqueeze(0)",
    ),
    (
        lambda: CELiftConv2d(3, 4, 3)(IMAGES.double()),
        TypeError,
        "CELiftConv2d(rotations=3) has torch.float32 weights but got torch.float64 input; "
        "convert one of them, or use torch.autocast",
    ),
    (
        lambda: CELiftConv2d(3, 4, 3)(IMAGES.numpy()),
        TypeError,
        "CELiftConv2d(rotations=3) expects a torch.Tensor, got ndarray",
    ),
    (
        lambda: CEConv2d(5, 4, 3)(torch.rand(2, 5, 4, 8, 8)),
        ValueError,
        "CEConv2d(rotations=3) got features with 4 rotations: [2, 5, 4, 8, 8]",
    ),
    (
        lambda: CEConv2d(4, 4, 3)(FEATURES),
        ValueError,
        "CEConv2d(rotations=3) expects 4 channels, got 5: [2, 5, 3, 8, 8]",
    ),
    (
        lambda: CEConv2d(5, 4, 3).half()(FEATURES),
        TypeError,
        "CEConv2d(rotations=3) has torch.float16 weights but got torch.float32 input; "
        "convert one of them, or use torch.autocast",
    ),
    (
        lambda: CEBatchNorm2d(4)(FEATURES),
        ValueError,
        "CEBatchNorm2d expects 4 channels, got 5: [2, 5, 3, 8, 8]",
    ),
    # Measuring
    (
        lambda: equivariance_error(nn.Identity(), IMAGES, rotations=0),
        ValueError,
        "rotations must be at least 1, got 0",
    ),
    (
        lambda: equivariance_error(nn.Identity(), IMAGES, action="lab"),
        ValueError,
        "action must be one of 'rgb', 'hsv'; got 'lab'",
    ),
    (
        lambda: equivariance_error(nn.Identity(), IMAGES, output="logits"),
        ValueError,
        "output must be one of 'auto', 'features', 'invariant'; got 'logits'",
    ),
    (
        lambda: equivariance_error(nn.Identity(), IMAGES, output="features"),
        ValueError,
        "expected features [B, C, 3, H, W] from the module, got [2, 3, 8, 8]; "
        "is rotations right? output='invariant' takes any shape",
    ),
    (
        # A wrong number of rotations must not pass for a measurement of invariance.
        lambda: equivariance_error(CELiftConv2d(3, 2, 3), IMAGES, rotations=4),
        ValueError,
        "expected features [B, C, 4, H, W] from the module, got [2, 2, 3, 6, 6]; "
        "is rotations right? output='invariant' takes any shape",
    ),
    (
        lambda: shift_hue(IMAGES, "red"),
        TypeError,
        "shift_hue expects a number of turns or a tensor, got 'red'",
    ),
    (
        lambda: equivariance_error(nn.Identity(), IMAGES[0]),
        ValueError,
        "equivariance_error expects a batch of RGB images [B, 3, H, W], got [3, 8, 8]; "
        "add the batch dimension with images.unsqueeze(0)",
    ),
]

# Where the wording is free, but both sides must be named.
NAMES_BOTH = {
    "hsv channels": (
        lambda: hsv_to_rgb(torch.rand(2, 4, 8, 8)),
        ValueError,
        r"HSV .*\[2, 4, 8, 8\]",
    ),
    "products of nothing": (lambda: cyclic_products(0), ValueError, "at least 1, got 0"),
    "orbit of nothing": (lambda: hue_orbit(IMAGES, 0, "hsv"), ValueError, "at least 1, got 0"),
    "orbit matrices": (
        lambda: hue_orbit(IMAGES, 5, matrices=torch.rand(3, 3, 3)),
        ValueError,
        r"\[5, 3, 3\].*\[3, 3, 3\]",
    ),
    "lift matrices": (
        lambda: ce_lift_conv2d(IMAGES, LIFT_FILTERS, rotations=6, matrices=torch.rand(3, 3, 3)),
        ValueError,
        r"\[6, 3, 3\].*\[3, 3, 3\]",
    ),
    "hsv takes no matrices": (
        lambda: hue_orbit(IMAGES, 3, "hsv", matrices=torch.rand(3, 3, 3)),
        ValueError,
        "matrices.*rgb.*hsv",
    ),
    "lift filters": (
        lambda: ce_lift_conv2d(IMAGES, torch.rand(4, 3, 3, 3, 3)),
        ValueError,
        r"\[O, 3, 1, kh, kw\].*\[4, 3, 3, 3, 3\]",
    ),
    "full filters, dense": (
        lambda: ce_conv2d(FEATURES, torch.rand(4, 5, 4, 3, 3), algorithm="dense"),
        ValueError,
        "3 rotations.*4",
    ),
    "full filters, cyclic": (
        lambda: ce_conv2d(FEATURES, torch.rand(4, 5, 4, 3, 3), algorithm="cyclic"),
        ValueError,
        "3 rotations.*4",
    ),
    "group part": (
        lambda: ce_conv2d(
            FEATURES, torch.rand(4, 5, 1, 3, 3), torch.rand(4, 5, 4, 1, 1), algorithm="dense"
        ),
        ValueError,
        "3 rotations.*4",
    ),
    "no group part": (
        lambda: ce_conv2d(FEATURES, torch.rand(4, 5, 1, 3, 3), algorithm="dense"),
        ValueError,
        "3 rotations.*1",
    ),
    "full filters and a group part": (
        lambda: ce_conv2d(FEATURES, FILTERS, torch.rand(4, 5, 3, 1, 1), algorithm="dense"),
        ValueError,
        r"pointwise_weight.*\[4, 5, 3, 3, 3\]",
    ),
    "filter channels": (lambda: ce_conv2d(FEATURES, FILTERS[:, :4]), ValueError, "4 channels.*5"),
    "bias": (
        lambda: ce_conv2d(FEATURES, FILTERS[:1], bias=torch.rand(4)),
        ValueError,
        r"bias \[1\], got \[4\]",
    ),
    "tables": (
        lambda: ce_conv2d(FEATURES, FILTERS, algorithm="cyclic", tables=cyclic_algorithm(4)),
        ValueError,
        "3 rotations.*4",
    ),
    "measured features": (
        lambda: equivariance_error(CEConv2d(5, 4, 3), torch.rand(2, 5, 4, 8, 8)),
        ValueError,
        r"3.*4 rotations: \[2, 5, 4, 8, 8\]",
    ),
    "measured list": (
        lambda: equivariance_error(nn.Identity(), [1, 2]),
        TypeError,
        "torch.Tensor, got list",
    ),
    "no action": (
        lambda: equivariance_error(nn.Identity(), IMAGES, action=None),
        TypeError,
        "action.*None",
    ),
    "tuple output": (
        lambda: equivariance_error(lambda x: (x, x), IMAGES),
        TypeError,
        "[Tt]ensor.*got tuple",
    ),
    "integer output": (
        lambda: equivariance_error(lambda x: x.mean((2, 3)).argmax(1), IMAGES),
        TypeError,
        "floating-point.*got torch.int64",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2][:60] for row in BAD])
def test_message(call, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize(("call", "error", "pattern"), NAMES_BOTH.values(), ids=list(NAMES_BOTH))
def test_message_names_both_sides(call, error, pattern):
    with pytest.raises(error, match=pattern):
        call()


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (CEConv2d(3, 4, 3), "CEConv2d(rotations=3)"),
        (CEBatchNorm2d(3), "CEBatchNorm2d"),
        (CEDropout2d(), "CEDropout2d"),
        (CEMaxPool2d(2), "CEMaxPool2d"),
        (CEAvgPool2d(2), "CEAvgPool2d"),
        (CEAdaptiveAvgPool2d(1), "CEAdaptiveAvgPool2d"),
        (CosetMaxPool(), "coset_max_pool"),
        (CosetAvgPool(), "coset_avg_pool"),
        (CosetFlatten(), "coset_flatten"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_layers_on_features_refuse_images(layer, name):
    message = f"{name} expects features [B, C, n, H, W], got [2, 3, 8, 8]{LIFT_HINT}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layer(IMAGES)
    with pytest.raises(TypeError, match=f"^{re.escape(name)} expects a torch.Tensor, got str$"):
        layer("image")


@pytest.mark.parametrize(
    "call",
    [
        lambda: CELiftConv2d(3, 4, 3, groups=3),
        lambda: CEConv2d(4, 4, 3, 1, 0, 1, 1, True, "zeros", 3),
        lambda: CEMaxPool2d(2, strides=2),
        lambda: CEBatchNorm2d(4, rotations=3),
        lambda: CosetMaxPool(2),
    ],
    ids=["groups of a lifting", "positional rotations", "typo", "no such option", "no arguments"],
)
def test_unknown_arguments_are_refused(call):
    with pytest.raises(TypeError):
        call()
