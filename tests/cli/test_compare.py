"""``equicolor compare`` as a user sees it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from equicolor.cli.app import app
from equicolor.evaluation.diagnose import diagnose
from equicolor.models import cecnn, cost, load_model, save_model


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)], prog_name="equicolor")


@pytest.fixture
def place(fruit: Path, settle: Any, smooth_images: Any) -> Path:
    """A folder with images of two classes, a network of ours and one by a function."""
    network = settle(cecnn(2, width=4, coset_pool="max"), smooth_images(4, 28, 28).float())
    network.class_names = ("banana", "apple")  # another order than that of the folders
    save_model(network, fruit / "net.safetensors")
    (fruit / "mine.py").write_text(
        "import torch\n\n"
        "class Net(torch.nn.Module):\n"
        "    image_size = 30\n"
        "    def forward(self, images):\n"
        "        return images.mean((2, 3))[:, :2]\n\n"
        "class Three(Net):\n"
        "    def forward(self, images):\n"
        "        return images.mean((2, 3))\n"
    )
    return fruit


def test_the_table_fits_a_terminal(place: Path) -> None:
    options = ("--data", "fruit", "--shifts", "2", "--device", "cpu")
    result = invoke("net.safetensors", "mine.py:Net", *options)
    for words in ("architecture", "parameters", "original", "HSV shift", "lowest", "safetensors"):
        assert words in result.stdout  # in one piece
    page = Path("runs/compare/net.safetensors-mine.py_Net-fruit/comparison.html").read_text()
    assert "answers changed" in page


def test_comparison_from_start_to_files(place: Path) -> None:
    networks = "net.safetensors", "mine.py:Net"
    options = ("--data", "fruit", "--shifts", "4", "--device", "cpu")
    result = invoke(*networks, *options, "--actions", "hsv,gamma")
    assert result.exit_code == 0, result.stderr
    folder = Path("runs/compare/net.safetensors-mine.py_Net-fruit")
    files = [folder / name for name in ("comparison.html", "curves.png", "comparison.json")]
    assert f"wrote {', '.join(map(str, files))}\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Highest mean over HSV shift: ")
    rows = json.loads(files[2].read_text())["rows"]
    assert [row["network"] for row in rows] == [*networks]
    for row, size in zip(rows, (28, 30), strict=True):
        alone = diagnose(row["network"], "fruit", actions=("hsv", "gamma"), shifts=4).rows()[0]
        for key in ("original", "hue_mean", "hue_curve", "gamma_curve", "ece", "images", "size"):
            assert row[key] == alone[key], key
        assert row["size"] == size
    assert (rows[0]["parameters"], rows[0]["macs"]) == cost(load_model(networks[0]), 28)
    assert (rows[1]["parameters"], rows[1]["macs"]) == (0, 0)
    for text in (f"{rows[0]['parameters']:,}", "cecnn", "mine.py:Net", "gamma"):
        assert text in result.stdout
    page = files[0].read_text()
    assert all(name in page for name in (*networks, "banana", "data:image/png;base64"))
    assert not re.search(r'(src|href)="(?!data:)|https?://|<script', page)
    assert Image.open(files[1]).width > 1000  # a panel for each action
    # a second time needs permission, and it is asked for before any work
    result = invoke(*networks, *options)
    assert result.exit_code == 1
    assert "comparison.html exists; --force replaces it" in result.stderr
    assert invoke(*networks, *options, "--force").exit_code == 0


def loose_fruit(place: Path, seeds: dict[str, int]) -> None:
    """A folder without a split, and networks that were trained on splits of it by a seed."""
    (place / "fruit" / "train").rename(place / "loose")
    for name, seed in seeds.items():
        network = cecnn(2, width=4, coset_pool="max")
        network.class_names = ("apple", "banana")
        network.origin = network.origin._replace(dataset="loose", split_seed=seed)
        save_model(network, place / name)


def test_all_networks_see_the_split_that_one_was_trained_on(place: Path) -> None:
    loose_fruit(place, {"a.safetensors": 5})
    options = ("--data", "loose", "--shifts", "3", "-o", "out")
    result = invoke("mine.py:Net", "a.safetensors", *options)
    assert result.exit_code == 0, result.stderr
    rows = json.loads(Path("out/comparison.json").read_text())["rows"]
    assert [row["split_seed"] for row in rows] == [5, 5]


def test_networks_of_different_splits_are_refused(place: Path) -> None:
    loose_fruit(place, {"a.safetensors": 0, "b.safetensors": 1})
    options = ("--data", "loose", "--shifts", "3", "-o", "out")
    result = invoke("a.safetensors", "b.safetensors", *options)
    assert result.exit_code == 2
    line = result.stderr.splitlines()[-1]
    assert line.startswith("equicolor: the networks were trained on different splits of loose")
    assert "seeds: 0 of a.safetensors, 1 of b.safetensors" in line
    assert not Path("out").exists()
    assert invoke("a.safetensors", "b.safetensors", *options, "--split-seed", "1").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        ("net.safetensors", 2, "compare needs two networks or more, got 1: ['net.safetensors']"),
        ("mine.py:Net mine.py:Net", 2, "networks must differ, got twice: mine.py:Net"),
        ("net.safetensors absent", 1, "no network at absent; expected a checkpoint"),
        ("net.safetensors mine.py:Three", 2, "mine.py:Three: the network has 3 outputs, but fruit"),
        ("net.safetensors pear.safetensors", 2, "pear.safetensors: the network was trained on oth"),
        ("net.safetensors mine.py:Net --no-pretrained", 2, "leave --no-pretrained out"),
        ("net.safetensors mine.py:Net --actions ,", 2, "compare needs an action, such as hsv"),
        ("net.safetensors mine.py:Net --actions hue", 2, "action must be one of 'hsv', 'rgb'"),
        ("net.safetensors mine.py:Net --data fruits", 2, "unknown dataset 'fruits'"),
        ("net.safetensors mine.py:Net -o mine.py", 1, "results go to a folder, but mine.py is a f"),
        ("net.safetensors mine.py:Net --batch-size 0", 2, "batch_size must be at least 1, got 0"),
    ],
)
def test_errors_are_one_line_before_any_image_is_decoded(
    place: Path, arguments: str, status: int, line: str
) -> None:
    network = cecnn(2)
    network.class_names = ("apple", "pear")
    save_model(network, place / "pear.safetensors")
    result = invoke("--data", "fruit", *arguments.split())
    assert result.exit_code == status
    (error,) = result.stderr.splitlines()
    assert error.startswith("equicolor: ")
    assert line in error
    assert not (place / "runs").exists()
    assert not (place / "cache").exists()
