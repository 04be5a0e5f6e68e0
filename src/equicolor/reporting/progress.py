"""What long jobs show on the terminal: lines and progress bars.

Names of files and classes are shown as they are: none of them is taken for rich's markup, nor for
a command to the terminal.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from equicolor._text import printable, roughly

if TYPE_CHECKING:  # the alias is used where rich must not be imported
    from rich.console import Console
    from rich.progress import Progress as Bars

PRINT_EVERY = 30.0  # seconds between two lines where there is no terminal

T = TypeVar("T")

# Called by long jobs with (done, total); total is None where it is unknown.
Progress = Callable[[int, int | None], None]


def say(console: "Console | None", line: str, style: str = "") -> None:
    """Print a line, unless the console is None, and let the terminal break it."""
    from rich.text import Text

    if console is not None:
        console.print(Text(printable(line), style), soft_wrap=True)


class Pace:
    """How long a job will take, by how long it took so far.

    Args:
        done: what was done before the clock started, by an interrupted call.

    Example:
        >>> pace = Pace(done=5)
        >>> pace.left(5, 10) is None, pace.left(10, 10)
        (True, 0.0)
    """

    def __init__(self, done: int = 0) -> None:
        self._before, self._start = done, time.monotonic()

    def left(self, done: int, total: int) -> float | None:
        """Seconds until all is done; None while nothing tells."""
        new = done - self._before
        return (time.monotonic() - self._start) / new * (total - done) if new > 0 else None

    def words(self, done: int, total: int | None) -> str:
        """The same to end a line with; empty while nothing tells, and when all is done."""
        seconds = None if total is None else self.left(done, total)
        return f", about {roughly(seconds)} left" if seconds else ""


def progress_bars(console: "Console | None", *, transient: bool = True) -> "Bars":
    """Bars with title, count, note, time taken and time left; none if the console is None.

    Every task has a note: ``bars.add_task(title, total=10, note="")``. Transient bars are removed
    at the end, and not shown without a terminal. Otherwise the last state stays, also in a file.
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
    """A bar moved by calls with (done, total); none if the console is None.

    Without a terminal, a line every half minute says how much is done and how long it will take.
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
    """Items one by one, with a bar of how many are done; none if the console is None."""
    with counting(console, title) as progress:
        for done, item in enumerate(items):
            progress(done, len(items))
            yield item
