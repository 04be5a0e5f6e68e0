"""The canonicalisation experiment: measured on a real network, and shown."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from equicolor.data.images import ImageSet
from equicolor.models import z2cnn
from equicolor.paper import canonicalization, image_jobs
from equicolor.paper.canonicalization import EXPERIMENT, fit, measure
from equicolor.paper.experiment import Context, Job, Outcome, Scope
from equicolor.paper.rows import Findings, identity
from equicolor.reporting.tables import MISSING
from equicolor.results import Row

ROW = {"dataset": "flowers102", "model": "resnet18", "rotations": 1, "seed": 0, "epochs": 200}
TRAINED = {"original": 60.0, "hue_mean": 12.0, "hue_curve": [12.0] * 37}  # when it was trained


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[Row]]:
    """Rows of a network behind one selection."""
    torch.manual_seed(0)
    pixels = torch.randint(256, (20, 3, 28, 28), dtype=torch.uint8)
    labels = torch.arange(20) % 4
    images = ImageSet("toy", "train", labels, ("a", "b", "c", "d"), pixels=pixels)
    network = z2cnn(4, width=4).eval()
    monkeypatch.setattr(
        image_jobs, "network_and_images", lambda *_: (network, [(pixels / 255, labels)], None)
    )
    monkeypatch.setattr(canonicalization, "load_dataset", lambda *_, **__: images)

    def run(selection: str) -> list[Row]:
        before = [Outcome([ROW | TRAINED], tmp_path)]
        if selection.endswith("selector"):
            selector = {"rotations": 6, "size": 28, "width": 4}
            settings = {"selector": selector, "epochs": 1, "seed": 0, "split_seed": 0}
            fits = Job("b", "selector", fit, settings, about={"dataset": "toy"})
            before.append(Outcome(fit(fits, Context(tmp_path)), tmp_path))
        job = Job("a", "canonicalization", measure, {"selection": selection})
        return measure(job, Context(tmp_path / selection, before=tuple(before)))

    return run


def test_the_network_alone_is_the_baseline(rows: Callable[[str], list[Row]]) -> None:
    (row,) = rows("network alone")
    assert row["stage"] == "network alone"
    assert len(row["cast_curve"]) == 37
    # The hue sweep is that of the training; the rest is measured here.
    assert (row["hue_mean"], row["hue_curve"]) == (12.0, [12.0] * 37)
    assert row["original"] != TRAINED["original"]
    assert row.items() >= ROW.items()


def test_one_selector_gives_a_row_for_each_number_of_modes(rows) -> None:
    one, two = rows("tiny selector")
    assert (one["stage"], two["stage"]) == ("tiny selector", "tiny selector, two modes")
    assert one["fit_seconds"] == two["fit_seconds"]
    assert 0 <= one["hue_kept"] <= 100
    assert "cast_curve" not in one
    assert one["hue_curve"][0] == one["hue_curve"][6] == one["hue_curve"][12]  # 60 degrees
    assert identity(one) != identity(two)


@pytest.mark.parametrize(
    ("selection", "swept"),
    [
        ("grey world", {"cast_curve": 37}),
        ("grey input", {"hue_curve": 37, "cast_curve": 37}),
        ("lowest entropy", {"hue_curve": 10}),
    ],
)
def test_other_selections_need_no_training(selection, swept, rows) -> None:
    (row,) = rows(selection)
    assert row["stage"] == selection
    assert "fit_seconds" not in row
    assert {key: len(row[key]) for key in row if key.endswith("_curve")} == swept


def test_a_quick_plan_follows_one_training(tmp_path: Path) -> None:
    jobs = EXPERIMENT.plan(Scope(tmp_path, quick=True))
    assert len({job.after[0].key for job in jobs}) == 1
    assert len({job.name for job in jobs}) == len(jobs) == 3


def test_a_full_plan_measures_the_slow_selections_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(image_jobs, "load_dataset", lambda *_: None)  # it need not be here
    scope = Scope(tmp_path, networks=("hsv-6", "hsv-12", "baseline"), seeds=(0, 1))
    selections = [job.settings["selection"] for job in EXPERIMENT.plan(scope)]
    assert [selections.count(each) for each in ("lowest entropy", "fast selector")] == [1, 1]
    assert selections.count("network alone") == selections.count("grey world") == 6
    assert selections.count("default selector") == 4  # which compares no more hues than hsv-12


def test_networks_of_one_seed_share_their_selectors(tmp_path: Path) -> None:
    scope = Scope(tmp_path, quick=True, networks=("baseline", "hsv-6"), seeds=(0, 1))
    fits = {
        (other.settings["seed"], other.key)
        for job in EXPERIMENT.plan(scope)
        for other in job.after[1:]
    }
    assert sorted(seed for seed, _ in fits) == [0, 1]


def test_seeds_are_averaged_and_networks_shown_apart() -> None:
    curves = {"hue_curve": [50.0] * 37, "cast_curve": [40.0] * 37}
    measured = {"hue_mean": 50.0, "cast_mean": 40.0, **curves}
    found = [
        {**ROW, **measured, "seed": seed, "stage": stage, "original": 60.0 + 2 * seed}
        for seed in (0, 1)
        for stage in ("network alone", "grey world")
    ]
    other = {"model": "ce_resnet18", "rotations": 6, "lifting": "hsv"}
    found += [row | other for row in found[:2]]
    light = {"stage": "shades of grey", "original": 58.0, "cast_mean": 57.0}
    found.append({**ROW, **light, "cast_curve": [57.0] * 37})
    plain, equivariant, casts = EXPERIMENT.show(Findings({"canonicalization": found}))
    assert casts.file == "canonicalization-flowers102-cast"
    assert plain.table is not None
    assert plain.table.rows[0][:3] == ("network alone", "61.00 ± 1.41", "50.00 ± 0.00")
    assert plain.table.rows[-1][1:4] == ("58.00", MISSING, "57.00")
    assert equivariant.title.startswith("ce_resnet18, hsv 6")
    assert list(EXPERIMENT.show(Findings({}))) == []
    # Another shard has not swept hues yet.
    unswept, _ = EXPERIMENT.show(Findings({"canonicalization": found[-1:]}))
    assert (len(unswept.table.rows), unswept.figure) == (1, None)
