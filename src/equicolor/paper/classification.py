"""Image classification: Tables 1 and 3, Figure 1b and the hue curves of every dataset.

A line of a table is a network and its training: mean ± standard deviation over seeds, beside the
paper's number. Lines of the paper that were not run here have a dash. Networks that the paper does
not have (other numbers of rotations, HSV lifting, grey input) follow the paper's networks of the
same augmentation.

Differences from the paper's training are named: in the title, if all rows share them; else in the
line, which then has no number of the paper.
"""

import csv
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from equicolor._text import counted
from equicolor.evaluation.figures import Curve, hue_panels
from equicolor.evaluation.hue_sweep import hue_shifts
from equicolor.paper import image_jobs
from equicolor.paper.experiment import Experiment, Job, Scope
from equicolor.paper.quick_images import quick_note
from equicolor.paper.rows import Findings, alike, titled
from equicolor.paper.variants import (
    AUGMENTATIONS,
    PAPER_DATASET,
    Variant,
    all_stages,
    by_variant,
    dataset_title,
    datasets_of,
    shared_setting,
    style,
)
from equicolor.reporting.html import Section
from equicolor.reporting.tables import MISSING, Table, difference, mean_and_std
from equicolor.results import Row

_QUICK_NETWORKS = ("baseline", "gray", "ce-2", "ce-4", "hsv-6", "baseline+jitter", "ce-4+jitter")
_DATASETS = (
    "flowers102", "cifar10", "cifar100", "stl10", "oxford_pet", "caltech101", "stanford_cars",
    "imagenet",
)  # fmt: skip
_TEST_SETS = ("original", "hue_mean")
_HYBRID = 2  # equivariant stages of the hybrid in the paper's Table 1
_PANELS = {
    "none": "no colour augmentation",
    "jitter 0.5": "trained with hue jitter",
    "augmix": "trained with AugMix",
}


def plan(scope: Scope) -> list[Job]:
    """Train the networks of the paper's tables on every dataset."""
    networks = scope.networks or (_QUICK_NETWORKS if scope.quick else None)
    return [
        job
        for dataset in image_jobs.datasets_on_disk(scope)
        for job in image_jobs.training_jobs(dataset, networks, scope, scope.actions)
    ]


def show(findings: Findings) -> list[Section]:
    """Sections of each dataset: Table 1 with Figure 1b, Table 3 with all curves, and gains."""
    rows = [row for row in findings.of("classification") if "original" in row]
    datasets = datasets_of(rows)
    sections = []
    for dataset in datasets:
        name = dataset_title(dataset)
        # Figure 1b shows the paper's dataset; if that was not run, all others.
        drawn = dataset == PAPER_DATASET or PAPER_DATASET not in datasets
        figure = figure_1b(rows, dataset) if drawn else None
        infix = "" if dataset == PAPER_DATASET else f"{dataset}-"
        sections += [
            Section(
                name,
                "\n\n".join(filter(None, (quick_note([dataset]), headline(rows, dataset)))),
                table1(rows, dataset),
                figure,
                "As the paper's Figure 1b: accuracy over the hue shift of the test images.",
                "" if figure is None else f"classification-{infix}fig1b",
            ),
            Section(
                f"{name}: all networks",
                "",
                table3(rows, dataset),
                curves := hue_figure(rows, dataset),
                "All networks, a panel for each augmentation (paper, appendix C).",
                "" if curves is None else f"classification-{dataset}",
            ),
        ]
        gained = gains_table(rows, dataset)
        if gained.rows:
            sections.append(Section(f"{name}: compared seed by seed", table=gained))
    return sections


@functools.cache
def paper_numbers() -> dict[tuple[str, Variant, str], str]:
    """The published accuracies of Table 3, by dataset, variant and test set.

    The test sets are ``"original"`` and ``"hue_mean"``, the mean over hue shifts. ImageNet was
    trained once, so it has no deviation.
    """
    text = resources.files("equicolor.paper").joinpath("paper_classification.csv").read_text()
    numbers = {}
    for line in csv.DictReader(text.splitlines()):
        dataset = line["dataset"].replace("oxford-iiit-pet", "oxford_pet").replace("-", "_")
        network = "resnet44" if dataset.startswith("cifar") else "resnet18"
        kind, _, stages = line["model"].partition("-")
        variant = Variant(kind, network)
        if kind == "ceconv":  # without a number, as with AugMix, all stages
            variant = Variant("ce", network, 3, "rgb", int(stages or all_stages(network)))
        augmentation = "jitter 0.5" if line["augmentation"] == "jitter" else line["augmentation"]
        test_set = "original" if line["test_set"] == "original" else "hue_mean"
        deviation = f" ± {float(line['std']):.2f}" if line["std"] else ""
        key = dataset, variant._replace(augmentation=augmentation), test_set
        numbers[key] = f"{float(line['accuracy']):.2f}{deviation}"
    return numbers


def table1(rows: Sequence[Row], dataset: str) -> Table:
    """Table 1 for one dataset: networks and augmentations, paper and ours side by side.

    As in the paper, its only hybrid has two equivariant stages; :func:`table3` has all hybrids.
    """

    def listed(variant: Variant) -> bool:
        return variant.kind != "ce" or variant.full or variant.ce_stages == _HYBRID

    return accuracy_table(_with_published(rows, dataset), dataset, "Table 1, ", listed)


def table3(rows: Sequence[Row], dataset: str) -> Table:
    """Table 3 for one dataset: accuracy by the number of equivariant stages."""

    def listed(variant: Variant) -> bool:
        return variant.kind == "ce" or not variant.gray

    groups = _with_published(rows, dataset)
    return accuracy_table(groups, dataset, "Table 3, ", listed, stages=True)


def _with_published(rows: Sequence[Row], dataset: str) -> dict[Variant, list[Row]]:
    """Our rows of a dataset by variant; variants that only the paper has come without rows."""
    groups = by_variant([row for row in rows if row["dataset"] == dataset])
    published = {variant for place, variant, _ in paper_numbers() if place == dataset}
    variants = sorted(groups.keys() | published, key=lambda variant: variant.rank)
    return {variant: groups.get(variant, []) for variant in variants}


def accuracy_table(
    groups: Mapping[Variant, Sequence[Row]],
    dataset: str,
    name: str = "",
    listed: Callable[[Variant], bool] = lambda variant: True,
    *,
    shifted: str = "hue-shifted",
    stages: bool = False,
    more: Mapping[str, str] = {},
) -> Table:
    """The paper's and our accuracy on original and on shifted images, a line for each variant.

    The title says how all of ours differ from the paper. ``stages`` adds a column with the
    equivariant stages; ``more`` adds columns, by their titles, from keys of rows.
    """
    ours = shared_setting([row for group in groups.values() for row in group], beside_paper=True)
    title = f"{name}{dataset_title(dataset)}: accuracy in percent"
    title += f"; ours: {ours}" if ours else ""
    of_paper = "original, paper", f"{shifted}, paper"
    columns = ["network", *["CE stages"] * stages]
    columns += [of_paper[0], "original, ours", of_paper[1], f"{shifted}, ours", *more, "seeds"]
    lines = []
    for variant in filter(listed, groups):
        group, cells = groups[variant], [variant.name, *[str(variant.ce_stages)] * stages]
        for test_set in _TEST_SETS:
            cells.append(paper_numbers().get((dataset, variant, test_set), MISSING))
            cells.append(mean_and_std(measured(group, test_set)))
        cells += [mean_and_std(measured(group, key)) for key in more.values()]
        lines.append((*cells, str(len(group)) if group else MISSING))
    return Table(columns, lines, title).without_empty(of_paper)


def gains_table(rows: Sequence[Row], dataset: str) -> Table:
    """Points above the plain network that was trained the same way from the same seeds.

    A line for each network that shares several seeds with it.
    """
    groups = by_variant([row for row in rows if row["dataset"] == dataset])
    lines = []
    for variant, group in groups.items():
        baseline = Variant(
            "baseline", variant.network, augmentation=variant.augmentation, setting=variant.setting
        )
        plain = {row.get("seed"): row for row in groups.get(baseline, [])}
        pairs = [(row, plain[row.get("seed")]) for row in group if row.get("seed") in plain]
        if variant == baseline or len(pairs) < 2:  # one difference is mostly noise
            continue
        gained = [_gain(pairs, key) for key in _TEST_SETS]
        lines.append((variant.name, *gained, str(len(pairs))))
    title = f"{dataset_title(dataset)}: points above the plain network of the same seed"
    columns = "network", "original", "hue-shifted", "seeds"
    return Table(columns, lines, f"{title} (mean ± standard error)")


def _gain(pairs: Sequence[tuple[Row, Row]], key: str) -> str:
    """The mean difference over the pairs in which both rows were measured."""
    complete = [pair for pair in pairs if len(measured(pair, key)) == 2]
    return difference([row[key] - plain[key] for row, plain in complete])


def measured(rows: Sequence[Row], key: str) -> list[Any]:
    """The values of a key in the rows that have one."""
    return [row[key] for row in rows if row.get(key) is not None]


def headline(rows: Sequence[Row], dataset: str) -> str:
    """Our most robust network of a dataset, for each kind of augmentation, in words.

    The paper's highest numbers stand beside it if its training is the paper's or that of all rows.
    """
    rows = [row for row in rows if row["dataset"] == dataset]
    groups, ours = by_variant(rows), shared_setting(rows, beside_paper=True)
    name = dataset_title(dataset) + (f" ({ours})" if ours else "")
    sentences = []
    for kind in ("without augmentation", "with AugMix", "with colour augmentation"):
        means = {
            variant: [statistics.fmean(row[key] for row in group) for key in _TEST_SETS]
            for variant, group in groups.items()
            if _augmentation_kind(variant) == kind
            and all(row.get(key) is not None for row in group for key in _TEST_SETS)
        }
        if not means:
            continue
        best = max(means, key=lambda variant: means[variant][1])
        original, shifted = means[best]
        published = [
            [
                float(number.partition(" ")[0])
                for (place, variant, test_set), number in paper_numbers().items()
                if (place, test_set, _augmentation_kind(variant)) == (dataset, key, kind)
            ]
            for key in _TEST_SETS
        ]
        paper = ""
        if all(published) and not best.setting:
            highest = " and ".join(f"{max(values):.1f}" for values in published)
            paper = f"; the paper's highest are {highest}"
        sentences.append(
            f"{best.name} reaches {original:.1f} % and {shifted:.1f} % when hues "
            f"are shifted ({kind}{paper})"
        )
    if not sentences:
        return f"{name}: {counted(len(groups), 'network')}, none of them swept over hues."
    return f"{name}: {'. '.join(sentences)}."


def _augmentation_kind(variant: Variant) -> str:
    if variant.augmentation == "none":
        return "without augmentation"
    colours = "jitter" in variant.augmentation or "augmix full" in variant.augmentation
    return "with colour augmentation" if colours else "with AugMix"


def figure_1b(rows: Sequence[Row], dataset: str = PAPER_DATASET) -> Figure | None:
    """The paper's Figure 1b: plain, grey and equivariant networks, with and without jitter.

    Beside them are our networks with HSV lifting and the most rotations. Rows are those of
    :func:`equicolor.paper.rows.alike`. None if no row of the dataset has a hue curve.
    """
    swept = alike(_swept(rows, dataset))
    groups = by_variant(swept)

    def comparable(variant: Variant) -> bool:
        return not variant.setting and variant.augmentation in AUGMENTATIONS[:2]

    most: dict[str, int] = {}  # rotations of networks with HSV lifting, by augmentation
    for variant in filter(comparable, groups):
        if variant.lifting == "hsv" and variant.full:
            before = most.get(variant.augmentation, 0)
            most[variant.augmentation] = max(before, variant.rotations)

    def shown(variant: Variant) -> bool:
        if not comparable(variant):
            return False
        if variant.gray:
            return (variant.kind, variant.augmentation) == ("baseline", "none")
        if variant.kind == "ce":
            best = most.get(variant.augmentation)
            ours = (variant.lifting, variant.rotations) == ("hsv", best)
            return variant.full and (variant.in_paper or ours)
        return variant.kind == "baseline"

    curves = [
        mean_curve(group, "hue_curve", variant.name, style(variant))
        for variant, group in groups.items()
        if shown(variant)
    ]
    panel = titled(dataset_title(dataset), shared_setting(swept))
    return hue_panels({panel: curves}, width=8.0) if curves else None


def hue_figure(rows: Sequence[Row], dataset: str) -> Figure | None:
    """The hue curves of all networks trained on a dataset, a panel for each augmentation.

    Curves are means over seeds, with a band of one standard deviation. None if no row of the
    dataset has a hue curve.
    """
    panels: dict[str, list[Curve]] = {}
    swept = _swept(rows, dataset)
    setting = shared_setting(swept)
    for variant, group in by_variant(swept).items():
        words, label = "trained otherwise", variant.name
        if variant.augmentation in _PANELS:  # the title of the panel names it
            words = _PANELS[variant.augmentation]
            label = variant._replace(augmentation="none").name
        panel = titled(dataset_title(dataset), words, setting)
        curve = mean_curve(group, "hue_curve", label, style(variant))
        panels.setdefault(panel, []).append(curve)
    return hue_panels(panels) if panels else None


def _swept(rows: Sequence[Row], dataset: str) -> list[Row]:
    """The rows of a dataset that have hue curves."""
    return [row for row in rows if row["dataset"] == dataset and row.get("hue_curve")]


def mean_curve(group: Sequence[Row], key: str, label: str, style: dict[str, Any]) -> Curve:
    """The mean over seeds, with the standard deviation."""
    swept = [
        row.get(f"{key.removesuffix('_curve')}_values")  # of actions whose values are not turns
        or hue_shifts(row.get("shifts") or len(row[key])).tolist()
        for row in group
    ]
    # Rows that were swept over other values than the first row cannot be averaged with it.
    same = [row[key] for row, values in zip(group, swept, strict=True) if values == swept[0]]
    accuracy = np.array(same)
    deviation = accuracy.std(0, ddof=1).tolist() if len(accuracy) > 1 else ()
    return Curve(label, swept[0], accuracy.mean(0).tolist(), deviation, style)


EXPERIMENT = Experiment(
    id="classification",
    title="Image classification",
    paper="Tables 1, 3, Fig. 1b, App. C",
    finding="Equivariant networks are on par with plain ones on the original test sets and far "
    "more robust to hue shifts; with hue jitter they are best of all.",
    what="accuracy on real images, original and with shifted hues",
    full="2 h a seed and dataset",
    quick="2 min",
    plan=plan,
    show=show,
    data=_DATASETS,
    options=("datasets", "networks", "seeds", "epochs", "size", "actions"),
)
