"""Tables 1 and 3 from start to report, on a made-up folder of pictures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equicolor.experiments import classification
from equicolor.results import read_results
from equicolor.training.run_options import RunOptions

CPU = RunOptions(device="cpu", workers=0)
SMALL = {"size": 32, "resize": 32, "precision": "32", "batch_size": 8}


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("EQUICOLOR_CACHE", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(0, 255, (40, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return str(tmp_path / "pets")


def small(pictures: str, networks: list[str]) -> list[classification.Run]:
    """Runs of networks narrow enough for a test."""
    return [
        run._replace(recipe=replace(run.recipe, options={**run.recipe.options, "width": 2}))
        for run in classification.plan(pictures, networks, epochs=1, **SMALL)
    ]


def test_a_plan_has_every_recipe_of_the_dataset_by_default() -> None:
    runs = classification.plan("cifar10", seeds=2)
    names = [run.name for run in runs]
    assert len(names) == len(set(names))
    assert {"baseline-seed0", "ce-3+jitter-seed1", "hsv-12+augmix-seed1"} <= set(names)
    assert {run.recipe.seed for run in runs} == {0, 1}
    # one of each network before a second seed of any
    assert [run.recipe.seed for run in runs] == sorted(run.recipe.seed for run in runs)


def test_runs_become_rows_tables_and_figures(pictures: str, tmp_path: Path) -> None:
    runs = small(pictures, ["baseline", "hsv-3"])
    written = classification.reproduce(runs, tmp_path / "out", CPU)
    assert [path.name for path in written] == [
        "results.json", "classification.md", "classification-pets.png",
    ]  # fmt: skip
    rows = read_results(written[0])["rows"]
    assert [(row["model"], row["rotations"], row["lifting"]) for row in rows] == [
        ("resnet18", 1, None), ("ce_resnet18", 3, "hsv"),
    ]  # fmt: skip
    assert "CE-ResNet-18 (HSV, n = 3)" in written[1].read_text()


def test_finished_runs_are_not_trained_again(pictures: str, tmp_path: Path) -> None:
    runs = small(pictures, ["baseline"])
    classification.reproduce(runs, tmp_path / "out", CPU)
    weights = tmp_path / "out" / "runs" / "baseline-seed0" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    classification.reproduce(runs, tmp_path / "out", CPU)
    assert weights.stat().st_mtime_ns == before


def test_tables_from_rows_alone(pictures: str, tmp_path: Path) -> None:
    results, *_ = classification.reproduce(small(pictures, ["baseline"]), tmp_path / "out", CPU)
    written = classification.from_results([results], tmp_path / "docs")
    assert [path.name for path in written] == ["classification.md", "classification-pets.png"]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        classification.plan("flowers102", seeds=0)
    with pytest.raises(ValueError, match="unknown recipe 'flowers102/hvs-12'; did you mean"):
        classification.plan("flowers102", ["hvs-12"])
    with pytest.raises(ValueError, match="flowers102"):
        classification.plan("flower102")
