"""The two coloured MNISTs of the paper (section 4.1), seeded and without shared digits.

The released generator of the long-tailed set has no seed, and its classes share some digits. Here
everything depends on a seed, and no two colours or splits share a digit.
"""

import functools
import hashlib
import math
import numbers
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equicolor import _checks
from equicolor._text import brief_repr
from equicolor.color import hsv_to_rgb
from equicolor.data.mnist import Digits, load_mnist

COLORS = ("red", "green", "blue")
# The first seed whose draw has as many training images as the paper's: 1,514.
LONGTAILED_SEED = 967
BIASED_SEED = 0
POWER = 0.3  # exponent of the power law of class sizes


class Split(NamedTuple):
    """Images :math:`[N, 3, 28, 28]` in [0, 1] and their classes :math:`[N]`."""

    images: Tensor
    labels: Tensor

    def __repr__(self) -> str:
        return brief_repr(self)


@dataclass(frozen=True)
class ColorMNIST:
    """Coloured digits for training and for testing, and what they were drawn from."""

    name: str  # of the experiment it belongs to
    train: Split
    test: Split
    class_names: tuple[str, ...]
    source: str  # of the digits
    seed: int  # of digits, hues and noise
    sigma: float | None = None  # deviation of the hues in degrees; None for the long-tailed set

    __repr__ = brief_repr

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @functools.cached_property
    def checksum(self) -> str:
        """A digest of all images, in 8-bit levels, and of all labels."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            levels = (255 * split.images).round().to(torch.uint8)
            for tensor in (levels, split.labels):
                digest.update(repr(tuple(tensor.shape)).encode())
                digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def class_counts(self) -> Tensor:
        """Training images of every class, ``[num_classes]``."""
        return torch.bincount(self.train.labels, minlength=self.num_classes)


def longtailed_colormnist(
    digits: Digits | None = None,
    *,
    seed: int = LONGTAILED_SEED,
    test_per_class: int | None = None,
    largest: int = 150,
    weigh_twice: bool = True,
) -> ColorMNIST:
    r"""Long-tailed ColorMNIST: 10 digits in 3 colours, 30 classes, unevenly many images each.

    Class :math:`3 d + c` is digit :math:`d` in colour :math:`c`; its number of training
    images is :math:`\lceil 150\,p \rceil` with :math:`p` from a power law. The background is
    noisy grey.

    Args:
        digits: where to draw from (default: :func:`equicolor.data.load_mnist`).
        seed: fixes class sizes, digits and noise.
        test_per_class: test images of every class; by default 250 as in the paper, or fewer if
            there are not enough digits.
        largest: the most images a class can have.
        weigh_twice: multiply the digit by its intensity twice, as the released code does.

    Example:
        >>> data = longtailed_colormnist(load_mnist(embedded=True), test_per_class=20)
        >>> data.num_classes, len(data.test.images)
        (30, 600)
    """
    _checks.positive_int("largest", largest)
    digits = load_mnist() if digits is None else digits
    generator = _generator(seed)
    # A power law with exponent a is the a-th root of a uniform number.
    uniform = torch.rand(30, generator=generator, dtype=torch.float64)
    sizes = [math.ceil(value) for value in (uniform ** (1 / POWER) * largest).tolist()]
    if test_per_class is None:
        available = int(torch.bincount(digits.test_labels, minlength=10).min()) // len(COLORS)
        test_per_class = min(250, available)
    _checks.positive_int("test_per_class", test_per_class)
    train = _draw(digits.train_images, digits.train_labels, sizes, generator, "training")
    test = _draw(digits.test_images, digits.test_labels, [test_per_class] * 30, generator, "test")
    splits = []
    for images, classes in (train, test):
        colors = torch.eye(3)[classes % len(COLORS)]
        splits.append(Split(_paint(images, colors, 0.33, generator, weigh_twice), classes))
    names = tuple(f"{digit} {color}" for digit in range(10) for color in COLORS)
    return ColorMNIST("colormnist-longtailed", splits[0], splits[1], names, digits.source, seed)


def biased_colormnist(
    sigma: float,
    digits: Digits | None = None,
    *,
    seed: int = BIASED_SEED,
    train_size: int = 1000,
    test_size: int | None = None,
    half_degrees: bool = False,
    weigh_twice: bool = True,
) -> ColorMNIST:
    r"""Biased ColorMNIST: every digit has its own hue, which varies by ``sigma`` degrees.

    Class :math:`c` has hue :math:`c / 10` turns; an image's hue is drawn from a normal
    distribution around it. At ``sigma`` 0 the colour is the class; at 1e6 it says nothing about it.

    Args:
        sigma: standard deviation of the hue in degrees.
        digits: where to draw from (default: :func:`equicolor.data.load_mnist`).
        seed: fixes digits, hues and noise; data of another ``sigma`` share digits and noise.
        train_size, test_size: numbers of images; by default the whole test set.
        half_degrees: read ``sigma`` in OpenCV's half degrees, as the released code does.
        weigh_twice: multiply the digit by its intensity twice, as the released code does.

    Example:
        >>> biased_colormnist(12.0, load_mnist(embedded=True)).train.images.shape
        torch.Size([1000, 3, 28, 28])
    """
    degrees = _degrees(sigma) * (2 if half_degrees else 1)
    if not (degrees >= 0 and math.isfinite(degrees)):
        raise ValueError(f"sigma must be a number of degrees of at least 0, got {sigma}")
    digits = load_mnist() if digits is None else digits
    test_size = len(digits.test_labels) if test_size is None else test_size
    generator = _generator(seed)
    splits = []
    for part, size, images, labels in (
        ("training", train_size, digits.train_images, digits.train_labels),
        ("test", test_size, digits.test_images, digits.test_labels),
    ):
        _checks.positive_int(f"{part} size", size)
        if size > len(labels):
            raise ValueError(
                f"{size} {part} images were asked for, but {digits.source} has {len(labels)}"
            )
        selected = torch.randperm(len(labels), generator=generator)[:size]
        deviation = torch.randn(size, generator=generator, dtype=torch.float64) * degrees / 360
        hue = (labels[selected] / 10 + deviation) % 1
        full = torch.stack([hue, torch.ones_like(hue), torch.ones_like(hue)], 1)[..., None, None]
        colors = hsv_to_rgb(full).flatten(1).float()
        painted = _paint(images[selected], colors, 0.5, generator, weigh_twice)
        splits.append(Split(painted, labels[selected]))
    names = tuple(map(str, range(10)))
    short = f"{degrees:g}"
    name = f"colormnist-biased-{short if float(short) == degrees else repr(degrees)}"
    return ColorMNIST(name, splits[0], splits[1], names, digits.source, seed, degrees)


def _degrees(sigma: object) -> float:
    if isinstance(sigma, bool) or not isinstance(sigma, numbers.Real):
        raise _checks.WrongTypeError(f"sigma must be a number of degrees, got {sigma!r}")
    return float(sigma)


def _generator(seed: int) -> torch.Generator:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise _checks.WrongTypeError(f"seed must be an int from 0 to 2**63 - 1, got {seed!r}")
    return torch.Generator().manual_seed(seed)


def _draw(
    images: Tensor, labels: Tensor, sizes: list[int], generator: torch.Generator, part: str
) -> tuple[Tensor, Tensor]:
    """Images and classes of disjoint digits, for 30 classes of these sizes."""
    selected = []
    for digit in range(10):
        members = torch.nonzero(labels == digit).flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        needed = sum(sizes[3 * digit : 3 * digit + 3])
        if needed > len(members):
            raise ValueError(
                f"{needed} {part} images of digit {digit} are needed for three disjoint "
                f"colours, but there are {len(members)}; ask for fewer per class"
            )
        selected.append(members[:needed])
    classes = torch.arange(30).repeat_interleave(torch.tensor(sizes))
    return images[torch.cat(selected)], classes


def _paint(
    images: Tensor, colors: Tensor, background: float, generator: torch.Generator, weigh_twice: bool
) -> Tensor:
    """Digits ``[N, 28, 28]`` in colours ``[N, 3]`` on noisy grey, ``[N, 3, 28, 28]``."""
    value = images[:, None].float() / 255
    noise = torch.randn(value.shape, generator=generator)
    grey = (background + 0.1 * noise).clamp(0, 1)
    digit = colors[:, :, None, None] * (value if weigh_twice else 1)
    return value * digit + (1 - value) * grey
