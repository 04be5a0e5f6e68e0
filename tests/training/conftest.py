"""A small made-up folder of pictures, and the recipe of a tiny network for it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equicolor.training.recipes import TrainingRecipe


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded pictures of tests stay out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of coloured noise: 11 pictures each for training, 3 for testing."""
    root = tmp_path_factory.mktemp("data") / "toy"
    generator = np.random.default_rng(0)
    for split, count in (("train", 11), ("test", 3)):
        for label in range(3):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for index in range(count):
                coarse = generator.integers(0, 120, (5, 6, 3)).astype(np.uint8)
                coarse[..., label] += 100
                image = Image.fromarray(coarse).resize((24 + index, 22), Image.Resampling.BICUBIC)
                image.save(folder / f"{index}.png")
    return root


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
