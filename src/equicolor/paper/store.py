"""Outcomes of jobs in a folder that several processes and computers may share.

A job's files are named after the job and a digest of all that decides its outcome, so the same
job is never computed twice and different jobs never share a folder. A lock, which ends with its
process, keeps two processes from computing one job.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from equicolor._files import locked, write_whole
from equicolor.paper.experiment import Job, Outcome
from equicolor.results import Row, read_results, write_results

JOBS = "jobs"  # the folder of the store in the folder of a run
_PROVENANCE = ("date", "device", "python", "versions", "seconds", "resumed")


def refuse_run(folder: Path) -> None:
    """Refuse to write a report of other rows into the folder of a run."""
    if (folder / JOBS).is_dir():
        raise ValueError(f"{folder} is the folder of a run, with its own report: choose another")


def refuse_first_edition(folder: Path) -> None:
    """Refuse a folder whose jobs have the names and settings of the first edition."""
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
        notes: a folder for one call, where its workers note why jobs failed, so that no worker
            tries them again.

    Example:
        >>> store = Store(Path("runs/reproduce/jobs"))
        >>> job = Job("flowers102/ce-4-seed0", "training", print)
        >>> store.folder(job) == Path(f"runs/reproduce/jobs/flowers102/ce-4-seed0-{job.key[:8]}")
        True
    """

    def __init__(self, root: Path, notes: Path | None = None) -> None:
        self.root = root
        self.notes = root if notes is None else notes

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

    def failure(self, job: Job) -> str | None:
        """Why a job failed; None if it did not."""
        note = self.notes / job.key
        return note.read_text() if note.is_file() else None

    def fail(self, job: Job, reason: str) -> None:
        """Note why a job failed."""
        write_whole(self.notes / job.key, reason)

    def ended(self, job: Job) -> bool:
        """Whether a job is finished or has failed."""
        return self.failure(job) is not None or self.outcome(job) is not None

    def rows(self, jobs: Sequence[Job]) -> list[Row]:
        """Rows of the finished jobs. The row of a job that extends another is added to its rows."""
        jobs = list({job.key: job for job in jobs}.values())  # a plan may name a job twice
        added: dict[str, Row] = {}
        for job in jobs:
            if job.extends and (outcome := self.outcome(job)):
                added.setdefault(job.after[0].key, {}).update(outcome.rows[0])
        rows = []
        for job in jobs:
            if not job.extends and (outcome := self.outcome(job)):
                rows += [{**row, **added.get(job.key, {})} for row in outcome.rows]
        return rows

    def provenance(self, jobs: Sequence[Job]) -> list[Row]:
        """When, where and with what the finished jobs were computed, and how long each took."""
        return [
            {"job": job.name, **{name: record[name] for name in _PROVENANCE if name in record}}
            for job in jobs
            if (record := self._read(job)) is not None
        ]

    def resumed(self, job: Job) -> bool:
        """Whether an interrupted call left files from which the job can continue."""
        # glob finds nothing in a missing folder; a half-written file is useless.
        return any(path.suffix != ".partial" for path in self.folder(job).glob("*"))

    def write(
        self, job: Job, rows: list[Row], *, device: str, seconds: float, resumed: bool
    ) -> None:
        """Record the rows of a job, which finishes it, and remove its checkpoints."""
        facts: Row = {"key": job.key, "kind": job.kind, "seconds": round(seconds, 1)}
        if resumed:
            facts["resumed"] = True
        write_results(self.record(job), rows, device=device, **facts, settings=dict(job.settings))
        for path in self.folder(job).glob("*"):
            if path.suffix in (".checkpoint", ".ckpt"):
                path.unlink()

    def locked(self, job: Job) -> AbstractContextManager[None]:
        """Hold the lock of a job; a LockedError if another process holds it."""
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{job.name.replace('/', '.')}-{job.key[:8]}.lock"
        return locked(folder / name, f"running {job.name}")

    def _read(self, job: Job) -> dict[str, Any] | None:
        path = self.record(job)
        if not path.is_file():
            return None
        try:
            record = read_results(path)
            key = record["key"]
        except (ValueError, KeyError):
            raise ValueError(f"{path} is damaged; delete it to run that job again") from None
        return record if key == job.key else None
