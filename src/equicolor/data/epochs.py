"""The order of images in an epoch, and the random numbers each of them gets.

Everything is a function of seed, epoch and position in the epoch's order: a resumed run sees
what the interrupted one would have seen, and processes that share a batch see together what
one process sees.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equicolor import _checks
from equicolor._random import permutation, uniform

__all__ = ["Epochs"]

_ORDER, _AUGMENT = range(2)  # streams of random numbers


@dataclass(frozen=True)
class Epochs:
    """How images are ordered, cut into batches and shared out between processes.

    In **training** (``shuffle``) every batch has ``batch_size`` images, so that shapes stay
    the same; the last one is filled from the start of the order. Where there are not that
    many images, a batch is all of them. Of each batch a process gets an equal slice.

    In **evaluation** every image comes once, in order, the processes taking turns; the last
    batch may be smaller.

    Attributes:
        size: how many images there are.
        batch_size: of all processes together.
        seed: of order and augmentation.
        shuffle: True for training, False for evaluation.
        rank, world_size: which of how many processes this is.

    Example:
        >>> epochs = Epochs(5, batch_size=4, shuffle=True, rank=1, world_size=2)
        >>> len(epochs), [epochs.positions(step).tolist() for step in range(2)]
        (2, [[2, 3], [6, 7]])
        >>> epochs.indices(0, epochs.positions(1)).tolist() == epochs.order(0)[[1, 2]].tolist()
        True
    """

    size: int
    batch_size: int
    seed: int = 0
    shuffle: bool = False
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be cut."""
        for name in ("size", "batch_size", "world_size"):
            _checks.positive_int(name, getattr(self, name))
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must lie in [0, {self.world_size}), got {self.rank}")
        if self.batch_size % self.world_size:
            raise ValueError(
                f"every process takes the same part of a batch: batch_size must be a multiple of "
                f"{self.world_size}, the number of processes; got {self.batch_size}"
            )

    @property
    def batch(self) -> int:
        """How many images a batch has, over all processes."""
        if not self.shuffle or self.size >= self.batch_size:
            return self.batch_size
        return math.ceil(self.size / self.world_size) * self.world_size

    @property
    def own_batch(self) -> int:
        """How many images of a batch this process gets."""
        return self.batch // self.world_size

    def __len__(self) -> int:
        """Batches in an epoch of this process."""
        if self.shuffle:
            return math.ceil(self.size / self.batch)
        return math.ceil(len(range(self.rank, self.size, self.world_size)) / self.own_batch)

    @property
    def positions_per_epoch(self) -> int:
        """Positions of an epoch, over all processes; more than images where a batch is filled."""
        return len(self) * self.batch if self.shuffle else self.size

    def positions(self, step: int, device: torch.device | str = "cpu") -> Tensor:
        """Where in the epoch's order this process's batch stands, int64 ``[B]``."""
        if self.shuffle:
            start = step * self.batch + self.rank * self.own_batch
            return torch.arange(start, start + self.own_batch, device=device)
        first = step * self.batch_size + self.rank
        stop = min((step + 1) * self.batch_size, self.size)
        return torch.arange(first, stop, self.world_size, device=device)

    def order(self, epoch: int, device: torch.device | str = "cpu") -> Tensor:
        """The images of an epoch in order, int64 ``[N]``."""
        if not self.shuffle:
            return torch.arange(self.size, device=device)
        return permutation(self._seeds(1, device), _ORDER, epoch, self.size)[0]

    def indices(self, epoch: int, positions: Tensor) -> Tensor:
        """The images at some positions, int64 ``[B]``; beyond the end the order begins anew."""
        return self.order(epoch, positions.device)[positions % self.size]

    def numbers(self, epoch: int, positions: Tensor, count: int) -> Tensor:
        """Uniform numbers for the images at some positions, float32 ``[B, count]``."""
        when = epoch * self.positions_per_epoch + positions
        return uniform(self._seeds(len(positions), positions.device), _AUGMENT, when, count)

    def _seeds(self, count: int, device: torch.device | str) -> Tensor:
        return torch.full((count,), self.seed, device=device)
