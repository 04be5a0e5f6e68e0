"""A folder of images that the tests of several commands start from."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def fruit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: ``fruit`` holds six images of each of two classes, in both splits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "140")
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("apple", "banana"):
            folder = tmp_path / "fruit" / split / name
            folder.mkdir(parents=True)
            for index in range(6):
                coarse = Image.fromarray(rng.integers(0, 256, (5, 4, 3), dtype=np.uint8))
                coarse.resize((30, 36)).save(folder / f"{index}.png")
    return tmp_path
