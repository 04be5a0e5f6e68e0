"""Where and how a recipe runs."""

import functools
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from equicolor.data.decoding import check_cache
from equicolor.data.loaders import DATA_PATHS
from equicolor.devices import choose_device
from equicolor.training.fields import check, setting


def _launcher() -> tuple[str, int] | None:
    """What launched this process, and how many with it; None if it was started by itself."""
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" in environment and "WORLD_SIZE" in environment:
        return "torchrun", int(environment["WORLD_SIZE"])
    # srun sets this variable; sbatch does not, whose script may run a single process.
    tasks = environment.get("SLURM_STEP_NUM_TASKS")
    if tasks is not None and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        return "SLURM", int(tasks)
    return None


_running = functools.partial(setting, panel="Running")


@dataclass(frozen=True)
class RunOptions:
    """Where and how a recipe runs; nothing here changes what it learns, up to rounding.

    A field describes itself, see :class:`equicolor.training.fields.Setting`.

    Attributes:
        strategy: several processes always run DistributedDataParallel.
        sync_norm: if False, each process normalises its slice of a batch, which is faster.
        graphs: used only where one process trains on a GPU and does not compile.
    """

    device: str = _running("auto", "auto, cpu or cuda.")
    devices: int = _running(1, "Processes on each computer.", at_least=1)
    num_nodes: int = _running(1, "Computers, under torchrun or SLURM.", at_least=1)
    strategy: str = _running("auto", "auto or ddp.", choices=("auto", "ddp"))
    sync_norm: bool = _running(True, "Batch norms see the batch of all processes.")
    data_path: str = _running(
        "auto",
        "resident (decoded on the device), streaming (from workers) or auto.",
        choices=DATA_PATHS,
    )
    workers: int | None = _running(
        None, "Processes that decode images for a device.", usual="one per core", at_least=0
    )
    skip_corrupt: bool = _running(False, "Leave corrupt images out.")
    cache: Path | None = _running(  # noqa: RUF009
        None, "Folder of decoded images.", usual="equicolor/decoded in the user's cache"
    )
    validate_every: int = _running(0, "Epochs between tests; 0: at the end.", at_least=0)
    checkpoint_every: float = _running(
        30, "Seconds between checkpoints; 0: every epoch.", at_least=0
    )
    graphs: bool = _running(True, "Record the network as CUDA graphs, on one GPU.")
    wandb: bool = _running(False, "Also log to Weights & Biases.")

    def __post_init__(self) -> None:
        """Refuse what cannot run here."""
        check(self)
        accelerator = self.accelerator
        if self.cache is not None:
            check_cache(self.cache)
        if ":" in self.device and self.devices > 1:
            raise ValueError(f"{self.device} is one device, but {self.devices} were asked for")
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
        """Refuse a number of processes that torchrun or SLURM did not start."""
        launcher, started = _launcher() or ("", self.processes)
        if not launcher and self.num_nodes > 1 and "MASTER_ADDR" not in os.environ:
            raise ValueError(
                f"--num-nodes {self.num_nodes} waits for processes on other computers: start it on "
                "each of them with torchrun or SLURM's srun"
            )
        if started != self.processes:
            raise ValueError(
                f"{launcher} started {started} processes, but --devices {self.devices} times "
                f"--num-nodes {self.num_nodes} makes {self.processes}: both must agree"
            )

    @property
    def processes(self) -> int:
        """Processes on all computers together."""
        return self.devices * self.num_nodes
