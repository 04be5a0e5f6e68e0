import io

import pytest
from rich.console import Console

from equicolor.reporting.progress import counting, say
from equicolor.reporting.tables import Table, mean_and_std

TABLE = Table(("network", "n", "accuracy"), [("a|b <c>", "3", "71.6"), ("d", "1", "60.0")], "Two")


def test_markdown_aligns_and_escapes() -> None:
    assert TABLE.markdown().splitlines() == [
        "| network | n | accuracy |",
        "|---|---:|---:|",
        r"| a\|b <c> | 3 | 71.6 |",
        "| d | 1 | 60.0 |",
    ]


def test_a_line_break_does_not_end_a_row_of_markdown() -> None:
    table = Table(("network", "n"), [("a\r\nb\n", "3")])
    assert table.markdown().splitlines()[2:] == ["| a b | 3 |"]


def test_html_escapes_and_marks_numbers() -> None:
    page = TABLE.html()
    assert "<caption>Two</caption>" in page
    assert "<td>a|b &lt;c&gt;</td>" in page
    assert '<td class="number">71.6</td>' in page
    assert page.count("<tr>") == 3
    assert "caption" not in Table(("x",), []).html()


def test_named_columns_without_a_number_are_left_out() -> None:
    columns, rows = (
        ("network", "paper", "ours", "other"),
        [("a", "–", "1", "–"), ("b", "–", "2", "–")],
    )
    table = Table(columns, rows, "Two", text_columns=2).without_empty(["paper", "ours"])
    assert table == Table(("network", "ours", "other"), [("a", "1", "–"), ("b", "2", "–")], "Two")
    one = Table(columns, [*rows, ("c", "3", "–", "–")])
    assert one.without_empty(["paper"]).columns == columns


def test_terminal_shows_everything_even_when_narrow() -> None:
    path = "/a/rather/long/folder/of/datasets"
    text = io.StringIO()
    Console(file=text, width=24).print(Table(("folder", "n"), [(path, "3")], "Two").rich())
    lines = text.getvalue().splitlines()
    assert lines[0].strip() == "Two"
    assert max(map(len, lines)) <= 24
    assert "".join(line.split("│")[1].strip() for line in lines[4:-1]) == path


def test_the_terminal_shows_names_as_they_are() -> None:
    names = ["[red]x", "[/b]", ":smile:"]
    text = io.StringIO()
    console = Console(file=text, width=60, force_terminal=True, color_system=None)
    console.print(Table(names, [names], names[1]).rich())
    with counting(console, "[/b]") as progress:
        progress(1, 2)
    assert all(text.getvalue().count(name) >= 2 for name in names)
    text.truncate(0)
    say(console, " ".join(names))
    assert " ".join(names) in text.getvalue()


def test_names_give_the_terminal_no_commands() -> None:
    text = io.StringIO()
    console = Console(file=text, width=60, force_terminal=True, color_system=None)
    name = "a\x1b]0;owned\x07\x9b2Jb\udce9c"
    console.print(Table([name], [[name]], name).rich())
    say(console, name)
    with counting(console, name) as progress:
        progress(1, 2)
    assert text.getvalue().count("a?]0;owned??2Jb?c") >= 4
    assert not set("\x07\x9b\udce9") & set(text.getvalue())
    assert "\x1b]" not in text.getvalue()


def test_uneven_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 columns has 1 cells: \['x'\]"):
        Table(("a", "b"), [("x",)])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([90.0, 92.0, 94.0], "92.00 ± 2.00"),
        ([90.123], "90.12"),
        ([], "–"),
    ],
)
def test_mean_and_std(values: list[float], text: str) -> None:
    assert mean_and_std(values) == text
