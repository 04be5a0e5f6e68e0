"""Show where a step of a network spends its time: kernel by kernel, under torch's profiler.

On a GPU the rows are kernels, on a CPU operators. ``share`` is of the time of all kernels; ``idle``
is the time that the GPU waits between them.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from _timing import Settings, Step, finish, parser, settings_of, write
from equicolor.results import Row
from networks import FORMS, MODES, cases, network_named

COLUMNS = ("name", "form", "mode", "kind", "kernel", "calls", "ms", "share")
# The kind of a kernel is that of the first pattern that matches its name.
KINDS = (
    ("convolution, gradient of filters", r"wgrad|backward_weights"),
    ("convolution, gradient of inputs", r"dgrad|backward_data"),
    ("convolution, gradients", r"convolution_backward"),
    ("convolution or matrix product", r"fprop|conv|xmma|cutlass|gemm|nvjet|addmm|::mm"),
    ("optimizer", r"adam|multi_tensor"),
    ("copy", r"mem(cpy|set)|copy|nchwTo|nhwcTo"),
    ("ours", r"^_?[a-z0-9_]+_kernel$"),
    ("reduction", r"reduce|sum|var_mean|batch_norm"),
)
MOST = 60  # kernels of a case that are listed; the others are one row


def kind_of(kernel: str) -> str:
    """The kind of a kernel, from its name."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, kernel)), "elementwise")


def profiled(step: Step, settings: Settings) -> list[Row]:
    """The kernels of a step, the slowest first, and the idle time of a GPU."""
    on_gpu = settings.device.type == "cuda"
    for _ in range(3):
        step()
    _wait(settings)
    activities = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as watched:
        for _ in range(settings.rounds):
            step()
        _wait(settings)
    start = time.perf_counter()  # again without the profiler, which slows launches down
    for _ in range(settings.rounds):
        step()
    _wait(settings)
    step_ms = 1e3 * (time.perf_counter() - start) / settings.rounds
    rows = sorted(_rows(watched, settings.rounds, on_gpu=on_gpu), key=lambda row: -row["ms"])
    total = sum(row["ms"] for row in rows)
    listed, rest = rows[:MOST], rows[MOST:]
    if rest:
        calls, ms = (sum(row[key] for row in rest) for key in ("calls", "ms"))
        listed.append({"kind": "others", "kernel": f"{len(rest)} more", "calls": calls, "ms": ms})
    if on_gpu:
        idle = {"kind": "idle", "kernel": "", "calls": 0, "ms": max(0.0, step_ms - total)}
        listed.append(idle)
    return [
        row | {"ms": round(row["ms"], 4), "share": round(row["ms"] / total, 4)} for row in listed
    ]


def _rows(watched: Any, rounds: int, *, on_gpu: bool) -> Iterator[Row]:
    for event in watched.key_averages():
        time_us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if time_us and not event.key.startswith(("ProfilerStep", "cuda", "Activity Buffer")):
            calls, kernel = event.count / rounds, event.key[:120]
            yield {
                "kind": kind_of(kernel), "kernel": kernel, "calls": calls,
                "ms": time_us / 1e3 / rounds,
            }  # fmt: skip


def _wait(settings: Settings) -> None:
    if settings.device.type == "cuda":
        torch.cuda.synchronize(settings.device)


def main() -> None:
    """Run the script."""
    options = parser(__doc__)
    options.add_argument("--network", default="resnet18", help="plain network: resnet18, resnet44")
    options.add_argument(
        "--networks", nargs="*", type=network_named, metavar="NAME",
        default=[network_named("n3-fast")], help="equivariant: n3-fast, n12-matched-hsv, n6-56-p4",
    )  # fmt: skip
    options.add_argument("--modes", nargs="+", choices=MODES, default=("training",))
    options.add_argument("--forms", nargs="*", choices=FORMS, default=None)
    options.add_argument("--plain-forms", nargs="*", choices=FORMS, default=[])
    given = options.parse_args()
    given.variants, given.reference = ("auto",), None
    settings = settings_of(given, batch={"cpu": 4, "cuda": 256})
    on_gpu = settings.device.type == "cuda"
    given.forms = given.forms or (["captured"] if on_gpu else ["eager"])
    rows: list[Row] = []
    for mode in given.modes:
        for case in cases(given, mode, settings):
            print("profiling", case.row["name"], case.row["form"], mode, flush=True)
            kernels = profiled(case.build().record(), settings)
            rows += [{**case.row, "batch": settings.batch, **kernel} for kernel in kernels]
            write(rows, settings)
    finish(rows, COLUMNS, settings)


if __name__ == "__main__":
    main()
