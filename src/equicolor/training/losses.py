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
    # In logarithms, in which tiny probabilities do not underflow.
    mean = logs.logsumexp(0) - math.log(3)
    divergences = (logs.exp() * (logs - mean)).sum(-1)
    labelled = labels != SKIPPED
    # Where all images count, this is their mean to the last digit, which training may amplify.
    share = len(labels) / labelled.sum().clamp(min=1)
    return _JS_WEIGHT * (torch.where(labelled, divergences, 0).mean() * share)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross entropy averaged over the images that have a label; 0 if none has.

    torch's own mean over no images is NaN, which would look like divergence.
    """
    some = (labels != SKIPPED).any()
    # If no image has a label, an arbitrary one keeps the loss and its gradient finite.
    loss = F.cross_entropy(
        logits, torch.where(some, labels, 0), ignore_index=SKIPPED, label_smoothing=label_smoothing
    )
    return torch.where(some, loss, 0)
