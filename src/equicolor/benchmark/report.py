"""A run as tables, sentences, a figure and files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from equicolor._files import write_whole
from equicolor.benchmark.cases import MODES
from equicolor.benchmark.figures import (
    MODE_NAMES,
    case_name,
    loss_figure,
    ratio_figure,
    rotation_figure,
)
from equicolor.benchmark.ratios import Goal, Row
from equicolor.reporting.figures import png
from equicolor.reporting.progress import say
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import write_results

__all__ = [
    "draw",
    "goal_lines",
    "loop_table",
    "mode_table",
    "precision_table",
    "problems",
    "result_paths",
    "show",
    "write",
]

_FIGURES = {
    "layers": ratio_figure,
    "networks": ratio_figure,
    "rotations": rotation_figure,
    "precision": loss_figure,
}


def result_paths(
    output: Path | str, suite: str, device: torch.device | str, *, overwrite: bool = False
) -> tuple[Path, Path]:
    """Where results and figure go: beside each other.

    Args:
        output: a file that ends in .json, or a folder.
        suite: the name of the suite.
        device: its type is part of the name of a file in a folder.
        overwrite: whether there may be files already.

    Raises:
        FileExistsError: if there are and may not be.

    Example:
        >>> [path.name for path in result_paths("absent", "layers", "cpu")]
        ['bench-layers-cpu.json', 'bench-layers-cpu.png']
    """
    path = Path(output)
    if path.suffix != ".json":
        path = path / f"bench-{suite}-{torch.device(device).type}.json"
    paths = path, path.with_suffix(".png")
    for place in path.parents:
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(f"results go to a folder, but {place} is a file")
    for there in paths:
        if there.exists() and not overwrite:
            raise FileExistsError(f"{there} exists; --force replaces it, --output goes elsewhere")
    return paths


def write(
    suite: str,
    rows: Sequence[Row],
    path: Path,
    *,
    device: torch.device | str,
    goals: Sequence[Goal] = (),
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write rows, the goals they are held to, and what else belongs to all of them.

    Args:
        suite: the name of the suite.
        rows: what was found so far.
        path: the first of :func:`result_paths`.
        device: where it was measured.
        goals: to be kept beside the rows.
        facts: whatever else belongs to all rows.
    """
    kept = {"goals": [goal.to_json() for goal in goals]} if goals else {}
    return write_results(path, rows, device=device, suite=suite, **facts or {}, **kept)


def draw(suite: str, rows: Sequence[Row], path: Path) -> list[Path]:
    """Write the figure of a suite, if anything was measured; returns what was written."""
    if all("problem" in row for row in rows):
        return []
    return [write_whole(path, png(_FIGURES[suite](rows)))]


def mode_table(rows: Sequence[Row], mode: str) -> Table:
    """What was measured in one mode.

    Example:
        >>> row = {"model": "stage1", "rotations": 3, "variant": "auto", "mode": "forward"}
        >>> table = mode_table([row | {"ms": 2.0, "over_plain": 3.0, "dense_over": 2.1}], "forward")
        >>> table.rows[0][:6]
        ('stage1', '3', 'auto', '2.00', '3.00', '2.10')
    """
    own = [row for row in rows if row["mode"] == mode]
    lines = [
        (
            str(row.get("name", row["model"])),
            str(row["rotations"]),
            row["variant"],
            _number(row.get("ms")),
            _number(row.get("over_plain"), 2),
            _number(row.get("dense_over"), 2),
            _number(row.get("images_per_s")),
            _number(row.get("peak_mib")),
            _number(row.get("memory_over_plain"), 2),
            _number(row.get("tflops")),
            _number(None if row.get("peak_fraction") is None else 100 * row["peak_fraction"]),
        )
        for row in own
    ]
    columns = ["case", "n", "variant", "ms", "×plain", "dense/", "img/s", "MiB", "×plain"]
    columns += ["TFLOP/s", "peak %"]
    title = MODE_NAMES[mode]
    if own and "precision" in own[0]:
        title += f", batch {own[0]['batch']}, {own[0]['precision']}"
        kinds = {row["compiled"] for row in own}
        recorded = any(row.get("recorded") for row in own)
        title += ", compiled" * (True in kinds)
        title += f" (fused {'recorded' if recorded else 'not'})" * (len(kinds) == 2)
    return Table(columns, lines, title, text_columns=3)


def precision_table(rows: Sequence[Row]) -> Table:
    """Errors of gradients and final losses, of every seed and variant.

    Example:
        >>> row = {"variant": "auto", "seed": 0, "gradient_error": 0.0123, "final_loss": 1.5}
        >>> precision_table([row]).rows
        [('auto', '0', '1.23e-02', '1.5000')]
    """
    lines = []
    for row in rows:
        error, loss = row.get("gradient_error"), row.get("final_loss")
        lines.append(
            (
                row["variant"],
                str(row["seed"]),
                MISSING if error is None else f"{error:.2e}",
                MISSING if loss is None else f"{loss:.4f}",
            )
        )
    title = "relative error of one step's gradient against float64, and loss at the end"
    return Table(("variant", "seed", "gradient error", "final loss"), lines, title)


def loop_table(rows: Sequence[Row]) -> Table:
    """Images a second of training and of the bare step, and the seconds of the sweep.

    Example:
        >>> loop_table([{"name": "bare step", "images_per_s": 1234.5}]).rows
        [('bare step', '1234', '–')]
    """
    lines = [
        (row["name"], _number(row.get("images_per_s")), _number(row.get("seconds"))) for row in rows
    ]
    return Table(("what", "img/s", "s"), lines, "training, data included, against its bare step")


def show(suite: str, rows: Sequence[Row], console: Console) -> None:
    """Print the tables, and what went wrong."""
    if suite == "precision":
        tables = [precision_table(rows)]
    elif suite == "loop":
        tables = [loop_table(rows)]
    else:
        modes = [mode for mode in MODES if any(row["mode"] == mode for row in rows)]
        tables = [mode_table(rows, mode) for mode in modes]
    for table in tables:
        made = table.rich()
        # Eleven columns fit in eighty characters.
        made.box, made.pad_edge, made.collapse_padding = None, False, True
        console.print(made)
    for line in problems(rows):
        say(console, line)


def problems(rows: Sequence[Row]) -> list[str]:
    """A line for every kind of problem, with the cases that have it.

    Example:
        >>> row = {"model": "stage1", "rotations": 3, "mode": "training", "variant": "dense"}
        >>> problems([row | {"problem": "out of memory"}])
        ['out of memory: stage1, n = 3 dense training']
    """
    kinds = dict.fromkeys(row["problem"] for row in rows if "problem" in row)
    return [
        f"{kind}: " + "; ".join(_full_name(row) for row in rows if row.get("problem") == kind)
        for kind in kinds
    ]


def goal_lines(goals: Sequence[Goal]) -> list[str]:
    """A sentence for every goal.

    Example:
        >>> goal_lines([Goal("training step / plain", 3.31, 3.2)])
        ['training step / plain: 3.31, goal at most 3.2: missed']
    """
    words = {True: "met", False: "missed", None: "not measured"}
    return [
        f"{goal.what}: {MISSING if goal.value is None else f'{goal.value:.3g}'}, goal "
        f"{'at most' if goal.at_most else 'at least'} {goal.limit:g}: {words[goal.met]}"
        for goal in goals
    ]


def _full_name(row: Row) -> str:
    seed = f" seed {row['seed']}" if "seed" in row else ""
    return f"{case_name(row)} {row['variant']}{seed} {row.get('mode', '')}".strip()


def _number(value: float | None, digits: int | None = None) -> str:
    """Three significant figures, or so many decimals."""
    if value is None:
        return MISSING
    if digits is None:
        digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"
