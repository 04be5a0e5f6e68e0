"""Jobs are shared out, each runs once, and an interrupted run goes on."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.paper.toy_jobs import job, processes, ran

from equicolor._files import LockedError
from equicolor.paper import launching
from equicolor.paper.experiment import Job
from equicolor.paper.launching import Launch, launch
from equicolor.paper.store import Store

ROOT = Path(__file__).parents[2]
CPU = Launch(workers=1, devices=("cpu",))
TWO = Launch(workers=2, devices=("cpu",))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_shards_cover_all_jobs_once(tmp_path: Path, log: Path) -> None:
    listed = [job(f"{index}", log) for index in range(7)]
    store = Store(tmp_path / "jobs")
    for index in range(3):
        launch(listed, store, Launch(workers=1, devices=("cpu",), shard=(index, 3)))
        assert len(ran(log)) == [3, 5, 7][index]
    assert sorted(ran(log)) == [job.name for job in listed]


def test_a_shard_keeps_dependent_jobs_together(tmp_path: Path, log: Path) -> None:
    first, other = job("first", log), job("other", log)
    second = job("second", log, first)
    listed = [first, other, second, job("third", log, second)]
    launch(listed, Store(tmp_path), Launch(workers=1, devices=("cpu",), shard=(1, 2)))
    assert ran(log) == ["other"]
    launch(listed, Store(tmp_path), Launch(workers=1, devices=("cpu",), shard=(0, 2)))
    assert ran(log) == ["other", "first", "second", "third"]


def test_a_job_of_a_shard_runs_what_it_needs(tmp_path: Path, log: Path) -> None:
    needed = [job("third", log, job("first", log))]
    launch(needed, Store(tmp_path), Launch(workers=1, devices=("cpu",), shard=(0, 1)))
    assert ran(log) == ["first", "third"]


def test_a_finished_job_is_not_run_again(tmp_path: Path, log: Path) -> None:
    store = Store(tmp_path / "jobs")
    second = job("second", log, job("first", log))
    for _ in range(2):
        assert launch([second], store) == {}
    assert ran(log) == ["first", "second"]  # what it needs came first
    outcome = store.outcome(second)
    assert outcome is not None
    assert outcome.rows == [{"name": "second", "after": ["first"]}]


def test_whoever_waits_hears_of_every_job_that_has_ended(tmp_path: Path, log: Path) -> None:
    listed = [job("first", log), job("broken", log, error="it is broken"), job("last", log)]
    heard: list[str] = []
    launch(listed, Store(tmp_path), CPU, on_end=lambda job: heard.append(job.name))
    assert heard == ["first", "broken", "last"]


def test_rows_with_the_same_identity_fail_the_job(tmp_path: Path, log: Path) -> None:
    store = Store(tmp_path / "jobs")
    failures = launch([job("curve", log, values=[1, 2])], store, CPU)
    assert "several rows about the same thing" in failures["curve"]
    assert launch([job("point", log, values=[1])], store, CPU) == {}


@pytest.mark.slow
def test_two_workers_share_the_jobs(tmp_path: Path, log: Path) -> None:
    pytest.importorskip("submitit")
    broken = job("broken", log, error="it is broken")
    fine = [job(f"{index}", log, workers=2) for index in range(4)]  # each waits for both
    last = [job(name, log, stopped=True) for name in ("one", "two")]  # each ends its worker
    store = Store(tmp_path / "jobs")
    failures = launch([broken, *fine, *last], store, TWO)
    assert list(failures) == ["broken", "one", "two"]
    assert failures["broken"] == "it is broken"
    assert all("its worker ended too early" in failures[job.name] for job in last)
    ended = {"broken", "one", "two"}
    assert sorted(name for name in ran(log) if name not in ended) == [job.name for job in fine]
    assert len(processes(log)) == 2
    assert str(os.getpid()) not in processes(log)
    assert ran(log).count("broken") == 1  # what failed with one worker is not tried by another
    assert not list((tmp_path / "jobs").glob(".failed-*"))
    launch(fine, store, TWO)  # finished: no process is started
    assert len([name for name in ran(log) if name not in ended]) == 4


def test_several_workers_need_submitit(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching.importlib.util, "find_spec", lambda name: None)
    assert Launch(devices=("cpu",)).places() == ["cpu"]
    listed = [job(f"{index}", log) for index in range(2)]
    with pytest.raises(ValueError, match=r"need submitit: pip install 'equicolor\[cluster\]'"):
        launch(listed, Store(tmp_path / "jobs"), TWO)
    with pytest.raises(ValueError, match="several workers or devices need submitit"):
        launch(listed, Store(tmp_path / "jobs"), Launch(devices=("cuda:0", "cuda:1")))
    assert launch(listed, Store(tmp_path / "jobs"), Launch(devices=("cpu",))) == {}


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_one_device_needs_no_other_process(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    places: list[str] = []
    monkeypatch.setattr(launching.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(launching, "_work", lambda jobs, store, place, *_: places.append(place))
    launch([job("only", log)], Store(tmp_path / "jobs"), Launch(devices=(device,)))
    assert places == [device]


def test_a_job_that_another_process_runs_is_left_to_it(tmp_path: Path, log: Path) -> None:
    store = Store(tmp_path / "jobs")
    first = job("first", log)
    second = job("second", log, first)
    with store.locked(first):
        for each in (first, second):
            launching._try(each, store, "cpu", None)
        assert ran(log) == []
    for each in (first, second):
        launching._try(each, store, "cpu", None)
    assert ran(log) == ["first", "second"]


def test_a_job_that_fails_does_not_stop_the_others(tmp_path: Path, log: Path) -> None:
    broken = job("broken", log, error="it is broken")
    listed = [broken, job("needs it", log, broken), job("fine", log)]
    store = Store(tmp_path / "jobs")
    failures = launch(listed, store, CPU)
    assert failures == {"broken": "it is broken", "needs it": "it is broken"}
    assert store.outcome(listed[2]) is not None
    assert ran(log) == ["broken", "fine"]
    assert store.outcome(broken) is None
    launch([broken], store, CPU)  # another call tries again
    assert ran(log) == ["broken", "fine", "broken"]


def start(log: Path, root: Path, stderr: Path) -> None:
    """Launch a quick job and two slow ones with two workers, in a process group of its own."""
    os.setsid()
    with stderr.open("w") as file:
        os.dup2(file.fileno(), 2)
    # Tests may run in the background, where shells have interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    slow = [job(name, log, seconds=60) for name in ("slow", "slow-too")]
    try:
        launch([job("quick", log), *slow], Store(root), TWO)
    except KeyboardInterrupt:
        os._exit(130)


def locked(store: Store, job: Job) -> bool:
    try:
        with store.locked(job):
            return False
    except LockedError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_stopped_goes_on(
    tmp_path: Path, log: Path, end: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    store, stderr = Store(tmp_path / "jobs"), tmp_path / "stderr"
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, sys.path)])
    monkeypatch.setenv("PYTHONPATH", path)
    # Forked, which saves its imports; workers are new processes.
    process = multiprocessing.get_context("fork").Process(
        target=start, args=(log, store.root, stderr)
    )
    process.start()
    assert process.pid is not None
    deadline = time.monotonic() + 120
    while len(ran(log)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    if end == signal.SIGINT:
        os.killpg(process.pid, end)  # as a terminal does: workers get it, too
    else:
        os.kill(process.pid, end)
    process.join(60)
    assert process.exitcode == (130 if end == signal.SIGINT else -end)
    assert sorted(ran(log)) == ["quick", "slow", "slow-too"]
    assert stderr.read_text() == ""
    # Its workers end, too, and with them their locks.
    unfinished = job("slow", log, seconds=60)
    while locked(store, unfinished) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not locked(store, unfinished)
    assert store.outcome(unfinished) is None
    assert store.resumed(unfinished)
    launch([job("quick", log), job("late", log)], store, CPU)
    assert ran(log)[3:] == ["late"]  # the finished one is not run again


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"launcher": "ray"}, "launcher must be one of 'processes', 'slurm'.*got 'ray'"),
        ({"devices": ("tpu",)}, "device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'"),
        (
            {"devices": ("cpu:1",)},
            "device must be 'auto', 'cpu', 'cuda' or 'cuda:NUMBER'; got 'cpu:1'",
        ),
        ({"options": {"slurm_partition": "gpu"}}, "need --launcher slurm; got slurm_partition"),
    ],
)
def test_bad_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Launch(**options)


def test_workers_get_devices_in_turn() -> None:
    assert Launch(workers=None, devices=("cuda:1", "cuda:3")).places() == ["cuda:1", "cuda:3"]
    assert Launch(workers=None, devices=("cpu",)).places() == ["cpu"] * (os.cpu_count() or 1)
