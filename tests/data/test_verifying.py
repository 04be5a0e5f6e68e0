"""Corrupt pictures are found before they do harm."""

from pathlib import Path

import pytest
import torch
from tests.data import trees

from equicolor.data.pictures import CorruptPictureError, PictureFile, Pictures
from equicolor.data.verifying import find_corrupt


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    """Twelve pictures, two of which end too early."""
    files = []
    for number in range(12):
        path = tmp_path / f"{number}{'.png' if number % 2 else '.jpg'}"
        trees.write(path, number)
        if number in (4, 9):
            path.write_bytes(path.read_bytes()[:-40])
        files.append(PictureFile(path))
    return Pictures("toy", "test", torch.zeros(12, dtype=torch.int64), ("a",), files)


@pytest.mark.parametrize("workers", [1, 3])
def test_corrupt_pictures_are_found(pictures: Pictures, workers: int) -> None:
    calls: list[tuple[int, int]] = []
    found = find_corrupt(
        pictures, workers=workers, on_corrupt="skip", progress=lambda *call: calls.append(call)
    )
    assert [Path(reason.partition(" ")[0]).name for reason in found] == ["4.jpg", "9.png"]
    assert calls == [(done, 12) for done in range(1, 13)]
    with pytest.raises(CorruptPictureError, match=r"/4\.jpg cannot be decoded"):
        find_corrupt(pictures, workers=workers)


def test_whole_pictures_and_pixels_pass(pictures: Pictures) -> None:
    whole = Pictures("toy", "test", pictures.labels[:4], ("a",), pictures.files[:4])
    assert find_corrupt(whole) == ()
    pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    assert find_corrupt(Pictures("toy", "test", whole.labels[:2], ("a",), pixels=pixels)) == ()


def test_nothing_but_corrupt_pictures(pictures: Pictures) -> None:
    broken = Pictures("toy", "test", pictures.labels[:1], ("a",), [pictures.files[4]])
    with pytest.raises(CorruptPictureError, match=r"every picture is corrupt, .*4\.jpg"):
        find_corrupt(broken, on_corrupt="skip")
    with pytest.raises(ValueError, match="on_corrupt must be one of 'error', 'skip'"):
        find_corrupt(pictures, on_corrupt="ignore")
