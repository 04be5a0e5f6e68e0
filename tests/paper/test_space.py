"""Hue times space: measured on a network whose answers are known, and shown."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from equicolor.models.widths import ARCHITECTURES
from equicolor.paper import image_jobs, space
from equicolor.paper.experiment import Context, Job, Outcome, Scope
from equicolor.paper.rows import Findings, identity
from equicolor.paper.variants import variant_of
from equicolor.training.recipes import named_recipe

ROW = {"dataset": "flowers102", "model": "resnet18", "rotations": 1, "augmentation": "none"}


class RedCorner(nn.Module):
    """Class 1 for images that are red in the upper left corner."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(7))

    def forward(self, images: Tensor) -> Tensor:
        red, green, blue = images[:, :, 0, 0].unbind(1)
        redness = red - 0.8 - (green + blue) / 2
        return torch.stack((-redness, redness), 1)


def test_every_turn_meets_every_hue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    images = torch.zeros(1, 3, 4, 4)
    images[:, 0, :2, :2] = 1
    batches = [(images, torch.tensor([1]))]
    monkeypatch.setattr(image_jobs, "network_and_images", lambda *_: (RedCorner(), batches, None))
    job = Job("a", "space", space.measure, {"hues": 12})
    outcome = Outcome([ROW | {"seed": 0}], tmp_path)
    (row,) = space.measure(job, Context(tmp_path, before=(outcome,)))
    # A corner comes back to its place in two of eight elements, red is red in one of twelve hues.
    assert row["turn_curve"] == [100, 0, 0, 0, 0, 100, 0, 0]
    shares = {"original": 100, "hues_mean": 100 / 12, "turns_mean": 25, "both_mean": 25 / 12}
    assert {key: row[key] for key in shares} == pytest.approx(shares, abs=1e-3)
    assert row["parameters"] == 7


@pytest.mark.slow
def test_turns_are_exact_at_odd_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(space, "_SIZES", {"resnet44": (13, 12)})
    short = ARCHITECTURES[44]._replace(blocks=(1, 1, 1))
    monkeypatch.setitem(ARCHITECTURES, 44, short)
    (job,) = space.plan_turns(Scope(tmp_path))
    job = replace(job, settings=job.settings | {"width": 1})
    rows = space.exactness(job, Context(tmp_path))
    assert [row["input_size"] for row in rows] == [13, 12]
    assert rows[0]["change"] < 1e-10 < 1e-4 < rows[1]["change"]
    assert len({identity(row) for row in rows}) == 2
    (section,) = space.show_turns(Findings({"turns": rows}))
    assert section.table is not None
    assert [row[1] for row in section.table.rows] == ["13", "12"]
    assert list(space.show_turns(Findings({}))) == []


def test_networks_go_by_names_and_rows_apart() -> None:
    name, recipe = named_recipe("hsv-6+jitter+p4m", "flowers102")
    assert name == "hsv-6+p4m+jitter"
    assert recipe.options == {"rotations": 6, "lifting": "hsv", "spatial": "p4m"}
    name, recipe = named_recipe("baseline+p4", "flowers102")
    assert (recipe.model, recipe.options) == ("resnet18", {"spatial": "p4"})
    with pytest.raises(ValueError, match="unknown recipe"):
        named_recipe("baseline+p4+p4m", "flowers102")
    rows = [ROW, ROW | {"spatial": "p4"}, ROW | {"spatial": "p4m"}]
    assert len({identity(row) for row in rows}) == 3
    assert [variant_of(row).name for row in rows] == [
        "ResNet-18", "ResNet-18 (p4)", "ResNet-18 (p4m)",
    ]  # fmt: skip


def test_sizes_at_which_turns_are_exact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = []

    def jobs(dataset: str, networks: tuple[str, ...], scope: Scope) -> list[Job]:
        sizes.append(scope.size)
        return []

    monkeypatch.setattr(image_jobs, "training_jobs", jobs)
    for scope in (Scope(tmp_path), Scope(tmp_path, quick=True), Scope(tmp_path, size=64)):
        space.plan(scope)
    assert sizes == [69, None, 64]  # 69 is 32 * 2 + 5


def test_shown_in_one_table_and_figure() -> None:
    keys = ("original", "hues_mean", "turns_mean", "both_mean")
    rows = [
        {**ROW, **group, "seed": seed, "parameters": 11_230_000, **dict.fromkeys(keys, 50.0 + seed)}
        for group in ({}, {"spatial": "p4m"})
        for seed in (0, 2)
    ]
    (section,) = space.show(Findings({"space": rows}))
    assert section.table is not None
    assert [row[:3] for row in section.table.rows] == [
        ("ResNet-18", "11.23 M", "51.00 ± 1.41"),
        ("ResNet-18 (p4m)", "11.23 M", "51.00 ± 1.41"),
    ]
    assert list(space.show(Findings({}))) == []
