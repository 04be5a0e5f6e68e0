import io
import pickle
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data import trees

from equicolor.data.images import (
    CorruptImageError,
    ImageFile,
    ImageFiles,
    ImageSet,
    find_corrupt,
)


def member(folder: Path, contents: bytes) -> ImageFile:
    """The second member of a tar."""
    path = folder / "some.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in (("jpg/a.jpg", b"a" * 700), ("jpg/b.jpg", contents)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with tarfile.open(path) as tar:
        return ImageFile(path, tar.getmember("jpg/b.jpg").offset_data, len(contents))


def test_files_and_members_are_read(tmp_path: Path) -> None:
    contents = trees.encoded(1)
    (tmp_path / "b.jpg").write_bytes(contents)
    for file in (ImageFile(tmp_path / "b.jpg"), member(tmp_path, contents)):
        assert file.read() == contents
        expected = Image.open(io.BytesIO(contents))
        assert file.open().size == expected.size
        assert np.array_equal(np.asarray(file.decode()), np.asarray(expected.convert("RGB")))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
def test_every_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.fromarray(trees.pixels(3, 8, 6)).convert(mode).save(path)
    image = ImageFile(path).decode()
    assert (image.mode, image.size) == ("RGB", (6, 8))


RAMP = np.linspace(0, 65535, 60).round().reshape(6, 10)


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("<u2", ".png"), ("<u2", ".tif"), (">u2", ".tif"), ("<i4", ".tif"), ("<u2", ".pgm")],
)
def test_sixteen_bits_become_eight(kind: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    Image.fromarray(RAMP.astype(kind)).save(path)
    with Image.open(path) as stored:
        assert stored.mode.startswith("I")
    image = ImageFile(path).decode()
    assert image.mode == "RGB"
    expected = np.floor(RAMP / 256)
    for channel in range(3):
        assert np.array_equal(np.asarray(image)[..., channel], expected)


def test_sixteen_bits_of_grey_and_of_colour_are_equally_bright(tmp_path: Path) -> None:
    # A PNG of 16-bit colour by hand: Pillow reads such files, but does not write them.
    values = RAMP.astype(">u2")

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + np.repeat(row, 3).tobytes() for row in values)
    header = struct.pack(">IIBBBBB", 10, 6, 16, 2, 0, 0, 0)
    (tmp_path / "colour.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )  # fmt: skip
    Image.fromarray(RAMP.astype("<u2")).save(tmp_path / "grey.png")
    colour, grey = (ImageFile(tmp_path / f"{n}.png").decode() for n in ("colour", "grey"))
    assert np.array_equal(np.asarray(colour), np.asarray(grey))


@pytest.mark.parametrize(
    ("pixels", "reason"),
    [
        ((RAMP / 65535).astype(np.float32), "its pixels are fractions"),
        (RAMP.astype(np.int32) - 1, "its grey values, -1 to 65534, do not fit into 16 bits"),
        (RAMP.astype(np.int32) * 2, "its grey values, 0 to 131070, do not fit"),
    ],
)
def test_numbers_nobody_can_read_are_refused(
    pixels: np.ndarray, reason: str, tmp_path: Path
) -> None:
    Image.fromarray(pixels).save(tmp_path / "a.tif")
    with pytest.raises(CorruptImageError, match=rf"a.tif cannot be decoded: {reason}"):
        ImageFile(tmp_path / "a.tif").decode()


def test_orientation_is_ignored(tmp_path: Path) -> None:
    image = Image.fromarray(trees.pixels(3, 8, 6))
    exif = image.getexif()
    exif[0x0112] = 6  # lying on its side
    image.save(tmp_path / "a.jpg", exif=exif)
    assert ImageFile(tmp_path / "a.jpg").decode().size == (6, 8)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_whole_images_are_verified(suffix: str, tmp_path: Path) -> None:
    path, whole = tmp_path / f"a{suffix}", trees.encoded(1, suffix=suffix)
    path.write_bytes(whole)
    ImageFile(path).verify()
    for kept in (0, 100, len(whole) // 2, len(whole) * 9 // 10):
        path.write_bytes(whole[:kept])
        with pytest.raises(CorruptImageError, match=f"a{suffix} cannot be decoded"):
            ImageFile(path).verify()


def test_corrupt_images_are_named(tmp_path: Path) -> None:
    whole = trees.encoded(1)
    for contents in (b"", b"no image", whole[:100], whole[: len(whole) // 2]):
        (tmp_path / "b.jpg").write_bytes(contents)
        with pytest.raises(CorruptImageError, match=rf"{tmp_path / 'b.jpg'} cannot be decoded"):
            ImageFile(tmp_path / "b.jpg").decode()
        tarred = member(tmp_path, contents)
        with pytest.raises(CorruptImageError, match=r"some.tar \(jpg/b.jpg\) cannot be decoded"):
            tarred.decode()


def test_part_of_something_else_is_described_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(bytes(2000))
    assert ImageFile(path, 1000, 5).describe() == f"{path} (5 bytes at 1000)"


def test_missing_file_is_no_corrupt_image(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ImageFile(tmp_path / "a.jpg").decode()


class TestFiles:
    def files(self) -> list[ImageFile]:
        names = ("a/1.png", "a/2.png", "b/\udcff.png", "c.tar", "c.tar")
        places = ((0, -1), (0, -1), (0, -1), (512, 7), (2**40, 2**33))
        return [ImageFile(Path("x") / n, *p) for n, p in zip(names, places, strict=True)]

    def test_they_are_a_sequence(self) -> None:
        expected = self.files()
        files = ImageFiles(expected)
        assert len(files) == 5
        assert list(files) == expected
        assert files[-1] == expected[-1]
        assert list(files[1:4]) == expected[1:4]
        with pytest.raises(IndexError):
            files[5]
        assert not ImageFiles([])

    def test_they_are_pickled(self) -> None:
        expected = self.files()
        assert list(pickle.loads(pickle.dumps(ImageFiles(expected)))) == expected

    def test_a_million_need_little_memory(self) -> None:
        paths = [
            f"/data/imagenet/train/n{s:08d}/n{s:08d}_{i}.JPEG"
            for s in range(100)
            for i in range(50)
        ]
        files = ImageFiles(ImageFile(Path(path)) for path in paths)
        assert [str(file.path) for file in files[::999]] == paths[::999]
        assert len(pickle.dumps(files)) < 60 * len(paths)
        labels = torch.zeros(len(paths), dtype=torch.int64)
        images = ImageSet("toy", "train", labels, ("a",), tuple(ImageFile(Path(p)) for p in paths))
        assert len(pickle.dumps(images.files)) < 60 * len(paths)


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
        ({"labels": LABELS[:1]}, r"got 2 images and 1 labels"),
        ({"pixels": IMAGES.float()}, r"expects uint8 pixels \[N, 3, H, W\], got torch.float32"),
        ({"pixels": IMAGES[:, :1]}, r"expects uint8 pixels .* got torch.uint8 \[2, 1, 4, 4\]"),
        ({"files": (ImageFile(Path("a")),) * 2}, r"expects files or pixels, got both"),
        ({"pixels": None}, r"got 0 images and 2 labels"),
    ],
)
def test_unfit_images_are_refused(changes: dict[str, object], message: str) -> None:
    arguments = {
        "name": "toy", "split": "train", "labels": LABELS, "class_names": ("a", "b"),
        "pixels": IMAGES,
    }  # fmt: skip
    assert len(ImageSet(**arguments)) == 2
    with pytest.raises(ValueError, match=message):
        ImageSet(**(arguments | changes))


@pytest.fixture
def partly_corrupt(tmp_path: Path) -> ImageSet:
    """Twelve images, two of which end too early."""
    files = []
    for number in range(12):
        path = tmp_path / f"{number}{'.png' if number % 2 else '.jpg'}"
        trees.write(path, number)
        if number in (4, 9):
            path.write_bytes(path.read_bytes()[:-40])
        files.append(ImageFile(path))
    return ImageSet("toy", "test", torch.zeros(12, dtype=torch.int64), ("a",), files)


@pytest.mark.parametrize("workers", [1, 3])
def test_corrupt_images_are_found(partly_corrupt: ImageSet, workers: int) -> None:
    calls: list[tuple[int, int]] = []
    found = find_corrupt(
        partly_corrupt,
        workers=workers,
        on_corrupt="skip",
        progress=lambda *call: calls.append(call),
    )
    assert [Path(reason.partition(" ")[0]).name for reason in found] == ["4.jpg", "9.png"]
    assert calls == [(done, 12) for done in range(1, 13)]
    with pytest.raises(CorruptImageError, match=r"/4\.jpg cannot be decoded"):
        find_corrupt(partly_corrupt, workers=workers)


def test_whole_images_and_pixels_pass(partly_corrupt: ImageSet) -> None:
    whole = ImageSet("toy", "test", partly_corrupt.labels[:4], ("a",), partly_corrupt.files[:4])
    assert find_corrupt(whole) == ()
    pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    assert find_corrupt(ImageSet("toy", "test", whole.labels[:2], ("a",), pixels=pixels)) == ()


def test_nothing_but_corrupt_images(partly_corrupt: ImageSet) -> None:
    broken = ImageSet("toy", "test", partly_corrupt.labels[:1], ("a",), [partly_corrupt.files[4]])
    with pytest.raises(CorruptImageError, match=r"every image is corrupt, .*4\.jpg"):
        find_corrupt(broken, on_corrupt="skip")
    with pytest.raises(ValueError, match="on_corrupt must be one of 'error', 'skip'"):
        find_corrupt(partly_corrupt, on_corrupt="ignore")
