"""Run some or all experiments as one list of jobs, and write one report.

Jobs that experiments have in common run once; jobs that an earlier call finished are not run
again; what was interrupted continues.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock
from rich.console import Console

from equicolor._files import output_folder
from equicolor.experiments import all_report
from equicolor.experiments.jobs import Job, Store
from equicolor.experiments.launching import JobsFailedError, Launch, launch
from equicolor.experiments.picture_jobs import Part
from equicolor.experiments.plans import Scope, parts
from equicolor.experiments.registry import EXPERIMENTS, find_experiment
from equicolor.experiments.sections import Findings
from equicolor.results import provenance, write_results

__all__ = ["Reproduced", "reproduce_all", "state"]

_JOBS = "jobs"


class Reproduced(NamedTuple):
    """What was run.

    Attributes:
        report: the page.
        results: the files of rows.
        jobs, finished: how many there are, and how many of them are done.
        failed: why experiments could not run or finish, by their ids.
    """

    report: Path
    results: list[Path]
    jobs: int
    finished: int
    failed: Mapping[str, str]


def reproduce_all(
    scope: Scope,
    names: Sequence[str] | None = None,
    how: Launch | None = None,
    *,
    console: Console | None = None,
) -> Reproduced:
    """Run experiments, write their rows to ``results/`` and a report of all that is known.

    An experiment whose data are missing is left out, and the report says so; so are those of
    which a job failed.

    Args:
        scope: how much of them, and where to.
        names: their ids; all by default.
        how: how to spread the jobs; one after the other by default.
        console: shows progress; None shows nothing.

    Returns:
        What was written.
    """
    chosen = list(EXPERIMENTS) if names is None else [find_experiment(n).name for n in names]
    output = output_folder(scope.output)
    store = Store(output / _JOBS)
    planned: dict[str, list[Part]] = {}
    failed: dict[str, str] = {}
    for name in chosen:
        try:
            planned[name] = parts(name, scope)
        except (OSError, ValueError) as error:
            if len(chosen) == 1:
                raise
            failed[name] = str(error)
    jobs = _jobs(planned)
    try:
        launch(jobs, store, how, console=console)
    except KeyboardInterrupt:
        if console is not None:
            console.print("The same command continues where this one stopped.")
        raise
    except Exception as error:
        if len(chosen) == 1 or not isinstance(error, (OSError, ValueError, JobsFailedError)):
            raise
        problem = str(error) or type(error).__name__
    else:
        problem = ""
    sharded = how is not None and how.shard is not None
    for name, listed in planned.items():
        left = sum(store.outcome(job) is None for part in listed for job in part.jobs)
        if left:
            why = "they belong to other shards" if sharded else problem
            failed[name] = f"{left} jobs are not finished: {why}"
    with FileLock(output / ".report.lock"):  # other shards may end at the same time
        return _write(planned, store, scope, jobs, failed)


def _write(
    planned: Mapping[str, Sequence[Part]],
    store: Store,
    scope: Scope,
    jobs: Sequence[Job],
    failed: Mapping[str, str],
) -> Reproduced:
    """Write rows and report."""
    output = scope.output
    results = _write_results(planned, store, output, scope)
    finished = sum(store.outcome(job) is not None for job in jobs)
    facts = {**provenance("cuda" if scope.cuda else "cpu"), "jobs": f"{finished} of {len(jobs)}"}
    seconds = sum(store.seconds(job) for job in jobs if store.outcome(job) is not None)
    facts["computed for"] = f"{seconds / 60:.1f} minutes in all"
    # Also what earlier calls found of other experiments.
    found = all_report.read([output / all_report.RESULTS]) if results else Findings({})
    written = all_report.write(found, output, quick=scope.quick, failed=failed, provenance=facts)
    return Reproduced(written.report, results, len(jobs), finished, failed)


def _jobs(planned: Mapping[str, Sequence[Part]]) -> list[Job]:
    """All jobs, each once, those that others need before them."""
    found: dict[str, Job] = {}
    for part in itertools.chain.from_iterable(planned.values()):
        for job in part.jobs:
            for each in (*job.after, job):
                found.setdefault(each.name, each)
    return list(found.values())


def _write_results(
    planned: Mapping[str, Sequence[Part]], store: Store, output: Path, scope: Scope
) -> list[Path]:
    """A file of rows for each experiment that has any, and the pictures of its jobs."""
    written = []
    folder = output / all_report.RESULTS
    for name, listed in planned.items():
        rows = [row for part in listed for row in part.rows(store) or []]
        if not rows:
            continue
        device = "cuda" if scope.cuda else "cpu"
        facts: dict[str, Any] = {"experiment": name, "quick": scope.quick}
        written.append(write_results(folder / f"{name}.json", rows, device=device, **facts))
        for part in listed:
            for picture in sorted(store.folder(part.job).glob(f"{name}*.png")):
                (folder / picture.name).write_bytes(picture.read_bytes())
    return written


def state(name: str, scope: Scope) -> str:
    """How much of an experiment is done in a folder, in words.

    Args:
        name: its id.
        scope: as it is run, and where.

    Example:
        >>> state("configurations", Scope(Path("/nowhere")))
        'not run'
    """
    if not scope.output.is_dir():
        return "not run"
    try:
        jobs = _jobs({name: parts(name, scope)})
    except (OSError, ValueError):  # its data are missing
        return "not run"
    store = Store(scope.output / _JOBS)
    done = sum(store.outcome(job) is not None for job in jobs)
    if done == len(jobs):
        return "done"
    return f"{done} of {len(jobs)} jobs" if done else "not run"
