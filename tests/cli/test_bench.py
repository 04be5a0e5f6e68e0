"""``equicolor bench`` as a user sees it."""

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from equicolor.cli.app import app


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], prog_name="equicolor")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def test_help_names_the_suites_and_their_options() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert "loop" in result.stdout
    for suite in ("layers", "networks", "rotations", "precision"):
        assert suite in result.stdout
        details = invoke(suite, "--help").stdout
        for option in ("--batch", "--size", "--quick", "--device", "--time-limit", "--output"):
            assert option in details


@pytest.mark.parametrize(
    ("suite", "options", "rows"),
    [
        ("layers", ("--models", "colormnist", "--modes", "forward"), 4),
        ("networks", ("--models", "n3-fast", "--modes", "folded,training"), 2 * 3),
        ("rotations", ("--rotations", "1-2,3", "--modes", "forward", "--variants", "dense"), 3),
        ("precision", ("--steps", "2", "--seeds", "1"), 2),
    ],
)
def test_a_suite_from_start_to_files(
    place: Path, suite: str, options: tuple[str, ...], rows: int
) -> None:
    result = invoke(suite, "--quick", "--device", "cpu", *options)
    assert result.exit_code == 0, result.output
    assert "dense" in result.stdout
    file = Path("runs/bench") / f"bench-{suite}-cpu.json"
    assert result.stdout.splitlines()[-1] == f"wrote {file}, {file.with_suffix('.png')}"
    assert len(json.loads(file.read_text())["rows"]) == rows
    assert file.with_suffix(".png").read_bytes()[1:4] == b"PNG"
    # a second time needs permission, and it is asked for before any work
    result = invoke(suite, "--quick", "--device", "cpu", *options)
    assert result.exit_code == 1
    assert f"{file} exists; --force replaces it" in result.stderr


def test_a_loop_from_start_to_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    folder = place / "images"
    for colour in ("red", "green"):
        (folder / colour).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (36, 36), colour).save(folder / colour / f"{number}.png")
    options = ("--epochs", "2", "--size", "32", "--batch", "4", "--steps", "2", "--device", "cpu")
    result = invoke("loop", folder, *options)
    assert result.exit_code == 0, result.output
    rows = json.loads(Path("runs/bench/bench-loop-cpu.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["training loop", "bare step", "hue sweep"]
    loop, bare, sweep = rows
    assert loop["images_per_s"] > 0
    assert bare["images_per_s"] == pytest.approx(4e3 / bare["ms"], rel=1e-2)
    assert (sweep["shifts"], loop["batch"], loop["size"]) == (37, 4, 32)
    assert sweep["images"] > 0
    for name in ("training loop", "bare step", "hue sweep"):
        assert name in result.stdout
    assert invoke("loop", folder, *options).exit_code == 1  # a second time needs permission


def test_goals_and_what_was_left_out_are_told() -> None:
    options = ("--device", "cpu", "--models", "stage1", "--rotations", "3", "--time-limit", "1e-9")
    result = invoke("layers", *options, "--output", "out.json")
    assert result.exit_code == 0, result.output
    assert "left out: time limit: stage1 plain training" in " ".join(result.stdout.split())
    assert "training step, n = 3, dense / auto: –, goal at least 1.8: not measured" in result.stdout
    assert result.stdout.splitlines()[-1] == "wrote out.json"


def test_failures_end_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("kernel image is missing")

    monkeypatch.setattr("equicolor.benchmark.measure.prepare", fail)
    options = ("--quick", "--device", "cpu", "--models", "colormnist", "--modes", "forward")
    result = invoke("layers", *options)
    assert result.exit_code == 1
    assert "RuntimeError: kernel image is missing: colormnist plain forward" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["layers", "--models", "stage9"], "models must be one of 'stage1'"),
        (["layers", "--modes", "folded"], "modes must be one of 'training', 'forward'"),
        (["layers", "--rotations", "three"], "rotations are numbers or ranges, such as 3,12"),
        (["layers", "--rotations", "3-"], "got '3-'"),
        (["layers", "--rotations", ","], "rotations are numbers or ranges"),
        (["layers", "--rotations", "0"], "rotations must be at least 1"),
        (["layers", "--device", "tpu"], "device must be one of"),
        (["layers", "--precision", "fp8"], "precision must be one of 'fp32', 'bf16'"),
        (["layers", "--time-limit", "-5"], "time limit must be more than 0 seconds"),
        (["networks", "--models", "vgg"], "models must be one of 'plain'"),
        (["networks", "--architecture", "vgg"], "architecture must be one of 'resnet18'"),
        (["networks", "--variants", "fast"], "variants must be one of"),
        (["networks", "--batch", "0"], "batch must be at least 1"),
        (["networks", "--variants", "fused"], "variant 'fused' needs a device of kind cuda"),
        (["rotations", "--models", ""], "models must name at least one of"),
        (["precision", "--rotations", "1"], "rotations > 1"),
        (["precision", "--lifting", "lab"], "lifting must be one of"),
        (["precision", "--steps", "0"], "steps must be at least 1"),
    ],
)
def test_errors_are_one_line(place: Path, arguments: list[str], line: str) -> None:
    device = [] if "--device" in arguments else ["--device", "cpu"]
    result = invoke(*arguments, *device)
    assert result.exit_code == 2, result.output
    assert line in result.stderr.splitlines()[-1]
    assert result.stderr.splitlines()[-1].startswith("equicolor: ")
    assert not (place / "runs").exists()
