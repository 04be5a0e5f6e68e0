"""Batches of augmented images on the device: from its memory, or streamed through workers.

Both loaders yield the same images in the same order with the same crops and colours, up to one or
two of 255 levels. :mod:`equicolor.data.epochs` defines an epoch.
"""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from equicolor import _checks
from equicolor.data.augment import PADDING, Augmentation
from equicolor.data.decoding import Decoded, estimated_bytes
from equicolor.data.epochs import Epochs
from equicolor.data.images import CorruptImageError, ImageSet
from equicolor.data.packing import decode_image

if TYPE_CHECKING:
    from PIL.Image import Image

Batch = tuple[Tensor, Tensor]

DATA_PATHS = ("auto", "resident", "streaming")
# The share of a device's memory for decoded images. A GPU also needs memory for the network and its
# activations, a computer for the caches of its operating system.
MEMORY_SHARE = {"cuda": 0.4, "cpu": 0.5}
SKIPPED = -1  # the label of an image that could not be decoded


class TooSmallError(ValueError):
    """An image that is too small for the crops of training."""


def check_sizes(augmentation: Augmentation, sizes: Tensor) -> None:
    """Refuse images of sizes ``[N, 2]`` that are too small for padded crops."""
    least = augmentation.size - 2 * PADDING
    height, width = sizes[sizes.amin(1).argmin()].tolist()
    if augmentation.crop == "padded" and min(height, width) < least:
        raise TooSmallError(
            f"shifted crops of {augmentation.size} pixels need images of at least {least} "
            f"({PADDING} are added on every side), but one is {height} × {width}: "
            "choose a smaller size"
        )


def choose_data_path(
    images: ImageSet,
    device: torch.device | str,
    *,
    short_side: int | None = 256,
    data_path: str = "auto",
) -> str:
    """Where decoded images are held: ``"resident"`` or ``"streaming"``.

    This is ``data_path`` itself, unless it is ``"auto"``: that means ``"resident"`` if the decoded
    images fit into a share of the device's memory (40 % of a GPU's, half of the computer's).
    """
    _checks.one_of("data_path", data_path, DATA_PATHS)
    if data_path != "auto":
        return data_path
    device = torch.device(device)
    share = MEMORY_SHARE["cuda" if device.type == "cuda" else "cpu"] * _memory(device)
    return "resident" if estimated_bytes(images, short_side) <= share else "streaming"


def _memory(device: torch.device) -> int:
    """The device's memory in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def evaluation_batch(device: torch.device | str, size: int) -> int:
    """How many images of a size an evaluation should take at a time.

    On a CPU as many pixels as 8 images of 224. What a layer computes is then smaller than the 32 MB
    that glibc keeps for later tensors. Larger memory it gives back, and the system clears every
    page before the next tensor gets it.
    """
    if torch.device(device).type != "cpu":
        return 256
    return min(max(8 * 224**2 // size**2, 1), 256)


class Loader(ABC):
    """Batches of augmented images, the same every time for the same epoch.

    Iterating yields images ``[B, 3, s, s]`` in [0, 1] (``[3, B, 3, s, s]`` for three views) and
    int64 labels ``[B]``, on the device. Options are the device and the fields of
    :class:`~equicolor.data.epochs.Epochs` except ``images``. On a GPU the next batch is made on a
    second stream while the network works on this one.
    """

    def __init__(
        self,
        images: int,
        augmentation: Augmentation,
        device: torch.device | str = "cpu",
        **cut: Any,
    ) -> None:
        self.augmentation, self.device, self.epoch = augmentation, torch.device(device), 0
        self.epochs = Epochs(images, **cut)
        # One stream for all epochs: memory used on a stream is reused only there.
        cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if cuda else None

    def __len__(self) -> int:
        return len(self.epochs)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        # The epoch is read at the first batch: a trainer may set it after making the iterator.
        batches, stream = self._batches(), self._stream
        if stream is None:
            yield from batches
            return

        def make() -> tuple[Batch, torch.cuda.Event] | None:
            with torch.cuda.stream(stream):
                batch = next(batches, None)
                if batch is None:
                    return None
                return (_channels_last(batch[0]), batch[1]), stream.record_event()

        following = make()
        while following is not None:  # the next batch is made while this one is in use
            (batch, event), following = following, make()
            current = torch.cuda.current_stream(self.device)
            current.wait_event(event)
            for tensor in batch:
                tensor.record_stream(current)  # not reused before the current stream is done
            yield batch

    @abstractmethod
    def _batches(self) -> Iterator[Batch]:
        """The batches of this epoch, made on the current stream."""


def _channels_last(images: Tensor) -> Tensor:
    """Images or views of images in channels_last memory."""
    flat = images.flatten(0, -4).contiguous(memory_format=torch.channels_last)
    return flat.view(images.shape)


class ResidentLoader(Loader):
    """Batches of decoded images that are held on the device; see :class:`Loader`."""

    def __init__(self, decoded: Decoded, augmentation: Augmentation, **options: Any) -> None:
        super().__init__(len(decoded), augmentation, **options)
        check_sizes(augmentation, decoded.sizes)
        self.decoded = decoded.to(self.device)
        if self._stream is not None:  # once: later the two streams run side by side
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def _batches(self) -> Iterator[Batch]:
        count = self.augmentation.numbers
        for indices, numbers in self.epochs.batches(self.epoch, count, self.device):
            yield self.images(indices, numbers), self.decoded.labels[indices]

    def images(self, indices: Tensor, numbers: Tensor) -> Tensor:
        """Crop and augment images ``[B]`` with uniform numbers ``[B, augmentation.numbers]``."""
        augmentation = self.augmentation
        boxes = augmentation.boxes(self.decoded.sizes[indices], numbers)
        crops = self.decoded.crops(indices, boxes, augmentation.size, dtype=augmentation.dtype)
        return augmentation.finish(crops, numbers)


class StreamingLoader(Loader):
    """Batches of images decoded by worker processes; see :class:`Loader`.

    Workers decode and crop with Pillow; colours are changed on the device. Images are first
    resized to a short side, as in :func:`equicolor.data.decoding.decode`. With ``workers=0`` this
    process decodes. ``skip_corrupt`` leaves corrupt images out; in training, where batches keep
    their size, black images with the label -1 take their place. ``skipped`` lists those met.
    """

    def __init__(
        self,
        images: ImageSet,
        augmentation: Augmentation,
        *,
        short_side: int | None = 256,
        workers: int = 4,
        skip_corrupt: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(len(images), augmentation, **options)
        self.skipped: set[str] = set()
        self._requests = _Requests(self.epochs, augmentation.numbers)
        self._crops: DataLoader[_Crops | Exception] = DataLoader(
            _Cutter(images, augmentation, short_side, skip_corrupt, fill=self.epochs.shuffle),
            sampler=self._requests,
            batch_size=None,  # a request is a whole batch
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
            persistent_workers=workers > 0,
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # the global one stays as it is
        )

    def _batches(self) -> Iterator[Batch]:
        self._requests.epoch = self.epoch
        for answer in self._crops:
            if isinstance(answer, Exception):
                raise answer
            self.skipped.update(answer.corrupt)
            if len(answer.labels):
                crops, labels, numbers = (
                    each.to(self.device, non_blocking=True) for each in answer[:3]
                )
                yield self.augmentation.finish(crops.float() / 255, numbers), labels


@dataclass
class _Requests:
    """What workers are to make, batch by batch: indices of images, and their random numbers."""

    epochs: Epochs
    count: int
    epoch: int = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epochs.batches(self.epoch, self.count)


class _Crops(NamedTuple):
    """A batch made by a worker: uint8 ``[B, 3, s, s]``, labels, numbers, and corrupt images."""

    crops: Tensor
    labels: Tensor
    numbers: Tensor
    corrupt: list[str]


@dataclass
class _Cutter(Dataset[_Crops | Exception]):
    """Decodes and crops whole batches, in a worker.

    ``fill`` keeps the size of batches: black images take the place of corrupt ones.
    """

    images: ImageSet
    augmentation: Augmentation
    short_side: int | None
    skip_corrupt: bool
    fill: bool

    def __getitem__(self, request: tuple[Tensor, Tensor]) -> _Crops | Exception:
        try:
            return self._make(*request)
        except (CorruptImageError, TooSmallError, OSError) as error:
            return error  # raising it in a worker would print a page of traceback

    def _make(self, indices: Tensor, numbers: Tensor) -> _Crops:
        corrupt: list[str] = []
        images: list[Image | None] = []
        labels = self.images.labels[indices]
        for place, index in enumerate(indices.tolist()):
            try:
                images.append(decode_image(self.images, index, self.short_side))
            except CorruptImageError as error:
                if not self.skip_corrupt:
                    raise
                images.append(None)
                labels[place] = SKIPPED
                corrupt.append(str(error))
        # A corrupt image counts as one of the size of the crop, and stays black.
        size = self.augmentation.size
        sizes = torch.tensor([(size,) * 2 if i is None else (i.height, i.width) for i in images])
        check_sizes(self.augmentation, sizes)
        boxes = self.augmentation.boxes(sizes, numbers).tolist()
        crops = torch.zeros(len(images), 3, size, size, dtype=torch.uint8)
        for crop, image, box in zip(crops, images, boxes, strict=True):
            if image is not None:
                crop.copy_(_cut(image, box, size))
        if corrupt and not self.fill:
            keep = labels != SKIPPED
            crops, labels, numbers = crops[keep], labels[keep], numbers[keep]
        return _Crops(crops, labels, numbers, corrupt)


def _cut(image: "Image", box: tuple[float, float, float, float], size: int) -> Tensor:
    """As :func:`equicolor.data.crops.resample`, with Pillow; uint8 ``[3, s, s]``."""
    import numpy as np
    from PIL import Image

    left, top, right, bottom = box
    low, high = min(left, right), max(left, right)
    if low < 0 or top < 0 or high > image.width or bottom > image.height:
        # Only padded crops, of the output's size, reach outside; Pillow pads them with black.
        cut = image.crop((round(low), round(top), round(high), round(bottom)))
    else:
        cut = image.resize((size, size), Image.Resampling.BILINEAR, (low, top, high, bottom))
    if left > right:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(cut)).movedim(2, 0)


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
