"""Quick runs at toy size: rows, report, and that nothing is computed twice."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from equicolor.data import MissingDataError, load_mnist, longtailed_colormnist
from equicolor.paper import (
    ablations,
    colormnist,
    configurations,
    equivariance,
    image_jobs,
    launching,
    quick_images,
    report,
)
from equicolor.paper.engine import reproduce, state
from equicolor.paper.experiment import Context, Job, Scope
from equicolor.paper.launching import Launch
from equicolor.paper.registry import EXPERIMENTS
from equicolor.results import read_results, write_results

ROOT = Path(__file__).parents[2]
CPU = Launch(workers=1, devices=("cpu",))
LONGTAILED, BIASED = colormnist.EXPERIMENTS


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scope:
    """Quick runs with fewer and smaller images, networks and epochs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    small = quick_images.IMAGES["coloured-digits"]._replace(train=70, test=30)
    monkeypatch.setitem(quick_images.IMAGES, "coloured-digits", small)
    monkeypatch.delitem(quick_images.IMAGES, "any-hue-digits")
    monkeypatch.setattr(image_jobs, "_QUICK_WIDTH", 2)
    monkeypatch.setattr(ablations, "_QUICK_ORDERS", (1, 3))
    monkeypatch.setattr(ablations, "_QUICK_STRENGTHS", (0.0,))
    monkeypatch.setitem(image_jobs._QUICK_RECIPE, "epochs", 1)
    return Scope(tmp_path / "out", quick=True)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the jobs that were run, in order."""
    kinds: list[str] = []
    run = launching._run

    def noting(job, *arguments) -> None:
        kinds.append(job.kind)
        run(job, *arguments)

    monkeypatch.setattr(launching, "_run", noting)
    return kinds


def rows_of(scope: Scope, experiment: str) -> list[dict]:
    return read_results(scope.output / "results" / f"{experiment}.json")["rows"]


@pytest.mark.slow
@pytest.mark.usefixtures("roughly_drawn")
def test_experiments_share_equal_jobs(
    scope: Scope, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(report, "png", lambda figure: b"")  # drawn in a later call
        run = reproduce(scope, ["neuron-features", "ablation-jitter"], CPU)
    assert (run.jobs, run.finished, dict(run.incomplete)) == (3, 3, {})
    assert sorted(begun) == ["neuron-features", "training", "training"]
    assert {"layer", "hue_deviation", "selective"} <= set(rows_of(scope, "neuron-features")[0])
    page = run.report.read_text()
    assert "made-up images" in page
    names = sorted(path.stem for path in (scope.output / "figures").iterdir())
    assert names == ["ablation-jitter-coloured-digits", "neuron-features-coloured-digits"]
    assert page.count("<img") == 2
    assert state("ablation-jitter", scope) == "done"
    assert state("ablation-cosetpool", scope) == "2 of 4 jobs"

    # Further experiments train what is new alone, and the page still has the others. Of a
    # shard it is every second job.
    half = replace(CPU, shard=(0, 2))
    with monkeypatch.context() as patch:
        patch.setattr(report, "png", lambda figure: b"")  # drawn in the next call
        part = reproduce(scope, ["ablation-rotations", "selectivity"], half)
    assert "left to other shards" in part.incomplete["ablation-rotations"]
    assert not part.failed
    more = reproduce(scope, ["ablation-jitter", "ablation-rotations", "selectivity"], CPU)
    assert not more.incomplete
    # Nothing again, neither of the first call nor of the shard.
    assert sorted(begun[3:]) == ["selectivity", *["sweep"] * 3, *["training"] * 2]
    page = more.report.read_text()
    assert page.count("<img") == 6
    for title in ("Number of rotations", "Colour selectivity", "Selectivity by layer"):
        assert title in page
    check_rotations(rows_of(scope, "ablation-rotations"))
    rows = rows_of(scope, "selectivity")
    assert [row.get("ce_stages") for row in rows if "original" in row] == [0, 2, 4]
    assert -1 < next(row["selectivity"] for row in rows if row.get("layer") == "all") <= 1


def check_rotations(rows: list[dict]) -> None:
    assert [(row["rotations"], row["lifting"]) for row in rows] == [
        (1, None), (3, "rgb"), (3, "hsv"),
    ]  # fmt: skip
    for row in rows:
        for name in ("hue_curve", "rgb_curve", "rgb_clip_curve"):
            assert len(row[name]) == 37
    # At the network's own hue shifts the accuracy is that of the original images.
    rgb, hsv = rows[1], rows[2]
    for curve in (rgb["rgb_curve"], hsv["hue_curve"]):
        assert curve[6] == curve[18] == curve[30]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_missing_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    scope = Scope(tmp_path / "out")
    with pytest.raises(MissingDataError, match=r"Flowers-102 is not in .*flowers-102"):
        reproduce(scope, ["ablation-jitter"], CPU)
    assert not scope.output.exists()
    counted = read_results(ROOT / "results" / "configurations.json")["rows"]
    monkeypatch.setattr(configurations, "run", lambda console: counted)
    run = reproduce(scope, ["ablation-jitter", "configurations"], CPU)  # goes on with others
    assert "Flowers-102 is not in" in run.incomplete["ablation-jitter"]
    assert "Not complete: Flowers-102 is not in" in run.report.read_text()
    assert [path.name for path in run.results] == ["configurations.json"]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_failures_are_named_and_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    counted = read_results(ROOT / "results" / "configurations.json")["rows"]
    monkeypatch.setattr(configurations, "run", lambda console: counted)

    def broken(*arguments: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(equivariance, "measure", broken)
    scope = Scope(tmp_path / "out")
    for how in (CPU, replace(CPU, shard=(0, 1))):
        run = reproduce(scope, ["equivariance", "configurations"], how)
        assert run.failed
        assert dict(run.incomplete) == {
            "equivariance": "1 job is not finished: equivariance: RuntimeError: out of memory"
        }
        assert "Not complete: 1 job is not finished" in run.report.read_text()
        assert [path.name for path in run.results] == ["configurations.json"]
    # Finished before, it is still shown, also if its rows went missing.
    (scope.output / "results" / "configurations.json").unlink()
    alone = reproduce(scope, ["equivariance"], CPU)
    assert alone.failed
    assert "reproduce all --only configurations" not in alone.report.read_text()
    # If one section fails, the report is still written.
    monkeypatch.setattr(configurations, "plot", broken)
    shown = reproduce(scope, ["configurations"], CPU)
    assert shown.failed
    reason = "cannot be shown: RuntimeError: out of memory"
    assert dict(shown.incomplete) == {"configurations": reason}
    assert f"It {reason}" in shown.report.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_rows_of_earlier_calls_stay(scope: Scope) -> None:
    reproduce(scope, ["ablation-jitter"], CPU)
    path = scope.output / "results" / "ablation-jitter.json"
    other = [row | {"seed": 7} for row in rows_of(scope, "ablation-jitter")]
    write_results(path, other, experiment="ablation-jitter", quick=True)
    reproduce(scope, ["ablation-jitter"], CPU)
    contents = read_results(path)
    assert [row["seed"] for row in contents["rows"]] == [0, 0, 7, 7]
    names = [job["job"] for job in contents["jobs"]]
    assert names == ["coloured-digits/baseline-seed0", "coloured-digits/ce-4-seed0"]


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_call_leaves_the_rows_of_finished_jobs(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(job: Job, context: Context) -> list[dict[str, Any]]:
        recipe = job.settings["recipe"]
        if recipe["model"].startswith("ce_"):
            raise KeyboardInterrupt
        return [{"model": recipe["model"], "seed": recipe["seed"], "dataset": recipe["dataset"]}]

    monkeypatch.setattr(image_jobs, "train", train)
    with pytest.raises(KeyboardInterrupt):
        reproduce(replace(scope, networks=("baseline", "ce-4")), ["classification"], CPU)
    assert [row["model"] for row in rows_of(scope, "classification")] == ["resnet18"]


# --- images of one's own ---------------------------------------------------------------------


@pytest.fixture
def pets(scope: Scope, tmp_path: Path, undrawn: None) -> Callable[..., list[dict]]:
    """Runs the classification experiment on a folder of images, and gives its rows."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(0, 255, (40, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")

    def run(*networks: str, **changes) -> list[dict]:
        mine = replace(scope, datasets=(str(tmp_path / "pets"),), networks=networks, **changes)
        done = reproduce(mine, ["classification"], CPU)
        assert not done.incomplete
        return rows_of(scope, "classification")

    return run


@pytest.mark.slow
def test_networks_and_actions_are_chosen(
    pets: Callable[..., list[dict]], begun: list[str], tmp_path: Path
) -> None:
    (row,) = pets("rgb-3+avg")
    assert "rgb_curve" not in row
    (swept,) = pets("rgb-3+avg", actions=("hsv", "rgb", "rgb-clip"))
    assert begun == ["training", "sweep"]  # nothing is trained again
    assert len(swept["rgb_curve"]) == len(swept["rgb_clip_curve"]) == 37
    assert swept["coset_pool"] == "avg"
    assert {key: swept[key] for key in row} == row
    # A second call keeps what the first found; single seeds can be run.
    rows = pets("baseline", seeds=(1, 4))
    assert [(each["model"], each["seed"]) for each in rows] == [
        ("resnet18", 1), ("resnet18", 4), ("ce_resnet18", 0),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="action must be one of"):
        pets("baseline", actions=("xyz",))
    with pytest.raises(ValueError, match=r"unknown recipe .*hvs-12'; did you mean"):
        pets("hvs-12")
    # Other images in the same place are trained on anew.
    (tmp_path / "pets" / "train" / "cat" / "0.png").unlink()
    pets("baseline", seeds=(1,))
    assert begun.count("training") == 4


@pytest.mark.slow
def test_another_size_and_epochs_are_another_row(pets: Callable[..., list[dict]]) -> None:
    pets("baseline")
    rows = pets("baseline", size=32, epochs=2)
    assert [(row["size"], row["epochs"]) for row in rows] == [(32, 2), (28, 1)]


# --- ColorMNIST ------------------------------------------------------------------------------


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch, scope: Scope) -> Scope:
    """Small ColorMNIST datasets behind the same names."""
    embedded = load_mnist(embedded=True)
    tiny = longtailed_colormnist(embedded, seed=1, largest=3, test_per_class=2)
    monkeypatch.setattr(colormnist, "longtailed_colormnist", lambda digits: tiny)
    biased = colormnist.biased_colormnist

    def tiny_biased(sigma, digits, **seed):
        return biased(sigma, digits, train_size=30, test_size=20, **seed)

    monkeypatch.setattr(colormnist, "biased_colormnist", tiny_biased)
    monkeypatch.setattr(colormnist, "HUE_IMAGES", 2)  # of a class, swept over all hues
    return replace(scope, epochs=1, networks=("z2cnn", "cecnn+jitter"))


@pytest.mark.slow
@pytest.mark.usefixtures("roughly_drawn")
def test_longtailed_is_shown_and_further_seeds_are_added(
    digits: Scope, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = reproduce(digits, [LONGTAILED], CPU)
    names = sorted(path.name for path in (digits.output / "figures").iterdir())
    assert names == [
        f"{LONGTAILED}-hue.png", f"{LONGTAILED}-samples.png", f"{LONGTAILED}-variants.png",
        f"{LONGTAILED}.png",
    ]  # fmt: skip
    assert "Z2CNN" in run.report.read_text()
    first = rows_of(digits, LONGTAILED)
    assert ["hue_curve" in row for row in first] == [True, False]
    monkeypatch.setattr(report, "png", lambda figure: b"")
    reproduce(replace(digits, seeds=(0, 2)), [LONGTAILED], CPU)
    assert len(begun) == 4  # seed 0 is not trained again
    rows = rows_of(digits, LONGTAILED)
    assert [row for row in rows if row["seed"] == 0] == first
    assert [row["seed"] for row in rows] == [0, 2, 0, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_biased_may_draw_data_for_every_seed(digits: Scope) -> None:
    once = replace(digits, networks=("z2cnn",), sigmas=(12.0,), seeds=(0, 1))
    reproduce(once, [BIASED], CPU)
    reproduce(replace(once, redraw=True), [BIASED], CPU)
    redrawn, usual = rows_of(digits, BIASED)[:2], rows_of(digits, BIASED)[2:]
    assert [(row["seed"], row["data_seed"]) for row in redrawn] == [(0, 0), (1, 1)]
    assert "data_seed" not in usual[0]
    # The usual seed of the data is 0, too.
    assert usual[0]["loss"] == redrawn[0]["loss"]
    assert usual[1]["loss"] != redrawn[1]["loss"]


# --- plans -----------------------------------------------------------------------------------


def test_quick_runs_are_the_same_with_a_gpu(scope: Scope) -> None:
    plan = EXPERIMENTS["ablation-jitter"].plan
    assert plan(replace(scope, cuda=True)) == plan(scope)


@pytest.mark.slow
def test_every_experiment_has_a_quick_plan(scope: Scope) -> None:
    for experiment in EXPERIMENTS.values():
        names = [job.name for job in experiment.plan(scope)]
        assert names
        assert len(set(names)) == len(names)
        assert state(experiment.id, scope) == "not run"


def test_the_full_protocol_is_the_papers(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(image_jobs, "load_dataset", lambda *arguments: None)

    def planned(experiment: str, **changes) -> dict[str, tuple[str, dict]]:
        scope = Scope(tmp_path, datasets=("flowers102",), **changes)
        jobs = EXPERIMENTS[experiment].plan(scope)
        return {job.name: (job.key, job.settings["recipe"]) for job in jobs if not job.extends}

    own = planned("ablation-rotations", cuda=True)
    assert {
        (recipe["epochs"], recipe["size"], recipe["precision"]) for _, recipe in own.values()
    } == {(200, 224, "bfloat16")}
    # The same jobs as those of the tables: what they share is trained once.
    tables = planned("classification", cuda=True)
    shared = {"baseline", "ce-4", "hsv-3", "hsv-6", "hsv-12"}
    assert {name.split("/")[1][:-6] for name in tables.keys() & own.keys()} == shared
    assert all(tables[name] == own[name] for name in tables.keys() & own.keys())
    # One of each network before a second seed of any.
    seeds = [recipe["seed"] for _, recipe in planned("classification", seeds=(0, 1)).values()]
    assert seeds == sorted(seeds)
    reduced = planned("ablation-jitter", epochs=10, size=64, seeds=(0, 1)).values()
    assert {(recipe["epochs"], recipe["size"], recipe["resize"]) for _, recipe in reduced} == {
        (10, 64, 73)
    }


@pytest.mark.parametrize(
    ("experiment", "dataset", "names"),
    [
        ("ablation-rotations", "flowers102", {"baseline", "ce-4", "rgb-10", "hsv-3", "hsv-12"}),
        ("ablation-jitter", "flowers102", {"baseline", "ce-4+jitter-0.3", "baseline+jitter"}),
        ("ablation-cosetpool", "flowers102", {"baseline", "ce-4", "ce-4+flatten", "ce-4+avg"}),
        ("ablation-rotations", "cifar10", {"ce-3", "hsv-3"}),
    ],
)
def test_ablations_have_the_papers_networks(
    experiment: str, dataset: str, names: set[str], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(image_jobs, "load_dataset", lambda *arguments: None)
    jobs = EXPERIMENTS[experiment].plan(Scope(tmp_path, datasets=(dataset,)))
    planned = [job.name.split("/")[1][:-6] for job in jobs if not job.extends]
    assert names <= set(planned)
    assert "rgb-3" not in planned  # which is ce-4 or ce-3
    counts = {"ablation-rotations": 21, "ablation-jitter": 12, "ablation-cosetpool": 4}
    assert len(planned) == len(set(planned)) == counts[experiment]


@pytest.mark.slow
def test_a_damaged_record_does_not_keep_others_from_being_listed(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivariance, "DEMO", ())
    reproduce(scope, ["equivariance"], CPU)
    assert state("equivariance", scope) == "done"
    (record,) = (scope.output / "jobs").glob("equivariance-*.json")
    record.write_text("{")
    assert "damaged" in state("equivariance", scope)
