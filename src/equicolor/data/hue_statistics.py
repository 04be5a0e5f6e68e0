"""How well the hues of images tell their classes apart, measured without training a network."""

from typing import NamedTuple

import torch
from torch import Tensor

from equicolor.color import rgb_to_hsv
from equicolor.data.decoding import Decoded

_BINS = 24
_FOLDS = 5
_SHRINKAGE = 0.1  # of the covariance of features, since few images determine it badly


class HueStatistics(NamedTuple):
    """How well a tiny classifier tells classes apart by histograms, cross-validated.

    Accuracies are in percent, with equal weight for every class.
    """

    images: int
    classes: int
    without_hue: float  # accuracy by brightness, and by colours up to a common hue shift
    with_hue: float  # accuracy by these and by the hues themselves
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

    Features are the histogram of brightness; the histogram of hues, with pixels weighted by their
    chroma; and the magnitudes of its Fourier coefficients, which a hue shift does not change. The
    classifier is linear discriminant analysis.

    Example:
        >>> pixels = torch.zeros(20, 3, 8, 8, dtype=torch.uint8)
        >>> labels = torch.arange(20) % 2
        >>> pixels[labels == 0, 0], pixels[labels == 1, 1] = 200, 200
        >>> from equicolor.data import ImageSet, decode
        >>> toy = ImageSet("toy", "train", labels, ("red", "green"), pixels=pixels)
        >>> statistics = hue_statistics(decode(toy))
        >>> statistics.without_hue, statistics.with_hue
        (50.0, 100.0)
    """
    histograms = [_histograms(decoded.image(index)) for index in range(len(decoded))]
    brightness, hues = (torch.stack(each) for each in zip(*histograms, strict=True))
    invariant = torch.cat([brightness.sqrt(), torch.fft.rfft(hues).abs().sqrt()], 1)
    labels, classes = decoded.labels, len(decoded.class_names)
    features = invariant, torch.cat([invariant, hues.sqrt()], 1)
    hits = torch.stack([_cross_validated(each, labels, classes) for each in features])
    # All classes have equal weight, however many images they have.
    weights = 1 / labels.bincount(minlength=classes)[labels].double()
    weights /= weights.sum()
    without, with_hue = (100 * (hits * weights).sum(1)).tolist()
    spread = (hits[1] - hits[0] - (with_hue - without) / 100) * weights
    error = 100 * float(spread.square().sum().sqrt())
    return HueStatistics(len(labels), classes, without, with_hue, error)


def _histograms(image: Tensor) -> tuple[Tensor, Tensor]:
    """Histograms of brightness and of hues, float64 ``[bins]``, of an image uint8 ``[3, h, w]``."""
    hue, saturation, value = rgb_to_hsv(image[None].double() / 255)[0].flatten(1)
    histograms = []
    for values, weights in ((value, torch.ones_like(value)), (hue, saturation * value)):
        bins = (values * _BINS).long().clamp(0, _BINS - 1)
        histograms.append(values.new_zeros(_BINS).index_add_(0, bins, weights) / len(values))
    return histograms[0], histograms[1]


def _cross_validated(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Which images ``[N, F]`` a classifier fitted to others gets right: 0 or 1, float64 ``[N]``."""
    features = features.round(decimals=6)  # rounding errors must not decide
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


def _scores(fitted: Tensor, labels: Tensor, held_out: Tensor, classes: int) -> Tensor:
    """Linear discriminants ``[M, C]`` of held-out features ``[M, F]``."""
    counts = labels.bincount(minlength=classes)
    means = fitted.new_zeros(classes, fitted.shape[1]).index_add_(0, labels, fitted)
    means = means / counts.clamp(min=1)[:, None]
    within = fitted - means[labels]
    covariance = within.T @ within / max(1, len(fitted) - int((counts > 0).sum()))
    ridge = _SHRINKAGE * covariance.diagonal().mean() + 1e-6
    covariance = (1 - _SHRINKAGE) * covariance + ridge * torch.eye(len(covariance)).to(fitted)
    weights = torch.linalg.solve(covariance, means.T)
    scores: Tensor = held_out @ weights - (means * weights.T).sum(1) / 2
    return scores.masked_fill(counts == 0, -torch.inf)
