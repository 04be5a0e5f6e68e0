"""Hue curves: accuracy against the hue shift, every curve labelled where it ends.

Pure functions from numbers to matplotlib figures, with the colours of Okabe and Ito, which
the colour-blind can tell apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equicolor.evaluation.evaluate import Evaluation
from equicolor.models.facts import network_title
from equicolor.reporting.figures import as_it_is, draw_hues

__all__ = ["ACTION_NAMES", "Curve", "evaluation_figure", "hue_panels", "spread"]

ACTION_NAMES = {"hsv": "HSV shift", "rgb": "RGB rotation", "rgb-clip": "RGB rotation, clipped"}
_ACTION_STYLES = {
    "hsv": {"color": "#0072b2", "marker": "o"},
    "rgb": {"color": "#d55e00", "marker": "s"},
    "rgb-clip": {"color": "#009e73", "marker": "D"},
}
_FONT = 9  # points
_TICKS = range(-180, 181, 60)


@dataclass(frozen=True)
class Curve:
    """Accuracy over the hue shift."""

    label: str  # written at its right end
    turns: Sequence[float]
    accuracy: Sequence[float]  # in percent
    deviation: Sequence[float] = ()  # over seeds, drawn as a band
    style: Mapping[str, Any] = field(default_factory=dict)  # as matplotlib's plot takes it


def hue_panels(panels: Mapping[str, Sequence[Curve]], *, width: float = 6.6) -> Figure:
    """Panels of hue curves by their title, two in a row, over strips that show what becomes of red.

    ``width`` is that of a panel with its labels, in inches.
    """
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(width * columns, 4.1 * lines + 0.3), layout="constrained")
    grid = figure.subplots(2 * lines, columns, height_ratios=(14, 1) * lines, squeeze=False)
    top = max(max(curve.accuracy) for curves in panels.values() for curve in curves)
    for index, (title, curves) in enumerate(panels.items()):
        line, column = divmod(index, columns)
        axes, strip = grid[2 * line : 2 * line + 2, column]
        axes.set(xlim=(-180, 180), ylim=(0, min(103.0, top + 6)))
        axes.set_title(as_it_is(title), fontsize=10)
        axes.grid(alpha=0.3)
        axes.set_xticks(_TICKS, [])
        if column == 0:
            axes.set_ylabel("test accuracy, %")
        _draw_curves(axes, curves)
        draw_hues(strip)
        strip.set_xticks(_TICKS)
    for unused in range(len(panels), lines * columns):
        line, column = divmod(unused, columns)
        for axes in grid[2 * line : 2 * line + 2, column]:
            axes.remove()
    figure.supxlabel(
        "hue shift of the test images, degrees; the strip shows what becomes of red", fontsize=10
    )
    return figure


def _draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve in curves:
        degrees, accuracy = 360 * np.asarray(curve.turns), np.asarray(curve.accuracy)
        style = {"linewidth": 1.6, "markersize": 3.5, "markevery": 3, **curve.style}
        axes.plot(degrees, accuracy, **style)
        if len(curve.deviation):
            band = np.asarray(curve.deviation)
            axes.fill_between(
                degrees, accuracy - band, accuracy + band, color=style.get("color"), alpha=0.15,
                linewidth=0,
            )  # fmt: skip
    low, high = axes.get_ylim()
    # Labels need their height in units of the axis, which has some 250 points here.
    gap = 1.25 * _FONT * (high - low) / 250
    ends = [curve.accuracy[-1] for curve in curves]
    for curve, end, place in zip(curves, ends, spread(ends, gap), strict=True):
        color = curve.style.get("color", "#333333")
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.6}
        axes.annotate(
            as_it_is(curve.label),
            xy=(360 * curve.turns[-1], end),
            xytext=(194, place),
            color=color,
            fontsize=_FONT,
            verticalalignment="center",
            annotation_clip=False,
            # From the left end of the label: from its middle, it would cross the one beside it.
            arrowprops=line | {"shrinkA": 0, "relpos": (0, 0.5)},
        )


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """The nearest positions in the same order that are at least ``gap`` apart.

    Nearest by the sum of squares: neighbours that are too close move apart around their mean.
    """
    from scipy.optimize import isotonic_regression  # takes half a second to import

    order = np.argsort(positions, kind="stable")
    gaps = gap * np.arange(len(order))
    placed = np.empty(len(order))
    placed[order] = isotonic_regression(np.asarray(positions)[order] - gaps).x + gaps
    return placed.tolist()


def evaluation_figure(evaluation: Evaluation) -> Figure:
    """The hue curves of one network, one for each action that was swept."""
    # Labelled at its end like the others: a label on a flat curve could not be read.
    style = {"color": "#555555", "linestyle": ":", "linewidth": 1.2}
    label = f"original images: {evaluation.original:.1f}"
    curves = [Curve(label, [-0.5, 0.5], [evaluation.original] * 2, style=style)]
    for place, (action, sweep) in enumerate(evaluation.sweeps.items()):
        order = sweep.shifts.argsort(stable=True)
        curves.append(
            Curve(
                f"{ACTION_NAMES[action]}, mean {sweep.mean:.1f}",
                sweep.shifts[order].tolist(),
                sweep.accuracy[order].tolist(),
                # Curves may lie on each other: every one has markers of its own.
                style=_ACTION_STYLES[action] | {"markevery": (place, 3)},
            )
        )
    return hue_panels({network_title(evaluation.facts): curves}, width=7.4)
