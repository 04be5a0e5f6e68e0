"""Fields of a dataclass that describe themselves: help text, bounds, names.

The options of a command, the checks of values, the keys of result rows and the parts of folder
names all follow from these descriptions. A new setting is one field, in one place.
"""

import dataclasses
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from equicolor import _checks


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The description of one field."""

    help: str = ""  # the text of its option; a field without one has no option
    panel: str = "Training"  # the group of options that it is shown in
    usual: str = ""  # the default in the help, where it is not just the value
    # Options without a value, each with the value that it stands for and its help.
    flags: Mapping[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    choices: tuple[str, ...] = ()  # all allowed values
    # Bounds of a number, besides those of _checks.MOST.
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    decides: bool = True  # whether the result of training depends on it, beyond rounding
    # Its key in result rows, by default its name; None where the name of the network implies it.
    row: str | None = ""
    # Whether a difference in it is pointed out next to a table. False for the seed, and for what
    # has a row or a column of the table.
    compared: bool = True
    published: bool = True  # whether the paper gives its value
    # The prefix of its value in folder names; by default its name, or nothing if there are choices.
    short: str | None = None


def setting(default: Any, help: str = "", **description: Any) -> Any:  # noqa: A002
    """A field of a dataclass with its description, see :class:`Setting`."""
    return dataclasses.field(
        default=default, metadata={"setting": Setting(help=help, **description)}
    )


def settings(described: Any) -> dict[str, Setting]:
    """The settings of a dataclass, or of an instance, by the names of their fields."""
    return {
        field.name: dataclasses.replace(about, row=field.name) if about.row == "" else about
        for field in dataclasses.fields(described)
        if (about := field.metadata.get("setting")) is not None
    }


def check(instance: Any) -> None:
    """Refuse values that do not fit the types and descriptions of their fields."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        _check_type(field.name, value, field.type)
        if "setting" in field.metadata and value is not None:
            _check_value(field.name, value, field.metadata["setting"])


def _check_type(name: str, value: object, expected: Any) -> None:
    kinds = get_args(expected) if isinstance(expected, UnionType) else [expected]
    types = [get_origin(kind) or kind for kind in kinds]
    number = isinstance(value, int) and float in types
    # True is an int to Python.
    if (isinstance(value, tuple(types)) or number) and (bool in types or type(value) is not bool):
        return
    words = " or ".join("None" if kind is NoneType else kind.__name__ for kind in types)
    article = "an" if words[0] in "aeiou" else "a"
    raise _checks.WrongTypeError(
        f"{name} must be {article} {words}, got {type(value).__name__}: {value!r:.100}"
    )


def _check_value(name: str, value: Any, about: Setting) -> None:
    if about.choices:
        _checks.one_of(name, value, about.choices)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    at_most = _checks.MOST.get(name) if about.at_most is None else about.at_most
    for bound, holds, words in (
        (about.above, operator.gt, "greater than"),
        (about.at_least, operator.ge, "at least"),
        (at_most, operator.le, "at most"),
        (about.below, operator.lt, "less than"),
    ):
        if bound is not None and not holds(value, bound):
            raise ValueError(f"{name} must be {words} {bound:,}, got {value}")
