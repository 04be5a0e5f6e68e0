"""Tables and headlines of the ColorMNIST experiments beside the paper's, from rows of results."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from equicolor._text import counted
from equicolor.paper.rows import in_words
from equicolor.paper.variants import TOY_NETWORKS, Variant
from equicolor.reporting.tables import MISSING, Table, difference, mean_and_std
from equicolor.results import Row

_TRAININGS = ("none", "jitter 0.5", "weighted loss")  # in the order of the tables
# Mean over ten seeds and the deviation given with it, in percent (paper, section 4.1).
PAPER_LONGTAILED = {
    "z2cnn": "71.59 ± 0.61",
    "z2cnn-gray": "24.19 ± 0.53",
    "cecnn": "91.35 ± 0.40",
    "cecnn-pooled": "29.43 ± 0.46",
}
# At the two ends of σ (section 4.1); the paper only plots the curves between them.
PAPER_BIASED = {"z2cnn-gray": {0.0: "89.89", 1e6: "79.94"}}

Cells = dict[float | None, dict[int, float]]  # accuracy by σ and seed; long-tailed rows have no σ


def by_training(rows: Sequence[Row]) -> dict[Variant, list[Row]]:
    """Rows grouped by network and training, in the paper's order, variants last.

    If epochs, digits or precision differ among the rows, the ``setting`` of a variant has them.
    Rows whose data were drawn for every seed come after all others.
    """
    keys = "epochs", "digits", "precision"
    varying = [key for key in keys if len({row.get(key) for row in rows}) > 1]
    groups: dict[Variant, list[Row]] = {}
    for row in rows:
        words = [
            str(row[key]) if key == "digits" else in_words({key: row[key]})
            for key in varying
            if key in row
        ]
        trainings = [row["augmentation"]] * (row["augmentation"] != "none")
        trainings += ["weighted loss"] * row["weighted"]
        variant = Variant(
            "other",
            row["model"],
            augmentation=" + ".join(trainings) or "none",
            setting=", ".join(words),
            redrawn="data_seed" in row,
        )
        groups.setdefault(variant, []).append(row)

    def rank(variant: Variant) -> tuple[bool, int, int]:
        # Names that are not in a list come after it.
        training = [*_TRAININGS, variant.augmentation].index(variant.augmentation)
        network = [*TOY_NETWORKS, variant.network].index(variant.network)
        return variant.redrawn, training, network

    return {variant: groups[variant] for variant in sorted(groups, key=rank)}


def curves_of(rows: Sequence[Row]) -> dict[Variant, Cells]:
    """The accuracy of every seed of every variant, for each σ."""
    curves: dict[Variant, Cells] = {}
    for variant, group in by_training(rows).items():
        cells = curves[variant] = {}
        for row in group:
            cells.setdefault(row.get("sigma"), {})[row.get("seed", 0)] = row["original"]
    return curves


def gains(curves: Mapping[Variant, Cells]) -> dict[Variant, Cells]:
    """The gain of networks over the plain one, seed by seed.

    Networks without colour are left out: they lose so much that the other curves would look flat.
    So are those that share only one seed with the plain one: that difference is mostly noise.
    """
    differences: dict[Variant, Cells] = {}
    for variant, cells in curves.items():
        plain = curves.get(variant._replace(network="z2cnn"), {})
        if variant.network in ("z2cnn", "z2cnn-gray") or variant.augmentation != "none":
            continue
        for sigma in cells.keys() & plain.keys():
            cell, other = cells[sigma], plain[sigma]
            gained = {seed: cell[seed] - other[seed] for seed in cell if seed in other}
            if len(gained) > 1:
                differences.setdefault(variant, {})[sigma] = gained
    return differences


def sigmas_of(rows: Sequence[Row]) -> list[float]:
    """All σ of rows, in order."""
    return sorted({row["sigma"] for row in rows})


def sigma_label(sigma: float) -> str:
    """Degrees for an axis or a table; high powers of ten are written as powers."""
    power = round(math.log10(sigma)) if sigma >= 1e5 else 0
    if power and sigma == 10.0**power:
        return "10" + str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{sigma:.10g}"


def longtailed_table(rows: Sequence[Row]) -> Table:
    """Accuracy on long-tailed ColorMNIST, a line for each network and training."""
    lines = []
    for variant, group in by_training(rows).items():
        published = PAPER_LONGTAILED.get(variant.network) if _as_in_paper(variant) else None
        accuracy = mean_and_std([row["original"] for row in group])
        lines.append((variant.name, accuracy, published or MISSING, str(len(group))))
    columns = ("network", "accuracy", "paper", "seeds")
    return Table(columns, lines, _title(rows)).without_empty(["paper"])


def biased_table(rows: Sequence[Row]) -> Table:
    """Accuracy on biased ColorMNIST, a line for each network and a column for each σ."""
    sigmas, paper = sigmas_of(rows), dict(PAPER_BIASED)
    lines = []
    for variant, cells in curves_of(rows).items():
        lines.append((variant.name, *(mean_and_std(v) for v in _values(cells, sigmas))))
        # Below the first line of a network only: it is the same for both ways to draw data.
        numbers = paper.pop(variant.network, {}) if _as_in_paper(variant) else {}
        if numbers.keys() & set(sigmas):
            name = f"{variant.network_name} (paper)"
            lines.append((name, *(numbers.get(sigma, MISSING) for sigma in sigmas)))
    return Table(_columns(sigmas), lines, _title(rows))


def gains_table(rows: Sequence[Row]) -> Table:
    """Points above Z2CNN on biased ColorMNIST, a line for each network with several seeds."""
    sigmas = sigmas_of(rows)
    lines = [
        (variant.name, *map(difference, _values(cells, sigmas)))
        for variant, cells in gains(curves_of(rows)).items()
    ]
    title = "Points above Z2CNN of the same seed (mean ± standard error)"
    return Table(_columns(sigmas), lines, title)


def _as_in_paper(variant: Variant) -> bool:
    return variant.augmentation == "none" and not variant.setting


def _values(cells: Cells, sigmas: Iterable[float]) -> list[list[float]]:
    """The accuracies of all seeds at every σ."""
    return [list(cells.get(sigma, {}).values()) for sigma in sigmas]


def _columns(sigmas: Sequence[float]) -> tuple[str, ...]:
    return "network", *(f"σ = {sigma_label(sigma)}°" for sigma in sigmas)


def _title(rows: Sequence[Row]) -> str:
    *fewer, most = sorted({row["epochs"] for row in rows})
    epochs = " and ".join([*(f"{number:,}" for number in fewer), counted(most, "epoch")])
    several = len({row.get("seed") for row in rows}) > 1
    spread = " (mean ± standard deviation over seeds)" if several else ""
    return f"Test accuracy in percent, {epochs}{spread}"


def headline(rows: Sequence[Row]) -> str:
    """CECNN against Z2CNN, a sentence for each setting and way to draw data that both have."""
    curves = curves_of(rows)
    sentences = [
        _against(variant, cells, curves.get(variant._replace(network="z2cnn"), {}))
        for variant, cells in curves.items()
        if variant.network == "cecnn" and variant.augmentation == "none"
    ]
    return " ".join(filter(None, sentences)) or f"{counted(len(rows), 'network')} trained."


def _against(variant: Variant, cells: Cells, plain_cells: Cells) -> str:
    """A sentence about the spreads of the hue that both have; empty if they share none."""
    common = cells.keys() & plain_cells.keys()
    if not common:
        return ""
    means, plain_means = (
        {sigma: statistics.fmean(each[sigma].values()) for sigma in common}
        for each in (cells, plain_cells)
    )
    mean, plain = statistics.fmean(means.values()), statistics.fmean(plain_means.values())
    notes = []
    if len(common) > 1:
        # By more than rounding: equal means may come from sums of different numbers.
        ahead = sum(means[sigma] - plain_means[sigma] > 1e-9 for sigma in common)
        notes = ["mean over σ", f"ahead at {ahead} of {len(common)}"]
    elif (sigma := next(iter(common))) is not None:
        notes = [f"σ = {sigma_label(sigma)}°"]
    notes += variant.circumstances
    aside = f" ({'; '.join(notes)})" if notes else ""
    return (
        f"CECNN {mean:.1f} % against Z2CNN {plain:.1f} %{aside}: {abs(mean - plain):.1f} points "
        f"{'more' if mean >= plain else 'less'} with as many parameters."
    )
