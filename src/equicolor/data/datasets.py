"""The datasets of the paper by name, and any folder of class folders."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from equicolor import _checks
from equicolor._text import did_you_mean, enumerated
from equicolor.data.batches import Cifar, Stl10
from equicolor.data.folders import Caltech101, Folder, ImageNet
from equicolor.data.image_set import SPLITS, Contents, ImageSet
from equicolor.data.layouts import Flowers102, OxfordPet, StanfordCars
from equicolor.data.root import MissingDataError, data_root

__all__ = [
    "DATASETS",
    "DatasetInfo",
    "DatasetState",
    "canonical_dataset",
    "dataset_state",
    "find_dataset",
    "load_dataset",
]


class Layout(Protocol):
    """How a dataset lies on disk."""

    def missing(self, root: Path) -> list[str]:
        """What is not there, below the data root; empty if the dataset can be read."""

    def read(self, root: Path, split: str, seed: int) -> Contents:
        """One part of a dataset of which nothing is missing."""


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a dataset before it is read.

    Attributes:
        name: what it is called on the command line.
        title: what it is called in print.
        num_classes: how many classes it has.
        kind: ``"small"`` for CIFAR's 32 pixels, ``"large"`` for images that are cropped to 224
            (STL-10, of 96 pixels, among them, as in the paper).
        images: how many have labels, training and test together; 0 if unknown, as of a folder.
        folders: below the data root, any of which may hold it.
        size: bytes to download; 0 where there is nothing to.
        page: where it comes from.
        torchvision: the class of ``torchvision.datasets`` that downloads it, if one does.
        by_hand: what to do without torchvision.
        layout: how it lies on disk.
    """

    name: str
    title: str
    num_classes: int
    kind: str
    images: int
    folders: tuple[str, ...]
    size: int
    page: str
    torchvision: str | None
    by_hand: str
    layout: Layout

    @property
    def split_by_seed(self) -> bool:
        """Whether the dataset comes without a split of its own.

        Example:
            >>> find_dataset("caltech101").split_by_seed, find_dataset("cifar10").split_by_seed
            (True, False)
        """
        if isinstance(self.layout, Folder):
            return self.layout.split_by_seed()
        return isinstance(self.layout, Caltech101)

    def how_to_get(self) -> str:
        """How to get it, in one sentence.

        Example:
            >>> find_dataset("flowers102").how_to_get()[:56]
            "get it with 'equicolor datasets get flowers102', which n"
        """
        if not self.page:
            return self.by_hand
        by_hand = f"{self.by_hand} (see {self.page})"
        if self.torchvision is None:
            return by_hand
        command = f"'equicolor datasets get {self.name}'"
        return f"get it with {command}, which needs torchvision, or {by_hand}"


def _unpack(archives: str, where: str) -> str:
    return f"unpack {archives} into {where}/ of the data folder"


DATASETS = {
    info.name: info
    for info in (
        DatasetInfo(
            "cifar10", "CIFAR-10", 10, "small", 60_000,
            ("cifar-10-batches-py", "cifar-10-batches-bin"), 170_498_071,
            "https://www.cs.toronto.edu/~kriz/cifar.html", "CIFAR10",
            "unpack cifar-10-python.tar.gz or cifar-10-binary.tar.gz in the data folder",
            Cifar.ten(),
        ),
        DatasetInfo(
            "cifar100", "CIFAR-100", 100, "small", 60_000,
            ("cifar-100-python", "cifar-100-binary"), 169_001_437,
            "https://www.cs.toronto.edu/~kriz/cifar.html", "CIFAR100",
            "unpack cifar-100-python.tar.gz or cifar-100-binary.tar.gz in the data folder",
            Cifar.hundred(),
        ),
        DatasetInfo(
            "flowers102", "Flowers-102", 102, "large", 8_189,
            ("flowers-102",), 344_878_000,
            "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/", "Flowers102",
            "put imagelabels.mat, setid.mat and the jpg/ folder of 102flowers.tgz into "
            "flowers-102/ of the data folder",
            Flowers102(),
        ),
        DatasetInfo(
            "stl10", "STL-10", 10, "large", 13_000,
            ("stl10_binary",), 2_640_397_119,
            "https://cs.stanford.edu/~acoates/stl10/", "STL10",
            "unpack stl10_binary.tar.gz in the data folder",
            Stl10(),
        ),
        DatasetInfo(
            "oxford_pet", "Oxford-IIIT Pet", 37, "large", 7_349,
            ("oxford-iiit-pet",), 811_092_000,
            "https://www.robots.ox.ac.uk/~vgg/data/pets/", "OxfordIIITPet",
            _unpack("images.tar.gz and annotations.tar.gz", "oxford-iiit-pet"),
            OxfordPet(),
        ),
        DatasetInfo(
            "caltech101", "Caltech-101", 101, "large", 8_677,
            ("caltech101",), 131_740_031,
            "https://data.caltech.edu/records/mzrjq-6wc02", "Caltech101",
            _unpack("101_ObjectCategories.tar.gz", "caltech101"),
            Caltech101(),
        ),
        DatasetInfo(
            "stanford_cars", "Stanford Cars", 196, "large", 16_185,
            ("stanford_cars",), 1_957_000_000,
            "https://github.com/pytorch/vision/issues/7545", None,
            "its original site is gone: put cars_train/, cars_test/, devkit/ and "
            "cars_test_annos_withlabels.mat of a copy into stanford_cars/ of the data folder",
            StanfordCars(),
        ),
        DatasetInfo(
            "imagenet", "ImageNet (ILSVRC 2012)", 1000, "large", 1_331_167,
            ("imagenet",), 154_642_000_000,
            "https://image-net.org/download.php", None,
            "its licence asks for a registration: put ILSVRC2012_devkit_t12.tar.gz, "
            "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar into imagenet/ of the data "
            "folder and let torchvision.datasets.ImageNet(folder, 'train') and (folder, 'val') "
            "sort them into imagenet/train/ and imagenet/val/, a folder a class",
            ImageNet(),
        ),
    )
}  # fmt: skip


def find_dataset(name: str | Path) -> DatasetInfo:
    """A dataset by name, or a folder of class folders by its path.

    Args:
        name: one of :data:`DATASETS`, or a path. A folder of the same name as a dataset is
            meant by ``./name``, and is called ``folder:name``: its numbers are not to be
            compared with the dataset's.

    Raises:
        MissingDataError: if a path is no folder.
        ValueError: if a name is unknown.

    Example:
        >>> find_dataset("flowers102").num_classes
        102
    """
    if str(name) in DATASETS and not isinstance(name, Path):
        return DATASETS[str(name)]
    path = Path(name).expanduser()
    if path.is_dir():
        folder = Folder(path)
        title = f"the images in {path}"
        by_hand = "give the path of a folder with a folder of images for every class"
        called = path.resolve().name
        return DatasetInfo(
            f"folder:{called}" if called in DATASETS else called, title, len(folder.classes()),
            "large", 0, (), 0, "", None, by_hand, folder,
        )  # fmt: skip
    if _is_path(name):
        raise MissingDataError(f"no folder of images at {path}")
    raise ValueError(f"{unknown_dataset(str(name), DATASETS)} (there is no folder {path}, either)")


def canonical_dataset(name: str | Path) -> str:
    """The one spelling of a dataset, the same in every working directory.

    Args:
        name: of a dataset, or a path.

    Returns:
        The name; or the path, absolute and without links.

    Example:
        >>> canonical_dataset("cifar10")
        'cifar10'
        >>> canonical_dataset("/data/pets/../cars/")
        '/data/cars'
    """
    if str(name) in DATASETS and not isinstance(name, Path):
        return str(name)
    path = Path(name).expanduser()
    # A word that is neither: whoever reads the data says so.
    return str(path.resolve()) if _is_path(name) or path.is_dir() else str(name)


def _is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or os.sep in name or name.startswith((".", "~"))


def unknown_dataset(name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that no dataset has: the nearest known ones.

    Example:
        >>> unknown_dataset("flower", ["flowers102", "cifar10"])
        ValueError("unknown dataset 'flower'; did you mean 'flowers102'?")
    """
    known = list(known)
    if name.lower() == "mnist" and "mnist" not in known:
        return ValueError(
            "mnist is what ColorMNIST is painted from, see 'equicolor reproduce "
            "colormnist-longtailed' and 'colormnist-biased'; it is no set of images"
        )
    plain = name.lower().replace("-", "").replace(" ", "_")
    hint = did_you_mean(plain, known, f"known are {', '.join(known)}")
    return ValueError(f"unknown dataset {name!r}; {hint}")


def load_dataset(
    name: str | Path, split: str, *, root: Path | str | None = None, seed: int = 0
) -> ImageSet:
    """Load one part of a dataset; files are listed, not decoded.

    Args:
        name: one of :data:`DATASETS` (CIFAR-10, CIFAR-100, Flowers-102, STL-10, Oxford-IIIT Pet,
            Caltech-101, Stanford Cars, ImageNet), in torchvision's layout; or the path of a
            folder that holds ``train/`` and ``test/`` (or ``val/``) with the same class folders,
            or class folders that are split about 80 to 20 by the names of the files
            (:func:`equicolor.data.folders.split_classes`).
        split: ``"train"`` or ``"test"``. The validation part of Flowers-102 and of Oxford-IIIT
            Pet is for training, that of ImageNet for testing.
        root: the data folder (default: :func:`equicolor.data.data_root`).
        seed: of the split, where the dataset has none of its own (Caltech-101, about 67 to 33,
            and plain folders); 0 elsewhere.

    Returns:
        The images.

    Raises:
        MissingDataError: if the dataset is not there: what was looked for, where, and how to
            get it.
        ValueError: if the name is unknown, the data are damaged, or a seed is given for a dataset
            with its own split.

    Example:
        >>> try:
        ...     load_dataset("cifar10", "train", root="/nowhere")
        ... except MissingDataError as error:
        ...     print(str(error).partition(";")[0])
        CIFAR-10 is not in /nowhere: no cifar-10-batches-py/ or cifar-10-batches-bin/
    """
    _checks.one_of("split", split, SPLITS)
    info = find_dataset(name)
    place = Path(data_root() if root is None else root)
    absent = info.layout.missing(place)
    if absent:
        raise missing_data(info, place, absent)
    if seed < 0:
        raise ValueError(f"the split seed must be at least 0, got {seed}")
    if seed and not info.split_by_seed:
        raise ValueError(f"{info.name} comes with its own split: leave the split seed {seed} out")
    contents = info.layout.read(place, split, seed)
    folder = info.layout.path if isinstance(info.layout, Folder) else place
    return ImageSet(info.name, split, *contents, root=folder)


def missing_data(info: DatasetInfo, root: Path, absent: list[str]) -> MissingDataError:
    """The error for a dataset that is not there, or not whole."""
    begun = any((root / folder).exists() for folder in info.folders)
    where = f"incomplete in {root}" if begun else f"not in {root}"
    if not info.folders:
        return MissingDataError(f"{info.title}: no {enumerated(absent)}; {info.how_to_get()}")
    return MissingDataError(
        f"{info.title} is {where}: no {enumerated(absent)}; {info.how_to_get()}. If it is "
        "elsewhere, set EQUICOLOR_DATA to the folder that holds "
        f"{' or '.join(f'{folder}/' for folder in info.folders)}"
    )


class DatasetState(NamedTuple):
    """What is there of a dataset.

    Attributes:
        missing: what is not there; empty if it is complete.
        size: bytes on disk; None where there are too many files to count.
        found: whether anything is there at all.
        damage: what is wrong with what is there, if it cannot be read.
    """

    missing: tuple[str, ...]
    size: int | None
    found: bool
    damage: str = ""

    def __str__(self) -> str:
        if self.damage:
            return f"damaged: {self.damage}"
        if not self.missing:
            return "complete"
        return f"incomplete: no {enumerated(self.missing, 2)}" if self.found else "missing"


def dataset_state(info: DatasetInfo, root: Path | str | None = None) -> DatasetState:
    """What is there of a dataset; no image is opened.

    Args:
        info: which.
        root: the data folder (default: :func:`equicolor.data.data_root`).

    Example:
        >>> str(dataset_state(find_dataset("cifar10"), "/nowhere"))
        'missing'
    """
    place = Path(data_root() if root is None else root)
    folders = [place / folder for folder in info.folders if (place / folder).exists()]
    size = _bytes_below(folders)
    try:
        absent = info.layout.missing(place)
    except ValueError as error:
        return DatasetState(info.folders, size, True, str(error))
    if not absent and isinstance(info.layout, (Cifar, Stl10)):
        absent = [f"whole {name}" for name in info.layout.truncated(place)]
    if not absent and isinstance(info.layout, (Caltech101, ImageNet)):
        # A part of the classes can be trained on, but is not the dataset.
        found = len(info.layout.classes(place))
        if found < info.num_classes:
            absent = [f"{info.num_classes - found} of {info.num_classes} class folders"]
    return DatasetState(tuple(absent), size, bool(folders))


def _bytes_below(folders: Iterable[Path], limit: int = 100_000) -> int | None:
    """The bytes of all files in some folders, unless they are more than ``limit`` files."""
    size = 0
    waiting = [str(folder) for folder in folders]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append(entry.path)
                else:
                    size += entry.stat().st_size
                    limit -= 1
        if limit < 0:
            return None
    return size
