"""Accuracy over brightness: measured on a real network, and shown."""

from pathlib import Path

import pytest

from equicolor.paper import brightness, image_jobs
from equicolor.paper.experiment import Context, Outcome, Scope
from equicolor.paper.rows import Findings, identity
from equicolor.results import Row

ROW = {"dataset": "flowers102", "model": "resnet18", "rotations": 1, "augmentation": "none"}


@pytest.mark.slow
def test_a_trained_network_is_measured_over_stops(tmp_path: Path) -> None:
    scope = Scope(tmp_path, quick=True, networks=("baseline",), epochs=1)
    (job,) = brightness.plan(scope)
    (training,) = job.after
    trained = Outcome(training.run(training, Context(tmp_path / "run", "cpu")), tmp_path / "run")
    (row,) = job.run(job, Context(tmp_path, "cpu", before=(trained,)))
    assert identity(row) == identity(image_jobs.facts(trained))
    assert (row["brightness_values"][0], row["brightness_values"][-1]) == (-2, 2)
    original = row["brightness_curve"][row["brightness_values"].index(0)]
    assert original == pytest.approx(trained.rows[0]["original"], abs=1e-3)
    assert len(set(row["brightness_curve"])) > 1
    (section,) = brightness.show(Findings({"brightness": [row]}))
    assert section.table is not None
    assert section.table.columns[1:4] == ("mean", "-2.0 stops", "-1.0 stops")
    assert section.table.rows[0][4] == f"{original:.2f}"


@pytest.mark.parametrize("change", [{"size": 112}, {"coset_pool": "avg"}, {"finetuned": "first"}])
def test_rows_of_other_networks_and_trainings_are_not_one(change: Row, tmp_path: Path) -> None:
    runs = [Outcome([ROW | {"rotations": 3, "seed": 0, **each}], tmp_path) for each in ({}, change)]
    usual, changed = (identity(image_jobs.facts(run)) for run in runs)
    assert usual != changed


def test_seeds_are_averaged() -> None:
    values = [-2.0, -1.0, 0.0, 0.5, 1.0, 2.0]
    rows = [
        ROW | {"seed": seed, "brightness_values": values, "brightness_mean": 40.0 + seed}
        | {"brightness_curve": [10.0, 20.0, 50.0 + seed, 99.0, 30.0, 15.0]}
        for seed in (0, 2)
    ]  # fmt: skip
    (section,) = brightness.show(Findings({"brightness": rows}))
    assert section.table is not None
    (line,) = section.table.rows
    assert line[1:4] == ("41.00 ± 1.41", "10.00 ± 0.00", "20.00 ± 0.00")
    assert line[4:] == ("51.00 ± 1.41", "30.00 ± 0.00", "15.00 ± 0.00")
    assert section.figure is not None
    (reduced,) = brightness.show(Findings({"brightness": [row | {"size": 64} for row in rows]}))
    assert reduced.table is not None
    assert reduced.table.title == f"{section.table.title}; 64 pixels"
    assert list(brightness.show(Findings({}))) == []
