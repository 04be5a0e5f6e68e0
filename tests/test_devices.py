"""Devices by name."""

from pathlib import Path

import pytest
import torch

from equicolor import devices
from equicolor.cli import train
from equicolor.cli.options import settle_threads
from equicolor.devices import choose_device
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_options import RunOptions


@pytest.mark.parametrize("name", ["auto:3", "cpu:abc", "cuda:x", "tpu"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        choose_device(name)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device() == torch.device("cpu")
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device() == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("others", "threads"), [(0, 6), (1, 3), (3, 1), (90, 1)])
def test_threads_on_a_busy_machine(
    others: int,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given: list[int] = []
    monkeypatch.setattr(devices, "_others_running", lambda: others)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    settle_threads("cpu")  # as the user wants it
    monkeypatch.delenv("OMP_NUM_THREADS")
    settle_threads("cuda")
    assert given == []
    settle_threads("cpu")
    assert given == ([threads] if others else [])
    said = capsys.readouterr().err
    assert (f"torch uses {threads} of 6 threads" in said) == bool(others)


def test_a_checkpoint_fixes_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told a number that the checkpoint then replaces."""
    settled: list[str] = []
    monkeypatch.setattr(train, "settle_threads", settled.append)
    monkeypatch.setattr("equicolor.training.fit.fit", lambda *_, **__: None)
    for expected in ([], ["cpu"]):
        assert settled == expected
        train._run(TrainingRecipe(), tmp_path, RunOptions(device="cpu"), force=False)
        (tmp_path / "last.ckpt").touch()
    assert settled == ["cpu"]
