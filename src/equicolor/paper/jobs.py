"""Jobs: the parts of an experiment that run apart, each kept by what decides its outcome.

A job is data: a kind, and settings that JSON can hold. Its outcome is kept under a key, a
digest of both, so that it is never computed twice, whoever asks for it; a lock sees to it that
no two processes compute it at once. Jobs that were interrupted continue where their kind can,
which is from the last checkpoint for all that train.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from rich.console import Console

from equicolor._files import write_whole
from equicolor.devices import choose_device
from equicolor.reporting.progress import say
from equicolor.results import Row, read_results, write_results

__all__ = [
    "JOBS",
    "RESULTS",
    "RUNS",
    "Job",
    "Outcome",
    "Store",
    "Where",
    "digest",
    "refuse_run",
    "run_job",
]

# What is in the folder of an experiment that was run: jobs, or runs and their rows.
JOBS, RUNS, RESULTS = "jobs", "runs", "results.json"

# The function that runs jobs of a kind, and a number to raise when what it computes changes:
# outcomes of an earlier number are then no longer used.
KINDS: dict[str, tuple[str, int]] = {
    "colormnist": ("equicolor.paper.job_kinds:train_colormnist", 3),
    "training": ("equicolor.paper.job_kinds:train", 1),
    "sweep": ("equicolor.paper.job_kinds:sweep", 1),
    "configurations": ("equicolor.paper.job_kinds:count", 1),
    "equivariance": ("equicolor.paper.job_kinds:measure_equivariance", 1),
    "selectivity": ("equicolor.paper.job_kinds:measure_selectivity", 1),
    "neuron-features": ("equicolor.paper.job_kinds:draw_features", 1),
    "conversion": ("equicolor.paper.job_kinds:convert", 2),
}


def refuse_run(folder: Path | str) -> None:
    """Refuse to write what was read elsewhere into the folder of a run, beside its own report.

    Example:
        >>> refuse_run("nowhere")
    """
    folder = Path(folder)
    runs = (folder / RUNS).is_dir() and (folder / RESULTS).is_file()
    if runs or (folder / JOBS).is_dir():
        raise ValueError(f"{folder} is the folder of a run, with its own report: choose another")


class Where(NamedTuple):
    """Where jobs run; it does not change what they find, up to rounding.

    Attributes:
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        console: shows progress; None shows nothing.
    """

    device: str = "auto"
    console: Console | None = None


class Outcome(NamedTuple):
    """What a finished job left.

    Attributes:
        rows: its results.
        folder: its files, such as a trained network.
    """

    rows: list[Row]
    folder: Path


Runner = Callable[[Mapping[str, Any], Path, Where, tuple[Outcome, ...]], list[Row]]


@dataclass(frozen=True)
class Job:
    """A part of an experiment.

    Attributes:
        name: a relative path without suffix, the same for equal jobs and another for others.
        kind: one of :data:`KINDS`, or ``module:function`` for one of your own.
        settings: all that decides the outcome, as JSON.
        after: the jobs whose outcomes it needs.
        about: what its function shall know that does not decide the outcome, as JSON; where
            pictures are, for one.

    Example:
        >>> Job("a", "training", {"lr": 0.1}).key == Job("b", "training", {"lr": 0.1}).key
        True
    """

    name: str
    kind: str
    settings: Mapping[str, Any]
    after: tuple["Job", ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def key(self) -> str:
        """What outcomes are known by."""
        _, revision = _kind(self.kind)
        return digest([self.kind, revision, self.settings, [job.key for job in self.after]])


def digest(contents: Any, length: int = 16) -> str:
    """A short digest of what JSON can hold, whatever the order of keys.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}), len(digest([], 8))
        (True, 8)
    """
    text = json.dumps(contents, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


class Store:
    """The outcomes of jobs in a folder, which several computers may share.

    Args:
        root: the folder; created when the first job begins.

    Example:
        >>> store = Store("runs/jobs")
        >>> job = Job("flowers102/ce-4-seed0", "training", {})
        >>> store.folder(job)
        PosixPath('runs/jobs/flowers102/ce-4-seed0')
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, job: Job) -> Path:
        """Where a job keeps its files."""
        path = self.root / job.name
        return path.with_name(path.name + self._suffix(job))

    def record(self, job: Job) -> Path:
        """The file with a finished job's rows."""
        path = self.root / job.name
        return path.with_name(f"{path.name}{self._suffix(job)}.json")

    def _suffix(self, job: Job) -> str:
        """Tells a job from one of the same name that was begun or finished with other data, say."""
        path = self.root / job.name
        try:
            held = read_results(path.with_name(f"{path.name}.json"))["key"]
        except (OSError, ValueError, KeyError):  # none, or damaged
            try:
                held = self._owner(job).read_text()
            except OSError:
                return ""
        return "" if held == job.key else f"-{job.key[:8]}"

    def _owner(self, job: Job) -> Path:
        """Whose key it holds has the name without a suffix."""
        return self._beside_lock(job, "key")

    def _beside_lock(self, job: Job, suffix: str) -> Path:
        return self.root / ".locks" / f"{job.name.replace('/', '.')}.{suffix}"

    def begin(self, job: Job) -> bool:
        """Reserve the folder of a job, whose lock is held, for its key.

        Returns:
            Whether the job has left files there to go on from.
        """
        folder = self.folder(job)
        if folder == self.root / job.name:
            write_whole(self._owner(job), job.key)
        left = folder.iterdir() if folder.is_dir() else ()
        return any(path.suffix != ".partial" for path in left)  # which a kill may leave

    def outcome(self, job: Job) -> Outcome | None:
        """What a job found; None if it is not finished.

        Raises:
            ValueError: if the record is damaged.
        """
        path = self.record(job)
        try:
            kept = read_results(path)
            rows, key = kept["rows"], kept["key"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError):
            raise ValueError(f"{path} is damaged; delete it to run that job anew") from None
        if key != job.key:
            return None
        return Outcome(rows, self.folder(job))

    def provenance(self, job: Job) -> dict[str, Any]:
        """When, where and with what a finished job was computed."""
        kept = read_results(self.record(job))
        names = ("date", "device", "python", "versions", "seconds", "resumed")
        return {"job": job.name, **{name: kept[name] for name in names if name in kept}}

    def seconds(self, job: Job) -> float:
        """How long a finished job took; if it was :meth:`resumed`, since then."""
        return float(read_results(self.record(job)).get("seconds", 0.0))

    def resumed(self, job: Job) -> bool:
        """Whether a finished job went on from what an interrupted one had left."""
        return bool(read_results(self.record(job)).get("resumed", False))

    def write(
        self, job: Job, rows: list[Row], *, device: str, seconds: float, resumed: bool = False
    ) -> None:
        """Keep what a job found; from now on it is finished."""
        facts = {"key": job.key, "kind": job.kind, "seconds": round(seconds, 1)}
        if resumed:
            facts["resumed"] = True
        facts["settings"] = dict(job.settings)
        write_results(self.record(job), rows, device=device, **facts)

    @contextlib.contextmanager
    def locked(self, job: Job, *, wait: bool) -> Iterator[bool]:
        """Hold a job's lock, which ends with the process at the latest.

        Args:
            job: whose.
            wait: until another process lets go of it.

        Yields:
            Whether it is held.
        """
        path = self._beside_lock(job, "lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


Around = Callable[[Job], contextlib.AbstractContextManager[None]]


def run_job(
    job: Job,
    store: Store,
    where: Where | None = None,
    *,
    wait: bool = True,
    around: Around | None = None,
) -> bool:
    """Run a job and those it needs, unless they are finished.

    Args:
        job: which.
        store: keeps the outcome.
        where: device and console.
        wait: for jobs that another process is running.
        around: a context for the running of each job, with its lock held.

    Returns:
        Whether it is finished now; False if another process is running it or a job it needs.
    """
    if store.outcome(job) is not None:
        return True
    where = Where() if where is None else where
    for needed in job.after:
        if not run_job(needed, store, where, wait=wait, around=around):
            return False
    with store.locked(job, wait=wait) as held:
        if not held:
            return False
        if store.outcome(job) is not None:  # by now
            return True
        say(where.console, job.name, "bold")
        before = tuple(store.outcome(needed) for needed in job.after)
        start, resumed = time.perf_counter(), store.begin(job)
        settings = {**job.settings, **job.about}
        with contextlib.nullcontext() if around is None else around(job):
            rows = _runner(job.kind)(
                settings, store.folder(job), where, tuple(found for found in before if found)
            )
        taken = time.perf_counter() - start
        device = choose_device(where.device).type
        store.write(job, rows, device=device, seconds=taken, resumed=resumed)
        return True


def _kind(name: str) -> tuple[str, int]:
    """The function of a kind of jobs, and its revision."""
    return (name, 0) if ":" in name else KINDS[name]


def _runner(kind: str) -> Runner:
    module, _, name = _kind(kind)[0].partition(":")
    function: Runner = getattr(importlib.import_module(module), name)
    return function
