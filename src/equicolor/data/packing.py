"""Decode images into one buffer, in memory or in a file of the cache.

The headers give every image's place in the buffer before any image is decoded. A shard is a run of
images whose places adjoin. It is written and recorded as a whole, so that a killed process loses no
more than the shards it was working on.
"""

import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from equicolor._files import short_name, written_aside
from equicolor.data.images import CorruptImageError, ImageSet
from equicolor.reporting.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Decoder", "Plan", "buffer_size", "decode_image", "final_size"]

SHARD = 64  # images
_FORMAT = 3  # of the files of the cache and their contents
_PIXELS, _JOURNAL, _INDEX = "pixels.u8", "journal.jsonl", "index.npz"

T = TypeVar("T")


class Plan(NamedTuple):
    """Where each image is in the buffer.

    Attributes:
        offsets, sizes: int64 ``[N]`` and ``[N, 2]`` (height, width); an image with a corrupt
            header has size 0.
    """

    offsets: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of_sizes(cls, sizes: np.ndarray) -> "Plan":
        """One image after the other."""
        ends = np.cumsum(3 * sizes.prod(1))
        return cls(np.concatenate([[0], ends[:-1]]), sizes)

    def place(self, shard: int) -> slice:
        """The bytes of a shard."""
        first = shard * SHARD
        last = min(first + SHARD, len(self.offsets)) - 1
        end = self.offsets[last] + 3 * self.sizes[last].prod()
        return slice(int(self.offsets[first]), int(end))

    @property
    def shards(self) -> range:
        """All shards."""
        return range(-(-len(self.offsets) // SHARD))

    @property
    def total(self) -> int:
        """Bytes of the buffer."""
        return buffer_size(torch.from_numpy(self.offsets), torch.from_numpy(self.sizes))


def buffer_size(offsets: Tensor, sizes: Tensor) -> int:
    """The bytes touched by gathering rows of the largest width from every image.

    Example:
        >>> buffer_size(torch.tensor([0, 12]), torch.tensor([[1, 4], [2, 2]]))  # 12 + 6 + 12
        30
    """
    last_rows = offsets + 3 * (sizes[:, 0] - 1) * sizes[:, 1]
    return int(last_rows.max()) + 3 * int(sizes[:, 1].max())


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
        for _ in self._run(plan, set(), lambda shard: self._shard(plan, shard, buffer)):
            pass
        return torch.from_numpy(buffer), plan

    def on_disk(self, cache: Path) -> tuple[Tensor, Plan]:
        """Map a complete file of the cache, after decoding what is missing of it.

        Every shard has a checksum. A file that does not agree with them is decoded again.
        """
        folder = cache / _folder_name(self.images, self.short_side)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return self._open(folder)
        except (FileNotFoundError, _DamagedError):
            with FileLock(folder / "lock"):
                try:
                    return self._open(folder)  # another process may have been first
                except FileNotFoundError:
                    pass
                except _DamagedError as error:
                    warnings.warn(
                        f"the decoded images in {folder} are damaged ({error}) and made again",
                        stacklevel=2,
                    )
                    for name in (_INDEX, _JOURNAL, _PIXELS):  # others may still have it mapped
                        (folder / name).unlink(missing_ok=True)
                self._fill(folder)
                return self._open(folder)

    def _plan(self) -> Plan:
        """Read the headers."""
        sizes = np.zeros((len(self.images), 2), np.int64)

        def read(index: int) -> None:
            with self._skipping(index):
                sizes[index] = final_size(self.images, index, self.short_side)

        self.corrupt.clear()
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                list(pool.map(read, range(len(self.images))))
            finally:
                pool.shutdown(cancel_futures=True)
        return Plan.of_sizes(sizes)

    @contextmanager
    def _skipping(self, index: int) -> Iterator[None]:
        """Record an image as corrupt instead of raising the error, if ``skip`` is set."""
        try:
            yield
        except CorruptImageError as error:
            if not self.skip:
                raise
            self.corrupt[index] = str(error)

    def _shard(self, plan: Plan, shard: int, buffer: np.ndarray, start: int = 0) -> None:
        """Decode the images of one shard into a buffer that begins at byte ``start``."""
        for index in range(shard * SHARD, min((shard + 1) * SHARD, len(self.images))):
            if index in self.corrupt:
                continue
            height, width = plan.sizes[index]
            offset = plan.offsets[index] - start
            with self._skipping(index):
                image = decode_image(self.images, index, self.short_side)
                if image.size != (width, height):
                    raise CorruptImageError(
                        f"{self.images.files[index].describe()} has {image.size} pixels, but "
                        f"its header said {(width, height)}"
                    )
                buffer[offset : offset + 3 * height * width] = np.asarray(image).reshape(-1)

    def _run(self, plan: Plan, done: set[int], work: Callable[[int], T]) -> Iterator[tuple[int, T]]:
        """Do the shards that are not done, in threads; yields each when it is finished."""
        total = len(self.images)
        count = sum(min(SHARD, total - shard * SHARD) for shard in done)
        if self.progress:
            self.progress(count, total)
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                waiting = {
                    pool.submit(work, shard): shard for shard in plan.shards if shard not in done
                }
                for future in as_completed(waiting):
                    shard = waiting[future]
                    yield shard, future.result()
                    count += min(SHARD, total - shard * SHARD)
                    if self.progress:
                        self.progress(count, total)
            finally:  # after an error or an interrupt, do not start the waiting ones
                pool.shutdown(cancel_futures=True)

    def _open(self, folder: Path) -> tuple[Tensor, Plan]:
        """Map a complete file of the cache.

        Raises:
            FileNotFoundError: if it is not complete.
            _DamagedError: if it is not what was written.
        """
        try:
            with np.load(folder / _INDEX) as index:
                sizes, checksums = index["sizes"], index["checksums"]
                reasons = zip(index["corrupt"].tolist(), index["reasons"].tolist(), strict=True)
                self.corrupt.clear()
                self.corrupt.update(reasons)
            plan = Plan.of_sizes(sizes)
            if sizes.shape != (len(self.images), 2) or sizes.dtype != np.int64 or sizes.min() < 0:
                raise ValueError(f"sizes {list(sizes.shape)} of {len(self.images)} images")
            total = plan.total
        except FileNotFoundError:
            raise
        except Exception as error:  # damaged files raise errors of any type
            raise _DamagedError(f"{_INDEX}: {str(error) or type(error).__name__}") from None
        path = folder / _PIXELS
        size = path.stat().st_size if path.is_file() else 0
        if size != total:
            raise _DamagedError(f"{_PIXELS} has {size} bytes instead of {total}")
        pixels = _mapped(path, total)
        with ThreadPoolExecutor(self.workers) as pool:  # zlib lets other threads run
            found = list(pool.map(lambda shard: _checksum(plan, pixels, shard), plan.shards))
        if found != checksums.tolist():
            raise _DamagedError(f"{_PIXELS} does not agree with its checksums")
        if self.progress:
            self.progress(len(self.images), len(self.images))
        return pixels, plan

    def _fill(self, folder: Path) -> None:
        """Decode into a file of the cache, or continue an interrupted call."""
        plan = self._plan()
        path, journal = folder / _PIXELS, folder / _JOURNAL
        done = _read_journal(journal, plan)
        if not path.is_file() or path.stat().st_size != plan.total:
            journal.unlink(missing_ok=True)
            done = {}
            path.unlink(missing_ok=True)  # others may still have it mapped
            with path.open("wb") as file:
                file.truncate(plan.total)
        before = _mapped(path, plan.total)
        done = {key: each for key, each in done.items() if each[1] == _checksum(plan, before, key)}
        for corrupt, _ in done.values():
            self.corrupt.update(corrupt)

        def work(shard: int) -> int:
            place = plan.place(shard)
            pixels = np.zeros(place.stop - place.start, np.uint8)
            self._shard(plan, shard, pixels, place.start)
            with path.open("r+b") as file:
                file.seek(place.start)
                file.write(pixels.data)
                file.flush()
                os.fsync(file.fileno())  # on disk before the journal records it
            return zlib.crc32(pixels.data)

        checksums = {shard: checksum for shard, (_, checksum) in done.items()}
        with journal.open("a") as lines:
            for shard, checksum in self._run(plan, set(done), work):
                checksums[shard] = checksum
                reasons = [item for item in [*self.corrupt.items()] if item[0] // SHARD == shard]
                lines.write(json.dumps([shard, reasons, checksum]) + "\n")
                lines.flush()
        with written_aside(folder / _INDEX) as partial, partial.open("wb") as file:
            np.savez(
                file,
                sizes=plan.sizes,
                checksums=np.array([checksums[shard] for shard in plan.shards], np.int64),
                corrupt=np.array(sorted(self.corrupt), np.int64),
                reasons=np.array([self.corrupt[index] for index in sorted(self.corrupt)], np.str_),
            )
        journal.unlink()


class _DamagedError(Exception):
    """A file of the cache that is not what was written."""


def _mapped(path: Path, size: int) -> Tensor:
    """A file as a tensor; private, so that writing to the tensor does not change the file."""
    return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)


def _checksum(plan: Plan, pixels: Tensor, shard: int) -> int:
    return zlib.crc32(pixels[plan.place(shard)].numpy().data)


def _read_journal(path: Path, plan: Plan) -> dict[int, tuple[dict[int, str], int]]:
    """The finished shards; ignores a line that a crash cut short."""
    done = {}
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    for line in lines:
        try:
            shard, found, checksum = json.loads(line)
            if shard in plan.shards:
                done[shard] = {int(index): str(why) for index, why in found}, checksum
        except (TypeError, ValueError):
            continue
    return done


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
    return _final(height, short_side, width), _final(width, short_side, height)


def _final(side: int, short_side: int | None, other: int) -> int:
    """One side after resizing; the long one is rounded down, as torchvision does."""
    short = min(side, other)
    if short_side is None or short <= short_side:
        return side
    return short_side if side == short else int(short_side * side / short)


def decode_image(images: ImageSet, index: int, short_side: int | None) -> "Image":
    """One image in RGB, resized to a short side if it is larger."""
    from PIL import Image

    if images.pixels is None:
        image = images.files[index].decode()
    else:
        image = Image.fromarray(images.pixels[index].movedim(0, 2).contiguous().numpy())
    width, height = image.size
    size = _final(width, short_side, height), _final(height, short_side, width)
    return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)
