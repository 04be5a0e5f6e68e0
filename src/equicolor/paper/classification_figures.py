"""Accuracy over the hue shift: the paper's Figure 1b, and the curves of every dataset.

Pure functions from rows of results to matplotlib figures. A colour and a marker stand for a
network, grey for grey input, dashes and hollow markers for an augmentation. Titles name what all
rows have otherwise than the paper.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from equicolor.evaluation.figures import Curve, hue_panels
from equicolor.evaluation.hue_sweep import hue_shifts
from equicolor.paper.classification_variants import (
    AUGMENTATIONS,
    Variant,
    by_variant,
    dataset_title,
    shared_setting,
)
from equicolor.paper.settings import alike, titled
from equicolor.results import Row

__all__ = ["figure_1b", "hue_figure"]

FIGURE_1B = "flowers102"  # the dataset of the paper's figure
_STYLES = {
    "baseline": ("#d55e00", "s"),
    "ciconv": ("#e69f00", "^"),
    "other": ("#a65628", "p"),
}
_GRAY = "#7a7a7a"
# Of equivariant networks: by lifting and rotations if full, by stages if hybrid.
_FULL_STYLES = {
    ("rgb", 3): ("#0072b2", "o"),
    ("rgb", 6): ("#5e4fa2", "d"),
    ("rgb", 12): ("#c2185b", "*"),
    ("hsv", 3): ("#cc79a7", "h"),
    ("hsv", 6): ("#009e73", "D"),
    ("hsv", 12): ("#000000", "X"),
}
_HYBRID_STYLES = {1: ("#56b4e9", "<"), 2: ("#3a9bdc", ">"), 3: ("#2a5d8f", "P")}
_DASHES = {"none": "-", "jitter 0.5": "--", "augmix": ":"}
_PANELS = {
    "none": "no colour augmentation",
    "jitter 0.5": "trained with hue jitter",
    "augmix": "trained with AugMix",
}
_OTHERS = "trained otherwise"


def style(variant: Variant) -> dict[str, Any]:
    """Colour, marker and dashes of a variant's curve.

    Example:
        >>> style(Variant("baseline", "resnet18", 1, "", 0, "jitter 0.5"))["linestyle"]
        '--'
    """
    if variant.kind != "ce":
        color, marker = _STYLES[variant.kind]
    elif variant.full:
        color, marker = _FULL_STYLES.get((variant.lifting, variant.rotations), _STYLES["other"])
    else:
        color, marker = _HYBRID_STYLES.get(variant.ce_stages, _STYLES["other"])
    if variant.gray:
        color, marker = _GRAY, "v" if variant.kind == "baseline" else marker
    augmented = variant.augmentation != "none"
    return {
        "color": color,
        "marker": marker,
        "linestyle": _DASHES.get(variant.augmentation, "-."),
        "markerfacecolor": "white" if augmented else color,
    }


def figure_1b(rows: Sequence[Row], dataset: str = FIGURE_1B) -> Figure | None:
    """The paper's Figure 1b: plain, grey and equivariant networks, with and without jitter.

    Our networks of the most rotations with exact HSV lifting stand beside them.

    Args:
        rows: of any datasets; those trained the paper's way are shown, or if there are none,
            those trained like most.
        dataset: which; the paper shows Flowers-102.

    Returns:
        None if no row of the dataset has a hue curve.

    Example:
        >>> figure_1b([{"model": "resnet18", "dataset": "cifar10", "seed": 0}]) is None
        True
    """
    swept = alike(_swept(rows, dataset))
    groups = by_variant(swept)
    most = max((found.rotations for found in groups if found.lifting == "hsv"), default=0)

    def wanted(variant: Variant) -> bool:
        if variant.setting or variant.augmentation not in AUGMENTATIONS[:2]:
            return False
        if variant.gray:
            return (variant.kind, variant.augmentation) == ("baseline", "none")
        if variant.kind == "ce":
            ours = (variant.lifting, variant.rotations) == ("hsv", most)
            return variant.full and (variant.in_paper or ours)
        return variant.kind == "baseline"

    curves = [_curve(variant, group) for variant, group in groups.items() if wanted(variant)]
    title = titled(dataset_title(dataset), shared_setting(swept))
    return hue_panels({title: curves}, width=8.0) if curves else None


def hue_figure(rows: Sequence[Row], dataset: str) -> Figure | None:
    """The hue curves of all networks trained on a dataset, a panel for each augmentation.

    Args:
        rows: of any datasets; those without ``hue_curve`` are left out.
        dataset: which.

    Returns:
        Means over seeds, with a band of one standard deviation; None if no row of the dataset
        has a hue curve.

    Example:
        >>> row = {"model": "resnet18", "dataset": "mine", "seed": 0, "augmentation": "none"}
        >>> figure = hue_figure([row | {"hue_curve": [50.0] * 37}], "mine")
        >>> figure.axes[0].get_title()
        'mine, no colour augmentation'
    """
    panels: dict[str, list[Curve]] = {}
    swept = _swept(rows, dataset)
    title, setting = dataset_title(dataset), shared_setting(swept)
    for variant, group in by_variant(swept).items():
        known = variant.augmentation in _PANELS
        panel = titled(title, _PANELS.get(variant.augmentation, _OTHERS), setting)
        # In the panel of an augmentation there is no need to say which.
        label = variant._replace(augmentation="none").name if known else variant.name
        panels.setdefault(panel, []).append(_curve(variant, group, label))
    return hue_panels(panels) if panels else None


def _swept(rows: Sequence[Row], dataset: str) -> list[Row]:
    """The rows of a dataset that have hue curves."""
    return [row for row in rows if row["dataset"] == dataset and row.get("hue_curve")]


def _curve(variant: Variant, group: Sequence[Row], label: str | None = None) -> Curve:
    """The mean over seeds."""
    shifts = [hue_shifts(row.get("shifts") or len(row["hue_curve"])).tolist() for row in group]
    # Runs that were swept otherwise than the first cannot be averaged with it.
    alike = [row for row, turns in zip(group, shifts, strict=True) if turns == shifts[0]]
    values = np.array([row["hue_curve"] for row in alike])
    return Curve(
        variant.name if label is None else label,
        shifts[0],
        values.mean(0).tolist(),
        values.std(0, ddof=1).tolist() if len(values) > 1 else (),
        style(variant),
    )
