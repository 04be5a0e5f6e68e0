"""The paper's ablations (appendix D): which networks, and their numbers in tables.

Their rows are those of the classification experiment, with other numbers of rotations, other
strengths of hue jitter or another pooling; see :mod:`.recipe_names` for the names.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from equicolor import _checks
from equicolor.data.datasets import find_dataset
from equicolor.evaluation.evaluate import PREFIX
from equicolor.evaluation.figures import ACTION_NAMES
from equicolor.evaluation.hue_sweep import ACTIONS, hue_shifts
from equicolor.paper.classification_tables import paper_numbers, title
from equicolor.paper.classification_variants import (
    Variant,
    all_stages,
    by_variant,
    shared_setting,
    variant_of,
)
from equicolor.paper.recipe_names import named_recipe
from equicolor.reporting.tables import MISSING, Table, mean_and_std
from equicolor.results import Row
from equicolor.training.recipes import default_recipe

__all__ = [
    "ABLATIONS",
    "ROTATIONS",
    "STRENGTHS",
    "networks",
    "of_ablation",
    "peak_table",
    "peaks",
    "table",
]

ABLATIONS = ("ablation-rotations", "ablation-jitter", "ablation-cosetpool")
ROTATIONS = (*range(1, 11), 12)
STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_QUICK_ROTATIONS = (1, 3, 6)
_QUICK_STRENGTHS = (0.0, 0.1, 0.5)


def networks(experiment: str, dataset: str, *, quick: bool = False) -> list[str]:
    """The names of an ablation's recipes, each once.

    Args:
        experiment: one of :data:`ABLATIONS`.
        dataset: a name, or the path of a folder of class folders.
        quick: fewer.

    Example:
        >>> networks("ablation-jitter", "flowers102", quick=True)[:4]
        ['baseline', 'ce-4', 'baseline+jitter-0.1', 'ce-4+jitter-0.1']
        >>> len(networks("ablation-rotations", "flowers102"))
        21
    """
    _checks.one_of("experiment", experiment, ABLATIONS)
    find_dataset(dataset)
    full = f"ce-{all_stages(default_recipe(dataset).model)}"
    if experiment == "ablation-rotations":
        orders = _QUICK_ROTATIONS if quick else ROTATIONS
        names = [f"{lifting}-{order}" for order in orders for lifting in ("rgb", "hsv")]
    elif experiment == "ablation-jitter":
        strengths = _QUICK_STRENGTHS if quick else STRENGTHS
        names = [f"{name}+jitter-{turns:g}" for turns in strengths for name in ("baseline", full)]
    else:
        names = ["baseline", full, f"{full}+flatten", f"{full}+avg"]
    return list(dict.fromkeys(named_recipe(name, dataset).name for name in names))


def of_ablation(experiment: str, rows: Sequence[Row], dataset: str) -> dict[Variant, list[Row]]:
    """The rows that belong to an ablation, by variant; of each way of training apart.

    Args:
        experiment: one of :data:`ABLATIONS`.
        rows: of any experiments on pictures.
        dataset: which.

    Example:
        >>> row = {"model": "ce_resnet18", "rotations": 6, "lifting": "hsv", "ce_stages": 4,
        ...        "augmentation": "none", "dataset": "flowers102", "seed": 0}
        >>> [variant.rotations for variant in of_ablation(ABLATIONS[0], [row], "flowers102")]
        [6]
    """
    wanted = _WANTED[experiment]
    own = [row for row in rows if row["dataset"] == dataset and wanted(variant_of(row))]
    return by_variant(own)


def _rotations(variant: Variant) -> bool:
    if variant.augmentation != "none" or variant.pool != "max":
        return False
    return _plain(variant) or _full(variant)


def _jitter(variant: Variant) -> bool:
    plain = variant.augmentation == "none" or variant.augmentation.startswith("jitter ")
    if not plain or "+" in variant.augmentation:
        return False
    return _plain(variant) or (variant.in_paper and _full(variant))


def _cosetpool(variant: Variant) -> bool:
    if variant.augmentation != "none":
        return False
    of_paper = (variant.rotations, variant.lifting) == (3, "rgb")
    return _plain(variant) or (of_paper and _full(variant))


def _plain(variant: Variant) -> bool:
    return variant.kind == "baseline" and not variant.gray


def _full(variant: Variant) -> bool:
    return variant.kind == "ce" and variant.full and not variant.gray


_WANTED: dict[str, Callable[[Variant], bool]] = {
    "ablation-rotations": _rotations,
    "ablation-jitter": _jitter,
    "ablation-cosetpool": _cosetpool,
}


def strength(variant: Variant) -> float:
    """The strength of a variant's hue jitter in turns.

    Example:
        >>> strength(Variant("baseline", "resnet18", 1, "", 0, "jitter 0.2"))
        0.2
    """
    return 0.0 if variant.augmentation == "none" else float(variant.augmentation.split()[1])


def table(experiment: str, rows: Sequence[Row], dataset: str) -> Table:
    """The numbers of an ablation, beside the paper's where it gives any.

    Args:
        experiment: one of :data:`ABLATIONS`.
        rows: of any experiments on pictures.
        dataset: which.

    Example:
        >>> row = {"model": "resnet18", "dataset": "flowers102", "seed": 0, "original": 67.0,
        ...        "hue_mean": 13.0, "augmentation": "none"}
        >>> table("ablation-jitter", [row], "flowers102").rows
        [('ResNet-18', '66.79 ± 0.89', '67.00', '13.41 ± 0.34', '13.00', '1')]
    """
    groups = of_ablation(experiment, rows, dataset)
    swept = [
        action
        for action in ACTIONS[1:]
        if experiment == "ablation-rotations"
        and any(row.get(f"{PREFIX[action]}_mean") is not None for row in _rows(groups))
    ]
    lines = []
    for variant, group in sorted(groups.items(), key=lambda item: _order(experiment, item[0])):
        cells = [variant.name]
        for key in ("original", "hue_mean"):
            known = paper_numbers().get((dataset, variant, key))
            cells += [MISSING if known is None else str(known), _mean(group, key)]
        cells += [_mean(group, f"{PREFIX[action]}_mean") for action in swept]
        lines.append((*cells, str(len(group))))
    of_paper = "original, paper", "HSV shifts, paper"
    both = of_paper[0], "original, ours", of_paper[1], "HSV shifts, ours"
    columns = ("network", *both, *(ACTION_NAMES[action] for action in swept), "seeds")
    return Table(columns, lines, title(_rows(groups), dataset)).without_empty(of_paper)


def _rows(groups: Mapping[Variant, Sequence[Row]]) -> list[Row]:
    return [row for group in groups.values() for row in group]


def _order(experiment: str, variant: Variant) -> tuple[Any, ...]:
    if experiment == "ablation-rotations":
        return variant.setting, variant.lifting, variant.rotations
    if experiment == "ablation-jitter":
        return variant.setting, variant.kind, strength(variant)
    return variant.setting, variant.kind, variant.pool != "max", variant.pool


def _mean(group: Sequence[Row], key: str) -> str:
    return mean_and_std([row[key] for row in group if row.get(key) is not None])


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
    steps = (hue_shifts(len(curve)) * rotations).tolist()
    at = [
        index for index, step in enumerate(steps) if math.isclose(step, round(step), abs_tol=1e-9)
    ]
    if rotations > 1 and (len(curve) - 1) % rotations:
        return None
    found = [curve[index] for index in at]
    # Half a turn is there at both ends.
    return found[:-1] if len(found) > rotations else found


def peak_table(rows: Sequence[Row], dataset: str) -> Table:
    """How far the peaks of the hue curves differ in height, for every lifting and action.

    Theory says: not at all under the action a network lifts with.

    Args:
        rows: of any experiments on pictures.
        dataset: which.

    Example:
        >>> row = {"model": "ce_resnet18", "rotations": 3, "lifting": "hsv", "ce_stages": 4,
        ...        "augmentation": "none", "dataset": "flowers102", "seed": 0,
        ...        "hue_curve": [60.0] * 37, "rgb_curve": [50.0] * 12 + [60.0] * 25}
        >>> peak_table([row], "flowers102").rows
        [('HSV', '3', '60.0 to 60.0', '50.0 to 60.0', '–')]
    """
    lines = []
    groups = of_ablation("ablation-rotations", rows, dataset)
    for variant, group in sorted(
        groups.items(), key=lambda item: _order("ablation-rotations", item[0])
    ):
        if variant.rotations == 1:
            continue
        setting = f" ({variant.setting})" if variant.setting else ""
        cells = [variant.lifting.upper() + setting, str(variant.rotations)]
        known = False
        for action in ACTIONS:
            key = f"{PREFIX[action]}_curve"
            found = [peaks(row[key], variant.rotations) for row in group if row.get(key)]
            heights = [height for height in found if height is not None]
            if not heights:
                cells.append(MISSING)
                continue
            known = True
            low = statistics.fmean(min(each) for each in heights)
            high = statistics.fmean(max(each) for each in heights)
            cells.append(f"{low:.1f} to {high:.1f}")
        if known:
            lines.append(tuple(cells))
    words = "Accuracy at the group's own hue shifts: lowest to highest peak, in percent"
    setting = shared_setting(_rows(groups), beside_paper=True)
    columns = ("lifting", "rotations", *(ACTION_NAMES[action] for action in ACTIONS))
    return Table(columns, lines, f"{words}; {setting}" if setting else words)
