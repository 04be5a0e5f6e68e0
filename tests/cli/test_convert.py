"""``equicolor convert`` and ``equicolor train --finetune`` as a user sees them."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from equicolor.cli.app import app
from equicolor.models import load_model, save_model, z2cnn


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], prog_name="equicolor")


@pytest.fixture
def place(fruit: Path) -> Path:
    """A folder with images of two classes and a plain network; the current one."""
    save_model(z2cnn(2, width=4), fruit / "net.safetensors")
    return fruit


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["avg", "confidence"])
def test_from_conversion_to_fine_tuning(place: Path, pool: str) -> None:
    result = invoke(
        "convert", "net.safetensors", "--rotations", "4", "--coset-pool", pool,
        "-o", "converted.safetensors", "--data", "fruit", "--device", "cpu",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    for words in (
        "before", "converted: 4 hues, hsv", "converted, folded", "parameters", "MACs", "ms (",
        "original", "shifted by 30°",
    ):  # fmt: skip
        assert words in result.stdout
    assert "wrote converted.safetensors" in result.stdout
    assert "on average over hue shifts" in result.stdout.splitlines()[-1]
    network = load_model("converted.safetensors")
    assert network.config["source"] == "equicolor:z2cnn"
    assert network.config["rotations"] == 4
    # the curves of before and after are those of `equicolor evaluate`
    result = invoke(
        "evaluate", "converted.safetensors", "--data", "fruit", "--actions", "hsv", "--shifts", "9",
        "--device", "cpu", "--output", "judged",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(Path("judged/evaluation.json").read_text())["rows"]
    facts = row["model"], row["rotations"], row["coset_pool"]
    assert facts == ("converted z2cnn", 4, pool)
    assert len(row["hue_curve"]) == 9
    assert len(set(row["hue_curve"][::2])) == 1  # every second is a quarter turn
    # it trains, and what comes out knows what it is
    result = invoke(
        "train", "fruit", "--finetune", "converted.safetensors", "--epochs", "1", "--device", "cpu",
        "--batch-size", "4", "--data-path", "streaming", "--workers", "0",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    (run,) = Path("runs").glob("fruit-finetune-converted*-seed0-*")
    tuned = load_model(run / "model.safetensors")
    assert tuned.config == network.config
    new, old = tuned.state_dict(), network.state_dict()
    filters = [key for key in new if "pointwise" in key]
    assert any(not torch.equal(new[key], old[key]) for key in filters)
    (row,) = json.loads((run / "result.json").read_text())["rows"]
    assert row["finetuned"] == "converted.safetensors"
    recipe = json.loads((run / "recipe.json").read_text())
    assert (recipe["lr"], recipe["size"], recipe["model"]) == (1e-4, 28, "converted")


@pytest.mark.slow
def test_another_number_of_classes_is_said(place: Path) -> None:
    save_model(z2cnn(9, width=4), place / "nine.safetensors")
    result = invoke(
        "train", "fruit", "--finetune", "nine.safetensors", "--epochs", "1", "--device", "cpu",
        "--batch-size", "4", "--data-path", "streaming", "--workers", "0", "--output", "run",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stderr.split())
    assert "nine.safetensors has another number of classes: its classifier is drawn anew" in said
    assert load_model("run/model.safetensors").config["num_classes"] == 2


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["convert", "net.safetensors", "-o", "net.safetensors"], 1, "exists; --force replaces"),
        (["convert", "gone.safetensors", "-o", "a"], 1, "no network at gone.safetensors"),
        (["convert", "net.safetensors", "-o", "a", "--until", "xyz"], 2, "'xyz'; it has "),
        (["convert", "net.safetensors", "-o", "a", "--match-parameters"], 2, "needs init='random'"),
        (["convert", "net.safetensors", "-o", "a", "--coset-pool", "none"], 2, "or confidence; in"),
        (["convert", "mine.py:build", "-o", "a"], 2, "could not be built again from a checkpoint"),
        (["train", "--finetune", "net.safetensors"], 2, "--finetune needs a dataset"),
        (["train", "fruit", "--finetune", "net.safetensors", "--rotations", "3"], 2, "it takes no"),
        (["train", "fruit", "--finetune", "gone.safetensors"], 1, "no checkpoint at gone"),
    ],
)  # fmt: skip
def test_errors_are_one_line(place: Path, arguments: list[str], status: int, line: str) -> None:
    (place / "mine.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Conv2d(3, 4, 3), "
        "nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))\n"
    )
    result = invoke(*arguments)
    assert result.exit_code == status, result.output
    assert line in result.stderr.splitlines()[-1]
    assert result.stderr.splitlines()[-1].startswith("equicolor: ")
    assert not (place / "a").exists()
