"""Tables as data: one table for the terminal, for Markdown and for HTML."""

import dataclasses
import html
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable
from rich.text import Text

from equicolor._text import printable

MISSING = "–"


@dataclass(frozen=True)
class Table:
    """Cells of text under a header.

    Args:
        columns: the header.
        rows: as many cells each as there are columns.
        title: one line.
        text_columns: how many columns, from the left, hold words; numbers are aligned right.

    Example:
        >>> table = Table(("network", "accuracy"), [("z2cnn", "71.6")])
        >>> print(table.markdown())
        | network | accuracy |
        |---|---:|
        | z2cnn | 71.6 |
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    text_columns: int = 1

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row of a table with {len(self.columns)} columns has {len(row)} cells: "
                    f"{list(row)}"
                )

    def without_empty(self, columns: Iterable[str]) -> "Table":
        """The table without those of the named columns that hold only dashes."""
        optional = set(columns)
        shown = [
            index
            for index, name in enumerate(self.columns)
            if name not in optional or any(row[index] != MISSING for row in self.rows)
        ]
        return dataclasses.replace(
            self,
            columns=tuple(self.columns[index] for index in shown),
            rows=[tuple(row[index] for index in shown) for row in self.rows],
            text_columns=sum(index < self.text_columns for index in shown),
        )

    def rich(self) -> RichTable:
        """The table for the terminal; rich does not read markup in its cells."""
        title = Text(printable(self.title), "table.title") if self.title else None
        result = RichTable(title=title, title_justify="left")
        for index, name in enumerate(self.columns):
            justify = "left" if index < self.text_columns else "right"
            result.add_column(Text(printable(name)), justify=justify, overflow="fold")  # type: ignore[arg-type]
        for row in self.rows:
            result.add_row(*(Text(printable(cell)) for cell in row))
        return result

    def markdown(self) -> str:
        """The table in Markdown, without its title."""
        numbers = len(self.columns) - self.text_columns
        rule = "|---" * self.text_columns + "|---:" * numbers + "|"
        return "\n".join([_line(self.columns), rule, *map(_line, self.rows)])

    def html(self) -> str:
        """The table in HTML, its title as the caption."""
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        head = self._html_row(self.columns, "th")
        body = "\n".join(self._html_row(row, "td") for row in self.rows)
        return f"<table>{caption}\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody></table>"

    def _html_row(self, cells: Sequence[str], tag: str) -> str:
        parts = []
        for index, cell in enumerate(cells):
            kind = "" if index < self.text_columns else ' class="number"'
            parts.append(f"<{tag}{kind}>{html.escape(cell)}</{tag}>")
        return f"<tr>{''.join(parts)}</tr>"


def _line(cells: Sequence[str]) -> str:
    # Without line breaks, which would end the row.
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def mean_and_std(values: Sequence[float], digits: int = 2) -> str:
    """The mean of numbers and, if there are several, their sample standard deviation.

    Example:
        >>> mean_and_std([71.0, 72.0]), mean_and_std([71.0]), mean_and_std([])
        ('71.50 ± 0.71', '71.00', '–')
    """
    if not values:
        return MISSING
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of two or more numbers."""
    return statistics.stdev(values) / math.sqrt(len(values))


def difference(values: Sequence[float]) -> str:
    """The mean of two or more differences and its standard error; of fewer, a dash.

    Example:
        >>> difference([1.0, 3.0]), difference([-0.001, 0.001]), difference([])
        ('+2.00 ± 1.00', '+0.00 ± 0.00', '–')
    """
    if len(values) < 2:
        return MISSING
    mean = statistics.fmean(values)  # z: no negative zero
    return f"{mean:+z.2f} ± {standard_error(values):.2f}".replace("-", "−")
