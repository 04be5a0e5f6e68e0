from functools import partial
from pathlib import Path

import pytest
import torch

from equicolor.paper import equivariance
from equicolor.paper.equivariance import Spec, build, measure
from equicolor.paper.experiment import Context, Scope
from equicolor.paper.rows import Findings


@pytest.fixture(scope="module")
def photo() -> torch.Tensor:
    return equivariance.sample_photo(32)


@pytest.mark.slow
def test_photo_is_an_image(photo: torch.Tensor) -> None:
    assert photo.shape == (1, 3, 32, 48)
    assert photo.min() >= 0
    assert photo.max() <= 1
    assert photo.std() > 0.1


@pytest.mark.parametrize(
    "spec", [Spec("rgb", 3, "rgb"), Spec("hsv", 6, "hsv"), Spec("hsv", 12, "hsv")]
)
def test_equivariant_networks_do_not_move_at_their_angles(spec: Spec, photo: torch.Tensor) -> None:
    row = measure(spec, photo, shifts=24, seeds=2)
    assert row["at_group_angles"] < 3e-6
    assert row["worst"] > 1e-3  # between the angles they do move


def test_rgb_lifting_moves_under_hsv_shifts_that_are_no_multiple_of_120_degrees(
    photo: torch.Tensor,
) -> None:
    change = measure(Spec("rgb", 6, "rgb"), photo, shifts=6, seeds=1)["change"]
    assert max(change[::2]) < 3e-6
    assert min(change[1::2]) > 1e-3


@pytest.mark.slow
def test_finer_groups_move_less(photo: torch.Tensor) -> None:
    specs = Spec("plain"), Spec("hsv", 3, "hsv"), Spec("hsv", 6, "hsv"), Spec("hsv", 12, "hsv")
    worst = [measure(spec, photo, shifts=24, seeds=2)["worst"] for spec in specs]
    assert worst == sorted(worst, reverse=True)
    assert worst[0] > 20 * worst[-1]


def test_a_plain_network_has_no_group_angles(photo: torch.Tensor) -> None:
    assert measure(Spec("plain"), photo, shifts=3, seeds=1)["at_group_angles"] is None


def test_seeds_draw_different_networks_and_repeat(photo: torch.Tensor) -> None:
    spec = Spec("hsv", 3, "hsv")
    first, again, other = (build(spec, photo, seed)(photo) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_building_leaves_the_global_seed_alone(photo: torch.Tensor) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build(Spec("plain"), photo)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.slow
def test_rows_hold_the_whole_curve_and_are_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(equivariance, "measure", partial(measure, shifts=12, seeds=1))
    (job,) = equivariance.EXPERIMENT.plan(Scope(tmp_path))
    plain, rgb3, rgb12, hsv12 = rows = job.run(job, Context(tmp_path))
    assert plain["worst"] > rgb3["worst"] > rgb12["worst"] > hsv12["worst"]
    assert max(rgb3["at_group_angles"], hsv12["at_group_angles"]) < 3e-6
    assert rgb12["at_group_angles"] > 1e-2
    assert len(plain["change"]) == 12
    (section,) = equivariance.show(Findings({"equivariance": rows}))
    assert section.table is not None
    assert [line[0] for line in section.table.rows] == [spec.name for spec in equivariance.DEMO]
    curves = section.figure.axes[1].get_lines()
    assert len(curves[0].get_xdata()) == 13  # 360 degrees again
