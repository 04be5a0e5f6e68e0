"""Run a ColorMNIST experiment from start to report, or draw one from its rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from equicolor import _checks
from equicolor._files import output_folder
from equicolor.data import Digits, load_mnist, longtailed_colormnist
from equicolor.devices import choose_device
from equicolor.paper import colormnist, colormnist_jobs, colormnist_report, demo, report
from equicolor.paper.colormnist_hues import HUE_IMAGES, best_known, hue_curve
from equicolor.paper.colormnist_variants import by_variant
from equicolor.paper.jobs import JOBS, RESULTS, Job, Store, refuse_run
from equicolor.paper.launching import Launch, launch
from equicolor.paper.registry import EXPERIMENTS
from equicolor.paper.rows import Findings, distinct
from equicolor.reporting.progress import say
from equicolor.results import read_results, read_rows, write_results

__all__ = ["Reproduction", "from_results", "reproduce"]

_NEEDED = ("dataset", "model", "augmentation", "weighted", "seed", "epochs", "digits")
_CLASSES = 30  # of the long-tailed set


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
    sigmas: Sequence[float] | None = None,
    precision: str = "auto",
    redraw: bool = False,
    quick: bool = False,
    device: str = "auto",
    how: Launch | None = None,
    console: Console | None = None,
) -> Reproduction:
    """Train the networks of an experiment; write results, figures and a report.

    What an earlier call in the same folder finished or began is continued.

    Args:
        experiment: one of :data:`equicolor.paper.colormnist.EXPERIMENTS`.
        output: the folder.
        seeds: how many, counted from 0; the paper's ten by default.
        epochs: the paper's 1000 (long-tailed) or 1500 (biased) by default.
        models: only these, such as ``"cecnn"`` or ``"cecnn+jitter"``.
        sigmas: of the biased experiment, in degrees; the paper's by default.
        precision: of convolutions, ``"float32"`` or ``"bfloat16"``; ``"auto"`` is bfloat16 on CUDA.
        redraw: of the biased experiment: draw digits, colours and noise anew for every seed,
            instead of once for all.
        quick: few models, seeds and epochs on the embedded digits, unless given.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        how: how to spread the work; one network after the other on the device by default. Of a
            shard nothing but its part is trained, and rows come when all parts are there.
        console: shows the progress (default: stderr).
    """
    _checks.one_of("experiment", experiment, colormnist.EXPERIMENTS)
    for name, value in (("seeds", seeds), ("epochs", epochs)):
        if value is not None:
            _checks.positive_int(name, value, at_most=_checks.MOST.get(name))
    where = choose_device(device)
    digits = load_mnist(embedded=True if quick else None)
    count, listed = colormnist_jobs.plan(
        experiment,
        digits,
        seeds=seeds,
        epochs=epochs,
        models=models,
        sigmas=sigmas,
        precision=precision,
        redraw=redraw,
        quick=quick,
    )
    output = output_folder(output)
    _refuse_others(experiment, output / RESULTS)
    console = Console(stderr=True) if console is None else console
    cuda = where.type == "cuda"
    jobs = colormnist_jobs.as_jobs(experiment, listed, range(count), side_by_side=cuda)
    del listed  # and the data with it: jobs draw their own
    store = Store(output / JOBS)
    how = Launch(devices=(device,)) if how is None else how
    try:
        launch([job for parts in jobs.values() for job in parts], store, how, console=console)
    except KeyboardInterrupt:
        say(console, "The same command continues where this one stopped.")
        raise
    found = [store.outcome(job) for parts in jobs.values() for job in parts]
    rows = [row for outcome in found if outcome for row in outcome.rows]
    if None in found:
        message = f"{found.count(None)} of {len(found)} jobs are left to other shards"
        say(console, f"{message}; the same command without --shard collects them")
        return Reproduction(rows, [])
    facts: dict[str, Any] = {"experiment": experiment, "seeds": list(range(count))}
    facts["seconds"] = {
        model: round(sum(map(store.seconds, parts)), 1) for model, parts in jobs.items()
    }
    resumed = [model for model, parts in jobs.items() if any(map(store.resumed, parts))]
    if resumed:  # their seconds are not all
        facts["resumed"] = resumed
    results = write_results(output / RESULTS, rows, device=where, **facts)
    written = colormnist_report.write(
        experiment,
        rows,
        output,
        curves=_curves(jobs, store, digits) if experiment == "colormnist-longtailed" else None,
        provenance=_facts(read_results(results)),
    )
    return Reproduction(rows, [results, *written])


def _refuse_others(experiment: str, path: Path) -> None:
    """Refuse to replace results that are not this experiment's."""
    if not path.exists():
        return
    try:
        held = read_results(path).get("experiment")
    except ValueError as error:
        raise ValueError(f"{error}; delete it, or choose another folder for {experiment}") from None
    if held != experiment:
        what = "something else" if held is None else f"results of {held}"
        raise ValueError(f"{path} holds {what}; choose another folder for {experiment}")


def from_results(
    experiment: str, sources: Sequence[Path | str], output: Path | str
) -> Reproduction:
    """Draw the figures of an experiment from files of rows, without training.

    Args:
        experiment: one of :data:`equicolor.paper.colormnist.EXPERIMENTS`.
        sources: files that :func:`reproduce` wrote; rows that come again count once.
        output: the folder for the figures; not that of a run, which has its own.
    """
    _checks.one_of("experiment", experiment, colormnist.EXPERIMENTS)
    refuse_run(output)
    rows = distinct([row for source in sources for row in _rows(experiment, source)])
    for variant, group in by_variant(rows).items():
        seen = [(row.get("sigma"), row["seed"]) for row in group]
        if len(set(seen)) < len(seen):
            raise ValueError(f"different networks of one seed are called {variant.name}: give one")
    findings = Findings({experiment: rows})
    for section in report.sections(EXPERIMENTS[experiment], findings):
        if section.file and section.figure is None:
            say(Console(stderr=True), f"{section.file}.png: {section.text}")
    written = colormnist_report.write(experiment, rows, output, report=False)
    return Reproduction(rows, written)


def _rows(experiment: str, source: Path | str) -> list[dict[str, Any]]:
    rows = read_rows(source, _NEEDED, ["original"])
    found = {str(row["dataset"]) for row in rows}
    if found != {experiment}:
        held = ", ".join(map(repr, sorted(found))) or "no rows"
        raise ValueError(f"{source} holds {held}, not {experiment!r}")
    for row in rows:
        classes = row.get("per_class", _CLASSES * [0.0])
        if len(classes) != _CLASSES:
            raise ValueError(f"{source} has {len(classes)} classes in a row, not {_CLASSES}")
    return rows


def _curves(
    jobs: Mapping[str, Sequence[Job]], store: Store, digits: Digits
) -> dict[str, list[float]]:
    """Hue curves of the plain and the equivariant network of the first seed."""
    networks, data = colormnist_jobs.networks(jobs, store), longtailed_colormnist(digits)
    known = best_known(data)
    return {
        name: hue_curve(networks[name], data, classes=known, per_class=HUE_IMAGES).tolist()
        for name in demo.MODELS
        if name in networks
    }


def _facts(contents: dict[str, Any]) -> dict[str, Any]:
    """What a result file says beside its rows."""
    return {name: value for name, value in contents.items() if name != "rows"}
