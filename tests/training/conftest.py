"""A small made-up folder of images, and the recipe of a tiny network for it."""

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image
from rich.console import Console

from equicolor.data import ColorMNIST, Digits, longtailed_colormnist
from equicolor.training.recipes import TrainingRecipe

if TYPE_CHECKING:
    from equicolor.training.fit import Fit


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
    """Three classes of coloured noise: 11 images each for training, 3 for testing."""
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
        precision="float32",
    )


@pytest.fixture(scope="session")
def finished(toy_recipe: TrainingRecipe, tmp_path_factory: pytest.TempPathFactory) -> "Fit":
    """An uninterrupted run."""
    from equicolor.training.fit import RunOptions, fit  # which needs Lightning

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("runs") / "whole"
        found = fit(
            dataclasses.replace(toy_recipe, ema=0.9),
            folder,
            RunOptions(device="cpu", checkpoint_every=0),
        )
    assert found is not None
    return found


@pytest.fixture(scope="session")
def in_processes(
    toy_recipe: TrainingRecipe, once: Callable[..., Path], start_script: Callable[..., Any]
) -> Path:
    """The runs of tests/training/processes.py, beside what they printed."""

    def fill(folder: Path) -> None:
        arguments = (toy_recipe.to_json(), str(folder))
        script = f"from tests.training import processes\nprocesses.main(*{arguments!r})"
        ended = start_script(script, Path(__file__).parents[2])
        (folder / "stdout").write_text(ended.stdout)
        (folder / "stderr").write_text(ended.stderr)

    return once("processes", fill)


@pytest.fixture
def few_shifts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are judged under 7 hue shifts instead of 37."""
    from equicolor.training import fit as fitting

    monkeypatch.setattr(fitting, "evaluate", functools.partial(fitting.evaluate, shifts=7))


@pytest.fixture(scope="session")
def finished_recipe(finished: "Fit") -> TrainingRecipe:
    """What was trained there."""
    return TrainingRecipe.from_json(finished.folder.recipe.read_text())


@pytest.fixture(scope="session")
def same() -> Callable[[Path, Path], bool]:
    """Whether the networks of two runs have equal weights, bit by bit."""
    from equicolor.models import load_model

    def compare(*folders: Path) -> bool:
        one, two = (load_model(folder / "model.safetensors").state_dict() for folder in folders)
        return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)

    return compare


@pytest.fixture(scope="session")
def goes_on(
    finished: "Fit", finished_recipe: TrainingRecipe, same: Callable[[Path, Path], bool]
) -> Callable[..., "Fit"]:
    """Train the same recipe to the end in a folder: the weights are those of that run."""
    from equicolor.training.fit import RunOptions, fit

    def train(folder: Path, console: Console | None = None) -> "Fit":
        options = RunOptions(device="cpu", checkpoint_every=0)
        found = fit(finished_recipe, folder, options, console=console)
        assert found is not None
        assert same(folder, finished.folder.path)
        return found

    return train


@pytest.fixture(scope="session")
def data(digits: Digits) -> ColorMNIST:
    """A small long-tailed ColorMNIST."""
    return longtailed_colormnist(digits, seed=1, largest=5, test_per_class=2)
