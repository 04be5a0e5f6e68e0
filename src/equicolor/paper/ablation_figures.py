"""Figures of the ablations: hue curves and accuracies from rows of results.

Networks that were trained otherwise than in the paper, or than others, have panels of their own,
whose titles say how.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equicolor.evaluation.evaluate import PREFIX
from equicolor.evaluation.figures import ACTION_NAMES, Curve, hue_panels
from equicolor.evaluation.hue_sweep import ACTIONS, hue_shifts
from equicolor.paper.ablations import of_ablation, strength
from equicolor.paper.classification_variants import Variant, shared_setting
from equicolor.paper.settings import titled
from equicolor.results import Row

__all__ = ["figures"]

Groups = Mapping[Variant, Sequence[Row]]

_MARKERS = "osD^vPX<>hd"
# Where both liftings are as good, the first shows through the gaps of the second, drawn later.
_LIFTINGS: Mapping[str, Mapping[str, Any]] = {
    "rgb": {"color": "#0072b2", "marker": "o"},
    "hsv": {"color": "#d55e00", "marker": "s", "linestyle": "--", "markerfacecolor": "none"},
}
_POOL_STYLES = {
    "max": ("#0072b2", "o", "coset max pooling"),
    "avg": ("#009e73", "D", "coset average pooling"),
    "none": ("#cc79a7", "X", "flattened"),
}


def figures(experiment: str, rows: Sequence[Row], dataset: str) -> dict[str, Figure]:
    """The figures of an ablation by the names of their files.

    Args:
        experiment: one of :data:`equicolor.paper.ablations.ABLATIONS`.
        rows: of any experiments on pictures; those without hue curves are left out.
        dataset: which.

    Returns:
        None of them if no row has a hue curve.

    Example:
        >>> row = {"model": "resnet18", "dataset": "mine", "seed": 0, "augmentation": "none",
        ...        "original": 50.0, "hue_curve": [50.0] * 37}
        >>> list(figures("ablation-cosetpool", [row], "mine"))
        ['ablation-cosetpool']
        >>> small = row | {"size": 64}
        >>> figures("ablation-jitter", [small], "mine")["ablation-jitter"].axes[0].get_title()
        'ResNet-18, 64 pixels'
    """
    groups = of_ablation(experiment, [row for row in rows if row.get("hue_curve")], dataset)
    if not groups:
        return {}
    ways = _by_setting(groups)
    if experiment == "ablation-rotations":
        return {experiment: _rotations(ways), f"{experiment}-accuracy": _over_rotations(ways)}
    return {experiment: _jitter(ways) if experiment == "ablation-jitter" else _pooling(ways)}


def _by_setting(groups: Groups) -> dict[str, dict[Variant, Sequence[Row]]]:
    """Groups by how they were trained: what differs from the paper, in words."""
    shared = shared_setting([row for group in groups.values() for row in group])
    found: dict[str, dict[Variant, Sequence[Row]]] = {}
    for variant in sorted(groups, key=lambda variant: variant.setting):
        words = ", ".join(filter(None, (shared, variant.setting)))
        found.setdefault(words, {})[variant] = groups[variant]
    return found


def _curve(group: Sequence[Row], action: str, label: str, style: Mapping[str, Any]) -> Curve | None:
    """The mean over seeds of the rows that were swept with an action."""
    key = f"{PREFIX[action]}_curve"
    curves = [row[key] for row in group if row.get(key)]
    if not curves:
        return None
    values = np.array([curve for curve in curves if len(curve) == len(curves[0])])
    band = values.std(0, ddof=1).tolist() if len(values) > 1 else ()
    shifts = hue_shifts(len(curves[0])).tolist()
    return Curve(label, shifts, values.mean(0).tolist(), band, style)


def _shade(place: int, count: int) -> dict[str, Any]:
    """Colour and marker of the so-many-th of some ordered curves."""
    color = matplotlib.colormaps["viridis"](0.82 * place / max(1, count - 1))
    return {"color": matplotlib.colors.to_hex(color), "marker": _MARKERS[place % len(_MARKERS)]}


def _rotations(ways: Mapping[str, Groups]) -> Figure:
    """A panel for each action and lifting, a curve for each number of rotations."""
    orders = _orders(ways)
    panels: dict[str, list[Curve]] = {}
    for (setting, groups), action, lifting in itertools.product(ways.items(), ACTIONS, _LIFTINGS):
        curves = []
        for variant, group in groups.items():
            if variant.rotations > 1 and variant.lifting != lifting:
                continue
            place = orders.index(variant.rotations)
            label = f"n = {variant.rotations}"
            curve = _curve(group, action, label, _shade(place, len(orders)))
            curves += [] if curve is None else [curve]
        exact = " (exact)" if (lifting, action) in (("hsv", "hsv"), ("rgb", "rgb")) else ""
        title = f"{lifting.upper()} lifting, {ACTION_NAMES[action]}{exact}"
        if curves:
            curves.sort(key=lambda curve: int(curve.label.split()[-1]))
            panels[titled(title, setting)] = curves
    return hue_panels(panels)


def _orders(ways: Mapping[str, Groups]) -> list[int]:
    return sorted({variant.rotations for groups in ways.values() for variant in groups})


def _over_rotations(ways: Mapping[str, Groups]) -> Figure:
    """Accuracy over the number of rotations, on original and on shifted pictures."""
    measures = {"original": "original pictures"}
    measures |= {
        f"{PREFIX[action]}_mean": f"mean over {ACTION_NAMES[action]}s" for action in ACTIONS
    }
    rows = [row for groups in ways.values() for group in groups.values() for row in group]
    measures = {
        key: title.replace("clippeds", "clipped").replace("RGB rotation,", "RGB rotations,")
        for key, title in measures.items()
        if any(row.get(key) is not None for row in rows)
    }
    size = 3.3 * len(measures) + 0.4, 3.0 * len(ways) + 0.3
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(ways), len(measures), sharey=True, squeeze=False)
    for line, (setting, groups) in zip(grid, ways.items(), strict=True):
        for axes, (key, title) in zip(line, measures.items(), strict=True):
            _draw_over_rotations(axes, groups, key)
            axes.set_title(titled(title, setting, width=36), fontsize=10)  # narrow panels
            axes.set_xticks(_orders(ways))
            axes.grid(alpha=0.3)
        line[0].set_ylabel("test accuracy, %")
    grid[0, 0].legend(frameon=False, fontsize=9)
    figure.supxlabel("rotations; 1 is the plain network", fontsize=10)
    return figure


def _draw_over_rotations(axes: Axes, groups: Groups, key: str) -> None:
    for lifting, style in _LIFTINGS.items():
        points = {}
        for variant, group in groups.items():
            values = [row[key] for row in group if row.get(key) is not None]
            if values and (variant.rotations == 1 or variant.lifting == lifting):
                points[variant.rotations] = values
        known = sorted(points)
        axes.errorbar(
            known,
            [statistics.fmean(points[order]) for order in known],
            [statistics.stdev(p) if len(p := points[order]) > 1 else 0.0 for order in known],
            capsize=2, label=f"{lifting.upper()} lifting", **style,
        )  # fmt: skip


def _jitter(ways: Mapping[str, Groups]) -> Figure:
    """The paper's Figure on jitter: equivariant and plain, a curve for each strength."""
    strengths = sorted({strength(variant) for groups in ways.values() for variant in groups})
    panels: dict[str, list[Curve]] = {}
    for (setting, groups), kind in itertools.product(ways.items(), ("ce", "baseline")):
        chosen = [variant for variant in groups if variant.kind == kind]
        for variant in sorted(chosen, key=strength):
            style = _shade(strengths.index(strength(variant)), len(strengths))
            label = f"jitter {strength(variant):g}"
            curve = _curve(groups[variant], "hsv", label, style)
            if curve is not None:
                panels.setdefault(titled(variant.network_name, setting), []).append(curve)
    return hue_panels(panels)


def _pooling(ways: Mapping[str, Groups]) -> Figure:
    """The paper's Figure on pooling: a curve for each way to end."""
    panels = {}
    for setting, groups in ways.items():
        curves = []
        for variant, group in groups.items():
            if variant.kind == "ce":
                color, marker, label = _POOL_STYLES[variant.pool]
            else:
                color, marker, label = "#d55e00", "s", "plain network"
            curve = _curve(group, "hsv", label, {"color": color, "marker": marker})
            curves += [] if curve is None else [curve]
        named = min(groups, key=lambda variant: (variant.kind != "ce", variant.pool != "max"))
        panels[titled(named.network_name, setting)] = curves
    return hue_panels(panels, width=7.4)
