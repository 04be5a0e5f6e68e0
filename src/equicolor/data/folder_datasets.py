"""Datasets that are folders of class folders: Caltech-101, ImageNet, and any other folder."""

import hashlib
import os
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from equicolor._text import counted, enumerated
from equicolor.data.images import WHOLE, ImageFiles, ImageSet
from equicolor.data.layouts import Contents, Layout

# Torchvision's suffixes, and the others of image formats that Pillow reads. Pillow also opens
# documents, icons and films (.pdf, .ico, .mpg), which are rarely images of a class. The list is
# fixed, so that a folder is the same dataset with every version of Pillow.
SUFFIXES = (
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm",
    ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
# Names of the folders of a split, in any case.
TRAIN = ("train", "training")
TEST = ("test", "testing")
VALIDATION = ("val", "valid", "validation", "dev", "eval", "evaluation")
_NOT_FILES = "broken links, pipes and the like"


class Caltech101(Layout):
    """Caltech-101 without its background class, split about 67 to 33 by :func:`split_classes`."""

    folder = "caltech101/101_ObjectCategories"
    split_by_seed = True

    def missing(self, root: Path) -> list[str]:
        return [] if self._classes(root) else [f"{self.folder}/"]

    def incomplete(self, root: Path) -> list[str]:
        return _lacking_classes(self._classes(root), 101)

    def read(self, root: Path, split: str, seed: int) -> Contents:
        paths = class_images(root / self.folder, self._classes(root))
        return split_classes(root / self.folder, paths, split, share=0.33, seed=seed)

    def _classes(self, root: Path) -> list[str]:
        return [name for name in subfolders(root / self.folder) if name != "BACKGROUND_Google"]


class ImageNet(Layout):
    """ImageNet (ILSVRC 2012): one folder for each synset in ``train/`` and in ``val/``."""

    def missing(self, root: Path) -> list[str]:
        parts = ["imagenet/train", "imagenet/val"]
        absent = [f"{part}/" for part in parts if not (root / part).is_dir()]
        return absent or [f"{part}/<synset>/" for part in parts if not subfolders(root / part)]

    def incomplete(self, root: Path) -> list[str]:
        return _lacking_classes(subfolders(root / "imagenet" / "train"), 1000)

    def read(self, root: Path, split: str, seed: int) -> Contents:
        return read_parts(root / "imagenet" / "train", root / "imagenet" / "val", split)


class Folder(Layout):
    """Any folder of class folders; the data root is not used.

    It holds ``train/`` and ``test/``, each with the same class folders; or class folders, which
    are split about 80 to 20 by :func:`split_classes`. The two parts may also have the names of
    :data:`TRAIN`, :data:`TEST` and :data:`VALIDATION`, in any case. Folders that hold no folders
    are classes, whatever their names. A validation part is the test part if there is no other, else
    it is left out. A test part may be alone, without images to train on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = self._find_parts()
        self.split_by_seed = self.parts is None

    def missing(self, root: Path) -> list[str]:
        # Beside other folders "train" may be a class: train, car, ship.
        names = subfolders(self.path)
        alone = len(names) == 1 and names[0].lower() in TRAIN
        return [f"{self.path / 'test'}/ (or val/)"] if alone else []

    @property
    def test_alone(self) -> bool:
        """Whether there is a test part without a training part."""
        return self.parts is not None and self.parts[0] is None

    def classes(self) -> list[str]:
        """The names of the class folders."""
        return subfolders(self.parts[1] if self.parts else self.path)

    def read(self, root: Path, split: str, seed: int) -> Contents:
        if self.parts:
            train, test = self.parts
            if train is None:
                if split == "train":
                    raise ValueError(
                        f"there is no {self.path / 'train'}/ beside {test}/: nothing to train on"
                    )
                return contents_of(class_images(test, checked_classes(test)))
            self._warn_of_parts(train, test)
            return read_parts(train, test, split)
        paths = class_images(self.path, checked_classes(self.path))
        return split_classes(self.path, paths, split, share=0.2, seed=seed)

    def _find_parts(self) -> tuple[Path | None, Path] | None:
        """The folders of the training part, None if there is none, and of the test part."""
        folders = subfolders(self.path)
        train, test, validation = (
            [name for name in folders if name.lower() in names]
            for names in (TRAIN, TEST, VALIDATION)
        )
        alone = len(test + validation) == len(folders)
        test = test or validation
        # Folders without subfolders are classes, such as training, evaluation and support.
        has_classes = any(subfolders(self.path / name) for name in train + test)
        if not (train or alone) or not test or not has_classes:
            return None
        for names in (train, test):
            if len(names) > 1:
                raise ValueError(
                    f"{self.path} holds {enumerated(names)}, which could each be the same part of "
                    "the dataset: rename all but one, such as to train and test"
                )
        return self.path / train[0] if train else None, self.path / test[0]

    def _warn_of_parts(self, train: Path, test: Path) -> None:
        """Say which part is which and what is left out, unless both are obvious."""
        left_out = [n for n in subfolders(self.path) if n not in (train.name, test.name)]
        if left_out or (train.name, test.name) != ("train", "test"):
            others = f"; left out: {enumerated(left_out)}" if left_out else ""
            warnings.warn(
                f"{self.path}: {train.name} is trained on and {test.name} tested on{others}",
                stacklevel=2,
            )


def _lacking_classes(names: Sequence[str], count: int) -> list[str]:
    """How many of the classes of a dataset are missing, in words."""
    lacking = count - len(names)
    return [f"{lacking} of {count} class folders"] if lacking > 0 else []


def subfolders(folder: Path) -> list[str]:
    """The sorted names of the folders in a folder; none if there is no such folder."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if not e.name.startswith(".")]
    # DirEntry.is_dir would raise for links in a circle.
    return sorted(name for name in names if (folder / name).is_dir())


def checked_classes(folder: Path) -> list[str]:
    """The names of the class folders; there must be two or more."""
    names = subfolders(folder)
    if len(names) >= 2:
        return names
    if names:
        raise ValueError(
            f"{folder} holds one class folder, {names[0]!r}; a classifier needs two or more"
        )
    loose = sum(path.name.lower().endswith(SUFFIXES) for path in folder.iterdir())
    found = f"{counted(loose, 'image')} outside any" if loose else "none"
    raise ValueError(f"{folder} should hold a folder of images for every class, but holds {found}")


def class_images(folder: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """The sorted paths of the images of every class, in its folder and below.

    Files are images by their suffix, one of :data:`SUFFIXES` in any case. Hidden files are
    ignored. A warning counts all other files, and broken links, pipes and the like.

    Raises:
        ValueError: for a class without an image, and for one that holds several folders but no
            image directly: those folders are more likely the classes.
    """
    paths, others = {}, list[str]()
    for name in names:
        place = folder / name
        paths[name] = sorted(_images_below(str(place), others))
        if not paths[name]:
            raise ValueError(
                f"the class folder {place} holds no images ({', '.join(SUFFIXES)}); "
                "remove it or fill it"
            )
        below = subfolders(place)
        if len(below) > 1 and not any(Path(path).parent == place for path in paths[name]):
            raise ValueError(
                f"{place} should hold the images of one class, but holds only folders "
                f"({enumerated(below)}). If those are the classes, give the folder that holds them "
                "(or call the parts of a split train and test); else move the images up"
            )
    if others:
        kinds = Counter(
            Path(path).suffix.lower() or "no suffix" if Path(path).is_file() else _NOT_FILES
            for path in others
        )
        shown = enumerated([f"{kind} ({count:,})" for kind, count in kinds.most_common()])
        reason = f": images end in {', '.join(SUFFIXES)}" if set(kinds) != {_NOT_FILES} else ""
        warnings.warn(
            f"the class folders of {folder} also hold {counted(len(others), 'file')} such as "
            f"{min(others)}: {shown}. They are left out{reason}",
            stacklevel=2,
        )
    return paths


def images_below(folder: Path) -> ImageSet:
    """All images in a folder and below as one class for training, whatever the folders mean.

    Raises:
        ValueError: if there are none.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder of images")
    paths = sorted(_images_below(str(folder), []))
    if not paths:
        raise ValueError(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    files = ImageFiles((path, 0, WHOLE) for path in paths)
    labels = torch.zeros(len(files), dtype=torch.int64)
    return ImageSet(folder.name, "train", labels, ("image",), files=files, root=folder)


def _images_below(folder: str, others: list[str], above: tuple[Path, ...] = ()) -> Iterator[str]:
    """The images in a folder and below; adds other files to ``others``.

    A link to a folder above it leads in a circle, and is ignored.
    """
    above = (*above, Path(folder).resolve())
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            # The entry knows this without a system call, except for links.
            is_file = entry.is_file(follow_symlinks=False) or Path(entry).is_file()
            if is_file and entry.name.lower().endswith(SUFFIXES):
                yield entry.path
            elif not is_file and Path(entry).is_dir():
                target = Path(entry).resolve()
                if not any(place.is_relative_to(target) for place in above):
                    yield from _images_below(entry.path, others, above)
            else:
                others.append(entry.path)


def read_parts(train: Path, test: Path, split: str) -> Contents:
    """One split of a dataset whose parts are two folders with the same class folders."""
    names = {place: checked_classes(place) for place in (train, test)}
    for place, other in ((train, test), (test, train)):
        lacking = sorted(set(names[place]) - set(names[other]))
        if lacking:
            similar = {name.casefold(): name for name in names[other]}
            pairs = [(name, similar.get(name.casefold())) for name in lacking]
            twins = [f"{name} and {twin}" for name, twin in pairs if twin is not None]
            remedy = f" (spelled otherwise: {enumerated(twins)})" if twins else ""
            raise ValueError(
                f"class folders of {place} that {other} lacks: {enumerated(lacking)}; both must "
                f"have the same{remedy}"
            )
    return contents_of(class_images(train if split == "train" else test, names[train]))


def split_classes(
    folder: Path, paths: Mapping[str, Sequence[str]], split: str, *, share: float, seed: int
) -> Contents:
    """Split every class by the names of its files.

    A hash of the seed and of the path below ``folder`` gives every image a number in [0, 1).
    Images whose number is below ``share`` are for testing. So an added image moves no other image
    between training and testing, with one exception: in a class of two or more images, each split
    gets at least one. A single image is for training.
    """
    selected = {}
    for name, members in paths.items():
        numbers = {
            path: hashed(Path(path).relative_to(folder).as_posix(), seed) for path in members
        }
        order = sorted(members, key=numbers.__getitem__)
        count = sum(number < share for number in numbers.values())
        test = set(order[: min(max(count, 1), len(order) - 1)])
        selected[name] = [path for path in members if (path in test) == (split == "test")]
    if not any(selected.values()):
        raise ValueError(f"no class of {folder} has a second image: nothing is left to test on")
    return contents_of(selected)


def hashed(name: str, seed: int) -> float:
    """A number in [0, 1) that depends only on the seed and the name."""
    # Some file systems store an accent as a separate character.
    spelling = os.fsencode(unicodedata.normalize("NFC", name))
    digest = hashlib.sha256(b"%d %b" % (seed, spelling)).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def contents_of(paths: Mapping[str, Sequence[str]]) -> Contents:
    """A split by the images of every class."""
    sizes = torch.tensor([len(members) for members in paths.values()])
    labels = torch.repeat_interleave(torch.arange(len(paths)), sizes)
    files = ((path, 0, WHOLE) for members in paths.values() for path in members)
    return Contents(labels, tuple(paths), ImageFiles(files))
