"""The ColorMNIST experiments in the report: the paper's Figure 2, its samples, and hue curves.

Figures use the colours of Okabe and Ito, which the colour-blind can tell apart; markers and dashes
repeat the distinction.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from equicolor.data import (
    ColorMNIST,
    Digits,
    MissingDataError,
    biased_colormnist,
    data_root,
    load_mnist,
    longtailed_colormnist,
)
from equicolor.data.mnist import EMBEDDED_SOURCE, FULL_SOURCE
from equicolor.evaluation import hue_shifts
from equicolor.evaluation.figures import Curve, hue_panels
from equicolor.paper import colormnist_tables as tables
from equicolor.paper.rows import Findings
from equicolor.paper.variants import REDRAWN, Variant, style
from equicolor.reporting.html import Section
from equicolor.reporting.tables import standard_error
from equicolor.results import Row

LONGTAILED, BIASED = "colormnist-longtailed", "colormnist-biased"
HUE_IMAGES = 30  # test images of each class in the hue sweep of the first seed
_NETWORKS = """Z2CNN is a plain seven-layer network, CECNN the colour-equivariant one with as many
parameters"""
_ABOUT_LONGTAILED = f"""Ten digits in three colours are thirty classes. Some have a hundred
training images, others one or two; the test set has equally many of each. A network that shares
what it learns about a shape between colours can read a rare class from the frequent ones of the
same digit. {_NETWORKS}."""
_ABOUT_BIASED = f"""Every digit has its own hue, and the hue of an image deviates from it by σ
degrees. At σ = 0 the colour gives the class away, at σ = 10⁶ only the shape is left.
{_NETWORKS}; coset pooling makes it invariant to hue."""
_FADED = (1.0, 0.5, 0.3)  # opacity of curves that differ only in the setting
_TINTS = {"red": "#c0392b", "green": "#1e8449", "blue": "#1f4fbf"}

_Points = Mapping[Variant, Mapping[int, Sequence[float]]]  # numbers of all seeds at each place


def show_longtailed(findings: Findings) -> list[Section]:
    """Accuracy of every class (Figure 2a), variants of training, hue curves and samples."""
    rows = findings.of(LONGTAILED)
    if not rows:
        return []
    digits = digits_of(rows)
    # The sizes of the classes are the same for any digits.
    data = longtailed_colormnist(digits or load_mnist(embedded=True), test_per_class=1)
    plain = [row for row in rows if row["augmentation"] == "none" and not row["weighted"]]
    changed = [row for row in rows if row not in plain]
    sections = [
        Section(
            "Accuracy of every class",
            f"{_ABOUT_LONGTAILED}\n\n{tables.headline(rows)}",
            tables.longtailed_table(rows),
            per_class_figure(plain or rows, data),
            f"Bars: training images of a class. Curves: test accuracy. {_bars(rows)} "
            f"Trained on: {_sources(rows)}.",
            LONGTAILED,
        )
    ]
    if plain and changed:
        sections.append(
            Section(
                "With jitter or a weighted loss",
                figure=per_class_figure(changed, data),
                caption="Hue jitter hides the colour, which is part of the class here. "
                + _bars(rows),
                file=f"{LONGTAILED}-variants",
            )
        )
    swept = tables.by_training([row for row in rows if row.get("hue_curve")])
    if curves := {variant: group[0]["hue_curve"] for variant, group in swept.items()}:
        sections.append(
            Section(
                "Shifted hues",
                figure=hue_figure(curves),
                caption="Digits in the colour each was seen most often, shifted to others: how "
                "often a network still reads the digit; the colour it names does not count. First "
                f"seed, {HUE_IMAGES} test images of each.",
                file=f"{LONGTAILED}-hue",
            )
        )
    samples = [data] if digits else []
    return [*sections, _samples(LONGTAILED, rows, "with the number there are", samples)]


def show_biased(findings: Findings) -> list[Section]:
    """Accuracy over the spread of the hue (Figure 2b), gains over the plain network, samples."""
    rows = findings.of(BIASED)
    if not rows:
        return []
    digits, gained, sigmas = digits_of(rows), tables.gains_table(rows), tables.sigmas_of(rows)
    below = " Below: gain over Z2CNN of the same seed, with the standard error."
    sections = [
        Section(
            "Accuracy over the spread of the hue",
            f"{_ABOUT_BIASED}\n\n{tables.headline(rows)}",
            tables.biased_table(rows),
            sigma_figure(rows),
            f"{_bars(rows)}{below if gained.rows else ''} Trained on: {_sources(rows)}.",
            BIASED,
        )
    ]
    if gained.rows:
        sections.append(Section("Compared seed by seed", table=gained))
    some = sorted({sigmas[0], sigmas[len(sigmas) // 2], sigmas[-1]})
    data = [] if digits is None else [biased_colormnist(s, digits, test_size=1) for s in some]
    return [*sections, _samples(BIASED, rows, "for some spreads of the hue", data)]


def _samples(
    experiment: str, rows: Sequence[Row], words: str, data: Sequence[ColorMNIST]
) -> Section:
    """The sheet of training images, or the reason why there is none."""
    title, file = "The images", f"{experiment}-samples"
    if not data:
        missing = f"{_sources(rows)}, is missing or damaged in {data_root()}"
        return Section(title, f"Not drawn: what was trained on, {missing}.", file=file)
    caption = f"The first training images of every class, {words}. Digits: {data[0].source}."
    return Section(title, figure=sample_sheet(data), caption=caption, file=file)


def digits_of(rows: Sequence[Row]) -> Digits | None:
    """The digits that rows were trained on, preferably the full set; None if they are missing."""
    sources = {row["digits"] for row in rows}
    for source in (FULL_SOURCE, EMBEDDED_SOURCE):
        if source in sources:
            try:
                return load_mnist(embedded=source == EMBEDDED_SOURCE)
            except (MissingDataError, ValueError):  # damaged
                continue
    return None


def _sources(rows: Sequence[Row]) -> str:
    return " and ".join(sorted({row["digits"] for row in rows}))


def _bars(rows: Sequence[Row]) -> str:
    several = len({row["seed"] for row in rows}) > 1
    return "Mean over seeds; error bars are one standard deviation." if several else "One seed."


def _styles(variants: Sequence[Variant]) -> dict[Variant, dict[str, Any]]:
    """Styles of the curves of a plot; curves that differ only in the setting are fainter."""
    counts: Counter[Variant] = Counter()
    styles = {}
    for variant in variants:
        alike = variant._replace(setting="")
        styles[variant] = style(variant) | {"alpha": _FADED[min(counts[alike], len(_FADED) - 1)]}
        counts[alike] += 1
    return styles


def per_class_figure(rows: Sequence[Row], data: ColorMNIST) -> Figure:
    """Training images of every class, and the accuracy of every network (paper, Figure 2a).

    Bars are training images, sorted. Curves are means over seeds, with the standard deviation.
    """
    counts = data.class_counts()
    order = torch.argsort(counts, descending=True, stable=True)
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    accuracy = figure.subplots()
    bars = accuracy.twinx()
    bars.bar(range(len(order)), counts[order].numpy(), color="#dddddd", width=0.85)
    bars.set_ylabel("training images (bars)", color="#777777")
    bars.tick_params(axis="y", colors="#777777")
    groups = tables.by_training(rows)
    points = {
        variant: dict(enumerate(np.transpose([row["per_class"] for row in group])[order].tolist()))
        for variant, group in groups.items()
    }
    _draw_curves(accuracy, points, statistics.stdev, spread=10)
    accuracy.set(ylim=(-3, 103), xlim=(-0.7, len(order) - 0.3), ylabel="test accuracy, %")
    accuracy.set_xlabel("class: digit and colour (red, green, blue), by training images")
    names = [data.class_names[index].split() for index in order.tolist()]
    accuracy.set_xticks(range(len(order)), [f"{digit}\n{color[0]}" for digit, color in names])
    for label, (_, color) in zip(accuracy.get_xticklabels(), names, strict=True):
        label.set_color(_TINTS[color])
    # Put the bars behind the curves, although their axes were made later.
    accuracy.set_zorder(bars.get_zorder() + 1)
    accuracy.patch.set_visible(False)
    figure.legend(loc="outside upper center", ncols=min(5, len(groups)), frameon=False)
    return figure


def sigma_figure(rows: Sequence[Row]) -> Figure:
    """Accuracy over the spread of the hue (paper, Figure 2b), and the gain over Z2CNN.

    Above is the mean over seeds with its standard deviation. Below is the mean gain over the plain
    network of the same seed with its standard error, if they share several seeds. Data drawn once
    and data drawn for every seed have a column each.
    """
    sigmas, curves = tables.sigmas_of(rows), tables.curves_of(rows)
    draws = sorted({variant.redrawn for variant in curves})
    above = tables.gains(curves)
    size = (4.5 + 3.5 * len(draws), 7.4 if above else 4.6)
    figure = Figure(figsize=size, layout="constrained")
    heights = (3, 2) if above else (1,)
    grid = figure.subplots(
        len(heights), len(draws), squeeze=False, sharex=True, sharey="row", height_ratios=heights
    )

    def points(curves: Mapping[Variant, tables.Cells], redrawn: bool) -> _Points:
        """The curves of one way to draw data, over the positions of σ on the axis."""
        return {
            variant: {p: list(cells[s].values()) for p, s in enumerate(sigmas) if s in cells}
            for variant, cells in curves.items()
            if variant.redrawn == redrawn
        }

    for column, redrawn in zip(grid.T, draws, strict=True):
        _draw_curves(column[0], points(curves, redrawn), statistics.stdev, spread=16)
        if above:
            _draw_curves(column[1], points(above, redrawn), standard_error, spread=16)
            column[1].axhline(0, color="#d55e00", linewidth=1)
        if redrawn or len(draws) > 1:
            column[0].set_title(REDRAWN if redrawn else "data drawn once for all seeds")
        column[-1].set_xlim(-0.5, len(sigmas) - 0.5)
        column[-1].set_xticks(range(len(sigmas)), [tables.sigma_label(sigma) for sigma in sigmas])
        column[-1].set_xlabel("standard deviation of the hue, degrees")
    for axes, label in zip(grid[:, 0], ("test accuracy, %", "points above Z2CNN"), strict=False):
        axes.set_ylabel(label)
    # A network that is in both columns has one entry in the legend.
    pairs = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in grid[0]]
    handles = {label: handle for column in pairs for handle, label in column}
    figure.legend(list(handles.values()), list(handles), loc="outside right center", frameon=False)
    return figure


def _draw_curves(
    axes: Axes, curves: _Points, error: Callable[[Sequence[float]], float], spread: float
) -> None:
    """Means with error bars; markers of one place stand side by side, ``spread`` points wide."""
    styles = _styles(list(curves))
    figure = axes.get_figure(root=True)
    assert figure is not None
    for index, (variant, points) in enumerate(curves.items()):
        places = list(points)
        means = np.array([statistics.fmean(values) for values in points.values()])
        errors = np.array([error(v) if len(v) > 1 else 0.0 for v in points.values()])
        # In inches: a share of the axis would be wide if there are few places.
        inches = spread * ((index + 0.5) / len(curves) - 0.5) / 72
        axes.errorbar(
            places,
            means,
            errors,
            label=variant._replace(redrawn=False).name,
            linewidth=1.4,
            elinewidth=1,
            capsize=2,
            markersize=5,
            transform=axes.transData + ScaledTranslation(inches, 0, figure.dpi_scale_trans),
            **styles[variant],
        )
        for ends in (
            means - errors,
            means + errors,
        ):  # limits of the axis ignore shifted points
            axes.update_datalim(np.column_stack((places, ends)))
    axes.autoscale_view(scalex=False)
    axes.grid(axis="y", alpha=0.3)


def hue_figure(curves: Mapping[Variant, Sequence[float]]) -> Figure:
    """Accuracy of networks over the hue shift of the test images."""
    styles, lines = _styles(list(curves)), []
    for variant, accuracy in curves.items():
        turns = hue_shifts(len(accuracy)).tolist()
        lines.append(Curve(variant.name, turns, accuracy, style=styles[variant]))
    return hue_panels({"": lines}, width=8.0)


def sample_sheet(datasets: Sequence[ColorMNIST]) -> Figure:
    """The first training images of every class, a row each (paper, appendix B).

    The long-tailed dataset has a panel for each colour, biased ones have one panel each. Rows that
    end early are rare classes; the number of their images stands beside them.
    """
    panels = [(data, *panel) for data in datasets for panel in _panels(data)]
    columns = 36 // len(panels)
    height = (8 / len(panels) - 0.6) * 10 / columns + 0.45
    figure = Figure(figsize=(8, height), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (data, title, classes) in zip(grid, panels, strict=True):
        _draw_samples(axes, data, list(classes), columns)
        size = data.train.images.shape[-1]
        axes.set_title(title, fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([(row + 0.5) * size for row in range(len(classes))], classes.values())
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    return figure


def _panels(data: ColorMNIST) -> list[tuple[str, dict[int, str]]]:
    """The title of each panel, and its classes with their labels."""
    if data.sigma is not None:
        return [(f"σ = {tables.sigma_label(data.sigma)}°", dict(enumerate(data.class_names)))]
    panels: dict[str, dict[int, str]] = {}
    counts = data.class_counts().tolist()
    for index, (name, count) in enumerate(zip(data.class_names, counts, strict=True)):
        digit, color = name.split()
        panels.setdefault(color, {})[index] = f"{digit}  ({count})"
    return list(panels.items())


def _draw_samples(axes: Axes, data: ColorMNIST, classes: Sequence[int], columns: int) -> None:
    images, labels = data.train
    sheet = torch.ones(len(classes), columns, *images.shape[1:])
    for row, label in enumerate(classes):
        members = images[labels == label][:columns]
        sheet[row, : len(members)] = members
    picture = sheet.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    axes.imshow(picture.numpy(), interpolation="antialiased")
