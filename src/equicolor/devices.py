"""Devices by name, their precision, and how much of a computer is free."""

import contextlib
import functools
import os
import platform
import re
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equicolor import _checks
from equicolor._text import counted

PRECISIONS = ("float32", "bfloat16")

_OLDEST_TRITON = (3, 6)  # that our kernels are tested with
_LEAST_CAPABILITY = (8, 0)  # of a GPU; the first with bfloat16
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def choose_device(name: str = "auto") -> torch.device:
    """A device by name: ``"auto"`` is the GPU if there is one."""
    check_device(name)
    available = torch.cuda.is_available()
    if name.startswith("cuda") and not available:
        raise ValueError("device 'cuda' was asked for, but torch sees no CUDA device; use 'cpu'")
    number = name.partition(":")[2]
    if number and int(number) >= torch.cuda.device_count():  # of which torch keeps 8 bits
        seen = counted(torch.cuda.device_count(), "CUDA device")
        raise ValueError(f"device {name!r} was asked for, but torch sees {seen}, from cuda:0 on")
    return torch.device(("cuda" if available else "cpu") if name == "auto" else name)


def check_device(name: str) -> None:
    """Refuse a name that no device can have."""
    kind = name.partition(":")[0]
    _checks.one_of("device", kind, ("auto", "cpu", "cuda"))
    if name != kind and not re.fullmatch(r"cuda:(0|[1-9][0-9]*)", name):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:NUMBER'; got {name!r}")


def choose_precision(precision: str, *, cuda: bool) -> str:
    """One of :data:`PRECISIONS`: ``"auto"`` takes bfloat16 on a GPU, else float32.

    Example:
        >>> choose_precision("auto", cuda=True), choose_precision("float32", cuda=True)
        ('bfloat16', 'float32')
    """
    _checks.one_of("precision", precision, ("auto", *PRECISIONS))
    if precision != "auto":
        return precision
    return "bfloat16" if cuda else "float32"


def device_name(device: torch.device | str) -> str:
    """The model name of a device."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return str(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the memory of a device is full.

    Torch's CPU allocator raises a plain RuntimeError, which can be recognised only by its text.

    Example:
        >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), (
        ...     out_of_memory(RuntimeError("shapes do not fit")))
        (True, False)
    """
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        "out of memory" in text or "can't allocate memory" in text
    )


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_threads() -> int:
    """How many CPU threads torch should use: fewer while other processes compute.

    The threads of an operation wait for the slowest one. With more threads than free cores, two
    can be forty times slower than one. In a container that gets a share of its cores, the number
    of running processes does not show that. So the time of a convolution is measured: unless
    several threads are faster, the result is one.
    """
    most = torch.get_num_threads()
    others = _others_running()
    # Linux counts the threads on all cores, also on those that this process may not use.
    threads = max(1, min(most, (os.cpu_count() or 1) - others)) if others else most
    return threads if threads == 1 or _faster_than_one(threads) else 1


def _faster_than_one(threads: int) -> bool:
    """Whether several threads take less time for a convolution than one does."""
    before = torch.get_num_threads()
    images, filters = torch.zeros(8, 32, 32, 32), torch.zeros(32, 32, 3, 3)
    seconds = {1: 0.0, threads: 0.0}
    try:
        for attempt in range(6):  # alternate: other processes come and go
            for count in seconds:
                torch.set_num_threads(count)
                start = time.perf_counter()
                for _ in range(3):
                    torch.conv2d(images, filters)
                if attempt:  # the first attempt starts the threads
                    seconds[count] += time.perf_counter() - start
    finally:
        torch.set_num_threads(before)
    return seconds[threads] < seconds[1]


def _others_running() -> int:
    """How many other threads of this computer are running; 0 if that is unknown."""
    counts = []
    for _ in range(5):
        time.sleep(0.02)
        try:
            running = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
        except (OSError, IndexError):
            return 0
        counts.append(int(running) - 1)  # without this thread
    return statistics.median_low(counts)


@functools.cache
def runs_triton(device: torch.device) -> bool:
    """Whether Triton is installed, recent enough, and compiles for a device."""
    try:
        import triton
    except ImportError:
        return False
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < _OLDEST_TRITON:
        return False
    if device.type != "cuda":  # Triton's interpreter runs on the CPU
        return device.type == "cpu" and bool(triton.knobs.runtime.interpret)
    if torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY


def takes_kernels(tensor: Tensor, devices: Sequence[str]) -> bool:
    """Whether Triton kernels for these types of devices can take a tensor."""
    supported = tensor.device.type in devices and tensor.dtype in KERNEL_DTYPES
    return supported and tensor.numel() > 0 and runs_triton(tensor.device)


def on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Make the device of a tensor the current one, which is where Triton launches kernels."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
