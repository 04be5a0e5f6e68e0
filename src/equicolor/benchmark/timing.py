"""Time: many calls in turns, so that whatever slows the machine down hits all alike."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from equicolor.benchmark.steps import Step

__all__ = ["Deadline", "iterations", "milliseconds", "paired_ratio", "take_turns"]


@dataclass(frozen=True)
class Deadline:
    """A moment after which nothing new is begun.

    Attributes:
        seconds: from now; none by default.
        clock: what says the time.

    Example:
        >>> Deadline(60).over(), Deadline(60).over(reserve=90), Deadline().over()
        (False, True, False)
    """

    seconds: float = math.inf
    clock: Callable[[], float] = time.monotonic
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"time limit must be more than 0 seconds, got {self.seconds}")
        object.__setattr__(self, "_start", self.clock())

    def over(self, reserve: float = 0.0) -> bool:
        """Whether fewer than ``reserve`` seconds are left."""
        return self.clock() - self._start + reserve > self.seconds


def milliseconds(step: Step, device: torch.device, count: int = 1) -> float:
    """Time of one call, from ``count`` of them in a row; on CUDA by events of the device.

    Example:
        >>> milliseconds(lambda: time.sleep(0.002), torch.device("cpu")) >= 2
        True
    """
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(count):
            step()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / count
    begin = time.perf_counter()
    for _ in range(count):
        step()
    return 1e3 * (time.perf_counter() - begin) / count


def iterations(estimate_ms: float, shortest_ms: float) -> int:
    """How many calls last at least ``shortest_ms``, if one takes ``estimate_ms``.

    Example:
        >>> iterations(3.0, 10.0), iterations(50.0, 10.0)
        (4, 1)
    """
    return max(1, math.ceil(shortest_ms / max(estimate_ms, 1e-3)))


def take_turns(
    steps: Sequence[Step],
    counts: Sequence[int],
    device: torch.device,
    *,
    repeats: int,
    deadline: Deadline,
    progress: Callable[[], object] = lambda: None,
) -> list[list[float]]:
    """Milliseconds of every step, measured in rounds: each step once, then each once more.

    Args:
        steps: what to call, warmed up.
        counts: how many calls one measurement of each has.
        device: where they run.
        repeats: rounds.
        deadline: no round is begun after it, but one is always made.
        progress: called after every measurement.

    Returns:
        The times of each step, one a round.

    Example:
        >>> times = take_turns([lambda: None] * 2, [1, 1], torch.device("cpu"), repeats=3,
        ...                    deadline=Deadline())
        >>> [len(own) for own in times]
        [3, 3]
    """
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(repeats):
        if turn and deadline.over():
            break
        for own, step, count in zip(times, steps, counts, strict=True):
            own.append(milliseconds(step, device, count))
            progress()
    return times


def paired_ratio(times: Sequence[float], base: Sequence[float]) -> float:
    """How many times as long as ``base``: the median of the rounds' ratios.

    Taken round by round, so that a machine that slows down halfway does not matter.

    Example:
        >>> paired_ratio([2.0, 4.0, 40.0], [1.0, 2.0, 20.0])
        2.0
    """
    if not times or len(times) != len(base):
        raise ValueError(
            f"ratios need the same rounds of both, at least one; got {len(times)} and {len(base)}"
        )
    return statistics.median(own / other for own, other in zip(times, base, strict=True))
