import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data import trees

from equicolor.data.pictures import CorruptPictureError, PictureFile, Pictures


def member(folder: Path, contents: bytes) -> PictureFile:
    """The second member of a tar."""
    path = folder / "some.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in (("jpg/a.jpg", b"a" * 700), ("jpg/b.jpg", contents)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with tarfile.open(path) as tar:
        return PictureFile(path, tar.getmember("jpg/b.jpg").offset_data, len(contents))


def test_files_and_members_are_read(tmp_path: Path) -> None:
    contents = trees.encoded(1)
    (tmp_path / "b.jpg").write_bytes(contents)
    for file in (PictureFile(tmp_path / "b.jpg"), member(tmp_path, contents)):
        assert file.read() == contents
        expected = Image.open(io.BytesIO(contents))
        assert file.open().size == expected.size
        assert np.array_equal(np.asarray(file.decode()), np.asarray(expected.convert("RGB")))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_every_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.fromarray(trees.pixels(3, 8, 6)).convert(mode).save(path)
    image = PictureFile(path).decode()
    assert (image.mode, image.size) == ("RGB", (6, 8))


def test_corrupt_pictures_are_named(tmp_path: Path) -> None:
    whole = trees.encoded(1)
    for contents in (b"", b"no picture", whole[:100], whole[: len(whole) // 2]):
        (tmp_path / "b.jpg").write_bytes(contents)
        with pytest.raises(CorruptPictureError, match=rf"{tmp_path / 'b.jpg'} cannot be decoded"):
            PictureFile(tmp_path / "b.jpg").decode()
        tarred = member(tmp_path, contents)
        with pytest.raises(CorruptPictureError, match=r"some.tar \(jpg/b.jpg\) cannot be decoded"):
            tarred.decode()


def test_part_of_something_else_is_described_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(bytes(2000))
    assert PictureFile(path, 1000, 5).describe() == f"{path} (5 bytes at 1000)"


def test_missing_file_is_no_corrupt_picture(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PictureFile(tmp_path / "a.jpg").decode()


IMAGES = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "val"}, r"split must be one of 'train', 'test'; got 'val'"),
        ({"labels": LABELS.int()}, r"expects int64 labels \[N\], got torch.int32 \[2\]"),
        ({"labels": LABELS[:0]}, r"expects int64 labels \[N\], got torch.int64 \[0\]"),
        ({"labels": LABELS + 1}, r"got labels from 1 to 2 for 2 class names"),
        ({"labels": LABELS - 1}, r"got labels from -1 to 0 for 2 class names"),
        ({"labels": LABELS[:1]}, r"got 2 pictures and 1 labels"),
        ({"pixels": IMAGES.float()}, r"expects uint8 pixels \[N, 3, H, W\], got torch.float32"),
        ({"pixels": IMAGES[:, :1]}, r"expects uint8 pixels .* got torch.uint8 \[2, 1, 4, 4\]"),
        ({"files": (PictureFile(Path("a")),) * 2}, r"expects files or pixels, got both"),
        ({"pixels": None}, r"got 0 pictures and 2 labels"),
    ],
)
def test_unfit_pictures_are_refused(changes: dict[str, object], message: str) -> None:
    arguments = {
        "name": "toy", "split": "train", "labels": LABELS, "class_names": ("a", "b"),
        "pixels": IMAGES,
    }  # fmt: skip
    assert len(Pictures(**arguments)) == 2
    with pytest.raises(ValueError, match=message):
        Pictures(**(arguments | changes))
