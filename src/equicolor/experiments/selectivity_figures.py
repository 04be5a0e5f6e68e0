"""Colour selectivity and what equivariance gains: the paper's Figure 4, from rows."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from equicolor.experiments.classification_variants import by_variant, dataset_title, datasets_of
from equicolor.reporting.tables import MISSING, Table

__all__ = ["gain_figure", "gains", "score", "table"]

Row = Mapping[str, Any]

_MARKERS = "osD^vPX"
# About what the literature quotes for a plain ResNet's units on each dataset.
_QUOTED = {"flowers102": "about 0.70"}


def gains(rows: Sequence[Row], dataset: str) -> dict[int, float]:
    """Points of accuracy that equivariance up to a stage gains over the plain network.

    Args:
        rows: of networks trained without colour augmentation, and any others.
        dataset: which.

    Returns:
        By the number of equivariant stages; 0 of them gain 0. Empty without a plain network.

    Example:
        >>> row = {"dataset": "mine", "seed": 0, "augmentation": "none", "original": 66.0}
        >>> hybrid = {"model": "ce_resnet18", "rotations": 3, "ce_stages": 1, "original": 68.0}
        >>> gains([row | {"model": "resnet18"}, row | hybrid], "mine")
        {0: 0.0, 1: 2.0}
    """
    found: dict[int, float] = {}
    for variant, group in by_variant([row for row in rows if row["dataset"] == dataset]).items():
        usual = variant.augmentation == "none" and not variant.setting
        if usual and variant.in_paper and variant.kind in ("baseline", "ce"):
            found[variant.ce_stages] = statistics.fmean(row["original"] for row in group)
    if 0 not in found:
        return {}
    return {stages: found[stages] - found[0] for stages in sorted(found)}


def score(rows: Sequence[Row], dataset: str) -> float:
    """The mean selectivity of all units of a dataset's plain network.

    Example:
        >>> score([{"dataset": "mine", "layer": "all", "selectivity": 0.7}], "mine")
        0.7
    """
    return statistics.fmean(
        row["selectivity"] for row in rows if row["dataset"] == dataset and row["layer"] == "all"
    )


def table(rows: Sequence[Row], trained: Sequence[Row]) -> Table:
    """Selectivity and gains of every dataset.

    Args:
        rows: of the selectivity of units; the row of all units has the layer ``"all"``.
        trained: of trained networks.

    Example:
        >>> table([{"dataset": "mine", "layer": "all", "selectivity": 0.7, "units": 9}], []).rows
        [('mine', '–', '0.700', '9')]
    """
    datasets = datasets_of(rows)
    found = {dataset: gains(trained, dataset) for dataset in datasets}
    stages = sorted({count for gain in found.values() for count in gain if count})
    lines = []
    for dataset in sorted(datasets, key=lambda name: -score(rows, name)):
        units = sum(r["units"] for r in rows if r["dataset"] == dataset and r["layer"] == "all")
        cells = [dataset_title(dataset), _QUOTED.get(dataset, MISSING)]
        cells += [f"{score(rows, dataset):.3f}", str(units)]
        gain = found[dataset]
        cells += [f"{gain[count]:+.2f}" if count in gain else MISSING for count in stages]
        lines.append(tuple(cells))
    columns = ("dataset", "selectivity, literature", "selectivity, ours", "units")
    title = "Colour selectivity of the plain network, and points gained with CE stages"
    return Table((*columns, *(f"CE-{count}" for count in stages)), lines, title)


def gain_figure(rows: Sequence[Row], trained: Sequence[Row]) -> Figure:
    """The paper's Figure 4: gain over equivariant stages, coloured by selectivity.

    Args:
        rows, trained: as for :func:`table`.

    Example:
        >>> row = {"dataset": "mine", "layer": "all", "selectivity": 0.7, "units": 9}
        >>> len(gain_figure([row], []).axes)
        2
    """
    scores = {dataset: score(rows, dataset) for dataset in datasets_of(rows)}
    span = Normalize(min(0.0, *scores.values()), max(1.0, *scores.values()))
    # Without its end, which is too bright for lines.
    colors = ListedColormap(matplotlib.colormaps["plasma"](np.linspace(0, 0.9, 256)))
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    most = 1
    for index, dataset in enumerate(sorted(scores, key=lambda name: -scores[name])):
        gain = gains(trained, dataset) or {0: 0.0}
        most = max(most, *gain)
        label = f"{dataset_title(dataset)}, selectivity {scores[dataset]:.2f}"
        axes.plot(
            list(gain), list(gain.values()), marker=_MARKERS[index % len(_MARKERS)],
            color=colors(float(span(scores[dataset]))), linewidth=1.8, label=label,
        )  # fmt: skip
    axes.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(most + 1))
    axes.set(xlabel="equivariant stages", ylabel="accuracy gained, points")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    figure.colorbar(ScalarMappable(span, colors), ax=axes, label="colour selectivity")
    return figure
