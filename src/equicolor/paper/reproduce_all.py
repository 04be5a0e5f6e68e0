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

from equicolor._files import output_folder, write_whole
from equicolor._text import counted
from equicolor.paper import report
from equicolor.paper.ablations import ABLATIONS
from equicolor.paper.jobs import JOBS, Job, Store
from equicolor.paper.launching import JobsFailedError, Launch, launch
from equicolor.paper.picture_jobs import Part
from equicolor.paper.plans import Scope, parts
from equicolor.paper.registry import EXPERIMENTS, find_experiment
from equicolor.paper.rows import Findings, merged
from equicolor.reporting.progress import say
from equicolor.results import Row, provenance, read_results, write_results

__all__ = ["Reproduced", "reproduce_all", "state"]


class Reproduced(NamedTuple):
    """What was run.

    Attributes:
        report: the page.
        results: the files of rows.
        jobs, finished: how many there are, and how many of them are done.
        failed: why experiments could not run, finish or be shown, by their ids.
        broken: whether anything failed, rather than being left to other shards.
    """

    report: Path
    results: list[Path]
    jobs: int
    finished: int
    failed: Mapping[str, str]
    broken: bool = False


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
    store = Store(output / JOBS)
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
        say(console, "The same command continues where this one stopped.")
        raise
    except JobsFailedError as error:
        problems = error.failures
    else:
        problems = {}
    broken = bool(failed or problems)
    for name, listed in planned.items():
        left = [job for job in _jobs({name: listed}) if store.outcome(job) is None]
        if left:
            own = {job.name: problems[job.name] for job in left if job.name in problems}
            reasons = [f"{job}: {why}" for job, why in own.items()]
            if len(own) < len(left):
                sharded = how is not None and how.shard is not None
                why = "left to other shards" if sharded else "not run"
                reasons.append(f"{len(left) - len(own)} {why}")
            verb = "is" if len(left) == 1 else "are"
            failed[name] = f"{counted(len(left), 'job')} {verb} not finished: {'; '.join(reasons)}"
    planned |= _finished(scope, store, without=chosen)
    with FileLock(output / ".report.lock"):  # other shards may end at the same time
        return _write(planned, store, scope, jobs, failed, broken)


def _finished(scope: Scope, store: Store, *, without: Sequence[str]) -> dict[str, list[Part]]:
    """The other experiments whose jobs are all there, be it because these have them in common."""
    found = {}
    for name in EXPERIMENTS:
        if name in without:
            continue
        try:
            listed = parts(name, scope)
        except (OSError, ValueError):  # its data are missing
            continue
        if all(store.outcome(job) is not None for part in listed for job in part.jobs):
            found[name] = listed
    return found


def _write(
    planned: Mapping[str, Sequence[Part]],
    store: Store,
    scope: Scope,
    jobs: Sequence[Job],
    failed: Mapping[str, str],
    broken: bool,
) -> Reproduced:
    """Write rows and report."""
    output = scope.output
    results = _write_results(planned, store, output, scope)
    finished = sum(store.outcome(job) is not None for job in jobs)
    facts = {**provenance("cuda" if scope.cuda else "cpu"), "jobs": f"{finished} of {len(jobs)}"}
    seconds = sum(store.seconds(job) for job in jobs if store.outcome(job) is not None)
    made = [store.provenance(job) for job in jobs if store.outcome(job) is not None]
    if made:  # elsewhere, maybe
        facts["device"] = ", ".join(sorted({str(job["device"]) for job in made}))
    facts["computed for"] = f"{seconds / 60:.1f} minutes in all"
    if any("resumed" in job for job in made):
        facts["computed for"] += ", not counting what went before interruptions"
    # Also what earlier calls found of other experiments.
    known = any((output / report.RESULTS).glob("*.json"))
    nothing = Findings({}, quick=scope.quick)
    found = report.read([output / report.RESULTS]) if known else nothing
    written = report.write(found, output, quick=scope.quick, failed=failed, provenance=facts)
    said = {
        name: "; ".join(why for why in (failed.get(name), written.failed.get(name)) if why)
        for name in (*failed, *written.failed)
    }
    broken = broken or bool(written.failed)
    return Reproduced(written.report, results, len(jobs), finished, said, broken)


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
    """A file of rows for each experiment that has any, and the pictures of its jobs.

    Rows that a file has of other seeds or settings stay.
    """
    written = []
    folder = output / report.RESULTS
    for name, listed in planned.items():
        rows: list[Row] = [row for part in listed for row in part.rows(store) or []]
        if not rows:
            continue
        device = "cuda" if scope.cuda else "cpu"
        done = [job for job in _jobs({name: listed}) if store.outcome(job) is not None]
        facts: dict[str, Any] = {"experiment": name, "quick": scope.quick}
        facts["jobs"] = [store.provenance(job) for job in done]
        path = folder / f"{name}.json"
        if path.is_file():
            kept = read_results(path)
            if kept.get("quick") == scope.quick:
                names = {made["job"] for made in facts["jobs"]}
                earlier = [made for made in kept.get("jobs", []) if made["job"] not in names]
                facts["jobs"] += earlier
                rows = merged(rows, [row for row in kept["rows"] if _fits(name, row, rows)])
        written.append(write_results(path, rows, device=device, **facts))
        for part in listed:
            for picture in sorted(store.folder(part.job).glob(f"{name}*.png")):
                write_whole(folder / picture.name, picture.read_bytes())
    return written


def _fits(name: str, old: Mapping[str, Any], rows: Sequence[Row]) -> bool:
    """Whether an experiment shows an old row beside new ones, if it is about something else."""
    if name == "classification" or name in ABLATIONS:  # which tell settings apart
        return True
    if name.startswith("colormnist"):
        return all(old.get(key) == rows[0].get(key) for key in ("epochs", "digits"))
    return all(old.get("dataset") != row.get("dataset") for row in rows)


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
    store = Store(scope.output / JOBS)
    try:
        done = sum(store.outcome(job) is not None for job in jobs)
    except ValueError as error:
        return str(error)
    if done == len(jobs):
        return "done"
    return f"{done} of {len(jobs)} jobs" if done else "not run"
