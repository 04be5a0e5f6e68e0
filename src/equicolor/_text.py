"""Words for messages, shared by the package."""

import difflib
import re
from collections.abc import Iterable, Sequence

# Commands to a terminal, and the bytes of file names that are not UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


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


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """The names nearest to an unknown one, as a question; without any, ``otherwise``.

    Example:
        >>> did_you_mean("resnet19", ["resnet18", "cecnn"])
        "did you mean 'resnet18'?"
        >>> did_you_mean("x", ["resnet18"], "see 'equicolor models'")
        "see 'equicolor models'"
    """
    near = difflib.get_close_matches(name, list(names), n=2, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise


def printable(text: str) -> str:
    r"""A text without the characters that terminals, fonts and files refuse.

    Example:
        >>> printable("rose\x1b[31m"), printable("ros\udce9")
        ('rose?[31m', 'ros?')
    """
    return _UNPRINTABLE.sub("?", text)


def explain(error: Exception) -> str:
    """What an error says, with its type unless it is one that users are told about.

    Example:
        >>> explain(ValueError("no images")), explain(KeyError("lr"))
        ('no images', "KeyError: 'lr'")
    """
    if isinstance(error, (OSError, ValueError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
