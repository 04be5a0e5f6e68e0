"""Corrupt images are found before they do harm."""

from pathlib import Path

import pytest
import torch
from tests.data import trees

from equicolor.data.image_set import CorruptImageError, ImageFile, ImageSet
from equicolor.data.verifying import find_corrupt


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
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
def test_corrupt_images_are_found(images: ImageSet, workers: int) -> None:
    calls: list[tuple[int, int]] = []
    found = find_corrupt(
        images, workers=workers, on_corrupt="skip", progress=lambda *call: calls.append(call)
    )
    assert [Path(reason.partition(" ")[0]).name for reason in found] == ["4.jpg", "9.png"]
    assert calls == [(done, 12) for done in range(1, 13)]
    with pytest.raises(CorruptImageError, match=r"/4\.jpg cannot be decoded"):
        find_corrupt(images, workers=workers)


def test_whole_images_and_pixels_pass(images: ImageSet) -> None:
    whole = ImageSet("toy", "test", images.labels[:4], ("a",), images.files[:4])
    assert find_corrupt(whole) == ()
    pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    assert find_corrupt(ImageSet("toy", "test", whole.labels[:2], ("a",), pixels=pixels)) == ()


def test_nothing_but_corrupt_images(images: ImageSet) -> None:
    broken = ImageSet("toy", "test", images.labels[:1], ("a",), [images.files[4]])
    with pytest.raises(CorruptImageError, match=r"every image is corrupt, .*4\.jpg"):
        find_corrupt(broken, on_corrupt="skip")
    with pytest.raises(ValueError, match="on_corrupt must be one of 'error', 'skip'"):
        find_corrupt(images, on_corrupt="ignore")
