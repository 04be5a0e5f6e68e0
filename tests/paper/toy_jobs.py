"""Jobs that note when they run, for tests of what runs them; workers import them by name."""

import os
import time
from pathlib import Path
from typing import Any

from equicolor.paper.experiment import Context, Job


def job(name: str, log: Path, *after: Job, **settings: Any) -> Job:
    return Job(name, "toy", run, {"name": name, **settings}, after, {"log": str(log)})


def run(job: Job, context: Context) -> list[dict[str, Any]]:
    settings = job.settings
    with Path(job.about["log"]).open("a") as log:
        log.write(f"{settings['name']} {os.getpid()}\n")
    context.folder.mkdir(parents=True, exist_ok=True)
    (context.folder / "training.checkpoint").touch()
    time.sleep(settings.get("seconds", 0))
    deadline = time.monotonic() + 120
    while len(processes(Path(job.about["log"]))) < settings.get("workers", 1):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{settings['name']} waited for another worker")
        time.sleep(0.02)
    if settings.get("stopped"):  # as a training that is told to stop ends
        raise KeyboardInterrupt
    if "error" in settings:
        raise ValueError(settings["error"])
    needed = [row["name"] for outcome in context.before for row in outcome.rows]
    row = {"name": settings["name"], "after": needed}
    values = settings.get("values")
    return [row] if values is None else [row | {"value": value} for value in values]


def ran(log: Path) -> list[str]:
    """The names of the jobs that began, in order."""
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def processes(log: Path) -> set[str]:
    return {line.split()[1] for line in log.read_text().splitlines()}
