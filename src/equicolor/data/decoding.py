"""How images are decoded: planned from their headers, in threads, shard by shard, resumably.

The headers tell every image's place in the buffer before any is decoded. A shard is a run of
images whose places adjoin; it is written and recorded as done as a whole, so that a process
that is killed loses no more than the shards it was working on.
"""

import hashlib
import json
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from equicolor._files import short_name, written_aside
from equicolor.data.image_set import CorruptImageError, ImageSet
from equicolor.reporting.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Decoder", "Packed", "decode_in_memory", "decode_on_disk", "final_size"]

SHARD = 64  # images
_FORMAT = 3  # of the files of the cache, and of what is in them
_PIXELS, _JOURNAL, _INDEX = "pixels.u8", "journal.jsonl", "index.npz"

T = TypeVar("T")
Corrupt = dict[int, str]  # what is wrong with which image


class Packed(NamedTuple):
    """Images in one buffer.

    Attributes:
        pixels: uint8 ``[bytes]``.
        offsets, sizes: int64 ``[N]`` and ``[N, 2]`` (height, width) of every image, corrupt
            ones included.
        corrupt: the images that could not be decoded.
    """

    pixels: Tensor
    offsets: np.ndarray
    sizes: np.ndarray
    corrupt: Corrupt


class Plan(NamedTuple):
    """Where each image will be, from the headers; a corrupt header gets no place."""

    offsets: np.ndarray
    sizes: np.ndarray
    corrupt: Corrupt

    @classmethod
    def of_sizes(cls, sizes: np.ndarray, corrupt: Corrupt) -> "Plan":
        """One image after the other."""
        ends = np.cumsum(3 * sizes.prod(1))
        return cls(np.concatenate([[0], ends[:-1]]), sizes, corrupt)

    def place(self, shard: int) -> tuple[int, int]:
        """The first byte of a shard, and the first after it."""
        first = shard * SHARD
        last = min(first + SHARD, len(self.offsets)) - 1
        return int(self.offsets[first]), int(self.offsets[last] + 3 * self.sizes[last].prod())

    @property
    def shards(self) -> range:
        """All shards."""
        return range(-(-len(self.offsets) // SHARD))

    @property
    def total(self) -> int:
        """Bytes of the buffer: the images, and room to gather a longest row from anywhere."""
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
    """What to decode, and how."""

    images: ImageSet
    short_side: int | None
    workers: int
    progress: Progress | None
    skip: bool

    def plan(self) -> Plan:
        """Read the headers.

        Raises:
            CorruptImageError: for the first corrupt one, unless they are skipped.
        """
        corrupt: Corrupt = {}

        def size(index: int) -> tuple[int, int]:
            try:
                return final_size(self.images, index, self.short_side)
            except CorruptImageError as error:
                if not self.skip:
                    raise
                corrupt[index] = str(error)
                return 0, 0

        with ThreadPoolExecutor(self.workers) as pool:
            try:
                sizes = np.array(list(pool.map(size, range(len(self.images)))), np.int64)
            finally:
                pool.shutdown(cancel_futures=True)
        return Plan.of_sizes(sizes, corrupt)

    def shard(self, plan: Plan, shard: int, out: np.ndarray) -> Corrupt:
        """Decode the images of one shard into its place.

        Args:
            plan: where they go.
            shard: which.
            out: uint8, as long as the shard.

        Returns:
            Those that are corrupt, if they are skipped.
        """
        start = plan.place(shard)[0]
        corrupt: Corrupt = {}
        for index in range(shard * SHARD, min((shard + 1) * SHARD, len(self.images))):
            if index in plan.corrupt:
                continue
            height, width = plan.sizes[index]
            offset = plan.offsets[index] - start
            try:
                image = decode_image(self.images, index, self.short_side)
                if image.size != (width, height):
                    raise CorruptImageError(
                        f"{self.images.files[index].describe()} has {image.size} pixels, but "
                        f"its header said {(width, height)}"
                    )
            except CorruptImageError as error:
                if not self.skip:
                    raise
                corrupt[index] = str(error)
            else:
                out[offset : offset + 3 * height * width] = np.asarray(image).reshape(-1)
        return corrupt

    def run(self, plan: Plan, done: set[int], work: Callable[[int], T]) -> Iterator[tuple[int, T]]:
        """Do the shards that are not done, in threads; yields each as it is finished."""
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
            finally:  # an error, an interrupt: do not begin what is still waiting
                pool.shutdown(cancel_futures=True)


def decode_in_memory(decoder: Decoder) -> Packed:
    """Decode into memory."""
    plan = decoder.plan()
    buffer = np.zeros(plan.total, np.uint8)

    def work(shard: int) -> Corrupt:
        start, stop = plan.place(shard)
        return decoder.shard(plan, shard, buffer[start:stop])

    corrupt = dict(plan.corrupt)
    for _, found in decoder.run(plan, set(), work):
        corrupt |= found
    return Packed(torch.from_numpy(buffer), plan.offsets, plan.sizes, corrupt)


class _DamagedError(Exception):
    """A cache that is not what was written."""


def decode_on_disk(decoder: Decoder, cache: Path) -> Packed:
    """Decode into a file of the cache, continue one, or map one that is complete.

    Every shard has a checksum. A cache that does not agree with them is made again.
    """
    folder = cache / _folder_name(decoder.images, decoder.short_side)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        packed = _open_cache(decoder, folder)
    except (FileNotFoundError, _DamagedError):
        with _alone(folder / "lock"):
            try:
                packed = _open_cache(decoder, folder)  # another process may have been first
            except FileNotFoundError:
                _fill_cache(decoder, folder)
                packed = _open_cache(decoder, folder)
            except _DamagedError as error:
                warnings.warn(
                    f"the decoded images in {folder} are damaged ({error}) and made again",
                    stacklevel=2,
                )
                for name in (_INDEX, _JOURNAL, _PIXELS):  # others may still have it mapped
                    (folder / name).unlink(missing_ok=True)
                _fill_cache(decoder, folder)
                packed = _open_cache(decoder, folder)
    if decoder.progress:
        decoder.progress(len(decoder.images), len(decoder.images))
    return packed


def _open_cache(decoder: Decoder, folder: Path) -> Packed:
    """Map a complete cache.

    Raises:
        FileNotFoundError: if it is not complete.
        _DamagedError: if it is not what was written.
    """
    try:
        with np.load(folder / _INDEX) as index:
            sizes, checksums = index["sizes"], index["checksums"]
            corrupt = dict(zip(index["corrupt"].tolist(), index["reasons"].tolist(), strict=True))
        plan = Plan.of_sizes(sizes, corrupt)
        if sizes.shape != (len(decoder.images), 2) or sizes.dtype != np.int64 or sizes.min() < 0:
            raise ValueError(f"sizes {list(sizes.shape)} of {len(decoder.images)} images")
        total = plan.total
    except FileNotFoundError:
        raise
    except Exception as error:  # damaged files raise anything
        raise _DamagedError(f"{_INDEX}: {str(error) or type(error).__name__}") from None
    path = folder / _PIXELS
    size = path.stat().st_size if path.is_file() else 0
    if size != total:
        raise _DamagedError(f"{_PIXELS} has {size} bytes instead of {total}")
    # Mapped, not read; private, so that nothing written to the tensor reaches the file.
    pixels = torch.from_file(str(path), shared=False, size=total, dtype=torch.uint8)
    with ThreadPoolExecutor(decoder.workers) as pool:  # zlib lets other threads run
        found = list(pool.map(lambda shard: _checksum(plan, pixels, shard), plan.shards))
    if found != checksums.tolist():
        raise _DamagedError(f"{_PIXELS} does not agree with its checksums")
    return Packed(pixels, plan.offsets, sizes, corrupt)


def _checksum(plan: Plan, pixels: Tensor, shard: int) -> int:
    start, stop = plan.place(shard)
    return zlib.crc32(pixels[start:stop].numpy().data)


def _fill_cache(decoder: Decoder, folder: Path) -> None:
    plan = decoder.plan()
    path, journal = folder / _PIXELS, folder / _JOURNAL
    done = _read_journal(journal, plan)
    if not path.is_file() or path.stat().st_size != plan.total:
        journal.unlink(missing_ok=True)
        done = {}
        path.unlink(missing_ok=True)  # others may still have it mapped
        with path.open("wb") as file:
            file.truncate(plan.total)
    before = torch.from_file(str(path), shared=False, size=plan.total, dtype=torch.uint8)
    done = {key: each for key, each in done.items() if each[1] == _checksum(plan, before, key)}

    def work(shard: int) -> tuple[Corrupt, int]:
        start, stop = plan.place(shard)
        out = np.zeros(stop - start, np.uint8)
        corrupt = decoder.shard(plan, shard, out)
        with path.open("r+b") as file:
            file.seek(start)
            file.write(out.data)
            file.flush()
            os.fsync(file.fileno())  # on disk before the journal says so
        return corrupt, zlib.crc32(out.data)

    with journal.open("a") as lines:
        for shard, (found, checksum) in decoder.run(plan, set(done), work):
            done[shard] = found, checksum
            lines.write(json.dumps([shard, list(found.items()), checksum]) + "\n")
            lines.flush()
    corrupt = dict(plan.corrupt)
    for found, _ in done.values():
        corrupt |= found
    with written_aside(folder / _INDEX) as partial, partial.open("wb") as file:
        np.savez(
            file,
            sizes=plan.sizes,
            checksums=np.array([done[shard][1] for shard in plan.shards], np.int64),
            corrupt=np.array(sorted(corrupt), np.int64),
            reasons=np.array([corrupt[index] for index in sorted(corrupt)], np.str_),
        )
    journal.unlink()


def _read_journal(path: Path, plan: Plan) -> dict[int, tuple[Corrupt, int]]:
    """The shards that are done; a line that a crash cut short does not count."""
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
    """Names what decides the decoded pixels: the files, when they were changed, and the size."""
    digest = hashlib.sha256(repr((_FORMAT, short_side)).encode())
    known: dict[Path, tuple[int, int]] = {}
    for file in images.files:
        if file.path not in known:
            stat = file.path.stat()
            known[file.path] = stat.st_size, stat.st_mtime_ns
        facts = str(file.path.absolute()), file.offset, file.size, *known[file.path]
        digest.update(repr(facts).encode())
    side = "full" if short_side is None else short_side
    name = short_name(images.name.replace(":", "-"))
    return f"{name}-{images.split}-{side}-{digest.hexdigest()[:16]}"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits until no other process is inside; the system lets go when a process is killed."""
    with path.open("a") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def final_size(images: ImageSet, index: int, short_side: int | None) -> tuple[int, int]:
    """Height and width of an image once decoded, from its header."""
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
    """One image in RGB, made small to a short side if it is larger.

    Example:
        >>> images = torch.zeros(2, 3, 40, 20, dtype=torch.uint8)
        >>> images = ImageSet("toy", "train", torch.tensor([0, 1]), ("a", "b"), pixels=images)
        >>> decode_image(images, 1, 10).size  # Pillow says the width first
        (10, 20)
    """
    return _resized(_image(images, index), short_side)


def _image(images: ImageSet, index: int) -> "Image":
    if images.pixels is None:
        return images.files[index].decode()
    from PIL import Image

    return Image.fromarray(images.pixels[index].movedim(0, 2).contiguous().numpy())


def _resized(image: "Image", short_side: int | None) -> "Image":
    from PIL.Image import Resampling

    width, height = image.size
    size = _final(width, short_side, height), _final(height, short_side, width)
    return image if size == image.size else image.resize(size, Resampling.BILINEAR)
