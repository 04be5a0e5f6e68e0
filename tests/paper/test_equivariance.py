import json
from functools import partial
from pathlib import Path

import pytest
import torch

from equicolor._files import output_folder
from equicolor.paper import equivariance
from equicolor.paper.equivariance import Spec, build, measure, relative_change


@pytest.fixture(scope="module")
def photo() -> torch.Tensor:
    return equivariance.sample_photo(32)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivariance, "measure", partial(measure, shifts=12, seeds=1))


def test_photo_is_an_image(photo: torch.Tensor) -> None:
    assert photo.shape == (1, 3, 32, 48)
    assert photo.min() >= 0
    assert photo.max() <= 1
    assert photo.std() > 0.1


@pytest.mark.parametrize(
    "spec", [Spec("rgb", 3, "rgb"), Spec("hsv", 6, "hsv"), Spec("hsv", 12, "hsv")]
)
def test_equivariant_networks_do_not_move_at_their_angles(spec: Spec, photo: torch.Tensor) -> None:
    response = measure(spec, photo, shifts=24, seeds=2)
    assert response.at_group is not None
    assert response.at_group < 3e-6
    assert response.worst > 1e-3  # between the angles they do move


def test_rgb_lifting_moves_under_hsv_shifts_that_are_no_multiple_of_120_degrees(
    photo: torch.Tensor,
) -> None:
    response = measure(Spec("rgb", 6, "rgb"), photo, shifts=6, seeds=1)
    change = response.change[0]
    assert change[[0, 2, 4]].max() < 3e-6
    assert change[[1, 3, 5]].min() > 1e-3


def test_finer_groups_move_less(photo: torch.Tensor) -> None:
    specs = Spec("plain"), Spec("hsv", 3, "hsv"), Spec("hsv", 6, "hsv"), Spec("hsv", 12, "hsv")
    worst = [measure(spec, photo, shifts=24, seeds=2).worst for spec in specs]
    assert worst == sorted(worst, reverse=True)
    assert worst[0] > 20 * worst[-1]


def test_a_plain_network_has_no_group_angles(photo: torch.Tensor) -> None:
    assert measure(Spec("plain"), photo, shifts=3, seeds=1).at_group is None


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


def test_chunks_do_not_change_the_result(photo: torch.Tensor) -> None:
    network, turns = build(Spec("plain"), photo), torch.arange(5) / 5
    whole, parts = (relative_change(network, photo, turns, chunk=chunk) for chunk in (5, 2))
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("quick")
def test_run_writes_picture_and_summary_and_nothing_else(tmp_path: Path) -> None:
    output = tmp_path / "a" / "b"
    output.mkdir(parents=True)
    (output / "notes.txt").write_text("mine")
    responses = equivariance.run(output)
    names = sorted(path.name for path in output.iterdir())
    assert names == ["equivariance.png", "notes.txt", "summary.json"]
    assert (output / "notes.txt").read_text() == "mine"
    assert (output / "equivariance.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((output / "summary.json").read_text())
    assert [row["network"] for row in summary["rows"]] == [r.spec.name for r in responses]
    plain, rgb3, rgb12, hsv12 = summary["rows"]
    assert plain["worst"] > rgb3["worst"] > rgb12["worst"] > hsv12["worst"]
    assert max(rgb3["at_group_angles"], hsv12["at_group_angles"]) < 3e-6
    assert rgb12["at_group_angles"] > 1e-2


@pytest.mark.usefixtures("quick")
def test_module_writes_the_picture_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    equivariance.main(["--output", str(tmp_path / "docs")])
    picture = tmp_path / "docs" / "equivariance.png"
    assert list(picture.parent.iterdir()) == [picture]
    assert capsys.readouterr().out.strip() == str(picture)


def test_output_folder_refuses_a_file(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    for path in (taken, taken / "below"):
        with pytest.raises(NotADirectoryError, match=r"folder, but .*taken is a file"):
            output_folder(path)
