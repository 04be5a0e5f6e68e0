import errno
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import equicolor
from equicolor.cli import app
from equicolor.experiments import equivariance


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="equicolor")


def failing_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Result:
    """Run the demo with a function behind it that raises."""

    def fail(output: Path) -> None:
        raise error

    monkeypatch.setattr(equivariance, "run", fail)
    return invoke("demo")


def test_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.stdout == f"equicolor {equicolor.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_lists_the_commands(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "demo" in result.stdout
    assert "--version" in result.stdout


def test_no_command_prints_help() -> None:
    assert "Usage: equicolor" in invoke().output


def test_unknown_command_suggests_the_nearest() -> None:
    result = invoke("dmo")
    assert result.exit_code == 2
    assert "demo" in result.stderr


def test_demo_says_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = partial(equivariance.measure, shifts=12, seeds=1)
    monkeypatch.setattr(equivariance, "measure", quick)
    result = invoke("demo", "--output", str(tmp_path / "report"))
    assert result.exit_code == 0
    assert (tmp_path / "report" / "equivariance.png").is_file()
    assert str(tmp_path / "report" / "summary.json") in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith("A hue shift changes the output by up to")
    assert "(plain)" in last


def test_demo_refuses_a_file_in_one_line(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    result = invoke("demo", "--output", str(taken))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"equicolor: results go to a folder, but {taken} is a file\n"
    assert taken.read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ValueError("n must be at least 1, got 0"), 2, "n must be at least 1, got 0"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "a.png"),
            1,
            "No such file or directory: a.png",
        ),
        (
            ModuleNotFoundError("No module named 'sklearn'", name="sklearn"),
            1,
            "sklearn is not installed: pip install 'equicolor[train]'",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_expected_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, line: str
) -> None:
    result = failing_with(monkeypatch, error)
    assert result.exit_code == status
    assert result.stderr == f"equicolor: {line}\n"


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a bug"), ModuleNotFoundError("a bug", name="equicolor.missing")],
)
def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    assert failing_with(monkeypatch, error).exception is error


def test_without_typer_one_line_says_what_to_install() -> None:
    # None in sys.modules makes the import fail as if the module were absent.
    code = "import sys; sys.modules['typer'] = None; from equicolor.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == ("equicolor: typer is not installed: pip install 'equicolor[train]'\n")


def test_help_does_not_load_plotting() -> None:
    code = "import sys, equicolor.cli; assert not {'matplotlib', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
