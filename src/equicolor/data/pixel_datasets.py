"""Datasets stored as arrays of pixels: CIFAR-10, CIFAR-100 and STL-10."""

import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equicolor.data.layouts import Contents, Layout

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class Cifar(Layout):
    """CIFAR as torchvision's pickles or as the official binary batches, in the same order.

    Of the two folders below the data root, the first complete one is read.
    """

    pickles: str
    binaries: str
    images: Mapping[str, int]  # how many in every batch, by its name without suffix
    labels: str  # the key of the labels in a pickle
    meta: tuple[str, str]  # the pickle with the class names, and its key
    label_bytes: int  # before the pixels of a binary record; the last of them is the label
    class_names: str | tuple[str, ...]  # or the text file beside the binary batches with them

    def missing(self, root: Path) -> list[str]:
        pickles, binaries = self._absent(root, self.pickles), self._absent(root, self.binaries)
        if not pickles or not binaries:
            return []
        absent = pickles * (root / self.pickles).is_dir()
        absent += binaries * (root / self.binaries).is_dir()
        return absent or [f"{self.pickles}/ or {self.binaries}/"]

    def incomplete(self, root: Path) -> list[str]:
        if self._absent(root, self.pickles):
            record = self.label_bytes + _PIXELS
            sizes = {f"{name}.bin": count * record for name, count in self.images.items()}
            return _truncated(root / self.binaries, sizes)
        sizes = {name: count * _PIXELS for name, count in self.images.items()}
        return _truncated(root / self.pickles, sizes | {self.meta[0]: 1}, pickles=True)

    def read(self, root: Path, split: str, seed: int) -> Contents:
        batches = [name for name in self.images if ("test" in name) == (split == "test")]
        if self._absent(root, self.pickles):
            folder, names = root / self.binaries, self.class_names
            class_names = _lines(folder / names) if isinstance(names, str) else names
            parts = [self._binary(folder / f"{name}.bin", len(class_names)) for name in batches]
        else:
            folder, (meta, key) = root / self.pickles, self.meta
            class_names = tuple(map(_text, *restricted_unpickle(folder / meta, key)))
            parts = [self._pickle(folder / name, len(class_names)) for name in batches]
        for name, (labels, _) in zip(batches, parts, strict=True):
            if len(labels) != len(parts[0][0]):
                raise ValueError(
                    f"{folder / name} is damaged: it holds {len(labels)} images where "
                    f"{batches[0]} holds {len(parts[0][0])}; delete it and download it again"
                )
        labels = np.concatenate([labels for labels, _ in parts]).astype(np.int64)
        pixels = np.concatenate([pixels for _, pixels in parts]).reshape(-1, 3, _SIDE, _SIDE)
        return Contents(torch.from_numpy(labels), class_names, pixels=torch.from_numpy(pixels))

    def _absent(self, root: Path, folder: str) -> list[str]:
        """The missing files of one of the two folders."""
        names = [*self.images, self.meta[0]]
        if folder == self.binaries:
            names = [f"{batch}.bin" for batch in self.images]
            names += [self.class_names] if isinstance(self.class_names, str) else []
        return _absent_files(root, folder, names)

    def _pickle(self, path: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = restricted_unpickle(path, "data", self.labels)
        labels = np.asarray(labels)
        whole = isinstance(pixels, np.ndarray) and pixels.shape == (labels.size, _PIXELS)
        if not whole or not labels.size or labels.dtype.kind not in "iu":
            raise ValueError(
                f"{path} is damaged: expected data [N, {_PIXELS}] and N whole-numbered labels, "
                f"got {list(np.shape(pixels))} and {labels.size} labels of {labels.dtype}"
            )
        return _checked_labels(path, labels, classes), pixels

    def _binary(self, path: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
        records = _records(path, self.label_bytes + _PIXELS)
        labels = records[:, self.label_bytes - 1]
        return _checked_labels(path, labels, classes), records[:, self.label_bytes :]


CIFAR10 = Cifar(
    pickles="cifar-10-batches-py",
    binaries="cifar-10-batches-bin",
    images={**{f"data_batch_{index}": 10_000 for index in range(1, 6)}, "test_batch": 10_000},
    labels="labels",
    meta=("batches.meta", "label_names"),
    label_bytes=1,
    class_names=(
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    ),
)  # fmt: skip
CIFAR100 = Cifar(
    pickles="cifar-100-python",
    binaries="cifar-100-binary",
    images={"train": 50_000, "test": 10_000},
    labels="fine_labels",
    meta=("meta", "fine_label_names"),
    label_bytes=2,
    class_names="fine_label_names.txt",
)


class Stl10(Layout):
    """STL-10's labelled images: 96 × 96, stored channel by channel and column by column."""

    folder = "stl10_binary"
    side = 96

    def missing(self, root: Path) -> list[str]:
        names = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"]
        return _absent_files(root, self.folder, names)

    def incomplete(self, root: Path) -> list[str]:
        counts, pixels = {"train": 5000, "test": 8000}, 3 * self.side**2
        sizes = {f"{split}_X.bin": count * pixels for split, count in counts.items()}
        sizes |= {f"{split}_y.bin": count for split, count in counts.items()}
        return _truncated(root / self.folder, sizes)

    def read(self, root: Path, split: str, seed: int) -> Contents:
        folder = root / self.folder
        class_names = _lines(folder / "class_names.txt")
        path = folder / f"{split}_X.bin"
        records = _records(path, 3 * self.side**2)
        labels = np.fromfile(folder / f"{split}_y.bin", np.uint8).astype(np.int64) - 1
        if len(labels) != len(records):
            raise ValueError(
                f"{folder} is damaged: {path.name} holds {len(records)} images and "
                f"{split}_y.bin {len(labels)} labels; delete them and download them again"
            )
        labels = _checked_labels(folder / f"{split}_y.bin", labels, len(class_names))
        columns = torch.from_numpy(records).view(-1, 3, self.side, self.side)
        rows = columns.transpose(2, 3).contiguous()
        return Contents(torch.from_numpy(labels), class_names, pixels=rows)


def _absent_files(root: Path, folder: str, names: Iterable[str]) -> list[str]:
    return [f"{folder}/{name}" for name in names if not (root / folder / name).is_file()]


def _truncated(folder: Path, sizes: Mapping[str, int], *, pickles: bool = False) -> list[str]:
    """The files with fewer bytes than their images, and pickles without an end."""
    truncated = []
    for name, size in sizes.items():
        with (folder / name).open("rb") as file:
            length = file.seek(0, io.SEEK_END)
            file.seek(-min(1, length), io.SEEK_END)
            # A pickle also holds labels and names: a whole one ends with the opcode STOP.
            if length < size or (pickles and file.read() != pickle.STOP):
                truncated.append(f"whole {folder.name}/{name}")
    return truncated


def _records(path: Path, size: int) -> np.ndarray:
    """A binary file as uint8 records ``[N, size]``."""
    contents = np.fromfile(path, np.uint8)
    if not len(contents) or len(contents) % size:
        raise ValueError(
            f"{path} is truncated: its {len(contents)} bytes are no whole number of records of "
            f"{size} bytes; delete it and download it again"
        )
    return contents.reshape(-1, size)


def _checked_labels(path: Path, labels: np.ndarray, classes: int) -> np.ndarray:
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise ValueError(f"{path} is damaged: it has label {wrong[0]}, of {classes} classes")
    return labels


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(line.strip() for line in path.read_text().splitlines() if line.strip())


def _text(name: object) -> str:
    """A name in a pickle, which is bytes if it was loaded with ``encoding="bytes"`` before."""
    return name.decode("latin1") if isinstance(name, bytes) else str(name)


class _Dtype:
    """Stands in for numpy's data types; allows only bytes."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in ("u1", "|u1"):
            raise pickle.UnpicklingError(f"it holds an array of {code!r}, not of bytes ('u1')")

    def __setstate__(self, state: object) -> None:
        pass  # byte order and alignment mean nothing for bytes


class _Array:
    """Stands in for numpy's arrays, whose own unpickling trusts its input."""

    values = np.empty(0, np.uint8)

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, _, fortran, contents = state
        if isinstance(contents, str):  # written by Python 2
            contents = contents.encode("latin1")
        order: Any = "F" if fortran else "C"
        self.values = np.frombuffer(contents, np.uint8).reshape(shape, order=order)


def _from_buffer(contents: bytes, _: object, shape: tuple[int, ...], order: Any) -> _Array:
    """How pickles of protocol 5 hold arrays."""
    array = _Array()
    array.values = np.frombuffer(contents, np.uint8).reshape(shape, order=order)
    return array


def _latin1(text: str, _: str = "latin1") -> bytes:
    """How Python 3 writes bytes in pickles of protocol 2; no other codec is needed."""
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _latin1,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:  # it could run code
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return _STAND_INS[module, name]


def restricted_unpickle(path: Path, *keys: str) -> list[Any]:
    """Entries of a pickled dict of plain Python values and arrays of bytes; others are refused.

    A pickle, of Python 2 or 3, can name any function to be called while it is read, so a
    manipulated download could run code. Here only the stand-ins above are called.
    """
    contents = io.BytesIO(path.read_bytes())
    try:
        table = _RestrictedUnpickler(contents, encoding="latin1").load()  # strings of Python 2
    except Exception as error:  # damaged pickles raise errors of any type
        raise ValueError(f"{path} is refused: {str(error) or type(error).__name__}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path} is damaged: expected a dict, got {type(table).__name__}")
    table = {_text(key): value for key, value in table.items()}
    for key in keys:
        if key not in table:
            raise ValueError(f"{path} has no {key!r}, only {', '.join(map(repr, table))}")
    entries = [table[key] for key in keys]
    return [entry.values if isinstance(entry, _Array) else entry for entry in entries]
