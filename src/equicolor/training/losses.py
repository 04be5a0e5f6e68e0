"""Losses beyond cross entropy."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["cross_entropy", "jensen_shannon"]


def jensen_shannon(
    logits_clean: Tensor,
    logits_a: Tensor,
    logits_b: Tensor,
    weight: float = 12.0,
    *,
    counted: Tensor | None = None,
) -> Tensor:
    r"""How much the predictions for three views of the same images differ (AugMix).

    .. math:: \text{weight} \cdot \tfrac13 \sum_i \mathrm{KL}(p_i \,\|\, \bar p),
        \qquad \bar p = \tfrac13 \sum_i p_i,

    averaged over the batch. It is added to the cross entropy of the clean view.

    Args:
        logits_clean, logits_a, logits_b: logits :math:`[B, C]` of the views.
        weight: of the term; 12 is AugMix's.
        counted: bool :math:`[B]`, which images count; all by default.

    Returns:
        A number, at least 0, computed in float32 at least.

    Example:
        >>> logits = torch.randn(4, 10)
        >>> round(jensen_shannon(logits, logits, logits).item(), 4)
        0.0
    """
    if not logits_clean.shape == logits_a.shape == logits_b.shape or logits_clean.ndim != 2:
        shapes = [list(logits.shape) for logits in (logits_clean, logits_a, logits_b)]
        raise ValueError(f"jensen_shannon expects three times logits [B, C], got {shapes}")
    views = torch.stack((logits_clean, logits_a, logits_b))
    views = views.to(torch.promote_types(views.dtype, torch.float32))
    logs = views.log_softmax(-1)
    # In logarithms throughout: probabilities that underflow still count as what they are.
    mean = logs.logsumexp(0) - math.log(3)
    divergences = (logs.exp() * (logs - mean)).sum(-1)
    if counted is None:
        return weight * divergences.mean()
    # Exactly the mean where all count: a network may make much of the last digit.
    share = len(counted) / counted.sum().clamp(min=1)
    return weight * (torch.where(counted, divergences, 0).mean() * share)


def cross_entropy(
    logits: Tensor, labels: Tensor, *, ignored: int, label_smoothing: float = 0.0
) -> Tensor:
    """Cross entropy averaged over the images that count; 0 where none does.

    torch's own mean over nothing is NaN, which looks like a network that diverges.

    Args:
        logits: :math:`[B, C]`.
        labels: int64 :math:`[B]`.
        ignored: the label of images that do not count.
        label_smoothing: probability spread over all classes.

    Example:
        >>> cross_entropy(torch.ones(2, 4), torch.tensor([-1, -1]), ignored=-1).item()
        0.0
    """
    some = (labels != ignored).any()
    # With any label at all, in place of none, everything stays finite, gradients too.
    loss = F.cross_entropy(
        logits,
        torch.where(some, labels, 0),
        ignore_index=ignored,
        label_smoothing=label_smoothing,
    )
    return torch.where(some, loss, 0)
