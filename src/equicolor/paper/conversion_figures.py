"""What conversion does to a trained network, as a table and hue curves, from rows."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from equicolor.evaluation.figures import Curve, hue_panels
from equicolor.evaluation.hue_sweep import hue_shifts
from equicolor.paper.classification_variants import dataset_title
from equicolor.reporting.tables import Table
from equicolor.results import Row

__all__ = ["hue_figure", "table"]

# Seven colours and four kinds of dashes: 28 curves before one looks like another.
_COLORS = ("#d55e00", "#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#000000", "#e69f00")
_DASHES = ("-", "--", "-.", ":")
_MARKERS = "osD^vPX"
_EVERY = 7  # points of a curve from marker to marker


def table(rows: Sequence[Row], dataset: str) -> Table:
    """Accuracies before conversion, after it, and after a fine-tune.

    Args:
        rows: of :func:`equicolor.paper.conversion.rows`.
        dataset: which.

    Example:
        >>> row = {"dataset": "mine", "stage": "converted", "original": 61.0, "hue_mean": 60.0}
        >>> table([row], "mine").rows
        [('converted', '61.00', '60.00')]
    """
    lines = [
        (_stage(row), f"{row['original']:.2f}", f"{row['hue_mean']:.2f}")
        for row in rows
        if row["dataset"] == dataset
    ]
    title = f"{dataset_title(dataset)}: accuracy in percent (ours; the paper has none)"
    return Table(("network", "original", "hue-shifted"), lines, title)


def hue_figure(rows: Sequence[Row], dataset: str) -> Figure | None:
    """Accuracy over the hue shift, before conversion and after.

    Args:
        rows: as for :func:`table`; those without hue curves are left out.
        dataset: which.

    Returns:
        None if no row has a hue curve.

    Example:
        >>> row = {"dataset": "mine", "stage": "converted", "hue_curve": [60.0] * 37}
        >>> len(hue_figure([row] * 8, "mine").axes[0].get_lines())
        8
    """
    swept = [row for row in rows if row["dataset"] == dataset and row.get("hue_curve")]
    if not swept:
        return None
    curves = [
        Curve(
            _stage(row),
            hue_shifts(len(row["hue_curve"])).tolist(),
            row["hue_curve"],
            style=_style(index),
        )
        for index, row in enumerate(swept)
    ]
    return hue_panels({dataset_title(dataset): curves}, width=8.0)


def _style(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of a curve; where two coincide, their markers do not."""
    return {
        "color": _COLORS[index % len(_COLORS)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markevery": (index % _EVERY, _EVERY),
    }


def _stage(row: Row) -> str:
    return str(row.get("stage") or row.get("state") or row.get("model"))
