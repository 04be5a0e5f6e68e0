"""Words for messages, shared by the package."""

import re
from collections.abc import Sequence

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


def printable(text: str) -> str:
    r"""A text with names from outside that terminals, fonts and files take.

    Example:
        >>> printable("rose\x1b[31m"), printable("ros\udce9")
        ('rose?[31m', 'ros?')
    """
    return _UNPRINTABLE.sub("?", text)
