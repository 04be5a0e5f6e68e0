"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A path to write to, renamed to ``path`` at the end, so that a crash never leaves half a file.

    The folder is created. If the writing fails, what was at ``path`` stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        # On the disk before it has its name, or a power cut could leave an empty file.
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


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
