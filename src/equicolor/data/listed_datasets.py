"""Datasets of image files with lists of labels: Flowers-102, Oxford-IIIT Pet, Stanford Cars."""

import json
import tarfile
from abc import abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from equicolor.data.images import SPLITS, ImageFile
from equicolor.data.layouts import Contents, Layout


class Listed(Layout):
    """Image files whose names and labels are in lists; paths are relative to ``folder``."""

    folder: str
    lists: tuple[str, ...]

    @abstractmethod
    def rows(self, folder: Path, split: str) -> list[tuple[str, int]]:
        """The path and the label, from 0, of every image of a split."""

    @abstractmethod
    def class_names(self, folder: Path) -> tuple[str, ...]:
        """Names of the classes, in the order of the labels."""

    def missing(self, root: Path) -> list[str]:
        folder = root / self.folder
        absent = [name for name in self.lists if not _find(folder, name).is_file()]
        if absent:
            return [f"{self.folder}/{name}" for name in absent]
        names = {name for split in SPLITS for name, _ in self.rows(folder, split)}
        return [f"{self.folder}/{name}" for name in sorted(names - _files(folder, names).keys())]

    def read(self, root: Path, split: str, seed: int) -> Contents:
        folder = root / self.folder
        rows = self.rows(folder, split)
        files = _files(folder, [name for name, _ in rows])
        labels = torch.tensor([label for _, label in rows])
        return Contents(labels, self.class_names(folder), [files[name] for name, _ in rows])


class Flowers102(Listed):
    """Flowers-102: the paper trains on the official training and validation parts.

    The images are in ``jpg/``, or in uncompressed tars ``jpg*.tar``.
    """

    folder = "flowers-102"
    lists = ("imagelabels.mat", "setid.mat")

    def rows(self, folder: Path, split: str) -> list[tuple[str, int]]:
        keys = ("trnid", "valid") if split == "train" else ("tstid",)
        ids = np.concatenate([_mat(folder / "setid.mat", key).astype(np.int64) for key in keys])
        labels = _mat(folder / "imagelabels.mat", "labels")
        if not 1 <= ids.min() <= ids.max() <= len(labels):
            raise ValueError(
                f"{folder / 'setid.mat'} has images {ids.min()} to {ids.max()}, but "
                f"imagelabels.mat labels {len(labels)}"
            )
        return [(f"jpg/image_{number:05d}.jpg", int(labels[number - 1]) - 1) for number in ids]

    def class_names(self, folder: Path) -> tuple[str, ...]:
        path = folder / "cat_to_name.json"  # often distributed with the images
        names = json.loads(path.read_text()) if path.is_file() else {}
        count = int(_mat(folder / "imagelabels.mat", "labels").max())
        return tuple(names.get(str(number), str(number)) for number in range(1, count + 1))


class OxfordPet(Listed):
    """Oxford-IIIT Pet, 37 breeds of cats and dogs."""

    folder = "oxford-iiit-pet"
    lists = ("annotations/trainval.txt", "annotations/test.txt")

    def rows(self, folder: Path, split: str) -> list[tuple[str, int]]:
        path = folder / self.lists[SPLITS.index(split)]
        rows = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split()
            if len(words) < 2 or not words[1].isdigit() or words[1] == "0":
                raise ValueError(
                    f"{path}, line {number}: expected a name and a class, got {line!r}"
                )
            rows.append((f"images/{words[0]}.jpg", int(words[1]) - 1))
        return rows

    def class_names(self, folder: Path) -> tuple[str, ...]:
        rows = [row for split in SPLITS for row in self.rows(folder, split)]
        # The names of images begin with the breed: "american_bulldog_17.jpg".
        breeds = {label: Path(name).name.rpartition("_")[0] for name, label in rows}
        names = (breeds.get(label, str(label + 1)) for label in range(max(breeds) + 1))
        return tuple(name.replace("_", " ").title() for name in names)


class StanfordCars(Listed):
    """Stanford Cars, 196 models of cars."""

    folder = "stanford_cars"
    lists = (
        "devkit/cars_train_annos.mat",
        "cars_test_annos_withlabels.mat",
        "devkit/cars_meta.mat",
    )

    def rows(self, folder: Path, split: str) -> list[tuple[str, int]]:
        path = _find(folder, self.lists[SPLITS.index(split)])
        table = _mat(path, "annotations")
        if not {"class", "fname"} <= set(table.dtype.names or ()):
            raise ValueError(f"{path} has no fields 'class' and 'fname' in its annotations")
        return [(f"cars_{split}/{row['fname']}", int(row["class"]) - 1) for row in table]

    def class_names(self, folder: Path) -> tuple[str, ...]:
        return tuple(map(str, _mat(folder / "devkit" / "cars_meta.mat", "class_names")))


def _find(folder: Path, name: str) -> Path:
    """The path of a list: torchvision stores one of Cars beside ``devkit/``, other copies in it."""
    inside = folder / "devkit" / name
    return inside if inside.is_file() and not (folder / name).is_file() else folder / name


def _files(folder: Path, names: Iterable[str]) -> dict[str, ImageFile]:
    """The files in tars and in the folders of some images, by path."""
    files: dict[str, ImageFile] = {}
    for tar in sorted(folder.glob("jpg*.tar")):
        files |= _tar_members(tar, tar.stat().st_mtime_ns)
    for place in {name.rpartition("/")[0] for name in names}:
        if (folder / place).is_dir():
            files |= {
                f"{place}/{path.name}": ImageFile(path) for path in (folder / place).iterdir()
            }
    return files


@lru_cache(maxsize=16)
def _tar_members(path: Path, modified: int) -> dict[str, ImageFile]:
    """Where files are in an uncompressed tar; it is read once, and again after a modification."""
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
