"""How the training of rows differs from the paper's, and how that is said.

The paper's settings are those of the recipes of its tables. Which settings there are follows from
the fields of :class:`equicolor.training.recipes.TrainingRecipe`. A value that a row does not have
is the paper's.
"""

import functools
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from equicolor._text import counted
from equicolor.data.datasets import DATASETS
from equicolor.results import Row
from equicolor.training.recipes import (
    COMPARED_KEYS,
    UNPUBLISHED_KEYS,
    TrainingRecipe,
    default_recipe,
)

__all__ = [
    "alike",
    "common",
    "deviations",
    "in_words",
    "most_common",
    "paper_settings",
    "setting",
    "titled",
]


@functools.cache
def paper_settings(dataset: str) -> Mapping[str, Any]:
    """How the paper trains on a dataset; one that the paper does not have is trained the same way.

    Example:
        >>> paper_settings("cifar10")["size"], paper_settings("mine")["epochs"]
        (32, 200)
    """
    recipe = default_recipe(dataset) if dataset in DATASETS else TrainingRecipe()
    return {name: getattr(recipe, name, None) for name in COMPARED_KEYS}


def setting(row: Row, name: str) -> Any:
    """A setting of a row: the paper's if the row does not say.

    Example:
        >>> setting({"dataset": "cifar10"}, "size"), setting({"size": 64}, "size")
        (32, 64)
    """
    value = row.get(name)
    return paper_settings(row.get("dataset", "")).get(name) if value is None else value


def deviations(row: Row) -> dict[str, Any]:
    """The settings of a row that are not the paper's for its dataset.

    Example:
        >>> deviations({"dataset": "flowers102", "epochs": 200, "size": 64})
        {'size': 64}
    """
    paper = paper_settings(row.get("dataset", ""))
    return {name: value for name in paper if (value := setting(row, name)) != paper[name]}


def common(rows: Sequence[Row]) -> dict[str, Any]:
    """The deviations that all rows have.

    Example:
        >>> common([{"epochs": 30, "size": 64}, {"epochs": 200, "size": 64}]), common([])
        ({'size': 64}, {})
    """
    first, *others = [deviations(row) for row in rows] or [{}]
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def alike(rows: Sequence[Row]) -> list[Row]:
    """The rows that were trained the paper's way; if none was, those trained like most.

    Example:
        >>> alike([{"size": 64}, {"size": 64}, {"size": 224}]), len(alike([{"size": 64}] * 2))
        ([{'size': 224}], 2)
    """
    ways = [deviations(row) for row in rows]
    way = {} if {} in ways else most_common([{"way": way} for way in ways], "way")
    return [row for row, own in zip(rows, ways, strict=True) if own == way]


def most_common(rows: Sequence[Row], key: str) -> Any:
    """The commonest value of a key, or None where rows do not say."""
    values = {repr(row[key]): row[key] for row in rows if row.get(key) is not None}
    counts = Counter(repr(row.get(key)) for row in rows if row.get(key) is not None)
    return values[counts.most_common(1)[0][0]] if counts else None


def in_words(settings: Mapping[str, Any], *, instead_of: Mapping[str, Any] | None = None) -> str:
    """Settings in words, for titles and lines.

    Args:
        settings: values by their names in rows.
        instead_of: the paper's, which are then named beside them.

    Example:
        >>> in_words({"epochs": 30, "size": 64, "batch_size": 32})
        '30 epochs, 64 pixels, batch size 32'
        >>> in_words({"size": 64, "precision": "float32"}, instead_of=paper_settings("flowers102"))
        '64 pixels instead of 224, precision float32'
    """
    parts = []
    for name, value in settings.items():
        paper = None if instead_of is None or name in UNPUBLISHED_KEYS else instead_of.get(name)
        beside = "" if isinstance(value, bool) or paper in (None, value) else f" instead of {paper}"
        parts.append(_words(name, value) + beside)
    return ", ".join(parts)


def _words(name: str, value: Any) -> str:
    if name == "epochs":
        return counted(value, "epoch")
    if name == "size":
        return f"{value} pixels"
    if name == "finetuned":
        return f"fine-tuned from {value}"
    words = name.replace("_", " ")
    if isinstance(value, bool):
        return words if value else f"no {words}"
    return f"{words} {value}"


def titled(title: str, *words: str, width: int = 64) -> str:
    r"""A title and further words with commas between, in lines of some characters.

    Example:
        >>> titled("CE-ResNet-18", "64 pixels"), titled("ResNet-18", "")
        ('CE-ResNet-18, 64 pixels', 'ResNet-18')
        >>> titled("ResNet-18", "64 pixels, batch size 32", width=30)
        'ResNet-18, 64 pixels,\nbatch size 32'
    """
    parts = ", ".join(filter(None, (title, *words))).split(", ")
    joined = ", ".join(part.replace(" ", "\u00a0") for part in parts)  # so that lines end at commas
    lines = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ")
