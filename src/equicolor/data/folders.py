"""Datasets that come as folders of class folders: Caltech-101, ImageNet, and anybody's own."""

import hashlib
import os
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from equicolor._text import counted, enumerated
from equicolor.data.image_set import Contents, ImageFiles

__all__ = ["Caltech101", "Folder", "ImageNet"]

# Those of torchvision, and what else Pillow reads of the formats that images come in. Not all
# that Pillow opens: documents, icons and films (.pdf, .ico, .mpg) are hardly images of a class.
# A fixed list, so that a folder is the same dataset with every version of Pillow.
SUFFIXES = (
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm",
    ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
# What the folders of a split are called, in any case.
TRAIN = ("train", "training")
TEST = ("test", "testing")
VALIDATION = ("val", "valid", "validation", "dev", "eval", "evaluation")


@dataclass(frozen=True)
class Caltech101:
    """Caltech-101 without its background class, split about 67 to 33 by :func:`split_classes`.

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
        return split_classes(root / self.folder, files, split, share=0.33, seed=seed)

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

    It holds ``train/`` and ``test/``, each with the same class folders, or class folders that are
    split about 80 to 20 by :func:`split_classes`. The parts may also be called as in
    :data:`TRAIN`, :data:`TEST` and :data:`VALIDATION`, in any case; folders without folders in
    them are classes, whatever their names. A validation part is tested
    on where there is no test part, and left out where there is one.

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
        names = subfolders(self.path)
        if len(names) == 1 and names[0].lower() in TRAIN:
            return [f"{self.path / 'test'}/ (or val/)"]
        lone = self._hold_folders(names) and {n.lower() for n in names} <= {*TEST, *VALIDATION}
        return [f"{self.path / 'train'}/"] if lone else []

    def classes(self) -> list[str]:
        """The names of the class folders."""
        parts = self._parts()
        return subfolders(parts[0] if parts else self.path)

    def split_by_seed(self) -> bool:
        """Whether the folder has no parts of its own."""
        return self._parts() is None

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """Read one part."""
        parts = self._parts()
        if parts:
            self._say(*parts)
            return read_parts(*parts, split)
        files = class_files(self.path, checked_classes(self.path))
        return split_classes(self.path, files, split, share=0.2, seed=seed)

    def _parts(self) -> tuple[Path, Path] | None:
        """The folders of the training and of the test part, where there are both."""
        train, test, validation = map(self._called, (TRAIN, TEST, VALIDATION))
        tested = test or validation
        # Folders that hold images alone are classes, such as training, evaluation and support.
        if not train or not tested or not self._hold_folders(train + tested):
            return None
        for names in (train, tested):
            if len(names) > 1:
                raise ValueError(
                    f"{self.path} holds {enumerated(names)}, which could each be the same part of "
                    "the dataset: rename all but one, such as to train and test"
                )
        return self.path / train[0], self.path / tested[0]

    def _called(self, names: Sequence[str]) -> list[str]:
        return [name for name in subfolders(self.path) if name.lower() in names]

    def _hold_folders(self, names: Sequence[str]) -> bool:
        return any(subfolders(self.path / name) for name in names)

    def _say(self, train: Path, test: Path) -> None:
        """Say what was taken for which part, and what was left out, unless both are obvious."""
        left_out = [n for n in subfolders(self.path) if n not in (train.name, test.name)]
        if left_out or (train.name, test.name) != ("train", "test"):
            others = f"; left out: {enumerated(left_out)}" if left_out else ""
            warnings.warn(
                f"{self.path}: {train.name} is trained on and {test.name} tested on{others}",
                stacklevel=2,
            )


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted; none where there is no folder."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if not e.name.startswith(".")]
    # Not DirEntry.is_dir, which raises for links that lead in a circle.
    return sorted(name for name in names if (folder / name).is_dir())


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
    held = f"{loose} images outside any" if loose else "none"
    raise ValueError(f"{folder} should hold a folder of images for every class, but holds {held}")


_NO_FILES = "broken links, pipes and the like"


@dataclass
class _Others:
    """What is not taken for an image: how many, one of them, and their kinds."""

    count: int = 0
    example: str = ""
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, path: str) -> None:
        self.count += 1
        self.example = min(self.example or path, path)  # whatever the order on the disk
        suffix = Path(path).suffix.lower() or "no suffix"
        self.kinds[suffix if Path(path).is_file() else _NO_FILES] += 1

    def __str__(self) -> str:
        kinds = [f"{kind} ({count:,})" for kind, count in self.kinds.most_common()]
        return f"{counted(self.count, 'file')} such as {self.example}: {enumerated(kinds)}"


def class_files(folder: Path, names: Sequence[str]) -> dict[str, ImageFiles]:
    """The images of every class: those in its folder and below, sorted by path; one at least.

    Files are images by their suffix, one of :data:`SUFFIXES` in any case. Hidden files do not
    count; of others, and of broken links, pipes and the like, a warning says how many there are.

    Args:
        folder: of class folders.
        names: of the class folders.

    Raises:
        ValueError: for a class without an image, and for one that holds several folders and no
            image of its own, which are more likely classes.

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
        place = folder / name
        paths = sorted(_images_below(str(place), others))
        if not paths:
            raise ValueError(
                f"the class folder {place} holds no images ({', '.join(SUFFIXES)}); "
                "remove it or fill it"
            )
        below = subfolders(place)
        if len(below) > 1 and not any(Path(path).parent == place for path in paths):
            raise ValueError(
                f"{place} should hold the images of one class, but holds only folders "
                f"({enumerated(below)}). If those are the classes, give the folder that holds them "
                "(or call the parts of a split train and test); else move the images up"
            )
        files[name] = ImageFiles.from_paths(paths)
    if others.count:
        warnings.warn(
            f"the class folders of {folder} also hold {others}. They are left out"
            + f": images end in {', '.join(SUFFIXES)}" * bool(set(others.kinds) - {_NO_FILES}),
            stacklevel=2,
        )
    return files


def _images_below(folder: str, others: _Others, above: tuple[Path, ...] = ()) -> Iterator[str]:
    """The images in a folder and below; what is none is counted.

    A link to a folder above would lead in a circle, and does not count.
    """
    above = (*above, Path(folder).resolve())
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            # Of the entry without a system call, unless it is a link.
            is_file = entry.is_file(follow_symlinks=False) or Path(entry).is_file()
            if is_file and entry.name.lower().endswith(SUFFIXES):
                yield entry.path
            elif not is_file and Path(entry).is_dir():
                target = Path(entry).resolve()
                if not any(place.is_relative_to(target) for place in above):
                    yield from _images_below(entry.path, others, above)
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
    folder: Path, files: Mapping[str, ImageFiles], split: str, *, share: float, seed: int
) -> Contents:
    """Split every class by the names of its files.

    A hash of the seed and of the path below ``folder`` gives every image a number in [0, 1).
    Images whose number is below ``share`` are for testing. So an image that is added moves no
    other one from training to testing, except in a class that had training images only because
    of the last rule: of a class with two or more images each part gets one at least, and a single
    image is for training.

    Args:
        folder: of class folders.
        files: of every class.
        split: ``"train"`` or ``"test"``.
        share: of the images that are for testing, about.
        seed: another one gives another split.
    """
    chosen = []
    for members in files.values():
        numbers = [_hashed(file.path.relative_to(folder).as_posix(), seed) for file in members]
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        count = sum(number < share for number in numbers)
        tested = set(order[: min(max(count, 1), len(order) - 1)])
        places = [place for place in range(len(order)) if (place in tested) == (split == "test")]
        chosen.append(members.select(places))
    if not any(chosen):
        raise ValueError(f"no class of {folder} has a second image: nothing is left to test on")
    return _contents(chosen, list(files))


def _hashed(name: str, seed: int) -> float:
    """A number in [0, 1) that follows from the seed and the name alone."""
    # Some file systems keep an accent as a character of its own: one name, two spellings.
    spelt = os.fsencode(unicodedata.normalize("NFC", name))
    digest = hashlib.sha256(b"%d %b" % (seed, spelt)).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _contents(files: Sequence[ImageFiles], class_names: Sequence[str]) -> Contents:
    sizes = torch.tensor([len(members) for members in files])
    labels = torch.repeat_interleave(torch.arange(len(files)), sizes)
    return Contents(labels, tuple(class_names), ImageFiles.joined(files))
