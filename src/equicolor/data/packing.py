"""Decode images into one buffer, in memory or in a file of the cache.

The headers give every image's place in the buffer before any image is decoded. A shard is a run of
images whose places adjoin. In the cache, each shard is written as a whole and then recorded in a
journal with its checksum, in order. A killed process loses only the shards it was working on. If a
shard does not match its checksum, it and all later shards are decoded again.
"""

import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from equicolor._files import naming, short_name, write_whole
from equicolor.data.images import CorruptImageError, ImageSet, in_threads
from equicolor.reporting.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

SHARD = 64  # images
_FORMAT = 4  # version of the files of the cache and their contents
_PIXELS, _JOURNAL = "pixels.u8", "journal.jsonl"

# The journal's record of a shard: sizes of its images, which are corrupt and why, a checksum.
_Record = tuple[list[list[int]], list[tuple[int, str]], int]


class Plan(NamedTuple):
    """Where each image is in the buffer, and its height and width; 0 if its header is corrupt."""

    offsets: Tensor  # int64 [N]
    sizes: Tensor  # int64 [N, 2]

    @classmethod
    def of_sizes(cls, sizes: Tensor) -> "Plan":
        """Places for images of these sizes, one after the other."""
        lengths = 3 * sizes.prod(1)
        return cls(lengths.cumsum(0) - lengths, sizes)

    @property
    def shards(self) -> range:
        """The numbers of the shards, of :data:`SHARD` images each."""
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
        first, last = self.images(shard)[0], self.images(shard)[-1]
        end = self.offsets[last] + 3 * self.sizes[last].prod()
        return slice(int(self.offsets[first]), int(end))


def buffer_size(offsets: Tensor, sizes: Tensor) -> int:
    """The bytes that gathering touches, which reads rows of the largest width."""
    last_rows = offsets + 3 * (sizes[:, 0] - 1) * sizes[:, 1]
    return int(last_rows.max()) + 3 * int(sizes[:, 1].max())


@dataclass(frozen=True)
class Decoder:
    """Decodes images with threads; the fields are the arguments of :func:`equicolor.data.decode`.

    Decoding fills ``corrupt`` with what is wrong with which image.
    """

    images: ImageSet
    short_side: int | None
    workers: int
    progress: Progress | None
    skip: bool  # go on after corrupt images
    corrupt: dict[int, str] = field(default_factory=dict)

    def in_memory(self) -> tuple[Tensor, Plan]:
        """All pixels in one tensor, and where each image is in it."""
        plan = self._plan()
        buffer = np.zeros(buffer_size(*plan), np.uint8)

        def store(place: slice, pixels: np.ndarray) -> None:
            buffer[place] = pixels

        for _ in self._decode(plan, 0, store):
            pass
        return torch.from_numpy(buffer), plan

    def on_disk(self, cache: Path) -> tuple[Tensor, Plan]:
        """Map a file of the cache, after decoding what is missing in it."""
        folder = cache / _folder_name(self.images, self.short_side)
        folder.mkdir(parents=True, exist_ok=True)
        plan = self._complete(folder)
        if plan is None:
            with FileLock(folder / "lock"):
                # Another process may have filled it meanwhile.
                plan = self._complete(folder) or self._fill(folder)
        return _mapped(folder, plan), plan

    def _plan(self) -> Plan:
        """Where each image will be, from the sizes in the headers."""
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
        self, plan: Plan, first: int, store: Callable[[slice, np.ndarray], None]
    ) -> Iterator[tuple[int, int]]:
        """Decode and store the shards from ``first`` on; yields each with its checksum."""

        def work(shard: int) -> int:
            pixels = self._pixels(plan, shard)
            store(plan.place(shard), pixels)
            return zlib.crc32(pixels.data)

        self._report(min(first * SHARD, len(self.images)))
        with closing(in_threads(work, plan.shards[first:], self.workers)) as checksums:
            for shard, checksum in enumerate(checksums, first):
                yield shard, checksum
                self._report(plan.images(shard).stop)

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
        """The plan of a file of the cache, if all its shards match their checksums."""
        records = _read_journal(folder)
        sizes = [size for sizes, _, _ in records for size in sizes]
        if len(sizes) != len(self.images):
            return None
        plan = Plan.of_sizes(torch.tensor(sizes))
        if len(self._intact(folder, plan, records)) < len(plan.shards):
            return None
        self._report(len(self.images))
        return plan

    def _intact(self, folder: Path, plan: Plan, records: list[_Record]) -> list[_Record]:
        """The records before the first that does not match its shard.

        Adds the corrupt images of these shards to ``corrupt``.
        """
        path = folder / _PIXELS
        if not path.is_file() or path.stat().st_size != buffer_size(*plan):
            return []
        pixels = _mapped(folder, plan)

        def agrees(shard: int) -> bool:
            sizes, _, checksum = records[shard]
            stored = pixels[plan.place(shard)].numpy()
            return sizes == plan.sizes_of(shard) and checksum == zlib.crc32(stored.data)

        agree = in_threads(agrees, plan.shards[: len(records)], self.workers)
        intact = records[: sum(takewhile(bool, agree))]
        for _, corrupt, _ in intact:
            self.corrupt.update(corrupt)
        return intact

    def _fill(self, folder: Path) -> Plan:
        """Decode what is missing in a file of the cache, such as after an interrupted call."""
        plan, path, records = self._plan(), folder / _PIXELS, _read_journal(folder)
        done = self._intact(folder, plan, records)
        if len(done) < len(records):
            warnings.warn(
                f"the decoded images in {folder} are damaged (they do not agree with their "
                "checksums) and made again",
                stacklevel=2,
            )
        if not done:
            path.unlink(missing_ok=True)  # others may still have it mapped
            with path.open("wb") as file:
                file.truncate(buffer_size(*plan))

        def store(place: slice, pixels: np.ndarray) -> None:
            with naming(path), path.open("r+b") as file:
                file.seek(place.start)
                file.write(pixels.data)
                file.flush()
                os.fsync(file.fileno())  # on disk before the journal records it

        journal = folder / _JOURNAL
        write_whole(journal, "".join(json.dumps(record) + "\n" for record in done))
        for shard, checksum in self._decode(plan, len(done), store):
            corrupt = [(i, self.corrupt[i]) for i in plan.images(shard) if i in self.corrupt]
            record = plan.sizes_of(shard), corrupt, checksum
            with naming(journal), journal.open("a") as lines:
                lines.write(json.dumps(record) + "\n")
        return plan


def _mapped(folder: Path, plan: Plan) -> Tensor:
    """Decoded images as a private map: writing to the tensor does not change the file."""
    size = buffer_size(*plan)
    if not size:  # every image is corrupt
        return torch.empty(0, dtype=torch.uint8)
    # torch.from_file takes no path that is not UTF-8.
    return torch.from_numpy(np.memmap(folder / _PIXELS, mode="c", shape=(size,)))


def _read_journal(folder: Path) -> list[_Record]:
    """The records before the first damaged line; a crash may have cut the last one short."""
    path, records = folder / _JOURNAL, []
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    with suppress(TypeError, ValueError, OverflowError):  # which int() raises for infinity
        for line in lines:
            sizes, corrupt, checksum = json.loads(line)
            sizes = [[int(height), int(width)] for height, width in sizes]
            corrupt = [(int(index), str(reason)) for index, reason in corrupt]
            records.append((sizes, corrupt, int(checksum)))
    return records


def _folder_name(images: ImageSet, short_side: int | None) -> str:
    """A name that depends on all that decides the pixels: files, their times, the short side."""
    digest = hashlib.sha256(repr((_FORMAT, short_side)).encode())
    stats: dict[Path, os.stat_result] = {}  # a tar holds many images
    for path, offset, size in images.files:
        if path not in stats:
            stats[path] = path.stat()
        facts = path.absolute(), offset, size, stats[path].st_size, stats[path].st_mtime_ns
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
    """A size after resizing; the long side is rounded down, as in torchvision."""
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
    return shrink(image, short_side)


def shrink(image: "Image", short_side: int | None) -> "Image":
    """An image resized to a short side if it is larger."""
    from PIL import Image

    height, width = _resized(image.height, image.width, short_side)
    if (width, height) == image.size:
        return image
    return image.resize((width, height), Image.Resampling.BILINEAR)
