import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from equicolor.light import (
    balance_light,
    cast_light,
    change_brightness,
    change_gamma,
    change_saturation,
    linear_to_srgb,
    scale_channels,
    srgb_to_linear,
)

# What takes a number: the function, and two values of the number.
NUMBERED = {
    "cast": (partial(cast_light, strength=0.3), (0.1, 0.7)),
    "strength": (lambda images, strength: cast_light(images, 0.2, strength), (0.2, 1.0)),
    "brightness": (change_brightness, (-1.3, 0.4)),
    "gamma": (change_gamma, (0.6, 1.7)),
    "saturation": (change_saturation, (0.3, 1.4)),
}
# Everything as a function of images alone.
WHOLE = {
    "linear": srgb_to_linear,
    "srgb": linear_to_srgb,
    "gains": lambda images: scale_channels(images, (1.3, 0.8, 0.9)),
    "gains, clipped": lambda images: scale_channels(images, (1.3, 0.8, 0.9), clip=True),
    "cast": lambda images: cast_light(images, 0.1, 0.3, clip=True),
    "brightness": lambda images: change_brightness(images, 0.7, clip=True),
    "gamma": lambda images: change_gamma(images, 0.6),
    "saturation": lambda images: change_saturation(images, 1.4, clip=True),
    "grey world": balance_light,
    "shades of grey": lambda images: balance_light(images, power=6),
}
functions = pytest.mark.parametrize("function", WHOLE.values(), ids=WHOLE.keys())
numbered = pytest.mark.parametrize(("function", "values"), NUMBERED.values(), ids=NUMBERED.keys())
powers = pytest.mark.parametrize("power", [1, 2.5, 6, 50])


def slow_linear(value: float) -> float:
    """The inverse curve as the standard writes it."""
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def slow_srgb(light: float) -> float:
    return 12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055


def pixelwise(function, images):
    """A function of one pixel's three numbers, applied to every pixel."""
    pixels = [function(*pixel) for pixel in images.movedim(-3, -1).reshape(-1, 3).tolist()]
    shape = *images.shape[:-3], *images.shape[-2:], 3
    return torch.tensor(pixels, dtype=images.dtype).view(shape).movedim(-1, -3)


def in_linear_light(*gains):
    return lambda *pixel: [
        slow_srgb(gain * slow_linear(value)) for gain, value in zip(gains, pixel, strict=True)
    ]


@pytest.fixture
def images():
    return torch.rand(2, 3, 5, 7, dtype=torch.float64)


class TestCurve:
    @given(st.floats(0, 1))
    def test_is_the_standards(self, value):
        image = torch.full((3, 1, 1), value, dtype=torch.float64)
        # Between the standard's joint and the exact one, the pieces differ by this.
        assert srgb_to_linear(image).max().item() == pytest.approx(slow_linear(value), abs=2e-8)
        assert linear_to_srgb(image).max().item() == pytest.approx(slow_srgb(value), abs=2e-8)

    def test_8_bit_values_are_exactly_the_standards(self):
        values = torch.arange(256, dtype=torch.float64) / 255
        linear = srgb_to_linear(values.expand(3, 1, 256))[0, 0]
        expected = torch.tensor([slow_linear(value) for value in values.tolist()]).double()
        assert (linear - expected).abs().max() < 1e-7  # torch.tensor rounds to float32
        assert linear[0] == 0
        assert linear[255] == 1

    @given(st.floats(-0.5, 2))
    def test_round_trips_are_exact_also_at_the_joint_and_outside(self, value):
        joint = 0.04044823627710717
        near = [joint + step * 2.0**-55 for step in range(-3, 4)]
        image = torch.tensor([value, *near, 0.04045], dtype=torch.float64).expand(3, 1, -1)
        assert (linear_to_srgb(srgb_to_linear(image)) - image).abs().max() < 1e-15
        assert (srgb_to_linear(linear_to_srgb(image)) - image).abs().max() < 2e-15

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_black_and_white_stay_exactly(self, dtype):
        image = torch.tensor([0, 1], dtype=dtype).expand(3, 1, 2)
        assert torch.equal(srgb_to_linear(image), image)
        assert torch.equal(linear_to_srgb(image), image)


class TestValues:
    def test_gains_multiply_linear_light(self, images):
        scaled = scale_channels(images, (1.5, 0.25, 1.0))
        assert (scaled - pixelwise(in_linear_light(1.5, 0.25, 1.0), images)).abs().max() < 1e-7
        assert scaled.max() > 1
        assert torch.equal(scale_channels(images, (1.5, 0.25, 1), clip=True), scaled.clamp(0, 1))

    def test_gains_compose_and_invert(self, images):
        gains = torch.rand(2, 3, dtype=torch.float64) + 0.1
        there = scale_channels(images, gains)
        assert (scale_channels(there, 1 / gains) - images).abs().max() < 1e-14
        twice = scale_channels(there, (0.5, 1.5, 2.0))
        once = scale_channels(images, gains * torch.tensor([0.5, 1.5, 2.0]))
        assert (twice - once).abs().max() < 1e-14

    @pytest.mark.parametrize("turns", [0.0, 1 / 3, -0.4, 5.25])
    def test_a_cast_is_a_light_of_mean_gain_one(self, images, turns):
        gains = [1 + 0.3 * math.cos(2 * math.pi * (turns - channel / 3)) for channel in range(3)]
        assert sum(gains) == pytest.approx(3)
        cast = cast_light(images, turns, 0.3)
        assert (cast - scale_channels(images, gains)).abs().max() < 1e-14
        assert torch.equal(cast_light(images, turns, 0.3, clip=True), cast.clamp(0, 1))

    def test_a_cast_pulls_grey_towards_its_hue(self):
        gray = torch.full((3, 1, 1), 0.5)
        for channel in range(3):
            assert cast_light(gray, channel / 3, 0.3).argmax(0).item() == channel

    @pytest.mark.parametrize("stops", [-2, -0.5, 1.5])
    def test_a_stop_is_twice_the_light(self, images, stops):
        changed = change_brightness(images, stops)
        expected = pixelwise(in_linear_light(*[2**stops] * 3), images)
        assert (changed - expected).abs().max() < 1e-7
        clipped = change_brightness(images, stops, clip=True)
        assert torch.equal(clipped, changed.clamp(0, 1))

    @pytest.mark.parametrize("gamma", [0.4, 1, 2.2])
    def test_gamma_is_a_power(self, images, gamma):
        expected = pixelwise(lambda *pixel: [value**gamma for value in pixel], images)
        assert (change_gamma(images, gamma) - expected).abs().max() < 1e-15
        assert change_gamma(-images, gamma).abs().max() == 0

    @pytest.mark.parametrize("factor", [0, 0.5, 1, 1.7])
    def test_saturation_is_pillows(self, factor):
        picture = torch.randint(256, (9, 8, 3), dtype=torch.uint8)
        edited = ImageEnhance.Color(Image.fromarray(picture.numpy())).enhance(factor)
        expected = torch.tensor(list(edited.tobytes())).view(9, 8, 3).movedim(-1, 0)
        changed = change_saturation(picture.movedim(-1, 0).double() / 255, factor, clip=True)
        # Pillow rounds the grey, up to half a level times |1 - factor|, and cuts off the result.
        assert (255 * changed - expected).abs().max() <= 1 + 0.5 * abs(1 - factor) + 1e-6

    def test_saturation_zero_is_grey_and_may_leave_the_cube(self, images):
        gray = change_saturation(images, 0)
        assert (gray - gray[:, :1]).abs().max() == 0
        strong = change_saturation(images, 2)
        assert strong.min() < 0 < 1 < strong.max()
        assert torch.equal(change_saturation(images, 2, clip=True), strong.clamp(0, 1))

    def test_what_changes_nothing(self, images):
        for unchanged in (
            scale_channels(images, (1, 1, 1)),
            cast_light(images, 0.3, 0),
            change_brightness(images, 0),
            change_gamma(images, 1),
            change_saturation(images, 1),
        ):
            assert (unchanged - images).abs().max() < 1e-15

    @powers
    def test_balance_by_its_definition(self, images, power):
        expected = []
        for image in images:
            channels = []
            for channel in image:
                light = [slow_linear(value) for value in channel.flatten().tolist()]
                norm = (sum(value**power for value in light) / len(light)) ** (1 / power)
                channels.append([value / norm for value in light])
            largest = max(map(max, channels))
            expected.append([[slow_srgb(v / largest) for v in channel] for channel in channels])
        expected = torch.tensor(expected, dtype=torch.float64).view_as(images)
        assert (balance_light(images, power) - expected).abs().max() < 1e-7


class TestBalance:
    @powers
    @given(st.lists(st.floats(1e-6, 1), min_size=3, max_size=3))
    def test_gains_that_do_not_clip_change_nothing(self, power, gains):
        images = torch.rand(2, 3, 6, 5, dtype=torch.float64)
        balanced = balance_light(images, power)
        scaled = scale_channels(images, gains)
        assert scaled.max() <= 1
        assert (balance_light(scaled, power) - balanced).abs().max() <= 1e-12

    @powers
    @pytest.mark.parametrize("factor", [1e-9, 0.01, 0.5, 1.9])
    def test_a_common_factor_changes_nothing(self, power, factor):
        images = 0.7 * torch.rand(2, 3, 6, 5, dtype=torch.float64)
        scaled = scale_channels(images, [factor] * 3)
        assert (scaled - images).abs().max() > 0.1
        assert (balance_light(scaled, power) - balance_light(images, power)).abs().max() <= 1e-12

    @powers
    def test_channels_get_equal_norms_and_the_largest_value_is_one(self, power):
        images = torch.rand(4, 3, 6, 5, dtype=torch.float64) * torch.rand(4, 3, 1, 1)
        balanced = balance_light(images, power)
        norms = srgb_to_linear(balanced).pow(power).mean((2, 3)).pow(1 / power)
        assert (norms / norms[:, :1] - 1).abs().max() < 1e-12
        assert balanced.min() >= 0
        assert balanced.amax((1, 2, 3)).tolist() == [1] * 4

    @powers
    def test_twice_is_once(self, images, power):
        once = balance_light(images, power)
        assert (balance_light(once, power) - once).abs().max() < 1e-14

    def test_a_cast_that_clips_is_removed_for_the_most_part(self, images):
        cast = cast_light(images, 0.1, 0.3, clip=True)
        balanced = balance_light(images)
        left, whole = (balance_light(cast) - balanced).abs().mean(), (cast - images).abs().mean()
        assert 0 < left < whole / 2

    @powers
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize(
        "color",
        [
            *[(0, 0, 0), (1, 1, 1), (0.5, 0.5, 0.5), (1, 0, 0), (0, 0.2, 0.7)],
            *[(1e-6, 0, 0), (1e-30, 1e-12, 0.3), (1e-37, 1e-37, 1e-37), (1e-40, 0, 0)],
        ],
    )
    def test_one_colour_gives_finite_values_and_gradients(self, color, dtype, power):
        image = torch.tensor(color, dtype=dtype).view(3, 1, 1).repeat(1, 4, 4).requires_grad_()
        balanced = balance_light(image, power)
        balanced.square().sum().backward()
        assert balanced.isfinite().all()
        assert 0 <= balanced.min() <= balanced.max() <= 1
        assert image.grad.isfinite().all()

    def test_black_stays_black_and_one_colour_becomes_white(self):
        assert balance_light(torch.zeros(3, 4, 4)).abs().max() == 0
        colour = torch.tensor([0.2, 0.5, 0.7]).view(3, 1, 1).repeat(1, 4, 4)
        assert (balance_light(colour) - 1).abs().max() < 1e-6

    @powers
    def test_a_few_bright_pixels_in_black_have_finite_gradients(self, power):
        image = torch.zeros(3, 4, 4)
        image[0, 0, 0], image[1, 1, 1] = 1, 1e-3
        image.requires_grad_()
        balance_light(image, power).sum().backward()
        assert image.grad.isfinite().all()


class TestGradients:
    @functions
    def test_gradcheck_in_the_images(self, function):
        images = 0.2 + 0.5 * torch.rand(2, 3, 2, 3, dtype=torch.float64)
        assert torch.autograd.gradcheck(function, images.requires_grad_())

    @numbered
    def test_gradcheck_in_the_number(self, function, values):
        images = 0.2 + 0.5 * torch.rand(2, 3, 2, 2, dtype=torch.float64)
        number = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, (images.requires_grad_(), number))

    def test_gradcheck_in_the_gains(self):
        images = 0.2 + 0.5 * torch.rand(2, 3, 2, 2, dtype=torch.float64)
        gains = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(scale_channels, (images.requires_grad_(), gains))

    @functions
    def test_gradients_are_finite_at_black_and_white(self, function):
        image = torch.tensor([0.0, 1e-40, 1.0, 0.5]).expand(3, 1, 4).clone().requires_grad_()
        function(image).sum().backward()
        assert image.grad.isfinite().all()


class TestShapesAndStates:
    @functions
    @pytest.mark.parametrize("leading", [(), (4,), (2, 3), (0,)])
    def test_images_are_treated_one_by_one(self, function, leading):
        images = torch.rand(*leading, 3, 5, 6, dtype=torch.float64)
        result = function(images)
        assert result.shape == images.shape
        for one, expected in zip(images.view(-1, 3, 5, 6), result.view(-1, 3, 5, 6), strict=True):
            assert (function(one) - expected).abs().max() < 1e-15

    @numbered
    def test_one_number_per_image_equals_a_loop(self, function, values):
        images = torch.rand(2, 3, 5, 6, dtype=torch.float64)
        result = function(images, torch.tensor(values, dtype=torch.float64))
        for image, value, changed in zip(images, values, result, strict=True):
            assert (function(image, value) - changed).abs().max() < 1e-15

    def test_gains_for_all_or_for_each_image(self):
        images, gains = torch.rand(2, 4, 3, 5, 6), torch.rand(2, 4, 3)
        each, one = scale_channels(images, gains), scale_channels(images, gains[0, 0])
        torch.testing.assert_close(each[1, 2], scale_channels(images[1, 2], gains[1, 2]))
        torch.testing.assert_close(one[0, 0], each[0, 0])
        assert (one[1, 2] - each[1, 2]).abs().max() > 0.01

    @functions
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_rounds_only_the_result(self, function, dtype):
        images = torch.rand(2, 3, 16, 16).to(dtype)
        result = function(images)
        assert result.dtype == dtype
        error = (result.double() - function(images.double())).abs().max()
        assert error < torch.finfo(dtype).eps + (1e-5 if dtype != torch.float64 else 0)

    @functions
    def test_autocast_does_not_round(self, function):
        images = torch.rand(2, 3, 8, 8)
        expected = function(images)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(function(images), expected)

    @functions
    def test_takes_any_strides_and_leaves_its_input_alone(self, function):
        images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
        kept = images.clone()
        expected = function(images)
        assert torch.equal(images, kept)
        strided = images.contiguous(memory_format=torch.channels_last)
        assert (function(strided) - expected).abs().max() < 1e-14
        assert (function(images.mT) - expected.mT).abs().max() < 1e-14

    @pytest.mark.slow
    def test_compiles_without_graph_breaks(self):
        torch._dynamo.reset()
        images = torch.rand(2, 3, 8, 8)

        def every(images):
            return {name: function(images) for name, function in WHOLE.items()}

        actual = torch.compile(every, fullgraph=True, backend="aot_eager")(images)
        for name, expected in every(images).items():
            assert (actual[name] - expected).abs().max() < 1e-6, name


IMAGES = torch.rand(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: srgb_to_linear([0.5]), TypeError, "srgb_to_linear expects a torch.Tensor, got li"),
        (lambda: linear_to_srgb(IMAGES[:, 0]), ValueError, "linear_to_srgb expects RGB images"),
        (lambda: balance_light(IMAGES.byte()), TypeError, "divide 8-bit images by 255"),
        (lambda: balance_light(IMAGES, 0.5), ValueError, "power of at least 1, got 0.5"),
        (lambda: balance_light(IMAGES, math.nan), ValueError, "power of at least 1, got nan"),
        (lambda: balance_light(IMAGES, math.inf), ValueError, "a finite power .* got inf"),
        (lambda: balance_light(IMAGES, "1"), TypeError, "power as a number, got '1'"),
        (
            lambda: scale_channels(IMAGES, 2.0),
            ValueError,
            r"triple .* per image \[2, 3\], got \[\]",
        ),
        (
            lambda: scale_channels(IMAGES, (1, 1)),
            ValueError,
            r"one triple of gains or .* got \[2\]",
        ),
        (lambda: scale_channels(IMAGES, (1, 1, "1")), TypeError, "a triple of gains or a tensor"),
        (lambda: scale_channels(IMAGES, (1, 1, True)), TypeError, "a triple of gains or a tensor"),
        (lambda: scale_channels(IMAGES, (1, -1, 1)), ValueError, "gains of at least 0, got .1, -1"),
        (lambda: scale_channels(IMAGES, (1, 1, math.inf)), ValueError, "a finite triple of gains"),
        (lambda: scale_channels(IMAGES, torch.ones(3, 3)), ValueError, r"\[2, 3\], got \[3, 3\]"),
        (lambda: cast_light(IMAGES, 0, 1.1), ValueError, "a strength from 0 to 1, got 1.1"),
        (lambda: cast_light(IMAGES, 0, -0.1), ValueError, "a strength from 0 to 1, got -0.1"),
        (lambda: cast_light(IMAGES, math.nan, 0), ValueError, "a finite number of turns, got nan"),
        (lambda: cast_light(IMAGES, torch.rand(3), 0), ValueError, r"per image \[2\], got \[3\]"),
        (lambda: change_gamma(IMAGES, 0), ValueError, "a gamma above 0, got 0"),
        (lambda: change_gamma(IMAGES, None), TypeError, "a gamma or a tensor, got None"),
        (lambda: change_saturation(IMAGES, -1), ValueError, "a factor of at least 0, got -1"),
        (lambda: change_brightness(IMAGES, math.inf), ValueError, "a finite number of stops"),
    ],
)
def test_errors_name_what_was_expected_and_what_came(call, error, message):
    with pytest.raises(error, match=message):
        call()
