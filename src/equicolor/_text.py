"""Words for messages, shared by the package."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Commands to a terminal, and the bytes of file names that are not UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_MAX = 4  # items of a list that is shown in full


def counted(count: int, thing: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "epoch"), counted(1000, "epoch")
        ('1 epoch', '1,000 epochs')
    """
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def enumerated(names: Sequence[str], limit: int = 4) -> str:
    """The first few names, and how many more there are.

    Example:
        >>> enumerated(["a", "b", "c"], 2)
        'a, b and 1 more'
    """
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more:,} more" if more > 0 else "")


def shortened(name: str, most: int) -> str:
    """A name, cut to at most ``most`` characters.

    Example:
        >>> shortened("rose", 4), shortened("sunflower", 4)
        ('rose', 'sun…')
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def roughly(seconds: float) -> str:
    """A duration in a readable unit.

    Example:
        >>> roughly(42), roughly(200), roughly(5000), roughly(3e5)
        ('42 s', '3 min', '1.4 h', '3.5 days')
    """
    for length, unit in ((86400, "days"), (3600, "h")):
        if seconds >= 1.3 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{round(seconds / 60)} min" if seconds >= 90 else f"{max(1, round(seconds))} s"


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """The names nearest to an unknown one, as a question; without any, ``otherwise``.

    The same name at the end of a path is nearest.

    Example:
        >>> did_you_mean("resnet19", ["resnet18", "cecnn"])
        "did you mean 'resnet18'?"
        >>> did_you_mean("relu", ["network.conv1", "network.relu"])
        "did you mean 'network.relu'?"
        >>> did_you_mean("x", ["resnet18"], "see 'equicolor models'")
        "see 'equicolor models'"
    """
    names = list(names)
    inside = sorted((each for each in names if each.endswith(f".{name}")), key=len)
    near = inside[:2] or difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise


def printable(text: str) -> str:
    r"""A text without the characters that terminals, fonts and files refuse.

    Example:
        >>> printable("rose\x1b[31m"), printable("ros\udce9")
        ('rose?[31m', 'ros?')
    """
    return _UNPRINTABLE.sub("?", text)


def explain(error: Exception) -> str:
    """The message of an error, after its type unless it is an OSError or a ValueError.

    Example:
        >>> explain(ValueError("no images")), explain(KeyError("lr"))
        ('no images', "KeyError: 'lr'")
    """
    if isinstance(error, (OSError, ValueError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def brief(value: object) -> str:
    """A short repr: tensors by dtype and shape, long lists by their length.

    Example:
        >>> import torch
        >>> brief([torch.zeros(3, 4), "a"]), brief(range(1000)), brief({"a": 1})
        ("[float32 [3, 4], 'a']", '1,000 items', "{'a': 1}")
    """
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, (Mapping, Sequence)) and not isinstance(value, str) and len(value) > _MAX:
        return f"{len(value):,} items"
    if type(value) is dict:
        return f"{{{', '.join(f'{key!r}: {brief(each)}' for key, each in value.items())}}}"
    if type(value) in (list, tuple):
        left, right = "[]" if type(value) is list else "()"
        return f"{left}{', '.join(map(brief, value))}{right}"  # type: ignore[call-overload]
    return repr(value)


def brief_repr(record: Any) -> str:
    """A short repr of a dataclass or a named tuple, for ``__repr__ = brief_repr``.

    Tensors would fill the screen of a notebook.
    """
    names = [*getattr(record, "_fields", getattr(record, "__dataclass_fields__", ()))]
    fields = ", ".join(f"{name}={brief(getattr(record, name))}" for name in names)
    return f"{type(record).__name__}({fields})"
