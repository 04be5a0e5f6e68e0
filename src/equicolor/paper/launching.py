"""Run jobs in this process, in processes of this computer, or on a SLURM cluster.

All workers get the same list of jobs and take what no other worker is running: the store locks a
job while it runs. So it does not matter who starts workers, when, or how many. submitit starts
them; the same command typed on several computers that share a folder does, too. Where a file
system has no locks, shards divide the list beforehand.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from equicolor import _checks
from equicolor._text import counted
from equicolor.devices import choose_device
from equicolor.paper.experiment import Context, Job
from equicolor.paper.store import Store
from equicolor.reporting.progress import say

__all__ = ["LAUNCHERS", "Launch", "Shard", "launch", "parse_shard", "with_needed", "work"]

LAUNCHERS = ("processes", "slurm")
_POLL = 0.5  # seconds between two looks at jobs that others are running
_LOGS = ".submitit"  # what workers print
_YEAR = 365 * 24 * 60  # minutes; local workers have no time limit of their own


@dataclass(frozen=True)
class Shard:
    """Every ``count``-th job, beginning with the ``index``-th from 0.

    Example:
        >>> Shard(1, 3).of("abcdefgh")
        ['b', 'e', 'h']
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(
                f"shard must be I/N with I from 0 to N - 1, got {self.index}/{self.count}"
            )

    def of(self, items: Sequence[Any]) -> list[Any]:
        """The items of this shard."""
        return list(items[self.index :: self.count])


def parse_shard(text: str) -> Shard:
    """A shard of the command line.

    Example:
        >>> parse_shard("0/4")
        Shard(index=0, count=4)
    """
    parts = re.fullmatch(r"(\d+)/(\d+)", text)
    if parts is None:
        raise ValueError(f"shard must be I/N with I from 0 to N - 1, such as 0/4; got {text!r}")
    return Shard(int(parts[1]), int(parts[2]))


@dataclass(frozen=True)
class Launch:
    """Where jobs run.

    Attributes:
        workers: processes; None for one a GPU, or one a core of a CPU, if submitit is installed.
        devices: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``, given to the workers in turn; one
            ``"auto"`` takes the GPUs where there are any.
        shard: the part of the jobs to run here; None for all.
        launcher: one of :data:`LAUNCHERS`.
        options: of SLURM, as submitit names them: ``slurm_partition`` and so on.

    Example:
        >>> Launch(workers=3, devices=("cuda:0", "cuda:1")).places()
        ['cuda:0', 'cuda:1', 'cuda:0']
    """

    workers: int | None = None
    devices: tuple[str, ...] = ("auto",)
    shard: Shard | None = None
    launcher: str = "processes"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _checks.one_of("launcher", self.launcher, LAUNCHERS)
        if self.workers is not None:
            _checks.positive_int("workers", self.workers)
        if not self.devices:
            raise ValueError("devices must name one device at least, got none")
        for name in self.devices:
            kind, _, number = name.partition(":")
            _checks.one_of("device", kind, ("auto", "cpu", "cuda"))
            if number and not (kind == "cuda" and number.isdigit()):
                raise ValueError(f"a device is 'cpu', 'cuda' or 'cuda:0', say; got {name!r}")
        if self.options and self.launcher == "processes":
            names = ", ".join(self.options)
            raise ValueError(f"options of a launcher need --launcher slurm; got {names}")

    def places(self) -> list[str]:
        """A device for each worker."""
        devices = list(self.devices)
        if devices == ["auto"] and self.launcher == "processes":
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            devices = [f"cuda:{index}" for index in range(count)] or ["cpu"]
        workers = self.workers
        if workers is None and importlib.util.find_spec("submitit") is None:
            workers = 1
        elif workers is None:
            workers = (os.cpu_count() or 1) if set(devices) == {"cpu"} else len(devices)
        return [devices[index % len(devices)] for index in range(workers)]


def with_needed(jobs: Sequence[Job]) -> list[Job]:
    """Jobs and those that they need, each once and after what it needs.

    Example:
        >>> train = Job("train", "training", print)
        >>> [job.name for job in with_needed([Job("sweep", "sweep", print, after=(train,)), train])]
        ['train', 'sweep']
    """
    ordered: dict[str, Job] = {}
    for job in jobs:
        for each in (*with_needed(job.after), job):
            ordered.setdefault(each.key, each)
    return list(ordered.values())


def launch(
    jobs: Sequence[Job], store: Store, how: Launch | None = None, *, console: Console | None = None
) -> dict[str, str]:
    """Run jobs, and those that they need, until all are finished or have failed.

    Args:
        jobs: in the order to begin with.
        store: keeps the outcomes.
        how: where to run; by default here, one after the other.
        console: shows progress; None shows nothing.

    Returns:
        Why jobs failed, by their names; empty if all are finished.

    Example:
        >>> launch([], Store(tempfile.mkdtemp()))
        {}
    """
    how = Launch(workers=1) if how is None else how
    listed = with_needed(jobs if how.shard is None else _families(jobs, how.shard))
    listed = [job for job in listed if store.outcome(job) is None]
    if not listed:
        return {}
    store.root.mkdir(parents=True, exist_ok=True)
    notes = Path(tempfile.mkdtemp(prefix=".failed-", dir=store.root.resolve()))
    places = how.places()[: len(listed)]
    progress = _Progress(listed, store, notes, len(places), console)
    try:
        if how.launcher == "processes" and places in (["cpu"], ["cuda"], ["cuda:0"], ["auto"]):
            work(listed, store.root, places[0].partition(":")[0], notes, progress=progress)
        else:
            _with_submitit(listed, store, how, places, notes, progress)
        failures = progress.failures()
    finally:
        shutil.rmtree(notes, ignore_errors=True)
    return failures


def _families(jobs: Sequence[Job], shard: Shard) -> list[Job]:
    """The jobs of a shard. Jobs that need the same first job stay together: it runs once."""
    families: dict[str, list[Job]] = {}
    for job in jobs:
        families.setdefault(with_needed([job])[0].key, []).append(job)
    return [job for family in shard.of(list(families.values())) for job in family]


class _Progress:
    """Says which jobs have ended, and how long the others may take."""

    def __init__(
        self, jobs: Sequence[Job], store: Store, notes: Path, workers: int, console: Console | None
    ) -> None:
        self.jobs, self.store, self.notes = jobs, store, notes
        self.workers, self.console = workers, console
        self.waiting, self.start = list(jobs), time.monotonic()

    def update(self) -> None:
        """Say what has ended since the last call."""
        for job in list(self.waiting):
            if failed := _note(job, self.notes).is_file():
                pass
            elif self.store.outcome(job) is None:
                continue
            self.waiting.remove(job)
            done = len(self.jobs) - len(self.waiting)
            seconds = (time.monotonic() - self.start) / done * len(self.waiting)
            left = f", about {timedelta(seconds=round(seconds))} left" if self.waiting else ""
            news = "failed" if failed else "done"
            say(self.console, f"{done}/{len(self.jobs)} {job.name} {news}{left}")

    def failures(self) -> dict[str, str]:
        """Why jobs are not finished, by their names."""
        reasons = {}
        for job in self.jobs:
            if _note(job, self.notes).is_file():
                reasons[job.name] = _note(job, self.notes).read_text()
            elif self.store.outcome(job) is None:
                logs = self.store.root / _LOGS
                reasons[job.name] = f"a worker ended before it did; {logs} has its output"
        return reasons


def work(
    jobs: Sequence[Job],
    root: Path,
    device: str,
    notes: Path,
    *,
    progress: "_Progress | None" = None,
) -> None:
    """Run what nobody else is running until all jobs are finished or have failed.

    Args:
        jobs: each after those it needs.
        root: of the store.
        device: where to compute.
        notes: a folder in which workers note why jobs failed, so that none is tried twice.
        progress: shows what has ended; None shows nothing.
    """
    store, waiting = Store(root), list(jobs)
    console = progress.console if progress is not None else None
    while waiting:
        before = len(waiting)
        for job in list(waiting):
            if _try(job, store, device, notes, console):
                waiting.remove(job)
                if progress is not None:
                    progress.update()
        if len(waiting) == before:
            time.sleep(_POLL)


def _try(job: Job, store: Store, device: str, notes: Path, console: Console | None) -> bool:
    """Run a job unless another worker does. False if it has to be looked at again."""
    if store.outcome(job) is not None or _note(job, notes).is_file():
        return True
    for needed in job.after:
        if _note(needed, notes).is_file():
            shutil.copyfile(_note(needed, notes), _note(job, notes))
            return True
        if store.outcome(needed) is None:
            return False
    with store.locked(job) as held:
        if not held:
            return False
        if store.outcome(job) is not None or _note(job, notes).is_file():  # by now
            return True
        say(console, job.name, "bold")
        try:
            _run(job, store, device, console)
        except Exception as error:  # while the lock is held: the next worker must see the note
            _note(job, notes).write_text(_reason(error))
    return True


def _run(job: Job, store: Store, device: str, console: Console | None) -> None:
    before = tuple(outcome for needed in job.after if (outcome := store.outcome(needed)))
    start, resumed = time.perf_counter(), store.resumed(job)
    rows = job.run(job, Context(store.folder(job), device, console, before))
    seconds = time.perf_counter() - start
    kind = choose_device(device).type
    store.write(job, rows, device=kind, seconds=seconds, resumed=resumed)


def _reason(error: Exception) -> str:
    """What an error says, with its name where that says more."""
    if isinstance(error, (OSError, ValueError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _note(job: Job, notes: Path) -> Path:
    return notes / job.key


def _with_submitit(
    jobs: Sequence[Job],
    store: Store,
    how: Launch,
    places: Sequence[str],
    notes: Path,
    progress: _Progress,
) -> None:
    """Run jobs in processes that submitit starts, here or on the cluster."""
    local = how.launcher == "processes"
    if importlib.util.find_spec("submitit") is None:
        what = "several workers or devices" if local else "--launcher slurm"
        raise ValueError(f"{what} need submitit: pip install 'equicolor[cluster]'")
    import submitit

    executor = submitit.AutoExecutor(
        folder=store.root / _LOGS, cluster="local" if local else "slurm"
    )
    timeout = _YEAR if local else 24 * 60
    executor.update_parameters(name="equicolor", **{"timeout_min": timeout, **how.options})
    threads = max(1, (os.cpu_count() or 1) // len(places))
    parent = os.getpid() if local else None
    with executor.batch():
        tasks = [
            executor.submit(
                _worker, list(jobs), store.root.resolve(), place, notes, threads, parent,
                _visible(place),
            )
            for place in places
        ]  # fmt: skip
    if not local:
        numbers = ", ".join(str(task.job_id) for task in tasks)
        say(progress.console, f"{counted(len(tasks), 'task')}: {numbers}. They go on if this "
            "command is interrupted; the same command joins in.")  # fmt: skip
    try:
        while not all(task.done() for task in tasks):
            progress.update()
            time.sleep(_POLL)
    finally:
        if local:
            _end(tasks)
    progress.update()


def _end(tasks: Sequence[Any]) -> None:
    """Interrupt local workers and wait until they have ended."""
    for task in tasks:
        if not task.done():
            task.cancel()
    while not all(task.done() for task in tasks):
        time.sleep(0.1)


def _visible(place: str) -> str | None:
    """The GPUs of a worker: one by its number among those of this process, or all; None for any."""
    number, visible = place.partition(":")[2], os.environ.get("CUDA_VISIBLE_DEVICES")
    if not number:
        return visible
    return visible.split(",")[int(number)] if visible else number


def _worker(
    jobs: Sequence[Job],
    root: Path,
    place: str,
    notes: Path,
    threads: int,
    parent: int | None,
    visible: str | None,
) -> None:  # pragma: no cover (runs in a process of its own)
    """Work in a process of its own, on one device."""
    if parent is not None:  # on this computer, where submitit hides all GPUs
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
        torch.set_num_threads(threads)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    work(jobs, root, place.partition(":")[0], notes)


def _end_with(parent: int) -> None:  # pragma: no cover (runs in a process of its own)
    """End this process soon after the one that started it was killed: nobody waits for it."""
    while True:
        try:
            os.kill(parent, 0)
        except OSError:
            os._exit(1)
        with contextlib.suppress(InterruptedError):
            time.sleep(1)
