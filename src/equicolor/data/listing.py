"""The list of a split's images, kept to find out later whether they are still the same."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from equicolor._text import counted, enumerated
from equicolor.data.image_set import ImageFile, ImageSet

__all__ = ["Listing", "changes", "list_images"]

LONGEST = 100_000  # images whose sizes are asked for and whose names are kept
_SHOWN = 3  # names in a message


@dataclass(frozen=True)
class Listing:
    """Images by name.

    Attributes:
        files: the size in bytes of every file by its name below the dataset's folder; empty for
            pixels, and for more than :data:`LONGEST` files.
        digest: of names, sizes and labels, but not of what is in the files; of more than
            :data:`LONGEST` files without their sizes, and of pixels with all their values.
    """

    files: dict[str, int]
    digest: str


def list_images(images: ImageSet) -> Listing:
    """List the images of a split; no file is opened.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import torch
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "1.png").write_bytes(b"four")
        >>> files = [ImageFile(folder / "1.png")]
        >>> labels = torch.tensor([0])
        >>> list_images(ImageSet("toy", "train", labels, ("cat",), files, root=folder)).files
        {'1.png': 4}
    """
    short = len(images.files) <= LONGEST
    files = {_name(images, file): _size(file) if short else 0 for file in images.files}
    digest = hashlib.sha256(images.labels.numpy().tobytes())
    digest.update(repr(list(files.items())).encode())
    if images.pixels is not None:
        digest.update(images.pixels.contiguous().numpy().data)
    return Listing(files if short else {}, digest.hexdigest()[:16])


def _name(images: ImageSet, file: ImageFile) -> str:
    path = file.path if images.root is None else file.path.relative_to(images.root)
    return path.as_posix() if file.size < 0 else f"{path.as_posix()}@{file.offset}"


def _size(file: ImageFile) -> int:
    return file.path.stat().st_size if file.size < 0 else file.size


def changes(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """How the files of a split differ from those of before, in words.

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
