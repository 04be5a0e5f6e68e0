"""Whole training against the bare step: what data, schedule, logging and checkpoints cost."""

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from equicolor.benchmark.cases import Settings
from equicolor.benchmark.ratios import Goal, Row
from equicolor.benchmark.steps import adam, loss_of, placed, update
from equicolor.benchmark.timing import milliseconds
from equicolor.nn import capture
from equicolor.training.fit import fit
from equicolor.training.monitor import Metrics
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions

__all__ = ["loop_goals", "loop_rows"]

_WARM_UP = 10


def loop_rows(
    recipe: TrainingRecipe, device: str = "auto", *, steps: int = 50, console: Console | None = None
) -> list[Row]:
    """Train a recipe, and time its step by itself, on images that are there already.

    Args:
        recipe: what to train; its first quarter of epochs, where kernels are chosen and graphs
            recorded, does not count.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        steps: bare steps to time.
        console: shows progress; None shows nothing.

    Returns:
        A row for the loop and for every way to call the bare step, with ``images_per_s``, and
        one for the hue sweep at the end of training, with ``seconds`` and ``pictures``.
    """
    options = RunOptions(device=device)
    facts = {"model": recipe.model, **recipe.options, "batch": recipe.batch_size}
    facts |= {"size": recipe.size, "precision": recipe.precision}
    with tempfile.TemporaryDirectory() as place:
        found = fit(recipe, Path(place) / "run", options, console=console)
        assert found is not None  # one process trains
        epochs = Metrics(RunFolder(Path(place) / "run").metrics).read()
    speeds = [float(row["images_per_second"]) for row in epochs[len(epochs) // 4 :]]
    trained = {"dataset": found.row["dataset"], "epochs": recipe.epochs}
    rows = [{"name": "training loop", "images_per_s": statistics.median(speeds), **trained}]
    for recorded in (False, True) if options.accelerator == "cuda" else (False,):
        ms = _bare_step(recipe, torch.device(options.accelerator), steps, recorded=recorded)
        name = "bare step, recorded" if recorded else "bare step"
        speed = round(1e3 * recipe.batch_size / ms, 1)
        rows.append({"name": name, "images_per_s": speed, "ms": round(ms, 3)})
    sweep = {key: found.row[key] for key in ("images", "original", "hue_mean")}
    shifts = len(found.row["hue_curve"])
    seconds = found.row["evaluate_seconds"]
    rows.append({"name": "hue sweep", "seconds": seconds, "shifts": shifts, **sweep})
    return [row | facts for row in rows]


def loop_goals(rows: list[Row]) -> list[Goal]:
    """What the loop is held to: most of the faster bare step's speed, and a quick sweep.

    Example:
        >>> rows = [{"name": "training loop", "images_per_s": 90.0}]
        >>> rows += [{"name": "bare step", "images_per_s": 100.0}]
        >>> loop_goals(rows)[0].value
        0.9
    """
    speeds = {row["name"]: row["images_per_s"] for row in rows if "images_per_s" in row}
    bare = [speed for name, speed in speeds.items() if name.startswith("bare step")]
    ratio = speeds["training loop"] / max(bare) if bare else None
    seconds = next((row["seconds"] for row in rows if row["name"] == "hue sweep"), None)
    return [
        Goal("training loop / the faster bare step", ratio, 0.85, at_most=False),
        Goal("seconds of the hue sweep", seconds, 15),
    ]


def _bare_step(
    recipe: TrainingRecipe, device: torch.device, steps: int, *, recorded: bool
) -> float:
    """Milliseconds of a step of a network on one batch."""
    settings = Settings(device, "bf16" if recipe.precision == "bfloat16" else "fp32")
    classes = 10
    images = torch.rand(recipe.batch_size, 3, recipe.size, recipe.size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(recipe.batch_size, device=device) % classes
    network = placed(replace(recipe, finetune=None).build(classes), settings).train()
    optimizer = adam(network, settings)
    dtype = settings.dtype if settings.precision == "bf16" else None
    call = capture(network, images, dtype) if recorded else network

    def step() -> None:
        update(loss_of(call, images, labels, settings), optimizer)

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True  # as in training
    try:
        for _ in range(min(_WARM_UP, steps)):
            step()
        return milliseconds(step, device, steps)
    finally:
        torch.backends.cudnn.benchmark = before
