"""Experiments: one module per figure or table.

Each module measures with pure functions, plots what they return, and offers ``run(output)``
that writes both to a folder. They need the ``[train]`` extra.
"""

from pathlib import Path

__all__ = ["output_folder"]


def output_folder(path: Path | str) -> Path:
    """Create a folder for results, parents included, unless it exists.

    Args:
        path: the folder.

    Returns:
        The path.

    Raises:
        NotADirectoryError: if the path, or a parent of it, is a file.

    Example:
        >>> import tempfile
        >>> output_folder(Path(tempfile.mkdtemp()) / "figures" / "new").is_dir()
        True
    """
    path = Path(path)
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(f"results go to a folder, but {place} is a file")
    path.mkdir(parents=True, exist_ok=True)
    return path
