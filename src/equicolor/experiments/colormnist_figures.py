"""Figures of the ColorMNIST experiments: the paper's Figure 2, its samples, and hue curves.

Pure functions from rows of :func:`equicolor.experiments.colormnist.run`, datasets and
accuracies to matplotlib figures. Colours are Okabe and Ito's, which the colour-blind can
tell apart; markers and dashes say the same once more.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from equicolor.data import ColorMNIST
from equicolor.experiments.settings import in_words
from equicolor.reporting.figures import draw_hues

__all__ = [
    "Variant",
    "by_variant",
    "hue_figure",
    "per_class_figure",
    "sample_sheet",
    "sigma_figure",
]

Row = Mapping[str, Any]

_NAMES = {
    "z2cnn": "Z2CNN",
    "z2cnn-gray": "Z2CNN, grey input",
    "cecnn": "CECNN",
    "cecnn-pooled": "CECNN, coset pooling",
    "cecnn-2": "CECNN, 2 layers",
    "cecnn-4": "CECNN, 4 layers",
    "cecnn-hsv6": "CECNN, HSV, n = 6",
    "cecnn-hsv12": "CECNN, HSV, n = 12",
}
_STYLES = {
    "z2cnn": ("#d55e00", "s"),
    "z2cnn-gray": ("#7a7a7a", "v"),
    "cecnn": ("#0072b2", "o"),
    "cecnn-pooled": ("#009e73", "D"),
    "cecnn-2": ("#e69f00", "^"),
    "cecnn-4": ("#cc79a7", "P"),
    "cecnn-hsv6": ("#56b4e9", "h"),
    "cecnn-hsv12": ("#000000", "X"),
}
_SPREAD = 16.0  # points over which the markers of one σ stand side by side
_TINTS = {"red": "#c0392b", "green": "#1e8449", "blue": "#1f4fbf"}


class Variant(NamedTuple):
    """A network and how it was trained: what the rows of one curve have in common.

    Example:
        >>> Variant("cecnn", "jitter 0.5", False).name
        'CECNN + jitter'
    """

    model: str
    augmentation: str
    weighted: bool
    setting: str = ""

    @property
    def name(self) -> str:
        """For legends and tables."""
        jitter = " + jitter" if self.augmentation != "none" else ""
        weighted = " + weighted loss" if self.weighted else ""
        setting = f" ({self.setting})" if self.setting else ""
        return _NAMES.get(self.model, self.model) + jitter + weighted + setting

    @property
    def style(self) -> dict[str, Any]:
        """Colour, marker and dashes of its curve."""
        color, marker = _STYLES.get(self.model, ("#333333", "."))
        changed = self.augmentation != "none" or self.weighted
        return {
            "color": color,
            "marker": marker,
            "linestyle": (":" if self.weighted else "--") if changed else "-",
            "markerfacecolor": "white" if changed else color,
        }


def by_variant(rows: Sequence[Row]) -> dict[Variant, list[Row]]:
    """Rows grouped by network and training, in the paper's order, variants last.

    Where epochs, digits or precision differ among the rows, and where the data were drawn for
    every seed, the ``setting`` of a variant says it.

    Example:
        >>> row = {"model": "z2cnn", "augmentation": "none", "weighted": False, "original": 71.0}
        >>> [len(group) for group in by_variant([row, row]).values()]
        [2]
        >>> [variant.name for variant in by_variant([row | {"epochs": n} for n in (1, 1500)])]
        ['Z2CNN (1 epoch)', 'Z2CNN (1,500 epochs)']
    """
    keys = "epochs", "digits", "precision"
    several = [key for key in keys if len({row.get(key) for row in rows}) > 1]
    groups: dict[Variant, list[Row]] = {}
    for row in rows:
        told = [_told(key, row[key]) for key in several if key in row]
        told += ["data drawn for every seed"] * ("data_seed" in row)
        setting = ", ".join(told)
        variant = Variant(row["model"], row["augmentation"], row["weighted"], setting)
        groups.setdefault(variant, []).append(row)
    known = list(_NAMES)

    def rank(variant: Variant) -> tuple[bool, bool, int]:
        place = known.index(variant.model) if variant.model in known else len(known)
        return variant.weighted, variant.augmentation != "none", place

    return {variant: groups[variant] for variant in sorted(groups, key=rank)}


def _told(key: str, value: Any) -> str:
    return str(value) if key == "digits" else in_words({key: value})


def per_class_figure(rows: Sequence[Row], data: ColorMNIST) -> Figure:
    """Images a class has, and how well every network knows it (paper, Figure 2a).

    Args:
        rows: of the long-tailed experiment.
        data: its dataset, for names and sizes of the classes.

    Returns:
        Bars sorted by size; over them the mean over seeds with its standard deviation.

    Example:
        >>> from equicolor.data import load_mnist, longtailed_colormnist
        >>> data = longtailed_colormnist(load_mnist(embedded=True), test_per_class=1)
        >>> row = {"model": "z2cnn", "augmentation": "none", "weighted": False}
        >>> len(per_class_figure([row | {"per_class": [50.0] * 30}], data).axes)
        2
    """
    counts = data.class_counts()
    order = torch.argsort(counts, descending=True, stable=True)
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    accuracy = figure.subplots()
    bars = accuracy.twinx()
    bars.bar(range(len(order)), counts[order].numpy(), color="#dddddd", width=0.85)
    bars.set_ylabel("training images (bars)", color="#777777")
    bars.tick_params(axis="y", colors="#777777")
    groups = by_variant(rows)
    for index, (variant, group) in enumerate(groups.items()):
        values = np.array([row["per_class"] for row in group])[:, order.numpy()]
        # Curves stand side by side within a class, so that their error bars can be told apart.
        shift = 0.5 * ((index + 0.5) / len(groups) - 0.5)
        accuracy.errorbar(
            np.arange(len(order)) + shift,
            values.mean(0),
            values.std(0, ddof=1) if len(values) > 1 else None,
            label=variant.name,
            linewidth=1,
            elinewidth=0.8,
            markersize=4,
            **variant.style,
        )
    accuracy.set(ylim=(-3, 103), xlim=(-0.7, len(order) - 0.3), ylabel="test accuracy, %")
    accuracy.set_xlabel("class: digit and colour (red, green, blue), by training images")
    names = [data.class_names[index].split() for index in order.tolist()]
    accuracy.set_xticks(range(len(order)), [f"{digit}\n{color[0]}" for digit, color in names])
    for label, (_, color) in zip(accuracy.get_xticklabels(), names, strict=True):
        label.set_color(_TINTS[color])
    # The bars belong behind the curves, though their axes were made later.
    accuracy.set_zorder(bars.get_zorder() + 1)
    accuracy.patch.set_visible(False)
    accuracy.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=min(5, len(groups)), frameon=False)
    return figure


def sigma_figure(rows: Sequence[Row]) -> Figure:
    """Accuracy over the spread of the hue (paper, Figure 2b), mean ± deviation over seeds.

    Args:
        rows: of the biased experiment.

    Example:
        >>> row = {"model": "z2cnn", "augmentation": "none", "weighted": False}
        >>> rows = [row | {"sigma": sigma, "original": 90.0} for sigma in (0.0, 12.0)]
        >>> len(sigma_figure(rows).axes[0].get_xticks())
        2
    """
    sigmas = sorted({row["sigma"] for row in rows})
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    groups = by_variant(rows)
    for index, (variant, group) in enumerate(groups.items()):
        found = [[row["original"] for row in group if row["sigma"] == sigma] for sigma in sigmas]
        known = [position for position, values in enumerate(found) if values]
        means = np.array([statistics.fmean(found[position]) for position in known])
        deviations = np.array(
            [statistics.stdev(v) if len(v := found[position]) > 1 else 0.0 for position in known]
        )
        # In points, for a share of the axis would be wide where there are few σ.
        inches = _SPREAD * ((index + 0.5) / len(groups) - 0.5) / 72
        axes.errorbar(
            known,
            means,
            deviations,
            label=variant.name,
            linewidth=1.4,
            elinewidth=1,
            capsize=2,
            markersize=5,
            transform=axes.transData + ScaledTranslation(inches, 0, figure.dpi_scale_trans),
            **variant.style,
        )
        for ends in (means - deviations, means + deviations):  # which the shift hides from the axis
            axes.update_datalim(np.column_stack((known, ends)))
    axes.autoscale_view(scalex=False)
    axes.set_xlim(-0.5, len(sigmas) - 0.5)
    axes.set_xticks(range(len(sigmas)), [_sigma_label(sigma) for sigma in sigmas])
    axes.set(xlabel="standard deviation of the hue, degrees", ylabel="test accuracy, %")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    return figure


def _sigma_label(sigma: float) -> str:
    return f"{sigma:g}" if sigma < 1e5 else f"$10^{{{np.log10(sigma):.0f}}}$"


def hue_figure(turns: Sequence[float], curves: Mapping[str, Sequence[float]]) -> Figure:
    """Accuracy against the hue shift of the test images.

    Args:
        turns: the shifts.
        curves: accuracy of each model at each of them, in percent.

    Example:
        >>> len(hue_figure([-0.5, 0.0, 0.5], {"z2cnn": [20.0, 70.0, 20.0]}).axes)
        2
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes, strip = figure.subplots(2, 1, height_ratios=(12, 1), sharex=True)
    degrees = [360 * turn for turn in turns]
    for model, accuracy in curves.items():
        style = Variant(model, "none", False).style
        name = _NAMES.get(model, model)
        axes.plot(degrees, accuracy, label=name, linewidth=2, markersize=4, **style)
    axes.set(ylim=(0, 103), ylabel="accuracy, %")
    axes.grid(alpha=0.3)
    draw_hues(strip)
    strip.set_xticks(range(-180, 181, 60))
    strip.set_xlabel("hue shift of the test images, degrees; the strip shows what becomes of red")
    strip.set_xlim(-180, 180)
    figure.legend(loc="outside upper center", ncols=len(curves), frameon=False)
    return figure


class _Panel(NamedTuple):
    title: str
    data: ColorMNIST
    classes: list[int]
    labels: list[str]


def sample_sheet(datasets: Sequence[ColorMNIST], *, columns: int | None = None) -> Figure:
    """The first training images of every class, a row each (paper, appendix B).

    Args:
        datasets: the long-tailed one, which gets a panel a colour, or some biased ones,
            which get a panel each.
        columns: images in a row at most; as many as fit by default.

    Returns:
        Rows that end early belong to rare classes; their size stands beside them.

    Example:
        >>> from equicolor.data import biased_colormnist, load_mnist
        >>> data = biased_colormnist(12.0, load_mnist(embedded=True), test_size=10)
        >>> len(sample_sheet([data], columns=4).axes)
        1
    """
    panels = [panel for data in datasets for panel in _panels(data)]
    columns = 36 // len(panels) if columns is None else columns
    height = (8 / len(panels) - 0.6) * len(panels[0].classes) / columns + 0.45
    figure = Figure(figsize=(8, height), layout="constrained")
    for panel, axes in zip(panels, np.atleast_1d(figure.subplots(1, len(panels))), strict=True):
        _draw_panel(axes, panel, columns)
    return figure


def _panels(data: ColorMNIST) -> list[_Panel]:
    if data.sigma is not None:
        title = f"σ = {_sigma_label(data.sigma)}"
        return [_Panel(title, data, list(range(10)), list(data.class_names))]
    colors = list(dict.fromkeys(name.split()[1] for name in data.class_names))
    counts = data.class_counts()
    panels = []
    for index, color in enumerate(colors):
        classes = list(range(index, data.num_classes, len(colors)))
        names = [f"{data.class_names[c].split()[0]}  ({counts[c]})" for c in classes]
        panels.append(_Panel(color, data, classes, names))
    return panels


def _draw_panel(axes: Axes, panel: _Panel, columns: int) -> None:
    size = panel.data.train.images.shape[-1]
    sheet = torch.ones(3, len(panel.classes) * size, columns * size)
    for row, label in enumerate(panel.classes):
        members = panel.data.train.images[panel.data.train.labels == label][:columns]
        for column, image in enumerate(members):
            sheet[:, row * size : (row + 1) * size, column * size : (column + 1) * size] = image
    axes.imshow(sheet.permute(1, 2, 0).numpy(), interpolation="antialiased")
    axes.set_title(panel.title, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([(row + 0.5) * size for row in range(len(panel.classes))], panel.labels)
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.spines[:].set_visible(False)
