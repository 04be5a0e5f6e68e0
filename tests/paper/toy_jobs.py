"""Jobs that note when they run, for tests of what spreads them; workers import them by name."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equicolor.paper.jobs import Job, Outcome, Where

KIND = "tests.paper.toy_jobs:run"


def job(name: str, log: Path, *after: Job, **settings: Any) -> Job:
    return Job(name, KIND, {"name": name, **settings}, after, {"log": str(log)})


def run(
    settings: Mapping[str, Any], folder: Path, where: Where, before: tuple[Outcome, ...]
) -> list[dict[str, Any]]:
    with Path(settings["log"]).open("a") as log:
        log.write(f"{settings['name']} {os.getpid()}\n")
    time.sleep(settings.get("seconds", 0))
    if settings.get("stopped"):  # as a training that is told to stop ends
        raise KeyboardInterrupt
    if "error" in settings:
        raise ValueError(settings["error"])
    needed = [row["name"] for outcome in before for row in outcome.rows]
    return [{"name": settings["name"], "after": needed}]


def ran(log: Path) -> list[str]:
    """The names of the jobs that began, in order."""
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def processes(log: Path) -> set[str]:
    return {line.split()[1] for line in log.read_text().splitlines()}
