"""What long jobs say on the terminal: lines and progress bars.

Names of files and classes are shown as they are: none of them is taken for rich's markup, nor for
a command to the terminal.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from equicolor._text import printable

__all__ = ["Words", "counting", "say", "tracked"]

T = TypeVar("T")

# A column of a progress bar.
Words = functools.partial(TextColumn, markup=False)


def say(console: Console | None, line: str, style: str = "") -> None:
    """Print a line; the terminal alone breaks it.

    Args:
        console: where to; None says nothing.
        line: what to say.
        style: of the whole line, such as ``"bold"``.

    Example:
        >>> say(Console(), "reading [red]/[/b]")
        reading [red]/[/b]
    """
    if console is not None:
        console.print(Text(printable(line), style), soft_wrap=True)


@contextlib.contextmanager
def counting(console: Console | None, title: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar that is told (done, in all if known), and disappears at the end.

    Args:
        console: where to; None shows nothing.
        title: what is being done.

    Example:
        >>> with counting(None, "decoding") as progress:
        ...     progress(3, 10)
    """
    columns = Words("{task.description}"), BarColumn(), MofNCompleteColumn()
    bar = Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=console is None or not console.is_terminal,
    )
    with bar:
        job = bar.add_task(printable(title), total=None)
        yield lambda done, total: bar.update(job, completed=done, total=total)


def tracked(items: Sequence[T], title: str) -> Iterator[T]:
    """Items one by one, with a bar on stderr of how many are done.

    Args:
        items: what to go through.
        title: what is being done.

    Example:
        >>> [item for item in tracked("ab", "reading")]
        ['a', 'b']
    """
    with counting(Console(stderr=True), title) as progress:
        for done, item in enumerate(items):
            progress(done, len(items))
            yield item
