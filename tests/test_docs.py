"""Examples in the documentation run, links lead somewhere, and ColorMNIST's numbers are true."""

import math
import re
import statistics
from pathlib import Path

import pytest

from equicolor.experiments.colormnist import EXPERIMENTS
from equicolor.experiments.colormnist_report import summary_table
from equicolor.results import read_results

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_blocks(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page with the line each starts on."""
    text = page.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(1)) + 1, block[1]) for block in blocks]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Heading anchors as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


EXAMPLES = [
    pytest.param(page, line, code, id=f"{page_name(page)}:{line}")
    for page in PAGES
    for line, code in code_blocks(page)
]


@pytest.mark.parametrize(("page", "line", "code"), EXAMPLES)
def test_example_runs(
    page: Path, line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    # Blank lines in front make a traceback point at the line in the page.
    source = "\n" * (line - 1) + code
    exec(compile(source, str(page), "exec"), {"__name__": "__main__"})


def test_readme_has_an_example() -> None:
    assert code_blocks(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_local_links_resolve(page: Path) -> None:
    broken = []
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        missing_anchor = anchor and linked.suffix == ".md" and anchor not in anchors(linked)
        if not linked.exists() or missing_anchor:
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentioned = set(re.findall(r"^make ([a-z]+)|`make ([a-z]+)", page.read_text(), re.MULTILINE))
    assert {first or second for first, second in mentioned} <= targets


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_tables_of_colormnist_are_those_of_the_committed_rows(experiment: str) -> None:
    rows = read_results(ROOT / "results" / f"{experiment}.json")["rows"]
    once = [row for row in rows if "data_seed" not in row]
    # The page has a table of its own for data drawn for every seed, so the names need not say it.
    each = [
        {name: value for name, value in row.items() if name != "data_seed"}
        for row in rows
        if "data_seed" in row
    ]
    page = (ROOT / "docs/colormnist.md").read_text()
    for part in filter(None, (once, each)):
        lines = summary_table(experiment, part).markdown().splitlines()
        missing = [line for line in lines if line not in page and "(paper)" not in line]
        assert not missing


def test_what_the_page_says_of_24_degrees_is_in_the_rows() -> None:
    rows = read_results(ROOT / "results/colormnist-biased-24.json")["rows"]
    found: dict[str, dict[int, dict[str, float]]] = {}
    for row in rows:
        seeds = found.setdefault(row["precision"], {})
        seeds.setdefault(row["seed"], {})[row["model"]] = row["original"]
    page = " ".join((ROOT / "docs/colormnist.md").read_text().split())
    for precision, count, said in (
        ("bf16", 40, "a lead of 0.15 ± 0.06"),
        ("32", 10, "−0.09 ± 0.12 there with everything in float32"),
    ):
        gains = [seed["cecnn"] - seed["z2cnn"] for seed in found[precision].values()]
        assert len(gains) == count
        assert said in page
        error = statistics.stdev(gains) / math.sqrt(count)
        told = f"{statistics.fmean(gains):.2f} ± {error:.2f}".replace("-", "−")
        assert told in said
