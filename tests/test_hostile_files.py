"""Damaged and malicious files: no code runs, nothing is downloaded, one line says what is wrong."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests import hostile
from typer.testing import CliRunner

from equicolor.cli.app import app
from equicolor.conversion import convert
from equicolor.models import (
    CheckpointError,
    ce_resnet18,
    cecnn,
    create_model,
    load_model,
    save_model,
    z2cnn,
)
from equicolor.models.checkpoints import read_header, weights_digest
from equicolor.models.registry import Origin
from equicolor.models.tensor_files import read_weights, write_weights
from equicolor.paper.registry import EXPERIMENTS
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder, recipe_of_run

RESULTS = Path(__file__).parents[1] / "results"
NETWORKS = (
    lambda: z2cnn(3, width=2),
    lambda: cecnn(3, width=2, rotations=4, lifting="hsv"),
    lambda: create_model("resnet18", num_classes=3, width=2, gray=True),
    lambda: ce_resnet18(3, rotations=3, ce_stages=2, width=[2, 3, 4, 5]),
    lambda: convert(z2cnn(3, width=2), rotations=2),
)


class Evil:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A torch file that runs code when it is unpickled; nothing may."""
    torch.save({"state_dict": Evil(tmp_path / "code ran")}, tmp_path / "evil.pth")
    yield tmp_path / "evil.pth"
    assert not (tmp_path / "code ran").exists()


def read_everything(path: Path) -> None:
    """What commands read of a checkpoint, cheapest first."""
    read_header(path)
    weights_digest(path)
    load_model(path)


def try_headers(networks, count: int, seed: int, folder: Path, evil: Path):
    """Change the headers of saved networks, with a digest that fits and without."""
    originals = []
    for index, network in enumerate(networks):
        network = network()
        network.class_names = ("a", "b", "c")
        originals.append(read_weights(save_model(network, folder / str(index)), weights=True))

    def attempt(chance: random.Random) -> None:
        header, tensors = chance.choice(originals)
        new = dict(header)
        key = (
            "config"
            if chance.random() < 0.8
            else chance.choice([k for k in new if k not in ("digest", "format")])
        )
        text = hostile.changed_text(new[key], chance, evil)
        if chance.random() < 0.1:
            del new[key]
        else:
            new[key] = text.encode(errors="replace").decode()
        path = folder / "changed.safetensors"
        if chance.random() < 0.9:
            write_weights(path, tensors, new)
        else:  # with a digest that does not fit
            save_file(tensors, path, new)
        read_everything(path)

    return hostile.outcomes(count, seed, attempt)


@pytest.mark.slow
def test_changed_headers(tmp_path: Path, evil: Path) -> None:
    counted = try_headers(NETWORKS, 30, 0, tmp_path, evil)
    assert counted["refused: CheckpointError"] > 10


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model": "z2cnn", "num_classes": 3, "width": 10**6}, "width of a saved network"),
        ({"model": "z2cnn", "num_classes": 3, "width": 9_999}, "does not fit z2cnn"),
        ({"model": "z2cnn", "num_classes": 10**12}, "num_classes of a saved network"),
        ({"model": "cecnn", "rotations": 10**5}, "rotations of a saved network"),
        ({"model": "converted", "source": "equicolor:z2cnn", "image_size": 10**9}, "image_size of"),
        ({"model": "converted", "source": "equicolor:converted"}, "cannot be built from"),
        ({"model": "converted", "source": 5}, "has no attribute"),
        ({"model": 5}, "expected an object with the name of a model"),
        (None, "config"),
        ("[" * 100_000 + "]" * 100_000, "recursion"),  # some Pythons parse 5,000 levels
    ],
)
def test_configurations_too_large_or_none(config, reason, tmp_path):
    path = tmp_path / "a.safetensors"
    text = config if isinstance(config, str) else json.dumps(config)
    header = {} if config is None else {"config": text}
    write_weights(path, z2cnn(3, width=2).state_dict(), header)
    with pytest.raises(CheckpointError, match=reason):
        read_everything(path)


def test_sizes_of_images_that_nobody_has(tmp_path):
    path = save_model(z2cnn(3, width=2), tmp_path / "a.safetensors")
    header, tensors = read_weights(path, weights=True)
    write_weights(path, tensors, {**header, "image_size": "1000000000", "split_seed": "-1"})
    assert read_header(path).origin == Origin(image_size=None)
    assert load_model(path).image_size == 28


# Folders of runs


def try_recipes(count: int, seed: int, folder: Path, evil: Path):
    """Change the recipe beside a network that was trained."""
    recipe = TrainingRecipe("z2cnn", {"width": 2}, size=28, resize=32)
    run = RunFolder(folder / "run")
    run.path.mkdir()
    run.begin(recipe, {})
    save_model(z2cnn(3, width=2), run.model)

    def attempt(chance: random.Random) -> None:
        text = hostile.changed_text(recipe.to_json(), chance, evil)
        run.recipe.write_text(text, errors="replace")
        assert recipe_of_run(run.path) is not None
        run.check(recipe)

    return hostile.outcomes(count, seed, attempt)


def test_changed_recipes(tmp_path: Path, evil: Path) -> None:
    counted = try_recipes(100, 0, tmp_path, evil)
    assert counted["refused: ValueError"] > 30


# Files of results


def try_results(count: int, seed: int, folder: Path, evil: Path):
    """Change one file of results, and show it as ``reproduce`` does, with all others or alone."""
    texts = [path.read_text() for path in sorted(RESULTS.glob("*.json"))]

    def attempt(chance: random.Random) -> None:
        shutil.rmtree(folder / "in", ignore_errors=True)
        (folder / "in").mkdir()
        contents = json.loads(chance.choice(texts))
        name = contents.get("experiment")
        contents["rows"] = contents["rows"][:6]  # a few are drawn more quickly
        text = hostile.changed_text(json.dumps(contents), chance, evil)
        (folder / "in" / "a.json").write_text(text, errors="replace")
        shown = name if name in EXPERIMENTS and chance.random() < 0.5 else "all"
        arguments = ["reproduce", shown, "--from", str(folder / "in"), "-o", str(folder / "out")]
        result = CliRunner().invoke(app, arguments, prog_name="equicolor")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise RuntimeError(f"{arguments}") from result.exception
        if result.exit_code:
            lines = result.stderr.strip().splitlines()  # of several experiments each has its own
            assert len(lines) == 1 or all("cannot be shown: " in line for line in lines), lines
            raise ValueError(lines[0])

    return hostile.outcomes(count, seed, attempt)


@pytest.mark.slow
def test_changed_results(tmp_path: Path, evil: Path) -> None:
    assert sum(try_results(5, 0, tmp_path, evil).values()) == 5
