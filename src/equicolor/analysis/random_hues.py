"""Images in random hues: data in which all hues are equally common."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from equicolor._random import uniform
from equicolor.analysis.activations import Batches, images_of
from equicolor.color import shift_hue

__all__ = ["RandomHues"]

_STREAM = 7  # of random numbers; any that is not used for images elsewhere


@dataclass(frozen=True, eq=False)
class RandomHues:
    """Batches of images, every image with its hue shifted by a random angle.

    The images that excite a rotation of a unit depend on the data: few flowers are green or
    cyan, so the rotation that looks for those finds others. Among images in random hues, every
    rotation finds what it looks for. The hue of an image depends on its number and the seed, not
    on the batches.

    Args:
        batches: images :math:`[B, 3, H, W]` in [0, 1], or pairs of images and labels.
        seed: of the hues.

    Example:
        >>> images = torch.rand(4, 3, 2, 2)
        >>> whole = next(iter(RandomHues([images])))
        >>> parts = list(RandomHues([images[:3], images[3:]]))
        >>> torch.equal(torch.cat(parts), whole), torch.equal(whole, images)
        (True, False)
    """

    batches: Batches
    seed: int = 0

    def __iter__(self) -> Iterator[Tensor]:
        first = 0
        for batch in self.batches:
            images = images_of(batch)
            yield self.shift(images, torch.arange(first, first + len(images)))
            first += len(images)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]  # a TypeError if they have none

    def shift(self, images: Tensor, numbers: Tensor) -> Tensor:
        """Images with the hues of their numbers.

        Args:
            images: :math:`[B, 3, H, W]`.
            numbers: their places in the data, int64 :math:`[B]` on the CPU.
        """
        if not len(images):
            return images
        turns = uniform(torch.tensor([self.seed]), _STREAM, 0, int(numbers.max()) + 1)[0, numbers]
        return shift_hue(images, turns.to(images.device, images.dtype))
