"""An evaluation as tables, a figure and files."""

import math
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from equicolor._files import output_folder, refuse_files, refuse_to_replace, write_whole
from equicolor.evaluation.actions import HUE_ACTIONS, action_named
from equicolor.evaluation.evaluate import PREFIX, Evaluation
from equicolor.evaluation.figures import ACTION_NAMES, evaluation_figure
from equicolor.evaluation.hue_sweep import HueSweep
from equicolor.models.facts import network_title
from equicolor.reporting.figures import png
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import write_results

RESULTS, FIGURE = "evaluation.json", "hue-curve.png"


def summary_table(evaluation: Evaluation) -> Table:
    """Accuracy on the original images and under every action.

    The first mean, the paper's, counts -180° and 180° as two shifts, though they are one; the
    second counts them once, and is empty for actions that are not cyclic.
    """
    lines = [("original", f"{evaluation.original:.2f}", *[MISSING] * 4)]
    for action, sweep in evaluation.sweeps.items():
        about = action_named(action)
        once = f"{sweep.mean_distinct:.2f}" if about.cyclic else MISSING
        lines.append((about.label, f"{sweep.mean:.2f}", once, *lowest_cells(sweep)))
    columns = ("images", "accuracy", "±180° once", "lowest", "lowest at", "answers changed")
    heading = f"{network_title(evaluation.facts)}, {evaluation.images} images; percent"
    return Table(columns, lines, heading)


def lowest_cells(sweep: HueSweep) -> list[str]:
    """The lowest accuracy, the value it is at, and the mean percentage of answers changed."""
    lowest = int(sweep.accuracy.argmin())
    changed = 100 * sweep.changed.sum(1).double() / sweep.counts.sum()
    return [
        f"{float(sweep.accuracy[lowest]):.2f}",
        action_named(sweep.action).show(float(sweep.shifts[lowest])),
        f"{float(changed[sweep.distinct].mean()):.2f}",
    ]


def class_table(evaluation: Evaluation, action: str = "hsv", *, most: int = 10) -> Table:
    """The ``most`` classes that lose most under an action; the title says if there are more."""
    changes = evaluation.class_changes(action)
    lines = [
        (
            change.name,
            str(change.images),
            f"{change.original:.1f}",
            f"{change.shifted:.1f}",
            f"{change.shifted - change.original:+z.1f}",  # z: no negative zero
            f"{change.changed:.1f}",
        )
        for change in changes[:most]
    ]
    word, values = ("shifted", "shifts") if action in HUE_ACTIONS else ("altered", "values")
    columns = ("class", "images", "original", word, "difference", "answers changed")
    which = f"The {most} of {len(changes)} classes" if len(changes) > most else "Classes"
    heading = f"{which} that lose most, {ACTION_NAMES[action]}; percent, means over {values}"
    return Table(columns, lines, heading)


def headline(evaluation: Evaluation) -> str:
    """One sentence: accuracy with and without hue shifts (or the first action), and calibration."""
    shifted = ""
    if evaluation.sweeps:
        action = "hsv" if "hsv" in evaluation.sweeps else next(iter(evaluation.sweeps))
        name = ACTION_NAMES[action]
        when = f"on average over the values of {name}"
        if action in HUE_ACTIONS:
            when = f"when hues are shifted ({name.split()[0]})"
        shifted = f", {evaluation.sweeps[action].mean:.1f} % {when}"
    return (
        f"{evaluation.original:.1f} % correct{shifted}; "
        f"calibration error {evaluation.reliability.expected_error:.1f} points."
    )


def show(evaluation: Evaluation, console: Console) -> None:
    """Print the summary, and the classes that lose most in the first sweep."""
    console.print(summary_table(evaluation).rich())
    for action in list(evaluation.sweeps)[:1]:
        console.print(class_table(evaluation, action).rich())


def write(
    evaluation: Evaluation, output: Path | str, *, device: torch.device | str = "cpu"
) -> list[Path]:
    """Write all numbers as JSON, and the curves as an image, into a folder.

    Earlier files are replaced; see :func:`refuse_existing`.

    Returns:
        The files: ``evaluation.json``, whose one row also holds the accuracy of every class with
        and without shifts (``…_per_class``, null for a class without images) and the bins of
        the reliability; and ``hue-curve.png``, the curves of all actions, if there are any.
    """
    folder = output_folder(output)
    row = evaluation.rows()[0] | details(evaluation)
    written = [write_results(folder / RESULTS, [row], device=device)]
    if evaluation.sweeps:
        written.append(write_whole(folder / FIGURE, png(evaluation_figure(evaluation))))
    else:
        (folder / FIGURE).unlink(missing_ok=True)
    return written


def refuse_existing(output: Path | str, overwrite: bool) -> None:
    """Refuse a folder that is a file or holds an earlier evaluation, before any work."""
    refuse_files(Path(output))
    refuse_to_replace((Path(output) / RESULTS, Path(output) / FIGURE), overwrite)


def details(evaluation: Evaluation) -> dict[str, Any]:
    """Numbers of every class, and the bins of the reliability, for a row."""
    bins = evaluation.reliability
    details: dict[str, Any] = {
        "class_names": evaluation.class_names,
        "per_class": _rounded(evaluation.per_class),
        "reliability_counts": bins.counts.tolist(),
        "reliability_confidence": _rounded(bins.confidence),
        "reliability_accuracy": _rounded(bins.accuracy),
    }
    for action, sweep in evaluation.sweeps.items():
        prefix = PREFIX[action]
        details[f"{prefix}_per_class"] = _rounded(sweep.mean_per_class)
        details[f"{prefix}_changed_per_class"] = _rounded(sweep.mean_changed)
    return details


def _rounded(values: Tensor) -> list[float | None]:
    """Numbers for JSON, which has no NaN: classes and bins without images are null."""
    return [None if math.isnan(value) else round(value, 3) for value in values.tolist()]
