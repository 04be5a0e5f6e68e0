"""Where colour matters: planned, measured on a real network, and shown."""

from pathlib import Path

import pytest

from equicolor.paper import colour_matters
from equicolor.paper.engine import reproduce
from equicolor.paper.experiment import Scope
from equicolor.paper.rows import Findings
from equicolor.results import Row, read_results

ROW = {"dataset": "breakhis", "model": "resnet18", "rotations": 1, "augmentation": "none"}


@pytest.mark.slow
def test_a_trained_network_is_measured_under_three_changes(tmp_path: Path) -> None:
    scope = Scope(tmp_path, quick=True, networks=("baseline",), epochs=1)
    run = reproduce(scope, ["colour-matters"])
    assert (run.jobs, run.finished, run.incomplete) == (2, 2, {})
    (row,) = read_results(tmp_path / "results/colour-matters.json")["rows"]
    curves = [row[f"{change}_curve"] for change in ("hue", "saturation", "cast")]
    assert all(len(set(curve)) > 1 for curve in curves)
    original = row["saturation_curve"][row["saturation_values"].index(1)]
    assert original == pytest.approx(row["original"], abs=1e-3)
    (section,) = colour_matters.show(Findings({"colour-matters": [row]}))
    assert section.table is not None
    means = (row["original"], row["hue_mean"], row["saturation_mean"], row["cast_mean"])
    assert section.table.rows == [("ResNet-18", *(f"{mean:.2f}" for mean in means), "1")]


def test_all_networks_are_planned_with_their_measurements(tmp_path: Path) -> None:
    jobs = colour_matters.plan(Scope(tmp_path, quick=True, seeds=(0, 1)))
    trainings, measured = jobs[::2], jobs[1::2]
    assert [job.kind for job in trainings] == ["training"] * 4
    assert [job.after for job in measured] == [(job,) for job in trainings]
    assert all(job.extends for job in measured)


def test_only_what_was_measured_is_shown() -> None:
    hue: Row = {"original": 90.0, "hue_mean": 40.0, "hue_curve": [20.0, 90.0, 20.0]}
    light: Row = {"cast_mean": 50.0, "cast_curve": [30.0, 70.0, 30.0]}
    with_light = ROW | hue | light
    jitter = ROW | hue | {"augmentation": "jitter 0.5"}
    fruits = ROW | hue | {"dataset": "fruits"}
    findings = Findings({"colour-matters": [fruits, with_light, jitter]})
    stained, labels = colour_matters.show(findings)
    assert stained.table is not None
    assert labels.table is not None
    assert stained.table.columns[-3:] == ("hue-shifted, ours", "coloured light", "seeds")
    assert [line[3] for line in stained.table.rows] == ["50.00", "–"]
    assert labels.table.columns[-2:] == ("hue-shifted, ours", "seeds")
    titles = [
        [axes.get_title() for axes in section.figure.axes if axes.get_title()]
        for section in (stained, labels)
    ]
    assert [len(each) for each in titles] == [2, 1]
    assert list(colour_matters.show(Findings({}))) == []
