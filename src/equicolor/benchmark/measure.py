"""Measure cases group by group; those of a group take turns and are compared."""

import contextlib
import gc
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from equicolor.benchmark.cases import Case, Settings
from equicolor.benchmark.ratios import Row, with_ratios
from equicolor.benchmark.resources import count_operations, out_of_memory, peak_memory
from equicolor.benchmark.steps import Prepared, is_recorded, prepare
from equicolor.benchmark.timing import Deadline, iterations, milliseconds, take_turns
from equicolor.benchmark.variants import can_fuse, takes_fused_path
from equicolor.nn.observed import counting

__all__ = ["LEFT_OUT", "OUT_OF_MEMORY", "measure"]

OUT_OF_MEMORY, LEFT_OUT = "out of memory", "left out: time limit"
_LONG_MS = 500  # such steps need no more warming up
_MIB = 2**20


@dataclass
class _Runner:
    """A case on its way to a row; what goes wrong with it ends with it."""

    case: Case
    shown: set[str]  # problems whose traceback was printed, of all cases together
    problem: str | None = None
    ready: Prepared | None = None
    fused: bool = False
    operations: int | None = None
    peak_bytes: int = 0
    estimate_ms: float = 0.0

    def __call__(self) -> None:
        with self.caught():
            if self.ready is not None:
                self.ready.step()

    def get_ready(self, settings: Settings) -> None:
        """Build, count, warm up, and take the peak of memory."""
        with self.caught():
            self.ready = ready = prepare(self.case, settings)
            ours = self.case.variant == "fused" or not settings.compile
            if ours and can_fuse(settings.device):
                self.fused = takes_fused_path(ready.eager)
            if self.case.variant == "fused" and not self.fused:
                raise RuntimeError("the fused path was not taken; see equicolor.nn._fused.applies")
            self.operations = self._count(ready)
            self.estimate_ms = _warm_up(ready, settings)
            # A recorded step keeps its memory for itself, as much as the step takes without.
            step = ready.eager if self.case.variant == "fused" else ready.step
            self.peak_bytes = peak_memory(step, settings.device) + ready.resident()

    def _count(self, ready: Prepared) -> int | None:
        """Operations of a step; what our own kernels do between convolutions is not counted."""
        try:
            with counting() if self.fused else contextlib.nullcontext():
                return count_operations(ready.eager)
        except RuntimeError as error:  # without compilation it may take more memory
            if not out_of_memory(error):
                raise
            return None

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Keep what goes wrong for the row: GPU minutes of the other cases are dear."""
        try:
            yield
        except Exception as error:
            self.problem = OUT_OF_MEMORY
            if not out_of_memory(error):
                self.problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                if self.problem not in self.shown:
                    traceback.print_exc(file=sys.stderr)
                self.shown.add(self.problem)
        if self.problem is not None:
            self.ready = None

    def row(self, settings: Settings, times: Sequence[float], peak_tflops: float) -> Row:
        compiled = settings.compile and self.case.variant != "fused"
        row = {**self.case.row, "precision": settings.precision, "compiled": compiled}
        if self.problem is not None:
            return {**row, "ms": None, "problem": self.problem}
        ms = statistics.median(times)
        row["fused"] = self.fused
        row["recorded"] = is_recorded(self.case.variant, settings, self.case.recorded)
        row |= {
            "ms": _figures(ms),
            "ms_min": _figures(min(times)),
            "images_per_s": _figures(1e3 * self.case.shape[0] / ms),
            "peak_mib": _figures(self.peak_bytes / _MIB),
        }
        if self.operations is not None:
            speed = self.operations / ms / 1e9
            row |= {
                "gflop": _figures(self.operations / 1e9),
                "tflops": _figures(speed),
                "peak_fraction": _figures(speed / peak_tflops),
            }
        return {**row, "times_ms": [_figures(value) for value in times]}


def measure(
    group: Sequence[Case],
    settings: Settings,
    *,
    peak_tflops: float,
    deadline: Deadline | None = None,
    progress: Callable[[], object] = lambda: None,
) -> list[Row]:
    """Measure cases in turns.

    All of them stay on the device until the end. One that runs out of memory, or fails in
    another way, says so in its row and does not stop the others.

    Args:
        group: the cases to compare.
        settings: where and how.
        peak_tflops: of :func:`~equicolor.benchmark.resources.matrix_peak`.
        deadline: cases that are not ready by then are left out; the others get at least one
            round. What has begun, compilation above all, is not broken off.
        progress: called after every case that was made ready, and after every measurement.

    Returns:
        A row a case: median milliseconds ``ms``, ``images_per_s``, ``peak_mib`` (weights,
        optimizer and inputs included), executed ``gflop`` and ``tflops``, ``peak_fraction``,
        the times of all rounds, and the ratios of
        :func:`~equicolor.benchmark.ratios.with_ratios`; or ``ms`` None and a ``problem``.

    Example:
        >>> from torch import nn
        >>> case = Case(lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8), facts={"model": "stem"})
        >>> settings = Settings(torch.device("cpu"), repeats=2, shortest_ms=0)
        >>> (row,) = measure([case], settings, peak_tflops=0.1)
        >>> row["gflop"], len(row["times_ms"]), row["over_plain"]
        (1.555e-05, 2, 1.0)
    """
    deadline = Deadline() if deadline is None else deadline
    shown: set[str] = set()
    runners = [_Runner(case, shown) for case in group]
    with _best_convolutions(settings):
        for runner in runners:
            once = sum(max(other.estimate_ms, settings.shortest_ms) for other in runners) / 1e3
            if deadline.over(reserve=once * min(3, settings.repeats)):
                runner.problem = LEFT_OUT
            else:
                runner.get_ready(settings)
                if runner.problem is not None:
                    _clean(settings.device)
            progress()
        ready = [runner for runner in runners if runner.problem is None]
        times = take_turns(
            ready,
            [iterations(runner.estimate_ms, settings.shortest_ms) for runner in ready],
            settings.device,
            repeats=settings.repeats,
            deadline=deadline,
            progress=progress,
        )
    by_case = dict(zip(map(id, ready), times, strict=True))
    rows = [runner.row(settings, by_case.get(id(runner), []), peak_tflops) for runner in runners]
    del runners, ready
    _clean(settings.device)
    return with_ratios(rows)


def _warm_up(ready: Prepared, settings: Settings) -> float:
    """Call a step until it is as fast as it gets; milliseconds of the last call."""
    for call in range(settings.warm_up + 1):
        last = milliseconds(ready.step, settings.device)
        if call and last > _LONG_MS:  # the first may have compiled
            break
    return last


@contextlib.contextmanager
def _best_convolutions(settings: Settings) -> Iterator[None]:
    """CuDNN tries its algorithms, and every case may be compiled: by default torch stops at 8."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        if not settings.compile:
            yield
            return
        from torch import _dynamo as dynamo  # slow to import

        with dynamo.config.patch(recompile_limit=1024, accumulated_recompile_limit=8192):
            yield


def _clean(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _figures(value: float) -> float:
    """Four significant figures: more would be noise in the file."""
    return float(f"{value:.4g}")
