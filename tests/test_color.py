import colorsys
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equicolor.color import hsv_to_rgb, rgb_to_hsv, rotate_hue, shift_hue, shift_hue_orbit

SPECIAL = {
    "black": (0, 0, 0),
    "white": (1, 1, 1),
    "grey": (0.5, 0.5, 0.5),
    "red": (1, 0, 0),
    "yellow": (1, 1, 0),
    "green": (0, 1, 0),
    "cyan": (0, 1, 1),
    "blue": (0, 0, 1),
    "magenta": (1, 0, 1),
    "dark red": (0.25, 0, 0),
    "pink": (1, 0.5, 0.5),
    "almost grey": (0.5, 0.5, 0.5 + 1e-6),
    "almost black": (1e-6, 0, 0),
}
SHIFTS = [k / 24 for k in range(-12, 13)] + [0.1, -0.37, 0.499]

turns = st.floats(-2, 2, allow_nan=False)
pixels = st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3)


def as_image(color, dtype=torch.float64):
    return torch.tensor(color, dtype=dtype).view(1, 3, 1, 1)


@pytest.fixture(scope="module")
def special_image():
    return torch.tensor(list(SPECIAL.values()), dtype=torch.float64).T.reshape(1, 3, 1, -1)


class TestHsv:
    @pytest.mark.parametrize("color", SPECIAL.values(), ids=SPECIAL.keys())
    def test_special_colors_match_colorsys(self, color):
        hsv = rgb_to_hsv(as_image(color)).flatten().tolist()
        assert hsv == pytest.approx(colorsys.rgb_to_hsv(*color), abs=1e-15)

    @given(pixels)
    def test_conversion_matches_colorsys(self, color):
        hsv = rgb_to_hsv(as_image(color)).flatten().tolist()
        expected = colorsys.rgb_to_hsv(*color)
        # Hue 1 is hue 0: compare on the circle.
        assert abs((hsv[0] - expected[0] + 0.5) % 1 - 0.5) < 1e-12
        assert hsv[1:] == pytest.approx(expected[1:], abs=1e-12)

    @given(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)))
    def test_inverse_matches_colorsys(self, color):
        rgb = hsv_to_rgb(as_image(color)).flatten().tolist()
        assert rgb == pytest.approx(colorsys.hsv_to_rgb(*color), abs=1e-12)

    def test_round_trip(self, special_image):
        images = torch.rand(4, 3, 9, 7, dtype=torch.float64)
        assert (hsv_to_rgb(rgb_to_hsv(images)) - images).abs().max() < 1e-14
        assert (hsv_to_rgb(rgb_to_hsv(special_image)) - special_image).abs().max() < 1e-14

    def test_any_real_hue_is_taken_around_the_circle(self):
        hsv = torch.rand(2, 3, 4, 4, dtype=torch.float64)
        around = hsv + torch.tensor([3.0, 0, 0], dtype=torch.float64).view(3, 1, 1)
        assert (hsv_to_rgb(around) - hsv_to_rgb(hsv)).abs().max() < 1e-13

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_hue_lies_below_one(self, dtype):
        # A hair below red: the hue rounds up to a full turn unless that is caught.
        step = torch.finfo(dtype).eps
        hue = rgb_to_hsv(as_image((1, 0.5, 0.5 + step / 2), dtype))[:, 0]
        assert (hue < 1).all()

    @pytest.mark.parametrize("color", SPECIAL.values(), ids=SPECIAL.keys())
    @pytest.mark.parametrize("convert", [rgb_to_hsv, hsv_to_rgb])
    def test_gradients_are_finite(self, convert, color):
        image = as_image(color).requires_grad_()
        convert(image).sum().backward()
        assert image.grad.isfinite().all()

    def test_gradcheck(self, smooth_images):
        images = smooth_images(1, 2, 2).requires_grad_()
        assert torch.autograd.gradcheck(rgb_to_hsv, images)
        assert torch.autograd.gradcheck(hsv_to_rgb, rgb_to_hsv(images).detach().requires_grad_())


class TestShiftHue:
    @pytest.mark.parametrize("shift", SHIFTS)
    def test_matches_kornia(self, shift, special_image):
        enhance = pytest.importorskip("kornia.enhance")
        for images in (torch.rand(2, 3, 8, 8), special_image.float()):
            expected = enhance.adjust_hue(images, 2 * torch.pi * shift)
            assert (shift_hue(images, shift) - expected).abs().max() < 1e-5

    @pytest.mark.parametrize("shift", SHIFTS)
    def test_matches_colorsys(self, shift, special_image, slow_shift):
        for images in (torch.rand(2, 3, 4, 5, dtype=torch.float64), special_image):
            assert (shift_hue(images, shift) - slow_shift(images, shift)).abs().max() < 1e-13

    @given(pixels, turns, turns)
    def test_shifts_compose(self, color, a, b):
        image = as_image(color)
        twice, once = shift_hue(shift_hue(image, a), b), shift_hue(image, a + b)
        assert (twice - once).abs().max() < 1e-13

    @given(pixels, turns, st.integers(-3, 3))
    def test_whole_turns_change_nothing(self, color, a, whole):
        image = as_image(color)
        assert (shift_hue(image, a + whole) - shift_hue(image, a)).abs().max() < 1e-13

    @pytest.mark.parametrize("whole", [10**8, -(10**12)])
    @pytest.mark.parametrize("action", [shift_hue, rotate_hue])
    def test_many_whole_turns_change_nothing(self, action, whole):
        images, part = torch.rand(2, 3, 4, 4), torch.tensor([0.25, 0.625], dtype=torch.float64)
        for turns, expected in ((whole + part, part), (whole + 0.25, 0.25), (whole, 0)):
            assert (action(images, turns) - action(images, expected)).abs().max() < 1e-5

    @pytest.mark.parametrize("action", [shift_hue, rotate_hue])
    def test_any_whole_number_of_turns_but_finite_ones(self, action):
        images = torch.rand(2, 3, 4, 4)
        assert torch.equal(action(images, 10**400), action(images, 0))
        for turns in (math.inf, -math.inf, math.nan):
            with pytest.raises(ValueError, match=f"a finite number of turns, got {turns}"):
                action(images, turns)

    @given(pixels, turns, st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    def test_stays_in_the_cube(self, color, a, dtype):
        shifted = shift_hue(as_image(color, dtype), a)
        assert shifted.dtype == dtype
        assert shifted.min() >= 0
        assert shifted.max() <= 1

    def test_red_goes_around_the_primaries(self):
        names = ["red", "yellow", "green", "cyan", "blue", "magenta"]
        for k, name in enumerate(names):
            shifted = shift_hue(as_image(SPECIAL["red"]), k / 6)
            assert (shifted - as_image(SPECIAL[name])).abs().max() < 1e-15

    def test_zero_shift_is_the_identity(self):
        images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
        assert (shift_hue(images, 0) - images).abs().max() < 1e-15

    @pytest.mark.parametrize("leading", [(), (4,), (2, 3)])
    @pytest.mark.parametrize("action", [shift_hue, rotate_hue])
    def test_one_shift_per_image_equals_a_loop(self, action, leading):
        images = torch.rand(*leading, 3, 5, 6, dtype=torch.float64)
        shifts = torch.rand(leading, dtype=torch.float64)
        flat = images.reshape(-1, 3, 5, 6), shifts.flatten().tolist()
        expected = torch.stack([action(x, t) for x, t in zip(*flat, strict=True)])
        assert torch.equal(action(images, shifts), expected.view_as(images))

    @given(turns, st.floats(-1, 1), st.floats(0.1, 2))
    def test_commutes_with_scalar_normalisation(self, a, mean, std):
        images = torch.rand(1, 3, 4, 4, dtype=torch.float64)
        before, after = shift_hue((images - mean) / std, a), (shift_hue(images, a) - mean) / std
        assert (before - after).abs().max() < 1e-12

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_rounds_only_the_result(self, dtype):
        images = torch.rand(2, 3, 16, 16).to(dtype)
        shifted = shift_hue(images, 0.3)
        error = (shifted.double() - shift_hue(images.double(), 0.3)).abs().max()
        assert shifted.dtype == dtype
        # Half an ulp of the result, and a few of the float32 or float64 arithmetic inside.
        assert error < torch.finfo(dtype).eps / 2 + (2e-6 if dtype != torch.float64 else 1e-14)

    @pytest.mark.parametrize("action", [shift_hue, rotate_hue])
    def test_autocast_does_not_round_colors(self, action):
        images = torch.rand(2, 3, 8, 8)
        expected = action(images, 0.3)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(action(images, 0.3), expected)

    @pytest.mark.parametrize("color", SPECIAL.values(), ids=SPECIAL.keys())
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_gradients_are_finite(self, color, dtype):
        image = as_image(color, dtype).requires_grad_()
        shift = torch.tensor([0.1], dtype=dtype, requires_grad=True)
        shift_hue(image, shift).sum().backward()
        assert image.grad.isfinite().all()
        assert shift.grad.isfinite().all()

    def test_gradients_are_finite_below_the_normal_numbers(self):
        # 1 / chroma overflows for subnormal chroma.
        image = as_image((1e-40, 0, 0), torch.float32).requires_grad_()
        shift_hue(image, 0.1).sum().backward()
        assert image.grad.isfinite().all()

    def test_gradcheck_in_both_arguments(self, smooth_images):
        images = smooth_images(2, 2, 2).requires_grad_()
        shifts = torch.tensor([0.25, -0.5], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(shift_hue, (images, shifts))

    @pytest.mark.parametrize("n", [1, 2, 3, 5, 12])
    def test_orbit_is_all_inverse_shifts(self, n):
        images = torch.rand(2, 3, 4, 4, dtype=torch.float64)
        expected = torch.stack([shift_hue(images, -k / n) for k in range(n)])
        assert (shift_hue_orbit(images, n) - expected).abs().max() < 1e-14

    @pytest.mark.parametrize("n", [1, 3, 6, 12])
    def test_thirds_of_an_orbit_move_channels(self, n):
        images = torch.rand(2, 3, 4, 5)
        orbit = shift_hue_orbit(images, n)
        assert torch.equal(orbit[0], images)
        for k in range(n - n // 3 if n % 3 == 0 else 0):
            assert torch.equal(orbit[k + n // 3], orbit[k].roll(-1, 1))

    def test_takes_any_strides(self):
        images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
        expected = shift_hue(images, 0.2)
        assert torch.equal(shift_hue(images.to(memory_format=torch.channels_last), 0.2), expected)
        assert torch.equal(shift_hue(images.mT, 0.2), expected.mT)

    def test_leaves_its_input_alone(self):
        images = torch.rand(2, 3, 4, 4)
        kept = images.clone()
        shift_hue(images, 0.2)
        rotate_hue(images, 0.2, clip=True)
        assert torch.equal(images, kept)

    @pytest.mark.slow
    def test_compiles_without_graph_breaks(self):
        torch._dynamo.reset()
        images, shifts = torch.rand(2, 3, 8, 8), torch.rand(2)

        def shifted(images, shifts):
            each = (images, 0.1), (images, shifts), (images.bfloat16(), 0.1)
            return [shift_hue(*arguments) for arguments in each]

        # Inductor is tried in nn/test_compile.py, before a network.
        compiled = torch.compile(shifted, fullgraph=True, backend="aot_eager")
        for actual, expected in zip(compiled(images, shifts), shifted(images, shifts), strict=True):
            assert torch.equal(actual, expected)


class TestRotateHue:
    @given(turns, turns)
    def test_rotations_compose(self, a, b):
        images = torch.rand(1, 3, 3, 3, dtype=torch.float64)
        twice, once = rotate_hue(rotate_hue(images, a), b), rotate_hue(images, a + b)
        assert (twice - once).abs().max() < 1e-14

    def test_a_third_of_a_turn_rolls_the_channels(self):
        images = torch.rand(2, 3, 4, 4, dtype=torch.float64)
        for k in range(-3, 4):
            assert (rotate_hue(images, k / 3) - images.roll(k, 1)).abs().max() < 1e-15

    @given(turns)
    def test_keeps_greys_and_distances_from_grey(self, a):
        images = torch.rand(1, 3, 3, 3, dtype=torch.float64)
        rotated = rotate_hue(images, a)
        assert (rotated.mean(1) - images.mean(1)).abs().max() < 1e-14
        assert (rotated.norm(dim=1) - images.norm(dim=1)).abs().max() < 1e-14

    def test_clip_reprojects_into_the_cube(self):
        images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
        free, clipped = rotate_hue(images, 0.5), rotate_hue(images, 0.5, clip=True)
        assert free.min() < 0 < 1 < free.max()
        assert torch.equal(clipped, free.clamp(0, 1))

    def test_gradcheck_in_both_arguments(self):
        images = torch.rand(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
        shifts = torch.rand(2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(rotate_hue, (images, shifts))

    def test_is_the_hsv_shift_at_thirds_and_nowhere_else(self):
        images = torch.rand(4, 3, 32, 32, dtype=torch.float64)
        for k in range(12):
            difference = (rotate_hue(images, k / 12) - shift_hue(images, k / 12)).abs().mean()
            assert difference < 1e-15 if k % 4 == 0 else difference > 0.03
        # The mean difference at 60 degrees on uniform colours that the documentation quotes.
        assert (rotate_hue(images, 1 / 6) - shift_hue(images, 1 / 6)).abs().mean() == pytest.approx(
            0.084, abs=0.003
        )

    @pytest.mark.slow
    def test_compiles_without_graph_breaks(self):
        torch._dynamo.reset()
        images, shifts = torch.rand(2, 3, 8, 8), torch.rand(2)
        compiled = torch.compile(rotate_hue, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(images, shifts, True), rotate_hue(images, shifts, True))
