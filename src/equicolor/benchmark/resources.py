"""What a step takes and what the device could do: memory, operations, matrix peak."""

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator

import torch
from torch.utils.flop_counter import FlopCounterMode

from equicolor.benchmark.cases import Settings
from equicolor.benchmark.steps import Step
from equicolor.benchmark.timing import milliseconds

__all__ = ["count_operations", "matrix_peak", "out_of_memory", "peak_memory"]


def peak_memory(step: Step, device: torch.device) -> int:
    """The most bytes a step holds beyond what was there before it.

    Counted in torch's allocators: of CUDA by its own statistics, of the CPU from the
    profiler's record of allocations. Neither sees what a library takes for itself.

    Example:
        >>> peak_memory(lambda: torch.ones(256, 256).add(1), torch.device("cpu")) // 1024
        512
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    with _quiet(), torch.profiler.profile(profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    allocations = [event for event in events if event.name() == "[memory]"]
    allocations.sort(key=lambda event: event.start_ns())
    held = itertools.accumulate(event.nbytes() for event in allocations)
    return int(max(held, default=0))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Throw away what torch's profiler writes to the process's stderr by itself."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - not a file of ours
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def count_operations(step: Step) -> int:
    """Floating-point operations that a step executes in convolutions and matrix products.

    Example:
        >>> a = torch.rand(8, 8)
        >>> count_operations(lambda: a @ a)
        1024
    """
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def matrix_peak(settings: Settings, *, shortest_ms: float = 20.0) -> float:
    """TFLOP/s of the fastest square matrix product of a device, as convolutions compute.

    The side is doubled until a product takes ``shortest_ms``. On CUDA, fp32 is TensorFloat-32,
    which is what torch's convolutions use there.

    Args:
        settings: device and precision.
        shortest_ms: how long a product may be for the last side to be tried.

    Example:
        >>> matrix_peak(Settings(torch.device("cpu")), shortest_ms=0.1) > 0
        True
    """
    earlier = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if settings.device.type == "cuda" else earlier)
    try:
        best, side = 0.0, 512 if settings.device.type == "cpu" else 4096
        while True:
            a = torch.rand(side, side, device=settings.device).to(settings.dtype)
            b = torch.rand(side, side, device=settings.device).to(settings.dtype)
            milliseconds(lambda: a @ b, settings.device, 2)  # noqa: B023 - called here and now
            times = [milliseconds(lambda: a @ b, settings.device) for _ in range(7)]  # noqa: B023
            best = max(best, 2 * side**3 / min(times) / 1e9)
            if min(times) >= shortest_ms or side >= 16384:
                return best
            side *= 2
    finally:
        torch.set_float32_matmul_precision(earlier)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device.

    Example:
        >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), (
        ...     out_of_memory(RuntimeError("shapes do not fit")))
        (True, False)
    """
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        "out of memory" in text or "can't allocate memory" in text
    )
