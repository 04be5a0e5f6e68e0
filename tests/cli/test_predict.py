"""``equicolor predict`` as a user sees it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from equicolor.cli.app import app
from equicolor.evaluation import predict, prepare_image
from equicolor.models import cecnn, load_model, save_model


def invoke(*arguments: str | Path, stdin: str | None = None) -> Result:
    words = ["predict", *map(str, arguments)]
    return CliRunner().invoke(app, words, input=stdin, prog_name="equicolor")


@pytest.fixture
def place(fruit: Path, settle: Any, smooth_images: Any) -> Path:
    """A folder with images and a network that knows its classes; the current one."""
    network = settle(cecnn(2, width=4, coset_pool="max"), smooth_images(4, 28, 28).float())
    network.class_names = ("apple", "banana")
    save_model(network, fruit / "net.safetensors")
    (fruit / "mine.py").write_text(
        "import torch\n\n"
        "class Net(torch.nn.Module):\n"
        "    image_size = 28\n"
        "    def forward(self, images):\n"
        "        return 9 * images.mean((2, 3))\n\n"
        "class Dict(Net):\n"
        "    def forward(self, images):\n"
        "        return {'logits': images}\n"
    )
    return fruit


def test_a_table_of_files_and_folders(place: Path) -> None:
    result = invoke("net.safetensors", "fruit/test/apple/0.png", "fruit/test/banana")
    assert result.exit_code == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if ".png" in line]
    assert len(lines) == 7
    assert all("apple" in line and "banana" in line for line in lines)
    assert "fruit/test/banana/5.png" in lines[-1]
    assert "hue" not in result.stdout


def test_json_says_what_the_python_function_says(place: Path) -> None:
    paths = ["fruit/test/apple/0.png", "fruit/train/banana/3.png"]
    result = invoke(
        "net.safetensors", "-", "--hue", "60, -90.5,0", "--json", "--top", "1",
        stdin="\n".join(paths),
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [row["image"] for row in rows] == [path for path in paths for _ in range(3)]
    assert [row["hue"] for row in rows[:3]] == [0, 60, -90.5]
    network = load_model("net.safetensors")
    expected = predict(network, paths, turns=(0, 60 / 360, -90.5 / 360), top=1)
    assert rows == [each.row() for each in expected]
    # The RGB lifting of three rotations is exact at multiples of 120° alone.
    assert rows[0]["answers"] != rows[1]["answers"] != rows[2]["answers"]
    as_tensor = predict(network, prepare_image(paths[0], network)[None], top=1)[0]
    assert rows[0]["answers"] == as_tensor.row()["answers"]
    assert rows[0]["answers"][0]["class"] in ("apple", "banana")


def test_a_users_own_network_has_numbers_for_names(place: Path) -> None:
    result = invoke("mine.py:Net", "fruit/test/apple/0.png", "--json")
    (row,) = json.loads(result.stdout)
    assert sorted(answer["class"] for answer in row["answers"]) == ["0", "1", "2"]
    assert sum(answer["probability"] for answer in row["answers"]) == pytest.approx(1, abs=1e-5)
    grey = invoke("mine.py:Net", "fruit/test/apple/0.png", "--json", "--gray")
    probabilities = [answer["probability"] for answer in json.loads(grey.stdout)[0]["answers"]]
    assert probabilities == pytest.approx([1 / 3] * 3, abs=1e-5)


def test_corrupt_images_are_counted(place: Path) -> None:
    (place / "fruit/test/apple/9.png").write_text("no image")
    result = invoke("net.safetensors", "fruit/test/apple", "--skip-corrupt", "--json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)) == 6
    assert result.stderr == "left out 1 corrupt image of 7\n"


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        ("net.safetensors absent.png", 1, "no image at absent.png; expected a file, a folder of"),
        ("net.safetensors mine.py", 2, "mine.py cannot be decoded: it is in no format that Pillow"),
        ("net.safetensors empty", 2, "empty holds no images (.apng, .avif"),
        ("net.safetensors -", 2, "no path came on stdin: expected images or folders, one per line"),
        ("absent fruit", 1, "no network at absent; expected a checkpoint"),
        ("resnet18 fruit", 1, "that is the name of an architecture, which has no weights"),
        ("mine.py:Nut fruit", 2, "mine.py has no function 'Nut'"),
        ("mine.py:Dict fruit", 2, "must give logits [2, classes] for images [2, 3, 28, 28], got a"),
        ("net.safetensors fruit --no-pretrained", 2, "leave --no-pretrained out"),
        ("net.safetensors fruit --hue red", 2, "--hue takes degrees separated by commas, such as"),
        ("net.safetensors fruit --hue 60,480", 2, "from -360 to 360; got '60,480'"),
        ("net.safetensors fruit --hue inf", 2, "--hue takes degrees separated by commas, such as"),
        ("net.safetensors fruit --top 0", 2, "top must be at least 1, got 0"),
        ("net.safetensors fruit --size 90", 2, "cecnn cannot take images of 90 × 90 pixels"),
        ("net.safetensors fruit --resize 20", 2, "resize must be at least size=28, got 20"),
        ("net.safetensors fruit --device tpu", 2, "device must be one of"),
    ],
)
def test_errors_are_one_line(place: Path, arguments: str, status: int, line: str) -> None:
    (place / "empty").mkdir()
    result = invoke(*arguments.split())
    assert result.exit_code == status
    assert result.stdout == ""
    (error,) = result.stderr.splitlines()
    assert error.startswith("equicolor: ")
    assert line in error


def test_images_are_needed(place: Path) -> None:
    result = invoke("net.safetensors")
    assert result.exit_code == 2
    assert "Missing argument 'IMAGE" in result.stderr
