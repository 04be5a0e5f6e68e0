"""Losses and hits added up on the device, without ever waiting for it."""

from typing import NamedTuple

import torch
from torch import Tensor

from equicolor.data.loaders import SKIPPED

NEVER = torch.iinfo(torch.int64).max


class Counts(NamedTuple):
    """The mean loss, the accuracy in percent, and the number of images of some batches."""

    loss: float
    accuracy: float
    images: int

    @classmethod
    def of(cls, totals: list[float]) -> "Counts":
        """The means of the sums of :meth:`Tally.take`, once they are on the host."""
        loss, hits, images = totals
        return cls(loss / max(images, 1), 100 * hits / max(images, 1), int(images))


class Tally:
    """Adds up losses and hits, and remembers the first step whose loss was not finite."""

    def __init__(self) -> None:
        # Plain tensors: DDP would broadcast the buffers of a module in every step.
        self._totals: Tensor | None = None
        self.diverged: Tensor | None = None

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, labels: Tensor, step: int = 0) -> None:
        """Count a batch: its mean loss, logits ``[B, C]``, and labels ``[B]``, -1 for none."""
        loss = loss.float()
        hits, images = (logits.argmax(1) == labels).sum(), (labels != SKIPPED).sum()
        new = torch.stack([loss * images, hits, images])
        bad = torch.where(loss.isfinite(), NEVER, step)
        self._totals = new if self._totals is None else self._totals + new
        self.diverged = bad if self.diverged is None else torch.minimum(self.diverged, bad)

    def take(self) -> Tensor:
        """Sums since the last call, float32 ``[3]``: losses, hits and images."""
        totals = torch.zeros(3) if self._totals is None else self._totals
        self._totals = None
        return totals
