"""Outcomes of jobs in a folder that several processes and computers may share.

A job's files are named after the job and a digest of all that decides its outcome, so the same
job is never computed twice and different jobs never share a folder. A lock, which ends with its
process, keeps two processes from computing one job.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from equicolor._files import LockedError, locked
from equicolor.paper.experiment import Job, Outcome
from equicolor.results import Row, read_results, write_results

__all__ = ["JOBS", "Store", "refuse_first_edition", "refuse_run"]

JOBS = "jobs"  # the folder of the store in the folder of a run
_PROVENANCE = ("date", "device", "python", "versions", "seconds", "resumed")


def refuse_run(folder: Path | str) -> None:
    """Refuse to write a report of other rows into the folder of a run.

    Example:
        >>> refuse_run("nowhere")
    """
    if (Path(folder) / JOBS).is_dir():
        raise ValueError(f"{folder} is the folder of a run, with its own report: choose another")


def refuse_first_edition(folder: Path) -> None:
    """Refuse a folder whose jobs are kept under the names and settings of the first edition."""
    for place in (JOBS, "runs"):
        if any((folder / place / ".locks").glob("*.key")):
            raise ValueError(
                f"{folder} holds jobs of an earlier version, whose settings had other names: "
                "choose another folder"
            )


class Store:
    """The outcomes of jobs.

    Args:
        root: the folder; created when the first job begins.

    Example:
        >>> store = Store("runs/reproduce/jobs")
        >>> job = Job("flowers102/ce-4-seed0", "training", print)
        >>> store.folder(job) == Path(f"runs/reproduce/jobs/flowers102/ce-4-seed0-{job.key[:8]}")
        True
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, job: Job) -> Path:
        """Where a job keeps its files."""
        return self.root / f"{job.name}-{job.key[:8]}"

    def record(self, job: Job) -> Path:
        """The file with the rows of a finished job."""
        folder = self.folder(job)
        return folder.with_name(f"{folder.name}.json")

    def outcome(self, job: Job) -> Outcome | None:
        """Rows and files of a job; None if it is not finished.

        Raises:
            ValueError: if the record is damaged.
        """
        record = self._read(job)
        return None if record is None else Outcome(record["rows"], self.folder(job))

    def rows(self, jobs: Sequence[Job]) -> list[Row]:
        """Rows of the finished jobs. The row of a job that extends another is added to its rows."""
        added: dict[str, Row] = {}
        for job in jobs:
            if job.extends and (outcome := self.outcome(job)):
                added.setdefault(job.after[0].key, {}).update(outcome.rows[0])
        outcomes = [(job, self.outcome(job)) for job in jobs if not job.extends]
        return [
            {**row, **added.get(job.key, {})} for job, outcome in outcomes if outcome
            for row in outcome.rows
        ]  # fmt: skip

    def provenance(self, job: Job) -> Row:
        """When, where and with what a finished job was computed, and how long it took."""
        record = self._read(job) or {}
        return {"job": job.name, **{name: record[name] for name in _PROVENANCE if name in record}}

    def resumed(self, job: Job) -> bool:
        """Whether an interrupted call left files that the job can go on from."""
        folder = self.folder(job)
        files = folder.iterdir() if folder.is_dir() else ()
        return any(path.suffix != ".partial" for path in files)  # half-written: no use

    def write(
        self, job: Job, rows: list[Row], *, device: str, seconds: float, resumed: bool
    ) -> None:
        """Record the rows of a job, which finishes it, and remove its checkpoints."""
        facts: dict[str, Any] = {"key": job.key, "kind": job.kind, "seconds": round(seconds, 1)}
        if resumed:
            facts["resumed"] = True
        write_results(self.record(job), rows, device=device, **facts, settings=dict(job.settings))
        for checkpoint in self.folder(job).glob("*.checkpoint"):
            checkpoint.unlink()

    @contextlib.contextmanager
    def locked(self, job: Job) -> Iterator[bool]:
        """Hold the lock of a job. Yields False if another process holds it."""
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{job.name.replace('/', '.')}-{job.key[:8]}.lock"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(path, f"running {job.name}"))
            except LockedError:
                yield False
                return
            yield True

    def _read(self, job: Job) -> dict[str, Any] | None:
        path = self.record(job)
        if not path.is_file():
            return None
        try:
            record = read_results(path)
            key = record["key"]
        except (ValueError, KeyError):
            raise ValueError(f"{path} is damaged; delete it to run that job anew") from None
        return record if key == job.key else None
