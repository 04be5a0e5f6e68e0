"""Where and how a recipe runs."""

import importlib.util
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from equicolor import _checks
from equicolor.data.loaders import DATA_PATHS
from equicolor.devices import choose_device

__all__ = ["RunOptions"]


class _Started(NamedTuple):
    by: str
    processes: int


def _started() -> _Started | None:
    """How many processes were started from outside; None if this one is alone."""
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" in environment and "WORLD_SIZE" in environment:
        return _Started("torchrun", int(environment["WORLD_SIZE"]))
    # Only srun sets it, not sbatch, whose script may well run one process.
    tasks = environment.get("SLURM_STEP_NUM_TASKS")
    if tasks is not None and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        return _Started("SLURM", int(tasks))
    return None


@dataclass(frozen=True)
class RunOptions:
    """Where and how a recipe runs; nothing here changes what it learns, up to rounding.

    Attributes:
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        devices: processes on each computer, one a device.
        num_nodes: computers.
        strategy: ``"auto"`` or ``"ddp"``; several processes always run DistributedDataParallel.
        sync_norm: compute the statistics of batch norms over the batch of all processes, as
            one process would. Without, each normalises its slice, which is faster.
        data_path: ``"auto"``, ``"resident"`` or ``"streaming"``.
        workers: processes that decode streamed images, for each device; None for all cores.
        skip_corrupt: leave corrupt images out instead of stopping at them.
        validate_every: epochs between two tests on the test set; 0 tests only at the end.
        checkpoint_every: seconds between two checkpoints; 0 writes one every epoch.
        graphs: record the network as CUDA graphs, where one process trains on a GPU and does
            not compile.
        wandb: also log to Weights & Biases.
        root: the data folder; None for :func:`equicolor.data.data_root`.
        cache: where decoded images are kept; None for :func:`equicolor.data.default_cache`.

    Example:
        >>> RunOptions(device="cpu", devices=8, num_nodes=4).processes
        32
    """

    device: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    sync_norm: bool = True
    data_path: str = "auto"
    workers: int | None = None
    skip_corrupt: bool = False
    validate_every: int = 0
    checkpoint_every: float = 30.0
    graphs: bool = True
    wandb: bool = False
    root: Path | None = None
    cache: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot run here."""
        accelerator = self.accelerator
        _checks.one_of("data_path", self.data_path, DATA_PATHS)
        _checks.one_of("strategy", self.strategy, ("auto", "ddp"))
        _checks.positive_int("devices", self.devices)
        _checks.positive_int("num_nodes", self.num_nodes)
        for name in ("workers", "validate_every", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and not (0 <= value < math.inf):
                raise ValueError(f"{name} must be a number of at least 0, got {value}")
        if self.workers:
            _checks.positive_int("workers", self.workers)
        if accelerator == "cuda" and self.devices > torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise ValueError(f"{self.devices} devices were asked for, but torch sees {count}")
        if self.wandb and importlib.util.find_spec("wandb") is None:
            raise ValueError("wandb is not installed: pip install wandb")

    @property
    def accelerator(self) -> str:
        """``"cuda"`` or ``"cpu"``."""
        return choose_device(self.device).type

    def check_launcher(self) -> None:
        """Refuse a number of processes that torchrun or SLURM did not start.

        Raises:
            ValueError: with both numbers, or if nobody started those of other computers.
        """
        started = _started()
        if started is None and self.num_nodes > 1 and "MASTER_ADDR" not in os.environ:
            raise ValueError(
                f"--num-nodes {self.num_nodes} waits for processes on other computers: start it on "
                "each of them with torchrun or SLURM's srun"
            )
        if started is not None and started.processes != self.processes:
            raise ValueError(
                f"{started.by} started {started.processes} processes, but --devices {self.devices} "
                f"times --num-nodes {self.num_nodes} makes {self.processes}: both must agree"
            )

    @property
    def processes(self) -> int:
        """How many there are in all."""
        return self.devices * self.num_nodes
