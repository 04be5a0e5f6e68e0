"""Getting datasets: what is there, and downloads of what is not."""

import contextlib
import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from equicolor._files import written_aside
from equicolor._packages import import_vision
from equicolor.data import mnist
from equicolor.data.datasets import (
    DATASETS,
    DatasetInfo,
    DatasetState,
    MissingDataError,
    data_root,
    dataset_state,
    unknown_dataset,
)
from equicolor.reporting.progress import Progress

__all__ = [
    "MNIST",
    "DownloadError",
    "KnownFiles",
    "Listed",
    "download",
    "download_with_torchvision",
    "listing",
    "missing_files",
    "to_get",
]

_CHUNK = 1 << 16
_TIMEOUT = 30.0  # seconds without an answer


class DownloadError(OSError):
    """A file that no mirror gave: what each of them answered."""


@dataclass(frozen=True)
class KnownFiles:
    """A dataset whose files are known one by one, so that nothing else is needed to get it.

    Attributes:
        name: what it is called on the command line.
        title: what it is.
        folder: below the data root, in torchvision's layout.
        files: md5 and bytes of every file.
        mirrors: addresses to which a file's name is added.
        plain: bytes of files once they are unpacked, under their names without ``.gz``.
    """

    name: str
    title: str
    folder: str
    files: dict[str, tuple[str, int]]
    mirrors: tuple[str, ...]
    plain: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(size for _, size in self.files.values())


MNIST = KnownFiles(
    "mnist",
    "MNIST, 70,000 handwritten digits",
    mnist.FOLDER,
    {f"{name}.gz": (packed, mnist.BYTES[name][0]) for name, (packed, _) in mnist.FILES.items()},
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    {name: plain for name, (_, plain) in mnist.BYTES.items()},
)


def to_get(name: str) -> KnownFiles | DatasetInfo:
    """What 'equicolor datasets get NAME' is about.

    Example:
        >>> to_get("mnist").size, to_get("cifar10").size
        (11594722, 170498071)
    """
    if name == MNIST.name:
        return MNIST
    if name not in DATASETS:
        raise unknown_dataset(name, [MNIST.name, *DATASETS])
    return DATASETS[name]


class Listed(NamedTuple):
    """A line of 'equicolor datasets'; the size is that on disk, or of the download."""

    name: str
    images: str
    classes: str
    state: str
    size: str
    how_to_get: str


def listing(root: Path | str | None = None) -> list[Listed]:
    """Every known dataset: what is there, how large it is, and how to get it.

    Args:
        root: the data folder (default: :func:`equicolor.data.data_root`).

    Example:
        >>> [listed.state for listed in listing("/nowhere")][:3]
        ['missing', 'missing', 'missing']
    """
    place = Path(data_root() if root is None else root)
    absent = missing_files(MNIST, place)
    folder = place / MNIST.folder
    here = [path.stat().st_size for path in folder.glob("*-ubyte*")]
    state = DatasetState(tuple(absent), sum(here), bool(here))
    rows = [_listed(MNIST.name, 70_000, 10, state, MNIST.size, by_hand=False)]
    for info in DATASETS.values():
        by_hand = info.torchvision is None
        state = dataset_state(info, place)
        rows.append(
            _listed(info.name, info.images, info.num_classes, state, info.size, by_hand=by_hand)
        )
    return [*rows, Listed("a folder", "any", "any", "", "", "give its path")]


def _listed(
    name: str, images: int, classes: int, state: DatasetState, size: int, *, by_hand: bool
) -> Listed:
    shown = size if not state.exists or state.size is None else state.size
    how = "" if not state.missing else "by hand" if by_hand else "download"
    return Listed(name, f"{images:,}", f"{classes:,}", str(state), _amount(shown), how)


def _amount(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def missing_files(dataset: KnownFiles, root: Path | str | None = None) -> list[str]:
    """The files of a dataset that are not there in their full length, packed or unpacked.

    Args:
        dataset: which.
        root: the data folder (default: :func:`equicolor.data.data_root`).

    Example:
        >>> len(missing_files(MNIST, "/nowhere"))
        4
    """
    folder = Path(data_root() if root is None else root) / dataset.folder
    return [
        name
        for name, (_, size) in dataset.files.items()
        if not _is_whole(folder / name, size)
        and not _is_whole(folder / (plain := name.removesuffix(".gz")), dataset.plain.get(plain))
    ]


def _is_whole(path: Path, size: int | None) -> bool:
    """Whether a file is there, with so many bytes where they are known."""
    return path.is_file() and size in (None, path.stat().st_size)


def download(
    dataset: KnownFiles, root: Path | str | None = None, *, progress: Progress | None = None
) -> Path:
    """Download what is missing of a dataset and verify it.

    A file appears under its name only when it is complete and its md5 is right. Folders that
    would stay empty, because nothing came, are not left behind.

    Args:
        dataset: which.
        root: the data folder (default: :func:`equicolor.data.data_root`).
        progress: called with (bytes so far, bytes to download).

    Returns:
        The dataset's folder.

    Raises:
        DownloadError: if no mirror has a file.
    """
    root = Path(data_root() if root is None else root)
    folder = root / dataset.folder
    with _no_empty_folders(folder):
        missing = missing_files(dataset, root)
        before, total = 0, sum(dataset.files[name][1] for name in missing)
        for name in missing:

            def report(done: int, before: int = before) -> None:
                if progress:
                    progress(before + done, total)

            _fetch_from_any(dataset, name, folder, report)
            before += dataset.files[name][1]
    return folder


@contextlib.contextmanager
def _no_empty_folders(folder: Path) -> Iterator[None]:
    """Takes back a folder, and parents of it, that were made within and are empty at the end."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    finally:
        for place in new:  # the innermost first
            with contextlib.suppress(OSError):  # it was not made, or something came
                place.rmdir()


def _fetch_from_any(
    dataset: KnownFiles, name: str, folder: Path, report: Callable[[int], None]
) -> None:
    """One file from the first mirror that has it."""
    answers = []
    for mirror in dataset.mirrors:
        try:
            _fetch(mirror + name, folder / name, dataset.files[name][0], report)
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError, DownloadError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            answers.append(f"{mirror} ({reason})")
    raise DownloadError(f"{name} could not be downloaded from {', '.join(answers)}")


def _fetch(url: str, path: Path, md5: str, report: Callable[[int], None]) -> None:
    """One file, kept only if its checksum is right."""
    digest = hashlib.md5(usedforsecurity=False)
    done = 0
    # The folder is made once there is an answer.
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, written_aside(path) as partial:
        with partial.open("wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report(done)
        if digest.hexdigest() != md5:
            raise DownloadError(f"{done} bytes came with md5 {digest.hexdigest()}, not {md5}")


def download_with_torchvision(info: DatasetInfo, root: Path | str | None = None) -> Path:
    """Download a dataset through torchvision, which verifies it.

    Args:
        info: which.
        root: the data folder (default: :func:`equicolor.data.data_root`).

    Returns:
        The data folder.

    Raises:
        MissingDataError: if nothing can download it, with what to do by hand.
        DownloadError: if torchvision could not.
    """
    place = Path(data_root() if root is None else root)
    if not dataset_state(info, place).missing:
        return place
    if info.torchvision is None:
        raise MissingDataError(
            f"{info.title} cannot be downloaded by a program; {info.how_to_get()}. The data "
            f"folder is {place}"
        )
    try:
        module: Any = import_vision("torchvision.datasets")
    except ImportError as error:
        raise MissingDataError(
            f"{info.title} is downloaded by torchvision, and {error}; or {info.by_hand} (see "
            f"{info.page}). The data folder is {place}"
        ) from None
    with _no_empty_folders(place):
        place.mkdir(parents=True, exist_ok=True)
        try:
            getattr(module, info.torchvision)(str(place), download=True)
        except (OSError, RuntimeError) as error:  # a refused connection, a wrong checksum
            raise DownloadError(
                f"torchvision could not download {info.title}: {error}; {info.by_hand} (see "
                f"{info.page})"
            ) from None
    left = dataset_state(info, place)
    if left.missing:
        raise DownloadError(f"{info.title} is {left} after the download into {place}")
    return place
