"""The order of images in an epoch, and the random numbers of each image.

Everything is a function of seed, epoch and position in the epoch's order. So a resumed run sees
the same images as an uninterrupted one, and several processes together see what one would see.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from equicolor import _checks
from equicolor._random import permutation, uniform

_ORDER, _AUGMENT = range(2)  # streams of random numbers


@dataclass(frozen=True)
class Epochs:
    """Orders images, cuts them into batches, and divides them between processes.

    In **training** (``shuffle``) every batch has ``batch_size`` images, so that shapes stay the
    same; the last one is filled from the start of the order. If there are fewer images, a batch
    has all of them. Every process gets an equal slice of a batch.

    In **evaluation** every image comes once, in order; processes take turns. The last batch may
    be smaller.
    """

    images: int  # how many
    batch_size: int  # of all processes together
    seed: int = 0  # of order and augmentation
    shuffle: bool = False  # True for training, False for evaluation
    rank: int = 0  # the number of this process
    world_size: int = 1  # the number of processes

    def __post_init__(self) -> None:
        for name in ("images", "batch_size", "world_size"):
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
        """Images in a batch of all processes."""
        if not self.shuffle or self.images >= self.batch_size:
            return self.batch_size
        return math.ceil(self.images / self.world_size) * self.world_size

    @property
    def own_batch(self) -> int:
        """Images in a batch of this process."""
        return self.batch // self.world_size

    def __len__(self) -> int:
        """Batches of this process in an epoch."""
        if self.shuffle:
            return math.ceil(self.images / self.batch)
        return math.ceil(len(range(self.rank, self.images, self.world_size)) / self.own_batch)

    def positions(self, step: int, device: torch.device | str = "cpu") -> Tensor:
        """The positions of this process's batch in the order of the epoch, int64 ``[B]``.

        Positions beyond the end of the order mean its start again, to fill the last batch.
        """
        if self.shuffle:
            start = step * self.batch + self.rank * self.own_batch
            return torch.arange(start, start + self.own_batch, device=device)
        first = step * self.batch_size + self.rank
        stop = min((step + 1) * self.batch_size, self.images)
        return torch.arange(first, stop, self.world_size, device=device)

    def order(self, epoch: int, device: torch.device | str = "cpu") -> Tensor:
        """The images of an epoch in order, int64 ``[N]``."""
        if not self.shuffle:
            return torch.arange(self.images, device=device)
        seeds = torch.full((1,), self.seed, device=device)
        return permutation(seeds, _ORDER, epoch, self.images)[0]

    def numbers(self, epoch: int, positions: Tensor, count: int) -> Tensor:
        """Uniform numbers for the images at some positions, float32 ``[B, count]``."""
        # Of all processes; more than the images if the last batch is filled.
        positions_per_epoch = len(self) * self.batch if self.shuffle else self.images
        when = epoch * positions_per_epoch + positions
        return uniform(torch.full_like(positions, self.seed), _AUGMENT, when, count)

    def batches(
        self, epoch: int, count: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The images ``[B]`` of each batch of this process, and their numbers ``[B, count]``."""
        order = self.order(epoch, device)
        for step in range(len(self)):
            positions = self.positions(step, device)
            yield order[positions % self.images], self.numbers(epoch, positions, count)
