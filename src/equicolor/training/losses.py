"""Cross entropy and the Jensen-Shannon loss of batches in which some images do not count."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor.data.loaders import SKIPPED

_JS_WEIGHT = 12.0  # AugMix's


def jensen_shannon(views: Tensor, labels: Tensor) -> Tensor:
    r"""How much the predictions for three views of the same images differ (AugMix).

    .. math:: 12 \cdot \tfrac13 \sum_i \mathrm{KL}(p_i \,\|\, \bar p),
        \qquad \bar p = \tfrac13 \sum_i p_i,

    averaged over the images that count: those with a label. It is added to the cross entropy of
    the first view.

    Args:
        views: logits :math:`[3, B, C]`.
        labels: int64 :math:`[B]`, -1 for images that do not count.
    """
    logs = views.log_softmax(-1)
    # In logarithms throughout: probabilities that underflow still count as what they are.
    mean = logs.logsumexp(0) - math.log(3)
    divergences = (logs.exp() * (logs - mean)).sum(-1)
    counted = labels != SKIPPED
    # Exactly the mean where all count: a network may make much of the last digit.
    share = len(labels) / counted.sum().clamp(min=1)
    return _JS_WEIGHT * (torch.where(counted, divergences, 0).mean() * share)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross entropy averaged over the images that have a label; 0 where none has.

    torch's own mean over nothing is NaN, which looks like a network that diverges.
    """
    some = (labels != SKIPPED).any()
    # With any label at all, in place of none, everything stays finite, gradients too.
    loss = F.cross_entropy(
        logits, torch.where(some, labels, 0), ignore_index=SKIPPED, label_smoothing=label_smoothing
    )
    return torch.where(some, loss, 0)
