"""Finding corrupt pictures before hours of work depend on them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from equicolor import _checks
from equicolor.data.pictures import CorruptPictureError, Pictures

__all__ = ["find_corrupt"]


def find_corrupt(
    pictures: Pictures,
    *,
    workers: int = 4,
    on_corrupt: str = "error",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[str, ...]:
    """Read every picture once, without keeping it.

    Args:
        pictures: files; pixels are what they are.
        workers: threads.
        on_corrupt: ``"error"``, or ``"skip"`` to go on.
        progress: called with (pictures read, pictures in all).

    Returns:
        What is wrong with each of the corrupt ones, in order.

    Raises:
        CorruptPictureError: for the first corrupt one unless they are skipped, and if all are.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import torch
        >>> from equicolor.data.pictures import PictureFile
        >>> path = Path(tempfile.mkdtemp()) / "a.png"
        >>> _ = path.write_bytes(b"no picture")
        >>> toy = Pictures("toy", "test", torch.tensor([0]), ("a",), [PictureFile(path)])
        >>> try:
        ...     find_corrupt(toy)
        ... except CorruptPictureError as error:
        ...     print(str(error).rpartition("/")[2])
        a.png cannot be decoded: it is in no format that Pillow knows
    """
    _checks.one_of("on_corrupt", on_corrupt, ("error", "skip"))
    total = len(pictures.files)

    def wrong(index: int) -> str:
        try:
            pictures.files[index].verify()
        except CorruptPictureError as error:
            if on_corrupt == "error":
                raise
            return str(error)
        return ""

    found = []
    with ThreadPoolExecutor(_checks.positive_int("workers", workers)) as pool:
        try:
            for done, reason in enumerate(pool.map(wrong, range(total)), 1):
                found += [reason] * bool(reason)
                if progress is not None:
                    progress(done, total)
        finally:  # an error, an interrupt: do not begin what is still waiting
            pool.shutdown(cancel_futures=True)
    if found and len(found) == total:
        raise CorruptPictureError(f"every picture is corrupt, beginning with {found[0]}")
    return tuple(found)
