"""Images decoded once into one buffer, cached on disk, and gathered on the device."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from equicolor import _checks
from equicolor._files import file_sizes, user_cache
from equicolor._text import brief_repr
from equicolor.data.crops import resample
from equicolor.data.images import CorruptImageError, ImageSet
from equicolor.data.packing import Decoder, Plan, final_size
from equicolor.devices import cores, runs_triton
from equicolor.reporting.progress import Progress, say

if TYPE_CHECKING:
    from rich.console import Console

# On a CPU, images of more pixels are cut one by one. That is faster than padding all to the largest
# height and width, and one high and one wide image do not fill the memory.
_SMALL = 256**2
_SAMPLE = 256  # images whose headers are read to estimate the memory for all


@dataclass(frozen=True)
class Decoded:
    """Decoded images of different sizes, packed into one buffer on one device.

    Each image is stored as ``H × W × 3``, row by row. After the last image there is room for the
    longest row, so that gathering never leaves the buffer.

    Example:
        >>> pixels = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).view(2, 3, 4, 5)
        >>> images = ImageSet("toy", "train", torch.tensor([0, 1]), ("a", "b"), pixels=pixels)
        >>> batch, sizes = decode(images).batch(torch.tensor([1, 0, 1]))
        >>> torch.equal(batch, pixels[[1, 0, 1]]), sizes.tolist()
        (True, [[4, 5], [4, 5], [4, 5]])
    """

    pixels: Tensor  # uint8 [bytes]
    offsets: Tensor  # int64 [N], where each image begins
    sizes: Tensor  # int64 [N, 2], height and width of each
    labels: Tensor  # int64 [N]
    class_names: tuple[str, ...]
    skipped: tuple[str, ...] = ()  # what is wrong with each corrupt image that was left out
    height: int = 0  # the largest of all images
    width: int = 0

    __repr__ = brief_repr

    def __post_init__(self) -> None:
        # Computed once on the host, so that batch() never waits for the device.
        if not self.height:
            height, width = self.sizes.amax(0).tolist()
            object.__setattr__(self, "height", height)
            object.__setattr__(self, "width", width)

    def __len__(self) -> int:
        return len(self.offsets)

    def to(self, device: torch.device | str) -> "Decoded":
        """The same images on another device."""
        names = ("pixels", "offsets", "sizes", "labels")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def image(self, index: int) -> Tensor:
        """One image at its own size, uint8 ``[3, h, w]``."""
        height, width = self.sizes[index].tolist()
        start = int(self.offsets[index])
        return self.pixels[start : start + 3 * height * width].view(height, width, 3).movedim(2, 0)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Gather images, without waiting for the device.

        Returns:
            Images, uint8 ``[B, 3, height, width]`` in channels_last memory, padded with zeros at
            the right and the bottom; and their sizes, int64 ``[B, 2]``.
        """
        sizes, offsets = self.sizes[indices], self.offsets[indices]
        row_bytes = 3 * sizes[:, 1:]
        rows = torch.arange(self.height, device=offsets.device)
        columns = torch.arange(3 * self.width, device=offsets.device)
        inside = rows < sizes[:, :1]
        starts = offsets[:, None] + torch.where(inside, rows * row_bytes, 0)
        # An overlapping view with every run of 3W bytes as a row: gathering needs an index for each
        # row of an image, not for each byte.
        count = len(self.pixels) - 3 * self.width + 1
        runs = self.pixels.as_strided((count, 3 * self.width), (1, 1))
        keep = inside[:, :, None] & (columns < row_bytes)[:, None, :]
        gathered = torch.where(keep, runs[starts], 0)
        return gathered.unflatten(2, (self.width, 3)).permute(0, 3, 1, 2), sizes

    def crops(
        self, indices: Tensor, boxes: Tensor, size: int, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Cut boxes out of images and resize them, without waiting for the device.

        With Triton, a kernel reads only the pixels that the boxes need. Elsewhere whole images go
        to :func:`equicolor.data.crops.resample`: gathered, or on a CPU one by one unless all are
        small. ``indices`` ``[B]`` are on the device of the images. ``boxes`` ``[B, 4]``, ``size``,
        ``dtype`` and the result are those of ``resample``.
        """
        if self.pixels.is_cuda and runs_triton(self.pixels.device):
            # Triton is slow to import and not installed everywhere.
            from equicolor.data import resample_kernels

            packed = self.pixels, self.offsets, self.sizes
            with torch.cuda.device(self.pixels.device):
                return resample_kernels.crops(*packed, indices, boxes, size)
        if self.pixels.is_cpu and self.height * self.width > _SMALL:
            crops = [
                resample(self.image(index)[None], self.sizes[index, None], box, size, dtype=dtype)
                for index, box in zip(indices.tolist(), boxes.split(1), strict=True)
            ]
            return torch.cat(crops)
        images, sizes = self.batch(indices)
        return resample(images, sizes, boxes, size, dtype=dtype)


def default_cache() -> Path:
    """The default folder of decoded images, in the user's cache folder."""
    return user_cache() / "decoded"


def check_cache(cache: Path) -> Path:
    """Refuse a cache that is a file, or below one, before anything is decoded; returns the path."""
    for place in (cache, *cache.parents):
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(
                f"decoded images are kept in a folder (--cache), but {place} is a file"
            )
    return cache


@contextlib.contextmanager
def say_cache_growth(cache: Path | None, console: "Console | None") -> Iterator[None]:
    """Say where decoded images are kept, and their size in all, if the block adds some."""
    before = _bytes_in(cache)
    yield
    after = _bytes_in(cache)
    if after > before:
        say(
            console,
            f"decoded images are kept in {cache}, {after / 1e6:,.1f} MB by now; deleted images "
            "are decoded again",
        )


def _bytes_in(cache: Path | None) -> int:
    return 0 if cache is None else sum(file_sizes(cache))


def decode(
    images: ImageSet,
    *,
    short_side: int | None = 256,
    cache: Path | str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    on_corrupt: str = "error",
) -> Decoded:
    """Decode images once, to RGB.

    With a cache, the next call only maps the decoded images into memory, and a call after an
    interrupted one continues it. Processes that need the same images wait for the first one.

    Args:
        images: files, or pixels.
        short_side: larger images are resized to this (Pillow's antialiased bilinear), smaller
            ones stay as they are; None resizes none.
        cache: the folder of the cache, such as :func:`default_cache`; None stores nothing.
        workers: threads (default: one per core, at most 32).
        progress: called with (images done, all images).
        on_corrupt: ``"error"`` to raise CorruptImageError with the path of an image that cannot
            be decoded, or ``"skip"`` to leave corrupt images out and list them in ``skipped``.

    Returns:
        The decoded images, in the same order, on the CPU.

    Example:
        >>> pixels = torch.zeros(2, 3, 40, 20, dtype=torch.uint8)
        >>> images = ImageSet("toy", "train", torch.tensor([0, 1]), ("a", "b"), pixels=pixels)
        >>> decode(images, short_side=10).sizes.tolist()
        [[20, 10], [20, 10]]
    """
    _checks.one_of("on_corrupt", on_corrupt, ("error", "skip"))
    if short_side is not None:
        _checks.positive_int("short_side", short_side)
    workers = min(cores(), 32) if workers is None else workers
    _checks.positive_int("workers", workers)
    if images.pixels is not None:
        count, _, height, width = images.pixels.shape
        if short_side is None or min(height, width) <= short_side:
            plan = Plan.of_sizes(torch.tensor([height, width]).repeat(count, 1))
            pixels = images.pixels.permute(0, 2, 3, 1).reshape(-1)
            return Decoded(pixels, *plan, images.labels, images.class_names)
        cache = None  # pixels are in memory already
    decoder = Decoder(images, short_side, workers, progress, on_corrupt == "skip")
    pixels, plan = decoder.in_memory() if cache is None else decoder.on_disk(Path(cache))
    corrupt = decoder.corrupt
    if corrupt and on_corrupt == "error":  # cached by a call that skipped them
        raise CorruptImageError(corrupt[min(corrupt)])
    whole = [index for index in range(len(images)) if index not in corrupt]
    if not whole:
        raise CorruptImageError(f"every image is corrupt, beginning with {corrupt[0]}")
    return Decoded(
        pixels,
        plan.offsets[whole],
        plan.sizes[whole],
        images.labels[whole],
        images.class_names,
        tuple(corrupt[index] for index in sorted(corrupt)),
    )


def estimated_bytes(images: ImageSet, short_side: int | None) -> int:
    """The bytes that :func:`decode` will need, estimated from the headers of some images."""
    places = np.linspace(0, len(images) - 1, min(_SAMPLE, len(images))).astype(int)
    sizes = []
    for place in places.tolist():
        with contextlib.suppress(CorruptImageError):
            sizes.append(math.prod(final_size(images, place, short_side)))
    return round(3 * len(images) * sum(sizes) / max(len(sizes), 1))
