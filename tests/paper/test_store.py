"""Jobs are known by what decides their outcome, and only one process runs a job."""

import dataclasses
from pathlib import Path

import pytest
from tests.paper.toy_jobs import job, run

from equicolor._files import LockedError
from equicolor.paper.experiment import Job
from equicolor.paper.store import Store, refuse_first_edition, refuse_run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "jobs")


def finish(store: Store, job: Job, *rows: dict) -> None:
    store.write(job, list(rows), device="cpu", seconds=1.0, resumed=False)


def test_the_key_follows_from_what_decides_the_outcome() -> None:
    plain = Job("a", "training", run, {"lr": 0.1, "epochs": 2})
    assert plain.key == Job("b", "training", run, {"epochs": 2, "lr": 0.1}, about={"x": 1}).key
    first, second = Job("a", "training", run, {"lr": 1}), Job("a", "training", run, {"lr": 2})
    others = [
        dataclasses.replace(plain, settings={"lr": 0.2, "epochs": 2}),
        dataclasses.replace(plain, kind="sweep"),
        dataclasses.replace(plain, after=(first,)),
        dataclasses.replace(plain, after=(second,)),
        dataclasses.replace(plain, revision=2),
    ]
    assert len({plain.key, *(other.key for other in others)}) == 6


def test_jobs_of_one_name_are_kept_apart(store: Store, tmp_path: Path) -> None:
    old, new = job("sets/a", tmp_path), job("sets/a", tmp_path, data="changed")
    finish(store, old, {"original": 1.0})
    assert store.outcome(new) is None
    finish(store, new, {"original": 2.0})
    assert [store.outcome(each).rows[0]["original"] for each in (old, new)] == [1.0, 2.0]
    assert store.folder(old) != store.folder(new)
    assert store.folder(old).parent == store.root / "sets"


def test_a_row_that_extends_another_is_part_of_it(store: Store, tmp_path: Path) -> None:
    train, other = job("train", tmp_path), job("other", tmp_path)
    sweep = Job("train.sweep", "sweep", run, after=(train,), extends=True)
    finish(store, train, {"original": 1.0})
    finish(store, other, {"original": 2.0})
    assert store.rows([train, sweep, other]) == [{"original": 1.0}, {"original": 2.0}]
    finish(store, sweep, {"rotate_mean": 3.0})
    assert store.rows([train, sweep, other])[0] == {"original": 1.0, "rotate_mean": 3.0}


def test_a_job_that_is_planned_twice_has_its_rows_once(store: Store, tmp_path: Path) -> None:
    planned = job("train", tmp_path)
    finish(store, planned, {"original": 1.0})
    assert store.rows([planned, job("train", tmp_path)]) == [{"original": 1.0}]


def test_files_of_an_interrupted_job_are_noticed(store: Store, tmp_path: Path) -> None:
    for name, left in (("new", "training.123.partial"), ("old", "training.checkpoint")):
        each = job(name, tmp_path)
        assert not store.resumed(each)
        store.folder(each).mkdir(parents=True)
        (store.folder(each) / left).touch()
        assert store.resumed(each) == (name == "old")


def test_a_finished_job_needs_no_checkpoint(store: Store, tmp_path: Path) -> None:
    each = job("a", tmp_path)
    store.folder(each).mkdir(parents=True)
    for name in ("training.checkpoint", "last.ckpt", "model.safetensors"):
        (store.folder(each) / name).touch()
    finish(store, each)
    assert [path.name for path in store.folder(each).iterdir()] == ["model.safetensors"]
    assert [facts["seconds"] for facts in store.provenance([each])] == [1.0]


@pytest.mark.parametrize("contents", ["{", "[]", '{"rows": []}'])
def test_damaged_records_are_refused(store: Store, tmp_path: Path, contents: str) -> None:
    finish(store, job("a", tmp_path))
    store.record(job("a", tmp_path)).write_text(contents)
    with pytest.raises(ValueError, match=r"\.json is damaged; delete it"):
        store.outcome(job("a", tmp_path))


def test_one_process_holds_a_lock(store: Store, tmp_path: Path) -> None:
    each = job("a", tmp_path)
    with store.locked(each), pytest.raises(LockedError, match="running a"):
        Store(store.root).locked(each).__enter__()
    with store.locked(each):
        pass


def test_the_folder_of_a_run_keeps_its_report(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    with pytest.raises(ValueError, match="is the folder of a run, with its own report"):
        refuse_run(tmp_path)


def test_jobs_of_the_first_edition_are_refused(tmp_path: Path) -> None:
    refuse_first_edition(tmp_path)
    locks = tmp_path / "runs" / ".locks"
    locks.mkdir(parents=True)
    (locks / "flowers102.ce-4-seed0.key").write_text("0" * 64)
    with pytest.raises(ValueError, match="jobs of an earlier version"):
        refuse_first_edition(tmp_path)
