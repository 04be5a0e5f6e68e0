"""Dense against cyclic: time and peak memory of one hidden layer, forward and backward.

Algorithms are timed in turns within one run, so the ratios mean something even where the
milliseconds do not carry over. Writes JSON and prints a table.
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from equicolor.nn import CEConv2d
from equicolor.nn.algorithm import choose_algorithm
from equicolor.results import write_results

# (channels, height = width, batch): ColorMNIST, first and third stage of CE-ResNet-18.
SHAPES = ((17, 26, 64), (55, 55, 8), (221, 14, 16))
ALGORITHMS = ("dense", "cyclic", "auto")


def measure(channels: int, size: int, batch: int, rotations: int, rounds: int) -> dict[str, Any]:
    """Median milliseconds and peak memory of every algorithm at one shape."""
    torch.manual_seed(0)
    x = torch.randn(rotations, batch, size, size, channels).permute(1, 4, 0, 2, 3)
    layers = {
        name: CEConv2d(channels, channels, 3, padding=1, rotations=rotations, algorithm=name)
        for name in ALGORITHMS
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ALGORITHMS}
    for _ in range(rounds + 1):
        for name, layer in layers.items():
            times[name].append(_time_step(layer, x))
    row: dict[str, Any] = {
        "channels": channels,
        "size": size,
        "batch": batch,
        "rotations": rotations,
        "chosen": choose_algorithm(rotations, layers["auto"].weight.shape),
    }
    for name, layer in layers.items():
        forward, step = zip(*times[name][1:], strict=True)  # the first round warms up
        row[f"{name}_forward_ms"] = round(1e3 * statistics.median(forward), 2)
        row[f"{name}_ms"] = round(1e3 * statistics.median(step), 2)
        row[f"{name}_peak_mib"] = _peak_memory(layer, x)
    row["auto_over_best"] = round(row["auto_ms"] / min(row["dense_ms"], row["cyclic_ms"]), 3)
    row["dense_over_auto"] = round(row["dense_ms"] / row["auto_ms"], 2)
    return row


def _time_step(layer: CEConv2d, x: Tensor) -> tuple[float, float]:
    """Seconds of a forward pass, and of forward and backward together."""
    x = x.detach().requires_grad_()
    layer.zero_grad()
    start = time.perf_counter()
    y = layer(x)
    forward = time.perf_counter() - start
    y.backward(torch.ones_like(y))
    return forward, time.perf_counter() - start


def _peak_memory(layer: CEConv2d, x: Tensor) -> float:
    """The most memory one step holds beyond its inputs and parameters, in MiB."""
    with torch.profiler.profile(profile_memory=True) as profiler:
        _time_step(layer, x)
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    allocations = [event for event in events if event.name() == "[memory]"]
    allocations.sort(key=lambda event: event.start_ns())
    held = itertools.accumulate(event.nbytes() for event in allocations)
    return round(float(max(held)) / 2**20, 1)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rotations", type=int, nargs="+", default=[3, 6, 12])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path("results/bench-layers-cpu.json"))
    args = parser.parse_args()
    cases = [(*shape, n) for shape in SHAPES for n in args.rotations]
    rows = [measure(*case, args.rounds) for case in track(cases, "timing layers")]
    table = Table("channels", "size", "n", *ALGORITHMS, "auto / best", "dense / auto", "peak MiB")
    for row in rows:
        table.add_row(
            str(row["channels"]),
            str(row["size"]),
            str(row["rotations"]),
            *(f"{row[f'{name}_ms']:.1f} ms" for name in ALGORITHMS),
            f"{row['auto_over_best']:.2f}",
            f"{row['dense_over_auto']:.2f}",
            " / ".join(str(row[f"{name}_peak_mib"]) for name in ALGORITHMS),
        )
    Console(width=120).print(table)
    print("wrote", write_results(args.output, rows, rounds=args.rounds))


if __name__ == "__main__":
    main()
