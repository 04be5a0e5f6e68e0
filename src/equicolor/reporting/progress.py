"""Lines and progress bars of long jobs on the terminal.

Names of files and classes are shown literally: neither as rich's markup, nor as commands to the
terminal.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from equicolor._text import printable, roughly

if TYPE_CHECKING:  # this module is imported where rich must not be
    from rich.console import Console
    from rich.progress import Progress as Bars

PRINT_EVERY = 30.0  # seconds between two lines if there is no terminal

T = TypeVar("T")

# Called by long jobs with (done, total); total is None where it is unknown.
Progress = Callable[[int, int | None], None]


def say(console: "Console | None", line: str, style: str = "") -> None:
    """Print a line, which the terminal wraps, unless the console is None."""
    from rich.text import Text

    if console is not None:
        console.print(Text(printable(line), style), soft_wrap=True)


class Pace:
    """An estimate of how long a job will take, from how long it took so far.

    Args:
        done: how much was done before the clock started, by an interrupted call.

    Example:
        >>> pace = Pace(done=5)
        >>> pace.left(5, 10) is None, pace.left(10, 10)
        (True, 0.0)
    """

    def __init__(self, done: int = 0) -> None:
        self._before, self._start = done, time.monotonic()

    def left(self, done: int, total: int) -> float | None:
        """Seconds until all is done; None before the first step."""
        new = done - self._before
        return (time.monotonic() - self._start) / new * (total - done) if new > 0 else None

    def words(self, done: int, total: int | None) -> str:
        """The same as the end of a line; empty if unknown, and when all is done."""
        seconds = None if total is None else self.left(done, total)
        return f", about {roughly(seconds)} left" if seconds else ""


def progress_bars(console: "Console | None", *, transient: bool = True) -> "Bars":
    """Bars with title, count, note, time taken and time left; none if the console is None.

    Every task has a note: ``bars.add_task(title, total=10, note="")``. Transient bars are removed
    at the end, and not shown without a terminal. The last state of others stays, also in a file.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=transient,
        refresh_per_second=4,
        disable=console is None or (transient and not console.is_terminal),
    )


@contextlib.contextmanager
def counting(console: "Console | None", title: str) -> Iterator[Progress]:
    """Show a bar, which calls with (done, total) move; none if the console is None.

    Without a terminal, a line every half minute says how much is done and how long is left.
    """
    pace: Pace | None = None
    printed = time.monotonic()

    def show(done: int, total: int | None) -> None:
        nonlocal pace, printed
        bars.update(task, completed=done, total=total)
        pace = Pace(done) if pace is None else pace
        if console is None or console.is_terminal or time.monotonic() - printed < PRINT_EVERY:
            return
        printed = time.monotonic()
        amount = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        say(console, f"{title}: {amount}{pace.words(done, total)}")

    with progress_bars(console) as bars:
        task = bars.add_task(printable(title), total=None, note="")
        yield show


def tracked(items: Sequence[T], title: str, console: "Console | None") -> Iterator[T]:
    """Yield items while a bar counts them; no bar if the console is None."""
    with counting(console, title) as progress:
        for done, item in enumerate(items):
            progress(done, len(items))
            yield item
