"""Figures of the toy experiments: which digits they show, and where markers stand."""

from typing import Any

import numpy as np
import pytest

from equicolor.data import Digits, MissingDataError, longtailed_colormnist
from equicolor.experiments import colormnist_report
from equicolor.experiments.colormnist import SIGMAS
from equicolor.experiments.colormnist_figures import sigma_figure

BIASED, LONGTAILED = "colormnist-biased", "colormnist-longtailed"


@pytest.fixture
def without_mnist(digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*, embedded: bool) -> Digits:
        if not embedded:
            raise MissingDataError("no MNIST")
        return digits

    monkeypatch.setattr(colormnist_report, "load_mnist", load)


def rows(**facts: Any) -> list[dict[str, Any]]:
    """Of the full MNIST, unless facts say otherwise."""
    return [
        {
            "model": model, "augmentation": "none", "weighted": False, "seed": seed, "epochs": 9,
            "sigma": sigma, "original": 90.0 + seed + index, "digits": "MNIST, full",
            "per_class": [90.0] * 30, **facts,
        }
        for index, model in enumerate(("z2cnn", "cecnn", "z2cnn-gray"))
        for sigma in SIGMAS
        for seed in range(2)
    ]  # fmt: skip


def test_the_digits_are_those_of_the_rows(digits: Digits, without_mnist: None) -> None:
    quick = rows(digits=digits.source)
    assert colormnist_report.digits_of(quick) is digits
    assert colormnist_report.digits_of([*rows(), *quick]) is digits
    assert colormnist_report.digits_of(rows()) is None
    assert colormnist_report.digits_of(rows(digits="others")) is None


def test_samples_of_digits_that_are_not_there_are_not_drawn(without_mnist: None) -> None:
    assert list(colormnist_report.draw(BIASED, rows(), None)) == [BIASED]
    _, why = colormnist_report.captions(BIASED, rows(), None)[f"{BIASED}-samples"]
    assert why.startswith("Not drawn: what was trained on, MNIST, full, is not in ")


def test_sizes_of_classes_are_known_without_the_digits(digits: Digits, without_mnist: None) -> None:
    drawn = colormnist_report.draw(LONGTAILED, rows(), None)
    assert list(drawn) == [LONGTAILED]
    counts = longtailed_colormnist(digits, test_per_class=1).class_counts()
    heights = [bar.get_height() for bar in drawn[LONGTAILED].axes[1].patches]
    assert heights == sorted(counts.tolist(), reverse=True)


def markers(sigmas: tuple[float, ...]) -> np.ndarray:
    """Where the markers of each curve are, in points from the left."""
    chosen = [row for row in rows() if row["sigma"] in sigmas]
    figure = sigma_figure(chosen)
    (axes,) = figure.axes
    figure.draw_without_rendering()
    low, high = axes.get_ylim()
    assert low < 90.0 < 93.0 < high < 94.0
    lines = [container.lines[0] for container in axes.containers]
    places = [line.get_transform().transform(line.get_xydata())[:, 0] for line in lines]
    return 72 / figure.dpi * np.array(places)


def test_markers_of_a_spread_are_as_near_to_each_other_if_there_are_few() -> None:
    few, many = markers((0.0, 36.0, 1e6)), markers(SIGMAS)
    np.testing.assert_allclose(np.ptp(few, 0), 16 * 2 / 3)
    np.testing.assert_allclose(np.ptp(many, 0), 16 * 2 / 3)
    assert (np.diff(few) > 2 * np.diff(many)[:, :2]).all()
