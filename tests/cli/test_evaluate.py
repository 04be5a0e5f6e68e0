"""``equicolor evaluate`` as a user sees it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from equicolor.cli.app import app
from equicolor.models import cecnn, save_model


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments)], prog_name="equicolor")


@pytest.fixture
def place(fruit: Path) -> Path:
    """A folder with images of two classes and a network; the current one."""
    save_model(cecnn(2, coset_pool="max"), fruit / "net.safetensors")
    return fruit


def test_help_names_every_kind_of_network() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for words in ("timm:NAME", "--actions", "--shifts", "--output", "--data"):
        assert words in result.stdout


def test_evaluation_from_start_to_files(place: Path) -> None:
    options = ("--data", "fruit", "--shifts", "4", "--size", "28", "--device", "cpu")
    result = invoke("net.safetensors", *options)
    assert result.exit_code == 0, result.stderr
    assert "HSV shift" in result.stdout
    assert "banana" in result.stdout
    assert "% correct" in result.stdout.splitlines()[-1]
    folder = place / "runs" / "evaluate" / "net.safetensors-fruit"
    assert f"wrote {folder.relative_to(place)}/evaluation.json" in result.stdout
    (row,) = json.loads((folder / "evaluation.json").read_text())["rows"]
    assert (row["model"], row["dataset"], row["images"]) == ("cecnn", "fruit", 12)
    assert len(row["hue_curve"]) == len(row["rgb_curve"]) == len(row["rgb_clip_curve"]) == 4
    assert (folder / "hue-curve.png").is_file()
    # a second time needs permission, and it is asked for before any work
    result = invoke("net.safetensors", *options)
    assert result.exit_code == 1
    assert "evaluation.json exists; --force replaces it" in result.stderr
    assert invoke("net.safetensors", *options, "--force", "--actions", "hsv").exit_code == 0


@pytest.mark.slow
def test_light_beside_hue_shifts(place: Path) -> None:
    actions = "hsv,cast,gamma,brightness,saturation"
    options = (
        "--data",
        "fruit",
        "--shifts",
        "3",
        "--size",
        "28",
        "--actions",
        actions,
        "-o",
        "out",
    )
    result = invoke("net.safetensors", *options)
    assert result.exit_code == 0, result.stderr
    for words in ("HSV shift", "light cast", "gamma", "brightness", "saturation"):
        assert words in result.stdout
    (row,) = json.loads((place / "out" / "evaluation.json").read_text())["rows"]
    assert (row["gamma_values"], row["saturation_values"]) == ([0.5, 1, 2], [0, 1, 2])
    for prefix in ("hue", "cast", "gamma", "brightness", "saturation"):
        assert len(row[f"{prefix}_curve"]) == 3
        assert len(row[f"{prefix}_per_class"]) == 2
    assert row["gamma_curve"][1] == row["brightness_curve"][1] == row["original"]
    assert "rgb_curve" not in row
    assert (place / "out" / "hue-curve.png").is_file()


@pytest.mark.slow
def test_a_users_own_network(place: Path) -> None:
    (place / "mine.py").write_text(
        "import torch\n\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, images):\n"
        "        return images.mean((2, 3))[:, :2]\n"
    )
    options = ("--data", "fruit", "--size", "28", "--actions", "rgb-clip", "--output", "out")
    result = invoke("mine.py:Net", *options)
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads((place / "out" / "evaluation.json").read_text())["rows"]
    assert row["model"] == "mine.py:Net"
    assert "hue_mean" not in row
    assert len(row["rgb_clip_curve"]) == 37


def test_a_bad_output_is_refused_before_any_work(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "note").touch()
    monkeypatch.setattr("equicolor.evaluation.diagnose.diagnose", None)
    result = invoke("net.safetensors", "--data", "fruit", "-o", "note")
    assert result.exit_code == 1
    assert result.stderr == "equicolor: results go to a folder, but note is a file\n"


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["net.safetensors"], 2, "net.safetensors is not the folder of a training run: say which"),
        (["net.safetensors", "--data", "fruits"], 2, "unknown dataset 'fruits'"),
        (["net.safetensors", "--data", "flowers102"], 1, "Flowers-102 is not in "),
        (
            ["absent.safetensors", "--data", "fruit"],
            1,
            "no network at absent.safetensors; expected",
        ),
        (["mine.py:Net", "--data", "fruit"], 1, "no file mine.py; expected a checkpoint"),
        (["net.safetensors", "--data", "fruit", "--actions", "hue"], 2, "action must be one of"),
        (["net.safetensors", "--data", "fruit", "--shifts", "0"], 2, "shifts must be at least 1"),
        (["net.safetensors", "--data", "fruit", "--device", "tpu"], 2, "device must be one of"),
        (["wide.safetensors", "--data", "fruit"], 2, "the network has 9 outputs, but fruit has 2"),
        (["net.safetensors", "--data", "broken"], 2, "0.png cannot be decoded"),
        (["last.ckpt", "--data", "fruit"], 2, "its network will be model.safetensors when"),
        (["net.safetensors", "--data", "fruit", "-o", "note"], 1, "but note is a file"),
        (["net.safetensors", "--data", "fruit", "-o", "note/out"], 1, "but note is a file"),
        (["mine.py:Dict", "--data", "fruit"], 2, "must give logits [2, classes] for images"),
        (["named.safetensors", "--data", "fruit"], 2, "'pear' and 'banana'. If they are the same"),
    ],
)
def test_errors_are_one_line(place: Path, arguments: list[str], status: int, line: str) -> None:
    save_model(cecnn(9), place / "wide.safetensors")
    named = cecnn(2)
    named.class_names = ("apple", "pear")
    save_model(named, place / "named.safetensors")
    (place / "last.ckpt").touch()
    (place / "note").touch()
    if "mine.py:Dict" in arguments:
        (place / "mine.py").write_text(
            "import torch\n\n"
            "class Dict(torch.nn.Module):\n"
            "    def forward(self, images):\n"
            "        return {'logits': images.mean((2, 3))}\n"
        )
    for name in ("a", "b"):
        for split in ("train", "test"):
            (place / "broken" / split / name).mkdir(parents=True)
            (place / "broken" / split / name / "0.png").write_bytes(b"no image")
    result = invoke(*arguments, *([] if len(arguments) == 1 else ["--size", "28"]))
    assert result.exit_code == status
    assert line in result.stderr.splitlines()[-1]
    assert result.stderr.splitlines()[-1].startswith("equicolor: ")
    assert not (place / "runs").exists()
