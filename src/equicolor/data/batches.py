"""Datasets that come as arrays of pixels: CIFAR-10, CIFAR-100 and STL-10."""

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equicolor.data.image_set import Contents

__all__ = ["Cifar", "Stl10", "restricted_unpickle"]


CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class Cifar:
    """CIFAR as torchvision's pickles or as the official binary batches; the order is the same.

    Attributes:
        pickles, binaries: the two folders below the data root; the first that is whole counts.
        train, test: the batches, without suffix.
        labels: the key of the labels in a pickle.
        meta: the pickle with the class names, and its key.
        names: the text file of class names beside the binary batches, if they are needed.
        class_names: where no file has them.
        label_bytes: before the pixels of a binary record; the last of them counts.
        images: in each batch.

    Example:
        >>> Cifar.ten().missing(Path("/nowhere"))
        ['cifar-10-batches-py/ or cifar-10-batches-bin/']
    """

    pickles: str
    binaries: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str
    meta: tuple[str, str]
    names: str | None
    class_names: tuple[str, ...]
    label_bytes: int
    images: Mapping[str, int]

    @staticmethod
    def ten() -> "Cifar":
        """CIFAR-10."""
        train = tuple(f"data_batch_{index}" for index in range(1, 6))
        return Cifar(
            pickles="cifar-10-batches-py",
            binaries="cifar-10-batches-bin",
            train=train,
            test=("test_batch",),
            labels="labels",
            meta=("batches.meta", "label_names"),
            names=None,
            class_names=CIFAR10_CLASSES,
            label_bytes=1,
            images=dict.fromkeys((*train, "test_batch"), 10_000),
        )

    @staticmethod
    def hundred() -> "Cifar":
        """CIFAR-100 with its fine labels."""
        return Cifar(
            pickles="cifar-100-python",
            binaries="cifar-100-binary",
            train=("train",),
            test=("test",),
            labels="fine_labels",
            meta=("meta", "fine_label_names"),
            names="fine_label_names.txt",
            class_names=(),
            label_bytes=2,
            images={"train": 50_000, "test": 10_000},
        )

    def _files(self, folder: str) -> list[str]:
        """The files of a folder that is whole."""
        if folder == self.pickles:
            return [*self.train, *self.test, self.meta[0]]
        names = [f"{batch}.bin" for batch in (*self.train, *self.test)]
        return names if self.names is None else [*names, self.names]

    def missing(self, root: Path) -> list[str]:
        """What is not there, below the data root."""
        absent = []
        for folder in (self.pickles, self.binaries):
            if (root / folder).is_dir():
                here = [f"{folder}/{name}" for name in self._files(folder)]
                lacking = [name for name in here if not (root / name).is_file()]
                if not lacking:
                    return []
                absent += lacking
        return absent or [f"{self.pickles}/ or {self.binaries}/"]

    def _found(self, root: Path) -> str:
        """The first folder of which nothing is missing."""
        return next(
            folder
            for folder in (self.pickles, self.binaries)
            if all((root / folder / name).is_file() for name in self._files(folder))
        )

    def truncated(self, root: Path) -> list[str]:
        """The batches that are smaller than their images; none may be missing."""
        folder = self._found(root)
        binary = folder == self.binaries
        suffix, record = (".bin", self.label_bytes + _PIXELS) if binary else ("", _PIXELS)
        wanted = {f"{name}{suffix}": count * record for name, count in self.images.items()}
        short = _shorter(root / folder, wanted)
        if not binary:  # beside the pixels there are labels, names, and a full stop
            short += [
                name
                for name in (*self.images, self.meta[0])
                if name not in short and not _ends_with(root / folder / name, pickle.STOP)
            ]
        return [f"{folder}/{name}" for name in short]

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one part; the split is the dataset's own, whatever the seed."""
        batches = self.train if split == "train" else self.test
        found = self._found(root)
        folder = root / found
        if found == self.pickles:
            meta, key = folder / self.meta[0], self.meta[1]
            class_names = tuple(map(str, _entry(meta, restricted_unpickle(meta), key)))
            parts = [self._pickle(folder / name, len(class_names)) for name in batches]
        else:
            class_names = self.class_names if self.names is None else _lines(folder / self.names)
            parts = [self._binary(folder / f"{name}.bin", len(class_names)) for name in batches]
        for name, (labels, _) in zip(batches, parts, strict=True):
            if len(labels) != len(parts[0][0]):
                raise ValueError(
                    f"{folder / name} is damaged: it holds {len(labels)} images where "
                    f"{batches[0]} holds {len(parts[0][0])}; delete it and download it again"
                )
        labels = np.concatenate([labels for labels, _ in parts]).astype(np.int64)
        pixels = np.concatenate([pixels for _, pixels in parts]).reshape(-1, 3, _SIDE, _SIDE)
        return Contents(torch.from_numpy(labels), class_names, pixels=torch.from_numpy(pixels))

    def _pickle(self, path: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
        table = restricted_unpickle(path)
        pixels = _entry(path, table, "data")
        labels = np.asarray(_entry(path, table, self.labels))
        whole = isinstance(pixels, np.ndarray) and pixels.shape == (labels.size, _PIXELS)
        if not whole or not labels.size or labels.dtype.kind not in "iu":
            raise ValueError(
                f"{path} is damaged: expected data [N, {_PIXELS}] and N whole-numbered labels, "
                f"got {list(np.shape(pixels))} and {labels.size} labels of {labels.dtype}"
            )
        return _labels(path, labels, classes), pixels

    def _binary(self, path: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
        records = _records(path, self.label_bytes + _PIXELS)
        labels = records[:, self.label_bytes - 1]
        return _labels(path, labels, classes), records[:, self.label_bytes :]


@dataclass(frozen=True)
class Stl10:
    """STL-10's labelled images: 96 × 96, stored channel by channel and column by column.

    Example:
        >>> Stl10().missing(Path("/nowhere"))[0]
        'stl10_binary/train_X.bin'
    """

    folder: str = "stl10_binary"
    side: int = 96

    def missing(self, root: Path) -> list[str]:
        """What is not there, below the data root."""
        files = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt"]
        names = [f"{self.folder}/{name}" for name in files]
        return [name for name in names if not (root / name).is_file()]

    def truncated(self, root: Path) -> list[str]:
        """The files that are smaller than their images or labels; none may be missing."""
        counts, pixels = {"train": 5000, "test": 8000}, 3 * self.side**2
        wanted = {f"{split}_X.bin": count * pixels for split, count in counts.items()}
        wanted |= {f"{split}_y.bin": count for split, count in counts.items()}
        return [f"{self.folder}/{name}" for name in _shorter(root / self.folder, wanted)]

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one part; the split is the dataset's own, whatever the seed."""
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
        columns = torch.from_numpy(records).view(-1, 3, self.side, self.side)
        return Contents(
            torch.from_numpy(_labels(folder / f"{split}_y.bin", labels, len(class_names))),
            class_names,
            pixels=columns.transpose(2, 3).contiguous(),
        )


def _shorter(folder: Path, wanted: Mapping[str, int]) -> list[str]:
    """The files that have fewer bytes than wanted."""
    return [name for name, size in wanted.items() if (folder / name).stat().st_size < size]


def _ends_with(path: Path, end: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(-min(len(end), path.stat().st_size), io.SEEK_END)
        return file.read() == end


def _records(path: Path, size: int) -> np.ndarray:
    """A binary file as uint8 records ``[N, size]``."""
    contents = np.fromfile(path, np.uint8)
    if not len(contents) or len(contents) % size:
        raise ValueError(
            f"{path} is truncated: its {len(contents)} bytes are no whole number of records of "
            f"{size} bytes; delete it and download it again"
        )
    return contents.reshape(-1, size)


def _labels(path: Path, labels: np.ndarray, classes: int) -> np.ndarray:
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise ValueError(f"{path} is damaged: it has label {wrong[0]}, of {classes} classes")
    return labels


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(line.strip() for line in path.read_text().splitlines() if line.strip())


class _Type:
    """Stands in for numpy's data types, of which bytes are the only one admitted."""

    def __init__(self, code: str, *_: object) -> None:
        if code not in ("u1", "|u1"):
            raise pickle.UnpicklingError(f"it holds an array of {code!r}, not of bytes ('u1')")

    def __setstate__(self, state: object) -> None:
        pass  # byte order and alignment, of which single bytes have none


class _Array:
    """Stands in for numpy's arrays: numpy's own unpickling trusts what it is given."""

    def __init__(self, *_: object) -> None:
        self.values = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, _, fortran, contents = state
        if isinstance(contents, str):  # as Python 2 wrote it
            contents = contents.encode("latin1")
        order: Any = "F" if fortran else "C"
        self.values = np.frombuffer(contents, np.uint8).reshape(shape, order=order)


def _from_buffer(contents: bytes, _: object, shape: tuple[int, ...], order: Any) -> _Array:
    """How pickles of protocol 5 spell arrays."""
    array = _Array()
    array.values = np.frombuffer(contents, np.uint8).reshape(shape, order=order)
    return array


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """How pickles of protocol 2 written by Python 3 spell bytes; no other codec is needed."""
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _latin1,
}


class _BytesOnly(pickle.Unpickler):
    """Knows what a batch of bytes consists of; anything else could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return _STAND_INS[module, name]


def restricted_unpickle(path: Path) -> dict[str, Any]:
    """Read a pickled dict of plain Python values and arrays of bytes; refuse any other.

    A pickle can name any function to be called while it is read, so a manipulated download
    could run code. Nothing is called but stand-ins for what makes an array.

    Args:
        path: the pickle, of Python 2 or 3.

    Returns:
        The dict; its keys are strings.

    Raises:
        ValueError: if it holds anything else, or is damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "meta"
        ...     _ = path.write_bytes(pickle.dumps({"label_names": ["cat", "dog"]}))
        ...     restricted_unpickle(path)
        {'label_names': ['cat', 'dog']}
    """
    contents = io.BytesIO(path.read_bytes())
    try:
        table = _BytesOnly(contents, encoding="latin1").load()  # strings of Python 2
    except Exception as error:  # damaged pickles raise anything
        raise ValueError(f"{path} is refused: {str(error) or type(error).__name__}") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path} is damaged: expected a dict, got {type(table).__name__}")
    return {
        key.decode() if isinstance(key, bytes) else str(key): (
            value.values if isinstance(value, _Array) else value
        )
        for key, value in table.items()
    }


def _entry(path: Path, table: dict[str, Any], key: str) -> Any:
    if key not in table:
        raise ValueError(f"{path} has no {key!r}, only {', '.join(map(repr, table))}")
    return table[key]
