"""Rows of results from several files, runs and experiments: which are about the same thing."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equicolor.paper.settings import setting
from equicolor.results import Row
from equicolor.training.recipes import ROW_KEYS, TrainingRecipe

__all__ = ["TRAINED", "Findings", "check", "distinct", "identity", "merged"]

# What a row is about, beside the training (the fields of the recipe); the rest of it was measured.
_SUBJECT = (
    "dataset", "model", "network", "rotations", "lifting", "ce_stages", "ce_layers", "width",
    "coset_pool", "input_size", "weighted", "sigma", "digits", "data_seed", "layer", "stage",
    "state", "finetune_epochs",
)  # fmt: skip
# The values that tables and figures compute with; those of the recipe's fields are as its defaults.
_TEXT = {
    "dataset", "model", "network", "lifting", "coset_pool", "augmentation", "finetuned", "layer",
    "stage", "digits",
}  # fmt: skip
_NUMBERS = {"rotations", "ce_stages", "width", "sigma", "parameters", "original", "hue_mean"}
# Experiments whose rows are networks trained on images, which they share.
TRAINED = (
    "classification", "ablation-rotations", "ablation-jitter", "ablation-cosetpool", "selectivity",
)  # fmt: skip


class Findings:
    """The rows of all experiments, and the figures that rows cannot hold.

    Args:
        rows: by the id of the experiment.
        figures: PNG files by name, such as ``"neuron-features-flowers102"``.
        quick: whether any are of a quick run.
        notes: for the reader of the report, by the id of the experiment.

    Example:
        >>> row = {"dataset": "flowers102", "model": "resnet18", "seed": 0, "original": 66.0}
        >>> both = Findings({"classification": [row], "ablation-jitter": [row]})
        >>> len(both.trained)
        1
    """

    def __init__(
        self,
        rows: Mapping[str, Sequence[Row]],
        figures: Mapping[str, bytes] | None = None,
        *,
        quick: bool = False,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self.rows = {experiment: list(its_rows) for experiment, its_rows in rows.items()}
        self.figures = dict(figures or {})
        self.quick, self.notes = quick, dict(notes or {})

    def of(self, experiment: str) -> list[Row]:
        """The rows of one experiment."""
        return self.rows.get(experiment, [])

    @property
    def trained(self) -> list[Row]:
        """The rows of networks trained on images, each once, with all that was measured."""
        networks: dict[tuple[str, ...], Row] = {}
        for row in (row for experiment in TRAINED for row in self.of(experiment)):
            if "original" in row:
                key = identity(row)
                networks[key] = {**networks.get(key, {}), **row}
        return list(networks.values())


def check(rows: Sequence[Row], source: Path | str) -> None:
    """Refuse values that tables and figures cannot compute with.

    Raises:
        ValueError: with the file and the value.

    Example:
        >>> check([{"epochs": "many"}], "rows.json")
        Traceback (most recent call last):
            ...
        ValueError: rows.json has a row whose epochs is not a number: 'many'
    """
    for name, value in (item for row in rows for item in row.items()):
        if (kind := _expected(name, value)) is not None:
            raise ValueError(f"{source} has a row whose {name} is not {kind}: {value!r:.100}")


def _expected(name: str, value: Any) -> str | None:
    """What a value should be; None if it is that."""
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
    """What a row is about, without what was measured: equal for rows that should agree.

    Example:
        >>> row = {"model": "resnet18", "seed": 0, "original": 66.0}
        >>> identity(row) == identity(row | {"original": 67.0}), identity(row) == identity({})
        (True, False)
    """
    subject = tuple(repr(row.get(name)) for name in _SUBJECT)
    return (*subject, *(repr(setting(row, name)) for name in ROW_KEYS))


def distinct(rows: Sequence[Row]) -> list[Row]:
    """The rows of one experiment, each once.

    Raises:
        ValueError: if two are about the same and do not agree.

    Example:
        >>> row = {"model": "resnet18", "seed": 0, "original": 66.0}
        >>> len(distinct([row, dict(row), row | {"seed": 1}]))
        2
    """
    unique: dict[tuple[str, ...], Row] = {}
    for row in rows:
        earlier = unique.setdefault(identity(row), {})
        for name in earlier.keys() & row.keys():
            # The folder of the network and the time it took may differ.
            if earlier[name] != row[name] and name != "run" and "second" not in name:
                about = ", ".join(
                    f"{key} {row[key]}"
                    for key in (*_SUBJECT, *ROW_KEYS)
                    if row.get(key) is not None
                )
                raise ValueError(
                    f"two rows of {about} have different values of {name}: give one of them"
                )
        earlier |= row
    return list(unique.values())


def merged(new: Sequence[Row], old: Sequence[Row]) -> list[Row]:
    """New rows, and after them the old ones that are about something else.

    Example:
        >>> merged([{"seed": 0, "loss": 1.0}], [{"seed": 0, "loss": 2.0}, {"seed": 1}])
        [{'seed': 0, 'loss': 1.0}, {'seed': 1}]
    """
    replaced = {identity(row) for row in new}
    return [*new, *(row for row in old if identity(row) not in replaced)]
