"""Jobs are known by what decides their outcome, run once, and by one process at a time."""

from pathlib import Path

import pytest
from tests.paper.toy_jobs import job, ran

from equicolor.paper import jobs
from equicolor.paper.jobs import Job, Store, run_job


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_the_key_follows_from_what_decides_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Job("a", "training", {"lr": 0.1, "epochs": 2})
    assert plain.key == Job("b", "training", {"epochs": 2, "lr": 0.1}, about={"x": 1}).key
    first, second = Job("a", "training", {"lr": 1}), Job("a", "training", {"lr": 2})
    others = [
        Job("a", "training", {"lr": 0.2, "epochs": 2}),
        Job("a", "sweep", {"lr": 0.1, "epochs": 2}),
        Job("a", "training", {"lr": 0.1, "epochs": 2}, (first,)),
        Job("a", "training", {"lr": 0.1, "epochs": 2}, (second,)),
    ]
    monkeypatch.setitem(jobs.KINDS, "training", (jobs.KINDS["training"][0], 99))
    others.append(Job("a", "training", {"lr": 0.1, "epochs": 2}))
    assert len({plain.key, *(other.key for other in others)}) == 6


def test_a_finished_job_is_not_run_again(tmp_path: Path, log: Path) -> None:
    store = Store(tmp_path / "jobs")
    first = job("first", log)
    second = job("second", log, first)
    assert store.outcome(second) is None
    assert run_job(second, store)
    assert run_job(second, store)
    assert ran(log) == ["first", "second"]  # what it needs came first
    outcome = store.outcome(second)
    assert outcome is not None
    assert outcome.rows == [{"name": "second", "after": ["first"]}]
    assert outcome.folder == tmp_path / "jobs" / "second"


def test_a_job_that_goes_on_from_files_says_so(tmp_path: Path, log: Path) -> None:
    store = Store(tmp_path / "jobs")
    whole, resumed = job("whole", log), job("resumed", log)
    for each, left in ((whole, "checkpoint.123.partial"), (resumed, "checkpoint")):
        store.folder(each).mkdir(parents=True)
        (store.folder(each) / left).touch()
        assert run_job(each, store)
        assert store.resumed(each) == ("resumed" in store.provenance(each)) == (each is resumed)


def test_another_job_of_the_same_name_is_kept_beside_it(tmp_path: Path, log: Path) -> None:
    store = Store(tmp_path / "jobs")
    old, new = job("sets/a", log), job("sets/a", log, data="changed")
    run_job(old, store)
    assert store.outcome(new) is None
    assert run_job(new, store)
    assert run_job(old, store)  # still there
    assert ran(log) == ["sets/a", "sets/a"]
    outcome = store.outcome(new)
    assert outcome is not None
    assert outcome.folder == tmp_path / "jobs" / "sets" / f"a-{new.key[:8]}"
    assert store.folder(old) == tmp_path / "jobs" / "sets" / "a"


def test_another_job_does_not_go_on_from_files_of_an_unfinished_one(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(jobs.KINDS, "toy", ("tests.paper.toy_jobs:run", 1))
    settings = {"name": "a", "stopped": True}
    about = {"log": str(log)}
    store = Store(tmp_path / "jobs")
    old = Job("sets/a", "toy", settings, about=about)
    with pytest.raises(KeyboardInterrupt):
        run_job(old, store)
    assert store.folder(old) == tmp_path / "jobs" / "sets" / "a"
    # The code of the kind changes.
    monkeypatch.setitem(jobs.KINDS, "toy", ("tests.paper.toy_jobs:run", 2))
    new = Job("sets/a", "toy", settings, about=about)
    assert new.key != old.key
    assert store.folder(new).name == f"a-{new.key[:8]}"
    assert store.folder(old).name == "a"  # to go on, with the old code


def test_damaged_records_are_refused(tmp_path: Path, log: Path) -> None:
    store = Store(tmp_path / "jobs")
    run_job(job("a", log), store)
    store.record(job("a", log)).write_text("{")
    with pytest.raises(ValueError, match=r"a\.json is damaged; delete it"):
        run_job(job("a", log), store)


def test_a_failed_job_leaves_no_record(tmp_path: Path, log: Path) -> None:
    store = Store(tmp_path / "jobs")
    with pytest.raises(ValueError, match="no such thing"):
        run_job(job("a", log, error="no such thing"), store)
    assert store.outcome(job("a", log, error="no such thing")) is None


def test_a_job_that_another_is_running_is_left_to_it(tmp_path: Path, log: Path) -> None:
    store = Store(tmp_path / "jobs")
    with Store(tmp_path / "jobs").locked(job("a", log), wait=False) as held:
        assert held
        assert not run_job(job("a", log), store, wait=False)
        assert not run_job(job("b", log, job("a", log)), store, wait=False)  # which needs it
        assert ran(log) == []
    assert run_job(job("b", log, job("a", log)), store, wait=False)
    assert ran(log) == ["a", "b"]
