"""Train a network by a recipe, in a folder that a killed run is continued from."""

import contextlib
import copy
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from torch import nn

from equicolor._packages import how_to_install
from equicolor._text import counted, enumerated
from equicolor.data.epochs import Epochs
from equicolor.data.images import Listing, list_images
from equicolor.evaluation import evaluate
from equicolor.evaluation.images import try_images
from equicolor.models import Network, save_model
from equicolor.models.checkpoints import read_header
from equicolor.models.registry import GrayInput
from equicolor.reporting.progress import counting, say
from equicolor.results import read_rows, write_results
from equicolor.training.finetuning import finetune_remarks, finetune_seen
from equicolor.training.image_data import ImageData
from equicolor.training.loop import train
from equicolor.training.monitor import Metrics
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions
from equicolor.training.sync_norm import sync_batch_norm
from equicolor.training.task import ClassificationTask

__all__ = ["Fit", "RunOptions", "check_network", "fit"]


class Fit(NamedTuple):
    """A finished run.

    Attributes:
        folder: where it is.
        row: what the trained network was judged by: ``original``, ``hue_mean`` and so on.
        continued: how many epochs had been trained before this call; all, if it was finished.
    """

    folder: RunFolder
    row: dict[str, Any]
    continued: int

    @property
    def written(self) -> list[Path]:
        """The files there are to look at."""
        folder = self.folder
        return [folder.model, folder.result, folder.metrics, folder.checkpoint]

    @property
    def headline(self) -> str:
        """What was found, in one line."""
        row = self.row
        return (
            f"{row['original']:.2f} % on the test set of {row['dataset']}, {row['hue_mean']:.2f} % "
            f"on average over hue shifts, after {counted(row['epochs'], 'epoch')}"
        )


def fit(
    recipe: TrainingRecipe,
    output: Path | str,
    options: RunOptions | None = None,
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> Fit | None:
    """Train a network, and judge it on the test set under hue shifts.

    A call in the folder of an interrupted run continues it from its last checkpoint; on a
    CPU and in one process it ends with the very weights it would have had: it trains in as many
    threads as before, unless OMP_NUM_THREADS is set or there are fewer cores. In the folder of a
    finished run it returns what was found. With several processes every one of them makes the
    same call.

    Args:
        recipe: what to train.
        output: the folder: ``recipe.json``, ``images.json``, ``metrics.csv``, ``last.ckpt``,
            ``tensorboard/`` where that is installed, and at the end ``model.safetensors`` and
            ``result.json``.
        options: where and how to run.
        overwrite: delete a run that is already in the folder.
        console: shows progress; None shows nothing.

    Returns:
        What was found; None in all processes but the first.

    Raises:
        ValueError: if the folder holds a run of another recipe or on other images, the network
            cannot take such images, or another number of processes was started than the options
            say.
        ModuleNotFoundError: if the network could not be saved at the end.
        LockedError: if another process trains in the folder.
        DivergedError: if the loss, or a weight, is no longer finite; the last good checkpoint
            is kept.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> place = Path(tempfile.mkdtemp())
        >>> for colour in ("red", "green"):
        ...     folder = place / "images" / colour
        ...     folder.mkdir(parents=True)
        ...     for number in range(5):
        ...         Image.new("RGB", (30, 30), colour).save(folder / f"{number}.png")
        >>> recipe = TrainingRecipe("z2cnn", dataset=str(place / "images"), size=28, epochs=1)
        >>> options = RunOptions(device="cpu", data_path="streaming", workers=0)
        >>> fit(recipe, place / "run", options).row["images"]
        4
    """
    options = RunOptions() if options is None else options
    options.check_launcher()
    folder = RunFolder(Path(output))
    first = getattr(rank_zero_only, "rank", 0) == 0
    console = console if first else None
    anew = overwrite and folder.recipe.is_file()
    if anew:
        _check_alone(folder, options)
    else:
        if first:
            folder.check(recipe)
        if folder.result.is_file():
            return _finished(folder) if first else None
    _check_saving()
    data = ImageData(recipe, options, console)
    images = list_images(data.train)
    if not anew:
        folder.check_images(images.files)
        newer = folder.newer_images(data.train)
        if newer:
            say(
                console,
                f"warning: {counted(len(newer), 'training file')} may have changed since the run "
                f"began ({enumerated(newer, 3)}); --force trains it anew",
            )
    task = _task(recipe, data, images, options)
    if console is not None:
        for remark in finetune_remarks(recipe, data.train.class_names, options.root):
            say(console, remark)
    if not first:
        with _threads_restored():
            train(task, data, folder, options, None, first=False)
        return None
    seen = finetune_seen(recipe, options.root)
    with folder.locked(), _threads_restored():  # now that nothing can be wrong with the recipe
        if not anew:  # meanwhile another process may have trained here
            folder.check(recipe)
            if folder.result.is_file():
                return _finished(folder)
        folder.begin(recipe, images.files, anew=anew)
        epochs_before = train(task, data, folder, options, console, first=True)
        network = _trained_network(task, data, images)
        save_model(network, folder.model)
        row = _judge(network, data, recipe, folder, options, console, seen.facts())
        facts = {"recipe": asdict(recipe), "class_names": data.train.class_names}
        write_results(folder.result, [row], device=options.accelerator, **facts)
    return Fit(folder, row, epochs_before)


def _trained_network(task: ClassificationTask, data: ImageData, images: Listing) -> Network:
    """What was trained, as it will be loaded: neither compiled nor tied to other processes.

    It turns images grey itself where training did.
    """
    network = task.recipe.build(len(data.train.class_names))
    network.load_state_dict(task.trained.state_dict(), assign=True)
    network.class_names = data.train.class_names
    if task.recipe.gray and not isinstance(network, GrayInput):
        network = GrayInput(network)
    network.origin = task.recipe.origin._replace(training_digest=images.digest)
    return network.eval()


def _check_alone(folder: RunFolder, options: RunOptions) -> None:
    """Refuse to delete a run while other processes may be looking at it."""
    started = TorchElasticEnvironment.detect() or SLURMEnvironment.detect()
    if options.processes > 1 and started:  # not by the first of them
        raise ValueError(
            f"--force cannot delete a run while several processes start at once: delete "
            f"{folder.path} first"
        )


def _check_saving() -> None:
    """Find out before training what would otherwise be found out after it."""
    if importlib.util.find_spec("safetensors") is None:
        raise ModuleNotFoundError(
            f"trained networks are saved with safetensors: {how_to_install('safetensors')}",
            name="safetensors",
        )


def _finished(folder: RunFolder) -> Fit:
    read_header(folder.model)  # or an error: the file is missing, or cut short
    rows = read_rows(folder.result, ["dataset"], ["original", "hue_mean", "epochs"])
    if len(rows) != 1:
        raise ValueError(f"{folder.result} has {len(rows)} rows instead of one")
    return Fit(folder, rows[0], rows[0]["epochs"])


def _task(
    recipe: TrainingRecipe, data: ImageData, images: Listing, options: RunOptions
) -> ClassificationTask:
    names = data.train.class_names
    network = recipe.build(len(names), names)
    check_network(network, recipe, len(data.train), options)
    if options.processes > 1 and options.sync_norm:
        sync_batch_norm(network)
    facts: dict[str, int | str] = {"images": len(data.train), "classes": len(names)}
    facts |= {"class names": _digest(names), "training images": images.digest}
    # Other processes' gradients are asked for while the backward pass runs.
    graphs = options.graphs and options.processes == 1 and options.strategy != "ddp"
    return ClassificationTask(recipe, network, facts, graphs=graphs and not recipe.compile)


def check_network(
    network: Network, recipe: TrainingRecipe, count: int, options: RunOptions
) -> None:
    """Try a network on the images and batches of its recipe, before anything is written."""
    shared = Epochs(count, recipe.batch_size, shuffle=True, world_size=options.processes)
    images = (shared.batch if options.sync_norm else shared.own_batch) * recipe.augmentation.views
    trial = copy.deepcopy(network).train()
    with torch.random.fork_rng(devices=[]):  # for dropout
        try_images(trial, recipe.size)
        if images > 1:
            return
        try:
            try_images(trial, recipe.size, images)
        except ValueError as error:
            raise ValueError(
                f"a batch of 1 image of {recipe.size} × {recipe.size} pixels is too small for "
                f"the batch norms of {recipe.model}: take larger batches, or larger images"
            ) from error


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _threads_restored() -> Iterator[None]:
    """Undo what a checkpoint sets: training and judging go on in the threads of before."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _judge(
    network: nn.Module,
    data: ImageData,
    recipe: TrainingRecipe,
    folder: RunFolder,
    options: RunOptions,
    console: Console | None,
    warned: dict[str, Any],
) -> dict[str, Any]:
    """The row of a trained network: accuracy on the test set, as it is and under hue shifts."""
    device = torch.device(options.accelerator)
    epochs = Metrics(folder.metrics).read()
    seconds = sum(float(row["seconds"]) for row in epochs)
    shown = sum(float(row["images_per_second"]) * float(row["seconds"]) for row in epochs)
    facts = {
        "dataset": data.test.name,
        **recipe.row(),
        "train_seconds": round(seconds, 1),
        "images_per_second": round(shown / max(seconds, 1e-9), 1),
        **warned,
        **{f"skipped_{split}": len(data.skipped(split)) for split in ("train", "test")},
    }
    with counting(console, "judging under hue shifts") as progress:
        evaluation = evaluate(
            network.to(device),
            data.test_images(device),
            class_names=data.test.class_names,
            actions=("hsv",),
            autocast=torch.bfloat16 if recipe.precision == "bfloat16" else None,
            progress=progress,
            facts=facts,
        )
    return evaluation.rows()[0]
