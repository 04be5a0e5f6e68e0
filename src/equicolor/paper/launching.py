"""Run jobs in this process, in processes of this computer, or on a SLURM cluster.

All workers get the same list of jobs and take what no other worker is running: the store locks a
job while it runs. So workers may start at any time, in any number: from submitit, or from the same
command on several computers that share a folder. Where a file system has no locks, shards divide
the list beforehand.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from equicolor import _checks
from equicolor._files import LockedError
from equicolor._text import counted, explain
from equicolor.devices import check_device, choose_device
from equicolor.paper.experiment import Context, Job
from equicolor.paper.rows import identity
from equicolor.paper.store import Store
from equicolor.reporting.progress import say

LAUNCHERS = ("processes", "slurm")
_POLL = 0.5  # seconds between two looks at jobs that other workers are running
_LOGS = ".submitit"  # folder of what workers print
_YEAR = 365 * 24 * 60  # minutes; local workers have no time limit of their own


@dataclass(frozen=True)
class Launch:
    """Where jobs run.

    Example:
        >>> Launch(workers=3, devices=("cuda:0", "cuda:1")).places()
        ['cuda:0', 'cuda:1', 'cuda:0']
    """

    # Processes. None: with submitit one per GPU, or one per core of a CPU, else one.
    workers: int | None = None
    # "cpu", "cuda" or "cuda:1", given to the workers in turn; a single "auto" stands for all GPUs,
    # or the CPU.
    devices: tuple[str, ...] = ("auto",)
    # (index from 0, count): run only this part of the jobs; None runs all.
    shard: tuple[int, int] | None = None
    launcher: str = "processes"  # one of LAUNCHERS
    # Options of SLURM under submitit's names: slurm_partition and so on.
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _checks.one_of("launcher", self.launcher, LAUNCHERS)
        if self.workers is not None:
            _checks.positive_int("workers", self.workers)
        for name in self.devices:
            check_device(name)
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
            workers = len(self.devices)
        elif workers is None:
            workers = (os.cpu_count() or 1) if set(devices) == {"cpu"} else len(devices)
        return [devices[index % len(devices)] for index in range(workers)]


def with_needed(jobs: Sequence[Job]) -> list[Job]:
    """Jobs and those that they need, each once and after the jobs that it needs."""
    ordered: dict[str, Job] = {}
    for job in jobs:
        for each in (*with_needed(job.after), job):
            ordered.setdefault(each.key, each)
    return list(ordered.values())


def launch(
    jobs: Sequence[Job],
    store: Store,
    how: Launch | None = None,
    *,
    console: Console | None = None,
    on_end: Callable[[Job], None] = lambda job: None,
) -> dict[str, str]:
    """Run jobs, and those that they need, until all are finished or have failed.

    By default they run in this process, one after the other. ``on_end`` is called in this process
    with every job that has ended. Returns why jobs failed, by name.
    """
    how = Launch(workers=1) if how is None else how
    pending = with_needed(jobs if how.shard is None else _in_shard(jobs, *how.shard))
    pending = [job for job in pending if store.outcome(job) is None]
    if not pending:
        return {}
    store.root.mkdir(parents=True, exist_ok=True)
    notes = Path(tempfile.mkdtemp(prefix=".failed-", dir=store.root.resolve()))
    store = Store(store.root.resolve(), notes)
    places = how.places()[: len(pending)]
    try:
        if how.launcher == "processes" and len(places) == 1:
            _work(pending, store, places[0], console, on_end)
        else:
            _with_submitit(pending, store, how, places, console, on_end)
        ended = f"its worker ended too early; {store.root / _LOGS} has the worker's output"
        return {
            job.name: store.failure(job) or ended for job in pending if store.outcome(job) is None
        }
    finally:
        shutil.rmtree(notes, ignore_errors=True)


def _in_shard(jobs: Sequence[Job], index: int, count: int) -> list[Job]:
    """The jobs of a shard. Jobs that need the same first job stay together, so it runs once."""
    families: dict[str, list[Job]] = {}
    for job in jobs:
        families.setdefault(with_needed([job])[0].key, []).append(job)
    return [job for family in list(families.values())[index::count] for job in family]


def _work(
    jobs: Sequence[Job],
    store: Store,
    device: str,
    console: Console | None = None,
    on_end: Callable[[Job], None] = lambda job: None,
) -> None:
    """Run the jobs that no other worker is running, until all jobs have ended."""
    _watch(jobs, store, console, on_end, attempt=lambda job: _try(job, store, device, console))


def _watch(
    jobs: Sequence[Job],
    store: Store,
    console: Console | None,
    on_end: Callable[[Job], None],
    *,
    attempt: Callable[[Job], None] = lambda job: None,
    workers_ended: Callable[[], bool] = lambda: False,
) -> None:
    """Say which jobs have ended, and how long the others may take, until all have ended.

    Args:
        on_end: called with every job that has ended.
        attempt: called with every job that has not ended, again and again.
        workers_ended: whether no worker is left to end a job.
    """
    waiting, start = list(jobs), time.monotonic()
    last_look = False
    while waiting and not last_look:
        before, last_look = len(waiting), workers_ended()
        for job in list(waiting):
            if not store.ended(job):
                attempt(job)
            if not store.ended(job):
                continue
            waiting.remove(job)
            on_end(job)
            done = len(jobs) - len(waiting)
            seconds = (time.monotonic() - start) / done * len(waiting)
            left = f", about {timedelta(seconds=round(seconds))} left" if waiting else ""
            news = "done" if store.failure(job) is None else "failed"
            say(console, f"{done}/{len(jobs)} {job.name} {news}{left}")
        if len(waiting) == before:
            time.sleep(_POLL)


def _try(job: Job, store: Store, device: str, console: Console | None) -> None:
    """Run a job, unless another worker runs it or a job that it needs is not finished."""
    for needed in job.after:
        if failure := store.failure(needed):
            store.fail(job, failure)
            return
        if store.outcome(needed) is None:
            return
    with contextlib.suppress(LockedError), store.locked(job):
        if store.ended(job):  # in the meantime, by another worker
            return
        say(console, job.name, "bold")
        try:
            _run(job, store, device, console)
        except Exception as error:  # noted while the lock is held: the next worker must see it
            store.fail(job, explain(error))


def _run(job: Job, store: Store, device: str, console: Console | None) -> None:
    before = tuple(outcome for needed in job.after if (outcome := store.outcome(needed)))
    start, resumed = time.perf_counter(), store.resumed(job)
    rows = job.run(job, Context(store.folder(job), device, console, before))
    seconds = time.perf_counter() - start
    if len({identity(row) for row in rows}) < len(rows):  # the report would refuse them
        raise ValueError(
            "it returned several rows about the same thing: put a curve into one row, or add the "
            "key that tells the rows apart to SUBJECT of equicolor/paper/rows.py"
        )
    name = str(choose_device(device))
    store.write(job, rows, device=name, seconds=seconds, resumed=resumed)


def _with_submitit(
    jobs: Sequence[Job],
    store: Store,
    how: Launch,
    places: Sequence[str],
    console: Console | None,
    on_end: Callable[[Job], None],
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
    # Shares of torch's threads here, which the command has limited on a busy machine.
    threads = max(1, torch.get_num_threads() // len(places))
    parent = os.getpid() if local else None
    tasks: list[Any] = []

    def running() -> list[Any]:
        return [task for task in tasks if not task.done()]

    try:
        with uninterrupted() if local else contextlib.nullcontext(), executor.batch():
            for place in places:
                arguments = (jobs, store, place, _visible(place), threads, parent)
                tasks.append(executor.submit(_worker, *arguments))
        if not local:
            numbers = ", ".join(str(task.job_id) for task in tasks)
            say(console, f"{counted(len(tasks), 'task')}: {numbers}. They continue if this command "
                "is interrupted; the same command waits for them again.")  # fmt: skip
        _watch(jobs, store, console, on_end, workers_ended=lambda: not running())
        while running():
            time.sleep(_POLL)
    finally:
        deadline = time.monotonic() + 10  # a worker in a long call ends after this process does
        while local and running() and time.monotonic() < deadline:
            for task in running():
                os.kill(int(task.job_id), signal.SIGTERM)  # submitit passes it on to the worker
            time.sleep(_POLL)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block.

    Processes that are started in the block never receive it: this process has to end them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _visible(place: str) -> str | None:
    """CUDA_VISIBLE_DEVICES of a worker: the GPU of its number, or those of this process."""
    number, visible = place.partition(":")[2], os.environ.get("CUDA_VISIBLE_DEVICES")
    if not number:
        return visible
    return visible.split(",")[int(number)] if visible else number


def _worker(
    jobs: Sequence[Job],
    store: Store,
    place: str,
    visible: str | None,
    threads: int,
    parent: int | None,
) -> None:  # pragma: no cover (runs in a process of its own)
    """Work in a process of its own, on one device; ``parent`` is None on a cluster."""
    if parent is not None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # submitit would ignore it
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # submitit hides all GPUs
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
        torch.set_num_threads(threads)
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()
    _work(jobs, store, place.partition(":")[0])


def _exit_after(parent: int) -> None:  # pragma: no cover (runs in a process of its own)
    """End this process soon after its parent was killed: nobody waits for it any more."""
    with contextlib.suppress(OSError):
        while True:
            os.kill(parent, 0)
            time.sleep(1)
    os._exit(1)
