"""Downloads, against a server of our own."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from equicolor.data import download as module
from equicolor.data.download import (
    DATASETS,
    DownloadError,
    KnownDataset,
    download,
    find_dataset,
    missing_files,
)

CONTENTS = {"images.gz": bytes(range(256)) * 1000, "labels.gz": b"labels"}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server, and the folder it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name, contents in CONTENTS.items():
        (folder / name).write_bytes(contents)
    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", folder
        server.shutdown()


def dataset(*mirrors: str) -> KnownDataset:
    files = {
        name: (hashlib.md5(contents).hexdigest(), len(contents))
        for name, contents in CONTENTS.items()
    }
    return KnownDataset("toy", "a toy", "toy/raw", files, mirrors)


NOWHERE = "http://127.0.0.1:9/"  # the discard port: nobody listens


def test_download_fetches_verifies_and_reports(mirror: tuple[str, Path], tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    root = tmp_path / "data"
    toy = dataset(mirror[0])
    assert missing_files(toy, root) == ["images.gz", "labels.gz"]
    folder = download(toy, root, progress=lambda *call: calls.append(call))
    assert folder == root / "toy" / "raw"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENTS
    assert missing_files(toy, root) == []
    assert calls[-1] == ("labels.gz", 6, 6)
    images = [done for name, done, total in calls if name == "images.gz"]
    assert len(images) > 1
    assert images == sorted(images)
    assert images[-1] == 256_000


def test_only_what_is_missing_is_fetched(mirror: tuple[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "data" / "toy" / "raw"
    folder.mkdir(parents=True)
    (folder / "images").write_bytes(b"unpacked by someone")
    names = set()
    download(dataset(mirror[0]), tmp_path / "data", progress=lambda name, *_: names.add(name))
    assert names == {"labels.gz"}
    assert (folder / "images").read_bytes() == b"unpacked by someone"
    # Everything there: no mirror is asked.
    download(dataset(NOWHERE), tmp_path / "data")


def test_the_next_mirror_stands_in(mirror: tuple[str, Path], tmp_path: Path) -> None:
    folder = download(dataset(NOWHERE, mirror[0] + "wrong/", mirror[0]), tmp_path / "data")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENTS


def test_without_a_network_one_line_names_file_and_mirrors(tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        download(dataset(NOWHERE), tmp_path)
    message = str(caught.value)
    assert message.startswith("images.gz could not be downloaded from http://127.0.0.1:9/ (")
    assert "refused" in message
    assert "\n" not in message


def test_a_damaged_file_never_appears(mirror: tuple[str, Path], tmp_path: Path) -> None:
    (mirror[1] / "labels.gz").write_bytes(b"lebals")
    with pytest.raises(DownloadError, match=r"labels.gz could not be .*6 bytes came with md5"):
        download(dataset(mirror[0]), tmp_path)
    left = sorted(path.name for path in (tmp_path / "toy" / "raw").iterdir())
    assert left == ["images.gz"]


def test_interrupted_download_leaves_no_partial_file(
    mirror: tuple[str, Path], tmp_path: Path
) -> None:
    def interrupt(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(dataset(mirror[0]), tmp_path, progress=interrupt)
    assert list((tmp_path / "toy" / "raw").iterdir()) == []


def test_mnist_is_known() -> None:
    mnist = find_dataset("mnist")
    assert mnist.size == 11_594_722
    assert mnist.files["t10k-labels-idx1-ubyte.gz"] == ("ec29112dd5afa0611ce80d1b7f02629c", 4542)
    assert all(address.startswith("https://") for address in mnist.mirrors)
    assert module.DATASETS is DATASETS


@pytest.mark.parametrize(
    ("name", "hint"), [("minst", "did you mean 'mnist'"), ("xyz", "known are mnist")]
)
def test_unknown_names_get_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        find_dataset(name)
