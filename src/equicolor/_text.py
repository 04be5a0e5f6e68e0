"""Words for messages, shared by the package."""

from collections.abc import Sequence


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
