"""Rows of the ColorMNIST experiments by network and training, and what one gains over another."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from equicolor.paper.settings import in_words
from equicolor.results import Row

__all__ = [
    "NAMES",
    "REDRAWN",
    "Cells",
    "Variant",
    "by_variant",
    "curves_of",
    "gained",
    "gains",
    "sigma_label",
    "standard_error",
]

NAMES = {
    "z2cnn": "Z2CNN",
    "z2cnn-gray": "Z2CNN, grey input",
    "cecnn": "CECNN",
    "cecnn-pooled": "CECNN, coset pooling",
    "cecnn-2": "CECNN, 2 layers",
    "cecnn-4": "CECNN, 4 layers",
    "cecnn-hsv6": "CECNN, HSV, n = 6",
    "cecnn-hsv12": "CECNN, HSV, n = 12",
}
_STYLES = {
    "z2cnn": ("#d55e00", "s"),
    "z2cnn-gray": ("#7a7a7a", "v"),
    "cecnn": ("#0072b2", "o"),
    "cecnn-pooled": ("#009e73", "D"),
    "cecnn-2": ("#e69f00", "^"),
    "cecnn-4": ("#cc79a7", "P"),
    "cecnn-hsv6": ("#56b4e9", "h"),
    "cecnn-hsv12": ("#000000", "X"),
}
REDRAWN = "data drawn for every seed"


class Variant(NamedTuple):
    """A network and how it was trained: what the rows of one curve have in common.

    Example:
        >>> Variant("cecnn", "jitter 0.5", False).name
        'CECNN + jitter'
    """

    model: str
    augmentation: str
    weighted: bool
    setting: str = ""
    redrawn: bool = False

    @property
    def name(self) -> str:
        """For legends and tables."""
        jitter = " + jitter" if self.augmentation != "none" else ""
        weighted = " + weighted loss" if self.weighted else ""
        told = ", ".join(self.circumstances)
        return NAMES.get(self.model, self.model) + jitter + weighted + (f" ({told})" * bool(told))

    @property
    def circumstances(self) -> list[str]:
        """What the network and its training leave open."""
        return [self.setting] * bool(self.setting) + [REDRAWN] * self.redrawn

    @property
    def plain(self) -> bool:
        """Trained as in the paper's figure: without jitter and with every image alike."""
        return self.augmentation == "none" and not self.weighted

    @property
    def style(self) -> dict[str, Any]:
        """Colour, marker and dashes of its curve."""
        color, marker = _STYLES.get(self.model, ("#333333", "."))
        return {
            "color": color,
            "marker": marker,
            "linestyle": "-" if self.plain else ":" if self.weighted else "--",
            "markerfacecolor": color if self.plain else "white",
        }


def by_variant(rows: Sequence[Row]) -> dict[Variant, list[Row]]:
    """Rows grouped by network and training, in the paper's order, variants last.

    Where epochs, digits or precision differ among the rows, the ``setting`` of a variant says it.
    Rows whose data were drawn for every seed come after all others.

    Example:
        >>> row = {"model": "z2cnn", "augmentation": "none", "weighted": False, "original": 71.0}
        >>> [len(group) for group in by_variant([row, row]).values()]
        [2]
        >>> [variant.name for variant in by_variant([row | {"epochs": n} for n in (1, 1500)])]
        ['Z2CNN (1 epoch)', 'Z2CNN (1,500 epochs)']
    """
    keys = "epochs", "digits", "precision"
    several = [key for key in keys if len({row.get(key) for row in rows}) > 1]
    groups: dict[Variant, list[Row]] = {}
    for row in rows:
        setting = ", ".join(_told(key, row[key]) for key in several if key in row)
        how = row["augmentation"], row["weighted"], setting, "data_seed" in row
        groups.setdefault(Variant(row["model"], *how), []).append(row)
    known = list(NAMES)

    def rank(variant: Variant) -> tuple[bool, bool, bool, int]:
        place = known.index(variant.model) if variant.model in known else len(known)
        return variant.redrawn, variant.weighted, variant.augmentation != "none", place

    return {variant: groups[variant] for variant in sorted(groups, key=rank)}


def _told(key: str, value: Any) -> str:
    return str(value) if key == "digits" else in_words({key: value})


Cells = list[dict[int, float]]  # accuracy of every seed, for each σ


def curves_of(rows: Sequence[Row]) -> tuple[list[float], dict[Variant, Cells]]:
    """All σ in order, and the accuracies of every seed of every variant at each."""
    sigmas = sorted({row["sigma"] for row in rows})
    places = {sigma: place for place, sigma in enumerate(sigmas)}
    curves: dict[Variant, Cells] = {}
    for variant, group in by_variant(rows).items():
        cells = curves[variant] = [{} for _ in sigmas]
        for row in group:
            cells[places[row["sigma"]]][row["seed"]] = row["original"]
    return sigmas, curves


def gains(rows: Sequence[Row]) -> tuple[list[float], dict[Variant, Cells]]:
    """Seed by seed, what networks that see the colours gain over the plain one.

    Returns:
        All σ in order, and for each what every seed gains, of networks that have several seeds in
        common with the plain one.
    """
    sigmas, curves = curves_of(rows)
    return sigmas, gained(curves)


def gained(curves: Mapping[Variant, Cells]) -> dict[Variant, Cells]:
    """The same as :func:`gains`, of what :func:`curves_of` found."""
    found: dict[Variant, Cells] = {}
    for variant, cells in curves.items():
        usual = curves.get(variant._replace(model="z2cnn"))
        # Without colour there is so much to lose that the others would be one line.
        if usual is None or variant.model in ("z2cnn", "z2cnn-gray") or not variant.plain:
            continue
        both = [
            {seed: cell[seed] - known[seed] for seed in sorted(cell.keys() & known.keys())}
            for cell, known in zip(cells, usual, strict=True)
        ]
        # The difference of two single runs is mostly noise, and nothing could show how much.
        if any(len(cell) > 1 for cell in both):
            found[variant] = [cell if len(cell) > 1 else {} for cell in both]
    return found


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of two or more numbers."""
    return statistics.stdev(values) / math.sqrt(len(values))


def sigma_label(sigma: float) -> str:
    """Degrees for an axis or a table, high powers of ten as such.

    Example:
        >>> [sigma_label(sigma) for sigma in (0.0, 12.5, 200_000.0, 1e6)]
        ['0', '12.5', '200000', '10⁶']
    """
    power = round(math.log10(sigma)) if sigma >= 1e5 else 0
    if power and sigma == 10.0**power:
        return "10" + str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{sigma:.10g}"
