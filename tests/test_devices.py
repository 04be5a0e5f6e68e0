"""Devices by name."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from equicolor import devices
from equicolor.cli import train
from equicolor.cli.app import app
from equicolor.cli.options import limit_threads
from equicolor.devices import choose_device
from equicolor.models import cecnn, save_model
from equicolor.training import loop
from equicolor.training.monitor import Monitor
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions


@pytest.mark.parametrize(
    "name", ["auto:3", "auto:", "cpu:", "cpu:abc", "cuda:", "cuda:01", "cuda:x", "tpu"]
)
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        choose_device(name)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device() == torch.device("cpu")
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device() == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="'cuda:2' was asked for, but torch sees 2 CUDA devices"):
        choose_device("cuda:2")
    with pytest.raises(ValueError, match="'cuda:256' was asked for"):
        choose_device("cuda:256")
    with pytest.raises(TypeError, match="device must be a str, got int: 0"):
        RunOptions(device=0)  # type: ignore[arg-type]


def test_training_takes_the_gpu_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(loop.pl, "Trainer", lambda **options: options["devices"])

    def devices_of(options: RunOptions) -> Any:
        monitor = Monitor(RunFolder(tmp_path), options, None)
        return loop._trainer(TrainingRecipe(), options, monitor)

    assert devices_of(RunOptions(device="cuda:1")) == [1]
    assert devices_of(RunOptions(device="cuda", devices=2)) == 2
    with pytest.raises(ValueError, match="cuda:0 is one device, but 2 were asked for"):
        RunOptions(device="cuda:0", devices=2)


@pytest.mark.parametrize(("others", "threads"), [(0, 6), (1, 3), (3, 1), (90, 1)])
def test_threads_on_a_busy_machine(
    others: int,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given: list[int] = []
    monkeypatch.setattr(devices, "_others_running", lambda: others)
    monkeypatch.setattr(devices, "_faster_than_one", lambda threads: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    limit_threads("cpu")  # as the user wants it
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads("cuda")
    assert given == []
    limit_threads("cpu")
    assert given == ([threads] if others else [])
    said = capsys.readouterr().err
    assert (f"torch uses {threads} of 6 threads" in said) == bool(others)


@pytest.mark.parametrize("waits", [True, False])
def test_several_threads_have_to_be_faster_than_one(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where threads wait for each other, though no other process runs."""
    counts = [2]

    def conv2d(*_: object) -> None:
        time.sleep(0.003 if (counts[-1] == 2) == waits else 0.001)

    monkeypatch.setattr(devices, "_others_running", lambda: 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    monkeypatch.setattr(torch, "conv2d", conv2d)
    assert devices.usable_threads() == (1 if waits else 2)
    assert counts[-1] == 2  # as before


@pytest.mark.parametrize(
    ("command", "work"),
    [
        ("convert x.safetensors -o y.safetensors", "equicolor.conversion.report.convert_source"),
        ("evaluate x.safetensors", "equicolor.evaluation.diagnose.diagnose"),
        ("canonicalize x.safetensors", "equicolor.canonicalization.report.canonicalize_named"),
        ("reproduce equivariance --quick", "equicolor.paper.engine.reproduce"),
        ("train images --size 32", "equicolor.training.fit.fit"),
    ],
)
def test_commands_limit_the_threads_before_they_work(
    command: str, work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for label in "ab":
        (tmp_path / "images" / label).mkdir(parents=True)
        Image.new("RGB", (40, 40)).save(tmp_path / "images" / label / "0.png")
    save_model(cecnn(2, width=4), tmp_path / "x.safetensors")
    given: list[int] = []
    monkeypatch.setattr(devices, "_others_running", lambda: 90)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def begin(*_: object, **__: object) -> None:
        raise ValueError(f"begun after {given}")

    monkeypatch.setattr(work, begin)
    result = CliRunner().invoke(app, command.split())
    assert "begun after [1]" in result.output


def test_a_checkpoint_fixes_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told a number that the checkpoint then replaces."""
    limited: list[str] = []
    monkeypatch.setattr(train, "limit_threads", limited.append)
    monkeypatch.setattr("equicolor.training.fit.fit", lambda *_, **__: None)
    for expected in ([], ["cpu"]):
        assert limited == expected
        train._run(TrainingRecipe(), tmp_path, RunOptions(device="cpu"), force=False)
        (tmp_path / "last.ckpt").touch()
    assert limited == ["cpu"]
