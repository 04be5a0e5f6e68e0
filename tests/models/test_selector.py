"""Selectors: scores that turn with the hue, and the angle of their maximum."""

import math

import pytest
import torch

from equicolor.color import shift_hue
from equicolor.models import load_model, save_model
from equicolor.models.selector import HueSelector, find_modes, hue_selector, subsample
from equicolor.nn import fold


def gaussian_scores(offsets, n, spread=0.5):
    """Logarithms of a Gaussian around every offset in steps, [B, n]."""
    away = torch.arange(n) - offsets[:, None]
    away = torch.remainder(away + n / 2, n) - n / 2
    return -0.5 * (away / spread).square()


@pytest.mark.parametrize("n", [3, 4, 7, 12, 24])
def test_scores_roll_with_the_hue_of_the_image(n, smooth_images, settle):
    images = smooth_images(2, 40, 56)
    selector = settle(HueSelector(n, 32, 4).double(), images)
    with torch.no_grad():
        scores = selector(images)
        assert scores.std(1).min() > 1e-3
        for k in range(n):
            torch.testing.assert_close(
                selector(shift_hue(images, k / n)), scores.roll(k, 1), rtol=1e-9, atol=1e-12
            )


def test_every_pixel_of_a_subsampled_image_is_one_of_the_image():
    image = torch.arange(3 * 10 * 15.0).view(1, 3, 10, 15)
    small = subsample(image, 5)
    assert small.shape == (1, 3, 5, 5)
    assert torch.equal(small[0, 0], image[0, 0, ::2, ::3])


@pytest.mark.parametrize("offset", [0.0, 0.3, 3.5, 5.9, -4.75])
def test_the_angle_of_a_gaussian_is_exact(offset):
    scores = gaussian_scores(torch.tensor([offset], dtype=torch.float64), 12)
    angles, probabilities = find_modes(scores)
    assert (12 * float(angles) - offset) % 12 == pytest.approx(0, abs=1e-9) or (
        (12 * float(angles) - offset) % 12 == pytest.approx(12, abs=1e-9)
    )
    assert -0.5 <= float(angles) <= 0.5
    assert float(probabilities) > 0.97


def test_the_angle_is_continuous_where_the_best_score_changes():
    steps = torch.linspace(0, 12, 1201, dtype=torch.float64)
    random = torch.rand(1, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = gaussian_scores(steps, 12) + 0.3 * random
    angles = find_modes(scores)[0][:, 0]
    jumps = torch.remainder(angles.diff() + 0.5, 1) - 0.5
    assert jumps.abs().max() < 0.03


def test_a_second_mode_is_found_apart_from_the_first():
    offsets = torch.tensor([2.25]), torch.tensor([8.5])
    first, second = (gaussian_scores(each, 12).exp() for each in offsets)
    angles, probabilities = find_modes((0.7 * first + 0.3 * second).log(), 2)
    turns = torch.remainder(12 * angles, 12)[0].tolist()
    assert turns == pytest.approx([2.25, 8.5], abs=1e-3)
    assert probabilities[0].tolist() == pytest.approx([0.7, 0.3], abs=0.05)


def test_modes_are_never_closer_than_two_places():
    scores = torch.randn(200, 12, generator=torch.Generator().manual_seed(1))
    angles, _ = find_modes(scores, 4)
    places = torch.remainder((12 * angles).round(), 12)
    for i in range(4):
        for j in range(i):
            apart = torch.remainder(places[:, i] - places[:, j] + 6, 12) - 6
            assert (apart.abs() >= 1).all()


def test_equal_scores_give_a_finite_angle():
    angles, probabilities = find_modes(torch.zeros(2, 12))
    assert angles.isfinite().all()
    assert probabilities.flatten().tolist() == pytest.approx([0.25, 0.25])


@pytest.mark.parametrize(("places", "expected"), [([3], 3), ([3, 4], 3.5), ([2, 8], 2)])
def test_hues_that_cannot_be(places, expected):
    """Such as the logarithms of probabilities that are 0."""
    scores = torch.full((1, 12), -torch.inf)
    scores[0, places] = 0.0
    angles, probabilities = find_modes(scores, 2)
    assert 12 * float(angles[0, 0]) == pytest.approx(expected, abs=1e-4)
    assert angles.isfinite().all()
    assert probabilities.isfinite().all()


def test_gradients_reach_the_scores_and_are_right():
    scores = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.autograd.gradcheck(lambda x: find_modes(x, 2), scores.requires_grad_())


@pytest.mark.parametrize("make", [hue_selector, HueSelector])
def test_a_selector_is_saved_loaded_and_folded(make, tmp_path, smooth_images, settle):
    images = smooth_images(2, 48, 48).float()
    selector = settle(make(rotations=6, size=32, width=4), images)
    loaded = load_model(save_model(selector, tmp_path / "selector.safetensors"))
    assert isinstance(loaded, HueSelector)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), selector(images))
        torch.testing.assert_close(fold(selector)(images), selector(images), rtol=1e-4, atol=1e-5)


def test_chance_is_the_logarithm_of_the_number_of_hues():
    """What Fit.loss says of a selector that knows nothing."""
    scores = torch.zeros(4, 12)
    target = gaussian_scores(torch.zeros(4), 12).softmax(1)
    loss = torch.nn.functional.cross_entropy(scores, target)
    assert float(loss) == pytest.approx(math.log(12))


@pytest.mark.parametrize("options", [{"rotations": 0}, {"size": 0}, {"width": 0}])
def test_bad_sizes_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        hue_selector(**options)
