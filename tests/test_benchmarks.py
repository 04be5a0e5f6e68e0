"""The scripts in benchmarks/ run on a CPU and write rows with ratios; no time is asserted."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from equicolor.cli.app import app
from equicolor.results import Row

SCRIPTS = Path(__file__).parents[1] / "benchmarks"
TINY = ("--device", "cpu", "--batch", "2", "--size", "32", "--rounds", "2", "--min-ms", "0")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a script with tiny settings, and reads the rows it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(SCRIPTS)

    def run(script: str, *options: str) -> list[Row]:
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *TINY, *options])
        runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")
        results = json.loads(Path(f"runs/bench/bench-{script}-cpu.json").read_text())
        assert results["command"].startswith(f"python benchmarks/{script}.py --device cpu")
        rows: list[Row] = results["rows"]
        return rows

    return run


def ratio_of_rounds(row: Row, base: Row) -> Any:
    first, second = (a / b for a, b in zip(row["times_ms"], base["times_ms"], strict=True))
    return pytest.approx((first + second) / 2, abs=1e-3)


@pytest.mark.parametrize("option", ["--batch", "--size", "--rounds"])
def test_zero_is_not_the_default(
    option: str, bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench("layers", option, "0")
    assert f"argument {option}: invalid positive_int value: '0'" in capsys.readouterr().err


@pytest.mark.slow
def test_layers(bench: Any) -> None:
    rows = bench("layers", "--shapes", "colormnist", "--rotations", "3", "--width", "8")
    assert [(row["variant"], row["mode"]) for row in rows] == [
        (variant, mode)
        for mode in ("training", "forward")
        for variant in ("plain", "auto", "dense", "cyclic")
    ]
    plain, auto, dense, cyclic = rows[:4]
    assert [row["rotations"] for row in rows[:4]] == [1, 3, 3, 3]
    assert plain["over_plain"] == 1
    for row in (auto, dense, cyclic):
        assert row["over_plain"] == ratio_of_rounds(row, plain)
        assert row["dense_over"] == ratio_of_rounds(dense, row)
    assert auto["algorithm"] in ("dense", "cyclic")
    # Nine products and four; the plain layer has one.
    assert plain["gflop"] == pytest.approx(dense["gflop"] / 9, rel=1e-3)
    assert cyclic["gflop"] < dense["gflop"]
    with pytest.raises(SystemExit, match="--force"):
        bench("layers", "--shapes", "colormnist")


@pytest.mark.slow
def test_networks(bench: Any) -> None:
    names = "n3-4", "n4-4-hsv", "fast-selector"
    rows = bench("networks", "--networks", *names, "--modes", "training", "folded")
    assert [(row["name"], row["mode"], row["rotations"]) for row in rows] == [
        (name, mode, n)
        for mode in ("training", "folded")
        for name, n in (("plain", 1), *zip(names, (3, 4, 1), strict=True))
    ]
    plain, small, _, behind = rows[:4]
    assert behind["gflop"] > plain["gflop"]
    assert small["over_plain"] == ratio_of_rounds(small, plain)
    assert (plain["width"], small["width"], small["form"]) == (64, 4, "eager")
    assert rows[2]["lifting"] == "hsv"


# Written for this test, with the names and arguments of the authors' code.
CHECKOUT = """
from torch import nn

def ResNet18(*, rotations, separable, groupcosetmaxpool, num_classes):
    assert separable and groupcosetmaxpool
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(3, rotations, 3), pool, nn.Linear(rotations, num_classes))
"""


def test_networks_beside_a_checkout_of_the_authors(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = "--networks", "n3-4", "--modes", "training", "--reference", str(tmp_path)
    with pytest.raises(SystemExit):
        bench("networks", *arguments)
    for name, code in (("models/resnet.py", CHECKOUT), ("ceconv/ceconv2d.py", "")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(code)
    for name in ("models", "models.resnet"):
        monkeypatch.setitem(sys.modules, name, None)  # what is imported is taken out again
        del sys.modules[name]
    plain, released, _ = bench("networks", *arguments)
    assert (released["name"], released["variant"]) == ("released-n3", "released")
    assert released["over_plain"] == ratio_of_rounds(released, plain)
    # Three filters of 27 numbers on 30x30 pixels, forward and backward, and 3 to 1000 thrice.
    operations = 2 * 3 * 27 * 30 * 30 + 3 * 3 * 1000
    assert released["gflop"] == pytest.approx(2 * 2 * operations / 1e9, rel=1e-3)


def test_the_fastest_plain_network_is_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    with_ratios = runpy.run_path(str(SCRIPTS / "_timing.py"))["with_ratios"]
    rows = [
        {"variant": "plain", "form": "eager", "ms": 4.0, "times_ms": [4.0, 4.0], "peak_mib": 10.0},
        {"variant": "plain", "form": "compiled", "ms": 2.0, "times_ms": [1.0, 3.0]},
        {"variant": "auto", "form": "eager", "ms": 6.0, "times_ms": [3.0, 9.0], "peak_mib": 20.0},
        {"variant": "dense", "form": "eager", "problem": "RuntimeError: kernel image is missing"},
    ]
    found = with_ratios(rows)
    assert [row["over_plain"] for row in found] == [2.667, 1.0, 3.0, None]
    assert found[2]["memory_over_plain"] == 2.0
    assert found[2]["dense_over"] is None


@pytest.mark.slow
def test_loop(bench: Any, tmp_path: Path) -> None:
    for colour in ("red", "green"):
        (tmp_path / "images" / colour).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (36, 36), colour).save(tmp_path / f"images/{colour}/{number}.png")
    images = str(tmp_path / "images")
    loop, bare, sweep = bench("loop", images, "--epochs", "2")
    assert [row["name"] for row in (loop, bare, sweep)] == [
        "training loop", "bare step", "hue sweep",
    ]  # fmt: skip
    assert loop["over_bare"] == pytest.approx(loop["images_per_s"] / bare["images_per_s"], abs=1e-3)
    assert (sweep["shifts"], loop["batch"], loop["size"]) == (37, 2, 32)
    assert (loop["epochs"], len(loop["speeds"])) == (2, 2)
    with pytest.raises(SystemExit, match=r"no epoch of .*images ended within 0\.001 seconds"):
        bench("loop", images, "--force", "--seconds", "0.001")


@pytest.mark.slow
def test_precision(bench: Any) -> None:
    options = ("--equivariant", "n3-4", "--classes", "5", "--steps", "3", "--seeds", "2")
    rows = bench("precision", *options, "--precision", "float32")
    assert [(row["variant"], row["seed"]) for row in rows] == [
        (variant, seed) for seed in (0, 1) for variant in ("auto", "dense")
    ]
    for row in rows:
        assert row["gradient_error"] < 1e-3
        assert len(row["losses"]) == 3
    assert rows[0]["losses"] == pytest.approx(rows[1]["losses"], rel=1e-2)
    assert rows[1]["error_over_dense"] == 1


def test_the_command_names_the_scripts() -> None:
    result = CliRunner().invoke(app, ["bench", "layers"], prog_name="equicolor")
    assert result.exit_code == 2
    assert "benchmarks/" in result.stderr


@pytest.mark.slow
def test_kernels(bench: Any) -> None:
    rows = bench("kernels", "--networks", "n3-4", "--plain-forms", "eager")
    assert {row["name"] for row in rows} == {"plain", "n3-4"}
    for name in ("plain", "n3-4"):
        of_name = [row for row in rows if row["name"] == name]
        assert sum(row["share"] for row in of_name) == pytest.approx(1, abs=0.01)
        kinds = {row["kind"] for row in of_name}
        assert {"convolution or matrix product", "convolution, gradients"} <= kinds
