"""Batches of augmented images on the device: from its memory, or streamed through workers.

Both loaders give the same images in the same order with the same crops and colours, to one
or two of 255 levels; see :mod:`equicolor.data.epochs` for what an epoch is.
"""

import os
import signal
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Required, TypedDict, Unpack

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from equicolor import _checks
from equicolor.data.augment import Augmentation
from equicolor.data.decoding import Decoded, estimated_bytes
from equicolor.data.epochs import Epochs
from equicolor.data.images import CorruptImageError, ImageSet
from equicolor.data.packing import decode_image

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Loader", "ResidentLoader", "StreamingLoader", "check_sizes", "choose_data_path"]

Batch = tuple[Tensor, Tensor]

DATA_PATHS = ("auto", "resident", "streaming")
# How much of a device's memory decoded images may take: a GPU also holds the network and
# its activations, a CPU the caches of the operating system.
MEMORY_SHARE = {"cuda": 0.4, "cpu": 0.5}
SKIPPED = -1  # the label of an image that could not be decoded


class TooSmallError(ValueError):
    """An image that is too small for the crops of training."""


def check_sizes(augmentation: Augmentation, sizes: Tensor) -> None:
    """Refuse images that a padded crop would not fill, which are shown otherwise when tested.

    Args:
        augmentation: of training.
        sizes: heights and widths ``[N, 2]``.

    Raises:
        TooSmallError: if an image with its padding is smaller than the crop.

    Example:
        >>> check_sizes(Augmentation(size=40, crop="padded"), torch.tensor([[32, 32]]))
        >>> try:
        ...     check_sizes(Augmentation(size=64, crop="padded"), torch.tensor([[32, 32]]))
        ... except ValueError as error:
        ...     print(str(error).partition(" (")[0])
        shifted crops of 64 pixels need images of at least 56
    """
    if augmentation.crop != "padded":
        return
    least = augmentation.size - 2 * augmentation.padding
    short = sizes.amin(1)
    worst = int(short.argmin())
    if int(short[worst]) < least:
        height, width = sizes[worst].tolist()
        raise TooSmallError(
            f"shifted crops of {augmentation.size} pixels need images of at least {least} "
            f"({augmentation.padding} are added on every side), but one is {height} × {width}: "
            "choose a smaller size"
        )


def choose_data_path(
    images: ImageSet,
    device: torch.device | str,
    *,
    short_side: int | None = 256,
    wanted: str = "auto",
) -> str:
    """Where images should live while a network trains on them.

    Args:
        images: what to train on.
        device: where to train.
        short_side: what decoded images are made small to.
        wanted: ``"auto"``, or the answer.

    Returns:
        ``"resident"`` if the decoded images take no more than a share of the device's memory
        (40 % of a GPU's, half of the computer's), else ``"streaming"``.

    Example:
        >>> images = torch.zeros(2, 3, 40, 20, dtype=torch.uint8)
        >>> toy = ImageSet("toy", "train", torch.tensor([0, 0]), ("a",), pixels=images)
        >>> choose_data_path(toy, "cpu")
        'resident'
    """
    _checks.one_of("data_path", wanted, DATA_PATHS)
    if wanted != "auto":
        return wanted
    device = torch.device(device)
    share = MEMORY_SHARE["cuda" if device.type == "cuda" else "cpu"] * _memory(device)
    fits = estimated_bytes(images, short_side=short_side) <= share
    return "resident" if fits else "streaming"


def _memory(device: torch.device) -> int:
    """Bytes of memory in all."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _Options(TypedDict, total=False):
    """How a loader orders and cuts, as of :class:`~equicolor.data.epochs.Epochs`."""

    batch_size: Required[int]
    seed: int
    shuffle: bool
    rank: int
    world_size: int
    device: torch.device | str


class Loader(ABC):
    """Batches of augmented images, the same every time for the same epoch.

    Iterating gives images ``[B, 3, s, s]`` in [0, 1] (``[3, B, 3, s, s]`` where the
    augmentation makes three views) and int64 labels ``[B]``, on the device. Training and
    evaluation cut an epoch as :class:`~equicolor.data.epochs.Epochs` says. On a GPU the
    next batch is made on a stream of its own while the network works on this one.
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
        # One for all epochs: memory that was used on a stream is used again only there.
        cuda = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if cuda else None

    def __len__(self) -> int:
        return len(self.epochs)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration goes through."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        # The epoch is looked up at the first batch: a trainer may ask for an iterator early.
        return _ahead(self._batches(), self._stream)

    @abstractmethod
    def _batches(self) -> Iterator[Batch]:
        """The batches of this epoch, made on the current stream."""


def _ahead(batches: Iterator[Batch], stream: torch.cuda.Stream | None) -> Iterator[Batch]:
    """The same batches; each is made on the stream while its predecessor is worked on."""
    if stream is None:
        yield from batches
        return
    ready: tuple[Batch, torch.cuda.Event] | None = None
    while True:
        with torch.cuda.stream(stream):
            made = next(batches, None)
            following = None
            if made is not None:
                images, labels = made
                following = (_channels_last(images), labels), stream.record_event()
        if ready is not None:
            batch, event = ready
            current = torch.cuda.current_stream(stream.device)
            current.wait_event(event)
            for tensor in batch:
                tensor.record_stream(current)  # not to be used again before that one is done
            yield batch
        if following is None:
            return
        ready = following


def _channels_last(images: Tensor) -> Tensor:
    """Images or views of images in channels_last memory."""
    flat = images.flatten(0, -4).contiguous(memory_format=torch.channels_last)
    return flat.view(images.shape) if images.ndim > 4 else flat


class ResidentLoader(Loader):
    """Batches of images that lie decoded in the device's memory; see :class:`Loader`.

    Args:
        decoded: the images; they are moved to the device.
        augmentation: what happens to them.
        batch_size: of all processes together.
        seed: of order and augmentation.
        shuffle: True for training, False for evaluation.
        rank, world_size: which of how many processes this is.
        device: where to.

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
        if self._stream is not None:  # once: later the two streams go on side by side
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
        """Some images, cut and augmented.

        Args:
            indices: int64 ``[B]``, on the device.
            numbers: uniform numbers ``[B, augmentation.numbers]``.
        """
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
        short_side: larger images are first resized to this, as :func:`equicolor.data.decoding.
            decode` does; None keeps them.
        workers: processes; 0 decodes in this one.
        skip_corrupt: leave corrupt images out. In training, where batches keep their size,
            their place is taken by black with the label -1. They are listed in ``skipped``.
        options: as of :class:`ResidentLoader`: batch_size, seed, shuffle, rank, world_size and
            device.

    Attributes:
        skipped: the corrupt images met so far.

    Example:
        >>> images = torch.randint(256, (10, 3, 8, 8)).byte()
        >>> toy = ImageSet("toy", "test", torch.arange(10), tuple("abcdefghij"), pixels=images)
        >>> crop = Augmentation(size=8, crop="padded").evaluation()
        >>> [labels.tolist() for _, labels in StreamingLoader(toy, crop, workers=0, batch_size=8)]
        [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]]
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
        self._crops: DataLoader[_Crops] = DataLoader(
            _Cutter(images, augmentation, self.epochs, short_side, skip_corrupt),
            sampler=_Requests(self),
            batch_size=None,  # a request is a whole batch
            num_workers=workers,
            pin_memory=cuda,
            persistent_workers=workers > 0,
            worker_init_fn=_leave_interrupts_to_the_parent,
            generator=torch.Generator(),  # its own, so that the global one is left alone
        )

    def _batches(self) -> Iterator[Batch]:
        epoch, epochs, device = self.epoch, self.epochs, self.device
        for step, (crops, labels, corrupt, error) in enumerate(self._crops):
            if error is not None:
                raise error
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
    """What a worker shall make: images, and where in which epoch they stand."""

    epoch: int
    positions: Tensor
    indices: Tensor


class _Crops(NamedTuple):
    """What a worker made: uint8 ``[B, 3, s, s]``, labels ``[B]``, and corrupt images.

    Or why it made nothing: raised in a worker, an error would come with a page of traceback.
    """

    crops: Tensor
    labels: Tensor
    corrupt: list[str]
    error: Exception | None = None


class _Requests:
    """The requests of an epoch, in order; made in this process, so workers know no epoch."""

    def __init__(self, loader: Loader) -> None:
        # Weak, or loader and workers were a circle: the garbage collector would end its queues
        # first, and then wait five seconds for every worker that is never told to stop.
        self.loader: Loader = weakref.proxy(loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[_Request]:
        epoch, epochs = self.loader.epoch, self.loader.epochs
        order = epochs.order(epoch)
        for step in range(len(epochs)):
            positions = epochs.positions(step)
            yield _Request(epoch, positions, order[positions % epochs.size])


class _Cutter(Dataset[_Crops]):
    """Decodes and crops whole batches, in a worker."""

    def __init__(
        self,
        images: ImageSet,
        augmentation: Augmentation,
        epochs: Epochs,
        short_side: int | None,
        skip_corrupt: bool,
    ) -> None:
        self.images, self.augmentation, self.epochs = images, augmentation, epochs
        self.short_side, self.skip_corrupt = short_side, skip_corrupt

    def __getitem__(self, request: _Request) -> _Crops:
        try:
            return self._cut(request)
        except (CorruptImageError, TooSmallError, OSError) as error:
            return _Crops(torch.empty(0), torch.empty(0), [], error)

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
        # PIL says width first. A corrupt image gets some size, and no pixels.
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
    """What :func:`equicolor.data.augment.resample` does, with Pillow; uint8 ``[3, s, s]``."""
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


def _leave_interrupts_to_the_parent(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; only the parent shall answer it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
