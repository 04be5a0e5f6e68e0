"""Datasets of image files with lists of labels: Flowers-102, Oxford-IIIT Pet, Stanford Cars."""

import json
import tarfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from equicolor.data.images import SPLITS, Contents, ImageFile
from equicolor.data.pixel_datasets import absent_files

__all__ = ["Flowers102", "OxfordPet", "StanfordCars"]


class Flowers102:
    """Flowers-102: the paper trains on the official training and validation parts.

    The images are in ``jpg/``, or in uncompressed tars ``jpg*.tar``.
    """

    folder = "flowers-102"

    def missing(self, root: Path) -> list[str]:
        """Names of missing files, below the data root."""
        absent = absent_files(root, self.folder, ["imagelabels.mat", "setid.mat"])
        if absent:
            return absent
        names = {_flower(number) for split in SPLITS for number in self._ids(root, split)}
        return [f"{self.folder}/{name}" for name in sorted(names - set(self._files(root)))]

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one split; Flowers-102 has its own, so the seed is not used."""
        folder = root / self.folder
        labels = _mat(folder / "imagelabels.mat", "labels")
        ids = self._ids(root, split)
        if not 1 <= ids.min() <= ids.max() <= len(labels):
            raise ValueError(
                f"{folder / 'setid.mat'} has images {ids.min()} to {ids.max()}, but "
                f"imagelabels.mat labels {len(labels)}"
            )
        files = self._files(root)
        names = folder / "cat_to_name.json"  # often distributed with the images
        classes = range(1, int(labels.max()) + 1)
        table = json.loads(names.read_text()) if names.is_file() else {}
        return Contents(
            torch.from_numpy(labels[ids - 1].astype(np.int64) - 1),
            tuple(table.get(str(number), str(number)) for number in classes),
            tuple(files[_flower(number)] for number in ids),
        )

    def _ids(self, root: Path, split: str) -> np.ndarray:
        keys = ("trnid", "valid") if split == "train" else ("tstid",)
        path = root / self.folder / "setid.mat"
        return np.concatenate([_mat(path, key).astype(np.int64) for key in keys])

    def _files(self, root: Path) -> dict[str, ImageFile]:
        """The images by name, those in tars included."""
        folder = root / self.folder
        files: dict[str, ImageFile] = {}
        for tar in sorted(folder.glob("jpg*.tar")):
            files |= _tar_members(tar, tar.stat().st_mtime_ns)
        names = _names(folder / "jpg")
        return files | {f"jpg/{name}": ImageFile(folder / "jpg" / name) for name in names}


def _flower(number: int) -> str:
    return f"jpg/image_{number:05d}.jpg"


class OxfordPet:
    """Oxford-IIIT Pet, 37 breeds of cats and dogs."""

    folder = "oxford-iiit-pet"

    def missing(self, root: Path) -> list[str]:
        """Names of missing files, below the data root."""
        lists = ["annotations/trainval.txt", "annotations/test.txt"]
        absent = absent_files(root, self.folder, lists)
        if absent:
            return absent
        here = _names(root / self.folder / "images")
        names = [f"{name}.jpg" for split in SPLITS for name, _ in self._list(root, split)]
        return [f"{self.folder}/images/{name}" for name in names if name not in here]

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one split; the dataset has its own, so the seed is not used."""
        parts = {part: self._list(root, part) for part in SPLITS}
        rows = parts[split]
        # The names of images begin with the breed: "american_bulldog_17".
        breeds = {label: name.rpartition("_")[0] for part in parts.values() for name, label in part}
        names = (breeds.get(label, str(label + 1)) for label in range(max(breeds) + 1))
        folder = root / self.folder / "images"
        return Contents(
            torch.tensor([label for _, label in rows]),
            tuple(name.replace("_", " ").title() for name in names),
            tuple(ImageFile(folder / f"{name}.jpg") for name, _ in rows),
        )

    def _list(self, root: Path, split: str) -> list[tuple[str, int]]:
        """The names and labels, from 0, of one split."""
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


class StanfordCars:
    """Stanford Cars, 196 models of cars."""

    folder = "stanford_cars"

    def missing(self, root: Path) -> list[str]:
        """Names of missing files, below the data root."""
        lists = ["devkit/cars_meta.mat", "devkit/cars_train_annos.mat"]
        absent = absent_files(root, self.folder, lists)
        if not self._annotations(root, "test").is_file():
            absent.append(f"{self.folder}/cars_test_annos_withlabels.mat")
        if absent:
            return absent
        for split in SPLITS:
            here = _names(root / self.folder / f"cars_{split}")
            absent += [
                f"{self.folder}/cars_{split}/{name}"
                for name, _ in self._list(root, split)
                if name not in here
            ]
        return absent

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one split; the dataset has its own, so the seed is not used."""
        rows = self._list(root, split)
        folder = root / self.folder
        return Contents(
            torch.tensor([label for _, label in rows]),
            tuple(map(str, _mat(folder / "devkit" / "cars_meta.mat", "class_names"))),
            tuple(ImageFile(folder / f"cars_{split}" / name) for name, _ in rows),
        )

    def _annotations(self, root: Path, split: str) -> Path:
        folder = root / self.folder
        if split == "train":
            return folder / "devkit" / "cars_train_annos.mat"
        # Torchvision stores it beside the development kit, other copies inside.
        name = "cars_test_annos_withlabels.mat"
        inside = folder / "devkit" / name
        return inside if inside.is_file() and not (folder / name).is_file() else folder / name

    def _list(self, root: Path, split: str) -> list[tuple[str, int]]:
        """The names and labels, from 0, of one split."""
        path = self._annotations(root, split)
        table = _mat(path, "annotations")
        if not {"class", "fname"} <= set(table.dtype.names or ()):
            raise ValueError(f"{path} has no fields 'class' and 'fname' in its annotations")
        return [(str(row["fname"]), int(row["class"]) - 1) for row in table]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@lru_cache(maxsize=16)
def _tar_members(path: Path, modified: int) -> dict[str, ImageFile]:
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
    except Exception as error:  # damaged files raise errors of any type
        raise ValueError(f"{path} cannot be read as a MATLAB file: {error}") from None
    if key not in table:
        raise ValueError(f"{path} has no {key!r}")
    return np.atleast_1d(table[key])
