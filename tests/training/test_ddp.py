"""Two processes against one with the same global batch."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from tests.training.processes import CHANGES, OPTIONS

from equicolor.models import load_model
from equicolor.training import fit as fitting
from equicolor.training import loop
from equicolor.training.fit import RunOptions, fit
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder

pytestmark = pytest.mark.slow  # processes are started


@pytest.fixture(scope="module")
def recipes(toy_recipe: TrainingRecipe) -> dict[str, TrainingRecipe]:
    return {name: dataclasses.replace(toy_recipe, **change) for name, change in CHANGES.items()}


@pytest.fixture(scope="module")
def runs(in_processes: Path) -> Path:
    """Every recipe trained by two processes, in a folder of its name."""
    # Both processes ran every recipe, and one of them has the result.
    lines = sorted((in_processes / "stdout").read_text().splitlines())
    expected = sorted(f"{name} {first}" for name in CHANGES for first in (False, True))
    told = [line for line in lines if not line.startswith("step ")]
    assert told == expected, (in_processes / "stderr").read_text()
    return in_processes


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("few_shifts")
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


@pytest.mark.usefixtures("few_shifts")
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
