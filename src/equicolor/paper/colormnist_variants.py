"""Rows of the ColorMNIST experiments by network and training, and gains over the plain one."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from equicolor.paper.settings import in_words
from equicolor.results import Row

__all__ = [
    "REDRAWN", "Cells", "Variant", "by_variant", "curves_of", "gains", "sigma_label",
    "standard_error",
]  # fmt: skip

# Name, colour and marker of each network, in the paper's order.
_LOOKS = {
    "z2cnn": ("Z2CNN", "#d55e00", "s"),
    "z2cnn-gray": ("Z2CNN, grey input", "#7a7a7a", "v"),
    "cecnn": ("CECNN", "#0072b2", "o"),
    "cecnn-pooled": ("CECNN, coset pooling", "#009e73", "D"),
    "cecnn-2": ("CECNN, 2 layers", "#e69f00", "^"),
    "cecnn-4": ("CECNN, 4 layers", "#cc79a7", "P"),
    "cecnn-hsv6": ("CECNN, HSV, n = 6", "#56b4e9", "h"),
    "cecnn-hsv12": ("CECNN, HSV, n = 12", "#000000", "X"),
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
        """The name for legends and tables."""
        name = _LOOKS[self.model][0] if self.model in _LOOKS else self.model
        jitter = " + jitter" if self.augmentation != "none" else ""
        weighted = " + weighted loss" if self.weighted else ""
        aside = f" ({', '.join(self.circumstances)})" if self.circumstances else ""
        return name + jitter + weighted + aside

    @property
    def circumstances(self) -> list[str]:
        """Settings that other rows do not share, and whether data were drawn for every seed."""
        return [self.setting] * bool(self.setting) + [REDRAWN] * self.redrawn

    @property
    def plain(self) -> bool:
        """Whether it was trained as in the paper's figure: without jitter or weights."""
        return self.augmentation == "none" and not self.weighted

    @property
    def style(self) -> dict[str, Any]:
        """Colour, marker and dashes of its curve."""
        _, color, marker = _LOOKS.get(self.model, ("", "#333333", "."))
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
        words = [
            str(row[key]) if key == "digits" else in_words({key: row[key]})
            for key in several
            if key in row
        ]
        training = row["augmentation"], row["weighted"], ", ".join(words), "data_seed" in row
        groups.setdefault(Variant(row["model"], *training), []).append(row)
    order = list(_LOOKS)

    def rank(variant: Variant) -> tuple[bool, bool, bool, int]:
        place = order.index(variant.model) if variant.model in order else len(order)
        return variant.redrawn, variant.weighted, variant.augmentation != "none", place

    return {variant: groups[variant] for variant in sorted(groups, key=rank)}


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


def gains(curves: Mapping[Variant, Cells]) -> dict[Variant, Cells]:
    """What networks gain over the plain one, seed by seed, of the curves of :func:`curves_of`.

    Networks without colour are left out: they lose so much that the others would be one line. So
    are those with one seed in common with the plain one: that difference is mostly noise.
    """
    differences: dict[Variant, Cells] = {}
    for variant, cells in curves.items():
        plain = curves.get(variant._replace(model="z2cnn"))
        if plain is None or variant.model in ("z2cnn", "z2cnn-gray") or not variant.plain:
            continue
        both = [
            {seed: cell[seed] - other[seed] for seed in sorted(cell.keys() & other.keys())}
            for cell, other in zip(cells, plain, strict=True)
        ]
        if any(len(cell) > 1 for cell in both):
            differences[variant] = [cell if len(cell) > 1 else {} for cell in both]
    return differences


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of two or more numbers."""
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
