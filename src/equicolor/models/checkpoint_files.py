"""Files of weights, checked: ours in safetensors, others' through torch's weights-only loader.

Nothing here executes code from a file, and whatever is wrong with one is said in one line.
"""

import hashlib
import io
import json
import pickle
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equicolor._files import write_whole

__all__ = [
    "WEIGHTS",
    "CheckpointError",
    "digest",
    "read_pickle",
    "read_weights",
    "write_pickle",
    "write_weights",
]

WEIGHTS = "model.safetensors"  # in the folder of a training run
_FORMAT = "equicolor-1"
_DIGEST = "digest"  # in the header; older files have none


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


def write_weights(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors with a header, ``config`` among it; the same contents give the same bytes.

    Args:
        path: the file; its folder is created.
        tensors: by name.
        header: words by name.
    """
    from safetensors.torch import save

    kept = {key: value.detach().contiguous() for key, value in tensors.items()}
    words = {**header, "format": _FORMAT}
    # In memory first: of a full disk safetensors does not raise an OSError.
    write_whole(path, _sorted(save(kept, {**words, _DIGEST: digest(_joined(words), kept)})))


def _sorted(contents: bytes) -> bytes:
    """A safetensors file with its header in order, which otherwise is that of a hash table."""
    (length,) = struct.unpack("<Q", contents[:8])
    header = json.loads(contents[8 : 8 + length])
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    ordered = text.encode().ljust(length)
    if len(ordered) != length:  # it was spelt otherwise, and stays as it is
        return contents
    return b"".join((contents[:8], ordered, memoryview(contents)[8 + length :]))


def _joined(header: Mapping[str, str]) -> str:
    words = {key: value for key, value in header.items() if key != _DIGEST}
    return json.dumps(words, sort_keys=True)


def digest(words: str, tensors: Mapping[str, Tensor]) -> str:
    """A digest of weights, wherever they are, and of some words about them.

    Example:
        >>> len(digest("{}", {"weight": torch.zeros(2)}))
        16
    """
    found = hashlib.sha256(words.encode())
    for key, value in sorted(tensors.items()):
        found.update(f"{key} {value.dtype} {list(value.shape)}".encode())
        found.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


def read_weights(path: Path, *, weights: bool = False) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The header of a file of :func:`write_weights`, and its tensors if they are wanted.

    Args:
        path: the file.
        weights: read the tensors, too, and compare them with the digest in the header.

    Raises:
        CheckpointError: if it is another file, or damaged.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    if path.suffix == ".ckpt":
        beside = path.with_name(WEIGHTS)
        where = f"is {beside}" if beside.is_file() else f"will be {beside} when it is finished"
        raise CheckpointError(f"{path} is the state of a training run; its network {where}")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            keys = list(file.keys()) if weights else []
            tensors = {key: file.get_tensor(key) for key in keys}
    except (SafetensorError, OSError) as error:
        trained = path.name == WEIGHTS
        remedy = "get it again, or train it again with --force" if trained else "get it again"
        raise CheckpointError(
            f"{path} is not a complete safetensors file saved by equicolor ({one_line(error)}): "
            f"{remedy}"
        ) from None
    if header.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path} is a safetensors file without equicolor's configuration "
            f"(expected format {_FORMAT!r} in its header, got {header.get('format')!r})"
        )
    if weights and header.get(_DIGEST) not in (None, digest(_joined(header), tensors)):
        raise CheckpointError(
            f"{path} is damaged: it is not what was saved; get it again, or train it again with "
            "--force"
        )
    return header, tensors


def write_pickle(path: Path, contents: Any) -> None:
    """Write a torch file, whole or not at all.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "last.ckpt"
        >>> write_pickle(path, {"epoch": 3})
        >>> read_pickle(path)
        {'epoch': 3}
    """
    held = io.BytesIO()  # torch ends the process if its own file cannot be written
    torch.save(contents, held)
    write_whole(path, held.getvalue())


def read_pickle(path: Path, remedy: str = "") -> Any:
    """The contents of a torch file, tensors and plain containers alone.

    Args:
        path: the file.
        remedy: what errors advise; by default, to get a damaged file again.

    Raises:
        CheckpointError: if it is not a torch file, holds code, or is damaged: also in the
            middle of a tensor, where the file has checksums.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    expected, advice = "expected a torch checkpoint of tensors (.pth)", f"; {remedy}" * bool(remedy)
    with path.open("rb") as file:
        magic = file.read(4)
    if not magic.startswith((b"PK", b"\x80")):  # a zip archive, or a bare pickle
        raise CheckpointError(f"{path} is not a torch file: {expected}{advice}")
    try:
        if magic.startswith(b"PK"):
            _check_sums(path)
        with warnings.catch_warnings(action="ignore"):  # remarks on the pickle protocol
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} was refused: {expected}, but it holds more, which was not executed{advice}"
        ) from None
    except Exception as error:  # on damaged bytes the parser fails in every way there is
        raise CheckpointError(
            f"{path} cannot be read: {expected}; the file is damaged ({one_line(error)}): "
            f"{remedy or 'get it again'}"
        ) from None


def _check_sums(path: Path) -> None:
    """Compare a zip archive with its checksums, which torch writes but does not read."""
    with zipfile.ZipFile(path) as archive:
        wrong = archive.testzip()
    if wrong is not None:
        raise zipfile.BadZipFile(f"the checksum of {wrong} is wrong")


def one_line(error: BaseException) -> str:
    """The beginning of what an error says."""
    lines = str(error).strip().splitlines()
    return lines[0][:120] if lines else type(error).__name__
