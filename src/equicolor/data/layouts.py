"""Datasets that come as image files and lists: Flowers-102, Oxford-IIIT Pet, Stanford Cars.

Every layout has two methods. ``missing(root)`` names what is not there; it looks at lists and
folders, never at pixels, so it also serves to tell a dataset's state. ``read(root, split, seed)``
reads a dataset of which nothing is missing.
"""

import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from equicolor.data.image_set import Contents, ImageFile

__all__ = ["Flowers102", "OxfordPet", "StanfordCars"]

_PARTS = ("train", "test")


@dataclass(frozen=True)
class Flowers102:
    """Flowers-102: the paper trains on the official training and validation parts.

    The images lie in ``jpg/``, or still in uncompressed tars ``jpg*.tar``.

    Example:
        >>> Flowers102().missing(Path("/nowhere"))
        ['flowers-102/imagelabels.mat', 'flowers-102/setid.mat']
    """

    folder: str = "flowers-102"

    def missing(self, root: Path) -> list[str]:
        """What is not there, below the data root."""
        absent = _absent(root, self.folder, ["imagelabels.mat", "setid.mat"])
        if absent:
            return absent
        found = self._found(root)
        names = {_flower(number) for split in _PARTS for number in self._ids(root, split)}
        return [f"{self.folder}/{name}" for name in sorted(names - set(found))]

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one part; the split is the dataset's own, whatever the seed."""
        folder = root / self.folder
        labels = _mat(folder / "imagelabels.mat", "labels")
        ids = self._ids(root, split)
        if not 1 <= ids.min() <= ids.max() <= len(labels):
            raise ValueError(
                f"{folder / 'setid.mat'} has images {ids.min()} to {ids.max()}, but "
                f"imagelabels.mat labels {len(labels)}"
            )
        found = self._found(root)
        names = folder / "cat_to_name.json"  # often distributed with the images
        classes = range(1, int(labels.max()) + 1)
        table = json.loads(names.read_text()) if names.is_file() else {}
        return Contents(
            torch.from_numpy(labels[ids - 1].astype(np.int64) - 1),
            tuple(table.get(str(number), str(number)) for number in classes),
            tuple(found[_flower(number)] for number in ids),
        )

    def _ids(self, root: Path, split: str) -> np.ndarray:
        keys = ("trnid", "valid") if split == "train" else ("tstid",)
        path = root / self.folder / "setid.mat"
        return np.concatenate([_mat(path, key).astype(np.int64) for key in keys])

    def _found(self, root: Path) -> dict[str, ImageFile]:
        folder = root / self.folder
        found: dict[str, ImageFile] = {}
        for tar in sorted(folder.glob("jpg*.tar")):
            found |= _members(tar, tar.stat().st_mtime_ns)
        here = _names(folder / "jpg")
        return found | {f"jpg/{name}": ImageFile(folder / "jpg" / name) for name in here}


def _flower(number: int) -> str:
    return f"jpg/image_{number:05d}.jpg"


@dataclass(frozen=True)
class OxfordPet:
    """Oxford-IIIT Pet, 37 breeds of cats and dogs.

    Example:
        >>> OxfordPet().missing(Path("/nowhere"))[0]
        'oxford-iiit-pet/annotations/trainval.txt'
    """

    folder: str = "oxford-iiit-pet"

    def missing(self, root: Path) -> list[str]:
        """What is not there, below the data root."""
        lists = [f"annotations/{name}.txt" for name in ("trainval", "test")]
        absent = _absent(root, self.folder, lists)
        if absent:
            return absent
        found = _names(root / self.folder / "images")
        names = [f"{name}.jpg" for split in _PARTS for name, _ in self._list(root, split)]
        return [f"{self.folder}/images/{name}" for name in names if name not in found]

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one part; the split is the dataset's own, whatever the seed."""
        parts = {part: self._list(root, part) for part in _PARTS}
        rows = parts[split]
        # Breeds are named by the images: "american_bulldog_17" is an American Bulldog.
        named = {label: name.rpartition("_")[0] for part in parts.values() for name, label in part}
        names = (named.get(label, str(label + 1)) for label in range(max(named) + 1))
        folder = root / self.folder / "images"
        return Contents(
            torch.tensor([label for _, label in rows]),
            tuple(name.replace("_", " ").title() for name in names),
            tuple(ImageFile(folder / f"{name}.jpg") for name, _ in rows),
        )

    def _list(self, root: Path, split: str) -> list[tuple[str, int]]:
        """The names and labels, from 0, of one part."""
        name = "trainval" if split == "train" else "test"
        path = root / self.folder / "annotations" / f"{name}.txt"
        rows = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split()
            if len(words) < 2 or not words[1].isdigit() or words[1] == "0":
                raise ValueError(
                    f"{path}, line {number}: expected a name and a class, got {line!r}"
                )
            rows.append((words[0], int(words[1]) - 1))
        return rows


@dataclass(frozen=True)
class StanfordCars:
    """Stanford Cars, 196 models of cars.

    Example:
        >>> StanfordCars().missing(Path("/nowhere"))[0]
        'stanford_cars/devkit/cars_meta.mat'
    """

    folder: str = "stanford_cars"

    def missing(self, root: Path) -> list[str]:
        """What is not there, below the data root."""
        lists = ["cars_meta.mat", "cars_train_annos.mat"]
        absent = _absent(root, self.folder, [f"devkit/{name}" for name in lists])
        if not self._annotations(root, "test").is_file():
            absent.append(f"{self.folder}/cars_test_annos_withlabels.mat")
        if absent:
            return absent
        for split in _PARTS:
            found = _names(root / self.folder / f"cars_{split}")
            absent += [
                f"{self.folder}/cars_{split}/{name}"
                for name, _ in self._list(root, split)
                if name not in found
            ]
        return absent

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one part; the split is the dataset's own, whatever the seed."""
        rows = self._list(root, split)
        folder = root / self.folder
        names = _mat(folder / "devkit" / "cars_meta.mat", "class_names")
        return Contents(
            torch.tensor([label for _, label in rows]),
            tuple(map(str, names)),
            tuple(ImageFile(folder / f"cars_{split}" / name) for name, _ in rows),
        )

    def _annotations(self, root: Path, split: str) -> Path:
        folder = root / self.folder
        if split == "train":
            return folder / "devkit" / "cars_train_annos.mat"
        # torchvision keeps it beside the development kit, other copies inside.
        name = "cars_test_annos_withlabels.mat"
        places = folder / name, folder / "devkit" / name
        return next((place for place in places if place.is_file()), places[0])

    def _list(self, root: Path, split: str) -> list[tuple[str, int]]:
        """The names and labels, from 0, of one part."""
        path = self._annotations(root, split)
        table = _mat(path, "annotations")
        if not {"class", "fname"} <= set(table.dtype.names or ()):
            raise ValueError(f"{path} has no fields 'class' and 'fname' in its annotations")
        return [(str(row["fname"]), int(row["class"]) - 1) for row in table]


def _absent(root: Path, folder: str, names: Sequence[str]) -> list[str]:
    return [f"{folder}/{name}" for name in names if not (root / folder / name).is_file()]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@lru_cache(maxsize=16)
def _members(path: Path, modified: int) -> dict[str, ImageFile]:
    """Where the files of an uncompressed tar are; read once, unless the tar is modified."""
    try:
        with tarfile.open(path, "r:") as tar:
            return {
                member.name.removeprefix("./"): ImageFile(path, member.offset_data, member.size)
                for member in tar
                if member.isreg()
            }
    except tarfile.TarError as error:
        raise ValueError(f"{path} cannot be read as an uncompressed tar: {error}") from None


def _mat(path: Path, key: str) -> np.ndarray:
    """One row or column of a MATLAB file."""
    import scipy.io

    try:
        table = scipy.io.loadmat(path, squeeze_me=True)
    except Exception as error:  # damaged files raise anything
        raise ValueError(f"{path} cannot be read as a MATLAB file: {error}") from None
    if key not in table:
        raise ValueError(f"{path} has no {key!r}")
    return np.atleast_1d(table[key])
