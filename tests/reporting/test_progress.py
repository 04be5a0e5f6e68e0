"""Lines of long jobs without a terminal, and estimates of the time left."""

import io

import pytest
from rich.console import Console

from equicolor.reporting import progress


class Clock:
    """A clock that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_pace_leaves_out_what_was_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = progress.Pace(done=100)
    assert pace.left(100, 200) is None
    clock.now += 30
    assert pace.left(110, 200) == 270


def test_a_pipe_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, file = Clock(monkeypatch), io.StringIO()
    with progress.counting(Console(file=file, width=200), "decoding [red]") as show:
        for done in range(0, 1001, 10):  # in 10 s each
            show(done, 1000)
            clock.now += 10
        show(1000, None)
    lines = file.getvalue().splitlines()
    assert lines[0] == "decoding [red]: 30 of 1,000, about 16 min left"
    assert lines[1] == "decoding [red]: 60 of 1,000, about 16 min left"
    assert lines[-1].startswith("decoding [red]: 990 of 1,000, about 10 s left")
    assert len(lines) == 33


def test_short_jobs_and_no_console_say_nothing() -> None:
    file = io.StringIO()
    for console in (Console(file=file), None):
        with progress.counting(console, "decoding") as show:
            show(1, 2)
            show(2, 2)
    assert file.getvalue() == ""
