"""Hue curves from made-up rows: which curves are drawn, and with which numbers."""

from typing import Any

import numpy as np
import pytest

from equicolor.paper.classification import figure_1b, hue_figure
from equicolor.paper.variants import by_variant, style


def row(model: str, seed: int = 0, level: float = 50.0, **facts: Any) -> dict[str, Any]:
    ours = {"rotations": 1, "lifting": None, "ce_stages": 0}
    if model.startswith("ce_"):
        ours = {"rotations": 3, "lifting": "rgb", "ce_stages": 4}
    curve = [level + seed + index / 10 for index in range(37)]
    return {
        "model": model, **ours, "dataset": "flowers102", "augmentation": "none", "seed": seed,
        "epochs": 200, "original": level, "hue_mean": level, "hue_curve": curve, **facts,
    }  # fmt: skip


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    hsv = {"rotations": 12, "lifting": "hsv"}
    return [
        row("resnet18", 0), row("resnet18", 2), row("resnet18-gray"), row("ce_resnet18"),
        row("ce_resnet18", ce_stages=1), row("ciconv_resnet18"), row("ce_resnet18", **hsv),
        row("ce_resnet18", rotations=6, lifting="hsv"), row("resnet18", augmentation="jitter 0.5"),
        row("ce_resnet18", augmentation="jitter 0.5"), row("resnet18", augmentation="augmix"),
        row("ce_resnet18", augmentation="jitter 0.1"),
    ]  # fmt: skip


def labels(axes) -> set[str]:
    return {text.get_text() for text in axes.texts}


def test_figure_1b_shows_the_papers_curves_and_our_best(rows) -> None:
    figure = figure_1b(rows)
    assert figure is not None
    assert labels(figure.axes[0]) == {
        "ResNet-18",
        "ResNet-18 (grey input)",
        "CE-ResNet-18",
        "CE-ResNet-18 (HSV, n = 12)",
        "ResNet-18 + jitter",
        "CE-ResNet-18 + jitter",
    }
    assert figure.axes[0].get_title() == "Flowers-102"
    assert figure_1b(rows, "cifar10") is None


def test_figure_1b_shows_the_most_rotations_of_each_augmentation(rows) -> None:
    def hsv(rotations: int, augmentation: str) -> dict[str, Any]:
        return row("ce_resnet18", rotations=rotations, lifting="hsv", augmentation=augmentation)

    # Networks trained with AugMix are not in this figure.
    figure = figure_1b([*rows, hsv(24, "augmix"), hsv(12, "jitter 0.5"), hsv(24, "jitter 0.5")])
    assert figure is not None
    assert {label for label in labels(figure.axes[0]) if "HSV" in label} == {
        "CE-ResNet-18 (HSV, n = 12)",
        "CE-ResNet-18 (HSV, n = 24) + jitter",
    }


def test_titles_name_a_reduced_setting(rows) -> None:
    small = [line | {"size": 64} for line in rows]
    for figure, title in (
        (figure_1b(small), "Flowers-102, 64 pixels"),
        (hue_figure(small, "flowers102"), "Flowers-102, no colour augmentation, 64 pixels"),
        # Figure 1b is of one setting, the paper's if it was run.
        (figure_1b([*small, *rows[:4]]), "Flowers-102"),
    ):
        assert figure is not None
        assert figure.axes[0].get_title() == title


def test_curves_are_means_over_seeds_with_a_band(rows) -> None:
    figure = hue_figure(rows[:2], "flowers102")
    assert figure is not None
    axes = figure.axes[0]
    (line,) = axes.get_lines()
    assert line.get_xdata()[[0, 18, 36]].tolist() == [-180, 0, 180]
    expected = 51 + np.arange(37) / 10
    np.testing.assert_allclose(line.get_ydata(), expected)
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(expected[-1] + np.sqrt(2))
    assert heights.min() == pytest.approx(expected[0] - np.sqrt(2))


def test_a_panel_for_each_augmentation(rows) -> None:
    figure = hue_figure(rows, "flowers102")
    assert figure is not None
    panels = {axes.get_title(): labels(axes) for axes in figure.axes if axes.get_title()}
    assert list(panels) == [
        "Flowers-102, no colour augmentation",
        "Flowers-102, trained with hue jitter",
        "Flowers-102, trained with AugMix",
        "Flowers-102, trained otherwise",
    ]
    assert panels["Flowers-102, trained with hue jitter"] == {"ResNet-18", "CE-ResNet-18"}
    assert panels["Flowers-102, trained otherwise"] == {"CE-ResNet-18 + jitter 0.1"}
    assert len(panels["Flowers-102, no colour augmentation"]) == 7


def test_networks_and_augmentations_can_be_told_apart(rows) -> None:
    rows = [*rows, row("ce_resnet18-gray")]
    variants = by_variant([line for line in rows if line["augmentation"] == "none"])
    looks = {(look["color"], look["marker"]) for look in map(style, variants)}
    assert len(looks) == len(variants)
    plain, jitter = (style(next(iter(by_variant([rows[index]])))) for index in (0, 8))
    assert plain["color"] == jitter["color"]
    assert plain["linestyle"] != jitter["linestyle"]


def test_rows_with_their_own_shifts() -> None:
    figure = hue_figure([row("resnet18", shifts=[0.0, 0.25], hue_curve=[60.0, 10.0])], "flowers102")
    assert figure is not None
    (line,) = figure.axes[0].get_lines()
    assert line.get_xdata().tolist() == [0, 90]
    # Only sweeps over the same shifts are averaged.
    mixed = [row("resnet18", 0), row("resnet18", 1, hue_curve=[10.0, 60.0, 10.0])]
    figure = hue_figure(mixed, "flowers102")
    assert figure is not None
    assert len(figure.axes[0].get_lines()[0].get_xdata()) == 37
