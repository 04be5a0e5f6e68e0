"""Which files of class folders are pictures."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from tests.data import trees
from tests.data.trees import Expected

from equicolor.data.datasets import load_dataset
from equicolor.data.folders import SUFFIXES, Caltech101


@pytest.mark.parametrize(
    ("build", "dataset", "place", "classes"),
    [
        (trees.folder, "", "", ("cat", "dog")),
        (trees.folder_in_parts, "", "train", ("cat", "dog")),
        (trees.caltech101, "caltech101", Caltech101().folder, ("Faces", "accordion")),
    ],
    ids=["folder", "parts", "caltech101"],
)
def test_files_that_are_no_pictures_are_said(
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
    assert all(kind in str(found[0].message) for kind in (".txt (1)", "no suffix (1)"))
    assert len(found) == 1
    assert train.labels.tolist() == expected.train


def test_all_suffixes_of_pictures_count(tmp_path: Path) -> None:
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
