"""Known datasets: whether they are there, and how to get them."""

import difflib
import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from equicolor._files import written_aside
from equicolor.data import mnist
from equicolor.data.root import data_root

__all__ = ["DATASETS", "DownloadError", "KnownDataset", "download", "find_dataset", "missing_files"]

_CHUNK = 1 << 16
_TIMEOUT = 30.0  # seconds without an answer

Progress = Callable[[str, int, int], None]


class DownloadError(OSError):
    """A file that no mirror gave: what each of them answered."""


@dataclass(frozen=True)
class KnownDataset:
    """A dataset that can be downloaded.

    Attributes:
        name: what it is called on the command line.
        title: what it is.
        folder: below the data root, in torchvision's layout.
        files: md5 and bytes of every file.
        mirrors: addresses to which a file's name is added.
    """

    name: str
    title: str
    folder: str
    files: dict[str, tuple[str, int]]
    mirrors: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(size for _, size in self.files.values())


_MNIST_BYTES = (9_912_422, 28_881, 1_648_877, 4_542)

DATASETS = {
    "mnist": KnownDataset(
        "mnist",
        "MNIST, 70,000 handwritten digits",
        mnist.FOLDER,
        {
            f"{name}.gz": (packed, size)
            for (name, (packed, _)), size in zip(mnist.FILES.items(), _MNIST_BYTES, strict=True)
        },
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    )
}


def find_dataset(name: str) -> KnownDataset:
    """A dataset by name.

    Example:
        >>> find_dataset("mnist").size
        11594722
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name.lower(), DATASETS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(DATASETS)}"
        raise ValueError(f"unknown dataset {name!r}; {hint}")
    return DATASETS[name]


def missing_files(dataset: KnownDataset, root: Path | str | None = None) -> list[str]:
    """The files of a dataset that are not there, neither packed nor unpacked.

    Args:
        dataset: which.
        root: the data folder (default: :func:`equicolor.data.data_root`).

    Example:
        >>> len(missing_files(find_dataset("mnist"), "/nowhere"))
        4
    """
    folder = Path(data_root() if root is None else root) / dataset.folder
    return [
        name
        for name in dataset.files
        if not (folder / name).is_file() and not (folder / name.removesuffix(".gz")).is_file()
    ]


def download(
    dataset: KnownDataset, root: Path | str | None = None, *, progress: Progress | None = None
) -> Path:
    """Download what is missing of a dataset and verify it.

    A file appears under its name only when it is complete and its md5 is right.

    Args:
        dataset: which.
        root: the data folder (default: :func:`equicolor.data.data_root`).
        progress: called with (file, bytes so far, bytes in all).

    Returns:
        The dataset's folder.

    Raises:
        DownloadError: if no mirror has a file.
    """
    root = Path(data_root() if root is None else root)
    folder = root / dataset.folder
    for name in missing_files(dataset, root):
        folder.mkdir(parents=True, exist_ok=True)
        answers = []
        for mirror in dataset.mirrors:
            try:
                _fetch(mirror + name, folder / name, *dataset.files[name], progress)
                break
            except (urllib.error.URLError, TimeoutError, ConnectionError, DownloadError) as error:
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                answers.append(f"{mirror} ({reason})")
        else:
            raise DownloadError(f"{name} could not be downloaded from {', '.join(answers)}")
    return folder


def _fetch(url: str, path: Path, md5: str, size: int, progress: Progress | None) -> None:
    """One file, kept only if its checksum is right."""
    digest = hashlib.md5(usedforsecurity=False)
    done = 0
    with written_aside(path) as partial:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, partial.open("wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if progress:
                    progress(path.name, done, size)
        if digest.hexdigest() != md5:
            raise DownloadError(f"{done} bytes came with md5 {digest.hexdigest()}, not {md5}")
