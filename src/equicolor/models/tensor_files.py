"""Files of tensors, checked: ours in safetensors, others' through torch's weights-only loader.

Nothing here executes code from a file. Every error is one line.
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

WEIGHTS = "model.safetensors"  # in the folder of a training run
_FORMAT = "equicolor-1"
_DIGEST = "digest"  # key in the header


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


def name_of_file(path: str | Path) -> str:
    """The name of a network's file, or of the folder of its training run."""
    path = Path(path)
    return path.parent.name if path.name == WEIGHTS else path.name


def write_weights(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors with a header; equal contents give equal bytes. The folder is created."""
    from safetensors.torch import save

    # Copied: safetensors refuses tensors that share memory, such as tied weights.
    layout = torch.contiguous_format
    tensors = {key: t.detach().clone(memory_format=layout) for key, t in tensors.items()}
    header = {**header, "format": _FORMAT}
    header[_DIGEST] = _digest_of(header, tensors)
    # In memory first: on a full disk safetensors does not raise an OSError.
    write_whole(path, _sorted(save(tensors, header)))


def _sorted(contents: bytes) -> bytes:
    """Sort the header of a safetensors file: its keys would otherwise be in random order."""
    (length,) = struct.unpack("<Q", contents[:8])
    header = json.loads(contents[8 : 8 + length])
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    ordered = text.encode().ljust(length)
    if len(ordered) != length:  # safetensors spells it otherwise
        return contents
    return b"".join((contents[:8], ordered, memoryview(contents)[8 + length :]))


def _digest_of(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """The digest of a whole file: everything in its header but the digest, and its tensors."""
    entries = {key: value for key, value in header.items() if key != _DIGEST}
    return digest(json.dumps(entries, sort_keys=True), tensors)


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """A digest of a text and of tensors on any device: 16 hexadecimal digits."""
    sha = hashlib.sha256(text.encode())
    for key, value in sorted(tensors.items()):
        sha.update(f"{key} {value.dtype} {list(value.shape)}".encode())
        sha.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()[:16]


def read_weights(path: Path, *, weights: bool = False) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The header of a file of :func:`write_weights`, and its tensors if ``weights`` is true.

    With the tensors, the digest in the header is checked.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    if path.suffix == ".ckpt":
        beside = path.with_name(WEIGHTS)
        where = f"is {beside}" if beside.is_file() else f"will be {beside} when it is finished"
        raise CheckpointError(f"{path} is the state of a training run; its network {where}")
    remedy = "get it again"
    if path.name == WEIGHTS:
        remedy += ", or train it again with --force"
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()} if weights else {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a complete safetensors file saved by equicolor ({one_line(error)}): "
            f"{remedy}"
        ) from None
    if header.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path} is a safetensors file without equicolor's configuration "
            f"(expected format {_FORMAT!r} in its header, got {header.get('format')!r})"
        )
    if weights and header.get(_DIGEST) != _digest_of(header, tensors):
        raise CheckpointError(f"{path} is damaged: its digest does not fit its contents; {remedy}")
    return header, tensors


def write_pickle(path: Path, contents: Any) -> None:
    """Write a torch file, whole or not at all."""
    buffer = io.BytesIO()  # torch ends the process if its own file cannot be written
    torch.save(contents, buffer)
    write_whole(path, buffer.getvalue())


def read_pickle(path: Path, remedy: str = "") -> Any:
    """The contents of a torch file: tensors and plain containers, never code.

    Checksums are compared if the file has them. ``remedy`` is the advice of errors, by default
    to get a damaged file again.
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
            with zipfile.ZipFile(path) as archive:  # torch writes checksums, but does not read them
                if wrong := archive.testzip():
                    raise zipfile.BadZipFile(f"the checksum of {wrong} is wrong")
        with warnings.catch_warnings(action="ignore"):  # about the pickle protocol
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} was refused: {expected}, but it holds objects that were not loaded{advice}"
        ) from None
    except Exception as error:  # damaged bytes make the parser raise anything
        raise CheckpointError(
            f"{path} cannot be read: {expected}; the file is damaged ({one_line(error)}): "
            f"{remedy or 'get it again'}"
        ) from None


def one_line(error: BaseException) -> str:
    """The first line of an error, cut to 120 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]
