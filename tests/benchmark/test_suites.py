"""Every suite from start to files, at its quick sizes on the CPU."""

import json
import math

import pytest

from equicolor.benchmark import suites
from equicolor.benchmark.suites import Options

IDENTITY = {"model", "rotations", "width", "variant", "mode", "batch", "size"}


@pytest.fixture
def options(tmp_path):
    return Options(device="cpu", quick=True, output=tmp_path)


def check(run, count):
    results, picture = run.written
    assert picture.read_bytes()[1:4] == b"PNG"
    found = json.loads(results.read_text())
    assert found["rows"] == run.rows
    assert found["suite"] == run.suite
    assert len(run.rows) == count
    assert run.goals == []  # tiny sizes say nothing about speed
    assert not run.failed
    for row in run.rows:
        assert row.keys() >= IDENTITY
        assert row["ms"] > 0
        assert row["peak_mib"] > 0
        assert row["over_plain"] > 0
    return found


def test_layers(options):
    run = suites.layers(options)
    found = check(run, 2 * 2 * 4)  # modes, shapes, variants
    assert found["matrix_peak_tflops"] > 0
    assert {row["model"] for row in run.rows} == {"stage1", "colormnist"}
    assert all("chosen" in row for row in run.rows if row["variant"] == "auto")


def test_networks_in_every_mode_and_variant(options):
    run = suites.networks(options, models=["n3-fast-hsv"], variants=["auto", "dense", "cyclic"])
    check(run, 3 * (1 + 3))
    assert {row["mode"] for row in run.rows} == {"training", "forward", "folded"}
    dense, cyclic = (
        next(row for row in run.rows if row["variant"] == variant)
        for variant in ("dense", "cyclic")
    )
    assert dense["gflop"] > 1.5 * cyclic["gflop"]


def test_networks_in_bf16(tmp_path):
    options = Options(device="cpu", quick=True, output=tmp_path / "b.json", precision="bf16")
    run = suites.networks(options, models=["n12-fast"], modes=["training"], variants=["auto"])
    check(run, 2)
    assert {row["precision"] for row in run.rows} == {"bf16"}
    assert run.written[0] == tmp_path / "b.json"


def test_rotations_of_a_layer_and_of_a_network(options):
    run = suites.rotations(options, models=["stage2", "resnet18"], modes=["forward"])
    check(run, 2 * (1 + 2 * 3))
    assert {row["rotations"] for row in run.rows} == {1, 2, 3}


def test_precision(options):
    run = suites.precision(options, variants=["dense", "cyclic"], steps=2, seeds=1)
    assert [row["variant"] for row in run.rows] == ["dense", "cyclic"]
    assert all(row["precision"] == "bf16" for row in run.rows)
    assert all(len(row["losses"]) == 2 for row in run.rows)
    assert len(run.written) == 2


def test_goals_are_judged_at_full_size_only(tmp_path):
    options = Options(device="cpu", output=tmp_path, batch=1, size=32, repeats=1)
    run = suites.layers(options, models=["stage1"], rotations=[3], modes=["training"])
    assert [goal.met is None for goal in run.goals] == [False, True]
    assert len(json.loads(run.written[0].read_text())["goals"]) == 2


def test_a_time_limit_ends_a_run_cleanly(tmp_path):
    options = Options(device="cpu", quick=True, output=tmp_path, time_limit=1e-9)
    run = suites.layers(options, models=["colormnist"])
    assert {row["problem"] for row in run.rows} == {"left out: time limit"}
    assert not run.failed
    assert [path.suffix for path in run.written] == [".json"]
    assert json.loads(run.written[0].read_text())["time_limit_s"] == 1e-9


def test_what_is_there_is_not_lost(options):
    run = suites.layers(options, models=["colormnist"], modes=["forward"], variants=["plain"])
    before = run.written[0].read_text()
    with pytest.raises(FileExistsError, match="--force"):
        suites.layers(options, models=["colormnist"], modes=["forward"], variants=["plain"])
    assert run.written[0].read_text() == before


def test_a_killed_run_keeps_what_it_measured(options, monkeypatch):
    measure = suites.measure
    calls = iter((measure,))

    def once(*arguments, **more):
        try:
            return next(calls)(*arguments, **more)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(suites, "measure", once)
    with pytest.raises(KeyboardInterrupt):
        suites.layers(options, models=["colormnist"])
    rows = json.loads((options.output / "bench-layers-cpu.json").read_text())["rows"]
    assert {row["mode"] for row in rows} == {"training"}


def test_defaults_follow_the_device():
    settings, batch, size = Options(device="cpu").resolve("networks")
    assert (settings.precision, settings.compile, batch, size) == ("fp32", False, 4, 224)
    assert Options().time_limit == math.inf


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(device="tpu"), "device must be one of"),
        (Options(device="cpu", batch=0), "batch must be at least 1"),
        (Options(device="cpu", size=-1), "size must be at least 1"),
        (Options(device="cpu", precision="int8"), "precision must be one of"),
        (Options(device="cpu", repeats=0), "repeats must be at least 1"),
        (Options(device="cpu", time_limit=0), "time limit must be more than 0"),
    ],
)
def test_bad_options_are_named_before_anything_is_measured(options, message):
    with pytest.raises(ValueError, match=message):
        suites.layers(options)
    with pytest.raises(ValueError, match="at least one number"):
        suites.layers(Options(device="cpu"), rotations=[])
    with pytest.raises(ValueError, match="rotations must be at least 1"):
        suites.networks(Options(device="cpu"), rotations=[0])
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        suites.precision(Options(device="cpu"), seeds=0)
