"""Datasets by name or by folder: find one, load a split of it, see whether it is complete."""

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from equicolor import _checks
from equicolor._files import file_sizes, user_cache
from equicolor._text import did_you_mean, enumerated
from equicolor.data.folder_datasets import Caltech101, Folder, ImageNet
from equicolor.data.images import LONGEST, SPLITS, ImageSet
from equicolor.data.layouts import Layout
from equicolor.data.listed_datasets import Flowers102, OxfordPet, StanfordCars
from equicolor.data.named_datasets import BreaKHis
from equicolor.data.pixel_datasets import CIFAR10, CIFAR100, Stl10


class MissingDataError(FileNotFoundError):
    """A dataset that is missing: what was looked for, where, and how to get it."""


def data_root() -> Path:
    """The folder of datasets: ``EQUICOLOR_DATA``, else the user's cache folder."""
    folder = os.environ.get("EQUICOLOR_DATA")
    return Path(folder).expanduser() if folder else user_cache()


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a dataset that are known before it is read.

    Its ``kind`` is ``"small"`` for CIFAR's 32 pixels, and ``"large"`` for images that are cropped
    to 224, in the paper also STL-10's 96 pixels.
    """

    name: str  # on the command line
    title: str  # in print
    num_classes: int
    kind: str
    images: int  # labelled images, for training and testing together; 0 if unknown
    folders: tuple[str, ...]  # below the data root; any of them may hold the dataset
    size: int  # bytes to download; 0 for a folder
    page: str  # where it comes from
    torchvision: str | None  # the class of torchvision.datasets that downloads it
    by_hand: str  # what to do without torchvision
    layout: Layout

    def how_to_get(self) -> str:
        """How to get it, in one sentence."""
        if not self.page:
            return self.by_hand
        by_hand = f"{self.by_hand} (see {self.page})"
        if self.torchvision is None:
            return by_hand
        command = f"'equicolor datasets get {self.name}', which needs torchvision"
        return f"get it with {command}, or {by_hand}"


DATASETS = {
    info.name: info
    for info in (
        DatasetInfo(
            "cifar10", "CIFAR-10", 10, "small", 60_000,
            ("cifar-10-batches-py", "cifar-10-batches-bin"), 170_498_071,
            "https://www.cs.toronto.edu/~kriz/cifar.html", "CIFAR10",
            "unpack cifar-10-python.tar.gz or cifar-10-binary.tar.gz in the data folder",
            CIFAR10,
        ),
        DatasetInfo(
            "cifar100", "CIFAR-100", 100, "small", 60_000,
            ("cifar-100-python", "cifar-100-binary"), 169_001_437,
            "https://www.cs.toronto.edu/~kriz/cifar.html", "CIFAR100",
            "unpack cifar-100-python.tar.gz or cifar-100-binary.tar.gz in the data folder",
            CIFAR100,
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
            "unpack images.tar.gz and annotations.tar.gz into oxford-iiit-pet/ of the data folder",
            OxfordPet(),
        ),
        DatasetInfo(
            "caltech101", "Caltech-101", 101, "large", 8_677,
            ("caltech101",), 131_740_031,
            "https://data.caltech.edu/records/mzrjq-6wc02", "Caltech101",
            "unpack 101_ObjectCategories.tar.gz into caltech101/ of the data folder",
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
            "sort them into imagenet/train/ and imagenet/val/, with a folder for each class",
            ImageNet(),
        ),
        DatasetInfo(
            "breakhis", "BreaKHis", 2, "large", 1_820,
            ("breakhis",), 4_000_000_000,
            "https://web.inf.ufpr.br/vri/databases-software/"
            "breast-cancer-histopathological-database-breakhis", None,
            "unpack BreaKHis_v1.tar.gz into breakhis/ of the data folder; only the images at a "
            "magnification of 400 are used",
            BreaKHis(),
        ),
    )
}  # fmt: skip


def find_dataset(name: str | Path) -> DatasetInfo:
    """A dataset by name, or a folder of class folders by its path.

    ``./name`` is a folder, also where a dataset has that name. It is then called ``folder:name``,
    so that its results are not taken for the dataset's.

    Raises:
        MissingDataError: if a path is not a folder.
        ValueError: if the name is unknown.

    Example:
        >>> find_dataset("flowers102").num_classes
        102
    """
    if name in DATASETS:  # a Path never is
        return DATASETS[str(name)]
    path = Path(name).expanduser()
    if path.is_dir():
        folder, last = Folder(path), path.resolve().name
        return DatasetInfo(
            f"folder:{last}" if last in DATASETS else last, f"the images in {path}",
            len(folder.classes()), "large", 0, (), 0, "", None,
            "give the path of a folder with a folder of images for every class", folder,
        )  # fmt: skip
    if _is_path(name):
        raise MissingDataError(f"no folder of images at {path}")
    unknown = unknown_dataset(str(name), [*DATASETS])
    raise ValueError(f"{unknown} (there is no folder {path}, either)")


def canonical_dataset(name: str | Path) -> str:
    """One spelling for a dataset: its name, or the absolute path of a folder without links."""
    if name in DATASETS:
        return str(name)
    path = Path(name).expanduser()
    # An unknown name is refused when the data are read.
    return str(path.resolve()) if _is_path(name) or path.is_dir() else str(name)


def _is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or os.sep in name or name.startswith((".", "~"))


def unknown_dataset(name: str, names: Sequence[str]) -> ValueError:
    """The error for an unknown name, with the nearest known ones."""
    if name.lower() == "mnist" and "mnist" not in names:
        return ValueError(
            "mnist cannot be used as it is; ColorMNIST is made from it, see 'equicolor reproduce "
            "colormnist-longtailed' and 'colormnist-biased'"
        )
    plain = name.lower().replace("-", "").replace(" ", "_")
    hint = did_you_mean(plain, names, f"known are {', '.join(names)}")
    return ValueError(f"unknown dataset {name!r}; {hint}")


def load_dataset(
    name: str | Path, split: str, *, root: Path | str | None = None, seed: int = 0
) -> ImageSet:
    """Load one split of a dataset; files are listed, not decoded.

    Args:
        name: one of :data:`DATASETS`, in torchvision's layout; or the path of a folder that holds
            ``train/`` and ``test/`` (or ``val/``) with the same class folders, or class folders
            that are split about 80 to 20 by the names of the files
            (:func:`equicolor.data.folder_datasets.split_classes`).
        split: ``"train"`` or ``"test"``. The validation images of Flowers-102 and of Oxford-IIIT
            Pet are for training, those of ImageNet for testing.
        root: the data folder (default: :func:`equicolor.data.data_root`).
        seed: of the split, where the dataset has none of its own (Caltech-101, about 67 to 33,
            and plain folders); 0 elsewhere.

    Raises:
        MissingDataError: if the dataset is missing; says what was looked for and how to get it.
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
        raise _missing_data(info, place, absent)
    if lacking := info.layout.incomplete(place):
        warnings.warn(
            f"{info.title} in {place} is incomplete: no {enumerated(lacking, 2)}", stacklevel=2
        )
    if seed < 0:
        raise ValueError(f"the split seed must be at least 0, got {seed}")
    if seed and not info.layout.split_by_seed:
        raise ValueError(f"{info.name} comes with its own split: leave the split seed {seed} out")
    contents = info.layout.read(place, split, seed)
    folder = info.layout.path if isinstance(info.layout, Folder) else place
    return ImageSet(info.name, split, *contents, root=folder)


def _missing_data(info: DatasetInfo, root: Path, absent: list[str]) -> MissingDataError:
    """The error for a dataset that is missing or incomplete."""
    advice = f"no {enumerated(absent)}; {info.how_to_get()}"
    if not info.folders:
        return MissingDataError(f"{info.title}: {advice}")
    partly = any((root / folder).exists() for folder in info.folders)
    return MissingDataError(
        f"{info.title} is {'incomplete' if partly else 'not'} in {root}: {advice}. If it is "
        "elsewhere, set EQUICOLOR_DATA to the folder that holds "
        f"{' or '.join(f'{folder}/' for folder in info.folders)}"
    )


class DatasetState(NamedTuple):
    """Whether a dataset is complete."""

    missing: tuple[str, ...]
    size: int | None  # bytes on disk; None if there are too many files to count
    exists: bool  # whether any of it exists
    damage: str = ""  # why it cannot be read

    def __str__(self) -> str:
        if self.damage:
            return f"damaged: {self.damage}"
        if not self.missing:
            return "complete"
        return f"incomplete: no {enumerated(self.missing, 2)}" if self.exists else "missing"


def dataset_state(info: DatasetInfo, root: Path | str | None = None) -> DatasetState:
    """Whether a dataset is complete below a data folder; no image is opened."""
    place = Path(data_root() if root is None else root)
    folders = [place / folder for folder in info.folders if (place / folder).exists()]
    size = _bytes_below(folders)
    try:
        absent = info.layout.missing(place) or info.layout.incomplete(place)
    except ValueError as error:
        return DatasetState(info.folders, size, True, str(error))
    return DatasetState(tuple(absent), size, bool(folders))


def _bytes_below(folders: Iterable[Path]) -> int | None:
    """The bytes of all files in some folders; None if there are too many files."""
    all_sizes = chain.from_iterable(map(file_sizes, folders))
    sizes = list(islice(all_sizes, LONGEST + 1))
    return sum(sizes) if len(sizes) <= LONGEST else None
