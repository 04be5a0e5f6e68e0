"""Which files of class folders are images."""

import os
import re
import socket
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from tests.data import trees
from tests.data.trees import Expected

from equicolor.data.datasets import MissingDataError, find_dataset, load_dataset
from equicolor.data.folder_datasets import SUFFIXES, Caltech101
from equicolor.data.images import CorruptImageError, ImageFile


@pytest.mark.parametrize(
    ("build", "dataset", "place", "classes"),
    [
        (trees.folder, "", "", ("cat", "dog")),
        (trees.folder_in_parts, "", "train", ("cat", "dog")),
        (trees.caltech101, "caltech101", Caltech101().folder, ("Faces", "accordion")),
    ],
    ids=["folder", "parts", "caltech101"],
)
def test_files_that_are_no_images_are_said(
    build: Callable[[Path], Expected],
    dataset: str,
    place: str,
    classes: tuple[str, str],
    tmp_path: Path,
) -> None:
    """They are left out, but somebody may miss them."""
    expected, folder = build(tmp_path), tmp_path / place
    first, last = (folder / name for name in classes)
    for path in (first / "b.heic", first / "c.HEIC", last / "more" / "a.txt", last / "README"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    message = f"the class folders of {folder} also hold 4 files such as {first / 'b.heic'}: "
    with pytest.warns(UserWarning, match=re.escape(f"{message}.heic (2), ")) as found:
        train = load_dataset(dataset or tmp_path, "train", root=tmp_path)
    messages = [str(each.message) for each in found if "incomplete" not in str(each.message)]
    assert len(messages) == 1
    assert all(kind in messages[0] for kind in (".txt (1)", "no suffix (1)"))
    assert train.labels.tolist() == expected.train


def test_pipes_that_are_called_images_are_said(tmp_path: Path) -> None:
    """Their suffix is none of the reasons why they are left out."""
    trees.folder(tmp_path, {"cat": 2, "dog": 2})
    os.mkfifo(tmp_path / "cat" / "x.png")
    with pytest.warns(UserWarning, match=r"x\.png: .*the like \(1\)\. They are left out$"):
        load_dataset(tmp_path, "train")


def test_all_suffixes_of_images_count(tmp_path: Path) -> None:
    """What torchvision takes, and the other names of such files: a .jfif is a JPEG."""
    torchvision = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
    assert set(torchvision) <= set(SUFFIXES)
    # Pillow has been reading AVIF since 11.3.
    assert set(SUFFIXES) - {".avif"} <= set(Image.registered_extensions())
    trees.folder(tmp_path, {"cat": 2, "dog": 2})
    for index, suffix in enumerate(SUFFIXES):
        (tmp_path / "cat" / f"more{index}{suffix.upper()}").write_bytes(trees.encoded(index))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train, test = (load_dataset(tmp_path, split) for split in ("train", "test"))
    assert len(train) + len(test) == 4 + len(SUFFIXES)
    (jfif,) = [file for file in (*train.files, *test.files) if file.path.suffix == ".JFIF"]
    assert jfif.decode().mode == "RGB"


@pytest.mark.parametrize(
    ("train", "test"),
    [("Training", "Test"), ("TRAIN", "valid"), ("train", "Validation"), ("training", "eval")],
)
def test_parts_have_their_usual_names(train: str, test: str, tmp_path: Path) -> None:
    trees.folder_in_parts(tmp_path)
    for before, now in (("train", train), ("test", test)):
        (tmp_path / before).rename(tmp_path / now)
    said = f"{tmp_path}: {train} is trained on and {test} tested on"
    with pytest.warns(UserWarning, match=re.escape(said)):
        found = [load_dataset(tmp_path, split) for split in ("train", "test")]
    assert [each.labels.tolist() for each in found] == [[0, 0, 0, 1, 1], [0, 1, 1]]
    assert find_dataset(tmp_path).num_classes == 2


@pytest.mark.parametrize(
    "names", [("eval", "support", "training"), ("test", "train"), ("dev", "test")]
)
def test_folders_of_images_alone_are_classes(names: tuple[str, ...], tmp_path: Path) -> None:
    trees.folder(tmp_path, dict.fromkeys(names, 4))
    assert load_dataset(tmp_path, "train").class_names == names
    assert find_dataset(tmp_path).layout.split_by_seed


def test_validation_is_left_out_beside_a_test_part(tmp_path: Path) -> None:
    trees.folder_in_parts(tmp_path)
    trees.folder(tmp_path / "val", {"cat": 2, "dog": 2})
    with pytest.warns(UserWarning, match="train is trained on and test tested on; left out: val"):
        test = load_dataset(tmp_path, "test")
    assert {file.path.parts[-3] for file in test.files} == {"test"}


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (("train", "Training", "test"), r"holds Training, train, which could each be the same"),
        (("train", "val", "valid"), r"holds val, valid, which could each be the same part"),
        (("test", "val"), r"no .*/train/"),
        (("Train",), r"no .*/test/ \(or val/\)"),
        (("photos", "drawings"), r"drawings should hold the images of one class, but holds only "
         r"folders \(cat, dog\)\. If those are the classes"),
    ],
)  # fmt: skip
def test_folders_that_are_no_classes_are_refused(
    folders: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    for name in folders:
        trees.folder(tmp_path / name, {"cat": 2, "dog": 2})
    with pytest.raises((ValueError, MissingDataError), match=message):
        load_dataset(tmp_path, "train")


def test_a_test_part_may_be_alone(tmp_path: Path) -> None:
    trees.folder(tmp_path / "test", {"cat": 1, "dog": 2})
    trees.folder(tmp_path / "val", {"cat": 1, "dog": 1})
    assert load_dataset(tmp_path, "test").labels.tolist() == [0, 1, 1]
    info = find_dataset(tmp_path)
    assert (info.num_classes, info.layout.split_by_seed) == (2, False)


def test_images_may_lie_in_a_folder_of_their_class(tmp_path: Path) -> None:
    """As those of Tiny ImageNet."""
    for name in ("n01", "n02"):
        for number in range(3):
            trees.write(tmp_path / name / "images" / f"{number}.jpg", number)
    found = [load_dataset(tmp_path, split) for split in ("train", "test")]
    assert sum(map(len, found)) == 6


def strange_files(folder: Path) -> None:
    """What is called like an image and is none."""
    os.mkfifo(folder / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket.png"))  # absolute paths may be too long
    (folder / "device.png").symlink_to("/dev/zero")
    (folder / "gone.png").symlink_to(folder / "nothing.png")
    (folder / "circle.png").symlink_to(folder / "circle.png")


def test_what_is_no_file_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trees.folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    strange_files(tmp_path / "cat")
    strange_files(tmp_path)
    for name, target in (("cat", tmp_path), ("cat", tmp_path / "cat"), ("dog", tmp_path.parent)):
        (tmp_path / name / f"to-{target.name}").symlink_to(target)
    (tmp_path / "dog" / "album.png").mkdir()
    (tmp_path / "dog" / "album.png" / "0.png").symlink_to(tmp_path / "dog" / "0.jpg")
    with pytest.warns(UserWarning, match=r"broken links, pipes and the like \(5\)"):
        found = [load_dataset(tmp_path, split) for split in ("train", "test")]
    names = [f"{f.path.parent.name}/{f.path.name}" for each in found for f in each.files]
    assert len(names) == len(set(names)) == len(expected.train) + len(expected.test) + 1
    assert "album.png/0.png" in names


def test_what_is_no_file_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    strange_files(tmp_path)
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "empty.png").touch()
    for path in tmp_path.iterdir():
        with pytest.raises((CorruptImageError, OSError), match=path.stem):
            ImageFile(path).decode()
