"""Where datasets live on disk."""

import os
from pathlib import Path

__all__ = ["MissingDataError", "data_root"]


class MissingDataError(FileNotFoundError):
    """A dataset that is not there: what was looked for, where, and how to get it."""


def data_root() -> Path:
    """The folder of datasets: ``EQUICOLOR_DATA``, else the user's cache folder.

    Example:
        >>> isinstance(data_root(), Path)
        True
    """
    named = os.environ.get("EQUICOLOR_DATA")
    if named:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "equicolor"
