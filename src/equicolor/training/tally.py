"""Losses and hits added up on the device, without ever waiting for it."""

from typing import NamedTuple

import torch
from torch import Tensor

from equicolor.data.loaders import SKIPPED

__all__ = ["Counts", "Tally"]

NEVER = torch.iinfo(torch.int64).max


class Counts(NamedTuple):
    """What a number of batches added up to.

    Attributes:
        loss: mean over the images.
        accuracy: in percent.
        images: how many there were.
    """

    loss: float
    accuracy: float
    images: int

    @classmethod
    def of(cls, totals: list[float]) -> "Counts":
        """The means of what :meth:`Tally.take` gave, brought to the host."""
        loss, hits, images = totals
        return cls(loss / max(images, 1), 100 * hits / max(images, 1), int(images))


class Tally:
    """Adds up losses and hits, and remembers the first step whose loss was not finite.

    Example:
        >>> tally, logits = Tally(), torch.eye(3)
        >>> for step, loss in enumerate([1.0, float("nan"), 2.0], start=1):
        ...     tally.add(torch.tensor(loss), logits, torch.tensor([0, 1, 0]), step)
        >>> int(tally.diverged), tally.take()[1:].tolist()
        (2, [6.0, 9.0])
    """

    def __init__(self) -> None:
        # Plain tensors: those of a module would be sent from process to process every step.
        self._totals: Tensor | None = None
        self.diverged: Tensor | None = None

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, labels: Tensor, step: int = 0) -> None:
        """Count a batch.

        Args:
            loss: its mean loss, of no dimensions.
            logits: ``[B, C]``.
            labels: int64 ``[B]``; images of the label -1 do not count.
            step: the number of the step, for a loss that is not finite.
        """
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
