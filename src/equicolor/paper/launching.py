"""Spread jobs over processes, GPUs and computers.

All workers get the same list and take what nobody else is running (:mod:`.jobs` locks what is
being run), so it does not matter who starts them, when, or how many: processes of this
computer, a SLURM array through submitit, or the same command typed on several computers that
share a folder. Where a file system knows no locks, shards divide the list beforehand.
"""

import contextlib
import functools
import importlib
import multiprocessing
import os
import queue
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from equicolor import _checks
from equicolor._text import counted
from equicolor.paper.jobs import Job, Store, Where, run_job
from equicolor.reporting.progress import say

__all__ = ["LAUNCHERS", "JobsFailedError", "Launch", "Shard", "launch", "parse_shard", "work"]

# submitit-local starts submitit's workers on this computer: to try out what SLURM would do.
LAUNCHERS = ("processes", "slurm", "submitit-local")
_POLL = 0.5  # seconds between two looks at jobs that others are running

Report = Callable[[str, str], None]  # is told the name of a job, and news of it
Failures = dict[str, Exception]


class JobsFailedError(ChildProcessError):
    """Some jobs failed; the others are finished.

    Attributes:
        failures: why, by the names of the jobs.
    """

    def __init__(self, message: str, failures: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.failures = dict(failures or {})


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

    def of(self, jobs: Sequence[Any]) -> list[Any]:
        """The jobs of this shard."""
        return list(jobs[self.index :: self.count])


def parse_shard(text: str) -> Shard:
    """A shard of the command line.

    Example:
        >>> parse_shard("0/4")
        Shard(index=0, count=4)
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None:
        raise ValueError(f"shard must be I/N with I from 0 to N - 1, such as 0/4; got {text!r}")
    return Shard(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Launch:
    """How jobs are spread.

    Attributes:
        workers: processes; None for one a device, or one a core of a CPU.
        devices: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``, given to the workers in turn; one
            ``"auto"`` takes the GPUs where there are any.
        shard: the part of the jobs to run here; None for all.
        launcher: one of :data:`LAUNCHERS`.
        options: of the launcher, as submitit names them: ``slurm_partition`` and so on.

    Example:
        >>> Launch(workers=3, devices=("cuda:0", "cuda:1")).places()
        ['cuda:0', 'cuda:1', 'cuda:0']
    """

    workers: int | None = 1
    devices: tuple[str, ...] = ("auto",)
    shard: Shard | None = None
    launcher: str = "processes"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _checks.one_of("launcher", self.launcher, LAUNCHERS)
        if self.workers is not None:
            _checks.positive_int("workers", self.workers, at_most=_checks.MOST["workers"])
        if not self.devices:
            raise ValueError("devices must name one device at least, got none")
        for name in self.devices:
            kind, _, number = name.partition(":")
            _checks.one_of("device", kind, ("auto", "cpu", "cuda"))
            if number and not (kind == "cuda" and number.isdigit()):
                raise ValueError(f"a device is 'cpu', 'cuda' or 'cuda:0', say; got {name!r}")
        if self.options and self.launcher == "processes":
            given = ", ".join(self.options)
            raise ValueError(f"options of a launcher need one, such as slurm; got {given}")

    def places(self) -> list[str]:
        """A device for each worker."""
        devices = list(self.devices)
        if devices == ["auto"] and self.launcher == "processes":
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            devices = [f"cuda:{index}" for index in range(count)] or ["cpu"]
        workers = self.workers
        if workers is None:
            workers = (os.cpu_count() or 1) if set(devices) == {"cpu"} else len(devices)
        return [devices[index % len(devices)] for index in range(workers)]


def launch(
    jobs: Sequence[Job],
    store: Store,
    how: Launch | None = None,
    *,
    console: Console | None = None,
    on_done: Callable[[], None] | None = None,
) -> None:
    """Run jobs until all are finished, wherever they run.

    Args:
        jobs: in the order they shall begin; those that they need come by themselves.
        store: keeps the outcomes.
        how: how to spread them; one after the other in this process by default.
        console: shows progress; None shows nothing.
        on_done: called now and then when further jobs have finished.

    Raises:
        JobsFailedError: if any failed, after all others are finished.

    Example:
        >>> import tempfile
        >>> launch([], Store(tempfile.mkdtemp()))
    """
    how = Launch() if how is None else how
    chosen = list(jobs) if how.shard is None else _part(jobs, how.shard)
    chosen = [job for job in chosen if store.outcome(job) is None]
    if not chosen:
        return
    places = how.places()
    if how.launcher == "processes" and len(places) == 1 and places[0] in ("cpu", "cuda", "cuda:0"):
        _raise(_here(chosen, store, places[0], console, on_done))
        return
    store.root.mkdir(parents=True, exist_ok=True)
    notes = Path(tempfile.mkdtemp(prefix=".failed-", dir=store.root.resolve()))
    try:
        if how.launcher != "processes":
            failed = _with_submitit(chosen, store, how, places, notes, console)
        else:
            places = places[: len(chosen)]
            failed = _in_processes(chosen, store, places, notes, console, on_done)
    finally:
        shutil.rmtree(notes, ignore_errors=True)
    _raise(failed)


def _part(jobs: Sequence[Job], shard: Shard) -> list[Job]:
    """A shard's jobs; what needs another stays with it, or two shards would run that one."""
    families: dict[str, list[Job]] = {}
    for job in jobs:
        first = job
        while first.after:
            first = first.after[0]
        families.setdefault(first.name, []).append(job)
    return [job for family in shard.of(list(families.values())) for job in family]


def _raise(failed: Failures) -> None:
    if not failed:
        return
    why = {name: _said(error) for name, error in failed.items()}
    several = "; ".join(f"{name}: {reason}" for name, reason in why.items())
    raise JobsFailedError(f"{counted(len(why), 'job')} failed: {several}", why) from next(
        iter(failed.values())
    )


def _said(error: Exception) -> str:
    """What an error says, with its name where that says more."""
    if isinstance(error, (OSError, ValueError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _here(
    jobs: Sequence[Job],
    store: Store,
    device: str,
    console: Console | None,
    on_done: Callable[[], None] | None,
) -> Failures:
    """Run jobs in this process."""

    def report(name: str, news: str) -> None:
        if news == _DONE and on_done is not None:
            on_done()

    return work(jobs, store.root, device, report, console=console)


_DONE, _FAILED = "done", "failed"


def work(
    jobs: Sequence[Job],
    root: Path | str,
    device: str,
    report: Report | None = None,
    *,
    notes: Path | None = None,
    console: Console | None = None,
) -> Failures:
    """Run what nobody else is running until all jobs are finished or have failed.

    Args:
        jobs: in the order they shall begin.
        root: of the store.
        device: where to compute.
        report: is told what was ``"done"`` or ``"failed"``.
        notes: a folder in which workers tell each other what failed, so that it fails once.
        console: shows progress; None shows nothing.

    Returns:
        The errors of the jobs that failed, by name.
    """
    store, where = Store(root), Where(device, console)
    waiting, failed = list(jobs), Failures()
    while waiting:
        before = len(waiting)
        for job in list(waiting):
            news = _DONE
            try:
                _refuse_hopeless(job, failed)
                _refuse_noted(job, notes)
                around = functools.partial(_noting, notes=notes)
                if not run_job(job, store, where, wait=False, around=around):
                    continue
            except Exception as error:
                failed[job.name], news = error, _FAILED
            waiting.remove(job)
            if report is not None:
                report(job.name, news)
        if len(waiting) == before:
            time.sleep(_POLL)
    return failed


def _refuse_hopeless(job: Job, failed: Failures) -> None:
    """Raise again what a job that this one needs has failed with."""
    for needed in job.after:
        _refuse_hopeless(needed, failed)
        if needed.name in failed:
            raise failed[needed.name]


def _refuse_noted(job: Job, notes: Path | None) -> None:
    """Raise what a job, or one that it needs, has failed with in another worker."""
    if notes is None:
        return
    for needed in job.after:
        _refuse_noted(needed, notes)
    if _note(job, notes).is_file():
        raise JobsFailedError(_note(job, notes).read_text())


@contextlib.contextmanager
def _noting(job: Job, notes: Path | None) -> Iterator[None]:
    """Note what a job fails with, for the other workers.

    While its lock is held: one that gets it next must find the note.
    """
    _refuse_noted(job, notes)
    try:
        yield
    except Exception as error:
        if notes is not None and notes.is_dir():
            _note(job, notes).write_text(_said(error))
        raise


def _note(job: Job, notes: Path) -> Path:
    return notes / job.name.replace("/", ".")


def _in_processes(
    jobs: Sequence[Job],
    store: Store,
    places: Sequence[str],
    notes: Path,
    console: Console | None,
    on_done: Callable[[], None] | None,
) -> Failures:
    """Run jobs in a process for each place."""
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    threads = max(1, (os.cpu_count() or 1) // len(places))
    workers = [
        context.Process(target=_worker, args=(jobs, store.root, place, threads, notes, messages))
        for place in places
    ]
    failed = Failures()
    done: set[str] = set()
    for worker in workers:
        worker.start()
    try:
        while True:
            # Looked at before the queue, so that a last message is not overlooked.
            alive = any(worker.is_alive() for worker in workers)
            try:
                name, news, error = messages.get(timeout=_POLL)
            except queue.Empty:
                if not alive:
                    break
                continue
            if name in done:  # another worker finished it, and this one saw that
                continue
            done.add(name)
            if error is not None:
                failed[name] = error
            elif on_done is not None:
                on_done()
            say(console, f"{len(done)}/{len(jobs)} {name} {news}")
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(10)
            if worker.is_alive():
                worker.kill()
                worker.join()
    for job in jobs:
        if job.name not in done:
            failed[job.name] = ChildProcessError(f"{job.name}: a worker ended before it did")
    return failed


def _worker(
    jobs: Sequence[Job], root: Path, place: str, threads: int, notes: Path, messages: Any
) -> None:  # pragma: no cover (runs in a process of its own)
    """Work in a process of its own, on its own device, and report to the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that one stops its workers
    kind, _, number = place.partition(":")
    if number:  # before CUDA begins: then it is the only one, and Lightning's first
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(int(number))
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def report(name: str, news: str) -> None:
        if news == _DONE:
            messages.put((name, news, None))

    try:
        failed = work(jobs, root, kind, report, notes=notes)
    except KeyboardInterrupt:  # of a training that was told to stop, and has saved itself
        return
    for name, error in failed.items():
        messages.put((name, _FAILED, _portable(error)))


def _end_with_parent() -> None:  # pragma: no cover (runs in a process of its own)
    """End this process soon after the one that started it was killed: nobody waits for it."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        time.sleep(1)
    os._exit(1)


def _visible(number: int) -> str:
    """A device's name among those this process was given."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[number] if given else str(number)


def _portable(error: Exception) -> Exception:
    """An error as another process can read it."""
    if isinstance(error, ValueError):
        return ValueError(str(error))
    if isinstance(error, OSError):
        return JobsFailedError(str(error))
    return JobsFailedError(f"{type(error).__name__}: {error}")


def _with_submitit(
    jobs: Sequence[Job],
    store: Store,
    how: Launch,
    places: Sequence[str],
    notes: Path,
    console: Console | None,
) -> Failures:
    """Run jobs in tasks of a SLURM array, or in processes that submitit starts here."""
    submitit = importlib.import_module("submitit")
    cluster = "slurm" if how.launcher == "slurm" else "local"
    executor = submitit.AutoExecutor(folder=store.root / ".submitit", cluster=cluster)
    options = {"name": "equicolor", "timeout_min": 24 * 60, **how.options}
    executor.update_parameters(**options)
    count = min(len(places), len(jobs))
    root = store.root.resolve()
    worker = functools.partial(work, notes=notes)
    tasks = executor.map_array(worker, [list(jobs)] * count, [root] * count, list(places[:count]))
    numbers = ", ".join(str(task.job_id) for task in tasks)
    say(
        console,
        f"{count} tasks: {numbers}. They go on if this command is interrupted; the same command "
        "joins in.",
    )
    failed = Failures()
    for task in tasks:
        failed |= task.result()
    return failed
