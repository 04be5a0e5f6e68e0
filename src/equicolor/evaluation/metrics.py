"""Accuracy, likelihood and calibration.

torchmetrics serves as the reference in the tests; it is not used here because its accuracy of a
class without images is 0, and its calibration error puts a confidence of exactly 1 in a bin of
its own.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor import _checks
from equicolor._text import brief_repr


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence against accuracy, in bins of equal width (Guo et al. 2017).

    Attributes:
        edges: of the bins, confidences in percent, float64 :math:`[bins + 1]`; a bin holds
            its upper edge.
        counts: images in every bin, int64 :math:`[bins]`.
        confidence: their mean confidence in percent, float64 :math:`[bins]`; NaN if none.
        accuracy: how many percent of them are right, float64 :math:`[bins]`; NaN if none.
    """

    edges: Tensor
    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    __repr__ = brief_repr

    @property
    def expected_error(self) -> float:
        """The expected calibration error: the mean gap over all images, in points."""
        gaps = (self.confidence - self.accuracy).abs().nan_to_num(0.0)
        return float((gaps * self.counts).sum() / self.counts.sum())


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Percent of images whose highest logit :math:`[N, C]` is the label's, int64 :math:`[N]`.

    Example:
        >>> accuracy(torch.eye(4), torch.tensor([0, 1, 2, 2]))
        75.0
    """
    _check(logits, labels)
    return float(100 * (logits.argmax(1) == labels).double().mean())


def per_class_accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The :func:`accuracy` of every class.

    Returns:
        float64 :math:`[C]`; NaN for classes without images.

    Example:
        >>> per_class_accuracy(torch.eye(4), torch.tensor([0, 1, 2, 2])).tolist()
        [100.0, 100.0, 50.0, nan]
    """
    _check(logits, labels)
    hits, classes = (logits.argmax(1) == labels).double(), logits.shape[1]
    counts = torch.bincount(labels, minlength=classes)
    return 100 * torch.bincount(labels, hits, classes) / counts


def negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    """Mean negative logarithm of the probability given to the label, in nats.

    Logits are :math:`[N, C]`, labels int64 :math:`[N]`.

    Example:
        >>> round(negative_log_likelihood(torch.zeros(2, 10), torch.tensor([3, 4])), 4)
        2.3026
    """
    _check(logits, labels)
    return float(F.cross_entropy(logits.double(), labels))


def reliability(logits: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """How often a network is right at each level of confidence.

    Args:
        logits, labels: :math:`[N, C]` and int64 :math:`[N]`.
        bins: how many, of equal width from 0 to 100 percent.

    Returns:
        The bins, on the CPU, with the expected calibration error.

    Example:
        >>> logits = torch.tensor([0.8, 0.2]).log().expand(10, 2)  # 80 percent sure
        >>> round(reliability(logits, torch.zeros(10).long()).expected_error, 4)
        20.0
    """
    _check(logits, labels)
    _checks.positive_int("bins", bins)
    confidence, answers = logits.double().softmax(1).max(1)
    confidence = confidence.cpu()
    if undefined := int(confidence.isnan().sum()):
        raise ValueError(
            f"probabilities are NaN for {undefined} of {len(labels)} images: their logits are "
            "infinite, so the network has no confidence to compare with"
        )
    hits = (answers == labels).double().cpu()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    # Bins are (lower, upper]; rounding may carry a probability just above 1.
    index = (torch.bucketize(confidence, edges) - 1).clamp(0, bins - 1)
    counts = torch.bincount(index, minlength=bins)
    means = (100 * torch.bincount(index, values, bins) / counts for values in (confidence, hits))
    return Reliability(100 * edges, counts, *means)


def _check(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise ValueError(
            f"expected logits [N, C] and labels [N] of at least one image, got "
            f"{list(logits.shape)} and {list(labels.shape)}"
        )
    if undefined := int(logits.isnan().any(1).sum()):
        raise ValueError(f"logits are NaN for {undefined} of {len(labels)} images")
    lowest, highest = labels.aminmax()
    if lowest < 0 or highest >= logits.shape[1]:
        raise ValueError(
            f"labels of {logits.shape[1]} classes lie in 0 to {logits.shape[1] - 1}, "
            f"got {int(lowest)} to {int(highest)}"
        )
