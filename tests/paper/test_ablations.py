"""Which rows the ablations show, and with which numbers."""

from typing import Any

import pytest

from equicolor.evaluation.hue_sweep import hue_shifts
from equicolor.paper.ablations import figures, of_ablation, peak_table, peaks, table

FLOWERS = "flowers102"
ABLATIONS = ("ablation-rotations", "ablation-jitter", "ablation-cosetpool")


def row(rotations: int = 1, lifting: str = "rgb", **facts: Any) -> dict[str, Any]:
    ce = rotations > 1
    curve = [40.0 + index for index in range(37)]
    return {
        "model": "ce_resnet18" if ce else "resnet18", "rotations": rotations,
        "lifting": lifting if ce else None, "ce_stages": 4 if ce else 0, "dataset": FLOWERS,
        "augmentation": "none", "seed": 0, "epochs": 200, "original": 60.0 + rotations,
        "hue_mean": 50.0, "hue_curve": curve, "rgb_mean": 51.0, "rgb_curve": curve,
        "rgb_clip_mean": 52.0, "rgb_clip_curve": curve, **facts,
    }  # fmt: skip


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return [
        row(), row(seed=1), row(3), row(6), row(6, "hsv"), row(3, coset_pool="none"),
        row(3, coset_pool="avg"), row(3, augmentation="jitter 0.1"),
        row(augmentation="jitter 0.1"), row(3, augmentation="augmix"), row(3, ce_stages=2),
        row(model="resnet18-gray"), row(6, augmentation="jitter 0.1"), row(4, dataset="cifar10"),
    ]  # fmt: skip


def test_each_ablation_takes_its_own_rows(rows) -> None:
    def names(experiment: str) -> list[str]:
        return sorted(variant.name for variant in of_ablation(experiment, rows, FLOWERS))

    assert names("ablation-rotations") == [
        "CE-ResNet-18", "CE-ResNet-18 (HSV, n = 6)", "CE-ResNet-18 (RGB, n = 6)", "ResNet-18",
    ]  # fmt: skip
    assert names("ablation-jitter") == [
        "CE-ResNet-18", "CE-ResNet-18 + jitter 0.1", "ResNet-18", "ResNet-18 + jitter 0.1",
    ]  # fmt: skip
    assert names("ablation-cosetpool") == [
        "CE-ResNet-18", "CE-ResNet-18 (average pooling)", "CE-ResNet-18 (flattened)", "ResNet-18",
    ]  # fmt: skip


def test_a_table_has_the_papers_numbers_where_there_are_any(rows) -> None:
    made = table("ablation-rotations", rows, FLOWERS)
    assert made.columns[-3:] == ("RGB rotation", "RGB rotation, clipped", "seeds")
    lines = {line[0]: line[1:] for line in made.rows}
    assert lines["ResNet-18"][:4] == (
        "66.79 ± 0.89",
        "61.00 ± 0.00",
        "13.41 ± 0.34",
        "50.00 ± 0.00",
    )
    assert lines["CE-ResNet-18 (HSV, n = 6)"] == ("–", "66.00", "–", "50.00", "51.00", "52.00", "1")
    assert made.title == "Flowers-102: accuracy in percent"
    mine = table("ablation-cosetpool", [line | {"dataset": "mine"} for line in rows], "mine")
    assert mine.columns == ("network", "original, ours", "HSV shifts, ours", "seeds")


@pytest.fixture
def mixed() -> list[dict[str, Any]]:
    """Most of them at 64 pixels."""
    small = {"size": 64, "hue_mean": 20.0}
    return [row(**small), row(3, **small), row(3, coset_pool="avg", **small), row(), row(3)]


def test_a_reduced_setting_is_in_the_title(mixed) -> None:
    for experiment in ABLATIONS:
        made = table(experiment, mixed[:3], FLOWERS)
        assert made.title == "Flowers-102: accuracy in percent; ours: 64 pixels instead of 224"
    (drawn,) = figures("ablation-cosetpool", mixed[:3], FLOWERS).values()
    assert drawn.axes[0].get_title() == "CE-ResNet-18, 64 pixels"
    assert peak_table(mixed[:3], FLOWERS).title.endswith("; 64 pixels instead of 224")


@pytest.mark.slow
def test_two_settings_have_lines_and_panels_of_their_own(mixed) -> None:
    made = table("ablation-cosetpool", mixed, FLOWERS)
    assert [line[0] for line in made.rows] == [
        "ResNet-18", "CE-ResNet-18", "ResNet-18 (64 pixels)", "CE-ResNet-18 (64 pixels)",
        "CE-ResNet-18 (average pooling) (64 pixels)",
    ]  # fmt: skip
    assert [line[1] == "–" for line in made.rows] == [False, False, True, True, True]
    assert made.title == "Flowers-102: accuracy in percent"
    for experiment, titles in {
        "ablation-cosetpool": ["CE-ResNet-18", "CE-ResNet-18, 64 pixels"],
        "ablation-jitter": [
            "CE-ResNet-18", "ResNet-18", "CE-ResNet-18, 64 pixels", "ResNet-18, 64 pixels",
        ],
    }.items():  # fmt: skip
        (drawn,) = figures(experiment, mixed, FLOWERS).values()
        assert [axes.get_title() for axes in drawn.axes if axes.get_title()] == titles
    curves, accuracy = figures("ablation-rotations", mixed, FLOWERS).values()
    assert len([axes for axes in curves.axes if "64 pixels" in axes.get_title()]) == 6
    assert accuracy.axes[4].get_title() == "original images, 64 pixels"
    assert [line[0] for line in peak_table(mixed, FLOWERS).rows] == ["RGB", "RGB (64 pixels)"]


def test_peaks_are_at_the_angles_of_the_group() -> None:
    degrees = (360 * hue_shifts(37)).round().long().tolist()
    assert peaks(degrees, 3) == [-120, 0, 120]
    assert peaks(degrees, 4) == [-180, -90, 0, 90]  # half a turn once
    assert peaks(degrees, 12) == list(range(-180, 180, 30))
    assert peaks(degrees, 1) == [0]
    assert peaks(degrees, 5) is None  # 72 degrees are no multiple of 10
    assert peaks(degrees, 8) is None
    assert peaks([50.0], 3) is None


def test_peaks_of_every_lifting_and_action(rows) -> None:
    lines = peak_table(rows, FLOWERS).rows
    assert [line[:2] for line in lines] == [("HSV", "6"), ("RGB", "3"), ("RGB", "6")]
    assert lines[1][2] == "46.0 to 70.0"  # at -120 and 120 degrees of the made-up curve


@pytest.mark.parametrize("experiment", ABLATIONS)
def test_figures_have_a_panel_for_each_question(experiment: str, rows) -> None:
    drawn = figures(experiment, rows, FLOWERS)
    titles = [axes.get_title() for axes in drawn[experiment].axes if axes.get_title()]
    expected = {
        "ablation-rotations": [
            "RGB lifting, HSV shift", "HSV lifting, HSV shift (exact)",
            "RGB lifting, RGB rotation (exact)", "HSV lifting, RGB rotation",
            "RGB lifting, RGB rotation, clipped", "HSV lifting, RGB rotation, clipped",
        ],
        "ablation-jitter": ["CE-ResNet-18", "ResNet-18"],
        "ablation-cosetpool": ["CE-ResNet-18"],
    }  # fmt: skip
    assert titles == expected[experiment]
    labels = {text.get_text() for text in drawn[experiment].axes[0].texts}
    assert labels == {
        "ablation-rotations": {"n = 1", "n = 3", "n = 6"},
        "ablation-jitter": {"jitter 0", "jitter 0.1"},
        "ablation-cosetpool": {
            "plain network", "coset max pooling", "coset average pooling", "flattened",
        },
    }[experiment]  # fmt: skip
    assert figures(experiment, rows, "stl10") == {}


def test_liftings_that_are_as_good_are_both_seen(rows) -> None:
    drawn = figures("ablation-rotations", rows, FLOWERS)["ablation-rotations-accuracy"]
    rgb, hsv = (container.lines[0] for container in drawn.axes[0].containers)
    assert (rgb.get_linestyle(), hsv.get_linestyle()) == ("-", "--")
    assert hsv.get_markerfacecolor() == "none"
