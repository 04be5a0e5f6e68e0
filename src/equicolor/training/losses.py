"""Losses beyond cross entropy."""

import math

import torch
from torch import Tensor

__all__ = ["jensen_shannon"]


def jensen_shannon(
    logits_clean: Tensor, logits_a: Tensor, logits_b: Tensor, weight: float = 12.0
) -> Tensor:
    r"""How much the predictions for three views of the same images differ (AugMix).

    .. math:: \text{weight} \cdot \tfrac13 \sum_i \mathrm{KL}(p_i \,\|\, \bar p),
        \qquad \bar p = \tfrac13 \sum_i p_i,

    averaged over the batch. It is added to the cross entropy of the clean view.

    Args:
        logits_clean, logits_a, logits_b: logits :math:`[B, C]` of the views.
        weight: of the term; 12 is AugMix's.

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
    return weight * divergences.mean()
