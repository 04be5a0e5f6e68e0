"""Examples in the documentation run, links lead somewhere, and tables are those of the rows."""

import itertools
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from equicolor.data.datasets import DATASETS
from equicolor.paper import classification
from equicolor.paper.classification import table1, table3
from equicolor.paper.colormnist import EXPERIMENTS
from equicolor.paper.colormnist_tables import biased_table, gains_table, longtailed_table
from equicolor.paper.registry import EXPERIMENTS as ALL_EXPERIMENTS
from equicolor.reporting.tables import Table, mean_and_std, standard_error
from equicolor.results import Row, read_results

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


@pytest.mark.slow
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


def test_datasets_and_experiments_are_listed() -> None:
    datasets = (ROOT / "docs/real-images.md").read_text()
    titles = [info.title.partition(" (")[0] for info in DATASETS.values()]
    assert [title for title in titles if title not in datasets] == []
    listed = (ROOT / "docs/experiments.md").read_text()
    assert [name for name in ALL_EXPERIMENTS if f"`{name}`" not in listed] == []


def by_draw(name: str) -> tuple[list[Row], list[Row]]:
    """Committed rows with one draw for all seeds, and those with a draw for every seed.

    The page has tables of its own for the latter, so their names need not say it.
    """
    rows = read_results(ROOT / "results" / f"{name}.json")["rows"]
    redrawn = [
        {name: value for name, value in row.items() if name != "data_seed"}
        for row in rows
        if "data_seed" in row
    ]
    return [row for row in rows if "data_seed" not in row], redrawn


def colormnist_page() -> str:
    return (ROOT / "docs/colormnist.md").read_text()


def tables(experiment: str, rows: list[Row]) -> list[Table]:
    """Accuracies, and gains over the plain network where seeds tell any."""
    if experiment == "colormnist-longtailed":
        return [longtailed_table(rows)]
    gained = gains_table(rows)
    return [biased_table(rows), *([gained] if gained.rows else [])]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_tables_of_colormnist_are_those_of_the_committed_rows(experiment: str) -> None:
    heading = {"colormnist-longtailed": "Long-tailed", "colormnist-biased": "Biased"}[experiment]
    _, part = colormnist_page().split(f"\n### {heading}\n")
    found = re.findall(r"(?:^\|.*\n)+", part.partition("\n### ")[0], re.MULTILINE)
    drawn = [tables(experiment, rows) for rows in by_draw(experiment) if rows]
    # Accuracies of either kind of draw first, then what is gained.
    expected = [table for kinds in itertools.zip_longest(*drawn) for table in kinds]
    assert [block.strip() for block in found] == [table.markdown() for table in expected]


def difference(rows: list[Row], model: str, other: str, sigma: float) -> str:
    """Mean and standard error of what a network is above another, seed by seed."""
    cells: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["sigma"] == sigma and row["augmentation"] == "none":
            cells.setdefault(row["model"], {})[row["seed"]] = row["original"]
    gaps = [value - cells[other][seed] for seed, value in cells[model].items()]
    return f"{statistics.fmean(gaps):.2f} ± {standard_error(gaps):.2f}"


def test_what_the_page_says_of_the_biased_set_is_in_the_rows() -> None:
    page = " ".join(colormnist_page().split())
    once, redrawn = by_draw("colormnist-biased")
    exact, forty = by_draw("colormnist-biased-24")
    assert {row["precision"] for row in exact} == {"float32"}
    assert len({row["seed"] for row in forty}) == 40
    new = [row for row in forty if row["seed"] >= 10]
    behind, others = (difference(rows, "cecnn", "cecnn-pooled", 60.0) for rows in (once, redrawn))
    ahead, too = (difference(rows, "cecnn-pooled", "cecnn", 1e6) for rows in (once, redrawn))
    means = [
        statistics.fmean(row["original"] for row in forty if row["model"] == model)
        for model in ("cecnn", "z2cnn")
    ]
    for said in (
        f"where CECNN is {difference(exact, 'z2cnn', 'cecnn', 24.0)} points behind",
        f": {means[0]:.2f} against {means[1]:.2f}, a lead of "
        f"{difference(forty, 'cecnn', 'z2cnn', 24.0)}.",
        f"lead by {difference(new, 'cecnn', 'z2cnn', 24.0)}.",
        f"behind CECNN at 60°, by {behind} points on the one draw and {others} on others, and "
        f"ahead at 10⁶, by {ahead} and {too}.",
    ):
        assert said in page


@pytest.mark.parametrize(
    ("title", "dataset", "file"),
    [
        ("Flowers-102", "flowers102", "classification"),
        ("Caltech-101", "caltech101", "classification-caltech101"),
    ],
)
def test_the_tables_of_classification_are_those_of_the_rows(
    title: str, dataset: str, file: str
) -> None:
    rows = read_results(ROOT / f"results/{file}.json")["rows"]
    cells = [*table1(rows, dataset).rows]
    cells += [(name, *rest) for name, _, *rest in table3(rows, dataset).rows]
    if dataset != "flowers102":  # pages list the lines that were run
        cells = [line for line in cells if line[-1] != "–"]
    page = (ROOT / "docs/experiments/classification.md").read_text()
    section = page.partition(f"\n## {title}\n")[2]
    part = section.partition("|---|---:|---:|---:|---:|---:|\n")[2]
    lines = part.partition("\n\n")[0].splitlines()
    expected = {tuple(line) for line in cells}
    assert {tuple(line.strip("| ").split(" | ")) for line in lines} == expected
    assert len(lines) == len(expected)
    gained = classification.gains_table(rows, dataset)
    assert (gained.markdown() in section.partition("\n## ")[0]) == bool(gained.rows)


def test_the_page_on_fruits_is_that_of_the_rows() -> None:
    rows = read_results(ROOT / "results/fruits.json")["rows"]
    text = (ROOT / "docs/experiments/fruits.md").read_text()

    def values(network: str, dataset: str, key: str) -> list[float]:
        found = [row for row in rows if (row["network"], row["dataset"]) == (network, dataset)]
        return [row[key] for row in found]

    columns = list(itertools.product(("fruits", "fruit-colours"), ("original", "hue_mean")))
    networks = {row["network"] for row in rows}
    lines = re.findall(r"^\| ([\w, =]+) \| (.+) \|$", text, re.MULTILINE)[1:]
    assert {name for name, _ in lines} == networks
    for name, cells in lines:
        expected = (mean_and_std(values(name, *column), 1) for column in columns)
        assert cells == " | ".join(expected)
    plain, twelve, jitter = (
        statistics.fmean(values(name, "fruit-colours", "original"))
        for name in ("plain", "HSV lifting, n = 12, pooled", "plain, jitter of half a turn")
    )
    page = " ".join(text.split())
    assert f"{twelve:.1f} instead of {plain:.1f} %" in page
    assert f"cost {plain - twelve:.0f} points on the colours" in page
    assert f"hue jitter is, {jitter:.1f} %" in page
    lost = [
        statistics.fmean(values("plain", dataset, "original"))
        - statistics.fmean(values("plain behind a selector", dataset, "original"))
        for dataset in ("fruits", "fruit-colours")
    ]
    assert "loses {:.0f} and {:.0f} points".format(*lost) in page
    curves = values("HSV lifting, n = 6, pooled", "fruit-colours", "hue_curve")
    thirty = [curve[21] for curve in curves]  # the 37 shifts go by tens from -180 degrees
    assert f"rightly {min(thirty):.0f} to {max(thirty):.0f} % of the time" in page
    other = " ".join((ROOT / "docs/which-network.md").read_text().split())
    assert f"twelve lose {plain - twelve:.0f} points" in other


def test_the_page_on_stains_is_that_of_the_rows() -> None:
    rows = read_results(ROOT / "results/breakhis.json")["rows"]
    text = (ROOT / "docs/experiments/breakhis.md").read_text()
    names = list(dict.fromkeys(row["network"] for row in rows))

    def values(network: str, key: str) -> list[Any]:
        return [row[key] for row in rows if row["network"] == network]

    def mean(network: str, key: str = "original") -> float:
        return statistics.fmean(values(network, key))

    def lowest(network: str) -> float:
        return min(map(statistics.fmean, zip(*values(network, "hue_curve"), strict=True)))

    lines = re.findall(r"^\| ([\w, =]+) \| (.+) \|$", text, re.MULTILINE)[1:]
    assert [name for name, _ in lines] == names
    keys = "original", "hue_mean", "saturation_mean", "cast_mean"
    for name, cells in lines:
        expected = [mean_and_std(values(name, key), 1) for key in keys]
        assert cells == " | ".join([*expected, str(len(values(name, "seed")))])
    plain, little, much, gray, six = names
    page, shifted = " ".join(text.split()), values(plain, "hue_mean")
    for said in (
        f"grey images a network is right on {mean(gray):.1f} %",
        f"falls from {mean(plain):.1f} % to {lowest(plain):.1f} % at the worst hue shift; the "
        f"seeds differ by {max(shifted) - min(shifted):.0f} points",
        f"{mean(little):.1f} % with a tenth of a turn",
        f"the worst shift leaves {lowest(little):.1f} %.",
        f"{mean(six):.1f} and {mean(much):.1f} % on the images as they are, "
        f"{mean(six, 'hue_mean'):.1f} and {mean(much, 'hue_mean'):.1f} % over all shifts "
        f"({lowest(six):.1f} and {lowest(much):.1f} % at the worst)",
        f"the test set has {rows[0]['images']} images",
    ):
        assert said in page
    assert mean(little) == max(map(mean, names))
    assert [round(mean(plain) - mean(name)) for name in (six, much)] == [3, 2]
    assert all(abs(mean(name, "cast_mean") - 62.9) < 6 for name in names)


def rows_of_options(file: str, dataset: str, options: str) -> list[Row]:
    """The rows of what ``equicolor train DATASET OPTIONS`` trains, in 200 epochs."""
    given = {match[1].replace("-", "_"): match[2] or "" for match in OPTION.finditer(options)}
    model = given.pop("model", "resnet18")
    expected: dict[str, object] = {
        "dataset": dataset,
        "model": model + "-gray" * (given.pop("gray", None) is not None),
        "size": int(given.pop("size", 224)),
        "augmentation": "augmix" * (given.pop("augmix", None) is not None)
        or (f"jitter {given.pop('jitter')}" if "jitter" in given else "none"),
        "epochs": 200,
    }
    if model.startswith("ce_"):
        expected["rotations"] = int(given.pop("rotations", 3))
        expected |= {"lifting": given.pop("lifting", "rgb"), "ce_stages": 4}
        expected["coset_pool"] = given.pop("coset_pool", "max")
    assert not given, given
    rows = read_results(ROOT / f"results/{file}.json")["rows"]
    return [row for row in rows if all(row[key] == value for key, value in expected.items())]


OPTION = re.compile(r"--([a-z-]+)(?: ([^-\s]\S*))?")


@pytest.mark.parametrize(
    ("heading", "file", "dataset"),
    [
        ("Photographs", "classification", "flowers102"),
        ("Where colour tells little", "classification-caltech101", "caltech101"),
        ("Small shifts", "ablation-jitter", "flowers102"),
    ],
)
def test_the_numbers_of_which_network_are_those_of_the_rows(
    heading: str, file: str, dataset: str
) -> None:
    page = (ROOT / "docs/which-network.md").read_text()
    part = page.partition(f"\n## {heading}\n")[2].partition("---:|\n")[2].partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines()]
    assert len(lines) >= 5
    for options, *numbers in lines:
        rows = rows_of_options(file, dataset, options.strip("`").replace("none", ""))
        near = [statistics.fmean(row["hue_curve"][16:21]) for row in rows]  # -20° to 20°
        means = [
            statistics.fmean(values)
            for values in (
                [row["original"] for row in rows], near, [row["hue_mean"] for row in rows],
            )
        ]  # fmt: skip
        seconds = statistics.fmean(row["train_seconds"] for row in rows)
        assert numbers == [
            *(f"{mean:.1f}" for mean in means), f"{seconds:.0f}", str(len(rows)),
        ], options  # fmt: skip


def test_what_which_network_says_besides_is_in_the_rows() -> None:
    page = " ".join((ROOT / "docs/which-network.md").read_text().split())
    rows = read_results(ROOT / "results/colormnist-longtailed.json")["rows"]
    cells = {line[0]: line[1] for line in longtailed_table(rows).rows}
    for name in ("Z2CNN", "CECNN", "CECNN, coset pooling", "Z2CNN + jitter", "CECNN + jitter"):
        assert f"| {name} | {cells[name]} |" in page
    (flat,) = rows_of_options(
        "ablation-cosetpool", "flowers102", "--model ce_resnet18 --size 64 --coset-pool none"
    )
    assert f"{flat['original']:.1f} % on the originals and {flat['hue_mean']:.1f} % over" in page
    stages = {row["stage"]: row for row in read_results(ROOT / "results/conversion.json")["rows"]}
    before, tuned = (
        stages["before conversion"],
        stages["converted and fine-tuned for 20 epochs, max"],
    )
    assert (
        f"reaches {tuned['hue_mean']:.1f} % over all shifts after 20 epochs, from "
        f"{before['hue_mean']:.1f} %, and {tuned['original']:.1f} % on the originals, from "
        f"{before['original']:.1f} %"
    ) in page
    costs = read_results(ROOT / "results/configurations.json")["rows"]
    billions = {
        row["rotations"]: row["macs_cyclic"] / 1e9
        for row in costs
        if row["model"] == "resnet18" and row["ce_stages"] in (0, 4)
    }
    assert (
        f"{billions[1]:.2f} plain, {billions[3]:.2f} with three hues, {billions[12]:.2f} with "
        "twelve."
    ) in page


def test_the_step_of_a_spatial_group_is_that_of_the_rows() -> None:
    rows = read_results(ROOT / "results/bench-space-cuda.json")["rows"]
    plain, turned = (row["ms"] for row in rows if row["variant"] != "plain")
    page = " ".join((ROOT / "docs/space.md").read_text().split())
    assert f"n = 3, on a GPU | 1 | {turned / plain:.1f} times |" in page
    assert f"{plain:.0f} and {turned:.0f} ms" in page


def test_the_cost_of_selectors_is_that_of_the_rows() -> None:
    found = read_results(ROOT / "results/bench-selector-cuda.json")["rows"]
    rows = [row for row in found if row["mode"] == "forward"]
    plain = {row["form"]: row["ms"] for row in rows if row["name"] == "plain"}
    page = " ".join((ROOT / "docs/canonicalize.md").read_text().split())
    for row in rows:
        if "selector" in row:
            ratios = (row["ms"] / plain[form] for form in ("captured", "compiled-graphs"))
            cells = f"{row['ms']:.1f}", *(f"{ratio:.2f}" for ratio in ratios)
            assert f"| `{row['selector']}` | {' | '.join(cells)} |" in page
    assert f"takes {plain['captured']:.1f} ms" in page
    assert f"{plain['compiled-graphs']:.1f} ms" in page


def test_the_changes_at_other_sizes_are_those_of_the_committed_rows() -> None:
    rows = read_results(ROOT / "results" / "turns.json")["rows"]
    page = (ROOT / "docs" / "space.md").read_text()
    for exact, usual in zip(rows[::2], rows[1::2], strict=True):
        assert exact["change"] < 1e-12
        cells = exact["input_size"], f"{100 * usual['change']:.0f} % at {usual['input_size']}"
        assert f"| {cells[0]} | {cells[1]} |" in page


def mean_of(rows: list[Row], key: str, digits: int = 1) -> str:
    return f"{statistics.fmean(row[key] for row in rows):.{digits}f}"


def worst_shift(rows: list[Row]) -> str:
    curves = zip(*(row["hue_curve"] for row in rows), strict=True)
    return f"{min(map(statistics.fmean, curves)):.1f}"


def table_below(page: str, words: str) -> list[list[str]]:
    """The cells of the first table of a page after some words."""
    lines = page.partition(words)[2].partition("\n|--")[2].splitlines()[1:]
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [line.strip("| ").split(" | ") for line in table]


def test_the_accuracy_behind_selectors_is_that_of_the_rows() -> None:
    page = (ROOT / "docs/canonicalize.md").read_text()
    found = read_results(ROOT / "results/canonicalization.json")["rows"]
    plain = {
        stage: [row for row in found if (row["model"], row["stage"]) == ("resnet18", stage)]
        for stage in {row["stage"]: None for row in found}
    }
    lines = table_below(page, "## What it gains")
    assert len(lines) == 10
    for stage, _, *numbers in lines:
        rows = plain["network alone" if stage == "nothing" else stage]
        assert numbers == [
            mean_of(rows, "original"),
            mean_of(rows, "hue_mean"),
            worst_shift(rows),
            mean_of(rows, "hue_kept") if "hue_kept" in rows[0] else "–",
            mean_of(rows, "fit_seconds", 0) if "fit_seconds" in rows[0] else "–",
            str(len(rows)),
        ], stage
    words = " ".join(page.split())
    six = {row["stage"]: row for row in found if row["rotations"] == 6}
    alone, behind = six["network alone"], six["default selector"]
    assert (
        f"{alone['original']:.1f} % on the originals, {alone['hue_mean']:.1f} % over all shifts "
        "(seed 0). A default selector with twelve hues in front makes that "
        f"{behind['original']:.1f} and {behind['hue_mean']:.1f} %."
    ) in words
    casts = [plain[stage] for stage in ("network alone", "grey world", "shades of grey")]
    plain_, gray, shades = (
        (mean_of(rows, "cast_mean"), mean_of(rows, "original")) for rows in casts
    )
    assert (
        f"has {plain_[0]} % ({plain_[1]} % without), behind grey world {gray[0]} % ({gray[1]} % "
        f"without), and behind shades of grey {shades[0]} % ({shades[1]} %, seed 0)."
    ) in words
    (twelve,) = (row for row in found if (row["rotations"], row["stage"]) == (12, "network alone"))
    assert (
        f"six rotations have {alone['cast_mean']:.1f} % ({alone['original']:.1f} % without) and "
        f"twelve {twelve['cast_mean']:.1f} % ({twelve['original']:.1f} % without, seed 0)."
    ) in words
    accurate = plain["accurate selector"]
    assert (
        f"has {mean_of(accurate, 'original')} % on the originals and "
        f"{mean_of(accurate, 'hue_mean')} % over all shifts"
    ) in " ".join((ROOT / "docs/which-network.md").read_text().split())
    alone = plain["network alone"]
    assert (
        f"from {mean_of(alone, 'hue_mean')} % over all hue shifts to "
        f"{mean_of(accurate, 'hue_mean')} %; on the originals it has "
        f"{mean_of(alone, 'original')} % alone and {mean_of(accurate, 'original')} % behind"
    ) in " ".join((ROOT / "README.md").read_text().split())


def test_the_imagenet_network_behind_selectors_is_that_of_the_rows() -> None:
    rows = read_results(ROOT / "results/canonicalize-efficientnet-lite0.json")["rows"]
    lines = table_below((ROOT / "docs/canonicalize.md").read_text(), "**An ImageNet network.**")
    expected = [
        [row["stage"], mean_of([row], "original"), mean_of([row], "hue_mean"), worst_shift([row])]
        for row in rows
    ]
    assert lines == [["nothing", *expected[0][1:]], *expected[1:]]


def test_the_gains_of_space_are_those_of_the_rows() -> None:
    found = read_results(ROOT / "results/space.json")["rows"]
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in found:
        groups.setdefault((row["rotations"], row.get("spatial", "p1")), []).append(row)
    keys = "original", "hues_mean", "turns_mean", "both_mean"
    expected = [
        [
            f"{rows[0]['parameters'] / 1e6:.2f} M",
            *(mean_of(rows, key) for key in keys),
            mean_of(rows, "train_seconds", 0),
        ]
        for rows in groups.values()
    ]
    lines = table_below((ROOT / "docs/space.md").read_text(), "## What it gains")
    assert [line[1:] for line in lines] == expected
    assert all(len(rows) == 2 for rows in groups.values())
