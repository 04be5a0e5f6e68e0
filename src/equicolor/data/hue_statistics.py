"""How much the hues of images tell of their classes, measured without training a network."""

from typing import NamedTuple

import torch
from torch import Tensor

from equicolor.color import rgb_to_hsv
from equicolor.data.decoding import Decoded

_BINS = 24
_FOLDS = 5
_SHRINKAGE = 0.1  # of the covariance of features, which few images determine badly


class HueStatistics(NamedTuple):
    """How well a tiny classifier tells classes apart by histograms, cross-validated.

    Accuracies are in percent and count every class alike.
    """

    images: int  # their number
    classes: int  # their number
    without_hue: float  # by brightness, and by colours up to a common shift of their hues
    with_hue: float  # by the hues themselves, too
    error: float  # the standard error of gain

    @property
    def chance(self) -> float:
        """The accuracy of guessing."""
        return 100 / self.classes

    @property
    def gain(self) -> float:
        """What the hues add, in points."""
        return self.with_hue - self.without_hue


def hue_statistics(decoded: Decoded) -> HueStatistics:
    """Compare classifiers that may and that may not use the hues of images.

    Features are the histogram of brightness; the histogram of hues, each pixel weighed by its
    chroma; and the size of the Fourier coefficients of the latter, which a hue shift leaves as they
    are. The classifier is linear discriminant analysis.

    Example:
        >>> pixels = torch.zeros(20, 3, 8, 8, dtype=torch.uint8)
        >>> labels = torch.arange(20) % 2
        >>> pixels[labels == 0, 0], pixels[labels == 1, 1] = 200, 200
        >>> from equicolor.data import ImageSet, decode
        >>> toy = ImageSet("toy", "train", labels, ("red", "green"), pixels=pixels)
        >>> found = hue_statistics(decode(toy))
        >>> found.without_hue, found.with_hue
        (50.0, 100.0)
    """
    histograms = [_histograms(decoded.image(index)) for index in range(len(decoded))]
    brightness, hues = (torch.stack(each) for each in zip(*histograms, strict=True))
    invariant = torch.cat([brightness.sqrt(), torch.fft.rfft(hues).abs().sqrt()], 1)
    labels, classes = decoded.labels, len(decoded.class_names)
    hits = torch.stack(
        [
            _cross_validated(features, labels, classes)
            for features in (invariant, torch.cat([invariant, hues.sqrt()], 1))
        ]
    )
    # Every class counts alike, however many images it has.
    weights = 1 / labels.bincount(minlength=classes)[labels].double()
    weights /= weights.sum()
    without, together = (100 * (hits * weights).sum(1)).tolist()
    spread = (hits[1] - hits[0] - (together - without) / 100) * weights
    error = 100 * float(spread.square().sum().sqrt())
    return HueStatistics(len(labels), classes, without, together, error)


def _histograms(image: Tensor) -> tuple[Tensor, Tensor]:
    """Of brightness and of hues; float64 ``[bins]`` each, of an image uint8 ``[3, h, w]``."""
    hue, saturation, value = rgb_to_hsv(image[None].double() / 255)[0].flatten(1)
    histograms = []
    for values, weights in ((value, torch.ones_like(value)), (hue, saturation * value)):
        bins = (values * _BINS).long().clamp(0, _BINS - 1)
        histograms.append(values.new_zeros(_BINS).index_add_(0, bins, weights) / len(values))
    return histograms[0], histograms[1]


def _cross_validated(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Which images ``[N, F]`` are told right by a classifier of the others; float64 ``[N]``."""
    features = features.round(decimals=6)  # what differs by rounding alone must not decide
    features = (features - features.mean(0)) / features.std(0).clamp(min=1e-4)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    ranks = torch.cat([torch.arange(count) for count in labels.bincount().tolist()])
    fold = torch.empty_like(labels)
    fold[by_class] = ranks % _FOLDS
    hits = torch.zeros(len(labels), dtype=torch.float64)
    for number in range(_FOLDS):
        held_out = fold == number
        if held_out.any() and not held_out.all():
            scores = _scores(features[~held_out], labels[~held_out], features[held_out], classes)
            hits[held_out] = (scores.argmax(1) == labels[held_out]).double()
    return hits


def _scores(known: Tensor, labels: Tensor, asked: Tensor, classes: int) -> Tensor:
    """Linear discriminants ``[M, C]`` of features ``[M, F]``."""
    counts = labels.bincount(minlength=classes)
    means = known.new_zeros(classes, known.shape[1]).index_add_(0, labels, known)
    means = means / counts.clamp(min=1)[:, None]
    within = known - means[labels]
    covariance = within.T @ within / max(1, len(known) - int((counts > 0).sum()))
    ridge = _SHRINKAGE * covariance.diagonal().mean() + 1e-6
    covariance = (1 - _SHRINKAGE) * covariance + ridge * torch.eye(len(covariance)).to(known)
    weights = torch.linalg.solve(covariance, means.T)
    scores: Tensor = asked @ weights - (means * weights.T).sum(1) / 2
    return scores.masked_fill(counts == 0, -torch.inf)
