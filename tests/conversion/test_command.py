"""``equicolor convert``: mistakes are found first, and both networks are judged in one way."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from equicolor.cli.app import app
from equicolor.conversion import report
from equicolor.conversion.report import NetworkCost
from equicolor.models import load_model, save_model, z2cnn
from equicolor.models.registry import GrayInput
from equicolor.models.widths import ARCHITECTURES
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(z2cnn(2, width=4), tmp_path / "net.safetensors")
    (tmp_path / "old.safetensors").write_bytes(b"kept")
    (tmp_path / "mine.py").write_text("def build():\n    raise RuntimeError('never called')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("net.safetensors -o old.safetensors --force --data nosuch", "unknown dataset 'nosuch'"),
        ("net.safetensors -o old.safetensors --force --data ./no/such", "no folder of images at"),
        ("net.safetensors -o new.txt", r"a checkpoint is written as \*.safetensors, got new.txt"),
        ("net.safetensors -o . --force", r"\. is a folder; name the file to write"),
        (
            "net.safetensors -o ./net.safetensors --force",
            "net.safetensors is the given network its",
        ),
        ("mine.py:build -o a", "could not be built again .* in Python.* takes a checkpoint of"),
        ("mine.py -o a", "could not be built again .* in Python.*timm:NAME or torchvision:NAME$"),
        ("gone -o a", "no network at gone; expected a checkpoint.*timm:NAME, torchvision:NAME"),
        ("notes.md -o a", "notes.md is not a complete safetensors file saved by equicolor"),
    ],
)
def test_mistakes_are_found_first(place, arguments, message):
    (place / "notes.md").write_text("# notes")
    before = sorted(place.iterdir())
    result = CliRunner().invoke(app, ["convert", *arguments.split()], prog_name="equicolor")
    assert result.exit_code in (1, 2), result.output
    assert re.search(message, result.stderr.splitlines()[-1])
    assert sorted(place.iterdir()) == before
    assert Path("old.safetensors").read_bytes() == b"kept"


@pytest.fixture
def toys(tmp_path):
    """A folder of small images in three classes, without a split."""
    rng = np.random.default_rng(0)
    for label in range(3):
        folder = tmp_path / "toys" / f"class{label}"
        folder.mkdir(parents=True)
        for index in range(5):
            pixels = rng.integers(0, 256, (32, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "toys"


def make_run(path, toys, *, gray=False, **settings):
    """The folder of a run, as training leaves it."""
    recipe = TrainingRecipe(options={"width": 2}, dataset=str(toys), split_seed=3, **settings)
    path.mkdir()
    RunFolder(path).begin(recipe, {})
    network = GrayInput(recipe.build(3)) if gray else recipe.build(3)
    network.origin = recipe.origin
    save_model(network, path / "model.safetensors")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("options", "cut"), [([], (32, 40)), (["--size", "48"], (48, 60))])
def test_both_are_judged_on_the_same_images(tmp_path, monkeypatch, toys, options, cut):
    monkeypatch.setitem(ARCHITECTURES, 18, ARCHITECTURES[18]._replace(blocks=(1, 1, 1, 1)))
    run = make_run(tmp_path / "run", toys, model="resnet18", size=32, resize=40)
    output = tmp_path / "converted.safetensors"
    judged, counted = [], []
    diagnose = report.diagnose

    def judge(*arguments, **how):
        judged.append(diagnose(*arguments, shifts=4, **how))
        return judged[-1]

    def count(networks, size, **how):
        counted.append(size)
        return [NetworkCost("before", 1, 1, None)]

    monkeypatch.setattr(report, "convert", functools.partial(report.convert, verify=False))
    monkeypatch.setattr(report, "diagnose", judge)
    monkeypatch.setattr(report, "cost_report", count)
    arguments = ["convert", run, "-o", output, "--rotations", "2", "--data", toys, *options]
    result = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert counted == [cut[0]]
    assert len(judged) == 2
    for facts in (each.facts for each in judged):
        assert (facts["size"], facts["resize"], facts["split_seed"]) == (*cut, 3)
    assert load_model(output).origin == (*cut, "toys", 3, "")  # `equicolor evaluate` finds the same


@pytest.mark.slow
def test_costs_stand_beside_those_of_the_network_before(tmp_path):
    plain = save_model(z2cnn(10), tmp_path / "plain.safetensors")
    rows = report.convert_source(plain, tmp_path / "new.safetensors", rotations=3)
    assert [row[1] for row in rows] == ["25,570", "32,770 (1.28×)", "25,290 (0.99×)"]


@pytest.mark.slow
def test_a_grey_run_stays_grey(tmp_path, toys):
    run = make_run(tmp_path / "run", toys, model="z2cnn", size=28, resize=30, gray=True)
    output = tmp_path / "converted.safetensors"
    report.convert_source(run, output, rotations=2)
    network = load_model(output)
    assert network.config["source_options"]["gray"]
    assert network.origin == (28, 30, "toys", 3, "")
