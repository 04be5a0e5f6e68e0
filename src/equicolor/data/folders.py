"""Datasets that come as folders of class folders: Caltech-101, ImageNet, and anybody's own."""

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from equicolor._random import permutation
from equicolor._text import counted, enumerated
from equicolor.data.pictures import Contents, PictureFiles

__all__ = ["Caltech101", "Folder", "ImageNet"]

# Those of torchvision, and what else Pillow reads of the formats that pictures come in. Not all
# that Pillow opens: documents, icons and films (.pdf, .ico, .mpg) are hardly pictures of a class.
# A fixed list, so that a folder is the same dataset with every version of Pillow.
SUFFIXES = (
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm",
    ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
_SPLIT = 1000  # a stream of random numbers, apart from those of training


@dataclass(frozen=True)
class Caltech101:
    """Caltech-101 without its background class, split 67 to 33 in every class by the seed.

    Example:
        >>> Caltech101().missing(Path("/nowhere"))
        ['caltech101/101_ObjectCategories/']
    """

    folder: str = "caltech101/101_ObjectCategories"
    background: str = "BACKGROUND_Google"

    def missing(self, root: Path) -> list[str]:
        """What is not there, below the data root."""
        return [] if self.classes(root) else [f"{self.folder}/"]

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one part."""
        files = class_files(root / self.folder, self.classes(root))
        return split_classes(root / self.folder, files, split, fraction=0.67, seed=seed)

    def classes(self, root: Path) -> list[str]:
        """The names of the class folders."""
        return [name for name in subfolders(root / self.folder) if name != self.background]


@dataclass(frozen=True)
class ImageNet:
    """ImageNet (ILSVRC 2012): a folder a synset in ``train/`` and, sorted likewise, ``val/``.

    Example:
        >>> ImageNet().missing(Path("/nowhere"))
        ['imagenet/train/', 'imagenet/val/']
    """

    folder: str = "imagenet"

    def missing(self, root: Path) -> list[str]:
        """What is not there, below the data root."""
        parts = [f"{self.folder}/{part}" for part in ("train", "val")]
        absent = [f"{part}/" for part in parts if not (root / part).is_dir()]
        empty = [part for part in parts if not absent and not subfolders(root / part)]
        return absent + [f"{part}/<synset>/" for part in empty]

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one part; the split is the dataset's own, whatever the seed."""
        folder = root / self.folder
        return read_parts(folder / "train", folder / "val", split)

    def classes(self, root: Path) -> list[str]:
        """The synsets that are there."""
        return subfolders(root / self.folder / "train")


@dataclass(frozen=True)
class Folder:
    """Any folder of class folders.

    It holds ``train/`` and ``test/`` (or ``val/``), each with the same class folders, or class
    folders that are split 80 to 20 by the seed.

    Example:
        >>> Folder(Path("/nowhere")).missing(Path())
        ['/nowhere/']
    """

    path: Path

    def missing(self, root: Path) -> list[str]:
        """What is not there; the data root plays no part."""
        if not self.path.is_dir():
            return [f"{self.path}/"]
        # Beside other folders "train" may be a class: trains, cars, ships.
        lone = subfolders(self.path) == ["train"]
        return [f"{self.path / 'test'}/ (or val/)"] if lone else []

    def classes(self) -> list[str]:
        """The names of the class folders."""
        return subfolders(self.path / "train" if self._test() else self.path)

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one part."""
        test = self._test()
        if test is not None:
            return read_parts(self.path / "train", test, split)
        files = class_files(self.path, checked_classes(self.path))
        return split_classes(self.path, files, split, fraction=0.8, seed=seed)

    def _test(self) -> Path | None:
        here = subfolders(self.path)
        found = [self.path / name for name in ("test", "val") if name in here]
        return found[0] if found and "train" in here else None


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted; none where there is no folder."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def checked_classes(folder: Path) -> list[str]:
    """The names of the class folders, of which there must be two or more."""
    names = subfolders(folder)
    if len(names) >= 2:
        return names
    if names:
        raise ValueError(
            f"{folder} holds one class folder, {names[0]!r}; a classifier needs two or more"
        )
    loose = sum(path.name.lower().endswith(SUFFIXES) for path in folder.iterdir())
    held = f"{loose} pictures outside any" if loose else "none"
    raise ValueError(f"{folder} should hold a folder of pictures for every class, but holds {held}")


@dataclass
class _Others:
    """Files that are not taken for pictures: how many, one of them, and their suffixes."""

    count: int = 0
    example: str = ""
    suffixes: Counter[str] = field(default_factory=Counter)

    def add(self, path: str) -> None:
        self.count += 1
        self.example = min(self.example or path, path)  # whatever the order on the disk
        self.suffixes[Path(path).suffix.lower() or "no suffix"] += 1

    def __str__(self) -> str:
        kinds = [f"{kind} ({count:,})" for kind, count in self.suffixes.most_common()]
        return f"{counted(self.count, 'file')} such as {self.example}: {enumerated(kinds)}"


def class_files(folder: Path, names: Sequence[str]) -> dict[str, PictureFiles]:
    """The pictures of every class: those in its folder and below, sorted by path; one at least.

    Files are pictures by their suffix, one of :data:`SUFFIXES` in any case. Hidden files do not
    count; of others a warning says how many there are.

    Args:
        folder: of class folders.
        names: of the class folders.

    Raises:
        ValueError: for a class without a picture.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("cat/1.png", "cat/2.JFIF", "dog/more/3.jpg"):
        ...         path = Path(folder, name)
        ...         path.parent.mkdir(parents=True, exist_ok=True)
        ...         path.touch()
        ...     found = class_files(Path(folder), ["cat", "dog"])
        >>> {name: [file.path.name for file in files] for name, files in found.items()}
        {'cat': ['1.png', '2.JFIF'], 'dog': ['3.jpg']}
    """
    files, others = {}, _Others()
    for name in names:
        paths = sorted(_pictures_below(str(folder / name), others))
        if not paths:
            raise ValueError(
                f"the class folder {folder / name} holds no pictures ({', '.join(SUFFIXES)}); "
                "remove it or fill it"
            )
        files[name] = PictureFiles.from_paths(paths)
    if others.count:
        warnings.warn(
            f"the class folders of {folder} also hold {others}. They are left out: pictures end "
            f"in {', '.join(SUFFIXES)}",
            stacklevel=2,
        )
    return files


def _pictures_below(folder: str, others: _Others) -> Iterator[str]:
    """The pictures in a folder and below; what is none is counted."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.lower().endswith(SUFFIXES):
                yield entry.path
            elif entry.is_dir():
                yield from _pictures_below(entry.path, others)
            else:
                others.add(entry.path)


def read_parts(train: Path, test: Path, split: str) -> Contents:
    """A dataset whose parts lie in two folders with the same class folders."""
    names = checked_classes(train)
    others = checked_classes(test)
    for here, there, first, second in ((names, others, train, test), (others, names, test, train)):
        lacking = sorted(set(here) - set(there))
        if lacking:
            raise ValueError(
                f"class folders of {first} that {second} lacks: {enumerated(lacking)}; both must "
                "have the same"
            )
    folder = train if split == "train" else test
    return _contents(list(class_files(folder, names).values()), names)


def split_classes(
    folder: Path,
    files: Mapping[str, PictureFiles],
    split: str,
    *,
    fraction: float,
    seed: int,
) -> Contents:
    """Split every class by the seed, so that both parts have (almost) the same class sizes.

    Of a class with two or more pictures each part gets one at least; a single one is for
    training.
    """
    chosen = []
    for index, members in enumerate(files.values()):
        count = len(members)
        order = permutation(torch.tensor([seed]), _SPLIT, index, count)[0]
        train = min(max(round(fraction * count), 1), max(count - 1, 1))
        part = order[:train] if split == "train" else order[train:]
        chosen.append(members.select(part.sort().values.tolist()))
    if not any(chosen):
        raise ValueError(f"no class of {folder} has a second picture: nothing is left to test on")
    return _contents(chosen, list(files))


def _contents(files: Sequence[PictureFiles], class_names: Sequence[str]) -> Contents:
    sizes = torch.tensor([len(members) for members in files])
    labels = torch.repeat_interleave(torch.arange(len(files)), sizes)
    return Contents(labels, tuple(class_names), PictureFiles.joined(files))
