"""Finding corrupt images before hours of work depend on them."""

from concurrent.futures import ThreadPoolExecutor

from equicolor import _checks
from equicolor.data.image_set import CorruptImageError, ImageSet
from equicolor.reporting.progress import Progress

__all__ = ["find_corrupt"]


def find_corrupt(
    images: ImageSet,
    *,
    workers: int = 4,
    on_corrupt: str = "error",
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Read every image once, without keeping it.

    Args:
        images: files; pixels are what they are.
        workers: threads.
        on_corrupt: ``"error"``, or ``"skip"`` to go on.
        progress: called with (images read, images in all).

    Returns:
        What is wrong with each of the corrupt ones, in order.

    Raises:
        CorruptImageError: for the first corrupt one unless they are skipped, and if all are.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import torch
        >>> from equicolor.data.image_set import ImageFile
        >>> path = Path(tempfile.mkdtemp()) / "a.png"
        >>> _ = path.write_bytes(b"no image")
        >>> toy = ImageSet("toy", "test", torch.tensor([0]), ("a",), [ImageFile(path)])
        >>> try:
        ...     find_corrupt(toy)
        ... except CorruptImageError as error:
        ...     print(str(error).rpartition("/")[2])
        a.png cannot be decoded: it is in no format that Pillow knows
    """
    _checks.one_of("on_corrupt", on_corrupt, ("error", "skip"))
    total = len(images.files)

    def wrong(index: int) -> str:
        try:
            images.files[index].verify()
        except CorruptImageError as error:
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
        raise CorruptImageError(f"every image is corrupt, beginning with {found[0]}")
    return tuple(found)
