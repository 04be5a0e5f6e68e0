"""Batches of augmented images on the device: from its memory, or streamed through workers.

Both loaders give the same images in the same order with the same crops and colours, to one
or two of 255 levels. :mod:`equicolor.data.epochs` defines an epoch.
"""

import os
import signal
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Required, TypedDict, Unpack

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

__all__ = ["Loader", "ResidentLoader", "StreamingLoader", "check_sizes", "choose_data_path"]

Batch = tuple[Tensor, Tensor]

DATA_PATHS = ("auto", "resident", "streaming")
# The share of a device's memory for decoded images: a GPU also holds the network and its
# activations, a CPU the caches of the operating system.
MEMORY_SHARE = {"cuda": 0.4, "cpu": 0.5}
SKIPPED = -1  # the label of an image that could not be decoded


class TooSmallError(ValueError):
    """An image that is too small for the crops of training."""


def check_sizes(augmentation: Augmentation, sizes: Tensor) -> None:
    """Refuse images of sizes ``[N, 2]`` that are smaller than padded crops even with the padding.

    Example:
        >>> check_sizes(Augmentation(size=40, crop="padded"), torch.tensor([[32, 32]]))
    """
    if augmentation.crop != "padded":
        return
    least = augmentation.size - 2 * PADDING
    short = sizes.amin(1)
    worst = int(short.argmin())
    if int(short[worst]) < least:
        height, width = sizes[worst].tolist()
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
    """Where decoded images are held during training: ``"resident"`` or ``"streaming"``.

    Args:
        images: what to train on.
        device: where to train.
        short_side: the short side of decoded images.
        data_path: the answer; ``"auto"`` is ``"resident"`` if the decoded images take no more than
            a share of the device's memory (40 % of a GPU's, half of the computer's).
    """
    _checks.one_of("data_path", data_path, DATA_PATHS)
    if data_path != "auto":
        return data_path
    device = torch.device(device)
    share = MEMORY_SHARE["cuda" if device.type == "cuda" else "cpu"] * _memory(device)
    fits = estimated_bytes(images, short_side) <= share
    return "resident" if fits else "streaming"


def _memory(device: torch.device) -> int:
    """The device's memory in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _Options(TypedDict, total=False):
    """The arguments of :class:`~equicolor.data.epochs.Epochs` but the size, and a device."""

    batch_size: Required[int]
    seed: int
    shuffle: bool
    rank: int
    world_size: int
    device: torch.device | str


class Loader(ABC):
    """Batches of augmented images, the same every time for the same epoch.

    Iterating gives images ``[B, 3, s, s]`` in [0, 1] (``[3, B, 3, s, s]`` for three views) and
    int64 labels ``[B]``, on the device. :class:`~equicolor.data.epochs.Epochs` cuts an epoch into
    batches. On a GPU the next batch is made on a second stream while the network works on this
    one.
    """

    def __init__(
        self,
        size: int,
        augmentation: Augmentation,
        *,
        device: torch.device | str = "cpu",
        **cut: Any,
    ) -> None:
        self.augmentation, self.device, self.epoch = augmentation, torch.device(device), 0
        self.epochs = Epochs(size, **cut)
        # One stream for all epochs: memory used on a stream is reused only there.
        cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if cuda else None

    def __len__(self) -> int:
        return len(self.epochs)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        # The epoch is read at the first batch: a trainer may make an iterator before it sets one.
        return _ahead(self._batches(), self._stream)

    @abstractmethod
    def _batches(self) -> Iterator[Batch]:
        """The batches of this epoch, made on the current stream."""


def _ahead(batches: Iterator[Batch], stream: torch.cuda.Stream | None) -> Iterator[Batch]:
    """The same batches; each is made on the stream while the previous one is in use."""
    if stream is None:
        yield from batches
        return
    ready: tuple[Batch, torch.cuda.Event] | None = None
    while True:
        following = None
        with torch.cuda.stream(stream):
            batch = next(batches, None)
            if batch is not None:
                following = (_channels_last(batch[0]), batch[1]), stream.record_event()
        if ready is not None:
            batch, event = ready
            current = torch.cuda.current_stream(stream.device)
            current.wait_event(event)
            for tensor in batch:
                tensor.record_stream(current)  # not reused before the current stream is done
            yield batch
        if following is None:
            return
        ready = following


def _channels_last(images: Tensor) -> Tensor:
    """Images or views of images in channels_last memory."""
    flat = images.flatten(0, -4).contiguous(memory_format=torch.channels_last)
    return flat.view(images.shape) if images.ndim > 4 else flat


class ResidentLoader(Loader):
    """Batches of decoded images in the device's memory; see :class:`Loader`.

    Args:
        decoded: the images; they are moved to the device.
        augmentation: what happens to them.
        options: batch_size, seed, shuffle, rank and world_size as of
            :class:`~equicolor.data.epochs.Epochs`, and the device.

    Example:
        >>> from equicolor.data.decoding import decode
        >>> images = torch.randint(256, (10, 3, 8, 8)).byte()
        >>> toy = ImageSet("toy", "train", torch.arange(10), tuple("abcdefghij"), pixels=images)
        >>> crop = Augmentation(size=8, crop="padded")
        >>> loader = ResidentLoader(decode(toy), crop, batch_size=4, shuffle=True)
        >>> [list(images.shape) for images, labels in loader]
        [[4, 3, 8, 8], [4, 3, 8, 8], [4, 3, 8, 8]]
    """

    def __init__(
        self, decoded: Decoded, augmentation: Augmentation, **options: Unpack[_Options]
    ) -> None:
        super().__init__(len(decoded), augmentation, **options)
        check_sizes(augmentation, decoded.sizes)
        self.decoded = decoded.to(self.device)
        if self._stream is not None:  # once: later the two streams run side by side
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def _batches(self) -> Iterator[Batch]:
        epoch, epochs = self.epoch, self.epochs
        order = epochs.order(epoch, self.device)
        for step in range(len(epochs)):
            positions = epochs.positions(step, self.device)
            indices = order[positions % epochs.size]
            numbers = epochs.numbers(epoch, positions, self.augmentation.numbers)
            yield self.images(indices, numbers), self.decoded.labels[indices]

    def images(self, indices: Tensor, numbers: Tensor) -> Tensor:
        """Crop and augment images ``[B]`` with uniform numbers ``[B, augmentation.numbers]``."""
        augmentation = self.augmentation
        boxes = augmentation.boxes(self.decoded.sizes[indices], numbers)
        crops = self.decoded.crops(indices, boxes, augmentation.size, dtype=augmentation.dtype)
        return augmentation.finish(crops, numbers)


class StreamingLoader(Loader):
    """Batches of images decoded by worker processes; see :class:`Loader`.

    Workers decode and crop with Pillow; colours are changed on the device.

    Args:
        images: files, or pixels.
        augmentation: what happens to them.
        short_side: larger images are first resized to this, as in
            :func:`equicolor.data.decoding.decode`; None resizes none.
        workers: processes; 0 decodes in this one.
        skip_corrupt: leave corrupt images out. In training, where batches keep their size,
            black images with the label -1 take their place. ``skipped`` lists them.
        options: as of :class:`ResidentLoader`.

    Attributes:
        skipped: the corrupt images met so far.
    """

    def __init__(
        self,
        images: ImageSet,
        augmentation: Augmentation,
        *,
        short_side: int | None = 256,
        workers: int = 4,
        skip_corrupt: bool = False,
        **options: Unpack[_Options],
    ) -> None:
        super().__init__(len(images), augmentation, **options)
        self.skipped: set[str] = set()
        cuda = self.device.type == "cuda"
        self._crops: DataLoader[_Crops | Exception] = DataLoader(
            _Cutter(images, augmentation, self.epochs, short_side, skip_corrupt),
            sampler=_Requests(self),
            batch_size=None,  # a request is a whole batch
            num_workers=workers,
            pin_memory=cuda,
            persistent_workers=workers > 0,
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # the global one stays as it is
        )

    def _batches(self) -> Iterator[Batch]:
        epoch, epochs, device = self.epoch, self.epochs, self.device
        for step, answer in enumerate(self._crops):
            if isinstance(answer, Exception):
                raise answer
            crops, labels, corrupt = answer
            positions = epochs.positions(step, device)
            if corrupt:
                self.skipped.update(corrupt)
                if not epochs.shuffle:
                    keep = labels != SKIPPED
                    crops, labels = crops[keep], labels[keep]
                    positions = positions[keep.to(device)]
                    if not len(labels):
                        continue
            numbers = epochs.numbers(epoch, positions, self.augmentation.numbers)
            images = crops.to(device, non_blocking=True).float() / 255
            yield self.augmentation.finish(images, numbers), labels.to(device, non_blocking=True)


class _Request(NamedTuple):
    """A batch for a worker to make: its epoch, its positions in the epoch, and its images."""

    epoch: int
    positions: Tensor
    indices: Tensor


class _Crops(NamedTuple):
    """A batch made by a worker: uint8 ``[B, 3, s, s]``, labels ``[B]``, and corrupt images."""

    crops: Tensor
    labels: Tensor
    corrupt: list[str]


class _Requests:
    """The requests of an epoch, in order; made in this process, so workers know no epoch."""

    def __init__(self, loader: Loader) -> None:
        # Weak, because loader and workers would form a cycle: the garbage collector would end the
        # queues first, and then wait five seconds for every worker, which is never told to stop.
        self.loader: Loader = weakref.proxy(loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[_Request]:
        epoch, epochs = self.loader.epoch, self.loader.epochs
        order = epochs.order(epoch)
        for step in range(len(epochs)):
            positions = epochs.positions(step)
            yield _Request(epoch, positions, order[positions % epochs.size])


@dataclass
class _Cutter(Dataset[_Crops | Exception]):
    """Decodes and crops whole batches, in a worker."""

    images: ImageSet
    augmentation: Augmentation
    epochs: Epochs
    short_side: int | None
    skip_corrupt: bool

    def __getitem__(self, request: _Request) -> _Crops | Exception:
        try:
            return self._cut(request)
        except (CorruptImageError, TooSmallError, OSError) as error:
            return error  # raised in a worker, it would come with a page of traceback

    def _cut(self, request: _Request) -> _Crops:
        corrupt: list[str] = []
        images: list[Image | None] = []
        labels = self.images.labels[request.indices]
        for place, index in enumerate(request.indices.tolist()):
            try:
                images.append(decode_image(self.images, index, self.short_side))
            except CorruptImageError as error:
                if not self.skip_corrupt:
                    raise
                images.append(None)
                labels[place] = SKIPPED
                corrupt.append(str(error))
        # A corrupt image gets the size of the crop, and no pixels.
        size = self.augmentation.size
        sizes = torch.tensor([(size,) * 2 if i is None else (i.height, i.width) for i in images])
        check_sizes(self.augmentation, sizes)
        count = self.augmentation.numbers
        numbers = self.epochs.numbers(request.epoch, request.positions, count)
        boxes = self.augmentation.boxes(sizes, numbers).tolist()
        crops = torch.zeros(len(images), 3, size, size, dtype=torch.uint8)
        for crop, image, box in zip(crops, images, boxes, strict=True):
            if image is not None:
                crop.copy_(_cut(image, box, size))
        return _Crops(crops, labels, corrupt)


def _cut(image: "Image", box: tuple[float, float, float, float], size: int) -> Tensor:
    """As :func:`equicolor.data.crops.resample`, with Pillow; uint8 ``[3, s, s]``."""
    import numpy as np
    from PIL import Image

    left, top, right, bottom = box
    low, high = min(left, right), max(left, right)
    if low < 0 or top < 0 or high > image.width or bottom > image.height:
        # Only crops of the output's size reach outside; Pillow pads them with black.
        cut = image.crop((round(low), round(top), round(high), round(bottom)))
    else:
        cut = image.resize((size, size), Image.Resampling.BILINEAR, (low, top, high, bottom))
    if left > right:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(cut)).movedim(2, 0)


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
