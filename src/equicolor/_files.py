"""Files that appear whole or not at all, locks, and folders."""

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class LockedError(OSError):
    """A lock that another process holds: which process, and what it does."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file in errors that name none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A path to write to, renamed to ``path`` at the end, so that a crash never leaves half a file.

    The folder is created. If the writing fails, the old file at ``path`` stays. Two processes can
    write the same file at once; the last one wins. The file has default permissions;
    safetensors would make it readable by its owner alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.touch()
    mode = partial.stat().st_mode
    partial.unlink()
    try:
        with naming(path):
            yield partial
            partial.chmod(mode)
            # On disk before it has its name, or a power cut could leave an empty file.
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, contents: bytes | str) -> Path:
    """Write a file that appears whole or not at all, as :func:`written_aside`; returns its path."""
    with written_aside(path) as partial:
        partial.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    return path


@contextmanager
def locked(path: Path, activity: str) -> Iterator[None]:
    """Hold a lock against other processes until the end of the block or of this process.

    Forked processes do not hold it, so workers that outlive a killed parent block nobody.

    Args:
        path: the lock file, which is created and stays.
        activity: what this process does, for the error that others get.

    Raises:
        LockedError: at once, if another process holds the lock.
    """
    from filelock import FileLock, Timeout  # needed by training only

    try:
        lock = FileLock(path).acquire(timeout=0)
    except Timeout:
        raise LockedError(f"{path.read_text().strip()} is {activity}") from None
    with lock:
        path.write_text(f"process {os.getpid()} on {platform.node()}\n")
        yield


def short_name(name: str, longest: int = 150) -> str:
    """Cut the name of a file to ``longest`` bytes, with a digest of the whole name at the end.

    Most file systems take 255 bytes; this leaves room for a suffix.

    Example:
        >>> short_name("pets"), short_name("a long name", 10)
        ('pets', 'a-5e9edc57')
    """
    encoded = os.fsencode(name)
    if len(encoded) <= longest:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:8]
    return f"{encoded[: longest - 9].decode(errors='ignore')}-{digest}"


def output_folder(path: Path | str) -> Path:
    """Create a folder for results, with its parents, unless it exists; returns its path.

    Raises:
        NotADirectoryError: if the path, or a parent of it, is a file.
    """
    path = Path(path)
    refuse_files(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def refuse_to_replace(paths: Iterable[Path], overwrite: bool) -> None:
    """Raise FileExistsError if the output of a command would replace one of these files."""
    for path in paths:
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} exists; --force replaces it, --output goes elsewhere")


def refuse_files(path: Path) -> None:
    """Refuse a folder for results if it or a parent is a file, or if it cannot be written to."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(f"results go to a folder, but {place} is a file")
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not os.access(nearest, os.W_OK):
        raise PermissionError(f"results go to {path}, but {nearest} may not be written to")


def file_sizes(folder: Path) -> Iterator[int]:
    """The bytes of every file below a folder; other processes may be deleting files there."""
    for place, _, names in os.walk(folder, followlinks=True):
        for name in names:
            with suppress(OSError):
                yield Path(place, name).stat().st_size


def user_cache() -> Path:
    """The package's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "equicolor"
