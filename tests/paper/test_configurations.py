import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.table import Table

from equicolor.models import create_model
from equicolor.paper import configurations
from equicolor.paper.configurations import PAPER, measure, paper_macs
from equicolor.paper.experiment import Context, Scope
from equicolor.results import Row


@pytest.fixture
def rows() -> list[Row]:
    """ResNet-44's rows of the table, written down."""
    names = ("rotations", "lifting", "width", "parameters", "macs_dense", "macs_cyclic")
    numbers = [
        (1, None, 32, 2_636_458, 388_694_016, 388_694_016),
        (3, "rgb", 31, 2_514_885, 1_359_000_000, 749_000_000),
        (3, "rgb", 30, 2_504_920, 2_172_000_000, 1_046_000_000),
        (3, "rgb", 27, 2_602_596, 2_549_000_000, 1_154_000_000),
        (12, "hsv", 20, 2_600_000, 22_730_000_000, 2_940_000_000),
    ]
    return [
        {"model": "resnet44", "ce_stages": stages, "input_size": 32}
        | dict(zip(names, line, strict=True))
        | {
            "paper_parameters_m": paper and paper.parameters_m,
            "paper_macs_g": paper and paper.macs_g,
        }
        for stages, line, paper in zip((0, 1, 2, 3, 3), numbers, (*PAPER[5:], None), strict=True)
    ]


def printed(table: Table, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.mark.slow
def test_rows_stand_beside_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    # ResNet-18 likewise, but it takes longer; tests/models covers its numbers.
    monkeypatch.setattr(configurations, "PAPER", PAPER[5:])
    monkeypatch.setattr(configurations, "BEYOND", configurations.BEYOND[1:])
    *rows, twelve = configurations.run()
    assert [row["width"] for row in rows] == [paper.width for paper in PAPER[5:]]
    for row, paper in zip(rows, PAPER[5:], strict=True):
        assert row["ce_stages"] == paper.ce_stages
        assert round(row["parameters"] / 1e6, 2) == paper.parameters_m == row["paper_parameters_m"]
        assert row["paper_macs_g"] == paper.macs_g
    plain = rows[0]["macs_dense"]
    assert rows[0]["macs_cyclic"] == plain
    assert [round(row["macs_dense"] / plain, 1) for row in rows] == [1.0, 3.5, 5.6, 6.6]
    assert [round(row["macs_cyclic"] / plain, 1) for row in rows] == [1.0, 1.9, 2.7, 3.0]
    assert (twelve["rotations"], twelve["lifting"], twelve["ce_stages"]) == (12, "hsv", 3)
    assert twelve["paper_macs_g"] is None
    assert twelve["macs_cyclic"] <= 8 * plain
    keys = {"model", "ce_stages", "rotations", "lifting", "width", "input_size", "parameters"}
    keys |= {"macs_dense", "macs_cyclic", "paper_parameters_m", "paper_macs_g"}
    for row in (*rows, twelve):
        assert row.keys() == keys
        assert all(isinstance(value, int | float | str | None) for value in row.values())


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPER, ids=lambda paper: f"{paper.model} CE-{paper.ce_stages}")
def test_the_rule_of_the_papers_counter_gives_its_column(
    paper: configurations.Configuration,
) -> None:
    with torch.device("meta"):
        rotations = 3 if paper.ce_stages else 1
        network = create_model(paper.model, rotations=rotations, ce_stages=paper.ce_stages)
    assert round(paper_macs(network, network.image_size) / 1e9, 2) == paper.macs_g


def test_table_fits_a_terminal_and_compares_with_the_plain_network(rows: list[Row]) -> None:
    text = printed(configurations.table(rows))
    assert "…" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "resnet44 3 3 27 2.60M 2.60 2.55 6.6 1.15 3.0 1.83" in lines
    assert "resnet44 3 12 hsv 20 2.60M 22.73 58.5 2.94 7.6" in lines


def test_headline() -> None:
    numbers = [(0, 1, 10, 10), (4, 3, 64, 30), (4, 12, 572, 75)]
    names = ("ce_stages", "rotations", "macs_dense", "macs_cyclic")
    rows = [{"model": "resnet18"} | dict(zip(names, line, strict=True)) for line in numbers]
    text = configurations.headline(rows)
    assert "executes 6.4 times the plain network's multiply-accumulates at 3 hues, 3.0" in text
    assert text.endswith("at 12 hues 57.2 and 7.5.")


@pytest.mark.slow
def test_measure_takes_options_and_sizes() -> None:
    options = {"rotations": 4, "lifting": "hsv", "width": 4, "num_classes": 5}
    row = measure("resnet44", **options, input_size=16)
    assert (row["width"], row["lifting"], row["input_size"]) == (4, "hsv", 16)
    larger = measure("resnet44", **options, input_size=32)
    # Four times the pixels; classifier and filters stay.
    assert 3.5 < larger["macs_dense"] / row["macs_dense"] <= 4
    assert measure("z2cnn")["input_size"] == 28
    assert measure("z2cnn")["lifting"] is None


def test_summary_in_words(rows: list[Row]) -> None:
    assert configurations.summary(rows[0]).splitlines() == [
        "parameters: 2,636,458",
        "multiply-accumulates executed for one 32×32 image: 0.389 G",
    ]
    equivariant = configurations.summary(rows[3])
    assert equivariant.endswith("image, rgb lifting: 2.55 G dense, 1.15 G cyclic (2.2 times fewer)")


@pytest.mark.parametrize("console", [None, Console(file=io.StringIO(), force_terminal=True)])
def test_progress_goes_to_the_console_of_the_job_alone(
    console: Console | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd
) -> None:
    monkeypatch.setattr(configurations, "measure", lambda model, **options: {"model": model})
    # As if stderr was a terminal, where a bar is drawn.
    monkeypatch.setenv("FORCE_COLOR", "1")
    (job,) = configurations.EXPERIMENT.plan(Scope(tmp_path))
    assert len(job.run(job, Context(tmp_path, console=console))) == len(PAPER) + 2
    assert capfd.readouterr() == ("", "")
    if console is not None:
        assert "counting" in console.file.getvalue()
