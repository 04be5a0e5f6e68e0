import base64
import html.parser
import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from equicolor.reporting.figures import png
from equicolor.reporting.html import Section, write_report
from equicolor.reporting.tables import Table


class Checker(html.parser.HTMLParser):
    """Unclosed tags, and references to anything outside the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.pictures: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag in ("script", "link", "iframe", "object"):
            self.outside.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and not (value or "").startswith("data:"):
                self.outside.append(f"{name}={value}")
        if tag == "img":
            self.pictures.append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return checker


@pytest.fixture
def figure() -> Figure:
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([0, 1], [1, 0])
    return figure


def test_report_is_one_complete_page(figure: Figure, tmp_path: Path) -> None:
    path = write_report(
        tmp_path / "new" / "report.html",
        "Digits & hues",
        [
            Section("First", "One < two.\n\nA second\n  paragraph."),
            Section("Second", table=Table(("a", "b"), [("x", "1")], "Counts")),
            Section("Third", figure=figure, caption='A "curve"'),
        ],
        lead="Read this first.",
        numbers={"accuracy": "75.8 %"},
        provenance={"command": "equicolor demo", "versions": {"torch": "2", "numpy": "1"}},
    )
    page = path.read_text()
    checker = check(page)
    assert checker.outside == []
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    assert "<title>Digits &amp; hues</title>" in page
    assert "<p>One &lt; two.</p>\n<p>A second paragraph.</p>" in page
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["First", "Second", "Third", "How this was made"]
    assert "<dd>torch 2, numpy 1</dd>" in page
    assert "<strong>75.8 %</strong>" in page
    assert [path.name for path in path.parent.iterdir()] == ["report.html"]
    (picture,) = checker.pictures
    assert picture["alt"] == 'A "curve"'
    data = base64.b64decode((picture["src"] or "").partition("base64,")[2])
    assert Image.open(io.BytesIO(data)).size == (330, 220)


def test_empty_parts_are_left_out(tmp_path: Path) -> None:
    page = write_report(tmp_path / "page", "Empty", [Section("Nothing")]).read_text()
    check(page)
    for tag in ("<table", "<figure", "<dl", '<div class="tile', 'class="lead"'):
        assert tag not in page


@pytest.mark.parametrize(("columns", "kind"), [(6, "wide"), (8, "wide dense")])
def test_tables_of_many_columns_are_set_in_smaller_type(
    columns: int, kind: str, tmp_path: Path
) -> None:
    table = Table([f"σ = {index}" for index in range(columns)], [["99.01 ± 0.07"] * columns])
    page = write_report(tmp_path / "page", "Page", [Section("Table", "", table)]).read_text()
    assert f'<div class="{kind}"><table>' in page


def test_bytes_of_a_png_are_used_unchanged(figure: Figure, tmp_path: Path) -> None:
    picture = png(figure)
    sections = [Section("It", figure=picture)]
    page = write_report(tmp_path / "page", "Picture", sections).read_text()
    assert base64.b64encode(picture).decode() in page
    assert 'alt="It"' in page


def test_report_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for title in ("old", "new"):
        write_report(path, title, [])
    assert "<h1>new</h1>" in path.read_text()


@pytest.mark.slow
def test_pictures_stay_small(figure: Figure) -> None:
    assert len(png(figure)) < 12_000
    noise = Figure(figsize=(4, 3))
    rng = np.random.default_rng(0)
    noise.subplots().imshow(rng.random((300, 400, 3)))
    small, free = png(noise, limit=80_000), png(noise, limit=10**9)
    assert len(small) < len(free)
    # Fewer colours, but the same size and about the same look.
    small_image, free_image = (
        np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=float)
        for data in (small, free)
    )
    assert small_image.shape == free_image.shape
    assert np.abs(small_image - free_image).mean() < 20
