"""Two processes against one with the same global batch."""

import dataclasses
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed import run as torchrun

from equicolor.models import load_model
from equicolor.training import fit as fitting
from equicolor.training import loop
from equicolor.training.fit import RunOptions, fit
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder

pytestmark = pytest.mark.slow  # processes are started

# Tiny networks are chaotic: in float32 a change in the last digit of the weights becomes one of
# 10 % in ten steps. So the long runs are in float64, and that in float32 is short.
CHANGES = {
    "adam": {"jitter": 0.5, "ema": 0.9, "clip": 1.0},
    "sgd": {
        "epochs": 2, "optimizer": "sgd", "lr": 0.001, "model": "resnet18", "options": {"width": 4},
    },
    "float32": {"epochs": 1, "options": {"width": 8, "rotations": 2}},
}  # fmt: skip
OPTIONS = {"device": "cpu", "checkpoint_every": 0, "validate_every": 2}

SCRIPT = """
from equicolor.training import fit as fitting
from equicolor.training import loop
from equicolor.training.recipes import TrainingRecipe

evaluate = fitting.evaluate
fitting.evaluate = lambda network, *args, **options: evaluate(network.float(), *args, **options)
for name, text in {texts!r}.items():
    loop._PRECISIONS["float32"] = "32-true" if name == "float32" else "64-true"
    options = fitting.RunOptions(devices=2, **{options!r})
    found = fitting.fit(TrainingRecipe.from_json(text), {folder!r} + "/" + name, options)
    print(name, found is not None)
"""


@pytest.fixture(scope="module")
def recipes(toy_recipe: TrainingRecipe) -> dict[str, TrainingRecipe]:
    return {name: dataclasses.replace(toy_recipe, **change) for name, change in CHANGES.items()}


@pytest.fixture(scope="module")
def runs(recipes: dict[str, TrainingRecipe], once: Callable[..., Path]) -> Path:
    """Every recipe trained by two processes under torchrun, in a folder of its name."""
    return once("ddp", lambda folder: _train(recipes, folder))


def _train(recipes: dict[str, TrainingRecipe], folder: Path) -> None:
    texts = {name: recipe.to_json() for name, recipe in recipes.items()}
    script = folder / "train.py"
    script.write_text(SCRIPT.format(texts=texts, options=OPTIONS, folder=str(folder)))
    # Forked, which saves the imports of torchrun; its two processes are new ones.
    process = multiprocessing.get_context("fork").Process(
        target=_torchrun, args=(script, folder / "stdout", folder / "stderr")
    )
    process.start()
    process.join(300)
    assert process.exitcode == 0, (folder / "stderr").read_text()
    # Both processes ran every recipe, and one of them has the result.
    lines = sorted((folder / "stdout").read_text().splitlines())
    assert lines == sorted(f"{name} {first}" for name in CHANGES for first in (False, True))


def _torchrun(script: Path, stdout: Path, stderr: Path) -> None:
    for number, path in enumerate((stdout, stderr), 1):
        with path.open("w") as file:
            os.dup2(file.fileno(), number)
    torchrun.main(["--standalone", "--nproc_per_node=2", str(script)])


@pytest.mark.parametrize("name", CHANGES)
def test_two_processes_learn_what_one_learns(
    name: str,
    runs: Path,
    recipes: dict[str, TrainingRecipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe, evaluate = recipes[name], fitting.evaluate
    if name != "float32":
        monkeypatch.setitem(loop._PRECISIONS, "float32", "64-true")
        monkeypatch.setattr(
            fitting, "evaluate", lambda net, *a, **k: evaluate(net.float(), *a, **k)
        )
    fit(recipe, tmp_path, RunOptions(**OPTIONS))
    folders = tmp_path, runs / name
    one, two = (load_model(folder / "model.safetensors").state_dict() for folder in folders)
    start = recipe.build(3).state_dict()
    for key, expected in one.items():
        moved = (expected - start[key]).double().norm()
        assert moved > 0, key
        # In float64 sums in another order differ by 3e-14 after a step; SGD makes that grow.
        tolerance = 1e-5 if name == "float32" else 1e-8
        assert (two[key] - expected).double().norm() <= tolerance * (moved + 1), key
    mine, other = (RunFolder(folder).read_metrics() for folder in folders)
    columns = ("epoch", "step", "lr", "loss", "accuracy", "test_loss", "test_accuracy")
    for row, expected_row in zip(other, mine, strict=True):
        found, wanted = ([float(r[c] or -1) for c in columns] for r in (row, expected_row))
        assert found == pytest.approx(wanted, abs=2e-5)


def test_the_result_is_that_of_the_whole_test_set(runs: Path) -> None:
    (row,) = json.loads((runs / "adam" / "result.json").read_text())["rows"]
    assert row["images"] == 9
    assert len(row["hue_curve"]) == 37


def test_one_process_continues_what_two_began(
    runs: Path, recipes: dict[str, TrainingRecipe], tmp_path: Path
) -> None:
    # Checkpoints know nothing of processes.
    for name in ("recipe.json", "last.ckpt", "metrics.csv"):
        (tmp_path / name).write_bytes((runs / "float32" / name).read_bytes())
    found = fit(recipes["float32"], tmp_path, RunOptions(**OPTIONS))
    assert found is not None
    assert found.continued == 1
    one, two = (
        load_model(f / "model.safetensors").state_dict() for f in (tmp_path, runs / "float32")
    )
    assert all(torch.equal(one[key], two[key]) for key in one)
