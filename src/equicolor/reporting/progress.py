"""What long jobs show on the terminal: lines and progress bars.

Names of files and classes are shown as they are: none of them is taken for rich's markup, nor for
a command to the terminal.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from equicolor._text import printable

if TYPE_CHECKING:  # the alias is used where rich must not be imported
    from rich.console import Console
    from rich.progress import Progress as Bars

__all__ = ["Progress", "counting", "progress_bars", "say", "tracked"]

T = TypeVar("T")

# Called by long jobs with (done, total); total is None where it is unknown.
Progress = Callable[[int, int | None], None]


def say(console: "Console | None", line: str, style: str = "") -> None:
    """Print a line, unless the console is None, and let the terminal break it."""
    from rich.text import Text

    if console is not None:
        console.print(Text(printable(line), style), soft_wrap=True)


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
    """A bar moved by calls with (done, total); none if the console is None."""
    with progress_bars(console) as bars:
        task = bars.add_task(printable(title), total=None, note="")
        yield lambda done, total: bars.update(task, completed=done, total=total)


def tracked(items: Sequence[T], title: str) -> Iterator[T]:
    """Items one by one, with a bar on stderr of how many are done."""
    from rich.console import Console

    with counting(Console(stderr=True), title) as progress:
        for done, item in enumerate(items):
            progress(done, len(items))
            yield item
