"""``equicolor inspect`` as a user sees it."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from equicolor.cli.app import app
from equicolor.models import cecnn, save_model, z2cnn
from equicolor.reporting import html

SECTIONS = (
    "Hue curve",
    "Colour sensitivity of classes",
    "Colour selectivity",
    "Neuron features: ",
    "Filters of the first layer",
    "Equivariance",
    "All layers",
    "How this was made",
)
QUICK = ("--shifts", "4", "--size", "28", "--device", "cpu", "--top", "4")


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], prog_name="equicolor")


@pytest.fixture
def place(fruit: Path) -> Path:
    """A folder with images of two classes and a network; the current one."""
    network = cecnn(2, width=4, coset_pool="max")
    weight = network.blocks[0][0].weight
    # Filters that see nothing but colour, and nothing that is there without them.
    weight.data -= weight.data.mean(1, keepdim=True)
    for block in network.blocks:
        block[0].bias.data.zero_()
    save_model(network, fruit / "net.safetensors")
    return fruit


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, but not drawn: for tests that do not look at the pictures."""
    monkeypatch.setattr(html, "png", lambda figure: b"")


def interactive_data(path: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', path.read_text())
    assert found is not None
    return dict(json.loads(found[1]))


def images_of(page: str) -> int:
    assert not re.search(r'(src|href)="(?!data:)', page), "the page needs other files"
    return page.count('src="data:image/png;base64,')


@pytest.mark.slow
def test_a_page_of_an_equivariant_network(place: Path) -> None:
    result = invoke("net.safetensors", "--data", "fruit", "-o", "page.html", *QUICK)
    assert result.exit_code == 0, result.stderr
    assert "wrote page.html, page-interactive.html and page.json" in result.stdout
    assert "colour selectivity" in result.stdout.splitlines()[-1]
    page = (place / "page.html").read_text()
    for title in SECTIONS:
        assert f"<h2>{title}" in page
    # Hue curve, classes, selectivity, sheets of four layers, filters, equivariance.
    assert page.count("<h2>Neuron features: ") == 4
    assert images_of(page) == 9
    data = json.loads((place / "page.json").read_text())
    network = data["network"]
    assert (network["model"], network["dataset"], network["images"]) == ("cecnn", "fruit", 12)
    assert len(network["hue_curve"]) == 4
    assert len(data["rows"]) == 7
    first, last = data["rows"][0], data["rows"][-1]
    assert (first["layer"], first["channels"], first["rotations"]) == ("blocks.0.2", 4, 3)
    assert (first["receptive_field"], last["receptive_field"]) == ([3, 3], [28, 28])
    assert all(row["equivariance_error"] < 1e-5 and row["exact"] for row in data["rows"])
    units = sum(row["selectivity"] * row["channels"] * row["rotations"] for row in data["rows"])
    assert network["selectivity"] == pytest.approx(units / network["units"], abs=1e-3)
    measured = [row for row in data["rows"] if "hue_deviation" in row]
    assert measured
    for row in (*measured, network):
        assert 0 <= row["hue_deviation"] <= 180
        assert 0 <= row["hue_deviation_data"] <= 180
    # a second time needs permission, and it is asked for before any work
    result = invoke("net.safetensors", "--data", "fruit", "-o", "page.html", *QUICK)
    assert result.exit_code == 1
    assert "page.html exists; --force replaces it" in result.stderr
    assert "Turn hues by hand in page-interactive.html, beside this page." in page
    shown = interactive_data(place / "page-interactive.html")
    assert [len(shown["examples"]), len(shown["networks"])] == [6, 1]
    (network,) = shown["networks"]
    assert len(network["curve"]) == 4
    sheets = re.findall(r"<h2>Neuron features: (.*?)</h2>", page)
    assert [layer["name"] for layer in network["layers"]] == sheets
    # Nor is an interactive page replaced.
    (place / "page.html").unlink()
    (place / "page.json").unlink()
    result = invoke("net.safetensors", "--data", "fruit", "-o", "page.html", *QUICK)
    assert "page-interactive.html exists; --force replaces it" in result.stderr


OWN = """
from torch import nn

def build():
    convolutions = nn.Conv2d(3, 4, 5, 2, 2), nn.ReLU()
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_another_network_beside_the_first(place: Path) -> None:
    """Of another kind, with other outputs; on the same examples."""
    (place / "mine.py").write_text(OWN)
    sheets = ("--sheets", "blocks.0.2,blocks.1.2", "--examples", "3", "-o", "page.html")
    options = ("--data", "fruit", *sheets, *QUICK)
    result = invoke("net.safetensors", "--compare", "mine.py:build", *options)
    assert result.exit_code == 0, result.stderr
    shown = interactive_data(place / "page-interactive.html")
    assert len(shown["examples"]) == 3
    first, second = shown["networks"]
    assert [layer["name"] for layer in first["layers"]] == ["blocks.0.2", "blocks.1.2"]
    assert [layer["name"] for layer in second["layers"]] == ["network.1"]
    assert (first["judged"], second["judged"], second["curve"]) == (True, False, None)
    names = {answer["name"] for answer in second["examples"][0]["answers"]}
    assert names == {f"output {number}" for number in range(5)}
    # A twin of a network shows the same as the network.
    save_model(z2cnn(2, width=4), place / "net.safetensors")
    result = invoke("net.safetensors", "--compare", "net.safetensors", *options, "--force")
    assert result.exit_code == 0, result.stderr
    first, second = interactive_data(place / "page-interactive.html")["networks"]
    assert first == second


def test_a_missing_second_network_is_refused_before_any_work(place: Path) -> None:
    result = invoke("net.safetensors", "--compare", "no.safetensors", "--data", "fruit", *QUICK)
    assert result.exit_code == 1
    assert "no network at no.safetensors" in result.stderr
    assert not (place / "runs").exists()


def test_a_user_s_network_with_other_classes(place: Path) -> None:
    """What needs no classes is shown for any network."""
    (place / "mine.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    convolutions = nn.Conv2d(3, 4, 5, 2, 2), nn.ReLU(), nn.Conv2d(4, 6, 3, 2, 1)\n"
        "    head = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)\n"
        "    return nn.Sequential(*convolutions, *head)\n"
    )
    # A layer that is drawn does not count unless it is one of the layers.
    options = ("--data", "fruit", "--limit-images", "5", "--sheets", "network.2")
    result = invoke("mine.py:build", *options, *QUICK)
    assert result.exit_code == 0, result.stderr
    path = place / "runs" / "inspect" / "mine.py_build-fruit.html"
    page = path.read_text()
    for title in SECTIONS:
        assert f"<h2>{title}" in page
    assert "outputs are not the classes of these images" in page
    # Layers are called what --layers and --sheets take.
    assert page.count("<h2>Neuron features: ") == page.count("features: network.2</h2>") == 1
    assert "│ network.1 │" in result.stdout
    assert images_of(page) == 4
    data = json.loads(path.with_suffix(".json").read_text())
    assert data["network"]["images"] == 5
    assert "original" not in data["network"]
    assert data["network"]["hue_deviation"] is None
    assert [row["layer"] for row in data["rows"]] == ["network.1", "network.3"]


@pytest.mark.slow
def test_any_name_of_a_folder_can_be_drawn(place: Path) -> None:
    """Neither a formula of matplotlib, nor a command to the terminal, nor UTF-8."""
    names = {"apple": r"US$ \frac{ and C$", "banana": "b\x1b[2J" + os.fsdecode(b"\xe9")}
    for part in ("train", "test"):
        for old, new in names.items():
            try:
                (place / "fruit" / part / old).rename(place / "fruit" / part / new)
            except (OSError, UnicodeError):
                pytest.skip("the file system takes no such names")
    (place / "fruit").rename(place / r"fruit$\frac{$")
    save_model(z2cnn(2, width=4), place / "net.safetensors")
    layer = ("--layers", "blocks.0.2", "--sheets", "blocks.0.2", "-o", "page.html")
    result = invoke("net.safetensors", "--data", r"fruit$\frac{$", *layer, *QUICK)
    assert result.exit_code == 0, result.stderr
    page = (place / "page.html").read_text(encoding="utf-8")
    assert r"US$ \frac{ and C$" in page
    assert "b?[2J?" in page
    labels = [
        each["label"] for each in interactive_data(place / "page-interactive.html")["examples"]
    ]
    assert set(labels) == {r"US$ \frac{ and C$", "b?[2J?"}
    options = ("--data", r"fruit$\frac{$", "--shifts", "4", "--size", "28", "--device", "cpu")
    arguments = ["evaluate", "net.safetensors", *options]
    result = CliRunner().invoke(app, arguments, prog_name="equicolor")
    assert result.exit_code == 0, result.stderr
    assert "b?[2J?" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_classes_go_by_their_names(place: Path) -> None:
    network = z2cnn(2, width=4)
    accuracies = []
    for names in (("apple", "banana"), ("banana", "apple"), ("cat", "dog")):
        network.class_names = names
        save_model(network, place / "named.safetensors")
        layer = ("--layers", "blocks.0.2", "--sheets", "blocks.0.2", "--examples", "1")
        options = ("--data", "fruit", *layer, "-o", "page.html", "--force")
        result = invoke("named.safetensors", *options, *QUICK)
        assert result.exit_code == 0, result.stderr
        data = json.loads((place / "page.json").read_text())
        accuracies.append(data["network"].get("original"))
    assert accuracies[0] + accuracies[1] == pytest.approx(100)  # all labels are the other ones
    assert accuracies[2] is None
    page = (place / "page.html").read_text()
    assert "trained on other classes than those of fruit" in page
    assert "--classes-by-index" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.safetensors", "--data", "fruit"), "no network at nowhere.safetensors"),
        (("net.safetensors",), "say which data"),
        (("net.safetensors", "--data", "fruit", "-o", "page.pdf"), "must be an HTML file"),
        (("net.safetensors", "--data", "fruit", "--layers", "block.0"), "has no layer 'block.0'"),
        (("net.safetensors", "--data", "fruit", "--grey", "mean"), "grey must be one of"),
        (("net.safetensors", "--data", "fruit", "--limit-images", "0"), "must be at least 1"),
        (("net.safetensors", "--data", "fruit", "--examples", "0"), "examples must be at least 1"),
    ],
)
def test_mistakes_are_one_line(place: Path, arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments, *QUICK)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
