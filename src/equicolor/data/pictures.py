"""Pictures with labels: undecoded files, or pixels."""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from equicolor import _checks

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Contents", "CorruptPictureError", "PictureFile", "Pictures"]

SPLITS = ("train", "test")


class CorruptPictureError(ValueError):
    """A file that is not a whole picture: which one, and why."""


class PictureFile(NamedTuple):
    """Where one undecoded picture is: a file, or a part of one, such as a member of a tar.

    Attributes:
        path: the file.
        offset: where the picture begins.
        size: how many bytes it has; -1 for the whole file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "bytes"
        ...     _ = path.write_bytes(b"abcdef")
        ...     PictureFile(path).read(), PictureFile(path, 2, 3).read()
        (b'abcdef', b'cde')
    """

    path: Path
    offset: int = 0
    size: int = -1

    def read(self) -> bytes:
        """The picture's bytes."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)

    def open(self) -> "Image":
        """The picture, its header read and its pixels not decoded yet.

        Raises:
            CorruptPictureError: if it is not a picture.
            OSError: if the file cannot be read.
        """
        from PIL import Image, UnidentifiedImageError

        contents = self.read()
        try:
            return Image.open(io.BytesIO(contents))
        except UnidentifiedImageError:
            raise self._corrupt("it is in no format that Pillow knows") from None
        except Exception as error:  # Pillow's readers raise whatever went wrong inside them
            raise self._corrupt(error) from None

    def decode(self) -> "Image":
        """The picture in RGB, as Pillow decodes it; an orientation in its metadata is ignored.

        Raises:
            CorruptPictureError: if it is not a whole picture.
            OSError: if the file cannot be read.
        """
        image = self.open()
        try:
            return image.convert("RGB")
        except Exception as error:
            raise self._corrupt(error) from None

    def describe(self) -> str:
        """The path; of a member of a tar, also its name there."""
        if self.size < 0:
            return str(self.path)
        # Looked up only when somebody asks: a million pictures need no second name in memory.
        header = PictureFile(self.path, max(self.offset - tarfile.BLOCKSIZE, 0), tarfile.BLOCKSIZE)
        try:
            name = tarfile.TarInfo.frombuf(header.read(), "utf-8", "replace").name
        except (OSError, tarfile.TarError):
            name = f"{self.size} bytes at {self.offset}"
        return f"{self.path} ({name})"

    def _corrupt(self, reason: object) -> CorruptPictureError:
        return CorruptPictureError(f"{self.describe()} cannot be decoded: {reason}")


class Contents(NamedTuple):
    """What a layout reads: labels, class names, and files or pixels, as in :class:`Pictures`."""

    labels: Tensor
    class_names: tuple[str, ...]
    files: tuple[PictureFile, ...] = ()
    pixels: Tensor | None = None


@dataclass(frozen=True)
class Pictures:
    """One part of a dataset.

    Attributes:
        name: of the dataset.
        split: ``"train"`` or ``"test"``.
        labels: int64 :math:`[N]`.
        class_names: one a class.
        files: the undecoded pictures, or
        pixels: uint8 :math:`[N, 3, H, W]`.

    Example:
        >>> pixels = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> len(Pictures("toy", "train", torch.tensor([0, 1]), ("cat", "dog"), pixels=pixels))
        2
    """

    name: str
    split: str
    labels: Tensor
    class_names: tuple[str, ...]
    files: tuple[PictureFile, ...] = ()
    pixels: Tensor | None = None

    def __post_init__(self) -> None:
        _checks.one_of("split", self.split, SPLITS)
        what = f"Pictures({self.name!r})"
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1 or not len(self.labels):
            raise ValueError(
                f"{what} expects int64 labels [N], got {self.labels.dtype} "
                f"{list(self.labels.shape)}"
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
            raise ValueError(f"{what} got {count} pictures and {len(self.labels)} labels")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.class_names):
            raise ValueError(
                f"{what} got labels from {low} to {high} for {len(self.class_names)} class names"
            )

    def __len__(self) -> int:
        return len(self.labels)
