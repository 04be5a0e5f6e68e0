"""Files that appear whole or not at all."""

import errno
import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockedError(OSError):
    """A lock that another process holds: which, and who."""


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A path to write to, renamed to ``path`` at the end, so that a crash never leaves half a file.

    The folder is created. If the writing fails, what was at ``path`` stays. Two processes that
    write the same file do so apart; the last one's stays. It may be read by whoever may read new
    files, whatever the writer thinks of that: safetensors keeps its files to their owner.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.touch()
    mode = partial.stat().st_mode
    partial.unlink()
    try:
        yield partial
        partial.chmod(mode)
        # On the disk before it has its name, or a power cut could leave an empty file.
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error  # a full disk
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, contents: bytes | str) -> Path:
    """Write a file that appears whole or not at all, as :func:`written_aside`; its path.

    Example:
        >>> import tempfile
        >>> write_whole(Path(tempfile.mkdtemp()) / "new folder" / "a.txt", "text").read_text()
        'text'
    """
    with written_aside(path) as partial:
        partial.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    return path


@contextmanager
def locked(path: Path, doing: str) -> Iterator[None]:
    """Holds a lock, which the system lets go of when the process ends, however it does.

    Where a file system knows no locks, nothing is held. Processes forked within do not hold
    it: workers that outlive a killed parent for a moment are in nobody's way.

    Args:
        path: the file of the lock; created, and left behind.
        doing: what a second process is told that the first one does.

    Raises:
        LockedError: at once, if another process holds it.
    """
    with path.open("a+") as file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    file.seek(0)
                    raise LockedError(f"{file.read().strip()} is {doing}") from None
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield


def short_name(name: str, longest: int = 150) -> str:
    """A name that a file system takes, with room for a suffix: most take 255 bytes.

    Args:
        name: of a file or a folder.
        longest: bytes; what is longer is cut, and a digest of the whole name is added.

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
    refuse_files(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def refuse_files(path: Path) -> None:
    """Raise NotADirectoryError if a folder for results, or a parent of it, is a file."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(f"results go to a folder, but {place} is a file")
