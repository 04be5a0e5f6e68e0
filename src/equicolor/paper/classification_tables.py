"""Tables 1 and 3 of the paper beside our own numbers, from rows of results.

A line holds one network trained one way: mean ± standard deviation over seeds, and what the
paper reports for it. Lines of the paper that we have not run are there with a dash; networks
the paper does not have (other numbers of rotations, exact HSV lifting, grey input beside the
hybrids) follow those it has, within the same augmentation. Columns of the paper are left out
where it has no number at all, as of a dataset of your own.

Training that is not the paper's is named: in the title, beside the paper's, if all rows have it
in common; else in the line, which then has no number of the paper.
"""

import csv
import functools
from collections.abc import Callable, Sequence
from importlib import resources
from typing import NamedTuple

from equicolor.paper.classification_variants import (
    Variant,
    all_stages,
    by_variant,
    dataset_title,
    datasets_of,
    shared_setting,
)
from equicolor.reporting.tables import MISSING, Table, mean_and_std
from equicolor.results import Row

__all__ = ["PaperCell", "markdown", "paper_numbers", "table1", "table3", "title"]

_PAPER_AUGMENTATION = {"none": "none", "jitter": "jitter 0.5", "augmix": "augmix"}
_PAPER_DATASET = {"oxford-iiit-pet": "oxford_pet", "stanford-cars": "stanford_cars"}
_HYBRID = 2  # the one of the paper's Table 1


class PaperCell(NamedTuple):
    """A number of the paper; ImageNet was trained once, so it has no deviation."""

    accuracy: float
    deviation: float | None

    def __str__(self) -> str:
        deviation = "" if self.deviation is None else f" ± {self.deviation:.2f}"
        return f"{self.accuracy:.2f}{deviation}"


@functools.cache
def paper_numbers() -> dict[tuple[str, Variant, str], PaperCell]:
    """The published accuracies of Table 3, by dataset, variant and test set.

    The test sets are ``"original"`` and ``"hue_mean"``, the mean over hue shifts.

    Example:
        >>> plain = Variant("baseline", "resnet18", 1, "", 0, "none")
        >>> str(paper_numbers()["flowers102", plain, "hue_mean"])
        '13.41 ± 0.34'
    """
    text = resources.files("equicolor.paper").joinpath("paper_classification.csv").read_text()
    found = {}
    for line in csv.DictReader(text.splitlines()):
        dataset = _PAPER_DATASET.get(line["dataset"], line["dataset"])
        network = "resnet44" if dataset.startswith("cifar") else "resnet18"
        augmentation = _PAPER_AUGMENTATION[line["augmentation"]]
        kind, _, stages = line["model"].partition("-")
        if kind == "ceconv":  # without a number, as with AugMix, all stages
            chosen = int(stages) if stages else all_stages(network)
            variant = Variant("ce", network, 3, "rgb", chosen, augmentation)
        else:
            variant = Variant(kind, network, 1, "", 0, augmentation)
        test_set = "original" if line["test_set"] == "original" else "hue_mean"
        deviation = float(line["std"]) if line["std"] else None
        found[dataset, variant, test_set] = PaperCell(float(line["accuracy"]), deviation)
    return found


def table1(rows: Sequence[Row], dataset: str) -> Table:
    """Table 1 for one dataset: networks and augmentations, paper and ours side by side.

    Of the hybrids it has the one with two equivariant stages, as the paper; :func:`table3`
    has them all.

    Args:
        rows: of any datasets.
        dataset: which.

    Example:
        >>> row = {"model": "resnet18", "dataset": "flowers102", "augmentation": "none",
        ...        "epochs": 200, "seed": 0, "original": 67.0, "hue_mean": 13.0}
        >>> table1([row], "flowers102").rows[0]
        ('ResNet-18', '66.79 ± 0.89', '67.00', '13.41 ± 0.34', '13.00', '1')
    """

    def wanted(variant: Variant) -> bool:
        return variant.kind != "ce" or variant.full or variant.ce_stages == _HYBRID

    return _table(rows, dataset, "Table 1", wanted)


def table3(rows: Sequence[Row], dataset: str) -> Table:
    """Table 3 for one dataset: accuracy by the number of equivariant stages.

    Args:
        rows: of any datasets.
        dataset: which.

    Example:
        >>> row = {"model": "ce_resnet44", "rotations": 3, "ce_stages": 1, "dataset": "cifar10",
        ...        "epochs": 30, "seed": 0, "original": 90.0, "hue_mean": 88.0}
        >>> table3([row], "cifar10").title
        'Table 3, CIFAR-10: accuracy in percent; ours: 30 epochs instead of 200'
        >>> table3([row], "cifar10").rows[2]
        ('CE-ResNet-44-1', '1', '94.06 ± 0.09', '90.00', '91.93 ± 0.14', '88.00', '1')
    """

    def wanted(variant: Variant) -> bool:
        return variant.kind == "ce" or not variant.gray

    return _table(rows, dataset, "Table 3", wanted, stages_column=True)


def _table(
    rows: Sequence[Row],
    dataset: str,
    name: str,
    wanted: Callable[[Variant], bool],
    *,
    stages_column: bool = False,
) -> Table:
    own = [row for row in rows if row["dataset"] == dataset]
    groups = by_variant(own)
    published = {variant for place, variant, _ in paper_numbers() if place == dataset}
    lines = []
    for variant in sorted(groups.keys() | published, key=lambda found: found.rank):
        if not wanted(variant):
            continue
        group = groups.get(variant, [])
        cells = [variant.name, *([str(variant.ce_stages)] if stages_column else [])]
        for test_set in ("original", "hue_mean"):
            known = paper_numbers().get((dataset, variant, test_set))
            values = [row[test_set] for row in group if row.get(test_set) is not None]
            cells += [MISSING if known is None else str(known), mean_and_std(values)]
        lines.append((*cells, str(len(group)) if group else MISSING))
    columns = ["network", *(["CE stages"] if stages_column else [])]
    of_paper = "original, paper", "hue-shifted, paper"
    columns += [of_paper[0], "original, ours", of_paper[1], "hue-shifted, ours", "seeds"]
    table = Table(tuple(columns), lines, f"{name}, {title(own, dataset)}")
    return table.without_empty(of_paper)


def title(rows: Sequence[Row], dataset: str) -> str:
    """The title of a table: dataset, measure, and how all of ours differ from the paper's.

    Args:
        rows: those of the table.
        dataset: which.

    Example:
        >>> title([{"model": "resnet18", "dataset": "flowers102", "size": 64}], "flowers102")
        'Flowers-102: accuracy in percent; ours: 64 pixels instead of 224'
    """
    ours = shared_setting(rows, beside_paper=True)
    return f"{dataset_title(dataset)}: accuracy in percent" + (f"; ours: {ours}" if ours else "")


def markdown(rows: Sequence[Row]) -> str:
    """Tables 1 and 3 of every dataset that has rows, as a page.

    Example:
        >>> row = {"model": "resnet18", "dataset": "flowers102", "seed": 0, "original": 67.0}
        >>> markdown([row]).splitlines()[0]
        '## Flowers-102'
    """
    parts = []
    for dataset in datasets_of(rows):
        parts.append(f"## {dataset_title(dataset)}")
        for table in (table1(rows, dataset), table3(rows, dataset)):
            parts += [f"**{table.title}**", table.markdown()]
    return "\n\n".join(parts) + "\n"
