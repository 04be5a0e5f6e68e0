"""The paper's ablations (appendix D): number of rotations, strength of jitter, coset pooling.

Their rows are like those of the classification experiment, with other numbers of rotations,
strengths of hue jitter or poolings, by the names of
:func:`equicolor.training.recipes.named_recipe`. Networks whose training differs from the paper's,
or from the others', have panels of their own, whose titles say how.
"""

import functools
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equicolor.evaluation.actions import HUE_ACTIONS
from equicolor.evaluation.evaluate import PREFIX
from equicolor.evaluation.figures import ACTION_NAMES, Curve, hue_panels
from equicolor.paper import image_jobs
from equicolor.paper.classification import accuracy_table, mean_curve, measured
from equicolor.paper.experiment import Experiment, Job, Scope
from equicolor.paper.quick_images import quick_note
from equicolor.paper.rows import Findings, alike, deviations, titled
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
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import Row

_ROTATIONS, _JITTER, _POOLING = "ablation-rotations", "ablation-jitter", "ablation-cosetpool"
_QUICK_ORDERS, _QUICK_STRENGTHS = (1, 3, 6), (0.0, 0.1, 0.5)
_MARKERS = "osD^vPX<>hd"
# The HSV curve is drawn later, with gaps, so that the RGB curve shows where they coincide.
_LIFTINGS: Mapping[str, Mapping[str, Any]] = {
    "rgb": {"color": "#0072b2", "marker": "o"},
    "hsv": {"color": "#d55e00", "marker": "s", "linestyle": "--", "markerfacecolor": "none"},
}
_POOL_STYLES = {
    "plain": ("#d55e00", "s", "plain network"),
    "max": ("#0072b2", "o", "coset max pooling"),
    "avg": ("#009e73", "D", "coset average pooling"),
    "none": ("#cc79a7", "X", "flattened"),
}

Groups = Mapping[Variant, Sequence[Row]]
Settings = Mapping[str, Groups]  # groups by how they were trained, in words


def _plan(scope: Scope, experiment: str) -> list[Job]:
    actions = HUE_ACTIONS if experiment == _ROTATIONS else ()
    return [
        job
        for dataset in image_jobs.main_datasets(scope)
        for job in image_jobs.training_jobs(
            dataset, _networks(experiment, scope.quick), scope, actions
        )
    ]


def _networks(experiment: str, quick: bool) -> list[str]:
    if experiment == _ROTATIONS:
        orders = _QUICK_ORDERS if quick else (*range(1, 11), 12)
        return [f"{lifting}-{order}" for order in orders for lifting in ("rgb", "hsv")]
    if experiment == _JITTER:
        strengths = _QUICK_STRENGTHS if quick else (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
        return [f"{name}+jitter-{turns:g}" for turns in strengths for name in ("baseline", "rgb-3")]
    return ["baseline", "rgb-3", "rgb-3+flatten", "rgb-3+avg"]


def _show(findings: Findings, experiment: str) -> list[Section]:
    sections = []
    for dataset, rows in _comparable(experiment, findings).items():
        heading, note = dataset_title(dataset), quick_note([dataset])
        its_table = table(experiment, rows, dataset)
        drawn = figures(experiment, rows, dataset)
        if not drawn and findings.of(experiment):
            sections.append(Section(heading, note, its_table))
        for name, figure in drawn.items():
            if name != experiment:
                heading += ": accuracy over the number of rotations, and heights of peaks"
                note, its_table = "", peak_table(rows, dataset)
            file = figure_file(name, dataset)
            sections.append(Section(heading, note, its_table, figure, _CAPTIONS[name], file))
    return sections


def rows_shown(experiment: str, findings: Findings) -> list[Row]:
    """The rows that an ablation shows; most belong to other experiments."""
    return [
        row
        for dataset, rows in _comparable(experiment, findings).items()
        for row in _rows(of_ablation(experiment, rows, dataset))
    ]


def _comparable(experiment: str, findings: Findings) -> dict[str, list[Row]]:
    """The rows of an ablation, and of other experiments with the same training, by dataset.

    An ablation without rows takes those of other experiments on the paper's dataset.
    """
    trained, its_rows = findings.trained, findings.of(experiment)
    if not its_rows:
        rows = [row for row in trained if row["dataset"] == PAPER_DATASET]
        return {PAPER_DATASET: alike(rows)} if rows else {}
    comparable = {}
    for dataset in datasets_of(its_rows):
        trainings = [deviations(row) for row in its_rows if row["dataset"] == dataset]
        rows = [row for row in trained if row["dataset"] == dataset]
        comparable[dataset] = [row for row in rows if deviations(row) in trainings]
    return comparable


def of_ablation(experiment: str, rows: Sequence[Row], dataset: str) -> dict[Variant, list[Row]]:
    """The rows that belong to an ablation, by network and training, in the order of its table."""
    members = [
        row for row in rows if row["dataset"] == dataset and _belongs(experiment, variant_of(row))
    ]
    groups = by_variant(members)

    def rank(variant: Variant) -> tuple[Any, ...]:
        network = variant.kind, variant.lifting, variant.rotations
        return variant.setting, *network, variant.pool != "max", variant.pool, _strength(variant)

    return {variant: groups[variant] for variant in sorted(groups, key=rank)}


def _belongs(experiment: str, variant: Variant) -> bool:
    """Whether a plain or fully equivariant network differs only in what an ablation varies."""
    plain = variant.kind == "baseline"
    if variant.gray or not (plain or (variant.kind == "ce" and variant.full)):
        return False
    if experiment == _JITTER:
        kind, *others = variant.augmentation.split(" + ")
        jittered = not others and (kind == "none" or kind.startswith("jitter "))
        return jittered and variant.in_paper
    if variant.augmentation != "none":
        return False
    if experiment == _ROTATIONS:
        return variant.pool == "max"
    return plain or (variant.rotations, variant.lifting) == (3, "rgb")


def _strength(variant: Variant) -> float:
    """The strength of a variant's hue jitter in turns."""
    return 0.0 if variant.augmentation == "none" else float(variant.augmentation.split()[1])


def _rows(groups: Groups) -> list[Row]:
    return [row for group in groups.values() for row in group]


def table(experiment: str, rows: Sequence[Row], dataset: str) -> Table:
    """The numbers of an ablation, beside the paper's if it gives any."""
    groups = of_ablation(experiment, rows, dataset)
    means = {ACTION_NAMES[action]: f"{PREFIX[action]}_mean" for action in HUE_ACTIONS[1:]}
    swept = {name: key for name, key in means.items() if measured(_rows(groups), key)}
    more = swept if experiment == _ROTATIONS else {}
    return accuracy_table(groups, dataset, shifted="HSV shifts", more=more)


def peaks(curve: Sequence[float], rotations: int) -> list[float] | None:
    """The accuracy at the hue shifts of a group, each angle once.

    The curve has equally spaced shifts from -0.5 to 0.5 turns, both ends included. None if these
    lack an angle of the group.
    """
    intervals = len(curve) - 1
    step, rest = divmod(intervals, rotations)
    if not step or rest or intervals % 2:
        return None
    return list(curve[intervals // 2 % step :: step][:rotations])  # both ends are half a turn


def peak_table(rows: Sequence[Row], dataset: str) -> Table:
    """The lowest and the highest peak of the hue curves, for every lifting and action.

    In theory they are equal under the action that a network lifts with.
    """
    groups = of_ablation(_ROTATIONS, rows, dataset)
    lines = []
    for variant, group in groups.items():
        keys = [f"{PREFIX[action]}_curve" for action in HUE_ACTIONS]
        cells = [_span(group, key, variant.rotations) for key in keys]
        if variant.rotations > 1 and any(cell != MISSING for cell in cells):
            setting = f" ({variant.setting})" if variant.setting else ""
            lines.append((variant.lifting.upper() + setting, str(variant.rotations), *cells))
    words = "Accuracy at the group's own hue shifts: lowest to highest peak, in percent"
    setting = shared_setting(_rows(groups), beside_paper=True)
    columns = ("lifting", "rotations", *(ACTION_NAMES[action] for action in HUE_ACTIONS))
    return Table(columns, lines, f"{words}; {setting}" if setting else words)


def _span(group: Sequence[Row], key: str, rotations: int) -> str:
    """The lowest and the highest peak, means over seeds."""
    curves = [peaks(curve, rotations) for curve in measured(group, key)]
    heights = [curve for curve in curves if curve]
    if not heights:
        return MISSING
    low, high = (statistics.fmean(map(end, heights)) for end in (min, max))
    return f"{low:.1f} to {high:.1f}"


def figures(experiment: str, rows: Sequence[Row], dataset: str) -> dict[str, Figure]:
    """The figures of an ablation by file name; empty if no row has a hue curve."""
    groups = of_ablation(experiment, [row for row in rows if row.get("hue_curve")], dataset)
    if not groups:
        return {}
    shared = shared_setting(_rows(groups))
    settings: dict[str, dict[Variant, Sequence[Row]]] = {}
    for variant, group in groups.items():
        words = ", ".join(filter(None, (shared, variant.setting)))
        settings.setdefault(words, {})[variant] = group
    return {name: draw(settings) for name, draw in _FIGURES[experiment].items()}


def _shade(value: float, values: Sequence[float]) -> dict[str, Any]:
    """Colour and marker of one of several ordered curves."""
    place = values.index(value)
    color = matplotlib.colormaps["viridis"](0.82 * place / max(1, len(values) - 1))
    return {"color": matplotlib.colors.to_hex(color), "marker": _MARKERS[place % len(_MARKERS)]}


def _rotation_curves(settings: Settings) -> Figure:
    """A panel for each action and lifting, a curve for each number of rotations."""
    orders = _orders(settings)
    panels: dict[str, list[Curve]] = {}
    for (setting, groups), action, lifting in itertools.product(
        settings.items(), HUE_ACTIONS, _LIFTINGS
    ):
        key = f"{PREFIX[action]}_curve"
        exact = " (exact)" if lifting == action else ""
        panel = titled(f"{lifting.upper()} lifting, {ACTION_NAMES[action]}{exact}", setting)
        for variant, group in groups.items():
            swept = [row for row in group if row.get(key)]
            if swept and variant.lifting in ("", lifting):
                style = _shade(variant.rotations, orders)
                curve = mean_curve(swept, key, f"n = {variant.rotations}", style)
                panels.setdefault(panel, []).append(curve)
    return hue_panels(panels)


def _orders(settings: Settings) -> list[int]:
    return sorted({variant.rotations for groups in settings.values() for variant in groups})


def _accuracy_over_rotations(settings: Settings) -> Figure:
    """Accuracy over the number of rotations, on original and on shifted images."""
    measures = {"original": "original images"}
    for action in HUE_ACTIONS:
        shifts = ACTION_NAMES[action].replace("shift", "shifts").replace("rotation", "rotations")
        measures[f"{PREFIX[action]}_mean"] = f"mean over {shifts}"
    rows = [row for groups in settings.values() for row in _rows(groups)]
    measures = {key: name for key, name in measures.items() if measured(rows, key)}
    size = 3.3 * len(measures) + 0.4, 3.0 * len(settings) + 0.3
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(settings), len(measures), sharey=True, squeeze=False)
    for line, (setting, groups) in zip(grid, settings.items(), strict=True):
        for axes, (key, name) in zip(line, measures.items(), strict=True):
            _draw_over_rotations(axes, groups, key)
            axes.set_title(titled(name, setting, width=36), fontsize=10)  # the panel is narrow
            axes.set_xticks(_orders(settings))
            axes.grid(alpha=0.3)
        line[0].set_ylabel("test accuracy, %")
    grid[0, 0].legend(frameon=False, fontsize=9)
    figure.supxlabel("rotations; 1 is the plain network", fontsize=10)
    return figure


def _draw_over_rotations(axes: Axes, groups: Groups, key: str) -> None:
    for lifting, style in _LIFTINGS.items():
        points = {
            variant.rotations: values
            for variant, group in groups.items()
            if (values := measured(group, key)) and variant.lifting in ("", lifting)
        }
        axes.errorbar(
            list(points),
            [statistics.fmean(values) for values in points.values()],
            [statistics.stdev(v) if len(v) > 1 else 0.0 for v in points.values()],
            capsize=2, label=f"{lifting.upper()} lifting", **style,
        )  # fmt: skip


def _jitter_curves(settings: Settings) -> Figure:
    """The paper's figure on jitter: equivariant and plain, a curve for each strength."""
    strengths = sorted({_strength(variant) for groups in settings.values() for variant in groups})
    panels: dict[str, list[Curve]] = {}
    for setting, groups in settings.items():
        for variant in sorted(groups, key=lambda variant: variant.kind != "ce"):
            turns = _strength(variant)
            style = _shade(turns, strengths)
            curve = mean_curve(groups[variant], "hue_curve", f"jitter {turns:g}", style)
            panels.setdefault(titled(variant.network_name, setting), []).append(curve)
    return hue_panels(panels)


def _pooling_curves(settings: Settings) -> Figure:
    """The paper's figure on pooling: a curve for each end of the equivariant part."""
    panels = {}
    for setting, groups in settings.items():
        curves = []
        for variant, group in groups.items():
            pool = variant.pool if variant.kind == "ce" else "plain"
            color, marker, label = _POOL_STYLES[pool]
            style = {"color": color, "marker": marker}
            curves.append(mean_curve(group, "hue_curve", label, style))
        full = min(groups, key=lambda variant: (variant.kind != "ce", variant.pool != "max"))
        panels[titled(full.network_name, setting)] = curves
    return hue_panels(panels, width=7.4)


# For each ablation, the functions that draw its figures, by file name.
_FIGURES: Mapping[str, Mapping[str, Callable[[Settings], Figure]]] = {
    _ROTATIONS: {
        _ROTATIONS: _rotation_curves,
        f"{_ROTATIONS}-accuracy": _accuracy_over_rotations,
    },
    _JITTER: {_JITTER: _jitter_curves},
    _POOLING: {_POOLING: _pooling_curves},
}
_CAPTIONS = {
    _ROTATIONS: "Accuracy over the hue shift, for both liftings and three kinds of hue shift. "
    "Where a panel says exact, theory promises peaks of equal height.",
    f"{_ROTATIONS}-accuracy": "Accuracy over the number of rotations at about equal parameters.",
    _JITTER: "Accuracy over the hue shift, for training with hue jitter of different strengths.",
    _POOLING: "Accuracy over the hue shift, for different ends of the equivariant part.",
}


def _ablation(name: str, **fields: Any) -> Experiment:
    return Experiment(
        id=name,
        paper="App. D",
        plan=functools.partial(_plan, experiment=name),
        show=functools.partial(_show, experiment=name),
        data=("flowers102",),
        options=("datasets", "seeds", "epochs", "size"),
        **fields,
    )


ROTATIONS = _ablation(
    _ROTATIONS,
    title="Number of rotations",
    finding="More rotations make more peaks and a higher accuracy. Under rotations that are "
    "clipped to the RGB cube the peaks differ in height; without clipping they are equal.",
    what="1 to 12 rotations, both liftings, three kinds of hue shift",
    full="4 h",
    quick="2 min",
)
JITTER = _ablation(
    _JITTER,
    title="Strength of hue jitter",
    finding="A little jitter (0.1) already helps the equivariant network everywhere; beyond 0.2 "
    "its curve is flat. The plain network's single peak only widens.",
    what="plain and equivariant networks with hue jitter of 0 to 0.5 turns",
    full="1 h a seed",
    quick="1 min",
)
COSETPOOL = _ablation(
    _POOLING,
    title="Coset pooling",
    finding="Without pooling the equivariant network behaves like the plain one.",
    what="rotations pooled, averaged or flattened",
    full="25 min a seed",
    quick="1 min",
)
