"""Figures of the toy experiments: which digits they show, and where markers stand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tests.paper.colormnist_rows import Row, biased_rows, longtailed_rows

from equicolor.data import (
    Digits,
    MissingDataError,
    biased_colormnist,
    load_mnist,
    longtailed_colormnist,
)
from equicolor.paper import colormnist_results
from equicolor.paper.colormnist import MODELS, SIGMAS
from equicolor.paper.colormnist_results import per_class_figure, sample_sheet, sigma_figure
from equicolor.paper.colormnist_tables import sigma_label
from equicolor.paper.rows import Findings
from equicolor.paper.variants import Variant, style
from equicolor.reporting.figures import png
from equicolor.reporting.html import Section

BIASED, LONGTAILED = "colormnist-biased", "colormnist-longtailed"


def shown(rows: list[Row]) -> dict[str, Section]:
    """The sections of an experiment by the files of their figures."""
    experiment = rows[0]["dataset"]
    show = {
        LONGTAILED: colormnist_results.show_longtailed,
        BIASED: colormnist_results.show_biased,
    }[experiment]
    return {section.file: section for section in show(Findings({experiment: rows}))}


@pytest.fixture
def without_mnist(digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*, embedded: bool) -> Digits:
        if not embedded:
            raise MissingDataError("no MNIST")
        return digits

    monkeypatch.setattr(colormnist_results, "load_mnist", load)


def test_the_digits_are_those_of_the_rows(digits: Digits, without_mnist: None) -> None:
    quick = biased_rows(digits=digits.source)
    assert colormnist_results.digits_of(quick) is digits
    assert colormnist_results.digits_of([*biased_rows(), *quick]) is digits
    assert colormnist_results.digits_of(biased_rows()) is None
    assert colormnist_results.digits_of(biased_rows(digits="others")) is None


def test_damaged_digits_count_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for split in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (tmp_path / "MNIST" / "raw" / f"{split}-{kind}-ubyte").write_bytes(b"no idx")
    with pytest.raises(ValueError, match="is damaged"):
        load_mnist(embedded=False)
    assert colormnist_results.digits_of(biased_rows()) is None


def test_samples_of_digits_that_are_not_there_are_not_drawn(without_mnist: None) -> None:
    sections = shown(biased_rows())
    assert list(sections) == [BIASED, "", f"{BIASED}-samples"]
    samples = sections[f"{BIASED}-samples"]
    assert samples.figure is None
    assert samples.text.startswith(
        "Not drawn: what was trained on, MNIST, full, is missing or damaged in "
    )


def test_sizes_of_classes_are_known_without_the_digits(digits: Digits, without_mnist: None) -> None:
    sections = shown(longtailed_rows())
    drawn = {file: section.figure for file, section in sections.items() if section.figure}
    assert list(drawn) == [LONGTAILED, f"{LONGTAILED}-variants"]
    counts = longtailed_colormnist(digits, test_per_class=1).class_counts()
    heights = [bar.get_height() for bar in drawn[LONGTAILED].axes[1].patches]
    assert heights == sorted(counts.tolist(), reverse=True)


def markers(sigmas: tuple[float, ...]) -> np.ndarray:
    """Where the markers of each curve are, in points from the left."""
    chosen = [row for row in biased_rows() if row["sigma"] in sigmas]
    figure = sigma_figure(chosen)
    axes = figure.axes[0]
    figure.draw_without_rendering()
    low, high = axes.get_ylim()
    assert low < 90.0 < 93.0 < high < 94.0
    lines = [container.lines[0] for container in axes.containers]
    places = [line.get_transform().transform(line.get_xydata())[:, 0] for line in lines]
    return 72 / figure.dpi * np.array(places)


@pytest.mark.slow
def test_markers_of_one_place_are_equally_near_if_there_are_few_places() -> None:
    few, many = markers((0.0, 36.0, 1e6)), markers(SIGMAS)
    np.testing.assert_allclose(np.ptp(few, 0), 16 * 2 / 3)
    np.testing.assert_allclose(np.ptp(many, 0), 16 * 2 / 3)
    assert (np.diff(few) > 2 * np.diff(many)[:, :2]).all()


def drawn(axes: Axes) -> dict[str, dict[float, float]]:
    """Height of every marker of each curve, by the curve's colour and place of its σ."""
    lines = [container.lines[0] for container in axes.containers]
    return {line.get_color(): dict(zip(*line.get_data(), strict=True)) for line in lines}


def test_gains_are_over_the_plain_network_of_the_same_seed() -> None:
    known = biased_rows()
    for row in known:
        if row["model"] == "cecnn":
            row["original"] += 0.5 * row["seed"] + (row["sigma"] == 24)
    # A third seed that only one of them has must not count.
    known.append(known[0] | {"seed": 2, "original": 0.0})
    accuracy, gains = sigma_figure(known).axes
    assert len(drawn(accuracy)) == 3
    ((color, heights),) = drawn(gains).items()
    assert color == style(Variant("other", "cecnn"))["color"]
    assert heights == pytest.approx({place: 1.25 + (place == 2) for place in range(7)})
    ends = gains.containers[0].lines[2][0].get_segments()[0]
    assert np.ptp(ends[:, 1]) == pytest.approx(2 * 0.25)  # seeds gain 1 and 1.5


def without_gains() -> list[list[Row]]:
    rows = biased_rows()
    return [
        [row for row in rows if row["model"] != "z2cnn"],
        [row | {"augmentation": "jitter 0.5"} for row in rows],
        [row for row in rows if row["seed"] == 0],
        [row | {"seed": row["seed"] + 2 * (row["model"] == "z2cnn")} for row in rows],
    ]


@pytest.mark.parametrize("rows", without_gains(), ids=["alone", "jitter", "one", "other seeds"])
def test_there_are_no_gains_without_seeds_of_the_plain_network(rows: list[Row]) -> None:
    assert len(sigma_figure(rows).axes) == 1
    sections = shown(rows)
    assert "Below" not in sections[BIASED].caption
    assert "" not in sections  # the table of gains


def test_hue_curves_of_rows_are_shown(without_mnist: None) -> None:
    first, *others = longtailed_rows()
    swept = [first | {"hue_curve": [50.0] * 37}, *others]
    (line,) = shown(swept)[f"{LONGTAILED}-hue"].figure.axes[0].get_lines()
    assert set(line.get_ydata()) == {50.0}


def test_hue_curves_of_two_precisions_are_both_shown(without_mnist: None) -> None:
    rows = [
        row | {"precision": precision, "hue_curve": [height] * 37}
        for precision, height in (("bfloat16", 50.0), ("float32", 60.0))
        for row in longtailed_rows()[:1]
    ]
    one, two = shown(rows)[f"{LONGTAILED}-hue"].figure.axes[0].get_lines()
    assert {*one.get_ydata(), *two.get_ydata()} == {50.0, 60.0}


def test_gains_have_a_caption_and_a_table(without_mnist: None) -> None:
    sections = shown(biased_rows())
    assert "Below" in sections[BIASED].caption
    assert sections[""].table is not None


def test_a_single_run_is_not_among_the_gains() -> None:
    single = [
        row | {"model": "cecnn-hsv6"}
        for row in biased_rows()
        if row["model"] == "cecnn" and row["seed"] == 0
    ]
    accuracy, gains = sigma_figure([*biased_rows(), *single]).axes
    assert (len(drawn(accuracy)), len(drawn(gains))) == (4, 1)


def test_curves_of_two_settings_can_be_told_apart() -> None:
    rows = [*biased_rows(precision="float32"), *biased_rows(precision="bfloat16")]
    looks = [
        (line.get_color(), line.get_alpha())
        for line in (container.lines[0] for container in sigma_figure(rows).axes[0].containers)
    ]
    assert len(set(looks)) == len(looks) == 6


@pytest.mark.parametrize(
    ("sigmas", "sheets"),
    [(SIGMAS, [0.0, 36.0, 1e6]), ((24.0,), [24.0]), ((24.0, 0.0), [0.0, 24.0])],
)
def test_samples_are_of_the_spreads_that_rows_have(
    digits: Digits, without_mnist: None, sigmas: tuple[float, ...], sheets: list[float]
) -> None:
    rows = [row for row in biased_rows(digits=digits.source) if row["sigma"] in sigmas]
    figure = shown(rows)[f"{BIASED}-samples"].figure
    assert isinstance(figure, Figure)
    assert [axes.get_title() for axes in figure.axes] == [f"σ = {sigma_label(s)}°" for s in sheets]


def test_data_drawn_for_every_seed_have_their_own_column() -> None:
    redrawn = [row | {"data_seed": row["seed"], "original": 50.0} for row in biased_rows()]
    chosen = [row for row in redrawn if row["model"] != "z2cnn-gray"]
    figure = sigma_figure([*biased_rows(), *chosen])
    one, each, gains, none = figure.axes
    assert [axes.get_title() for axes in figure.axes] == [
        "data drawn once for all seeds", "data drawn for every seed", "", "",
    ]  # fmt: skip
    assert (len(drawn(one)), len(drawn(each))) == (3, 2)
    assert set(drawn(each)[style(Variant("other", "cecnn"))["color"]].values()) == {50.0}
    assert set(*map(dict.values, drawn(gains).values())) == {1.0}
    assert set(*map(dict.values, drawn(none).values())) == {0.0}
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["Z2CNN", "Z2CNN, grey input", "CECNN"]
    (alone, _) = sigma_figure(chosen).axes
    assert alone.get_title() == "data drawn for every seed"


@pytest.mark.slow
def test_per_class_figure_sorts_by_size(digits: Digits) -> None:
    data = longtailed_colormnist(digits, test_per_class=1)
    marked = [dict(row, per_class=data.class_counts().tolist()) for row in longtailed_rows()]
    figure = per_class_figure(marked, data)
    accuracy, bars = figure.axes
    heights = [bar.get_height() for bar in bars.patches]
    assert heights == sorted(data.class_counts().tolist(), reverse=True)
    assert sum(heights) == 1514
    # Accuracies were set to the sizes: every curve must fall with the bars.
    for container in accuracy.containers:
        assert list(container.lines[0].get_ydata()) == heights
    labels = [label.get_text() for label in accuracy.get_xticklabels()]
    assert labels[0] == "4\nb"  # blue fours are the most frequent
    assert len(set(labels)) == 30
    assert len(png(figure)) < 150_000


def test_sigma_figure_has_categories() -> None:
    figure = sigma_figure(biased_rows())
    axes = figure.axes[0]
    labels = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert labels == ["0", "12", "24", "36", "48", "60", "10⁶"]
    assert [len(container.lines[0].get_xdata()) for container in axes.containers] == [7, 7, 7]
    assert len(png(figure)) < 150_000
    few = [row for row in biased_rows() if row["seed"] == 0 and row["sigma"] != 12]
    assert len(sigma_figure(few).axes[0].get_xticks()) == 6


@pytest.mark.slow
def test_sample_sheets(digits: Digits) -> None:
    longtailed = longtailed_colormnist(digits, test_per_class=1)
    sheet = sample_sheet([longtailed])
    assert [axes.get_title() for axes in sheet.axes] == ["red", "green", "blue"]
    assert [label.get_text() for label in sheet.axes[0].get_yticklabels()][5] == "5  (1)"
    picture = sheet.axes[0].images[0].get_array()
    first = longtailed.train.images[longtailed.train.labels == 15][0]  # the only red five
    five = picture[5 * 28 : 6 * 28]
    assert torch.equal(torch.tensor(five[:, :28]), first.permute(1, 2, 0))
    assert (five[:, 28:] == 1).all()
    assert len(png(sheet)) < 150_000
    biased = [biased_colormnist(sigma, digits, test_size=1) for sigma in (0.0, 36.0, 1e6)]
    sheet = sample_sheet(biased)
    assert [axes.get_title() for axes in sheet.axes] == ["σ = 0°", "σ = 36°", "σ = 10⁶°"]
    assert len(png(sheet)) < 150_000


def test_jittered_and_plain_curves_can_be_told_apart() -> None:
    styles = [
        tuple(sorted(style(Variant("other", model, augmentation=augmentation)).items()))
        for model in MODELS
        for augmentation in ("none", "jitter 0.5", "weighted loss")
    ]
    assert len(set(styles)) == len(styles)
