"""Run a ColorMNIST experiment from start to report, or draw one from its rows."""

import collections
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from equicolor import _checks
from equicolor._files import output_folder
from equicolor.data import Digits, load_mnist
from equicolor.devices import choose_device
from equicolor.experiments import colormnist, colormnist_report, demo
from equicolor.results import read_results, write_results

__all__ = ["EXPERIMENTS", "Reproduction", "from_results", "reproduce"]

# What `equicolor reproduce` knows: the place in the paper, and what it measures.
EXPERIMENTS = {
    "colormnist-longtailed": ("Fig. 2a", "30 classes of unequal size: shapes shared over colours"),
    "colormnist-biased": ("Fig. 2b", "every digit has its own hue, with more or less spread"),
    "classification": ("Tables 1, 3, Fig. 1b", "real images, original and with shifted hues"),
}
RESULTS = "results.json"
_JOBS = "jobs"
_CLASSES = 30  # of the long-tailed set


class _Quick(NamedTuple):
    """Settings for minutes on two cores; steps and batches are the demonstration's."""

    models: tuple[str, ...]
    seeds: int
    epochs: int
    sigmas: tuple[float, ...] = ()


_QUICK = {
    "colormnist-longtailed": _Quick(("z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled"), 2, 20),
    "colormnist-biased": _Quick(("z2cnn", "cecnn", "cecnn-pooled"), 1, 20, (0.0, 36.0, 1e6)),
}


class Reproduction(NamedTuple):
    """An experiment that was run or read.

    Attributes:
        rows: its results.
        written: the files that were written.
    """

    rows: list[dict[str, Any]]
    written: list[Path]


def reproduce(
    experiment: str,
    output: Path | str,
    *,
    seeds: int | None = None,
    epochs: int | None = None,
    models: Sequence[str] | None = None,
    quick: bool = False,
    device: str = "auto",
    console: Console | None = None,
) -> Reproduction:
    """Train the networks of an experiment; write results, figures and a report.

    What an earlier call in the same folder finished or began is continued.

    Args:
        experiment: one of :data:`equicolor.experiments.colormnist.EXPERIMENTS`.
        output: the folder.
        seeds: how many, counted from 0; the paper's ten by default.
        epochs: the paper's 1000 (long-tailed) or 1500 (biased) by default.
        models: only these, such as ``"cecnn"`` or ``"cecnn+jitter"``.
        quick: few models, seeds and epochs on the embedded digits, unless given.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        console: shows the progress (default: stderr).
    """
    _checks.one_of("experiment", experiment, colormnist.EXPERIMENTS)
    for name, value in (("seeds", seeds), ("epochs", epochs)):
        if value is not None:
            _checks.positive_int(name, value)
    where = choose_device(device)
    digits = load_mnist(embedded=True if quick else None)
    count, listed = _plan(experiment, digits, seeds, epochs, models, quick)
    output = output_folder(output)
    _refuse_others(experiment, output / RESULTS)
    console = Console(stderr=True) if console is None else console
    try:
        rows = _run(listed, output / _JOBS, range(count), where, console)
    except KeyboardInterrupt:
        console.print("The same command continues where this one stopped.")
        raise
    facts: dict[str, Any] = {"experiment": experiment, "seeds": list(range(count))}
    cuda = where.type == "cuda"
    facts["seconds"] = colormnist.seconds(listed, output / _JOBS, range(count), side_by_side=cuda)
    results = write_results(output / RESULTS, rows, device=where, **facts)
    written = colormnist_report.write(
        experiment,
        rows,
        digits,
        output,
        curves=_curves(experiment, listed, output / _JOBS),
        provenance=_facts(read_results(results)),
    )
    return Reproduction(rows, [results, *written])


def _refuse_others(experiment: str, path: Path) -> None:
    """Refuse to replace results that are not this experiment's."""
    if not path.exists():
        return
    try:
        held = read_results(path).get("experiment")
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError):
        held = None
    if held != experiment:
        what = "something else" if held is None else f"results of {held}"
        raise ValueError(f"{path} holds {what}; choose another folder for {experiment}")


def from_results(
    experiment: str, sources: Sequence[Path | str], output: Path | str
) -> Reproduction:
    """Draw the figures of an experiment from files of rows, without training.

    Args:
        experiment: one of :data:`equicolor.experiments.colormnist.EXPERIMENTS`.
        sources: files that :func:`reproduce` wrote, of different models.
        output: the folder for the figures.
    """
    _checks.one_of("experiment", experiment, colormnist.EXPERIMENTS)
    rows = [row for source in sources for row in _rows(experiment, source)]
    seen = collections.Counter(
        tuple(row.get(name) for name in ("model", "augmentation", "weighted", "sigma", "seed"))
        for row in rows
    )
    twice = [key for key, count in seen.items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0][0]!r} with seed {twice[0][-1]} comes more than once")
    written = colormnist_report.write(experiment, rows, load_mnist(), output, report=False)
    return Reproduction(rows, written)


def _rows(experiment: str, source: Path | str) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = read_results(source)["rows"]
        found = {row["dataset"] for row in rows}
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{source} is not a file of results: {error!r}") from None
    if found != {experiment}:
        held = ", ".join(map(repr, sorted(found))) or "no rows"
        raise ValueError(f"{source} holds {held}, not {experiment!r}")
    needed = ("model", "augmentation", "weighted", "seed", "epochs", "original", "digits")
    for row in rows:
        lacking = [name for name in needed if name not in row]
        if lacking:
            raise ValueError(f"{source} has a row without {', '.join(lacking)}")
        if not isinstance(row["original"], (int, float)):
            raise ValueError(f"{source} has the accuracy {row['original']!r}, not a number")
        classes = row.get("per_class", _CLASSES * [0.0])
        if len(classes) != _CLASSES:
            raise ValueError(f"{source} has {len(classes)} classes in a row, not {_CLASSES}")
    return rows


def _plan(
    experiment: str,
    digits: Digits,
    seeds: int | None,
    epochs: int | None,
    models: Sequence[str] | None,
    quick: bool,
) -> tuple[int, list[colormnist.Job]]:
    """The number of seeds, and the jobs."""
    if not quick:
        listed = colormnist.jobs(experiment, digits, epochs=epochs, models=models)
        return colormnist.SEEDS if seeds is None else seeds, listed
    plan = _QUICK[experiment]
    listed = colormnist.jobs(
        experiment,
        digits,
        epochs=plan.epochs if epochs is None else epochs,
        models=plan.models if models is None else models,
        sigmas=plan.sigmas,
    )
    steps: dict[str, Any] = {"lr": demo.LEARNING_RATE, "batch_size": demo.BATCH_SIZE}
    listed = [job._replace(recipe=dataclasses.replace(job.recipe, **steps)) for job in listed]
    return plan.seeds if seeds is None else seeds, listed


def _run(
    listed: Sequence[colormnist.Job],
    folder: Path,
    seeds: Sequence[int],
    device: torch.device,
    console: Console,
) -> list[dict[str, Any]]:
    cuda = device.type == "cuda"
    planned = colormnist.parts(listed, seeds, side_by_side=cuda)
    labels, before = {}, {}  # what to show of each part, and the epochs that come before it
    total = 0
    for index, (job, _) in enumerate(planned, 1):
        labels[job.name] = f"{job.name.partition('.')[0]} ({index} of {len(planned)})"
        before[job.name] = total
        total += job.recipe.epochs
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} epochs {task.fields[loss]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        bar = progress.add_task(labels[planned[0][0].name], total=total, loss="")

        def show(name: str, done: int, epochs: int, loss: float) -> None:
            progress.update(
                bar,
                description=labels[name],
                completed=before[name] + done,
                loss=f"loss {loss:.3f}",
            )

        return colormnist.run(
            listed,
            folder,
            seeds=seeds,
            device=device,
            progress=show,
            side_by_side=cuda,
            checkpoint_every=50 if cuda else 5,
            networks=True,
        )


def _curves(
    experiment: str, listed: Sequence[colormnist.Job], folder: Path
) -> dict[str, list[float]] | None:
    """Hue curves of the plain and the equivariant network of the first seed."""
    if experiment != "colormnist-longtailed":
        return None
    curves = {}
    for job in listed:
        if job.name in demo.MODELS:
            for network, data in zip(colormnist.trained(job, folder), job.datasets, strict=False):
                known = colormnist_report.best_known(data)
                curve = colormnist_report.hue_curve(network, data, classes=known, per_class=30)
                curves[job.name] = curve.tolist()
    return curves


def _facts(contents: dict[str, Any]) -> dict[str, Any]:
    """What a result file says beside its rows."""
    return {name: value for name, value in contents.items() if name != "rows"}
