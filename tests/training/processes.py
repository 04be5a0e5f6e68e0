"""Runs in processes of their own: some are killed, some train with a second process.

All are forks of one process, so that Lightning, which takes seconds, is imported once.
"""

import dataclasses
import os
import signal
from typing import Any

from lightning.pytorch.utilities import rank_zero_only
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from equicolor.training import fit as fitting
from equicolor.training import loop, monitor
from equicolor.training.fit import RunOptions, fit
from equicolor.training.recipes import TrainingRecipe

KILLED_AT = (2, 6)  # steps

# Tiny networks are chaotic: in float32 a change in the last digit of the weights becomes one of
# 10 % in ten steps. So the long runs are in float64, and that in float32 is short.
CHANGES: dict[str, dict[str, Any]] = {
    "adam": {"jitter": 0.5, "ema": 0.9, "clip": 1.0},
    "sgd": {
        "epochs": 2, "optimizer": "sgd", "lr": 0.001, "model": "resnet18", "options": {"width": 4},
    },
    "float32": {"epochs": 1, "options": {"width": 8, "rotations": 2}},
}  # fmt: skip
OPTIONS: dict[str, Any] = {"device": "cpu", "checkpoint_every": 0, "validate_every": 2}


def main(toy: str, folder: str) -> None:
    """Leave runs of the toy recipe in a folder, and say how they ended."""
    signal.alarm(300)
    recipe = TrainingRecipe.from_json(toy)
    for step in KILLED_AT:
        child = os.fork()
        if not child:
            _train_until(step, dataclasses.replace(recipe, ema=0.9), f"{folder}/{step}")
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(f"step {step} {ended}", flush=True)
    _train_together(recipe, folder)


def _train_until(step: int, recipe: TrainingRecipe, folder: str) -> None:
    before = monitor.Monitor.on_train_batch_end

    def kill(self: monitor.Monitor, trainer: Any, *rest: Any) -> None:
        before(self, trainer, *rest)
        if trainer.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    monitor.Monitor.on_train_batch_end = kill  # type: ignore[method-assign]
    fit(recipe, folder, RunOptions(device="cpu", checkpoint_every=0))


def _train_together(recipe: TrainingRecipe, folder: str) -> None:
    """Every change of the recipe trained by two processes, as torchrun would start them."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="toy",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        max_restarts=0,
        monitor_interval=0.1,
    )
    elastic_launch(config, _train_changes)(recipe, folder)


def _train_changes(recipe: TrainingRecipe, folder: str) -> None:
    rank_zero_only.rank = int(os.environ["RANK"])  # Lightning looked when it was imported
    evaluate = fitting.evaluate
    fitting.evaluate = lambda net, *a, **k: evaluate(net.float(), *a, **k)
    for name, change in CHANGES.items():
        loop._PRECISIONS["float32"] = "32-true" if name == "float32" else "64-true"
        changed = dataclasses.replace(recipe, **change)
        found = fit(changed, f"{folder}/{name}", RunOptions(devices=2, **OPTIONS))
        # One of them has the result.
        os.write(1, f"{name} {found is not None}\n".encode())
