"""Where undecoded images are, one by one and a million of them at a time."""

import io
import os
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["CorruptImageError", "ImageFile", "ImageFiles"]

_WHOLE = -1  # the size of an image that is all of its file
_SIXTEEN_BITS = 0xFFFF


class CorruptImageError(ValueError):
    """A file that is not a whole image: which one, and why."""


class ImageFile(NamedTuple):
    """Where one undecoded image is: a file, or a part of one, such as a member of a tar.

    Attributes:
        path: the file.
        offset: where the image begins.
        size: how many bytes it has; -1 for the whole file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "bytes"
        ...     _ = path.write_bytes(b"abcdef")
        ...     ImageFile(path).read(), ImageFile(path, 2, 3).read()
        (b'abcdef', b'cde')
    """

    path: Path
    offset: int = 0
    size: int = _WHOLE

    def read(self) -> bytes:
        """The image's bytes.

        Raises:
            CorruptImageError: if it is a pipe, a folder, or anything else but a file.
            OSError: if the file cannot be read.
        """
        if not self.path.is_file() and self.path.exists():  # opening a pipe would wait for ever
            raise CorruptImageError(f"{self.path} cannot be decoded: it is not a file")
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)

    def open(self) -> "Image":
        """The image, its header read and its pixels not decoded yet.

        Raises:
            CorruptImageError: if it is not an image, or one of fractions, of which nobody
                knows what is white.
            OSError: if the file cannot be read.
        """
        from PIL import Image, UnidentifiedImageError

        contents = self.read()
        if not contents:
            raise self._corrupt("it is empty")
        try:
            image = Image.open(io.BytesIO(contents))
        except UnidentifiedImageError:
            raise self._corrupt("it is in no format that Pillow knows") from None
        except Exception as error:  # Pillow's readers raise whatever went wrong inside them
            raise self._corrupt(error) from None
        if image.mode == "F":
            raise self._corrupt("its pixels are fractions; save it with 8 or 16 bits a channel")
        return image

    def decode(self) -> "Image":
        """The image in RGB of 8 bits, as Pillow decodes it.

        Of 16 bits the upper eight are kept, in grey as in colour. An orientation in the
        metadata (EXIF) is ignored, as torchvision does.

        Raises:
            CorruptImageError: if it is not a whole image, or has grey values of more than
                16 bits.
            OSError: if the file cannot be read.
        """
        image = self.open()
        try:
            if image.mode == "I" or image.mode.startswith("I;16"):
                image = self._upper_bits(image)
            return image.convert("RGB")
        except CorruptImageError:
            raise
        except Exception as error:
            raise self._corrupt(error) from None

    def verify(self) -> None:
        """Find out whether the image is whole, faster than by decoding it in its full size.

        Raises:
            CorruptImageError: if it is not.
            OSError: if the file cannot be read.
        """
        image = self.open()
        if image.format != "JPEG":
            self.decode()
            return
        try:
            image.draft("RGB", (1, 1))  # all bytes are read, but few pixels computed
            image.load()
        except Exception as error:
            raise self._corrupt(error) from None

    def describe(self) -> str:
        """The path; of a member of a tar, also its name there."""
        if self.size < 0:
            return str(self.path)
        # Looked up only when somebody asks: a million images need no second name in memory.
        header = ImageFile(self.path, max(self.offset - tarfile.BLOCKSIZE, 0), tarfile.BLOCKSIZE)
        try:
            name = tarfile.TarInfo.frombuf(header.read(), "utf-8", "replace").name
        except (OSError, tarfile.TarError):
            name = f"{self.size} bytes at {self.offset}"
        return f"{self.path} ({name})"

    def _upper_bits(self, image: "Image") -> "Image":
        """A grey image of 16 bits in 8; Pillow would cut off what is brighter than 255."""
        from PIL import Image

        values = np.asarray(image).astype(np.int64)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > _SIXTEEN_BITS:
            raise self._corrupt(f"its grey values, {low} to {high}, do not fit into 16 bits")
        return Image.fromarray((values >> 8).astype(np.uint8))

    def _corrupt(self, reason: object) -> CorruptImageError:
        return CorruptImageError(f"{self.describe()} cannot be decoded: {reason}")


class ImageFiles(Sequence[ImageFile]):
    """Many image files in little memory: folders once, and names end to end.

    A million :class:`ImageFile` would take half a gigabyte, in every worker that gets a copy.

    Args:
        files: in order.

    Example:
        >>> files = ImageFiles(ImageFile(Path("a") / name) for name in ("1.png", "2.png"))
        >>> len(files), files[1].path, len(files[:1])
        (2, PosixPath('a/2.png'), 1)
    """

    __slots__ = ("_ends", "_folder", "_folders", "_names", "_offsets", "_sizes")

    def __init__(self, files: Iterable[ImageFile] = ()) -> None:
        if isinstance(files, ImageFiles):
            for slot in self.__slots__:
                setattr(self, slot, getattr(files, slot))
            return
        parts = ((os.path.split(file.path), file.offset, file.size) for file in files)
        self._fill(parts)

    @classmethod
    def from_paths(cls, paths: Iterable[str]) -> "ImageFiles":
        """Whole files.

        Example:
            >>> ImageFiles.from_paths(["a/1.png"])[0]
            ImageFile(path=PosixPath('a/1.png'), offset=0, size=-1)
        """
        made = cls.__new__(cls)
        made._fill((os.path.split(path), 0, _WHOLE) for path in paths)
        return made

    @classmethod
    def joined(cls, parts: Sequence["ImageFiles"]) -> "ImageFiles":
        """One list after the other.

        Example:
            >>> one = ImageFiles.from_paths(["a/1.png"])
            >>> [str(file.path) for file in ImageFiles.joined([one, one])]
            ['a/1.png', 'a/1.png']
        """
        made = cls.__new__(cls)
        known: dict[str, int] = {}
        folders, ends, start = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], 0
        for part in parts:
            numbers = [known.setdefault(folder, len(known)) for folder in part._folders]
            folders.append(np.array(numbers, np.int32)[part._folder])
            ends.append(part._ends + start)
            start += len(part._names)
        made._folders = tuple(known)
        made._folder, made._ends = np.concatenate(folders), np.concatenate(ends)
        made._names = b"".join(part._names for part in parts)
        none = np.zeros(0, np.int64)
        made._offsets = np.concatenate([none, *(part._offsets for part in parts)])
        made._sizes = np.concatenate([none, *(part._sizes for part in parts)])
        return made

    def select(self, indices: Sequence[int]) -> "ImageFiles":
        """Some of them.

        Example:
            >>> files = ImageFiles.from_paths(["a/1.png", "a/2.png", "b/3.png"])
            >>> [file.path.name for file in files.select([2, 0])]
            ['3.png', '1.png']
        """
        return ImageFiles(self[int(index)] for index in indices)

    def _fill(self, files: Iterable[tuple[tuple[str, str], int, int]]) -> None:
        known: dict[str, int] = {}
        folders, ends, offsets, sizes = [], [], [], []
        names = bytearray()
        for (folder, name), offset, size in files:
            folders.append(known.setdefault(folder, len(known)))
            names += os.fsencode(name)
            ends.append(len(names))
            offsets.append(offset)
            sizes.append(size)
        self._folders: tuple[str, ...] = tuple(known)
        self._folder = np.array(folders, np.int32)
        self._names = bytes(names)
        self._ends, self._offsets, self._sizes = (
            np.array(values, np.int64) for values in (ends, offsets, sizes)
        )

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> ImageFile: ...

    @overload
    def __getitem__(self, index: slice) -> "ImageFiles": ...

    def __getitem__(self, index: int | slice) -> "ImageFile | ImageFiles":
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        place = range(len(self))[index]  # which also refuses what is not there
        start = int(self._ends[place - 1]) if place else 0
        name = os.fsdecode(self._names[start : int(self._ends[place])])
        path = Path(self._folders[self._folder[place]], name)
        return ImageFile(path, int(self._offsets[place]), int(self._sizes[place]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((self._names, len(self)))

    def __repr__(self) -> str:
        shown = ", ".join(str(file.path) for file in self[:2])
        return f"ImageFiles({shown}{', …' if len(self) > 2 else ''}: {len(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, tuple(getattr(self, slot) for slot in self.__slots__)


def _restored(*values: Any) -> ImageFiles:
    """What was pickled, arrays and bytes as they are."""
    made = ImageFiles.__new__(ImageFiles)
    for slot, value in zip(ImageFiles.__slots__, values, strict=True):
        setattr(made, slot, value)
    return made
