"""Curves of accuracy over the hue shift, or over another action, labelled at their right ends.

Pure functions from numbers to matplotlib figures, with the colours of Okabe and Ito, which
the colour-blind can tell apart.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equicolor.evaluation.actions import ACTIONS, HUE_ACTIONS, action_named
from equicolor.evaluation.evaluate import Evaluation
from equicolor.evaluation.hue_sweep import HueSweep
from equicolor.models.facts import network_title
from equicolor.reporting.figures import literal

ACTION_NAMES = {name: action_named(name).label for name in ACTIONS}
_ACTION_STYLES = {
    "hsv": {"color": "#0072b2", "marker": "o"},
    "rgb": {"color": "#d55e00", "marker": "s"},
    "rgb-clip": {"color": "#009e73", "marker": "D"},
}
_FONT = 9  # points
_LETTERS = 36  # of a line of a label
# Seven colours and four kinds of dashes make 28 styles.
_COLORS = ("#d55e00", "#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#000000", "#e69f00")
_DASHES = ("-", "--", "-.", ":")
_MARKERS = "osD^vPX"
_MARKER_STEP = 7  # points from marker to marker


@dataclass(frozen=True)
class Curve:
    """Accuracy over the hue shift, or over the values of another action."""

    label: str  # written at its right end
    values: Sequence[float]  # turns, or in the unit of the action
    accuracy: Sequence[float]  # in percent
    deviation: Sequence[float] = ()  # over seeds, drawn as a band
    style: Mapping[str, Any] = field(default_factory=dict)  # options of matplotlib's plot


@dataclass(frozen=True)
class _Axis:
    """The horizontal axis of a panel, and the strip below it."""

    action: str  # decides the range and the strip
    label: str
    color: tuple[float, float, float] | None  # the strip shows it after the action; None: no strip
    ticks: Sequence[float]  # as values
    place: Callable[[Any], Any] = np.asarray  # from values to coordinates
    show: Callable[[float], str] = "{:g}".format  # from the coordinate of a tick to its text

    def range_of(self, curves: Sequence[Curve]) -> tuple[float, float]:
        """The range of the action, and beyond if curves go further."""
        action = action_named(self.action)
        ends = [action.low, action.high, *(value for curve in curves for value in curve.values)]
        return min(ends), max(ends)

    def draw_strip(self, axes: Axes, low: float, high: float) -> None:
        axes.set_yticks([])
        if self.color is None:
            axes.spines[:].set_visible(False)
            return
        action = replace(action_named(self.action), low=low, high=high)
        change = action.change(torch.tensor(self.color).float().view(1, 3, 1, 1))
        colors = torch.stack([change(value).flatten() for value in action.spaced(180).float()])
        left, right = self.place((low, high)).tolist()
        axes.imshow(colors[None].numpy(), extent=(left, right, 0, 1), aspect="auto")


def _degrees(turns: Any) -> Any:
    return 360 * np.asarray(turns)


_TURNS = tuple(step / 6 for step in range(-3, 4))
_GRAY = (0.5, 0.5, 0.5)
_HUE_AXIS = _Axis(
    "hsv",
    "hue shift of the test images, degrees; the strip shows what becomes of red",
    (1, 0, 0),
    _TURNS,
    _degrees,
)
_OTHER_AXES = (
    _Axis(
        "cast",
        "hue of the light on the test images, degrees; the strip shows what becomes of grey",
        _GRAY,
        _TURNS,
        _degrees,
    ),
    _Axis(
        "gamma",
        "gamma of the test images; the strip shows what becomes of grey",
        _GRAY,
        (0.5, 0.7, 1, 1.4, 2),
        np.log2,
        lambda place: f"{2**place:.2g}",
    ),
    _Axis(
        "brightness",
        "exposure of the test images, stops; the strip shows what becomes of grey",
        _GRAY,
        range(-2, 3),
    ),
    _Axis(
        "saturation",
        "factor of the test images' saturation; the strip shows what becomes of a red",
        (0.7, 0.35, 0.35),
        (0, 0.5, 1, 1.5, 2),
    ),
    _Axis(
        "turn",
        "turn of the test images, and of their mirror images",
        None,
        range(8),
        show=lambda element: action_named("turn").show(float(element)).replace(", ", "\n"),
    ),
)
_AXES = dict.fromkeys(HUE_ACTIONS, _HUE_AXIS) | {axis.action: axis for axis in _OTHER_AXES}


@dataclass(frozen=True)
class _Panel:
    title: str
    curves: Sequence[Curve]
    axis: _Axis


def hue_panels(panels: Mapping[str, Sequence[Curve]], *, width: float = 6.6) -> Figure:
    """Panels of hue curves by title, two in a row; strips below show what becomes of red.

    ``width`` is that of a panel with its labels, in inches.
    """
    return _draw([_Panel(title, curves, _HUE_AXIS) for title, curves in panels.items()], width)


def action_panels(curves: Mapping[str, Sequence[Curve]], *, width: float = 6.6) -> Figure:
    """One panel per action, with its curves."""
    panels = [_Panel(ACTION_NAMES[name], each, _AXES[name]) for name, each in curves.items()]
    return _draw(panels, width)


def curve_style(index: int) -> dict[str, Any]:
    """The style of one of many curves; markers of equal curves do not coincide."""
    return {
        "color": _COLORS[index % len(_COLORS)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "marker": _MARKERS[(index + index // len(_COLORS)) % len(_MARKERS)],
        "markevery": (index % _MARKER_STEP, _MARKER_STEP),
    }


def sweep_curve(sweep: HueSweep, name: str, style: Mapping[str, Any]) -> Curve:
    """The curve of a sweep, with its mean in the label."""
    order = sweep.shifts.argsort(stable=True)
    values, accuracy = sweep.shifts[order].tolist(), sweep.accuracy[order].tolist()
    return Curve(f"{name}, mean {sweep.mean:.1f}", values, accuracy, style=style)


def plot_sweep(sweep: HueSweep, axes: Axes | None = None, *, label: str | None = None) -> Axes:
    """Draw the curve of a sweep; see :meth:`equicolor.evaluation.HueSweep.plot`."""
    axis = _AXES[sweep.action]
    xlabel = axis.label.partition(";")[0]  # there is no strip here
    if axes is None:
        from matplotlib import pyplot  # not above: it chooses a window system

        _, axes = pyplot.subplots(figsize=(6.6, 4.1), layout="constrained")
    elif axes.get_xlabel() not in ("", xlabel):
        raise ValueError(f"these axes show {axes.get_xlabel()!r}, but the sweep is over {xlabel!r}")
    name = ACTION_NAMES[sweep.action] if label is None else label
    style = curve_style(len(axes.get_lines()) // 2)
    curve = sweep_curve(sweep, name, style)
    ends, ticks = axis.place(axis.range_of([curve])), axis.place(axis.ticks)
    if axes.get_lines():  # earlier curves may go further
        ends = np.append(ends, axes.get_xlim())
    text = literal(curve.label)
    axes.plot(axis.place(curve.values), curve.accuracy, label=text, markersize=3.5, **style)
    axes.axhline(sweep.original, color=style["color"], linestyle=":", linewidth=1)
    axes.set(xlim=(min(ends), max(ends)), ylim=(0, 103), xlabel=xlabel, ylabel="accuracy, %")
    axes.set_xticks(ticks, [axis.show(tick) for tick in ticks])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=_FONT)
    return axes


def _draw(panels: Sequence[_Panel], width: float) -> Figure:
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(width * columns, 4.1 * lines + 0.3), layout="constrained")
    grid = figure.subplots(2 * lines, columns, height_ratios=(14, 1) * lines, squeeze=False)
    top = max(max(curve.accuracy) for panel in panels for curve in panel.curves)
    shared = len({panel.axis.label for panel in panels}) == 1
    for index, panel in enumerate(panels):
        line, column = divmod(index, columns)
        axes, strip = grid[2 * line : 2 * line + 2, column]
        axis = panel.axis
        ends, ticks = axis.range_of(panel.curves), axis.place(axis.ticks)
        axes.set(xlim=axis.place(ends), ylim=(0, min(103.0, top + 6)))
        axes.set_title(literal(panel.title), fontsize=10)
        axes.grid(alpha=0.3)
        axes.set_xticks(ticks, [])
        if column == 0:
            axes.set_ylabel("test accuracy, %")
        _draw_curves(axes, panel.curves, axis)
        axis.draw_strip(strip, *ends)
        strip.set_xticks(ticks, [axis.show(tick) for tick in ticks])
        if not shared:
            strip.set_xlabel(axis.label, fontsize=9)
    for unused in range(len(panels), lines * columns):
        line, column = divmod(unused, columns)
        for axes in grid[2 * line : 2 * line + 2, column]:
            axes.remove()
    if shared:
        figure.supxlabel(panels[0].axis.label, fontsize=10)
    return figure


def _draw_curves(axes: Axes, curves: Sequence[Curve], axis: _Axis) -> None:
    for curve in curves:
        places, accuracy = axis.place(curve.values), np.asarray(curve.accuracy)
        style = {"linewidth": 1.6, "markersize": 3.5, "markevery": 3, **curve.style}
        if action_named(axis.action).whole:  # there is nothing between its few values
            style["markevery"] = 1
        axes.plot(places, accuracy, **style)
        if len(curve.deviation):
            band = np.asarray(curve.deviation)
            axes.fill_between(
                places, accuracy - band, accuracy + band, color=style.get("color"), alpha=0.15,
                linewidth=0,
            )  # fmt: skip
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    labels = [
        "\n".join(map(literal, textwrap.wrap(curve.label, _LETTERS))) for curve in curves
    ]  # fmt: skip
    # The height of a line in units of the axis, which is about 250 points high.
    height = 1.25 * _FONT * (high - low) / 250
    ends = [curve.accuracy[-1] for curve in curves]
    middles = spread(ends, [height * (1 + label.count("\n")) for label in labels])
    for curve, label, end, middle in zip(curves, labels, ends, middles, strict=True):
        color = curve.style.get("color", "#333333")
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.6}
        axes.annotate(
            label,
            xy=(axis.place(curve.values)[-1], end),
            xytext=(right + 0.04 * (right - left), middle),
            color=color,
            fontsize=_FONT,
            linespacing=1.0,
            verticalalignment="center",
            annotation_clip=False,
            # From the left end of the label: from its middle, lines would cross other labels.
            arrowprops=line | {"shrinkA": 0, "relpos": (0, 0.5)},
        )


def spread(positions: Sequence[float], heights: Sequence[float]) -> list[float]:
    """The nearest positions in the same order for things that do not overlap.

    Nearest in least squares: neighbours that are too close move apart around their mean.
    """
    from scipy.optimize import isotonic_regression  # takes half a second to import

    order = np.argsort(positions, kind="stable")
    sizes = np.asarray(heights)[order]
    gaps = sizes.cumsum() - sizes / 2
    placed = np.empty(len(order))
    placed[order] = isotonic_regression(np.asarray(positions)[order] - gaps).x + gaps
    return placed.tolist()


def evaluation_figure(evaluation: Evaluation) -> Figure:
    """The curves of one network: all hue shifts in one panel, each other action in its own."""
    groups = [[action for action in evaluation.sweeps if action in HUE_ACTIONS]]
    groups += [[action] for action in evaluation.sweeps if action not in HUE_ACTIONS]
    panels = [_panel(evaluation, actions) for actions in groups if actions]
    title = network_title(evaluation.facts)
    if len(panels) == 1:
        return _draw([replace(panels[0], title=title)], 7.4)
    figure = _draw(panels, 7.4)
    figure.suptitle(literal(title), fontsize=11)
    return figure


def _panel(evaluation: Evaluation, actions: Sequence[str]) -> _Panel:
    """The curves of actions that share an axis, and the accuracy on the original images."""
    curves = []
    for place, action in enumerate(actions):
        # Curves may coincide, so their markers alternate.
        style = _ACTION_STYLES.get(action, _ACTION_STYLES["hsv"]) | {"markevery": (place, 3)}
        curves.append(sweep_curve(evaluation.sweeps[action], ACTION_NAMES[action], style))
    axis = _AXES[actions[0]]
    dotted = {"color": "#555555", "linestyle": ":", "linewidth": 1.2}
    label = f"original images: {evaluation.original:.1f}"
    original = Curve(label, axis.range_of(curves), [evaluation.original] * 2, style=dotted)
    title = "hue shifts" if axis is _HUE_AXIS else ACTION_NAMES[actions[0]]
    return _Panel(title, [original, *curves], axis)
