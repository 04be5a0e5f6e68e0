"""Images with labels: single files, many files in little memory, and a split of a dataset."""

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from equicolor import _checks
from equicolor._text import brief_repr, counted, enumerated
from equicolor.reporting.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

SPLITS = ("train", "test")
LONGEST = 100_000  # the most files whose sizes are read and whose names are listed
WHOLE = -1  # the size of an image that is a whole file
_SIXTEEN_BITS = 0xFFFF
_FRACTIONS = "its pixels are fractions; save it with 8 or 16 bits a channel"
_SHOWN = 3  # names in a message

T = TypeVar("T")


class CorruptImageError(ValueError):
    """A file that is not a complete image: which one, and why."""


class ImageFile(NamedTuple):
    """Where one undecoded image is: a file, or a part of one, such as a member of a tar."""

    path: Path
    offset: int = 0  # where the image begins
    size: int = WHOLE  # its bytes

    def read(self) -> bytes:
        """The image's bytes; raises CorruptImageError for a folder, a pipe and the like."""
        if not self.path.is_file() and self.path.exists():  # opening a pipe would block
            raise CorruptImageError(f"{self.path} cannot be decoded: it is not a file")
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)

    def open(self) -> "Image":
        """The image with its header read and its pixels not decoded yet.

        Raises:
            CorruptImageError: if it is not an image, or has floating-point pixels, whose range
                is unknown.
            OSError: if the file cannot be read.
        """
        from PIL import Image

        contents = self.read()
        if not contents:
            raise self._corrupt("it is empty")
        with self._any_error_is_corrupt():
            image = Image.open(io.BytesIO(contents))
        if image.mode == "F":
            raise self._corrupt(_FRACTIONS)
        return image

    def decode(self) -> "Image":
        """The image in RGB of 8 bits, as Pillow decodes it; raises as :meth:`open`.

        Of 16 bits, grey or colour, the upper eight are used. An orientation in the metadata
        (EXIF) is ignored, as in torchvision.
        """
        image = self.open()
        with self._any_error_is_corrupt():
            return to_rgb(image)

    def verify(self) -> None:
        """Raise as :meth:`decode` if the image is corrupt; faster than decoding it."""
        image = self.open()
        if image.format != "JPEG":
            self.decode()
            return
        with self._any_error_is_corrupt():
            image.draft("RGB", (1, 1))  # reads all bytes, computes few pixels
            image.load()

    def describe(self) -> str:
        """The path; for a member of a tar, also the member's name."""
        if self.size < 0:
            return str(self.path)
        # Read from the tar only when needed, so that a million names take no memory.
        header = ImageFile(self.path, max(self.offset - tarfile.BLOCKSIZE, 0), tarfile.BLOCKSIZE)
        try:
            name = tarfile.TarInfo.frombuf(header.read(), "utf-8", "replace").name
        except (OSError, tarfile.TarError):
            name = f"{self.size} bytes at {self.offset}"
        return f"{self.path} ({name})"

    @contextmanager
    def _any_error_is_corrupt(self) -> Iterator[None]:
        """Turn any error into a CorruptImageError: Pillow's readers raise all types."""
        from PIL import UnidentifiedImageError

        try:
            yield
        except CorruptImageError:
            raise
        except UnidentifiedImageError:
            raise self._corrupt("it is in no format that Pillow knows") from None
        except Exception as error:
            raise self._corrupt(error) from None

    def _corrupt(self, reason: object) -> CorruptImageError:
        return CorruptImageError(f"{self.describe()} cannot be decoded: {reason}")


def to_rgb(image: "Image") -> "Image":
    """An image of Pillow in RGB of 8 bits: the upper eight of 16, which Pillow would clip.

    Raises:
        ValueError: if its pixels have no known range.
    """
    from PIL import Image

    if image.mode == "F":
        raise ValueError(_FRACTIONS)
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.int64)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > _SIXTEEN_BITS:
            raise ValueError(f"its grey values, {low} to {high}, do not fit into 16 bits")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    return image.convert("RGB")


class ImageFiles(Sequence[ImageFile]):
    """Many image files in little memory: every folder once, and all names in one string.

    A million :class:`ImageFile` would take half a gigabyte, in every worker that gets a copy.
    """

    def __init__(self, files: Iterable[tuple[Path | str, int, int]]) -> None:
        numbers: dict[str, int] = {}
        folders, ends, parts = [], [], []
        names = bytearray()
        for path, offset, size in files:
            folder, name = os.path.split(path)
            folders.append(numbers.setdefault(folder, len(numbers)))
            names += os.fsencode(name)
            ends.append(len(names))
            parts.append((offset, size))
        self._folders, self._names = tuple(numbers), bytes(names)
        self._folder = np.array(folders, np.int32)
        self._ends = np.array([0, *ends])
        self._parts = np.array(parts, np.int64)  # offsets and sizes

    def __len__(self) -> int:
        return len(self._folder)

    def __repr__(self) -> str:
        return f"ImageFiles({counted(len(self), 'file')})"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ImageFiles(self[place] for place in range(len(self))[index])
        place = range(len(self))[index]  # raises IndexError
        name = os.fsdecode(self._names[self._ends[place] : self._ends[place + 1]])
        path = Path(self._folders[self._folder[place]], name)
        return ImageFile(path, *self._parts[place].tolist())


@dataclass(frozen=True)
class ImageSet:
    """One split of a dataset, as undecoded files or as pixels.

    Example:
        >>> pixels = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> len(ImageSet("toy", "train", torch.tensor([0, 1]), ("cat", "dog"), pixels=pixels))
        2
    """

    name: str  # of the dataset
    split: str  # "train" or "test"
    labels: Tensor  # int64 [N]
    class_names: tuple[str, ...]
    files: Sequence[ImageFile] = ()  # stored as ImageFiles; empty if there are pixels
    pixels: Tensor | None = None  # uint8 [N, 3, H, W]; None if there are files
    root: Path | None = None  # the folder that names of files are relative to

    __repr__ = brief_repr

    def __post_init__(self) -> None:
        _checks.one_of("split", self.split, SPLITS)
        if not isinstance(self.files, ImageFiles):
            object.__setattr__(self, "files", ImageFiles(self.files))
        what = f"ImageSet({self.name!r})"
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1 or not len(self.labels):
            raise ValueError(
                f"{what} expects int64 labels [N], got {self.labels.dtype} {[*self.labels.shape]}"
            )
        if self.pixels is not None:
            shape = list(self.pixels.shape)
            if self.pixels.dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3:
                raise ValueError(
                    f"{what} expects uint8 pixels [N, 3, H, W], got {self.pixels.dtype} {shape}"
                )
            if self.files:
                raise ValueError(f"{what} expects files or pixels, got both")
        count = len(self.files) if self.pixels is None else len(self.pixels)
        if count != len(self.labels):
            raise ValueError(f"{what} got {count} images and {len(self.labels)} labels")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.class_names):
            raise ValueError(
                f"{what} got labels from {low} to {high} for {len(self.class_names)} class names"
            )

    def __len__(self) -> int:
        return len(self.labels)


def in_threads(
    work: Callable[[int], T], numbers: Sequence[int], workers: int
) -> Generator[T, None, None]:
    """The results of ``work`` for some numbers, in order, computed by threads."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from pool.map(work, numbers)
        finally:  # after an error or an interrupt, drop the waiting work
            pool.shutdown(cancel_futures=True)


def find_corrupt(
    images: ImageSet,
    *,
    workers: int = 4,
    on_corrupt: str = "error",
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Read every file once to find corrupt images before hours of work depend on them.

    With ``on_corrupt="skip"`` it returns what is wrong with each corrupt image, in order. It raises
    CorruptImageError with ``"error"``, and if all images are corrupt.
    """
    _checks.one_of("on_corrupt", on_corrupt, ("error", "skip"))
    _checks.positive_int("workers", workers)
    total = len(images.files)

    def verify(index: int) -> str:
        try:
            images.files[index].verify()
        except CorruptImageError as error:
            if on_corrupt == "error":
                raise
            return str(error)
        return ""

    problems = []
    with closing(in_threads(verify, range(total), workers)) as reasons:
        for done, reason in enumerate(reasons, 1):
            if reason:
                problems.append(reason)
            if progress is not None:
                progress(done, total)
    if problems and len(problems) == total:
        raise CorruptImageError(f"every image is corrupt, beginning with {problems[0]}")
    return tuple(problems)


class Listing(NamedTuple):
    """The images of a split by name, to find out later whether they have changed.

    ``files`` has the size of every file by its name below the dataset's folder. It is empty for
    pixels, and for more than :data:`LONGEST` files. The digest covers names, labels, sizes (unless
    there are more files than that) and all values of pixels, but not the contents of files.
    """

    files: dict[str, int]
    digest: str


def list_images(images: ImageSet) -> Listing:
    """List the images of a split without opening any file."""
    short = len(images.files) <= LONGEST
    files = {}
    for path, offset, size in images.files:
        name = (path if images.root is None else path.relative_to(images.root)).as_posix()
        if size == WHOLE:
            files[name] = path.stat().st_size if short else 0
        else:
            files[f"{name}@{offset}"] = size if short else 0
    digest = hashlib.sha256(images.labels.numpy().tobytes())
    digest.update(repr(list(files.items())).encode())
    if images.pixels is not None:
        digest.update(images.pixels.contiguous().numpy().data)
    return Listing(files if short else {}, digest.hexdigest()[:16])


def changes(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """How two listings of files differ, in words.

    Example:
        >>> changes({"a.png": 5, "b.png": 6}, {"b.png": 7})
        ['1 file is gone (a.png)', '1 file has another size (b.png)']
    """
    kinds = {
        ("is new", "are new"): [name for name in now if name not in before],
        ("is gone", "are gone"): [name for name in before if name not in now],
        ("has another size", "have another size"): [
            name for name in before if name in now and before[name] != now[name]
        ],
    }
    return [
        f"{counted(len(names), 'file')} {verbs[len(names) > 1]} ({enumerated(names, _SHOWN)})"
        for verbs, names in kinds.items()
        if names
    ]
