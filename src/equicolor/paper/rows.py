"""Rows of results: which are about the same thing, and how their training differs from the paper's.

The settings of a training are the fields of
:class:`equicolor.training.recipes.TrainingRecipe`. A missing value means the paper's setting.
"""

import functools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equicolor._text import counted
from equicolor.data.datasets import DATASETS
from equicolor.results import Row
from equicolor.training.recipes import (
    COMPARED_KEYS,
    ROW_KEYS,
    UNPUBLISHED_KEYS,
    TrainingRecipe,
    default_recipe,
)

# Keys that say what a row is about, beside the fields of the recipe; other keys were measured.
# Rows that agree in all of them are one row, so a new key that tells rows apart belongs here.
SUBJECT = (
    "dataset", "model", "network", "rotations", "lifting", "ce_stages", "ce_layers", "width",
    "coset_pool", "spatial", "input_size", "weighted", "sigma", "digits", "data_seed", "layer",
    "stage",
)  # fmt: skip
# Types of the values that tables and figures use; fields of the recipe have those of its defaults.
_TEXT = {
    "dataset", "model", "network", "lifting", "coset_pool", "spatial", "augmentation",
    "finetuned", "layer", "stage", "digits",
}  # fmt: skip
_NUMBERS = {"rotations", "ce_stages", "width", "sigma", "parameters", "original", "hue_mean"}
# Experiments whose rows are networks trained on images, which they share.
TRAINED = (
    "classification", "ablation-rotations", "ablation-jitter", "ablation-cosetpool", "selectivity",
)  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """The rows of all experiments, and the figures that rows cannot hold."""

    rows: Mapping[str, list[Row]]  # by the id of the experiment
    # PNG files by name, such as "neuron-features-flowers102".
    figures: Mapping[str, bytes] = field(default_factory=dict)
    quick: bool = False  # whether any are of a quick run
    # Remarks for the reader of the report, by the id of the experiment.
    notes: Mapping[str, str] = field(default_factory=dict)

    def of(self, experiment: str) -> list[Row]:
        """The rows of one experiment."""
        return self.rows.get(experiment, [])

    @property
    def trained(self) -> list[Row]:
        """The rows of networks trained on images, each once, with all that was measured."""
        networks: dict[tuple[str, ...], Row] = {}
        for row in (row for experiment in TRAINED for row in self.of(experiment)):
            if "original" in row:
                networks.setdefault(identity(row), {}).update(row)
        return list(networks.values())


def check(rows: Sequence[Row], source: Path | str) -> None:
    """Raise ValueError for a value that tables and figures cannot compute with."""
    for name, value in (item for row in rows for item in row.items()):
        if (kind := _missed_kind(name, value)) is not None:
            raise ValueError(f"{source} has a row whose {name} is not {kind}: {value!r:.100}")


def _missed_kind(name: str, value: Any) -> str | None:
    """The kind that a value should have, if it does not have it."""
    if value is None:
        return "text" if name in ("dataset", "digits", "model") else None
    default = getattr(TrainingRecipe, name, None) if name in ROW_KEYS else None
    if name in _TEXT or isinstance(default, str):
        return None if isinstance(value, str) else "text"
    if name in _NUMBERS or default is not None:
        return None if _is_number(value) else "a number"
    numbers = isinstance(value, list) and all(map(_is_number, value))
    return "a list of numbers" if name.endswith("_curve") and not numbers else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def identity(row: Row) -> tuple[str, ...]:
    """What a row is about, without its measurements; rows with the same identity must agree."""
    subject = tuple(repr(row.get(name)) for name in SUBJECT)
    return (*subject, *(repr(setting(row, name)) for name in ROW_KEYS))


def distinct(rows: Sequence[tuple[Row, Path]]) -> list[Row]:
    """The rows of one experiment, each once, from rows and the files that hold them.

    Raises:
        ValueError: if two rows with one identity differ.
    """
    unique: dict[tuple[str, ...], Row] = {}
    files: dict[tuple[str, ...], Path] = {}
    for row, file in rows:
        earlier = unique.setdefault(identity(row), {})
        for name in _disagreements(earlier, row):
            keys = [key for key in (*SUBJECT, *ROW_KEYS) if row.get(key) is not None]
            about = ", ".join(f"{key} {row[key]}" for key in keys)
            raise ValueError(
                f"two rows of {about} have different values of {name}, in {files[identity(row)]} "
                f"and in {file}: pass only one"
            )
        earlier |= row
        files[identity(row)] = file
    return list(unique.values())


def merged(new: Sequence[Row], old: Sequence[Row]) -> list[Row]:
    """New rows, followed by the old rows that they do not replace.

    A new row keeps what else was measured in the old one, unless their common values differ.
    """
    before = {identity(row): row for row in old}
    rows = []
    for row in new:
        earlier = before.pop(identity(row), {})
        rows.append(row if _disagreements(earlier, row) else {**earlier, **row})
    return [*rows, *before.values()]


def _disagreements(row: Row, other: Row) -> list[str]:
    """The keys in which rows about the same thing differ.

    The folder of the network and the times it took may differ.
    """
    return [
        name
        for name in row
        if name in other and row[name] != other[name] and name != "run" and "second" not in name
    ]


@functools.cache
def paper_settings(dataset: str) -> Mapping[str, Any]:
    """How the paper trains on a dataset; for datasets that it does not have, its usual way."""
    recipe = default_recipe(dataset) if dataset in DATASETS else TrainingRecipe()
    return {name: getattr(recipe, name, None) for name in COMPARED_KEYS}


def setting(row: Row, name: str) -> Any:
    """A setting of a row, or the paper's if the row has none."""
    value = row.get(name)
    return paper_settings(row.get("dataset", "")).get(name) if value is None else value


def deviations(row: Row) -> dict[str, Any]:
    """The settings of a row that differ from the paper's for its dataset."""
    paper = paper_settings(row.get("dataset", ""))
    return {name: value for name in paper if (value := setting(row, name)) != paper[name]}


def common(rows: Sequence[Row]) -> dict[str, Any]:
    """The deviations that all rows share."""
    first, *others = [deviations(row) for row in rows] or [{}]
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def alike(rows: Sequence[Row]) -> list[Row]:
    """The rows trained as in the paper; if there are none, those with the commonest training."""
    trainings = [deviations(row) for row in rows]
    chosen = {} if {} in trainings else max(trainings, key=trainings.count, default={})
    return [row for row, training in zip(rows, trainings, strict=True) if training == chosen]


def in_words(settings: Mapping[str, Any], *, instead_of: Mapping[str, Any] | None = None) -> str:
    """Settings in words, for titles and lines; ``instead_of`` has the paper's, to name beside."""
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
    r"""A title and further words with commas between, in lines of at most ``width`` characters.

    Example:
        >>> titled("ResNet-18", "64 pixels, batch size 32", width=30)
        'ResNet-18, 64 pixels,\nbatch size 32'
    """
    parts = ", ".join(filter(None, (title, *words))).split(", ")
    joined = ", ".join(part.replace(" ", "\u00a0") for part in parts)  # so that lines end at commas
    lines = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ")
