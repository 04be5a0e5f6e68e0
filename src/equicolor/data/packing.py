"""Decode images into one buffer, in memory or in a file of the cache.

The headers give every image's place in the buffer before any image is decoded. A shard is a run of
images whose places adjoin. In the cache it is written as a whole and then recorded in a journal,
with its checksum. A killed process loses no more than the shards it was working on, and a shard
that is not what was written is decoded again.
"""

import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from equicolor._files import short_name
from equicolor.data.images import CorruptImageError, ImageSet, in_threads
from equicolor.reporting.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Decoder", "Plan", "buffer_size", "decode_image", "final_size"]

SHARD = 64  # images
_FORMAT = 4  # of the files of the cache and their contents
_PIXELS, _JOURNAL = "pixels.u8", "journal.jsonl"


class Plan(NamedTuple):
    """Where each image is in the buffer.

    Attributes:
        offsets, sizes: int64 ``[N]`` and ``[N, 2]`` (height, width); an image with a corrupt
            header has size 0.
    """

    offsets: Tensor
    sizes: Tensor

    @classmethod
    def of_sizes(cls, sizes: Tensor) -> "Plan":
        """One image after the other."""
        lengths = 3 * sizes.prod(1)
        return cls(lengths.cumsum(0) - lengths, sizes)

    @property
    def shards(self) -> range:
        """All shards."""
        return range(-(-len(self.offsets) // SHARD))

    def images(self, shard: int) -> range:
        """The images of a shard."""
        return range(shard * SHARD, min((shard + 1) * SHARD, len(self.offsets)))

    def sizes_of(self, shard: int) -> list[list[int]]:
        """The sizes of the images of a shard."""
        images = self.images(shard)
        return self.sizes[images.start : images.stop].tolist()

    def place(self, shard: int) -> slice:
        """The bytes of a shard."""
        images = self.images(shard)
        end = self.offsets[images[-1]] + 3 * self.sizes[images[-1]].prod()
        return slice(int(self.offsets[images[0]]), int(end))

    @property
    def total(self) -> int:
        """Bytes of the buffer."""
        return buffer_size(self.offsets, self.sizes)


def buffer_size(offsets: Tensor, sizes: Tensor) -> int:
    """The bytes touched by gathering rows of the largest width from every image.

    Example:
        >>> buffer_size(torch.tensor([0, 12]), torch.tensor([[1, 4], [2, 2]]))  # 12 + 6 + 12
        30
    """
    last_rows = offsets + 3 * (sizes[:, 0] - 1) * sizes[:, 1]
    return int(last_rows.max()) + 3 * int(sizes[:, 1].max())


class _Record(NamedTuple):
    """What the journal says about a shard: sizes of its images, what is corrupt, a checksum."""

    shard: int
    sizes: list[list[int]]
    corrupt: list[tuple[int, str]]
    checksum: int


@dataclass(frozen=True)
class Decoder:
    """Decodes images with threads.

    Attributes:
        images, short_side, workers, progress: as of :func:`equicolor.data.decode`.
        skip: go on after corrupt images.
        corrupt: what is wrong with which image; filled by decoding.
    """

    images: ImageSet
    short_side: int | None
    workers: int
    progress: Progress | None
    skip: bool
    corrupt: dict[int, str] = field(default_factory=dict)

    def in_memory(self) -> tuple[Tensor, Plan]:
        """Decode into memory."""
        plan = self._plan()
        buffer = np.zeros(plan.total, np.uint8)

        def store(place: slice, pixels: np.ndarray) -> None:
            buffer[place] = pixels

        for _ in self._decode(plan, (), store):
            pass
        return torch.from_numpy(buffer), plan

    def on_disk(self, cache: Path) -> tuple[Tensor, Plan]:
        """Map a file of the cache, after decoding what it lacks."""
        folder = cache / _folder_name(self.images, self.short_side)
        folder.mkdir(parents=True, exist_ok=True)
        plan = self._complete(folder)
        if plan is None:
            with FileLock(folder / "lock"):
                # Another process may have been first.
                plan = self._complete(folder) or self._fill(folder)
        return _mapped(folder, plan), plan

    def _plan(self) -> Plan:
        """Read the headers."""
        sizes = np.zeros((len(self.images), 2), np.int64)

        def read(index: int) -> None:
            with self._skipping(index):
                sizes[index] = final_size(self.images, index, self.short_side)

        self.corrupt.clear()
        list(in_threads(read, range(len(self.images)), self.workers))
        return Plan.of_sizes(torch.from_numpy(sizes))

    @contextmanager
    def _skipping(self, index: int) -> Iterator[None]:
        """Record an image as corrupt instead of raising the error, if ``skip`` is set."""
        try:
            yield
        except CorruptImageError as error:
            if not self.skip:
                raise
            self.corrupt[index] = str(error)

    def _decode(
        self, plan: Plan, done: Collection[int], store: Callable[[slice, np.ndarray], None]
    ) -> Iterator[tuple[int, int]]:
        """Decode and store the shards that are not done; yields each with its checksum."""
        waiting = [shard for shard in plan.shards if shard not in done]
        count = sum(len(plan.images(shard)) for shard in done)

        def work(shard: int) -> int:
            pixels = self._pixels(plan, shard)
            store(plan.place(shard), pixels)
            return zlib.crc32(pixels.data)

        self._report(count)
        with closing(in_threads(work, waiting, self.workers)) as checksums:
            for shard, checksum in zip(waiting, checksums, strict=True):
                yield shard, checksum
                count += len(plan.images(shard))
                self._report(count)

    def _report(self, count: int) -> None:
        if self.progress:
            self.progress(count, len(self.images))

    def _pixels(self, plan: Plan, shard: int) -> np.ndarray:
        """The decoded images of one shard, one after the other; zeros for corrupt ones."""
        place = plan.place(shard)
        pixels = np.zeros(place.stop - place.start, np.uint8)
        for index in plan.images(shard):
            if index in self.corrupt:
                continue
            height, width = plan.sizes[index].tolist()
            start = int(plan.offsets[index]) - place.start
            with self._skipping(index):
                image = decode_image(self.images, index, self.short_side)
                if image.size != (width, height):
                    raise CorruptImageError(
                        f"{self.images.files[index].describe()} has {image.size} pixels, but "
                        f"its header said {(width, height)}"
                    )
                pixels[start : start + 3 * height * width] = np.asarray(image).reshape(-1)
        return pixels

    def _complete(self, folder: Path) -> Plan | None:
        """The plan of a file of the cache, if the file holds all images as they were written."""
        records = _read_journal(folder)
        sizes = [size for shard in sorted(records) for size in records[shard].sizes]
        if len(sizes) != len(self.images):
            return None
        plan = Plan.of_sizes(torch.tensor(sizes))
        if len(self._intact(folder, plan, records)) < len(plan.shards):
            return None
        self._report(len(self.images))
        return plan

    def _intact(self, folder: Path, plan: Plan, records: dict[int, _Record]) -> dict[int, _Record]:
        """The recorded shards that are what was written; notes their corrupt images."""
        path = folder / _PIXELS
        if not path.is_file() or path.stat().st_size != plan.total:
            return {}
        pixels = _mapped(folder, plan)

        def agrees(shard: int) -> bool:
            _, sizes, _, checksum = records[shard]
            stored = pixels[plan.place(shard)].numpy()
            return sizes == plan.sizes_of(shard) and checksum == zlib.crc32(stored.data)

        shards = [shard for shard in records if shard in plan.shards]
        agree = in_threads(agrees, shards, self.workers)
        intact = {shard: records[shard] for shard, same in zip(shards, agree, strict=True) if same}
        for record in intact.values():
            self.corrupt.update(record.corrupt)
        return intact

    def _fill(self, folder: Path) -> Plan:
        """Decode what a file of the cache lacks, such as after an interrupted call."""
        plan, path, records = self._plan(), folder / _PIXELS, _read_journal(folder)
        done = self._intact(folder, plan, records)
        if len(done) < len(records):
            message = f"the decoded images in {folder} are damaged and made again"
            warnings.warn(message, stacklevel=2)
        if not done:
            path.unlink(missing_ok=True)  # others may still have it mapped
            with path.open("wb") as file:
                file.truncate(plan.total)

        def store(place: slice, pixels: np.ndarray) -> None:
            with path.open("r+b") as file:
                file.seek(place.start)
                file.write(pixels.data)
                file.flush()
                os.fsync(file.fileno())  # on disk before the journal records it

        with (folder / _JOURNAL).open("w") as lines:
            for record in done.values():
                lines.write(json.dumps(record) + "\n")
            for shard, checksum in self._decode(plan, done, store):
                corrupt = [(i, self.corrupt[i]) for i in plan.images(shard) if i in self.corrupt]
                record = _Record(shard, plan.sizes_of(shard), corrupt, checksum)
                lines.write(json.dumps(record) + "\n")
                lines.flush()
        return plan


def _mapped(folder: Path, plan: Plan) -> Tensor:
    """Decoded images; private, so that writing to the tensor does not change the file."""
    path = str(folder / _PIXELS)
    return torch.from_file(path, shared=False, size=plan.total, dtype=torch.uint8)


def _read_journal(folder: Path) -> dict[int, _Record]:
    """The records by shard; ignores a line that is damaged, or that a crash cut short."""
    path, records = folder / _JOURNAL, {}
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    for line in lines:
        try:
            shard, sizes, corrupt, checksum = json.loads(line)
            records[int(shard)] = _Record(
                int(shard),
                [[int(height), int(width)] for height, width in sizes],
                [(int(index), str(reason)) for index, reason in corrupt],
                int(checksum),
            )
        except (TypeError, ValueError):
            continue
    return records


def _folder_name(images: ImageSet, short_side: int | None) -> str:
    """A name that depends on everything that decides the pixels: files, their times, the size."""
    digest = hashlib.sha256(repr((_FORMAT, short_side)).encode())
    stats: dict[Path, tuple[int, int]] = {}  # a tar holds many images
    for file in images.files:
        if file.path not in stats:
            stat = file.path.stat()
            stats[file.path] = stat.st_size, stat.st_mtime_ns
        facts = str(file.path.absolute()), file.offset, file.size, *stats[file.path]
        digest.update(repr(facts).encode())
    side = "full" if short_side is None else short_side
    name = short_name(images.name.replace(":", "-"))
    return f"{name}-{images.split}-{side}-{digest.hexdigest()[:16]}"


def final_size(images: ImageSet, index: int, short_side: int | None) -> tuple[int, int]:
    """Height and width of an image after decoding, from its header."""
    if images.pixels is not None:
        height, width = images.pixels.shape[2:]
    else:
        width, height = images.files[index].open().size
    return _resized(height, width, short_side)


def _resized(height: int, width: int, short_side: int | None) -> tuple[int, int]:
    """A size after resizing; the long side is rounded down, as torchvision does."""
    short = min(height, width)
    if short_side is None or short <= short_side:
        return height, width
    return int(short_side * height / short), int(short_side * width / short)


def decode_image(images: ImageSet, index: int, short_side: int | None) -> "Image":
    """One image in RGB, resized to a short side if it is larger."""
    from PIL import Image

    if images.pixels is None:
        image = images.files[index].decode()
    else:
        image = Image.fromarray(images.pixels[index].movedim(0, 2).contiguous().numpy())
    height, width = _resized(image.height, image.width, short_side)
    if (width, height) == image.size:
        return image
    return image.resize((width, height), Image.Resampling.BILINEAR)
