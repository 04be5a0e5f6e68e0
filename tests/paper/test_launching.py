"""Jobs are shared out, each runs once, and an interrupted run goes on."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.paper.toy_jobs import job, processes, ran

from equicolor.paper import launching
from equicolor.paper.jobs import Job, Store
from equicolor.paper.launching import (
    JobsFailedError,
    Launch,
    Shard,
    launch,
    parse_shard,
    work,
)

ROOT = Path(__file__).parents[2]
TWO = Launch(workers=2, devices=("cpu",))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_shards_cover_all_jobs_once(tmp_path: Path, log: Path) -> None:
    listed = [job(f"{index}", log) for index in range(7)]
    store = Store(tmp_path / "jobs")
    for index in range(3):
        launch(listed, store, Launch(devices=("cpu",), shard=Shard(index, 3)))
        assert len(ran(log)) == [3, 5, 7][index]
    assert sorted(ran(log)) == [job.name for job in listed]


def test_a_shard_keeps_together_what_needs_each_other(tmp_path: Path, log: Path) -> None:
    first, other = job("first", log), job("other", log)
    second = job("second", log, first)
    listed = [first, other, second, job("third", log, second)]
    launch(listed, Store(tmp_path), Launch(devices=("cpu",), shard=Shard(1, 2)))
    assert ran(log) == ["other"]
    launch(listed, Store(tmp_path), Launch(devices=("cpu",), shard=Shard(0, 2)))
    assert ran(log) == ["other", "first", "second", "third"]


def test_a_job_of_a_shard_runs_what_it_needs(tmp_path: Path, log: Path) -> None:
    needed = [job("third", log, job("first", log))]
    launch(needed, Store(tmp_path), Launch(devices=("cpu",), shard=Shard(0, 1)))
    assert ran(log) == ["first", "third"]


def test_two_workers_share_the_jobs(tmp_path: Path, log: Path) -> None:
    broken = job("broken", log, error="it is broken")
    fine = [job(f"{index}", log, seconds=1.0) for index in range(4)]
    store = Store(tmp_path / "jobs")
    with pytest.raises(JobsFailedError, match="1 job failed: broken: it is broken"):
        launch([broken, *fine], store, TWO)
    assert sorted(name for name in ran(log) if name != "broken") == [job.name for job in fine]
    assert len(processes(log)) == 2
    assert ran(log).count("broken") == 1  # what failed with one worker is not tried by another
    assert not list((tmp_path / "jobs").glob(".failed-*"))
    launch(fine, store, TWO)  # finished: no process is started
    assert len([name for name in ran(log) if name != "broken"]) == 4


def test_a_worker_that_is_stopped_says_nothing(
    tmp_path: Path, log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    listed = [job(name, log, stopped=True) for name in ("one", "two")]
    with pytest.raises(JobsFailedError, match="a worker ended before it did"):
        launch(listed, Store(tmp_path / "jobs"), TWO)
    assert capfd.readouterr() == ("", "")


def test_what_failed_is_noted_before_its_lock_is_free(tmp_path: Path, log: Path) -> None:
    broken, store, notes = job("broken", log, error="it is broken"), Store(tmp_path), tmp_path / "n"
    notes.mkdir()
    noted: list[bool] = []

    @contextlib.contextmanager
    def locked(self: Store, job: Job, *, wait: bool) -> Iterator[bool]:
        try:
            yield True
        finally:
            noted.append((notes / "broken").is_file())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "locked", locked)
        assert list(work([broken], store.root, "cpu", notes=notes)) == ["broken"]
    assert noted == [True]
    # One that looked for the note too early finds it when it has the lock.
    with (
        pytest.raises(JobsFailedError, match="it is broken"),
        launching._noting(broken, notes),
    ):
        pytest.fail("it runs again")
    assert ran(log) == ["broken"]


def test_what_fails_does_not_keep_others_from_running(tmp_path: Path, log: Path) -> None:
    broken = job("broken", log, error="it is broken")
    listed = [broken, job("needs it", log, broken), job("fine", log)]
    store = Store(tmp_path / "jobs")
    with pytest.raises(JobsFailedError, match=r"2 jobs failed: .*broken: it is broken"):
        launch(listed, store, Launch(devices=("cpu",)))
    assert store.outcome(listed[2]) is not None
    assert ran(log) == ["broken", "fine"]  # what needs a broken one does not run it once more
    with pytest.raises(JobsFailedError, match=r"^1 job failed: broken: it is broken$") as raised:
        launch(listed[:1], store, Launch(devices=("cpu",)))
    assert raised.value.failures == {"broken": "it is broken"}
    assert isinstance(raised.value.__cause__, ValueError)
    copied = pickle.loads(pickle.dumps(raised.value))  # as from another process
    assert copied.failures == raised.value.failures


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, log: Path) -> None:
    code = f"""if __name__ == "__main__":
        from pathlib import Path
        from equicolor.paper.jobs import Store
        from equicolor.paper.launching import Launch, launch
        from tests.paper.toy_jobs import job
        log = Path({str(log)!r})
        listed = [job("quick", log), job("slow", log, seconds=60), job("slow too", log, seconds=60)]
        how = Launch(workers=2, devices=("cpu",))
        launch(listed, Store({str(tmp_path / "jobs")!r}), how)
    """
    script = tmp_path / "start.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    process = subprocess.Popen([sys.executable, script], env=environment)
    deadline = time.monotonic() + 120
    while len(ran(log)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert sorted(ran(log)) == ["quick", "slow", "slow"]
    # Its workers end, too, and with them their locks.
    store = Store(tmp_path / "jobs")
    unfinished = job("slow", log, seconds=60)
    with store.locked(unfinished, wait=True) as held:
        assert held
    assert time.monotonic() < deadline
    assert store.outcome(unfinished) is None
    launch([job("quick", log), job("late", log)], store, Launch(devices=("cpu",)))
    assert ran(log)[3:] == ["late"]  # the finished one is not run again


def test_submitit_runs_the_same_jobs(tmp_path: Path, log: Path) -> None:
    pytest.importorskip("submitit")
    listed = [job(f"{index}", log) for index in range(3)]
    how = Launch(workers=2, devices=("cpu",), launcher="submitit-local")
    launch(listed, Store(tmp_path / "jobs"), how)
    assert sorted(ran(log)) == ["0", "1", "2"]
    assert str(os.getpid()) not in processes(log)


@pytest.mark.parametrize(
    ("text", "message"),
    [("2/2", "I from 0 to N - 1, got 2/2"), ("1", "such as 0/4; got '1'"), ("a/b", "got 'a/b'")],
)
def test_bad_shards_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_shard(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"launcher": "ray"}, "launcher must be one of 'processes', 'slurm'.*got 'ray'"),
        ({"devices": ("tpu",)}, "device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'"),
        ({"devices": ("cpu:1",)}, "a device is 'cpu', 'cuda' or 'cuda:0', say; got 'cpu:1'"),
        ({"options": {"slurm_partition": "gpu"}}, "need one, such as slurm; got slurm_partition"),
    ],
)
def test_bad_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Launch(**options)


def test_workers_get_devices_in_turn() -> None:
    assert Launch(workers=None, devices=("cuda:1", "cuda:3")).places() == ["cuda:1", "cuda:3"]
    assert Launch(workers=None, devices=("cpu",)).places() == ["cpu"] * (os.cpu_count() or 1)
