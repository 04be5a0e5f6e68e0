"""The documentation site has all pages and all public names, and its links lead somewhere."""

import ast
import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
# What the site is made of, with the files that pages link to.
SOURCES = ("*.md", "LICENSE", "benchmarks/*", "docs/*", "docs/experiments/*", "examples/*")


def public_modules() -> list[str]:
    """The modules that docs/architecture.md calls public."""
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.partition("\n## Public names\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(equicolor[\w.]*)`", table, re.MULTILINE)


def described_modules() -> list[str]:
    """The modules of the reference, docs/api.md."""
    return re.findall(r"^   (equicolor[\w.]*)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)


def test_the_reference_has_every_public_module() -> None:
    assert len(public_modules()) > 10
    assert [name for name in public_modules() if name not in described_modules()] == []


@pytest.mark.parametrize("module", described_modules())
def test_modules_of_the_reference_say_what_is_public(module: str) -> None:
    names = importlib.import_module(module).__all__
    assert names
    assert len(set(names)) == len(names)


def test_every_page_is_in_the_contents() -> None:
    # Read, not imported: the settings need Sphinx.
    tree = ast.parse((ROOT / "docs/conf.py").read_text())
    (contents,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CONTENTS"
    )
    patterns = [pattern for pages in contents.values() for pattern in pages]
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.ipynb")]
    names = {str(path.relative_to(ROOT).with_suffix("")) for path in files} - {"README"}
    assert [name for name in names if not any(fnmatch(name, each) for each in patterns)] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


class Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") == "stylesheet":
            self.loaded.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    start_script: Callable[..., "subprocess.CompletedProcess[str]"],
) -> Path:
    """The site, built with warnings as errors from a copy that the reference is written to."""
    pytest.importorskip("sphinx", reason="the extra [site] is not installed")
    pytest.importorskip("furo", reason="the extra [site] is not installed")
    pytest.importorskip("myst_parser", reason="the extra [site] is not installed")
    source = tmp_path_factory.mktemp("source")
    for path in (path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()):
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (source / "src").symlink_to(ROOT / "src")
    (source / "build/notebook").mkdir(parents=True)
    (source / "build/notebook/digits-interactive.html").write_text("<title>Turn it</title>")
    printed = {"output_type": "stream", "name": "stdout", "text": "a blue 0 is read as 0\n"}
    figure = {"output_type": "display_data", "data": {"image/png": "AAAA"}, "metadata": {}}
    cell = {"cell_type": "code", "source": "print()", "outputs": [printed, figure]}
    title = {"cell_type": "markdown", "source": "# Executed"}
    (source / "build/notebook/frozen_network.ipynb").write_text(
        json.dumps({"cells": [title, cell]})
    )
    built = tmp_path_factory.mktemp("site")
    doctrees = tmp_path_factory.mktemp("doctrees")
    options = ["-q", "-W", "--keep-going", "-c", "docs", "-d", str(doctrees), ".", str(built)]
    # Looking for garbage takes a fifth of the time, and finds 160 MB.
    done = start_script(
        f"import gc, os, sys; gc.disable(); os.chdir({str(source)!r})\n"
        f"from sphinx.cmd.build import main; sys.exit(main({options}))"
    )
    assert done.returncode == 0, done.stderr
    return built


@pytest.mark.slow
def test_the_site_has_every_public_name(site: Path) -> None:
    pages = {module: Page(site / f"docs/api/{module}.html") for module in described_modules()}
    missing = []
    for module, page in pages.items():
        package = importlib.import_module(module)
        for name in package.__all__:
            full = f"{module}.{name}"
            if isinstance(getattr(package, name), ModuleType):
                assert full in pages
            elif full not in page.anchors:
                missing.append(full)
    assert missing == []


@pytest.mark.slow
def test_notebooks_show_what_they_printed_and_drew(site: Path) -> None:
    page = site / "examples/frozen_network.html"
    assert "a blue 0 is read as 0" in page.read_text()
    assert "data:image/png;base64,AAAA" in Page(page).loaded


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert {site / "index.html", site / "docs/convert.html"} <= set(pages)
    broken, links = [], 0
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            if re.match(r"(https?|mailto|data):", link):
                continue
            links += 1
            name, _, anchor = link.partition("#")
            target = (path.parent / unquote(name.partition("?")[0])).resolve() if name else path
            absent = anchor and target in pages and unquote(anchor) not in pages[target].anchors
            if not target.is_file() or absent:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []
    assert links > 1000


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = {link for path in site.rglob("*.html") for link in Page(path).loaded}
    assert loaded
    assert {link for link in loaded if re.match(r"(https?:)?//", link)} == set()
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", styles)


@pytest.mark.slow
def test_interactive_pages_are_embedded(site: Path) -> None:
    assert "../pages/digits-interactive.html" in Page(site / "docs/examples.html").loaded
    assert (site / "pages/digits-interactive.html").is_file()
