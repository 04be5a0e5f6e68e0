import math
import os

import numpy as np
import pytest
import torch
from torch import Tensor

from equicolor.color import rgb_to_hsv
from equicolor.data import (
    ColorMNIST,
    Digits,
    biased_colormnist,
    colormnist,
    data_root,
    load_mnist,
    longtailed_colormnist,
    mnist,
)


@pytest.fixture(scope="module")
def longtailed(digits: Digits) -> ColorMNIST:
    return longtailed_colormnist(digits, test_per_class=20)


@pytest.fixture(scope="module")
def tagged() -> Digits:
    """Digits that carry their own number in the first two pixels, and nothing else."""

    def make(per_digit: int, offset: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(10).repeat_interleave(per_digit)
        images = torch.zeros(len(labels), 28, 28, dtype=torch.uint8)
        numbers = torch.arange(len(labels)) + offset
        images[:, 0, 0], images[:, 0, 1] = (numbers // 100).byte(), (numbers % 100).byte()
        return images, labels

    return Digits(*make(400, 0), *make(100, 4000), source="tagged")


def tags(images: Tensor) -> list[int]:
    """The numbers of tagged digits, recovered from painted images that weigh them once."""
    value = (images[:, :, 0, :2].amax(1) * 255).round().long()
    return (100 * value[:, 0] + value[:, 1]).tolist()


@pytest.fixture
def no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paint the digits alone."""

    def paint(images, colors, background, generator, weigh_twice):
        return colors[:, :, None, None] * images[:, None].float() / 255

    monkeypatch.setattr(colormnist, "_paint", paint)


@pytest.mark.usefixtures("no_background")
def test_longtailed_uses_no_digit_twice(tagged: Digits) -> None:
    data = longtailed_colormnist(tagged)
    train, test = tags(data.train.images), tags(data.test.images)
    assert len(set(train)) == len(train) == 1514
    assert len(set(test)) == len(test) == 990
    assert max(train) < 4000 <= min(test)
    # And each digit is in a class of its own label.
    for split, numbers in ((data.train, train), (data.test, test)):
        shapes = [n // 400 if n < 4000 else (n - 4000) // 100 for n in numbers]
        assert shapes == (split.labels // 3).tolist()


@pytest.mark.usefixtures("no_background")
def test_biased_uses_no_digit_twice(tagged: Digits) -> None:
    data = biased_colormnist(1e6, tagged)
    # A pure hue leaves the full value in one channel, so the number can be read.
    train, test = tags(data.train.images), tags(data.test.images)
    assert len(set(train)) == len(train) == 1000
    assert len(set(test)) == len(test) == 1000
    assert max(train) < 4000 <= min(test)


def test_default_draw_has_the_papers_size(longtailed: ColorMNIST) -> None:
    assert len(longtailed.train.labels) == 1514
    assert longtailed.num_classes == 30
    assert longtailed.class_names[:4] == ("0 red", "0 green", "0 blue", "1 red")
    assert longtailed.class_counts().min() >= 1
    assert longtailed.class_counts().max() <= 150


@pytest.mark.slow
def test_class_sizes_follow_the_power_law(digits: Digits) -> None:
    # Of a power law with exponent a, a share of x^a lies below x.
    sizes = []
    for seed in range(40):
        try:
            data = longtailed_colormnist(digits, seed=seed, test_per_class=1)
        except ValueError:  # a draw that needs more of a digit than is embedded
            continue
        sizes += data.class_counts().tolist()
    drawn = torch.tensor(sizes) / 150
    assert len(drawn) > 600
    for x in (0.1, 0.5, 0.9):
        assert float((drawn <= x).float().mean()) == pytest.approx(x**0.3, abs=0.05)


def test_test_set_is_balanced(longtailed: ColorMNIST, digits: Digits) -> None:
    assert torch.bincount(longtailed.test.labels).tolist() == [20] * 30
    most = longtailed_colormnist(digits)
    assert torch.bincount(most.test.labels).tolist() == [33] * 30


@pytest.mark.slow
@pytest.mark.skipif("EQUICOLOR_DATA" not in os.environ, reason="full MNIST needs EQUICOLOR_DATA")
def test_full_protocol_sizes() -> None:
    if not (data_root() / mnist.FOLDER).is_dir():
        pytest.skip(f"no MNIST in {data_root()}")
    full = load_mnist(embedded=False)
    data = longtailed_colormnist(full)
    assert len(data.train.labels) == 1514
    assert torch.bincount(data.test.labels).tolist() == [250] * 30
    biased = biased_colormnist(12.0, full)
    assert (len(biased.train.labels), len(biased.test.labels)) == (1000, 10000)


@pytest.mark.parametrize(
    "make",
    [
        lambda digits, seed: longtailed_colormnist(digits, seed=seed, test_per_class=2),
        lambda digits, seed: biased_colormnist(24.0, digits, seed=seed, test_size=50),
    ],
    ids=["longtailed", "biased"],
)
def test_a_seed_fixes_everything(digits: Digits, make) -> None:
    torch.manual_seed(1)
    first = make(digits, 967)
    torch.manual_seed(2)
    again, other = make(digits, 967), make(digits, 3)
    for split, repeated in zip((first.train, first.test), (again.train, again.test), strict=True):
        assert torch.equal(split.images, repeated.images)
        assert torch.equal(split.labels, repeated.labels)
    assert not torch.equal(first.test.images, other.test.images)


def test_drawing_leaves_the_global_generator_alone(digits: Digits) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    biased_colormnist(0.0, digits, test_size=5)
    longtailed_colormnist(digits, test_per_class=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("weigh_twice", [True, False])
def test_painting_is_the_formula_for_every_pixel(weigh_twice: bool) -> None:
    images = torch.randint(256, (2, 28, 28), dtype=torch.uint8)
    colors = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.4, 1.0]])
    painted = colormnist._paint(images, colors, 0.33, torch.Generator().manual_seed(4), weigh_twice)
    noise = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(4))
    for image in range(2):
        for y in range(0, 28, 3):
            for x in range(0, 28, 3):
                v = images[image, y, x].item() / 255
                grey = min(max(0.33 + 0.1 * noise[image, 0, y, x].item(), 0.0), 1.0)
                for channel in range(3):
                    ink = (
                        v * colors[image, channel].item()
                        if weigh_twice
                        else colors[image, channel].item()
                    )
                    expected = v * ink + (1 - v) * grey
                    assert painted[image, channel, y, x].item() == pytest.approx(expected, abs=1e-6)


SPLITS = pytest.mark.parametrize("part", ["train", "test"])


@SPLITS
def test_longtailed_colours_and_background(longtailed: ColorMNIST, part: str) -> None:
    images, labels = getattr(longtailed, part)
    assert images.min() >= 0
    assert images.max() <= 1
    background = images[:, :, 0]  # no digit reaches the first row
    assert torch.equal(background[:, 0], background[:, 1])
    assert float(background.mean()) == pytest.approx(0.33, abs=0.01)
    assert float(background[:, 0].std()) == pytest.approx(0.1, abs=0.01)
    brightest = images.amax((2, 3)).argmax(1)
    assert torch.equal(brightest, labels % 3)


def hue_of(data: ColorMNIST, part: str) -> tuple[Tensor, Tensor]:
    """The hue of each image in turns, where its digit is strongest, and its class."""
    images, labels = getattr(data, part)
    hsv = rgb_to_hsv(images)
    strongest = (hsv[:, 1] * hsv[:, 2]).flatten(1).argmax(1)
    return hsv[:, 0].flatten(1).gather(1, strongest[:, None]).squeeze(1), labels


@SPLITS
@pytest.mark.parametrize("half_degrees", [False, True])
@pytest.mark.parametrize("sigma", [0.0, 12.0, 24.0])
def test_hues_of_a_class_spread_by_sigma(
    digits: Digits, sigma: float, half_degrees: bool, part: str
) -> None:
    data = biased_colormnist(sigma, digits, half_degrees=half_degrees)
    hue, labels = hue_of(data, part)
    assert len(hue) == 1000
    deviation = (hue - labels / 10 + 0.5) % 1 - 0.5
    degrees = 360 * deviation
    spread = sigma * (2 if half_degrees else 1)
    assert float(degrees.mean()) == pytest.approx(0, abs=4)
    assert float(degrees.std()) == pytest.approx(spread, abs=2.5)


@SPLITS
def test_huge_sigma_is_a_uniform_hue(digits: Digits, part: str) -> None:
    hue, labels = hue_of(biased_colormnist(1e6, digits), part)
    # The mean direction of uniform angles is near zero, also within a class.
    angle = 2 * math.pi * (hue - labels / 10)
    assert float(torch.stack([angle.cos(), angle.sin()]).mean(1).norm()) < 0.1
    assert torch.histc(hue, 10, 0, 1).min() > 60


@SPLITS
def test_datasets_of_another_sigma_share_digits_and_noise(digits: Digits, part: str) -> None:
    sharp, vague = (biased_colormnist(sigma, digits, test_size=30) for sigma in (0.0, 48.0))
    first, second = getattr(sharp, part), getattr(vague, part)
    assert torch.equal(first.labels, second.labels)
    assert torch.equal(first.images[:, :, 0], second.images[:, :, 0])
    assert not torch.equal(first.images, second.images)
    assert (sharp.name, vague.name) == ("colormnist-biased-0", "colormnist-biased-48")


@SPLITS
def test_biased_background_is_half_grey(digits: Digits, part: str) -> None:
    background = getattr(biased_colormnist(0.0, digits), part).images[:, :, 0]
    assert torch.equal(background[:, 0], background[:, 1])
    assert float(background.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(background[:, 0].std()) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("sigma", [-1.0, math.nan, math.inf])
def test_bad_sigma_is_refused(digits: Digits, sigma: float) -> None:
    with pytest.raises(ValueError, match=rf"sigma must be .* of at least 0, got {sigma}"):
        biased_colormnist(sigma, digits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": "12"}, "sigma must be a number of degrees, got '12'"),
        ({"sigma": 1.7e308, "half_degrees": True}, "sigma must be a number of degrees of at least"),
        ({"sigma": 0.0, "seed": 1.5}, "seed must be an int from 0 .*, got 1.5"),
        ({"sigma": 0.0, "seed": 2**70}, "seed must be an int from 0"),
    ],
)
def test_what_is_no_number_is_refused(digits: Digits, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        biased_colormnist(digits=digits, **options)


def test_every_sigma_has_its_own_name(digits: Digits) -> None:
    def named(sigma: float, **options: bool) -> tuple[str, float | None]:
        data = biased_colormnist(sigma, digits, train_size=1, test_size=1, **options)
        return data.name.removeprefix("colormnist-biased-"), data.sigma

    assert named(12) == named(np.int64(12)) == named(np.float32(12)) == ("12", 12.0)
    assert named(1e6) == ("1e+06", 1e6)
    assert named(1234567.0) == ("1234567.0", 1234567.0)
    assert named(12.0, half_degrees=True) == ("24", 24.0)


def test_classes_of_nothing_are_refused(digits: Digits) -> None:
    with pytest.raises(ValueError, match="largest must be at least 1, got -5"):
        longtailed_colormnist(digits, largest=-5)


def test_too_few_digits_are_named(digits: Digits) -> None:
    with pytest.raises(ValueError, match=r"102 test images of digit 0 are needed .* are 100"):
        longtailed_colormnist(digits, test_per_class=34)
    with pytest.raises(ValueError, match=r"4001 training images were asked for, but .* has 4000"):
        biased_colormnist(0.0, digits, train_size=4001)


@pytest.mark.parametrize("size", [0, -3])
def test_sizes_must_be_positive(digits: Digits, size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        longtailed_colormnist(digits, test_per_class=size)
    with pytest.raises(ValueError, match="test size must be at least 1"):
        biased_colormnist(0.0, digits, test_size=size)
