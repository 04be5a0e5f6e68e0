"""Tables 1 and 3 from start to report, on a made-up folder of pictures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equicolor.paper import classification
from equicolor.paper.picture_jobs import settle
from equicolor.results import read_results
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions

CPU = RunOptions(device="cpu", workers=0)
SMALL = {"size": 32, "resize": 32, "precision": "float32", "batch_size": 8}


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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


def test_other_actions_are_swept_without_training_again(pictures: str, tmp_path: Path) -> None:
    runs = small(pictures, ["rgb-3+avg"])
    results, *_ = classification.reproduce(runs, tmp_path / "out", CPU)
    (row,) = read_results(results)["rows"]
    assert "rgb_curve" not in row
    weights = tmp_path / "out" / "runs" / "ce-4+avg-seed0" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    actions = ["hsv", "rgb", "rgb-clip"]
    results, *_ = classification.reproduce(runs, tmp_path / "out", CPU, actions=actions)
    (swept,) = read_results(results)["rows"]
    assert weights.stat().st_mtime_ns == before
    assert len(swept["rgb_curve"]) == len(swept["rgb_clip_curve"]) == 37
    assert swept["coset_pool"] == "avg"
    assert {key: swept[key] for key in row} == row


def test_other_pictures_in_the_same_place_are_trained_on_anew(
    pictures: str, tmp_path: Path
) -> None:
    runs = small(pictures, ["baseline"])
    classification.reproduce(runs, tmp_path / "out", CPU)
    (Path(pictures) / "train" / "cat" / "0.png").unlink()
    results, *_ = classification.reproduce(runs, tmp_path / "out", CPU, actions=["rgb"])
    trained = sorted(path.parent.name for path in (tmp_path / "out").glob("runs/*/result.json"))
    assert len(trained) == 2
    assert trained[1].startswith("baseline-seed0-")
    (row,) = read_results(results)["rows"]  # of the new pictures alone
    assert len(row["rgb_curve"]) == 37


def test_another_recipe_of_the_same_name_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    (run,) = classification.plan("flowers102", ["hsv-6"])
    folder = RunFolder(tmp_path / run.name)
    assert settle([run], tmp_path) == [run]
    folder.begin(run.recipe)
    assert settle([run], tmp_path) == [run]
    (short,) = settle(classification.plan("flowers102", ["hsv-6"], epochs=3), tmp_path)
    assert short.name.startswith("hsv-6-seed0-")
    folder.recipe.write_text("{")
    assert settle([run], tmp_path)[0].name.startswith("hsv-6-seed0-")


def test_tables_from_rows_alone(pictures: str, tmp_path: Path) -> None:
    results, *_ = classification.reproduce(small(pictures, ["baseline"]), tmp_path / "out", CPU)
    written = classification.from_results([results], tmp_path / "docs")
    assert [path.name for path in written] == ["classification.md", "classification-pets.png"]
    page = written[0].read_text()
    assert "ours: 1 epoch instead of 200, 32 pixels instead of 224, batch size 8" in page
    # Rows that come twice count once.
    again = classification.from_results([results, results], tmp_path / "docs")
    assert again[0].read_text() == page


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        classification.plan("flowers102", seeds=0)
    with pytest.raises(ValueError, match="unknown recipe 'flowers102/hvs-12'; did you mean"):
        classification.plan("flowers102", ["hvs-12"])
    with pytest.raises(ValueError, match="flowers102"):
        classification.plan("flower102")


def test_a_second_call_keeps_what_the_first_found(pictures: str, tmp_path: Path) -> None:
    classification.reproduce(small(pictures, ["baseline"]), tmp_path / "out", CPU)
    results, *_ = classification.reproduce(small(pictures, ["gray"]), tmp_path / "out", CPU)
    rows = read_results(results)["rows"]
    assert len({str(row) for row in rows}) == 2


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ("{", "is not a file of results"),
        ("[]", "expected rows"),
        ('{"a": 1}', "expected rows"),
        ('{"rows": [{"model": "resnet18"}]}', "a row without dataset, augmentation"),
    ],
)
def test_other_files_are_refused_by_name(contents: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(contents)
    with pytest.raises(ValueError, match=rf"other\.json.*{words}"):
        classification.from_results([path], tmp_path / "out")
