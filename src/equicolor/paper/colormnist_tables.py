"""Tables and headlines of the ColorMNIST experiments."""

import statistics
from collections.abc import Sequence

from equicolor._text import counted
from equicolor.paper.colormnist import PAPER_BIASED, PAPER_LONGTAILED
from equicolor.paper.colormnist_variants import (
    Variant,
    by_variant,
    gains,
    sigma_label,
    standard_error,
)
from equicolor.reporting.tables import MISSING, Table, mean_and_std
from equicolor.results import Row

__all__ = [
    "biased_table",
    "gains_table",
    "headline",
    "longtailed_table",
    "summary_table",
    "tables",
]


def tables(experiment: str, rows: Sequence[Row]) -> list[Table]:
    """All tables of an experiment: the summary, and what is gained where that is known.

    Args:
        experiment: ``"colormnist-longtailed"`` or ``"colormnist-biased"``.
        rows: of :func:`equicolor.paper.colormnist.run`.
    """
    found = [summary_table(experiment, rows)]
    if experiment == "colormnist-biased":
        found += [table] if (table := gains_table(rows)).rows else []
    return found


def summary_table(experiment: str, rows: Sequence[Row]) -> Table:
    """The table of an experiment: mean ± standard deviation over seeds, beside the paper's.

    Args:
        experiment: ``"colormnist-longtailed"`` or ``"colormnist-biased"``.
        rows: of :func:`equicolor.paper.colormnist.run`.
    """
    make = longtailed_table if experiment == "colormnist-longtailed" else biased_table
    return make(rows)


def longtailed_table(rows: Sequence[Row]) -> Table:
    """Accuracy on long-tailed ColorMNIST, a line for each network and training.

    Example:
        >>> row = {"model": "cecnn", "augmentation": "none", "weighted": False, "epochs": 9}
        >>> longtailed_table([row | {"original": 91.0}, row | {"original": 92.0}]).rows
        [('CECNN', '91.50 ± 0.71', '91.35 ± 0.40', '2')]
    """
    lines = []
    for variant, group in by_variant(rows).items():
        comparable = variant.plain and not variant.setting
        known = PAPER_LONGTAILED.get(variant.model) if comparable else None
        paper = f"{known[0]:.2f} ± {known[1]:.2f}" if known else MISSING
        accuracy = mean_and_std([row["original"] for row in group])
        lines.append((variant.name, accuracy, paper, str(len(group))))
    title = f"Test accuracy in percent, {_epochs(rows)}"
    table = Table(("network", "accuracy", "paper", "seeds"), lines, title)
    return table.without_empty(["paper"])


def biased_table(rows: Sequence[Row]) -> Table:
    """Accuracy on biased ColorMNIST, a line for each network and a column for each σ.

    Example:
        >>> row = {"model": "cecnn", "augmentation": "none", "weighted": False, "epochs": 9}
        >>> biased_table([row | {"original": 96.0, "sigma": 12.0}]).columns
        ('network', 'σ = 12°')
    """
    sigmas = sorted({row["sigma"] for row in rows})
    lines = []
    paper = dict(PAPER_BIASED)
    for variant, group in by_variant(rows).items():
        cells = [
            mean_and_std([row["original"] for row in group if row["sigma"] == sigma])
            for sigma in sigmas
        ]
        lines.append((variant.name, *cells))
        # Below the first line of a network: data drawn once and for every seed compare to it.
        known = paper.pop(variant.model, {}) if variant.plain and not variant.setting else {}
        if known.keys() & set(sigmas):
            cells = [f"{known[sigma]:.2f}" if sigma in known else MISSING for sigma in sigmas]
            lines.append((f"{variant._replace(redrawn=False).name} (paper)", *cells))
    return Table(_columns(sigmas), lines, f"Test accuracy in percent, {_epochs(rows)}")


def gains_table(rows: Sequence[Row]) -> Table:
    """Points above Z2CNN on biased ColorMNIST, a line for each network with several seeds.

    Example:
        >>> row = {"augmentation": "none", "weighted": False, "sigma": 0.0}
        >>> gains_table([
        ...     row | {"model": model, "seed": seed, "original": accuracy + seed}
        ...     for model, accuracy in (("z2cnn", 90.0), ("cecnn", 92.0)) for seed in (0, 1)
        ... ]).rows
        [('CECNN', '+2.00 ± 0.00')]
    """
    sigmas, found = gains(rows)
    lines = [
        (variant.name, *(_gain(list(cell.values())) for cell in cells))
        for variant, cells in found.items()
    ]
    title = "Points above Z2CNN of the same seed (mean ± standard error)"
    return Table(_columns(sigmas), lines, title)


def _columns(sigmas: Sequence[float]) -> tuple[str, ...]:
    return "network", *(f"σ = {sigma_label(sigma)}°" for sigma in sigmas)


def _gain(values: Sequence[float]) -> str:
    if not values:
        return MISSING
    mean = statistics.fmean(values)  # z: no negative zero
    return f"{mean:+z.2f} ± {standard_error(values):.2f}".replace("-", "−")


def _epochs(rows: Sequence[Row]) -> str:
    epochs = sorted({row["epochs"] for row in rows})
    several = len({row.get("seed") for row in rows}) > 1
    spread = " (mean ± standard deviation over seeds)" if several else ""
    plural = "" if epochs == [1] else "s"
    return f"{' and '.join(f'{number:,}' for number in epochs)} epoch{plural}{spread}"


def headline(experiment: str, rows: Sequence[Row]) -> str:
    """CECNN against Z2CNN where both were trained, a sentence for each setting and kind of draw.

    Example:
        >>> row = {"augmentation": "none", "weighted": False}
        >>> pair = [row | {"model": "z2cnn", "original": 70.0}, row | {"model": "cecnn",
        ...         "original": 90.0}]
        >>> headline("colormnist-longtailed", pair)
        'CECNN 90.0 % against Z2CNN 70.0 %: 20.0 points more with as many parameters.'
    """
    groups = by_variant(rows)
    said = [
        _against(variant, _means(group), _means(groups[usual]))
        for variant, group in groups.items()
        if variant.model == "cecnn" and variant.plain
        if (usual := variant._replace(model="z2cnn")) in groups
    ]
    return " ".join(filter(None, said)) or f"{counted(len(rows), 'network')} trained."


_Means = dict[float | None, float]  # over seeds, for each σ if there are any


def _means(rows: Sequence[Row]) -> _Means:
    found: dict[float | None, list[float]] = {}
    for row in rows:
        found.setdefault(row.get("sigma"), []).append(row["original"])
    return {sigma: statistics.fmean(values) for sigma, values in found.items()}


def _against(variant: Variant, means: _Means, usual: _Means) -> str:
    """A sentence on the spreads of the hue that both have; empty if there are none."""
    common = means.keys() & usual.keys()
    if not common:
        return ""
    mean, other = (statistics.fmean(each[sigma] for sigma in common) for each in (means, usual))
    told = []
    if len(common) > 1:
        # Of equal sums of other numbers, rounding is left.
        ahead = sum(means[sigma] - usual[sigma] > 1e-9 for sigma in common)
        told = ["mean over σ", f"ahead at {ahead} of {len(common)}"]
    elif (sigma := next(iter(common))) is not None:
        told = [f"σ = {sigma_label(sigma)}°"]
    told += variant.circumstances
    aside = f" ({'; '.join(told)})" if told else ""
    return (
        f"CECNN {mean:.1f} % against Z2CNN {other:.1f} %{aside}: {abs(mean - other):.1f} points "
        f"{'more' if mean >= other else 'less'} with as many parameters."
    )
