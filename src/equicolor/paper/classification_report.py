"""Rows of the classification experiments as files: tables and figures."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from equicolor._files import output_folder, write_whole
from equicolor._text import counted
from equicolor.paper.classification_figures import FIGURE_1B, figure_1b, hue_figure
from equicolor.paper.classification_tables import markdown, paper_numbers
from equicolor.paper.classification_variants import (
    by_variant,
    dataset_title,
    datasets_of,
    shared_setting,
)
from equicolor.reporting.figures import png
from equicolor.results import Row

__all__ = ["headline", "write"]

TABLES = "classification.md"
_TEST_SETS = "original", "hue_mean"


def write(rows: Sequence[Row], output: Path | str) -> list[Path]:
    """Write Tables 1 and 3, Figure 1b and the hue curves of every dataset that has rows.

    Files of an earlier call are replaced.

    Args:
        rows: of ``results/classification.json``.
        output: the folder; created if missing.

    Returns:
        What was written: ``classification.md``, and ``classification-*.png`` for those
        datasets that have hue curves.

    Example:
        >>> import tempfile
        >>> row = {"model": "resnet18", "dataset": "cifar10", "seed": 0, "original": 90.0}
        >>> curve = {"hue_mean": 80.0, "hue_curve": [80.0] * 37}
        >>> [path.name for path in write([row | curve], tempfile.mkdtemp())]
        ['classification.md', 'classification-cifar10.png']
    """
    if not rows:
        raise ValueError("no rows to make tables and figures of")
    folder = output_folder(output)
    tables = folder / TABLES
    write_whole(tables, markdown(rows))
    figures = {"fig1b": figure_1b(rows, FIGURE_1B)}
    figures |= {name: hue_figure(rows, name) for name in datasets_of(rows)}
    written = [tables]
    for name, figure in figures.items():
        if figure is not None:
            path = folder / f"classification-{re.sub('[^A-Za-z0-9.+_-]', '_', name)}.png"
            written.append(write_whole(path, png(figure)))
    return written


def headline(rows: Sequence[Row], dataset: str) -> str:
    """One sentence for one dataset: our most robust network for each kind of augmentation.

    The paper's highest numbers are beside it unless its training has a line of its own.

    Args:
        rows: of any datasets.
        dataset: which.

    Example:
        >>> row = {"model": "ce_resnet18", "rotations": 12, "lifting": "hsv", "seed": 0,
        ...        "dataset": "flowers102", "original": 71.0, "hue_mean": 70.0}
        >>> headline([row], "flowers102").partition(" (without")[0]
        'Flowers-102: CE-ResNet-18 (HSV, n = 12) reaches 71.0 % and 70.0 % when hues are shifted'
    """
    own = [row for row in rows if row["dataset"] == dataset]
    groups, ours = by_variant(own), shared_setting(own, beside_paper=True)
    title = dataset_title(dataset) + (f" ({ours})" if ours else "")
    sentences = []
    for kind in ("without augmentation", "with AugMix", "with colour augmentation"):
        means = {
            variant: tuple(statistics.fmean(row[key] for row in group) for key in _TEST_SETS)
            for variant, group in groups.items()
            if _kind(variant.augmentation) == kind
            and all(row.get(key) is not None for row in group for key in _TEST_SETS)
        }
        if not means:
            continue
        best = max(means, key=lambda variant: means[variant][1])
        published = [
            [
                cell.accuracy
                for (place, variant, test_set), cell in paper_numbers().items()
                if (place, test_set, _kind(variant.augmentation)) == (dataset, key, kind)
            ]
            for key in _TEST_SETS
        ]
        paper = ""
        if all(published) and not best.setting:
            highest = " and ".join(f"{max(values):.1f}" for values in published)
            paper = f"; the paper's highest are {highest}"
        sentences.append(
            f"{best.name} reaches {means[best][0]:.1f} % and {means[best][1]:.1f} % when hues "
            f"are shifted ({kind}{paper})"
        )
    if not sentences:
        return f"{title}: {counted(len(groups), 'network')}, none of them swept over hues."
    return f"{title}: {'. '.join(sentences)}."


def _kind(augmentation: str) -> str:
    if augmentation == "none":
        return "without augmentation"
    colours = "jitter" in augmentation or "augmix full" in augmentation
    return "with colour augmentation" if colours else "with AugMix"
