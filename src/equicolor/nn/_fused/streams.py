"""More than one CUDA stream while a graph is recorded.

Convolutions of planes are small: at the end of each, parts of the GPU have nothing to do. And the
gradients of filters are needed only at the end of a block. In a graph, further streams fill these
gaps. Outside of a recording everything stays on one stream, since launching kernels would take
longer than the gaps.

Torch gives the memory that a stream has freed to later work of that stream. So another stream
begins by waiting for the current one, and what it reads is kept until :func:`join`.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from equicolor._observed import is_captured

_FEWEST = 4  # convolutions that are worth a second stream


class _Stream:
    """A further stream of a device, and the tensors that its unfinished work reads."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.kept = torch.cuda.Stream(device), list[Any]()

    @contextmanager
    def running(self, *kept: Any) -> Iterator[None]:
        """Launch kernels here, after all that the current stream has launched so far."""
        self.kept.append(kept)
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for this one."""
        if self.kept:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            self.kept.clear()


@functools.cache
def _streams(device: torch.device) -> tuple[_Stream, _Stream]:
    """Two further streams of a device: for halves of a layer, and for gradients of filters."""
    return _Stream(device), _Stream(device)


def side_by_side(calls: Sequence[Callable[[], Tensor]], like: Tensor) -> list[Tensor]:
    """The results of calls; in a recording, half of them run on a second stream."""
    if len(calls) < _FEWEST or not is_captured(like):
        return [call() for call in calls]
    other, _ = _streams(like.device)
    with other.running(calls):
        odd = [call() for call in calls[1::2]]
    even = [call() for call in calls[::2]]
    other.join()
    return [(even, odd)[index % 2][index // 2] for index in range(len(calls))]


def later(calls: Sequence[Callable[[], Tensor]], like: Tensor, *reads: Any) -> list[Tensor]:
    """The results of calls, to be used after :func:`join`; ``reads`` are the tensors they read."""
    if not is_captured(like):
        return [call() for call in calls]
    _, other = _streams(like.device)
    with other.running(reads):
        return [call() for call in calls]


def join(like: Tensor) -> None:
    """Let the current stream wait for what :func:`later` has launched."""
    if is_captured(like):
        _, other = _streams(like.device)
        other.join()


def forget(device: torch.device) -> None:
    """Let go of the tensors of unfinished work, whose recording has failed."""
    for other in _streams(device):
        other.kept.clear()
