"""Tables and figures of the ColorMNIST experiments beside the paper's, from rows of results."""

import statistics
from collections.abc import Sequence

from equicolor._text import counted
from equicolor.data import (
    ColorMNIST,
    Digits,
    MissingDataError,
    biased_colormnist,
    data_root,
    load_mnist,
    longtailed_colormnist,
)
from equicolor.data.mnist import EMBEDDED_SOURCE, FULL_SOURCE
from equicolor.paper.colormnist_figures import (
    hue_figure,
    per_class_figure,
    sample_sheet,
    sigma_figure,
)
from equicolor.paper.colormnist_hues import HUE_IMAGES, HUE_SHIFTS
from equicolor.paper.colormnist_variants import (
    Variant,
    by_variant,
    curves_of,
    gains,
    sigma_label,
    standard_error,
)
from equicolor.paper.rows import Findings
from equicolor.reporting.html import Section
from equicolor.reporting.tables import MISSING, Table, mean_and_std
from equicolor.results import Row

__all__ = [
    "biased_table", "digits_of", "gains_table", "headline", "longtailed_table", "show_biased",
    "show_longtailed", "tables",
]  # fmt: skip

LONGTAILED, BIASED = "colormnist-longtailed", "colormnist-biased"
# Mean over ten seeds and the deviation given with it, in percent (paper, section 4.1).
PAPER_LONGTAILED = {
    "z2cnn": (71.59, 0.61),
    "z2cnn-gray": (24.19, 0.53),
    "cecnn": (91.35, 0.40),
    "cecnn-pooled": (29.43, 0.46),
}
# At the two ends of sigma (section 4.1); the curves between are only plotted there.
PAPER_BIASED = {"z2cnn-gray": {0.0: 89.89, 1e6: 79.94}}
_NETWORKS = """Z2CNN is a plain seven-layer network, CECNN the colour-equivariant one with as many
parameters"""
_ABOUT_LONGTAILED = f"""Ten digits in three colours are thirty classes. Some have a hundred
training images, others one or two; the test set has equally many of each. A network that shares
what it learns about a shape between colours can read a rare class from the frequent ones of the
same digit. {_NETWORKS}."""
_ABOUT_BIASED = f"""Every digit has its own hue, and the hue of an image deviates from it by σ
degrees. At σ = 0 the colour gives the class away, at σ = 10⁶ only the shape is left.
{_NETWORKS}; coset pooling makes it invariant to hue."""


def show_longtailed(findings: Findings) -> list[Section]:
    """Accuracy of every class (Figure 2a), variants of training, hue curves and samples."""
    rows = findings.of(LONGTAILED)
    if not rows:
        return []
    digits = digits_of(rows)
    # Any digits do for the sizes of the classes.
    data = longtailed_colormnist(digits or load_mnist(embedded=True), test_per_class=1)
    plain = [row for row in rows if row["augmentation"] == "none" and not row["weighted"]]
    changed = [row for row in rows if row not in plain]
    shown = [
        Section(
            "Accuracy of every class",
            f"{_ABOUT_LONGTAILED}\n\n{headline(rows)}",
            longtailed_table(rows),
            per_class_figure(plain or rows, data),
            f"Bars: training images of a class. Curves: test accuracy. {_bars(rows)} "
            f"Trained on: {_sources(rows)}.",
            LONGTAILED,
        )
    ]
    if plain and changed:
        shown.append(
            Section(
                "With jitter or a weighted loss",
                figure=per_class_figure(changed, data),
                caption="Hue jitter hides the colour, which is part of the class here. "
                + _bars(rows),
                file=f"{LONGTAILED}-variants",
            )
        )
    curves = {row["model"]: row["hue_curve"] for row in rows if row.get("hue_curve")}
    if curves:
        shown.append(
            Section(
                "Shifted hues",
                figure=hue_figure(HUE_SHIFTS.tolist(), curves),
                caption="Digits in the colour each was seen most often, shifted to others: how "
                "often a network still reads the digit; the colour it names does not count. First "
                f"seed, {HUE_IMAGES} test images of each.",
                file=f"{LONGTAILED}-hue",
            )
        )
    shown.append(_samples(LONGTAILED, rows, digits, "with the number there are", [data]))
    return shown


def show_biased(findings: Findings) -> list[Section]:
    """Accuracy over the spread of the hue (Figure 2b), gains over the plain network, samples."""
    rows = findings.of(BIASED)
    if not rows:
        return []
    digits, gained = digits_of(rows), gains_table(rows)
    caption = _bars(rows)
    if gained.rows:
        caption += " Below: gain over Z2CNN of the same seed, with the standard error."
    shown = [
        Section(
            "Accuracy over the spread of the hue",
            f"{_ABOUT_BIASED}\n\n{headline(rows)}",
            biased_table(rows),
            sigma_figure(rows),
            f"{caption} Trained on: {_sources(rows)}.",
            BIASED,
        )
    ]
    if gained.rows:
        shown.append(Section("Compared seed by seed", table=gained))
    sigmas = sorted({row["sigma"] for row in rows})
    some = sorted({sigmas[0], sigmas[len(sigmas) // 2], sigmas[-1]})
    data = [] if digits is None else [biased_colormnist(s, digits, test_size=1) for s in some]
    shown.append(_samples(BIASED, rows, digits, "for some spreads of the hue", data))
    return shown


def _samples(
    experiment: str,
    rows: Sequence[Row],
    digits: Digits | None,
    words: str,
    data: Sequence[ColorMNIST],
) -> Section:
    """The sheet of training images, or why there is none."""
    text, caption, figure = "", "", None
    if digits is None:
        missing = f"{_sources(rows)}, is missing or damaged in {data_root()}"
        text = f"Not drawn: what was trained on, {missing}."
    else:
        caption = f"The first training images of every class, {words}. Digits: {digits.source}."
        figure = sample_sheet(data)
    return Section("The images", text, None, figure, caption, f"{experiment}-samples")


def digits_of(rows: Sequence[Row]) -> Digits | None:
    """The digits that rows were trained on: the full set if any row has it."""
    sources = {row["digits"] for row in rows}
    for source in (FULL_SOURCE, EMBEDDED_SOURCE):
        if source in sources:
            try:
                return load_mnist(embedded=source == EMBEDDED_SOURCE)
            except (MissingDataError, ValueError):  # damaged
                continue
    return None


def _sources(rows: Sequence[Row]) -> str:
    return " and ".join(sorted({row["digits"] for row in rows}))


def _bars(rows: Sequence[Row]) -> str:
    several = len({row["seed"] for row in rows}) > 1
    return "Mean over seeds; error bars are one standard deviation." if several else "One seed."


def tables(experiment: str, rows: Sequence[Row]) -> list[Table]:
    """All tables of an experiment: accuracies, and gains over the plain network if known."""
    if experiment == LONGTAILED:
        return [longtailed_table(rows)]
    gained = gains_table(rows)
    return [biased_table(rows), *([gained] if gained.rows else [])]


def longtailed_table(rows: Sequence[Row]) -> Table:
    """Accuracy on long-tailed ColorMNIST, a line for each network and training."""
    lines = []
    for variant, group in by_variant(rows).items():
        comparable = variant.plain and not variant.setting
        published = PAPER_LONGTAILED.get(variant.model) if comparable else None
        paper = f"{published[0]:.2f} ± {published[1]:.2f}" if published else MISSING
        accuracy = mean_and_std([row["original"] for row in group])
        lines.append((variant.name, accuracy, paper, str(len(group))))
    title = f"Test accuracy in percent, {_epochs(rows)}"
    table = Table(("network", "accuracy", "paper", "seeds"), lines, title)
    return table.without_empty(["paper"])


def biased_table(rows: Sequence[Row]) -> Table:
    """Accuracy on biased ColorMNIST, a line for each network and a column for each σ."""
    sigmas = sorted({row["sigma"] for row in rows})
    lines = []
    paper = dict(PAPER_BIASED)
    for variant, group in by_variant(rows).items():
        cells = [
            mean_and_std([row["original"] for row in group if row["sigma"] == sigma])
            for sigma in sigmas
        ]
        lines.append((variant.name, *cells))
        # Below the first line of a network; data drawn once or for every seed compare to it.
        numbers = paper.pop(variant.model, {}) if variant.plain and not variant.setting else {}
        if numbers.keys() & set(sigmas):
            cells = [f"{numbers[sigma]:.2f}" if sigma in numbers else MISSING for sigma in sigmas]
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
    sigmas, curves = curves_of(rows)
    lines = [
        (variant.name, *(_gain(list(cell.values())) for cell in cells))
        for variant, cells in gains(curves).items()
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


def headline(rows: Sequence[Row]) -> str:
    """CECNN against Z2CNN where both were trained, a sentence for each setting and kind of draw."""
    groups = by_variant(rows)
    sentences = [
        _against(variant, _means(group), _means(groups[plain]))
        for variant, group in groups.items()
        if variant.model == "cecnn" and variant.plain
        if (plain := variant._replace(model="z2cnn")) in groups
    ]
    return " ".join(filter(None, sentences)) or f"{counted(len(rows), 'network')} trained."


_Means = dict[float | None, float]  # over seeds, for each σ if there are any


def _means(rows: Sequence[Row]) -> _Means:
    accuracies: dict[float | None, list[float]] = {}
    for row in rows:
        accuracies.setdefault(row.get("sigma"), []).append(row["original"])
    return {sigma: statistics.fmean(values) for sigma, values in accuracies.items()}


def _against(variant: Variant, means: _Means, plain: _Means) -> str:
    """A sentence on the spreads of the hue that both have; empty if there are none."""
    common = means.keys() & plain.keys()
    if not common:
        return ""
    mean, other = (statistics.fmean(each[sigma] for sigma in common) for each in (means, plain))
    notes = []
    if len(common) > 1:
        # More than rounding: equal means may come from sums of other numbers.
        ahead = sum(means[sigma] - plain[sigma] > 1e-9 for sigma in common)
        notes = ["mean over σ", f"ahead at {ahead} of {len(common)}"]
    elif (sigma := next(iter(common))) is not None:
        notes = [f"σ = {sigma_label(sigma)}°"]
    notes += variant.circumstances
    aside = f" ({'; '.join(notes)})" if notes else ""
    return (
        f"CECNN {mean:.1f} % against Z2CNN {other:.1f} %{aside}: {abs(mean - other):.1f} points "
        f"{'more' if mean >= other else 'less'} with as many parameters."
    )
