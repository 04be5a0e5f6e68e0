"""Result files: flat rows, and the command, versions, device and date that made them."""

import json
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from equicolor._files import write_whole
from equicolor.devices import device_name

Row = dict[str, Any]  # one result: a flat JSON object

_VERSIONS = ("equicolor", "torch", "numpy", "lightning", "torchvision", "timm", "triton")


def provenance(device: torch.device | str = "cpu") -> dict[str, Any]:
    """The command, versions, device and date of a measurement, to run it again."""
    program = Path(sys.argv[0]).name
    program = "equicolor" if program == "__main__.py" else program  # python -m equicolor
    return {
        "command": shlex.join([program, *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version for name in _VERSIONS if (version := _version(name))},
    }


def write_results(
    path: Path | str, rows: Sequence[Row], *, device: torch.device | str = "cpu", **facts: Any
) -> Path:
    """Write rows and their provenance as one JSON file, one row per line; returns its path.

    ``facts`` are further entries of the file, which apply to all rows.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "results.json"
        >>> read_results(write_results(path, [{"model": "z2cnn", "original": 71.6}]))["rows"]
        [{'model': 'z2cnn', 'original': 71.6}]
    """
    head = json.dumps({**provenance(device), **facts}, indent=1)[:-2]
    body = ",\n  ".join(json.dumps(row) for row in rows)
    return write_whole(Path(path), f'{head},\n "rows": [\n  {body}\n ]\n}}\n')


def read_results(path: Path | str) -> dict[str, Any]:
    """Read a file written by :func:`write_results`; its rows are under ``"rows"``.

    Raises:
        ValueError: if the file holds something else.
    """
    try:
        contents: dict[str, Any] = json.loads(Path(path).read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a file of results: {error}") from None
    rows = contents.get("rows") if isinstance(contents, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f'{path} is not a file of results: expected rows under "rows"')
    return contents


def read_rows(
    path: Path | str, needed: Sequence[str] = (), numbers: Sequence[str] = ()
) -> list[Row]:
    """The rows of a file; a ValueError unless all have the keys, with numbers under ``numbers``."""
    rows: list[Row] = read_results(path)["rows"]
    for row in rows:
        missing = [name for name in (*needed, *numbers) if name not in row]
        if missing:
            raise ValueError(f"{path} has a row without {', '.join(missing)}")
        for name in numbers:
            if not isinstance(row[name], (int, float)):
                raise ValueError(f"{path} has {name} {row[name]!r}, not a number")
    return rows


def _version(name: str) -> str | None:
    if name == "equicolor":
        from equicolor import __version__

        return __version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
