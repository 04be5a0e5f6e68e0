"""Run some or all experiments as one list of jobs, and write one report.

Jobs that experiments share run once, jobs that an earlier call finished are not run again, and
interrupted jobs continue.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock
from rich.console import Console

from equicolor._files import output_folder, write_whole
from equicolor._text import counted
from equicolor.paper import report
from equicolor.paper.experiment import Job, Scope
from equicolor.paper.launching import Launch, launch, with_needed
from equicolor.paper.registry import EXPERIMENTS, find_experiment
from equicolor.paper.rows import Findings, merged
from equicolor.paper.store import JOBS, Store, refuse_first_edition
from equicolor.reporting.progress import say
from equicolor.results import Row, provenance, read_results, write_results


class Reproduced(NamedTuple):
    """What was run and written."""

    report: Path
    results: list[Path]  # the files of rows
    jobs: int  # their number
    finished: int  # the number of finished jobs
    incomplete: Mapping[str, str]  # by experiment id: why it did not run, finish or get shown
    failed: bool = False  # whether anything failed; jobs left to other shards did not


def reproduce(
    scope: Scope,
    ids: Sequence[str] | None = None,
    how: Launch | None = None,
    *,
    console: Console | None = None,
) -> Reproduced:
    """Run experiments, write their rows to ``results/`` and a report of all rows in the folder.

    By default all experiments run, in this process, one job after the other. If the data of one of
    several experiments are missing, or a job fails, the others still run and the report says why.
    """
    ids = list(EXPERIMENTS) if ids is None else [find_experiment(name).id for name in ids]
    refuse_first_edition(scope.output)
    plans: dict[str, list[Job]] = {}
    incomplete: dict[str, str] = {}
    for name in ids:
        try:
            plans[name] = EXPERIMENTS[name].plan(scope)
        except (OSError, ValueError) as error:
            if len(ids) == 1:
                raise
            incomplete[name] = str(error)
    output = output_folder(scope.output)
    store, lock = Store(output / JOBS), FileLock(output / ".report.lock")
    jobs = with_needed([job for plan in plans.values() for job in plan])

    def write_rows(job: Job) -> None:
        """Write the rows of experiments with this job: a killed call leaves those so far."""
        with lock:  # other shards may finish at the same time
            for name, plan in plans.items():
                if job in plan:
                    _write_results(name, plan, store, scope)

    try:
        failures = launch(jobs, store, how, console=console, on_end=write_rows)
    except KeyboardInterrupt:
        say(console, "The same command continues where this one stopped.")
        raise
    failed = bool(incomplete or failures)
    untried = "left to other shards" if how is not None and how.shard is not None else "not run"
    for name, plan in plans.items():
        if reason := _why_unfinished(plan, store, failures, untried):
            incomplete[name] = reason
    for name in EXPERIMENTS:
        plan = [] if name in ids else _plan(name, scope)
        if plan and all(store.outcome(job) is not None for job in plan):  # all its jobs are shared
            plans[name] = plan
    with lock:
        results = [
            path
            for name, plan in plans.items()
            if (path := _write_results(name, plan, store, scope)) is not None
        ]
        page = _write_report(jobs, store, scope, incomplete)
    reasons = {
        name: "; ".join(filter(None, (incomplete.get(name), page.failed.get(name))))
        for name in (*incomplete, *page.failed)
    }
    finished = sum(store.outcome(job) is not None for job in jobs)
    failed = failed or bool(page.failed)
    return Reproduced(page.report, results, len(jobs), finished, reasons, failed)


def _why_unfinished(
    plan: Sequence[Job], store: Store, failures: Mapping[str, str], untried: str
) -> str:
    """Why a plan is not finished, or ""; ``untried`` says what became of jobs that did not fail."""
    unfinished = [job.name for job in with_needed(plan) if store.outcome(job) is None]
    if not unfinished:
        return ""
    reasons = [f"{name}: {failures[name]}" for name in unfinished if name in failures]
    if count := len(unfinished) - len(reasons):
        reasons.append(f"{count} {untried}")
    verb = "is" if len(unfinished) == 1 else "are"
    return f"{counted(len(unfinished), 'job')} {verb} not finished: {'; '.join(reasons)}"


def _plan(name: str, scope: Scope) -> list[Job]:
    """Jobs of an experiment; none if its data are missing or it refuses the options."""
    try:
        return EXPERIMENTS[name].plan(scope)
    except (OSError, ValueError):
        return []


def _write_results(name: str, plan: Sequence[Job], store: Store, scope: Scope) -> Path | None:
    """Write the rows of an experiment, if there are any, and the figures of its jobs.

    Earlier rows of other seeds or settings stay in the file.
    """
    rows = store.rows(plan)
    if not rows:
        return None
    folder = scope.output / report.RESULTS
    path = folder / f"{name}.json"
    jobs = store.provenance(with_needed(plan))
    if path.is_file() and (earlier := read_results(path)).get("quick") == scope.quick:
        names = {job["job"] for job in jobs}
        jobs += [job for job in earlier.get("jobs", []) if job["job"] not in names]
        keeps = EXPERIMENTS[name].keeps
        rows = merged(rows, [row for row in earlier["rows"] if keeps(row, rows)])
    device = "cuda" if scope.cuda else "cpu"
    write_results(path, rows, device=device, experiment=name, quick=scope.quick, jobs=jobs)
    for job in plan:
        for figure in sorted(store.folder(job).glob(f"{name}*.png")):
            write_whole(folder / figure.name, figure.read_bytes())
    return path


def _write_report(
    jobs: Sequence[Job], store: Store, scope: Scope, incomplete: Mapping[str, str]
) -> report.Written:
    """Write a report of all rows in the folder, also those of earlier calls."""
    done = store.provenance(jobs)
    facts: Row = provenance("cuda" if scope.cuda else "cpu")
    facts["jobs"] = f"{len(done)} of {len(jobs)}"
    if done:  # maybe on another computer
        facts["device"] = ", ".join(sorted({str(job["device"]) for job in done}))
    seconds = sum(float(job["seconds"]) for job in done)
    facts["computed for"] = f"{seconds / 60:.1f} minutes in all"
    if any("resumed" in job for job in done):
        facts["computed for"] += ", not counting the time before interruptions"
    folder = scope.output / report.RESULTS
    findings = report.read([folder]) if any(folder.glob("*.json")) else Findings({})
    findings = dataclasses.replace(findings, quick=findings.quick or scope.quick)
    return report.write(findings, scope.output, failed=incomplete, provenance=facts)


def state(name: str, scope: Scope) -> str:
    """How much of an experiment is finished in the folder of a scope, in words.

    Example:
        >>> state("configurations", Scope(Path("/nowhere")))
        'not run'
    """
    jobs = with_needed(_plan(name, scope)) if scope.output.is_dir() else []
    store = Store(scope.output / JOBS)
    try:
        done = sum(store.outcome(job) is not None for job in jobs)
    except ValueError as error:  # a damaged record
        return str(error)
    if not done:
        return "not run"
    return "done" if done == len(jobs) else f"{done} of {len(jobs)} jobs"
