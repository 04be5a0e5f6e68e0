"""Groups of cases become rows, whatever happens to one of them."""

import pytest
import torch
from torch import nn

from equicolor.benchmark.cases import Case, Settings
from equicolor.benchmark.layers import Shape, layer_cases
from equicolor.benchmark.measure import LEFT_OUT, OUT_OF_MEMORY, measure
from equicolor.benchmark.resources import (
    count_operations,
    matrix_peak,
    out_of_memory,
    peak_memory,
)
from equicolor.benchmark.timing import Deadline

CPU = torch.device("cpu")
SETTINGS = Settings(CPU, repeats=2, warm_up=1, shortest_ms=0)


def convolution(**facts):
    facts = {"model": "conv", "rotations": 1, **facts}
    return Case(lambda: nn.Conv2d(3, 8, 3, bias=False), (2, 3, 10, 10), facts=facts)


class Failing(nn.Module):
    """Fails from some call on."""

    def __init__(self, error, after):
        super().__init__()
        self.error, self.left = error, after

    def forward(self, x):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return x * 2


def failing(error, after=0, name="bad"):
    return Case(lambda: Failing(error, after), (2, 3, 10, 10), facts={"model": name})


def test_row_says_what_was_measured():
    (row,) = measure([convolution(width=8)], SETTINGS, peak_tflops=2.0)
    assert (row["model"], row["variant"], row["mode"]) == ("conv", "plain", "forward")
    assert (row["batch"], row["width"], row["precision"], row["compiled"]) == (2, 8, "fp32", False)
    operations = 2 * 2 * 8 * 3 * 9 * 8 * 8
    assert row["gflop"] == pytest.approx(operations / 1e9, rel=1e-3)
    assert len(row["times_ms"]) == 2
    assert min(row["times_ms"]) == row["ms_min"] <= row["ms"] <= max(row["times_ms"])
    assert row["images_per_s"] == pytest.approx(2e3 / row["ms"], rel=1e-2)
    assert row["tflops"] == pytest.approx(operations / row["ms"] / 1e9, rel=1e-2)
    assert row["peak_fraction"] == pytest.approx(row["tflops"] / 2, rel=1e-2)
    # images, weights and outputs, and whatever scratch the library wants
    assert row["peak_mib"] * 2**20 >= 4 * 0.999 * (600 + 216 + 1024)
    assert row["over_plain"] == 1.0
    assert "problem" not in row


def test_layers_in_all_variants():
    group = layer_cases(
        "tiny", Shape(8, 6), 3, batch=2, mode="training", variants=("plain", "dense", "cyclic")
    )
    plain, dense, cyclic = measure(group, SETTINGS, peak_tflops=1.0)
    assert [row["width"] for row in (plain, dense, cyclic)] == [8, 6, 6]
    # forward and two backward convolutions; the dense one has n times the channels
    assert plain["gflop"] == pytest.approx(3 * 2 * 2 * 36 * 9 * 64 / 1e9, rel=1e-3)
    assert dense["gflop"] == pytest.approx(3 * 2 * 2 * 36 * 9 * 18**2 / 1e9, rel=1e-3)
    products = 3 * 4 * 2 * 2 * 36 * 9 * 36 / 1e9
    assert products < cyclic["gflop"] < 1.5 * products  # mixing is counted too
    assert cyclic["dense_over"] > 0
    assert dense["over_plain"] > 0


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
)
@pytest.mark.parametrize("after", [0, 4])  # when it is made ready; when it is timed
def test_out_of_memory_is_a_result(error, after, capfd):
    rows = measure([convolution(), failing(error, after), convolution()], SETTINGS, peak_tflops=1)
    assert [row.get("problem") for row in rows] == [None, OUT_OF_MEMORY, None]
    assert rows[1]["ms"] is None
    assert rows[1]["over_plain"] is None
    assert len(rows[2]["times_ms"]) == 2
    assert capfd.readouterr().err == ""


def test_failures_are_told_and_do_not_spread(capfd):
    error = ValueError("no such thing\nand a long story")
    rows = measure([failing(error), failing(error), convolution()], SETTINGS, peak_tflops=1.0)
    assert [row.get("problem") for row in rows] == ["ValueError: no such thing"] * 2 + [None]
    assert capfd.readouterr().err.count("Traceback") == 1


def test_interruption_is_not_a_failure():
    with pytest.raises(KeyboardInterrupt):
        measure([failing(KeyboardInterrupt())], SETTINGS, peak_tflops=1.0)


def test_what_a_time_limit_leaves_out():
    clock = iter([0.0, 1.0, 99.0, 99.0])  # made, first case, second case, end of round one
    deadline = Deadline(10, lambda: next(clock))
    rows = measure([convolution(), convolution()], SETTINGS, peak_tflops=1.0, deadline=deadline)
    assert [row.get("problem") for row in rows] == [None, LEFT_OUT]
    assert len(rows[0]["times_ms"]) == 1


def test_progress_is_told_of_every_case_and_measurement():
    told = []
    measure([convolution()] * 2, SETTINGS, peak_tflops=1.0, progress=lambda: told.append(1))
    assert len(told) == 2 + 2 * 2


def test_compiled_cases_may_be_many(monkeypatch):
    limits = []

    def compile_(module, dynamic, mode):
        from torch import _dynamo

        limits.append(_dynamo.config.recompile_limit)
        return module

    monkeypatch.setattr(torch, "compile", compile_)
    settings = Settings(CPU, compile=True, repeats=1, warm_up=0, shortest_ms=0)
    (row,) = measure([convolution()], settings, peak_tflops=1.0)
    assert row["compiled"] is True
    assert limits[0] > 100


def test_peak_memory_is_the_most_at_once():
    def step():
        a = torch.ones(1000, 1000)  # 4 MB
        b = a + 1
        del a
        c = b + 1
        del b
        return c

    assert 8_000_000 <= peak_memory(step, CPU) < 8_100_000
    assert peak_memory(lambda: None, CPU) == 0


def test_operations_of_forward_and_backward():
    a = torch.rand(4, 5, requires_grad=True)
    b = torch.rand(5, 6)
    assert count_operations(lambda: a @ b) == 240
    assert count_operations(lambda: (a @ b).sum().backward()) == 480


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_matrix_peak_is_measured(precision):
    earlier = torch.get_float32_matmul_precision()
    assert 1e-5 < matrix_peak(Settings(CPU, precision=precision), shortest_ms=0.0) < 1e4
    assert torch.get_float32_matmul_precision() == earlier


def test_not_every_error_is_about_memory():
    assert not out_of_memory(RuntimeError("expected scalar type"))
    assert out_of_memory(RuntimeError("CUDA error: out of memory"))
