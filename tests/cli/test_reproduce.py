"""``equicolor reproduce`` as a user sees it: ``list``, ``all`` and every experiment."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from equicolor.cli.app import app
from equicolor.cli.reproduce import parse_seeds
from equicolor.paper import engine
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


def test_the_state_of_any_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "state", lambda name, scope: f"{scope.quick} {scope.output}")
    result = invoke("reproduce", "list", "--output", ".")
    assert result.exit_code == 0, result.stderr
    assert f"True {tmp_path}-quick" in result.stdout
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    result = invoke("reproduce", "list", "--output", "runs")
    assert "True runs-quick" in result.stdout  # as --output runs-quick would be


@pytest.mark.slow
def test_experiments_have_help() -> None:
    for name in EXPERIMENTS:
        result = invoke("reproduce", name, "--help")
        assert result.exit_code == 0
        assert "--quick" in result.stdout
        assert "--workers" in result.stdout
    result = invoke("reproduce", "ablation-rotation")
    assert result.exit_code == 2
    assert "'ablation-rotations'" in " ".join(result.stderr.split())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []

    def fake(scope, ids, how, *, console) -> engine.Reproduced:
        made.append((scope, ids, how))
        reasons = {"conversion": "no data"} if ids is None else {}
        return engine.Reproduced(Path("report.html"), [Path("a.json")], 3, 2, reasons)

    monkeypatch.setattr(engine, "reproduce", fake)
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
    assert (scope.seeds, scope.epochs, scope.size, scope.cuda) == ((0, 1, 2), 30, 64, False)
    assert (how.workers, how.devices, how.shard) == (4, ("cpu",), (1, 2))


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
    quick = ("reproduce", "classification", "--quick", "--device", "cpu", "--networks", "hsv-6")
    assert invoke(*quick, "--seeds", "1,2", "--size", "32", "--actions", "hsv, rgb").exit_code == 0
    scope = calls[1][0]
    assert (scope.seeds, scope.size, scope.networks) == ((1, 2), 32, ("hsv-6",))
    assert scope.actions == ("hsv", "rgb")
    assert [(scope.output, names) for scope, names, _ in calls] == [
        (Path("runs/reproduce-quick"), None),
        (Path("runs/reproduce-quick"), ["classification"]),
    ]


def test_options_of_colormnist_reach_it(calls: list[tuple[Any, ...]]) -> None:
    options = ("--seeds", "2", "--epochs", "3", "--models", "cecnn, z2cnn", "--device", "cpu")
    more = ("--sigmas", "12, 1e6", "--precision", "float32", "--redraw")
    assert invoke("reproduce", "colormnist-biased", *options, *more).exit_code == 0
    # The same command in other words.
    all_of = ("reproduce", "all", "--only", "colormnist-biased")
    assert invoke(*all_of, *options, *more).exit_code == 0
    ((scope, ids, how), other) = calls
    assert (scope, ids, how) == other
    assert ids == ["colormnist-biased"]
    assert (scope.output, scope.seeds, scope.epochs) == (Path("runs/reproduce"), (0, 1), 3)
    assert (scope.networks, scope.sigmas) == (("cecnn", "z2cnn"), (12.0, 1e6))
    assert (scope.precision, scope.redraw, scope.quick) == ("float32", True, False)


def test_an_experiment_has_only_the_options_it_takes() -> None:
    for options in (("equivariance", "--seeds", "2"), ("colormnist-longtailed", "--redraw")):
        result = invoke("reproduce", *options)
        assert result.exit_code == 2
        assert "No such option" in result.stderr


@pytest.mark.parametrize("option", ["--networks", "--models", "--actions"])
def test_an_option_that_lists_nothing_is_refused(option: str) -> None:
    result = invoke("reproduce", "classification", "flowers102", option, " ,")
    assert result.exit_code == 2
    assert "takes names separated by commas, got ' ,'" in result.stderr


@pytest.mark.parametrize(
    ("text", "seeds"), [("2", (0, 1)), ("5,", (5,)), ("1-3,7", (1, 2, 3, 7)), ("4-4", (4,))]
)
def test_seeds_are_a_number_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--only", "tables"], "unknown experiment 'tables'; see 'reproduce list'"),
        (["--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--workers", "0"], "workers must be at least 1, got 0"),
        (["--workers", "99999"], "workers must be at most 1,024, got 99999"),
        (["--seeds", "9999999"], "seeds must be at most 1,000,000, got 9999999"),
        *(
            (
                ["--shard", text],
                f"shard must be I/N with I from 0 to N - 1, such as 0/4; got {text!r}",
            )
            for text in ("2", "2/2", "a/b")
        ),
        (["--launcher-option", "gpu"], "--launcher-option must be NAME=VALUE, got 'gpu'"),
        (["--pictures", "docs"], "--pictures is now --figures"),
        (["--launcher", "submitit-local"], "--launcher submitit-local is now --launcher processes"),
        (["--figures", "docs"], "--figures needs --from: a run writes them to its figures/"),
        (
            ["--from", "results", "--figures", "docs", "-o", "runs/x"],
            "--figures writes only the figures: it takes no --output",
        ),
        (["--seeds", "1,x"], "--seeds takes 3, 1,2 or 3-5, say; got '1,x'"),
        (["--seeds", "5-3"], "--seeds takes 3, 1,2 or 3-5, say; got '5-3'"),
        (["--only", "colormnist-biased", "--sigmas", "a"], "--sigmas takes numbers separated by"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--device", "tpu"], "device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'"),
        (["--only", "conversion", "--networks", "a"], "conversion does not take --networks"),
        (["--only", "configurations", "--seeds", "2"], "configurations does not take --seeds"),
        (["--only", "equivariance", "--datasets", "a"], "equivariance does not take datasets"),
        (
            ["--only", "turns,equivariance", "--redraw"],
            "turns and equivariance do not take --redraw",
        ),
        (["--from", "results", "--quick"], "--from shows rows without training"),
        (["--from", "results", "--workers", "3"], "--from shows rows without training"),
        (["--only", ","], "--only takes names separated by commas, got ','"),
        (["--datasets", " "], "--datasets takes names separated by commas, got ' '"),
        (["--device", ","], "--device takes names separated by commas, got ','"),
    ],
)
def test_bad_options_are_one_line(
    options: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[tuple[Any, ...]],
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("reproduce", "all", *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"equicolor: {line}")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert not calls


@pytest.mark.slow
def test_results_are_shown_without_training(tmp_path: Path) -> None:
    source = str(ROOT / "results" / "configurations.json")
    result = invoke("reproduce", "configurations", "--from", source, "-o", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert "| resnet18 | 4 | 3 | 55 | 11.79 | 11.79 |" in result.stdout  # to paste into pages
    assert (tmp_path / "out" / "report.html").is_file()
    docs = tmp_path / "docs"
    result = invoke("reproduce", "all", "--from", source, "--figures", str(docs))
    assert result.exit_code == 0
    assert [path.name for path in docs.iterdir()] == ["configurations.png"]


@pytest.mark.slow
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
    def fake(scope, ids, how, *, console) -> engine.Reproduced:
        return engine.Reproduced(Path("report.html"), [], 3, 2, {"conversion": "it broke"}, True)

    monkeypatch.setattr(engine, "reproduce", fake)
    result = invoke("reproduce", "conversion", "--quick", "--device", "cpu", "--shard", "0/2")
    assert result.exit_code == 1
    assert "conversion: it broke" in result.stderr


def test_other_files_are_refused(tmp_path: Path) -> None:
    write_results(tmp_path / "bench.json", [{"ms": 1.0}], suite="layers")
    result = invoke("reproduce", "all", "--from", str(tmp_path), "-o", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert result.stderr == f"equicolor: no results of any experiment in {tmp_path}\n"
    assert not (tmp_path / "out").exists()
