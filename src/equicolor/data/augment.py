"""Augmentation of batches of images on their device: crops, flips, AugMix, hue jitter, grey.

Random numbers are arguments, one row an image, and come from a generator without state
(``equicolor._random``): the same numbers give the same images on any device and in any batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equicolor import _checks
from equicolor.color import shift_hue, to_gray
from equicolor.data import crops
from equicolor.data.augmix import AugMix
from equicolor.data.crops import LEFT, TOP

PADDING = 4  # how far padded crops may reach outside the image
# Places among an image's numbers, after those of a random-resized crop. They are fixed, so that
# turning one augmentation on or off does not change the others.
FLIP, JITTER, MIXES = range(LEFT + 1, LEFT + 4)


@dataclass(frozen=True)
class Augmentation:
    """What happens to an image between the dataset and the network.

    :meth:`boxes` says what to cut out of images of different sizes, and :meth:`finish` changes the
    colours of what was cut out. Both take ``numbers`` uniform numbers for each image, in this
    order: ten areas and ten ratios of random-resized crops, top, left, flip, jitter, then those of
    AugMix (twice for three views). Only numbers at the end can be left out.

    A crop is ``"resized"`` (random area and ratio), ``"padded"`` (random place, no resizing) or
    ``"centre"``.

    Example:
        >>> train = Augmentation(size=32, crop="padded", jitter=0.5)
        >>> train.boxes(torch.tensor([[32, 32]]), torch.full((1, train.numbers), 0.5)).tolist()
        [[0.0, 0.0, 32.0, 32.0]]
        >>> train.evaluation().numbers
        0
    """

    size: int = 224  # height and width of the results
    crop: str = "resized"
    resize: int = 256  # the short side before a centre crop, also that of evaluation()
    flip: bool = True  # mirror half of the images
    jitter: float = 0.0  # hue shifts are uniform in ± this many turns; 0.5 is the whole circle
    gray: bool = False  # replace the channels by their mean, at test time too
    augmix: AugMix | None = None  # mix in chains of random operations
    views: int = 1  # or 3 for the Jensen-Shannon loss, see finish()
    dtype: torch.dtype = torch.float32  # of the resampling, see crops.resample()

    def __post_init__(self) -> None:
        _checks.positive_int("size", self.size)
        _checks.one_of("crop", self.crop, ("resized", "padded", "centre"))
        if self.crop != "padded" and self.resize < self.size:
            raise ValueError(f"resize must be at least size={self.size}, got {self.resize}")
        if not 0 <= self.jitter <= 0.5:
            raise ValueError(f"jitter must lie in [0, 0.5] turns, got {self.jitter}")
        if self.views not in (1, 3):
            raise ValueError(f"views must be 1, or 3 for the Jensen-Shannon loss; got {self.views}")
        if self.views == 3 and self.augmix is None:
            raise ValueError("views=3 needs augmix: two of the three views are its mixes")

    @property
    def numbers(self) -> int:
        """How many uniform numbers an image needs."""
        if self.augmix is not None:
            return MIXES + AugMix.numbers * (2 if self.views == 3 else 1)
        if self.jitter:
            return JITTER + 1
        if self.flip:
            return FLIP + 1
        return 0 if self.crop == "centre" else LEFT + 1

    def evaluation(self) -> "Augmentation":
        """The transform of test images: the centre, and grey if training is grey.

        For padded crops the short side becomes ``size``, so images of that size stay as they are.
        """
        resize = self.size if self.crop == "padded" else self.resize
        return Augmentation(
            size=self.size, crop="centre", resize=resize, flip=False, gray=self.gray,
            dtype=self.dtype,
        )  # fmt: skip

    def boxes(self, sizes: Tensor, numbers: Tensor) -> Tensor:
        """Boxes to crop ``[B, 4]``, from sizes ``[B, 2]`` and numbers ``[B, numbers]``."""
        self._check_numbers(numbers, len(sizes))
        if self.crop == "centre":
            boxes = crops.centre_boxes(sizes, self.size, self.resize)
        elif self.crop == "padded":
            place = numbers[:, TOP : LEFT + 1]
            boxes = crops.padded_crop_boxes(sizes, place, self.size, PADDING)
        else:
            boxes = crops.random_resized_boxes(sizes, numbers)
        return crops.flip_boxes(boxes, numbers[:, FLIP]) if self.flip else boxes

    def finish(self, images: Tensor, numbers: Tensor) -> Tensor:
        """AugMix, then hue jitter, then grey.

        The three views for the Jensen-Shannon loss are the images without AugMix and under two
        draws of it; the views of an image share crop, flip and hue shift.

        Args:
            images: what was cut out, ``[B, 3, s, s]`` in [0, 1].
            numbers: all numbers of the images, ``[B, numbers]``.

        Returns:
            Images of the same shape, or ``[3, B, 3, s, s]`` for three views.
        """
        self._check_numbers(numbers, len(images))
        if self.augmix is None:
            return self._tint(images, numbers)
        mixes = numbers[:, MIXES:].split(AugMix.numbers, 1)
        mixed = [self.augmix(images, each) for each in mixes]
        if self.views == 1:
            return self._tint(mixed[0], numbers)
        return torch.stack([self._tint(view, numbers) for view in (images, *mixed)])

    def _tint(self, images: Tensor, numbers: Tensor) -> Tensor:
        if self.jitter:
            images = shift_hue(images, (2 * numbers[:, JITTER] - 1) * self.jitter)
        return to_gray(images).contiguous() if self.gray else images

    def _check_numbers(self, numbers: Tensor, batch: int) -> None:
        if numbers.shape != (batch, self.numbers):
            raise ValueError(
                f"numbers must have shape {[batch, self.numbers]}, got {list(numbers.shape)}"
            )
