"""Quick runs at toy size: rows, report, and that nothing is computed twice."""

from dataclasses import replace
from pathlib import Path

import pytest

from equicolor.data.datasets import MissingDataError
from equicolor.paper import (
    ablations,
    configurations,
    equivariance,
    jobs,
    plans,
    quick_pictures,
    sections,
)
from equicolor.paper.launching import Launch, Shard
from equicolor.paper.plans import Scope
from equicolor.paper.registry import EXPERIMENTS
from equicolor.paper.reproduce_all import reproduce_all, state
from equicolor.results import read_results, write_results

ROOT = Path(__file__).parents[2]
CPU = Launch(devices=("cpu",))


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scope:
    """Quick runs with fewer and smaller pictures, networks and epochs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    small = quick_pictures.PICTURES["coloured-digits"]._replace(train=100, test=40)
    monkeypatch.setitem(quick_pictures.PICTURES, "coloured-digits", small)
    monkeypatch.delitem(quick_pictures.PICTURES, "any-hue-digits")
    monkeypatch.setattr(plans, "_QUICK_WIDTH", 2)
    monkeypatch.setattr(ablations, "_QUICK_ROTATIONS", (1, 3))
    monkeypatch.setattr(ablations, "_QUICK_STRENGTHS", (0.0,))
    monkeypatch.setitem(plans._QUICK_RECIPE, "epochs", 1)
    return Scope(tmp_path / "out", quick=True)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the jobs that were run, in order."""
    listed: list[str] = []
    runner = jobs._runner

    def noting(kind: str):
        listed.append(kind)
        return runner(kind)

    monkeypatch.setattr(jobs, "_runner", noting)
    return listed


def test_experiments_share_what_they_have_in_common(
    scope: Scope, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reproduce_all(scope, ["neuron-features", "ablation-jitter"], CPU)
    assert (found.jobs, found.finished, dict(found.failed)) == (3, 3, {})
    assert sorted(begun) == ["neuron-features", "training", "training"]
    features = read_results(scope.output / "results" / "neuron-features.json")["rows"]
    assert {"layer", "hue_deviation", "selective"} <= set(features[0])
    page = found.report.read_text()
    assert "made-up pictures" in page
    names = sorted(path.stem for path in (scope.output / "figures").iterdir())
    assert names == ["ablation-jitter-coloured-digits", "neuron-features-coloured-digits"]
    assert page.count("<img") == 2
    assert state("ablation-jitter", scope) == "done"
    assert state("ablation-cosetpool", scope) == "2 of 4 jobs"

    # Further experiments train what is new alone, and the page still has the others. Of a
    # shard it is every second job.
    half = Launch(devices=("cpu",), shard=Shard(0, 2))
    with monkeypatch.context() as patch:
        patch.setattr(sections, "png", lambda figure: b"")  # drawn in the next call
        part = reproduce_all(scope, ["ablation-rotations", "selectivity"], half)
    assert "left to other shards" in part.failed["ablation-rotations"]
    assert not part.broken
    more = reproduce_all(scope, ["ablation-rotations", "selectivity"], CPU)
    assert not more.failed
    assert sorted(begun[3:]) == ["selectivity", *["sweep"] * 3, *["training"] * 2]
    page = more.report.read_text()
    assert page.count("<img") == 6
    for title in ("Number of rotations", "Colour selectivity", "Selectivity by layer"):
        assert title in page
    _check_rotations(scope.output / "results" / "ablation-rotations.json")
    rows = read_results(scope.output / "results" / "selectivity.json")["rows"]
    assert [row.get("ce_stages") for row in rows if "original" in row] == [0, 2, 4]
    assert -1 < next(row["selectivity"] for row in rows if row.get("layer") == "all") <= 1

    monkeypatch.setattr(sections, "png", lambda figure: b"")  # drawn in the last call
    reproduce_all(scope, ["ablation-jitter", "ablation-rotations", "selectivity"], CPU)
    assert len(begun) == 9  # nothing again


def _check_rotations(path: Path) -> None:
    rows = read_results(path)["rows"]
    assert [(row["rotations"], row["lifting"]) for row in rows] == [
        (1, None), (3, "rgb"), (3, "hsv"),
    ]  # fmt: skip
    for row in rows:
        for name in ("hue_curve", "rgb_curve", "rgb_clip_curve"):
            assert len(row[name]) == 37
    # At the network's own hue shifts the accuracy is that of the original pictures.
    rgb, hsv = rows[1], rows[2]
    for curve in (rgb["rgb_curve"], hsv["hue_curve"]):
        assert curve[6] == curve[18] == curve[30]


def test_missing_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    scope = Scope(tmp_path / "out")
    with pytest.raises(MissingDataError, match=r"Flowers-102 is not in .*flowers-102"):
        reproduce_all(scope, ["ablation-jitter"], CPU)
    counted = read_results(ROOT / "results" / "configurations.json")["rows"]
    monkeypatch.setattr(configurations, "run", lambda: counted)
    found = reproduce_all(scope, ["ablation-jitter", "configurations"], CPU)  # goes on with others
    assert "Flowers-102 is not in" in found.failed["ablation-jitter"]
    assert "Not complete: Flowers-102 is not in" in found.report.read_text()
    assert [path.name for path in found.results] == ["configurations.json"]


def test_what_fails_is_said_and_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    counted = read_results(ROOT / "results" / "configurations.json")["rows"]
    monkeypatch.setattr(configurations, "run", lambda: counted)
    monkeypatch.setattr(sections, "png", lambda figure: b"")

    def broken(*arguments) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(equivariance, "sample_photo", broken)
    scope = Scope(tmp_path / "out")
    for how in (CPU, Launch(devices=("cpu",), shard=Shard(0, 1))):
        found = reproduce_all(scope, ["equivariance", "configurations"], how)
        assert found.broken
        assert dict(found.failed) == {
            "equivariance": "1 job is not finished: equivariance: RuntimeError: out of memory"
        }
        assert "Not complete: 1 job is not finished" in found.report.read_text()
        assert [path.name for path in found.results] == ["configurations.json"]
    alone = reproduce_all(scope, ["equivariance"], CPU)
    assert alone.broken
    # Finished before, it is still shown, also if its rows went missing.
    (scope.output / "results" / "configurations.json").unlink()
    alone = reproduce_all(scope, ["equivariance"], CPU)
    assert "It was not run: equicolor reproduce all --only configurations" not in (
        alone.report.read_text()
    )
    # What cannot be shown does not cost the report.
    monkeypatch.setattr(configurations, "plot", broken)
    shown = reproduce_all(scope, ["configurations"], CPU)
    assert shown.broken
    reason = "cannot be shown: RuntimeError: out of memory"
    assert dict(shown.failed) == {"configurations": reason}
    assert f"It {reason}" in shown.report.read_text()


def test_rows_of_earlier_calls_stay(scope: Scope) -> None:
    reproduce_all(scope, ["ablation-jitter"], CPU)
    path = scope.output / "results" / "ablation-jitter.json"
    contents = read_results(path)
    other = [row | {"seed": 7} for row in contents["rows"]]
    write_results(path, other, experiment="ablation-jitter", quick=True)
    reproduce_all(scope, ["ablation-jitter"], CPU)
    assert [row["seed"] for row in read_results(path)["rows"]] == [0, 0, 7, 7]
    names = [job["job"] for job in read_results(path)["jobs"]]
    assert names == ["coloured-digits/baseline-seed0", "coloured-digits/ce-4-seed0"]


def test_a_damaged_record_does_not_keep_others_from_being_listed(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "configurations.json").write_text("{")
    assert "damaged" in state("configurations", Scope(tmp_path))


def test_quick_runs_are_the_same_with_a_gpu(scope: Scope) -> None:
    with_gpu = plans.parts("ablation-jitter", replace(scope, cuda=True))
    assert with_gpu == plans.parts("ablation-jitter", scope)


def test_every_experiment_has_a_quick_plan(scope: Scope) -> None:
    for name in EXPERIMENTS:
        planned = plans.parts(name, scope)
        names = [job.name for part in planned for job in part.jobs]
        assert names
        assert len(set(names)) == len(names)


def test_the_full_protocol_is_the_papers(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(plans, "load_dataset", lambda *arguments: None)
    scope = Scope(tmp_path, datasets=("flowers102",), cuda=True)
    recipes = [part.job.settings["recipe"] for part in plans.parts("ablation-rotations", scope)]
    assert {recipe["epochs"] for recipe in recipes} == {200}
    assert {recipe["size"] for recipe in recipes} == {224}
    assert {recipe["precision"] for recipe in recipes} == {"bfloat16"}
    # The same jobs as those of the tables: what they share is trained once.
    tables = {part.job.name: part.job.key for part in plans.parts("classification", scope)}
    own = {part.job.name: part.job.key for part in plans.parts("ablation-rotations", scope)}
    shared = {"baseline", "ce-4", "hsv-3", "hsv-6", "hsv-12"}
    assert {name.split("/")[1][:-6] for name in tables.keys() & own.keys()} == shared
    assert all(tables[name] == own[name] for name in tables.keys() & own.keys())
    reduced = Scope(tmp_path, datasets=("flowers102",), epochs=10, size=64, seeds=2)
    recipes = [part.job.settings["recipe"] for part in plans.parts("ablation-jitter", reduced)]
    assert {(recipe["epochs"], recipe["size"], recipe["resize"]) for recipe in recipes} == {
        (10, 64, 73)
    }
    assert {recipe["seed"] for recipe in recipes} == {0, 1}
