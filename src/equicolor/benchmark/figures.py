"""Figures of the benchmark: time over rotations, bars of ratios, losses of either path.

Pure functions from rows to matplotlib figures, with the colours of Okabe and Ito, which
the colour-blind can tell apart; markers say the same once more.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from equicolor.benchmark.cases import MODES
from equicolor.benchmark.ratios import Row
from equicolor.benchmark.variants import VARIANTS

__all__ = ["loss_figure", "ratio_figure", "rotation_figure"]

MODE_NAMES = {
    "training": "training step",
    "folded": "folded inference",
    "forward": "forward pass",
}
_STYLES: dict[str, dict[str, Any]] = {
    "plain": {"color": "#7a7a7a", "marker": "v"},
    "auto": {"color": "#0072b2", "marker": "o"},
    "fused": {"color": "#cc79a7", "marker": "P"},
    "dense": {"color": "#d55e00", "marker": "s"},
    "cyclic": {"color": "#009e73", "marker": "D"},
}
_PLAIN_LINE = {"color": _STYLES["plain"]["color"], "linestyle": "--", "linewidth": 1.2}
_FONT = 9  # points


def rotation_figure(rows: Sequence[Row]) -> Figure:
    """Milliseconds over the number of rotations, between linear and quadratic growth.

    Args:
        rows: of the suite of rotations; a panel for every model and mode.

    Example:
        >>> rows = [{"model": "stage2", "mode": "training", "variant": v, "rotations": n, "ms": t}
        ...         for v, n, t in (("plain", 1, 1.0), ("dense", 2, 4.1), ("dense", 3, 9.3))]
        >>> len(rotation_figure(rows).axes)
        1
    """
    rows = [row for row in rows if row.get("ms")]
    panels = _panels(rows)
    figure, grid = _grid(len(panels), (5.6, 4.4))
    for axes, (model, mode) in zip(grid, panels, strict=True):
        own = [row for row in rows if (_family(row), row["mode"]) == (model, mode)]
        _draw_growth(axes, own)
        axes.set_title(f"{model}, {MODE_NAMES[mode]}", fontsize=10)
        axes.set_xlabel("rotations n")
        axes.set_ylabel("milliseconds")
    return figure


def _draw_growth(axes: Axes, rows: Sequence[Row]) -> None:
    plain = {row["rotations"]: row["ms"] for row in rows if row["variant"] == "plain"}
    orders = sorted({row["rotations"] for row in rows})
    if 1 in plain:
        for power, name, dash in ((2, "n² × plain", "--"), (1, "n × plain", ":")):
            curve = [plain[1] * n**power for n in orders]
            axes.plot(orders, curve, dash, color="#666666", linewidth=1.2, label=name)
    for variant in VARIANTS:
        points = {row["rotations"]: row["ms"] for row in rows if row["variant"] == variant}
        if variant != "plain":  # they all start from the plain layer
            points = plain | points if points else points
        if points:
            axes.plot(
                sorted(points),
                [points[n] for n in sorted(points)],
                label=variant,
                linewidth=1.6,
                markersize=4.5,
                **_STYLES[variant],
                zorder=4 if variant == "plain" else 3,
            )
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(orders, map(str, orders))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=_FONT, framealpha=1)


def ratio_figure(rows: Sequence[Row]) -> Figure:
    """Bars: time in multiples of the plain network or layer, a line at 1; and memory beside it.

    Args:
        rows: with ratios; a panel for every mode, and one for the memory of training.

    Example:
        >>> row = {"name": "n3-fast", "rotations": 3, "variant": "auto", "mode": "training"}
        >>> len(ratio_figure([row | {"over_plain": 3.1, "memory_over_plain": 2.2}]).axes)
        2
    """
    kinds = [("over_plain", mode) for mode in MODES] + [("memory_over_plain", "training")]
    rows = [row for row in rows if row["variant"] != "plain"]
    panels = {
        (key, mode): own
        for key, mode in kinds
        if (own := [row for row in rows if row["mode"] == mode and row.get(key)])
    }
    bars = max((len(own) for own in panels.values()), default=1)
    figure, grid = _grid(len(panels), (5.6, 1.3 + 0.2 * bars))
    for axes, ((key, mode), own) in zip(grid, panels.items(), strict=True):
        _draw_bars(axes, own, key)
        what = MODE_NAMES[mode]
        axes.set_title(what if key == "over_plain" else f"peak memory, {what}", fontsize=10)
        axes.set_xlabel("multiples of plain")
    return figure


def _draw_bars(axes: Axes, rows: Sequence[Row], key: str) -> None:
    cases = list(dict.fromkeys(case_name(row) for row in rows))
    place, ticks = 0.0, []
    longest = max(row[key] for row in rows)
    for case in cases:
        own = [row for row in rows if case_name(row) == case]
        own.sort(key=lambda row: VARIANTS.index(row["variant"]))
        ticks.append(place + (len(own) - 1) / 2)
        for row in own:
            axes.barh(place, row[key], height=0.86, color=_STYLES[row["variant"]]["color"])
            text = f"{row[key]:.2f}  {row['variant']}"
            axes.text(row[key] + 0.01 * longest, place, text, va="center", fontsize=_FONT)
            place += 1
        place += 0.6
    axes.set_yticks(ticks, cases, fontsize=_FONT)
    axes.axvline(1, **_PLAIN_LINE)
    axes.set_xlim(0, 1.34 * max(longest, 1))
    axes.set_ylim(place - 1, -1)  # downwards
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)


def case_name(row: Row) -> str:
    """What a row is about, without its variant.

    Example:
        >>> case_name({"name": "n3-fast", "rotations": 3}), case_name(
        ...     {"model": "stage1", "rotations": 12})
        ('n3-fast', 'stage1, n = 12')
    """
    if "name" in row:
        return str(row["name"])
    return str(row["model"]) if row["rotations"] == 1 else f"{row['model']}, n = {row['rotations']}"


def loss_figure(rows: Sequence[Row]) -> Figure:
    """Training loss of every variant, a panel for every seed.

    Args:
        rows: of the suite of precision.

    Example:
        >>> row = {"variant": "dense", "seed": 0, "losses": [2.3, 2.1], "final_loss": 2.1}
        >>> len(loss_figure([row]).axes)
        1
    """
    rows = [row for row in rows if row.get("losses")]
    seeds = sorted({row["seed"] for row in rows})
    figure, grid = _grid(len(seeds), (4.8, 3.6))
    for axes, seed in zip(grid, seeds, strict=True):
        for row in (row for row in rows if row["seed"] == seed):
            variant = row["variant"]
            axes.plot(
                range(1, len(row["losses"]) + 1),
                row["losses"],
                color=_STYLES[variant]["color"],
                linewidth=2.4 if variant == "dense" else 1.0,
                alpha=0.5 if variant == "dense" else 1.0,
                label=f"{variant}, at the end {row['final_loss']:.3f}",
            )
        axes.set_title(f"seed {seed}", fontsize=10)
        axes.set_xlabel("step")
        axes.set_ylabel("training loss")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=_FONT)
    return figure


def _panels(rows: Sequence[Row]) -> list[tuple[str, str]]:
    there = {(_family(row), row["mode"]) for row in rows}
    return [panel for panel in product(dict.fromkeys(map(_family, rows)), MODES) if panel in there]


def _family(row: Row) -> str:
    """The plain network of an equivariant one."""
    return str(row["model"]).removeprefix("ce_")


def _grid(panels: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure with panels of a size in inches, at most two in a row."""
    columns = min(2, max(1, panels))
    lines = max(1, math.ceil(panels / columns))
    figure = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for unused in grid[panels:]:
        unused.remove()
    return figure, grid[:panels]
