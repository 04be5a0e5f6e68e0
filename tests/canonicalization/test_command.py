"""``equicolor canonicalize``: a network by name, judged before and after."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import equicolor
from equicolor.canonicalization import Canonicalized, HueSelector, report
from equicolor.cli.app import app
from equicolor.models import load_model, save_model, z2cnn
from equicolor.models.tensor_files import read_pickle
from equicolor.results import read_results
from equicolor.training.recipes import TrainingRecipe

FAST = "--preset fast --rotations 3 --epochs 1 --device cpu --size 28"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A network of two classes, twenty images of each, and a network in a file."""
    folder = tmp_path_factory.mktemp("canonicalize")
    rng = np.random.default_rng(0)
    for label in ("leaf", "sky"):
        (folder / "images" / label).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            pixels[..., label == "sky"] //= 4
            Image.fromarray(pixels).save(folder / "images" / label / f"{number}.png")
    network = z2cnn(2, width=4)
    network.class_names = ("leaf", "sky")
    save_model(network, folder / "net.safetensors")
    (folder / "mine.py").write_text(
        "from equicolor.models import z2cnn\n"
        "from torch import nn\n\n\n"
        "def network():\n    return nn.Sequential(z2cnn(2, width=4))\n"
    )
    (folder / "changed.py").write_text(
        "from equicolor.models import z2cnn\n"
        "from torch import nn\n\n\n"
        "def network():\n    made = z2cnn(2, width=4)\n"
        "    made.append = nn.Linear(2, 2)  # its builder makes none\n    return made\n"
    )
    (folder / "other.py").write_text(
        "from equicolor.models import z2cnn\n"
        "from torch import nn\n\n\n"
        "class Remote(nn.Module):\n    def forward(self, images):\n"
        "        return images.mean((2, 3))[:, :2]\n\n\n"
        "def remote():\n    return Remote()\n\n\n"
        "def one():\n    return nn.Sequential(z2cnn(1, width=4))\n\n\n"
        "def pixels():\n    return nn.Conv2d(3, 4, 1)\n\n\n"
        "def fixed():\n    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))\n"
    )
    canonical = equicolor.canonicalize(network, select="gray-world")
    save_model(canonical, folder / "again.safetensors")
    (folder / "empty").mkdir()
    shutil.copytree(folder / "images" / "sky", folder / "corrupt")
    for number in range(20):
        shutil.copy(
            folder / "images" / "leaf" / f"{number}.png", folder / "corrupt" / f"{20 + number}.png"
        )
    for number in range(2):
        (folder / "corrupt" / f"{number}.png").write_bytes(b"")
    return folder


@pytest.fixture
def run(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)

    def call(words, output=None):
        where = ["-o", str(tmp_path / "out" if output is None else output)]
        given = ["canonicalize", *words.split(), *where]
        return CliRunner().invoke(app, given, prog_name="equicolor")

    return call


@pytest.fixture
def uncounted(monkeypatch):
    """Skip counting costs and drawing figures, which take longer than a fit.

    For tests that look at neither; others do both, for every kind of network.
    """
    table = report.Table(report.COST_COLUMNS, [])
    monkeypatch.setattr(report, "_cost_table", lambda *arguments: table)
    monkeypatch.setattr(report, "png", lambda figure: b"")


@pytest.mark.slow
def test_fits_judges_and_writes(run, tmp_path):
    result = run(f"net.safetensors --data images {FAST} --modes 2 --gate 0.5 --rotations 6")
    assert result.exit_code == 0, result.output
    assert re.search(r"accuracy: \S+ % before and \S+ % after canonicalisation", result.stdout)
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"model.safetensors", "canonicalization.json", "hue-curve.png"}
    before, after = json.loads((tmp_path / "out" / "canonicalization.json").read_text())["rows"]
    assert len(before["hue_curve"]) == 37
    assert after["model"] == "canonicalized z2cnn"
    assert after["canonicalization"]["fitted"]["epochs"] == 1
    # Invariant on the grid: 60 degrees are six of the 37 shifts.
    assert after["hue_curve"][0] == after["hue_curve"][6] == after["hue_curve"][12]
    network = load_model(tmp_path / "out" / "model.safetensors")
    assert isinstance(network, Canonicalized)
    assert network.class_names == ("leaf", "sky")
    again = CliRunner().invoke(
        app,
        f"evaluate {tmp_path / 'out'} --data images --actions hsv -o {tmp_path / 'e'}".split(),
    )
    assert again.exit_code == 0, again.output
    (row,) = json.loads((tmp_path / "e" / "evaluation.json").read_text())["rows"]
    assert row["hue_curve"] == after["hue_curve"]


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
def test_networks_in_files_and_images_without_labels(run, tmp_path):
    result = run(f"mine.py:network --unlabelled images {FAST}")
    assert result.exit_code == 0, result.output
    assert "unchanged answers: 100.00 % before" in result.stdout
    assert isinstance(load_model(tmp_path / "out" / "selector.safetensors"), HueSelector)
    before, after = json.loads((tmp_path / "out" / "canonicalization.json").read_text())["rows"]
    assert before["by_own_answers"]
    assert before["original"] == 100
    assert before["images"] + after["canonicalization"]["fitted"]["images"] == 40
    # The same selector in front of another network, and the selector of a network's own file.
    for number, file in enumerate(("out/selector.safetensors", "again0/model.safetensors")):
        options = f"--data images --select {tmp_path / file} --device cpu --size 28"
        result = run(f"net.safetensors {options}", tmp_path / f"again{number}")
        assert result.exit_code == 0, result.output
        _, after = read_results(tmp_path / f"again{number}" / "canonicalization.json")["rows"]
        assert after["canonicalization"]["fitted"] is None
        assert after["canonicalization"]["rotations"] == 3


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
def test_other_images_to_train_on(run, tmp_path):
    result = run(f"net.safetensors --data images --unlabelled images/sky {FAST}")
    assert result.exit_code == 0, result.output
    _, after = json.loads((tmp_path / "out" / "canonicalization.json").read_text())["rows"]
    assert after["canonicalization"]["fitted"]["images"] == 20


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
def test_a_run_knows_its_data(place, run, tmp_path, monkeypatch):
    shutil.copytree(place, tmp_path / "here")
    finished = tmp_path / "run"
    finished.mkdir()
    shutil.copy(place / "net.safetensors", finished / "model.safetensors")
    recipe = TrainingRecipe("z2cnn", dataset=str(place / "images"), size=28, resize=28)
    (finished / "recipe.json").write_text(recipe.to_json())
    for label in ("leaf", "sky"):  # a folder of the same name that is not the run's
        for file in (tmp_path / "here" / "images" / label).glob("1*.png"):
            file.unlink()
    monkeypatch.chdir(tmp_path / "here")
    result = run(f"{finished} {FAST}")
    assert result.exit_code == 0, result.output
    before, after = json.loads((tmp_path / "out" / "canonicalization.json").read_text())["rows"]
    assert before["images"] + after["canonicalization"]["fitted"]["images"] == 40


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("data", ["--unlabelled corrupt", "--data images --unlabelled corrupt"])
def test_corrupt_images_are_left_out(data, run, tmp_path):
    result = run(f"net.safetensors {data} --skip-corrupt {FAST}")
    assert result.exit_code == 0, result.output
    assert "left out" in result.stderr
    before, after = json.loads((tmp_path / "out" / "canonicalization.json").read_text())["rows"]
    fitted = after["canonicalization"]["fitted"]["images"]
    assert fitted + (0 if "--data" in data else before["images"]) == 38


@pytest.mark.slow
@pytest.mark.parametrize("network", ["again.safetensors", "changed.py:network"])
def test_of_a_network_that_no_file_builds_the_selector_is_written(network, run, tmp_path):
    result = run(f"{network} --data images {FAST}")
    assert result.exit_code == 0, result.output
    assert isinstance(load_model(tmp_path / "out" / "selector.safetensors"), HueSelector)
    assert not (tmp_path / "out" / "fit.ckpt").exists()


@pytest.mark.slow
def test_a_network_behind_an_interface_has_no_parameters(run, tmp_path):
    result = run(f"other.py:remote --unlabelled images {FAST}")
    assert result.exit_code == 0, result.output
    assert "unchanged answers: 100.00 % before" in result.stdout
    assert (tmp_path / "out" / "selector.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("select", ["entropy", "gray-world"])
def test_what_needs_no_training(select, run, tmp_path):
    result = run(f"net.safetensors --data images --select {select} --device cpu --size 28")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("net.safetensors", r"say which data \(--data\)"),
        ("net.safetensors --data images --select magic", "select must be one of 'learned'"),
        ("net.safetensors --data images --modes 9", "modes must be at most 4"),
        ("net.safetensors --data images --gate 0.5", "modes must be 2 or more"),
        ("net.safetensors --data images --epochs 0", "epochs must be at least 1"),
        ("net.safetensors --unlabelled empty", "empty holds no images"),
        ("net.safetensors --unlabelled nowhere", "not a folder of images"),
        ("net.safetensors --unlabelled images --split-seed 1", "need --data"),
        ("net.safetensors --unlabelled images --classes-by-index", "need --data"),
        ("mine.py:network --unlabelled images --select energy", "nothing could be saved"),
        ("gone.safetensors --data images", "no network at gone"),
        ("net.safetensors --data images --select energy --epochs 3", "trains none"),
        ("net.safetensors --data images --select energy --seed 3", "trains none"),
        (
            "net.safetensors --data images --select gray-world --unlabelled images/sky",
            "--unlabelled beside --data, are for training a selector",
        ),
        ("again.safetensors --data images --select gray-world", "'gray-world'.*nothing could be"),
        ("net.safetensors --data images --select net.safetensors", "Z2CNN.*expected a selector"),
        ("net.safetensors --data images --select gone.safetensors", "gone.safetensors"),
        ("other.py:fixed --unlabelled images", "cannot take images of 28 × 28 pixels"),
        ("other.py:pixels --unlabelled images", r"must give logits \[2, classes\]"),
        ("other.py:one --unlabelled images", "has 1 output"),
        ("net.safetensors --unlabelled corrupt", "0.png cannot be decoded.*--skip-corrupt"),
    ],
)
def test_mistakes_are_one_line(words, message, run, tmp_path):
    result = run(f"{words} --device cpu --size 28")
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit)
    assert re.search(message, result.stderr.splitlines()[-1]), result.stderr
    assert not (tmp_path / "out").exists()


def test_an_earlier_result_is_kept(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_bytes(b"kept")
    result = run("net.safetensors --data images")
    assert result.exit_code == 1
    assert "--force" in result.stderr
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"kept"


def test_the_given_network_is_not_replaced(run, place, tmp_path):
    (tmp_path / "out").mkdir()
    shutil.copy(place / "net.safetensors", tmp_path / "out" / "model.safetensors")
    result = run(f"{tmp_path / 'out'} --data images --select energy --size 28 --force")
    assert result.exit_code == 2
    assert "is the given network itself" in result.stderr
    same = (place / "net.safetensors").read_bytes()
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == same


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
def test_an_interrupted_fit_is_continued(run, place, tmp_path, start_script):
    """A real process and a real interrupt; that weights are the same is for test_fit.py."""
    words = f"canonicalize net.safetensors --data images {FAST} --epochs 9 -o {tmp_path}".split()
    state = tmp_path / "fit.ckpt"
    given = f"words, place, state = {words!r}, {str(place)!r}, {str(state)!r}"
    ended = start_script(given + _INTERRUPTED)
    errors = ended.stderr
    assert ended.returncode == 130, errors
    assert "The same command continues the fit" in errors
    assert errors.splitlines()[-1].startswith("equicolor: interrupted")
    assert state.exists()
    done = read_pickle(state)["epoch"]
    again = run(f"net.safetensors --data images {FAST} --epochs 9", tmp_path)
    assert again.exit_code == 0, again.output
    assert f"continued after epoch {done} of 9" in again.stderr
    assert not state.exists()
    assert isinstance(load_model(tmp_path / "model.safetensors"), Canonicalized)


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
def test_force_begins_an_interrupted_fit_again(run, tmp_path):
    state = tmp_path / "out" / "fit.ckpt"
    state.parent.mkdir()
    state.write_bytes(b"of other settings")
    words = f"net.safetensors --data images {FAST}"
    refused = run(words)
    assert refused.exit_code == 2
    assert "fit.ckpt" in refused.output + str(refused.exception)
    assert run(f"{words} --force --select magic").exit_code != 0
    assert state.exists()  # a wrong option costs nothing
    assert run(f"{words} --force").exit_code == 0
    assert not state.exists()


# Saves the state after every epoch, however quick it is, and interrupts itself once there is one.
# Processes in the background of a shell ignore interrupts, and so would this one.
_INTERRUPTED = """
import os, signal, sys, threading, time
import equicolor.canonicalization.fit as fit
from equicolor.cli import main


def interrupt():
    while not os.path.exists(state):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)


signal.signal(signal.SIGINT, signal.default_int_handler)
os.chdir(place)
fit._SAVE_EVERY = 0
sys.argv = ["equicolor", *words]
threading.Thread(target=interrupt, daemon=True).start()
main()
"""
