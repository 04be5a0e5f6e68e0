"""Shared by the benchmark scripts: options, timing in turns, memory, operations, result files.

All cases of a group are prepared first, then take turns, round after round. Whatever slows the
machine down then slows all of them, and the ratios of a round stay true.
"""

import argparse
import gc
import math
import operator
import shlex
import statistics
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from equicolor import _checks
from equicolor._observed import counting
from equicolor.devices import choose_device
from equicolor.results import Row, write_results

Step = Callable[[], object]
Call = Callable[[Tensor], Tensor]

# Rows of one group that agree in all of these differ only in their variant.
_SAME_CASE = ("name", "model", "rotations", "width", "lifting", "form")


@dataclass(frozen=True)
class Settings:
    """What all cases of a run share."""

    device: torch.device
    dtype: torch.dtype
    batch: int
    size: int
    rounds: int
    min_ms: float  # one measurement repeats a step until it takes this long
    output: Path

    @property
    def precision(self) -> str:
        """``"float32"`` or ``"bfloat16"``."""
        return str(self.dtype).removeprefix("torch.")

    def autocast(self) -> torch.autocast:
        """The context of a forward pass."""
        return torch.autocast(self.device.type, torch.bfloat16, self.dtype is torch.bfloat16)

    def place(self, module: nn.Module) -> nn.Module:
        """Move a module to the device, in channels_last memory."""
        module = module.to(self.device)
        return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Steps(NamedTuple):
    """The steps of a case.

    Attributes:
        eager: one step without compilation or CUDA graphs.
        record: returns the step to be timed.
    """

    eager: Step
    record: Callable[[], Step]


class Case(NamedTuple):
    """One thing to measure: the facts of its row, and how to build it."""

    row: Row
    build: Callable[[], Steps]


def positive_int(text: str) -> int:
    """A number from the command line, at least 1."""
    return _checks.positive_int("number", int(text))


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every script."""
    options = argparse.ArgumentParser(description=description, allow_abbrev=False)
    options.add_argument("--device", default="auto", help="auto, cpu or cuda")
    options.add_argument("--batch", type=positive_int, help="images at a time")
    options.add_argument("--size", type=positive_int, help="height and width of the images")
    options.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        help="bfloat16 is autocast; default: float32 on a CPU, bfloat16 on a GPU",
    )
    options.add_argument("--rounds", type=positive_int, help="measurements of every case")
    options.add_argument(
        "--min-ms", type=float, help="shortest measurement; default: 100 on a GPU, else 10"
    )
    options.add_argument("--output", type=Path, help="JSON file; default: in runs/bench/")
    options.add_argument("--force", action="store_true", help="replace an earlier file")
    return options


def settings_of(
    options: argparse.Namespace, *, batch: dict[str, int], size: int = 224, precision: str = ""
) -> Settings:
    """Settings from the command line; ``batch`` has the default for each type of device."""
    device = choose_device(options.device)
    on_gpu = device.type == "cuda"
    precision = options.precision or precision or ("bfloat16" if on_gpu else "float32")
    name = f"bench-{Path(sys.argv[0]).stem}-{device.type}.json"
    output = options.output or Path("runs/bench") / name
    if output.exists() and not options.force:
        raise SystemExit(f"{output} exists; --force replaces it")
    torch.backends.cudnn.benchmark = True  # as in training
    return Settings(
        device,
        getattr(torch, precision),
        options.batch or batch[device.type],
        options.size or size,
        options.rounds or (20 if on_gpu else 7),
        # On a GPU several steps: alone, the launch of a step would count, which in a training is
        # hidden behind the step before.
        (100.0 if on_gpu else 10.0) if options.min_ms is None else options.min_ms,
        output,
    )


def measure(
    cases: Iterable[Case], settings: Settings, peak_tflops: float | None = None
) -> list[Row]:
    """Measure the cases of one group in turns.

    A case that fails gets a ``problem`` instead of times; the others go on.

    Returns:
        A row for every case, with ``times_ms`` of all rounds, ``ms`` (their median),
        ``images_per_s``, ``peak_mib`` (on a GPU), ``gflop``, ``tflops``, ``peak_fraction``, and
        the ratios of :func:`with_ratios`.
    """
    rows: list[Row] = []
    timers: list[tuple[Row, Timer, int]] = []
    for case in cases:
        rows.append(row := {**case.row, "batch": settings.batch, "precision": settings.precision})
        print("preparing", *(row[name] for name in ("name", "variant", "form", "mode")), flush=True)
        try:
            before = _allocated(settings.device)
            steps = case.build()
            # The counter must not make our kernels fall back to ordinary operations.
            with counting(), FlopCounterMode(display=False) as counter:
                steps.eager()
            row["gflop"] = _rounded(counter.get_total_flops() / 1e9)
            peak = _peak(steps.eager, settings.device)
            step = steps.record()
            timer, once = _timer(step)
            # The allocator does not see the memory of graphs. A captured step needs as much as the
            # eager one; the memory of graphs from torch.compile is unknown.
            if row["form"] == "compiled-graphs":
                peak = None
            elif row["form"] != "captured":
                peak = _peak(step, settings.device)
            row["peak_mib"] = None if peak is None else _rounded((peak - before) / 2**20)
            row["times_ms"] = []
            timers.append((row, timer, max(1, math.ceil(settings.min_ms / once))))
        except Exception as error:
            traceback.print_exc()
            first_line = str(error).strip().partition("\n")[0]
            row["problem"] = f"{type(error).__name__}: {first_line}"
            _clean(settings.device)
    for _ in range(settings.rounds):
        for row, timer, number in timers:
            row["times_ms"].append(_rounded(1e3 * timer.timeit(number).mean))
    for row, *_ in timers:
        row["ms"] = ms = _rounded(statistics.median(row["times_ms"]))
        row["images_per_s"] = _rounded(1e3 * settings.batch / ms)
        row["tflops"] = _rounded(row["gflop"] / ms)
        if peak_tflops:
            row["peak_fraction"] = _rounded(row["tflops"] / peak_tflops)
    timers.clear()
    _clean(settings.device)
    return with_ratios(rows)


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Rows of one group with ratios between them.

    ``over_plain`` and ``memory_over_plain`` are multiples of the fastest plain row and of the
    plain row with the least memory. ``dense_over`` says how many times faster a row is than the
    dense variant of the same case; ``over_best`` how many times slower ``auto`` is than the faster
    of the two algorithms it chooses from. A ratio of times is the median of the rounds' ratios.
    """
    plain = [row for row in rows if row["variant"] == "plain"]
    fastest = min(plain, key=lambda row: row.get("ms", math.inf), default={})
    least = min((row["peak_mib"] for row in plain if row.get("peak_mib")), default=None)
    results = []
    for row in rows:
        variants = {
            other["variant"]: other
            for other in rows
            if all(other.get(key) == row.get(key) for key in _SAME_CASE)
        }
        ratios: Row = {"over_plain": ratio(row, fastest)}
        if least and row.get("peak_mib"):
            ratios["memory_over_plain"] = round(row["peak_mib"] / least, 3)
        if row["variant"] != "plain":
            ratios["dense_over"] = ratio(variants.get("dense", {}), row)
        if row["variant"] == "auto":
            over = [ratio(row, variants.get(name, {})) for name in ("dense", "cyclic")]
            ratios["over_best"] = None if None in over else max(filter(None, over))
        results.append(row | ratios)
    return results


def ratio(row: Row, base: Row) -> float | None:
    """The time of a row in multiples of another row's; None if either was not measured."""
    times, others = row.get("times_ms"), base.get("times_ms")
    if not times or not others:
        return None
    return round(float(statistics.median(map(operator.truediv, times, others))), 3)


def matrix_peak(settings: Settings) -> float:
    """TFLOP/s of the fastest square matrix product, in the precision of convolutions.

    On a GPU, torch computes float32 convolutions in TensorFloat-32, so the product does, too.
    """
    best, on_gpu = 0.0, settings.device.type == "cuda"
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on_gpu else before)
    for side in (4096, 8192, 16384) if on_gpu else (512, 1024):
        a, b = torch.rand(2, side, side, device=settings.device).to(settings.dtype)
        timer, _ = _timer(partial(torch.matmul, a, b))
        seconds = min(timer.timeit(1).mean for _ in range(5))
        best = max(best, 2 * side**3 / seconds / 1e12)
    torch.set_float32_matmul_precision(before)
    return best


def run(groups: Iterable[Iterable[Case]], columns: Sequence[str], settings: Settings) -> None:
    """Measure groups of cases, and write the rows after each group: a killed run keeps them."""
    peak, rows = matrix_peak(settings), []
    for group in groups:
        rows += measure(group, settings, peak)
        write(rows, settings, matrix_peak_tflops=_rounded(peak))
    finish(rows, columns, settings)


def write(rows: Sequence[Row], settings: Settings, **facts: Any) -> None:
    """Write the rows so far, with the command that makes them again."""
    script = Path(sys.argv[0])
    command = shlex.join(["python", f"benchmarks/{script.name}", *sys.argv[1:]])
    facts |= {"command": command, "suite": script.stem}
    write_results(settings.output, rows, device=settings.device, **facts)


def finish(rows: Sequence[Row], columns: Sequence[str], settings: Settings) -> None:
    """Print a table and the name of the file; exit with 1 if a case failed."""
    lines = [[str(row.get(column, "–")) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *lines, strict=True)]
    for line in (columns, *lines):
        print("  ".join(map(str.ljust, line, widths)).rstrip())
    problems = [f"{row['name']}: {row['problem']}" for row in rows if "problem" in row]
    print(*problems, f"wrote {settings.output}", sep="\n")
    if problems:
        raise SystemExit(1)


def _timer(step: Step) -> tuple[Timer, float]:
    """A timer of a step, and the milliseconds of a run after those that warm up."""
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    return timer, 1e3 * timer.timeit(1).mean


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _peak(step: Step, device: torch.device) -> int | None:
    """The most bytes that torch's CUDA allocator holds during a step; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def _clean(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _rounded(value: float) -> float:
    """Four significant figures: more would be noise."""
    return float(f"{value:.4g}")
