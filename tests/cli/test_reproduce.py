"""``equicolor reproduce list``, ``all`` and the experiments without options of their own."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from equicolor.cli.app import app
from equicolor.paper import reproduce_all
from equicolor.paper.launching import Shard
from equicolor.paper.registry import EXPERIMENTS
from equicolor.results import write_results

ROOT = Path(__file__).parents[2]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="equicolor")


def test_every_figure_and_table_is_listed_with_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = invoke("reproduce", "list")
    assert result.exit_code == 0
    for name, experiment in EXPERIMENTS.items():
        _, found, rest = result.stdout.partition(f"{name} ")
        entry = "\n".join(rest.splitlines()[:4])
        assert found
        assert experiment.paper in entry
        assert f"{experiment.quick} with --quick on two CPU cores: not run" in entry
        assert ("(missing)" in entry) == bool(experiment.data)
    assert list(tmp_path.iterdir()) == []


def test_experiments_have_help() -> None:
    for name in EXPERIMENTS:
        result = invoke("reproduce", name, "--help")
        assert result.exit_code == 0
        assert "--quick" in result.stdout or name == "classification"
        assert "--workers" in result.stdout
    result = invoke("reproduce", "ablation-rotation")
    assert result.exit_code == 2
    assert "'ablation-rotations'" in " ".join(result.stderr.split())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []

    def fake(scope, names, how, *, console) -> reproduce_all.Reproduced:
        made.append((scope, names, how))
        failed = {"conversion": "no data"} if names is None else {}
        return reproduce_all.Reproduced(Path("report.html"), [Path("a.json")], 3, 2, failed)

    monkeypatch.setattr(reproduce_all, "reproduce_all", fake)
    return made


def test_options_reach_the_experiments(calls: list[tuple[Any, ...]]) -> None:
    result = invoke(
        "reproduce", "ablation-jitter", "flowers102,cifar10", "--seeds", "3", "--epochs", "30",
        "--size", "64", "--device", "cpu", "--workers", "4", "--shard", "1/2", "-o", "out",
    )  # fmt: skip
    assert result.exit_code == 0
    assert "2 of 3 jobs are finished" in result.stdout
    assert "wrote a.json" in result.stdout
    ((scope, names, how),) = calls
    assert names == ["ablation-jitter"]
    assert (scope.output, scope.quick, scope.datasets) == (
        Path("out"), False, ("flowers102", "cifar10"),
    )  # fmt: skip
    assert (scope.seeds, scope.epochs, scope.size, scope.cuda) == (3, 30, 64, False)
    assert (how.workers, how.devices, how.shard) == (4, ("cpu",), Shard(1, 2))


def test_a_cluster_may_have_gpus_where_this_computer_has_none(
    calls: list[tuple[Any, ...]],
) -> None:
    options = ("--launcher-option", "slurm_partition=gpu", "--launcher-option", "timeout_min=9")
    only = ("--only", "equivariance, selectivity")
    cluster = ("--device", "cuda", "--launcher", "slurm", "--workers", "2")
    result = invoke("reproduce", "all", *only, *cluster, *options)
    assert result.exit_code == 0
    ((scope, names, how),) = calls
    assert names == ["equivariance", "selectivity"]
    assert scope.cuda
    assert (how.launcher, how.options) == ("slurm", {"slurm_partition": "gpu", "timeout_min": 9})
    assert how.places() == ["cuda", "cuda"]


def test_quick_runs_have_a_folder_of_their_own(calls: list[tuple[Any, ...]]) -> None:
    result = invoke("reproduce", "all", "--quick", "--device", "cpu")
    assert result.exit_code == 1  # one of them failed
    assert result.stderr == "conversion: no data\n"
    quick = ("reproduce", "classification", "--quick", "--device", "cpu")
    assert invoke(*quick, "--seeds", "2", "--size", "32").exit_code == 0
    assert (calls[1][0].seeds, calls[1][0].size) == (2, 32)
    for option in ("--networks", "--actions"):
        result = invoke(*quick, option, "hsv")
        assert result.exit_code == 2
        assert "--quick has networks and hue shifts of its own" in result.stderr
    assert [(scope.output, names) for scope, names, _ in calls] == [
        (Path("runs/reproduce-quick"), None),
        (Path("runs/reproduce-quick"), ["classification"]),
    ]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--only", "tables"], "unknown experiment 'tables'; see 'reproduce list'"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--workers", "0"], "workers must be at least 1, got 0"),
        (["--workers", "99999"], "workers must be at most 1,024, got 99999"),
        (["--seeds", "9999999"], "seeds must be at most 1,000,000, got 9999999"),
        (["--shard", "2"], "shard must be I/N with I from 0 to N - 1, such as 0/4; got '2'"),
        (["--launcher-option", "gpu"], "--launcher-option must be NAME=VALUE, got 'gpu'"),
        (["--pictures", "docs"], "--pictures needs --from: a run has them in its figures/"),
        (
            ["--from", "results", "--pictures", "docs", "-o", "runs/x"],
            "--pictures writes the figures alone: it takes no --output",
        ),
        (["--only", "configurations", "--seeds", "2"], "configurations does not take --seeds"),
        (["--only", "equivariance", "--datasets", "a"], "equivariance does not take datasets"),
        (["--from", "results", "--quick"], "--from shows the rows that are there"),
        (["--from", "results", "--workers", "3"], "--from shows the rows that are there"),
        (["--only", ","], "--only takes names separated by commas, got ','"),
        (["--datasets", " "], "--datasets takes names separated by commas, got ' '"),
        (["--device", ","], "--device takes names separated by commas, got ','"),
    ],
)
def test_bad_options_are_one_line(
    options: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("reproduce", "all", *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"equicolor: {line}")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_results_are_shown_without_training(tmp_path: Path) -> None:
    source = str(ROOT / "results" / "configurations.json")
    result = invoke("reproduce", "configurations", "--from", source, "-o", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert "| resnet18 | 4 | 3 | 55 | 11.79 | 11.79 |" in result.stdout  # to paste into pages
    assert (tmp_path / "out" / "report.html").is_file()
    docs = tmp_path / "docs"
    result = invoke("reproduce", "all", "--from", source, "--pictures", str(docs))
    assert result.exit_code == 0
    assert [path.name for path in docs.iterdir()] == ["configurations.png"]


def test_a_run_keeps_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(ROOT / "results" / "configurations.json")
    (tmp_path / "run" / "jobs").mkdir(parents=True)
    result = invoke("reproduce", "all", "--from", source, "-o", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert "is the folder of a run, with its own report: choose another" in result.stderr
    monkeypatch.chdir(tmp_path)
    assert invoke("reproduce", "configurations", "--from", source).exit_code == 0
    assert (tmp_path / "runs" / "report-from" / "report.html").is_file()


def test_a_shard_that_failed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(scope, names, how, *, console) -> reproduce_all.Reproduced:
        failed = {"conversion": "it broke"}
        return reproduce_all.Reproduced(Path("report.html"), [], 3, 2, failed, True)

    monkeypatch.setattr(reproduce_all, "reproduce_all", fake)
    result = invoke("reproduce", "conversion", "--quick", "--device", "cpu", "--shard", "0/2")
    assert result.exit_code == 1
    assert "conversion: it broke" in result.stderr


def test_other_files_are_refused(tmp_path: Path) -> None:
    write_results(tmp_path / "bench.json", [{"ms": 1.0}], suite="layers")
    result = invoke("reproduce", "all", "--from", str(tmp_path), "-o", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert result.stderr == f"equicolor: no results of any experiment in {tmp_path}\n"
    assert not (tmp_path / "out").exists()
