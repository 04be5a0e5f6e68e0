"""A small made-up folder of pictures, and the recipe of a tiny network for it."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

from equicolor.training.recipes import TrainingRecipe


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Fill a folder once for all processes that test; the others wait for it."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def make(name: str, fill: Callable[[Path], None]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with FileLock(root / f"{name}.lock"):
            if not done.exists():
                folder.mkdir(exist_ok=True)
                fill(folder)
                done.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def toy_folder(once: Callable[..., Path]) -> Path:
    """Three classes of coloured noise: 11 pictures each for training, 3 for testing."""
    return once("toy", _draw)


def _draw(root: Path) -> None:
    generator = np.random.default_rng(0)
    for split, count in (("train", 11), ("test", 3)):
        for label in range(3):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True, exist_ok=True)
            for index in range(count):
                coarse = generator.integers(0, 120, (5, 6, 3)).astype(np.uint8)
                coarse[..., label] += 100
                image = Image.fromarray(coarse).resize((24 + index, 22), Image.Resampling.BICUBIC)
                image.save(folder / f"{index}.png")


@pytest.fixture(scope="session")
def toy_recipe(toy_folder: Path) -> TrainingRecipe:
    """Three epochs of three steps."""
    return TrainingRecipe(
        "ce_resnet18",
        {"width": 2, "ce_stages": 2},
        dataset=str(toy_folder),
        size=16,
        resize=18,
        epochs=3,
        batch_size=12,
        precision="32",
    )
