"""Downloads, against a server of our own and a torchvision of our own."""

import hashlib
import http.server
import inspect
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.data.trees import TREES

from equicolor._packages import how_to_install, import_vision
from equicolor.data import MissingDataError, mnist
from equicolor.data import download as module
from equicolor.data.datasets import DATASETS
from equicolor.data.download import DownloadError, download, list_datasets
from equicolor.data.mnist import IdxFile, missing_files

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


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small files in place of MNIST's."""
    files = {}
    for name, data in CONTENTS.items():
        files[name.removesuffix(".gz")] = IdxFile("", 19)
        files[name] = IdxFile(hashlib.md5(data).hexdigest(), len(data))
    monkeypatch.setattr(mnist, "FILES", files)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Takes other mirrors."""
    return lambda *mirrors: monkeypatch.setattr(module, "MIRRORS", mirrors)


NOWHERE = "http://127.0.0.1:9/"  # the discard port: nobody listens


def test_download_fetches_verifies_and_reports(
    mirror: tuple[str, Path], use: Callable[..., None], tmp_path: Path
) -> None:
    calls: list[tuple[int, int | None]] = []
    root = tmp_path / "data"
    use(mirror[0])
    assert missing_files(root) == ["images.gz", "labels.gz"]
    assert download("mnist", root, progress=lambda *call: calls.append(call)) == root
    folder = root / "MNIST" / "raw"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENTS
    assert missing_files(root) == []
    assert calls[-1] == (256_006, 256_006)
    assert calls == sorted(calls)
    assert (256_000, 256_006) in calls[1:]


def test_only_missing_files_are_fetched(
    mirror: tuple[str, Path], use: Callable[..., None], tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    (folder / "images").write_bytes(b"unpacked by someone")
    calls: list[int] = []
    use(mirror[0])
    download("mnist", tmp_path / "data", progress=lambda done, _: calls.append(done))
    assert calls == [6]
    assert (folder / "images").read_bytes() == b"unpacked by someone"
    use(NOWHERE)  # everything is there: no mirror is asked
    download("mnist", tmp_path / "data")


def test_truncated_files_are_fetched_again(
    mirror: tuple[str, Path], use: Callable[..., None], tmp_path: Path
) -> None:
    use(mirror[0])
    folder = download("mnist", tmp_path) / "MNIST" / "raw"
    (folder / "labels.gz").write_bytes(b"lab")
    assert missing_files(tmp_path) == ["labels.gz"]
    download("mnist", tmp_path)
    assert (folder / "labels.gz").read_bytes() == b"labels"
    (folder / "images.gz").rename(folder / "images")
    assert missing_files(tmp_path) == ["images.gz"]  # unpacked it has 19 bytes
    (folder / "images").write_bytes(b"unpacked by someone")
    assert missing_files(tmp_path) == []


def test_the_next_mirror_stands_in(
    mirror: tuple[str, Path], use: Callable[..., None], tmp_path: Path
) -> None:
    use(NOWHERE, mirror[0] + "wrong/", mirror[0])
    folder = download("mnist", tmp_path / "data") / "MNIST" / "raw"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENTS


def test_a_mirror_that_does_not_speak_http_is_skipped(
    mirror: tuple[str, Path], use: Callable[..., None], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in CONTENTS:
                with server.accept()[0] as connection:
                    connection.recv(65536)
                    connection.sendall(b"garbage\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        use(f"http://127.0.0.1:{server.getsockname()[1]}/", mirror[0])
        folder = download("mnist", tmp_path / "data") / "MNIST" / "raw"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENTS


def test_without_a_network_one_line_names_file_and_mirrors(
    use: Callable[..., None], tmp_path: Path
) -> None:
    root = tmp_path / "data"
    use(NOWHERE)
    with pytest.raises(DownloadError) as caught:
        download("mnist", root)
    assert not root.exists()
    message = str(caught.value)
    assert message.startswith("images.gz could not be downloaded from http://127.0.0.1:9/ (")
    assert "refused" in message
    assert "\n" not in message


def test_a_damaged_file_never_appears(
    mirror: tuple[str, Path], use: Callable[..., None], tmp_path: Path
) -> None:
    (mirror[1] / "labels.gz").write_bytes(b"lebals")
    use(mirror[0])
    with pytest.raises(DownloadError, match=r"labels.gz could not be .*6 bytes came with md5"):
        download("mnist", tmp_path)
    left = sorted(path.name for path in (tmp_path / "MNIST" / "raw").iterdir())
    assert left == ["images.gz"]


def test_where_nothing_came_no_folder_is_left(
    mirror: tuple[str, Path], use: Callable[..., None], tmp_path: Path
) -> None:
    (mirror[1] / "images.gz").write_bytes(b"damaged")
    (tmp_path / "data").mkdir()  # by someone
    use(mirror[0])
    with pytest.raises(DownloadError, match=r"images.gz could not be .*7 bytes came with md5"):
        download("mnist", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_interrupted_download_leaves_no_partial_file(
    mirror: tuple[str, Path], use: Callable[..., None], tmp_path: Path
) -> None:
    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    use(mirror[0])
    with pytest.raises(KeyboardInterrupt):
        download("mnist", tmp_path, progress=interrupt)
    assert not (tmp_path / "MNIST").exists()


def test_mirrors_are_encrypted() -> None:
    assert all(address.startswith("https://") for address in module.MIRRORS)


@pytest.mark.parametrize(
    ("name", "hint"), [("minst", "did you mean 'mnist'"), ("xyz", "known are mnist, cifar10")]
)
def test_unknown_names_get_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        download(name)


# torchvision


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A torchvision that makes small trees; the list of what it was asked for."""
    asked: list[str] = []
    module = types.ModuleType("torchvision.datasets")
    for name, info in DATASETS.items():
        if info.torchvision is not None:

            def make(root: str, *, download: bool, name: str = name) -> None:
                assert download
                asked.append(name)
                TREES[name](Path(root))

            setattr(module, info.torchvision, make)
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
    return asked


BY_TORCHVISION = [name for name, info in DATASETS.items() if info.torchvision is not None]
BY_HAND = [name for name in DATASETS if name not in BY_TORCHVISION]


def test_what_torchvision_can_get() -> None:
    assert {"stanford_cars", "imagenet"} <= set(BY_HAND)
    classes = {DATASETS[name].torchvision for name in BY_TORCHVISION}
    assert classes >= {"CIFAR10", "CIFAR100", "Flowers102", "STL10", "OxfordIIITPet", "Caltech101"}


def test_torchvision_has_these_classes() -> None:
    try:
        vision = import_vision("torchvision.datasets")
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    for name in BY_TORCHVISION:
        parameters = inspect.signature(getattr(vision, DATASETS[name].torchvision)).parameters
        assert "download" in parameters


@pytest.mark.parametrize("name", BY_TORCHVISION)
def test_torchvision_is_asked_once(name: str, torchvision: list[str], tmp_path: Path) -> None:
    root = tmp_path / "data"
    TREES[name](tmp_path / "before")
    incomplete = DATASETS[name].layout.incomplete(tmp_path / "before")
    if incomplete:  # a small tree of it is never complete
        with pytest.raises(DownloadError, match=rf"is incomplete: no {incomplete[0]}.* after"):
            download(name, root)
        return
    for _ in range(2):
        assert download(name, root) == root
    assert torchvision == [name]


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand_says_what_to_do(name: str, torchvision: list[str], tmp_path: Path) -> None:
    with pytest.raises(MissingDataError) as caught:
        download(name, tmp_path)
    message = str(caught.value)
    assert "cannot be downloaded by a program" in message
    assert DATASETS[name].page in message
    assert str(tmp_path) in message
    assert torchvision == []


def test_without_torchvision_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torchvision", "torchvision.datasets"):  # as if it were not installed
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDataError) as caught:
        download("flowers102", tmp_path)
    message = str(caught.value)
    assert f"torchvision is not installed: {how_to_install('torchvision')}; or " in message
    assert "102flowers.tgz" in message
    assert "https://www.robots.ox.ac.uk" in message


def test_a_download_that_fails_is_one_line(
    torchvision: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(root: str, *, download: bool) -> None:
        raise RuntimeError("File not found or corrupted.")

    monkeypatch.setattr(sys.modules["torchvision.datasets"], "CIFAR10", refuse)
    message = r"^torchvision could not download CIFAR-10: File not found or corrupted.; unpack"
    with pytest.raises(DownloadError, match=message):
        download("cifar10", tmp_path / "data")
    assert not (tmp_path / "data").exists()


# The list


def test_every_dataset_is_listed(tmp_path: Path) -> None:
    rows = {row.name: row for row in list_datasets(tmp_path)}
    assert list(rows) == ["mnist", *DATASETS, "a folder"]
    assert rows["mnist"] == ("mnist", "70,000", "10", "missing", "0.3 MB", "download")
    assert rows["imagenet"][3:] == ("missing", "154.6 GB", "by hand")
    for name in ("oxford_pet", "stanford_cars"):
        TREES[name](tmp_path)
    (tmp_path / "flowers-102").mkdir()
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    (tmp_path / "MNIST" / "raw" / "labels-ubyte").write_bytes(bytes(10**6))
    rows = {row.name: row for row in list_datasets(tmp_path)}
    state = "incomplete: no images.gz, labels.gz"
    assert rows["mnist"][3:] == (state, "1.0 MB", "download")
    assert rows["oxford_pet"][3:] == ("complete", "0.0 MB", "")
    assert rows["stanford_cars"].state == "complete"
    state = "incomplete: no flowers-102/imagelabels.mat, flowers-102/setid.mat"
    assert rows["flowers102"][3:] == (state, "0.0 MB", "download")
