"""Tables and figures of the paper's ablations (appendix D), from rows of results.

Networks that were trained otherwise than in the paper, or than others, have panels of their own,
whose titles say how.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equicolor.evaluation.evaluate import PREFIX
from equicolor.evaluation.figures import ACTION_NAMES, Curve, hue_panels
from equicolor.evaluation.hue_sweep import ACTIONS
from equicolor.paper.classification_results import accuracy_cells, mean_curve, title
from equicolor.paper.quick_images import quick_note
from equicolor.paper.rows import Findings, identity
from equicolor.paper.settings import alike, deviations, titled
from equicolor.paper.variants import (
    PAPER_DATASET,
    Variant,
    by_variant,
    dataset_title,
    datasets_of,
    figure_file,
    shared_setting,
    variant_of,
)
from equicolor.reporting.html import Section
from equicolor.reporting.tables import MISSING, Table, mean_and_std
from equicolor.results import Row

__all__ = [
    "figures", "of_ablation", "peak_table", "peaks", "rows_shown", "show_jitter", "show_pooling",
    "show_rotations", "table",
]  # fmt: skip

ROTATIONS, JITTER, POOLING = "ablation-rotations", "ablation-jitter", "ablation-cosetpool"
Groups = Mapping[Variant, Sequence[Row]]

_MARKERS = "osD^vPX<>hd"
# The HSV curve is drawn later, with gaps, so that the RGB curve shows where they coincide.
_LIFTINGS: Mapping[str, Mapping[str, Any]] = {
    "rgb": {"color": "#0072b2", "marker": "o"},
    "hsv": {"color": "#d55e00", "marker": "s", "linestyle": "--", "markerfacecolor": "none"},
}
_POOL_STYLES = {
    "max": ("#0072b2", "o", "coset max pooling"),
    "avg": ("#009e73", "D", "coset average pooling"),
    "none": ("#cc79a7", "X", "flattened"),
}
_CAPTIONS = {
    ROTATIONS: "Accuracy over the hue shift, for both liftings and three kinds of hue shift. "
    "Where a panel says exact, theory promises peaks of equal height.",
    f"{ROTATIONS}-accuracy": "Accuracy over the number of rotations at about equal parameters.",
    JITTER: "Accuracy over the hue shift, for training with hue jitter of different strengths.",
    POOLING: "Accuracy over the hue shift, for different ends of the equivariant part.",
}


def show_rotations(findings: Findings) -> list[Section]:
    """The sections on the number of rotations."""
    return _show(ROTATIONS, findings)


def show_jitter(findings: Findings) -> list[Section]:
    """The sections on the strength of hue jitter."""
    return _show(JITTER, findings)


def show_pooling(findings: Findings) -> list[Section]:
    """The sections on coset pooling."""
    return _show(POOLING, findings)


def _show(experiment: str, findings: Findings) -> list[Section]:
    shown = []
    for dataset in _datasets(experiment, findings):
        rows = _comparable(experiment, findings, dataset)
        heading, note = dataset_title(dataset), quick_note([dataset])
        shown_table = table(experiment, rows, dataset)
        for name, figure in figures(experiment, rows, dataset).items():
            if name != experiment:
                heading += ": accuracy over the number of rotations, and heights of peaks"
                note, shown_table = "", peak_table(rows, dataset)
            file = figure_file(name, dataset)
            shown.append(Section(heading, note, shown_table, figure, _CAPTIONS[name], file))
    return shown


def rows_shown(experiment: str, findings: Findings) -> list[Row]:
    """The rows that an ablation shows, most of them those of other experiments."""
    return [
        row
        for dataset in _datasets(experiment, findings)
        for row in _rows(
            of_ablation(experiment, _comparable(experiment, findings, dataset), dataset)
        )
    ]


def _datasets(experiment: str, findings: Findings) -> list[str]:
    """The datasets an ablation is shown for: those it ran on, else the paper's."""
    own = findings.of(experiment)
    trained = [row for row in findings.trained if row["dataset"] == PAPER_DATASET]
    return datasets_of(own or trained)


def _comparable(experiment: str, findings: Findings, dataset: str) -> list[Row]:
    """An ablation's own rows and others trained like them; without any, those of the tables."""
    trained = [row for row in findings.trained if row["dataset"] == dataset]
    own = {identity(row) for row in findings.of(experiment) if row["dataset"] == dataset}
    if not own:
        return alike(trained)
    ways = [deviations(row) for row in trained if identity(row) in own]
    return [row for row in trained if deviations(row) in ways]


def of_ablation(experiment: str, rows: Sequence[Row], dataset: str) -> dict[Variant, list[Row]]:
    """The rows that belong to an ablation, by variant; each way of training apart."""
    own = [row for row in rows if row["dataset"] == dataset]
    return by_variant([row for row in own if _belongs(experiment, variant_of(row))])


def _belongs(experiment: str, variant: Variant) -> bool:
    """Whether a network is plain, or wholly equivariant and within what an ablation varies."""
    plain = variant.kind == "baseline"
    if variant.gray or not (plain or (variant.kind == "ce" and variant.full)):
        return False
    if experiment == JITTER:
        kind, *others = variant.augmentation.split(" + ")
        jittered = not others and (kind == "none" or kind.startswith("jitter "))
        return jittered and variant.in_paper
    if variant.augmentation != "none":
        return False
    if experiment == ROTATIONS:
        return variant.pool == "max"
    return plain or (variant.rotations, variant.lifting) == (3, "rgb")


def strength(variant: Variant) -> float:
    """The strength of a variant's hue jitter in turns."""
    return 0.0 if variant.augmentation == "none" else float(variant.augmentation.split()[1])


def table(experiment: str, rows: Sequence[Row], dataset: str) -> Table:
    """The numbers of an ablation, beside the paper's where it gives any."""
    groups = _sorted(experiment, of_ablation(experiment, rows, dataset))
    means = {ACTION_NAMES[action]: f"{PREFIX[action]}_mean" for action in ACTIONS[1:]}
    swept = {
        name: key
        for name, key in means.items()
        if experiment == ROTATIONS and any(row.get(key) is not None for row in _rows(groups))
    }
    lines = []
    for variant, group in groups.items():
        cells = [variant.name, *accuracy_cells(group, dataset, variant)]
        for key in swept.values():
            cells.append(mean_and_std([row[key] for row in group if row.get(key) is not None]))
        lines.append((*cells, str(len(group))))
    of_paper = "original, paper", "HSV shifts, paper"
    both = of_paper[0], "original, ours", of_paper[1], "HSV shifts, ours"
    columns = ("network", *both, *swept, "seeds")
    return Table(columns, lines, title(_rows(groups), dataset)).without_empty(of_paper)


def _rows(groups: Groups) -> list[Row]:
    return [row for group in groups.values() for row in group]


def _sorted(experiment: str, groups: Groups) -> Groups:
    """Groups in the order of an ablation's tables."""

    def rank(variant: Variant) -> tuple[Any, ...]:
        if experiment == ROTATIONS:
            return variant.setting, variant.lifting, variant.rotations
        if experiment == JITTER:
            return variant.setting, variant.kind, strength(variant)
        return variant.setting, variant.kind, variant.pool != "max", variant.pool

    return {variant: groups[variant] for variant in sorted(groups, key=rank)}


def peaks(curve: Sequence[float], rotations: int) -> list[float] | None:
    """The accuracy at the hue shifts of a group, each angle once.

    Args:
        curve: accuracy over equally spaced shifts of -0.5 to 0.5 turns, both ends included.
        rotations: the order of the group.

    Returns:
        None if the shifts do not include the group's angles.

    Example:
        >>> peaks([1.0, 5.0, 2.0, 9.0, 3.0, 5.0, 1.0], 3)
        [5.0, 9.0, 5.0]
    """
    intervals = len(curve) - 1
    heights = [
        height
        for index, height in enumerate(curve)
        # A shift of index / intervals - 1/2 turns is a multiple of 1 / rotations.
        if rotations * (2 * index - intervals) % (2 * intervals) == 0
    ]
    if len(heights) < rotations:
        return None
    return heights[:rotations]  # both ends are half a turn


def peak_table(rows: Sequence[Row], dataset: str) -> Table:
    """How far the peaks of the hue curves differ in height, for every lifting and action.

    Theory says: not at all under the action a network lifts with.
    """
    groups = _sorted(ROTATIONS, of_ablation(ROTATIONS, rows, dataset))
    lines = []
    for variant, group in groups.items():
        cells = [_span(group, f"{PREFIX[action]}_curve", variant.rotations) for action in ACTIONS]
        if variant.rotations > 1 and any(cell != MISSING for cell in cells):
            setting = f" ({variant.setting})" if variant.setting else ""
            lines.append((variant.lifting.upper() + setting, str(variant.rotations), *cells))
    words = "Accuracy at the group's own hue shifts: lowest to highest peak, in percent"
    setting = shared_setting(_rows(groups), beside_paper=True)
    columns = ("lifting", "rotations", *(ACTION_NAMES[action] for action in ACTIONS))
    return Table(columns, lines, f"{words}; {setting}" if setting else words)


def _span(group: Sequence[Row], key: str, rotations: int) -> str:
    """The lowest and the highest peak, means over seeds."""
    heights = [peaks(row[key], rotations) for row in group if row.get(key)]
    known = [each for each in heights if each is not None]
    if not known:
        return MISSING
    low, high = (statistics.fmean(end(each) for each in known) for end in (min, max))
    return f"{low:.1f} to {high:.1f}"


def figures(experiment: str, rows: Sequence[Row], dataset: str) -> dict[str, Figure]:
    """The figures of an ablation by the names of their files; empty if no row has a hue curve."""
    groups = of_ablation(experiment, [row for row in rows if row.get("hue_curve")], dataset)
    if not groups:
        return {}
    shared = shared_setting(_rows(groups))
    settings: dict[str, dict[Variant, Sequence[Row]]] = {}
    for variant in sorted(groups, key=lambda variant: variant.setting):
        words = ", ".join(filter(None, (shared, variant.setting)))
        settings.setdefault(words, {})[variant] = groups[variant]
    if experiment == ROTATIONS:
        return {
            experiment: _rotation_curves(settings),
            f"{experiment}-accuracy": _accuracy_over_rotations(settings),
        }
    draw = _jitter_curves if experiment == JITTER else _pooling_curves
    return {experiment: draw(settings)}


def _shade(place: int, count: int) -> dict[str, Any]:
    """Colour and marker of one of some ordered curves."""
    color = matplotlib.colormaps["viridis"](0.82 * place / max(1, count - 1))
    return {"color": matplotlib.colors.to_hex(color), "marker": _MARKERS[place % len(_MARKERS)]}


def _rotation_curves(settings: Mapping[str, Groups]) -> Figure:
    """A panel for each action and lifting, a curve for each number of rotations."""
    orders = _orders(settings)
    panels: dict[str, list[Curve]] = {}
    for (setting, groups), action, lifting in itertools.product(
        settings.items(), ACTIONS, _LIFTINGS
    ):
        key = f"{PREFIX[action]}_curve"
        exact = " (exact)" if lifting == action else ""
        panel = titled(f"{lifting.upper()} lifting, {ACTION_NAMES[action]}{exact}", setting)
        for variant in sorted(groups, key=lambda variant: variant.rotations):
            swept = [row for row in groups[variant] if row.get(key)]
            if swept and (variant.rotations == 1 or variant.lifting == lifting):
                style = _shade(orders.index(variant.rotations), len(orders))
                curve = mean_curve(swept, key, f"n = {variant.rotations}", style)
                panels.setdefault(panel, []).append(curve)
    return hue_panels(panels)


def _orders(settings: Mapping[str, Groups]) -> list[int]:
    return sorted({variant.rotations for groups in settings.values() for variant in groups})


def _accuracy_over_rotations(settings: Mapping[str, Groups]) -> Figure:
    """Accuracy over the number of rotations, on original and on shifted images."""
    measures = {"original": "original images"}
    for action in ACTIONS:
        shifts = ACTION_NAMES[action].replace("shift", "shifts").replace("rotation", "rotations")
        measures[f"{PREFIX[action]}_mean"] = f"mean over {shifts}"
    rows = [row for groups in settings.values() for row in _rows(groups)]
    measures = {
        key: name for key, name in measures.items() if any(row.get(key) is not None for row in rows)
    }
    size = 3.3 * len(measures) + 0.4, 3.0 * len(settings) + 0.3
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(settings), len(measures), sharey=True, squeeze=False)
    for line, (setting, groups) in zip(grid, settings.items(), strict=True):
        for axes, (key, name) in zip(line, measures.items(), strict=True):
            _draw_over_rotations(axes, groups, key)
            axes.set_title(titled(name, setting, width=36), fontsize=10)  # narrow panels
            axes.set_xticks(_orders(settings))
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
        orders = sorted(points)
        axes.errorbar(
            orders,
            [statistics.fmean(points[order]) for order in orders],
            [statistics.stdev(p) if len(p := points[order]) > 1 else 0.0 for order in orders],
            capsize=2, label=f"{lifting.upper()} lifting", **style,
        )  # fmt: skip


def _jitter_curves(settings: Mapping[str, Groups]) -> Figure:
    """The paper's figure on jitter: equivariant and plain, a curve for each strength."""
    strengths = sorted({strength(variant) for groups in settings.values() for variant in groups})
    panels: dict[str, list[Curve]] = {}
    for (setting, groups), kind in itertools.product(settings.items(), ("ce", "baseline")):
        for variant in sorted((each for each in groups if each.kind == kind), key=strength):
            style = _shade(strengths.index(strength(variant)), len(strengths))
            label = f"jitter {strength(variant):g}"
            curve = mean_curve(groups[variant], "hue_curve", label, style)
            panels.setdefault(titled(variant.network_name, setting), []).append(curve)
    return hue_panels(panels)


def _pooling_curves(settings: Mapping[str, Groups]) -> Figure:
    """The paper's figure on pooling: a curve for each end of the equivariant part."""
    panels = {}
    for setting, groups in settings.items():
        curves = []
        for variant, group in groups.items():
            if variant.kind == "ce":
                color, marker, label = _POOL_STYLES[variant.pool]
            else:
                color, marker, label = "#d55e00", "s", "plain network"
            style = {"color": color, "marker": marker}
            curves.append(mean_curve(group, "hue_curve", label, style))
        full = min(groups, key=lambda variant: (variant.kind != "ce", variant.pool != "max"))
        panels[titled(full.network_name, setting)] = curves
    return hue_panels(panels, width=7.4)
