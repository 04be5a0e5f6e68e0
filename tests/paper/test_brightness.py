"""Accuracy over brightness: measured on a real network, and shown."""

from pathlib import Path

import pytest
import torch
from torch import nn

from equicolor.paper import brightness, image_jobs
from equicolor.paper.experiment import Context, Job, Outcome
from equicolor.paper.rows import Findings, identity
from equicolor.results import Row

ROW = {"dataset": "flowers102", "model": "resnet18", "rotations": 1, "augmentation": "none"}


class Threshold(nn.Module):
    """Class 1 for images brighter than one half."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        bright = images.mean((1, 2, 3)) - 0.5
        return torch.stack((-bright, bright), 1)


def test_images_are_multiplied_and_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    images = torch.tensor([0.3, 0.4, 0.9]).view(3, 1, 1, 1).expand(3, 3, 2, 2)
    batches = [(images, torch.tensor([0, 1, 1]))]
    monkeypatch.setattr(image_jobs, "network_and_images", lambda *_: (Threshold(), batches, None))
    job = Job("a", "brightness", brightness.measure, {"factors": [0.5, 1.0, 1.5, 2.0]})
    context = Context(tmp_path, before=(Outcome([ROW | {"seed": 0, "epochs": 2}], tmp_path),))
    (row,) = brightness.measure(job, context)
    assert row["brightness_curve"] == [33.333, 66.667, 100.0, 66.667]
    assert (row["dataset"], row["model"], row["seed"]) == ("flowers102", "resnet18", 0)


@pytest.mark.parametrize("change", [{"size": 112}, {"coset_pool": "avg"}, {"finetuned": "first"}])
def test_rows_of_other_networks_and_trainings_are_not_one(change: Row, tmp_path: Path) -> None:
    runs = [Outcome([ROW | {"rotations": 3, "seed": 0, **each}], tmp_path) for each in ({}, change)]
    usual, changed = (identity(image_jobs.facts(run)) for run in runs)
    assert usual != changed


def test_seeds_are_averaged_and_other_factors_left_out() -> None:
    factors = list(brightness.FACTORS)
    rows = [
        {**ROW, "seed": seed, "factors": factors, "brightness_curve": [50.0 + seed] * len(factors)}
        for seed in (0, 2)
    ]
    rows.append({**ROW, "seed": 5, "factors": [1.0], "brightness_curve": [0.0]})
    (section,) = brightness.show(Findings({"brightness": rows}))
    assert section.table is not None
    assert section.table.rows[0][1] == "51.00 ± 1.41"
    assert len(section.table.rows) == 1
    (reduced,) = brightness.show(Findings({"brightness": [row | {"size": 64} for row in rows]}))
    assert reduced.table is not None
    assert reduced.table.title == f"{section.table.title}; 64 pixels"
    assert list(brightness.show(Findings({}))) == []
