"""The figures of a page about a network: pure functions from numbers to matplotlib figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from equicolor._text import shortened
from equicolor.analysis import FirstFilters, NeuronFeatures
from equicolor.evaluation.evaluate import ClassChange
from equicolor.reporting.figures import literal

_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#8a8f96"
_TILE = 60  # pixels of an image on a sheet
_GAP = 3
_DPI = 100


def tiles(images: Tensor, size: int = _TILE) -> np.ndarray:
    """Images ``[rows, columns, 3, h, w]`` side by side on white, as uint8 ``[H, W, 3]``."""
    rows, columns = images.shape[:2]
    flat = images.flatten(0, 1).float()
    larger = flat.shape[-1] > size
    mode = {"mode": "bilinear", "antialias": True} if larger else {"mode": "nearest-exact"}
    flat = F.interpolate(flat, (size, size), **mode).clamp(0, 1)
    grid: Tensor = F.pad(flat, (0, _GAP, 0, _GAP), value=1.0).unflatten(0, (rows, columns))
    sheet = grid.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)[:-_GAP, :-_GAP]
    return (sheet * 255).round().byte().numpy()


def sheet_figure(
    groups: Mapping[str, NeuronFeatures], indices: Tensor, *, in_line: int = 3
) -> Figure:
    """Neuron features by group, each with its strongest crops, one row per rotation.

    ``indices`` are the colour selectivity of all channels, :math:`[C]`.
    """
    first = next(iter(groups.values()))
    rotations, crops = first.crops.shape[1:3]
    units = max(len(group.channels) for group in groups.values())
    columns = min(in_line, units)
    lines = [
        (title, group, start)
        for title, group in groups.items()
        for start in range(0, len(group.channels), columns)
    ]
    step = (_TILE + _GAP) / _DPI
    left, above, below, between = 0.55, 0.48, 0.06, 0.22
    tall, wide = rotations * step, (1 + crops) * step
    width, height = left + columns * (wide + between), len(lines) * (tall + above + below)
    figure = Figure(figsize=(width, height), dpi=_DPI)
    for line, (title, group, start) in enumerate(lines):
        bottom = height - (line + 1) * (tall + above + below) + below
        place = left / width, (bottom + tall + 0.3) / height
        figure.text(*place, title, fontsize=9, color="#333333")
        for column, channel in enumerate(group.channels[start : start + columns]):
            side = left + column * (wide + between)
            axes = figure.add_axes((side / width, bottom / height, wide / width, tall / height))
            unit = start + column
            # White where fewer images excite the unit than there is room for.
            active = (group.values[unit] > 0)[..., None, None, None]
            active_crops = torch.where(active, group.crops[unit], 1.0)
            drawn = torch.cat((group.features[unit].unsqueeze(1), active_crops), 1)
            _show_tiles(axes, tiles(drawn), _TILE, rotations if column == 0 else 1)
            index = float(indices[channel])  # z: no negative zero
            axes.set_title(f"channel {channel}, selectivity {index:z.2f}", fontsize=8, pad=3)
    return figure


def _show_tiles(axes: Axes, image: np.ndarray, side: int, rotations: int) -> None:
    """Draw tiles without a frame; if there are several rotations, label rows by their angle."""
    axes.imshow(image, interpolation="nearest", aspect="auto")
    axes.set_frame_on(False)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=8)
    if rotations > 1:
        middles = [row * (side + _GAP) + side / 2 for row in range(rotations)]
        axes.set_yticks(middles, [f"{360 * row / rotations:.0f}°" for row in range(rotations)])


def selectivity_figure(layers: Mapping[str, Tensor], names: Sequence[str]) -> Figure:
    """The colour selectivity of every unit, layer by layer, with the quartiles."""
    figure = Figure(figsize=(9.2, 4.2), layout="constrained")
    axes = figure.subplots()
    spread = np.random.default_rng(0)
    values = [index.flatten().numpy() for index in layers.values()]
    for place, indices in enumerate(values):
        places = place + spread.uniform(-0.32, 0.32, len(indices))
        alpha = max(0.08, min(0.5, 60 / len(indices)))
        dots: dict[str, Any] = {"markersize": 3, "markeredgewidth": 0, "rasterized": True}
        axes.plot(places, indices, ".", color=_BLUE, alpha=alpha, **dots)
    dark = {"color": "#333333"}
    axes.boxplot(
        values,
        positions=range(len(values)),
        widths=0.5,
        showfliers=False,
        whis=(5, 95),
        medianprops={"color": _ORANGE, "linewidth": 2},
        boxprops=dark,
        whiskerprops=dark,
        capprops=dark,
    )
    means = [indices.mean() for indices in values]
    axes.plot(range(len(values)), means, "D", color=_ORANGE, markersize=4)
    low = min(float(np.quantile(indices, 0.01)) for indices in values)
    axes.set_ylim(min(-0.05, max(low, -1.0)) - 0.03, 1.05)
    axes.axhline(0, color=_GREY, linewidth=0.8)
    axes.set_ylabel("colour selectivity")
    _name_layers(axes, names)
    return figure


def _name_layers(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xlim(-0.7, len(names) - 0.3)
    ticks = [literal(name) for name in names]
    axes.set_xticks(range(len(names)), ticks, rotation=60, ha="right", fontsize=8)
    axes.grid(axis="y", alpha=0.3)


def class_figure(changes: Sequence[ClassChange], *, most: int = 12) -> Figure:
    """Accuracy under hue shifts of the ``most`` classes that lose most, and that lose least."""
    shown = list(changes) if len(changes) <= 2 * most else [*changes[:most], *changes[-most:]]
    figure = Figure(figsize=(8.4, 0.23 * len(shown) + 0.9), layout="constrained")
    axes = figure.subplots()
    for place, change in enumerate(shown):
        axes.plot([change.shifted, change.original], [place, place], color=_GREY, linewidth=1.5)
    places = range(len(shown))
    axes.plot([c.original for c in shown], places, "o", color=_BLUE, label="original images")
    axes.plot([c.shifted for c in shown], places, "o", color=_ORANGE, label="hues shifted, mean")
    if len(changes) > 2 * most:
        axes.axhline(most - 0.5, color="#333333", linewidth=0.8, linestyle=":")
        rest = len(changes) - 2 * most
        axes.annotate(
            f"{rest} classes between", (0.995, most - 0.5), xycoords=("axes fraction", "data"),
            ha="right", va="bottom", fontsize=8, color="#555555",
        )  # fmt: skip
    axes.set_yticks(places, [literal(shortened(change.name, 32)) for change in shown], fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(-2, 102)
    axes.set_xlabel("accuracy, %")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", fontsize=8, ncols=2, frameon=False)
    return figure


def filter_figure(filters: FirstFilters, *, most: int = 48) -> Figure:
    """The strongest filters of the first layer, one row per rotation."""
    order = filters.strength.argsort(descending=True)[:most]
    images = filters.images[order].transpose(0, 1)  # [n, O, 3, k, k]
    rotations, count = images.shape[:2]
    side = max(18, min(48, 1000 // count - _GAP))
    if rotations == 1:  # in lines of sixteen
        filler = torch.ones(-count % 16, *images.shape[2:])
        images, side = torch.cat((images[0], filler)).unflatten(0, (-1, 16)), 48
    drawn = tiles(images, side)
    wide = 0.55 + drawn.shape[1] * 0.85 / _DPI
    tall = 0.2 + drawn.shape[0] * 0.85 / _DPI
    figure = Figure(figsize=(wide, tall), dpi=_DPI)
    axes = figure.add_axes((0.5 / wide, 0.1 / tall, 1 - 0.55 / wide, 1 - 0.2 / tall))
    _show_tiles(axes, drawn, side, rotations)
    return figure


def equivariance_figure(errors: Mapping[str, float], names: Sequence[str]) -> Figure:
    """The equivariance error of every layer, on a logarithmic axis."""
    figure = Figure(figsize=(9.2, 3.4), layout="constrained")
    axes = figure.subplots()
    smallest = 1e-8
    heights = [max(error, smallest) for error in errors.values()]
    axes.plot(range(len(heights)), heights, "o-", color=_BLUE, linewidth=1, markersize=5)
    axes.set_yscale("log")
    axes.set_ylim(smallest / 2, 4 * max([1.0, *(h for h in heights if np.isfinite(h))]))
    axes.axhline(1e-5, color=_GREY, linewidth=1, linestyle=":")
    # Beside the axes, since the curve may cross a label inside.
    axes.annotate(
        "rounding\nof float32", (1.005, 1e-5), xycoords=("axes fraction", "data"),
        ha="left", va="center", fontsize=8, color="#555555",
    )  # fmt: skip
    axes.set_ylabel("relative error")
    _name_layers(axes, names)
    return figure
