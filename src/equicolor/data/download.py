"""The datasets that exist locally, and verified downloads of the others."""

import contextlib
import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from equicolor._files import write_whole
from equicolor._packages import import_vision
from equicolor.data import datasets, mnist
from equicolor.data.datasets import DATASETS, DatasetInfo, MissingDataError, data_root
from equicolor.reporting.progress import Progress

# Addresses of MNIST; the name of a file is appended.
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_CHUNK = 1 << 16
_TIMEOUT = 30.0  # seconds without an answer


class DownloadError(OSError):
    """A download that failed: of which file, and the answer of each server."""


class DatasetRow(NamedTuple):
    """A row of 'equicolor datasets'; the size is that on disk, or else of the download."""

    name: str
    images: str
    classes: str
    state: str
    size: str
    how_to_get: str


def list_datasets(root: Path | str | None = None) -> list[DatasetRow]:
    """Every known dataset: its state, its size, and how to get it."""
    place = Path(data_root() if root is None else root)
    sizes = [path.stat().st_size for path in (place / mnist.FOLDER).glob("*-ubyte*")]
    mnist_state = datasets.DatasetState(tuple(mnist.missing_files(place)), sum(sizes), bool(sizes))
    mnist_size = sum(file.bytes for name, file in mnist.FILES.items() if name.endswith(".gz"))
    rows = [("mnist", 70_000, 10, mnist_state, mnist_size, "download")]
    for info in DATASETS.values():
        how = "by hand" if info.torchvision is None else "download"
        state = datasets.dataset_state(info, place)
        rows.append((info.name, info.images, info.num_classes, state, info.size, how))
    lines = []
    for name, images, classes, state, size, how in rows:
        shown = size if not state.exists or state.size is None else state.size
        amount = f"{shown / 1e6:.1f} MB" if shown < 1e9 else f"{shown / 1e9:.1f} GB"
        numbers = f"{images:,}", f"{classes:,}"
        lines.append(DatasetRow(name, *numbers, str(state), amount, how if state.missing else ""))
    return [*lines, DatasetRow("a folder", "any", "any", "", "", "give its path")]


def download(
    name: str, root: Path | str | None = None, *, progress: Progress | None = None
) -> Path:
    """Download what is missing of a dataset and verify it; returns the data folder.

    ``"mnist"`` is downloaded here, with progress in bytes, and the others by torchvision.

    Raises:
        ValueError: if the name is unknown.
        MissingDataError: if the dataset cannot be downloaded, with what to do by hand.
        DownloadError: if the download failed.
    """
    place = Path(data_root() if root is None else root)
    if name == "mnist":
        _download_mnist(place, progress)
    elif name not in DATASETS:
        raise datasets.unknown_dataset(name, ["mnist", *DATASETS])
    elif datasets.dataset_state(DATASETS[name], place).missing:
        with _no_empty_folders(place):
            _download_with_torchvision(DATASETS[name], place)
    return place


@contextlib.contextmanager
def _no_empty_folders(folder: Path) -> Iterator[None]:
    """Remove a folder and its parents at the end if they are new and empty."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    finally:
        for place in new:  # the innermost first
            with contextlib.suppress(OSError):  # never created, or not empty
                place.rmdir()


def _download_mnist(root: Path, progress: Progress | None) -> None:
    """Download the missing files; each is written once its checksum is right."""
    missing = {name: mnist.FILES[name] for name in mnist.missing_files(root)}
    before, total = 0, sum(file.bytes for file in missing.values())
    for name, file in missing.items():

        def report(done: int, before: int = before) -> None:
            if progress:
                progress(before + done, total)

        contents = _fetch_from_any(name, file, report)
        write_whole(root / mnist.FOLDER / name, contents)
        before += file.bytes


def _fetch_from_any(name: str, file: mnist.IdxFile, report: Callable[[int], None]) -> bytes:
    """One file from the first mirror that has it."""
    answers = []
    for mirror in MIRRORS:
        try:
            return _fetch(mirror + name, file, report)
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            answers.append(f"{mirror} ({str(reason).strip()})")
    raise DownloadError(f"{name} could not be downloaded from {', '.join(answers)}")


def _fetch(url: str, file: mnist.IdxFile, report: Callable[[int], None]) -> bytes:
    """The contents of one file, if its checksum is right."""
    contents = bytearray()
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
        # Stop reading a file that is too long.
        while len(contents) <= file.bytes and (chunk := answer.read(_CHUNK)):
            contents += chunk
            report(len(contents))
    md5 = hashlib.md5(contents, usedforsecurity=False).hexdigest()
    if md5 != file.md5:
        raise DownloadError(f"{len(contents)} bytes came with md5 {md5}, not {file.md5}")
    return bytes(contents)


def _download_with_torchvision(info: DatasetInfo, place: Path) -> None:
    """Torchvision verifies what it downloads."""
    if info.torchvision is None:
        raise MissingDataError(
            f"{info.title} cannot be downloaded by a program; {info.how_to_get()}. The data "
            f"folder is {place}"
        )
    by_hand = f"{info.by_hand} (see {info.page})"
    try:
        module: Any = import_vision("torchvision.datasets")
    except ImportError as error:
        raise MissingDataError(
            f"{info.title} is downloaded by torchvision, and {error}; or {by_hand}. The data "
            f"folder is {place}"
        ) from None
    place.mkdir(parents=True, exist_ok=True)
    try:
        getattr(module, info.torchvision)(str(place), download=True)
    except (OSError, RuntimeError) as error:  # a refused connection, a wrong checksum
        message = f"torchvision could not download {info.title}: {error}; {by_hand}"
        raise DownloadError(message) from None
    state = datasets.dataset_state(info, place)
    if state.missing:
        raise DownloadError(f"{info.title} is {state} after the download into {place}")
