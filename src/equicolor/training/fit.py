"""Train a network by a recipe, in a folder that a killed run is continued from."""

import contextlib
import copy
import hashlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from equicolor._packages import how_to_install
from equicolor._text import counted, enumerated
from equicolor.data.datasets import load_dataset
from equicolor.data.epochs import Epochs
from equicolor.data.images import ImageSet, Listing, changes, list_images
from equicolor.devices import choose_device
from equicolor.evaluation import evaluate
from equicolor.evaluation.images import try_images
from equicolor.models import Network, save_model
from equicolor.models.checkpoints import read_header
from equicolor.models.registry import GrayInput, build_from_config
from equicolor.reporting.progress import counting, say
from equicolor.results import read_rows, write_results
from equicolor.training.finetuning import finetune_remarks, finetune_seen
from equicolor.training.image_data import ImageData
from equicolor.training.loop import train
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions
from equicolor.training.sync_norm import sync_batch_norm
from equicolor.training.task import ClassificationTask


class Fit(NamedTuple):
    """A finished run."""

    folder: RunFolder
    row: dict[str, Any]  # what the trained network was judged by: original, hue_mean and so on
    continued: int  # how many epochs had been trained before this call; all, if it was finished


def fit(
    recipe: TrainingRecipe,
    output: Path | str,
    options: RunOptions | None = None,
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> Fit | None:
    """Train a network, and judge it on the test set under hue shifts.

    A call in the folder of an interrupted run continues it from its last checkpoint. On a CPU
    and in one process it ends with the weights of an uninterrupted run: it trains in as many
    threads as before, unless OMP_NUM_THREADS is set or there are fewer cores. A call in the folder
    of a finished run returns its result. With several processes every one of them makes the same
    call. A DivergedError leaves the last good checkpoint.

    Args:
        recipe: what to train.
        output: the folder of the run, see :class:`RunFolder`; also gets ``tensorboard/`` where
            that is installed.
        options: where and how to run.
        overwrite: delete a run that is already in the folder.
        console: shows progress; None shows nothing.

    Returns:
        The finished run; None in all processes but the first.
    """
    options = RunOptions() if options is None else options
    options.check_launcher()
    folder = RunFolder(Path(output))
    folder.check_base(recipe)
    first = getattr(rank_zero_only, "rank", 0) == 0
    console = console if first else None
    anew = overwrite and folder.recipe.is_file()
    if anew:
        _check_alone(folder, options)
    else:
        if first:
            folder.check(recipe)
        if folder.result.is_file():
            if not first:
                return None
            _say_what_changed(folder, recipe, console)
            return _finished(folder)
    _check_saving()
    data = ImageData(recipe, options, console)
    images, class_names = list_images(data.train), data.train.class_names
    if not anew:
        folder.check_images(images.files)
        _say_what_is_newer(folder, data.train, console)
    task = _task(data, images)
    if not first:
        with _threads_restored():
            train(task, data, folder)
        return None
    seen = finetune_seen(recipe)
    for remark in finetune_remarks(recipe, class_names, seen):
        say(console, remark)
    made = not folder.path.exists()
    with folder.locked(), _threads_restored():  # now that nothing can be wrong with the recipe
        if not anew:  # meanwhile another process may have trained here
            folder.check(recipe)
            if folder.result.is_file():
                return _finished(folder)
        folder.begin(recipe, images.files, anew=anew)
        try:
            epochs_before = train(task, data, folder)
        except Exception:
            if made:
                folder.remove_unbegun()
            raise
        network = _trained_network(task, class_names, images)
        save_model(network, folder.model)
        facts = {"dataset": data.test.name, **recipe.row(), **_speed(folder), **seen.facts()}
        facts |= {f"skipped_{split}": len(data.skipped(split)) for split in ("train", "test")}
        row = _judge(network, data, facts)
        whole = {"recipe": asdict(recipe), "class_names": class_names}
        write_results(folder.result, [row], device=choose_device(options.device), **whole)
    return Fit(folder, row, epochs_before)


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


def _say_what_is_newer(folder: RunFolder, images: ImageSet, console: Console | None) -> None:
    newer = folder.newer_images(images)
    if newer:
        say(
            console,
            f"warning: {counted(len(newer), 'training file')} may have changed since the run "
            f"began ({enumerated(newer, 3)}); --force trains it anew",
        )


def _say_what_changed(folder: RunFolder, recipe: TrainingRecipe, console: Console | None) -> None:
    """Say which training images of a finished run changed since it began; no image is opened."""
    try:
        before = folder.read_images()
        if not before:  # without files, or too many to list
            return
        images = load_dataset(recipe.dataset, "train", seed=recipe.split_seed)
        changed = changes(before, list_images(images).files)
        if not changed:
            _say_what_is_newer(folder, images, console)
            return
        reason = (
            f"have changed since it began: {', '.join(changed)}. The result is that of the images "
            "before; --force trains it anew"
        )
    except (OSError, ValueError) as error:  # the result is there all the same
        reason = f"cannot be compared with those it began with: {error}"
    say(console, f"warning: the training images of {folder.path} {reason}")


def _finished(folder: RunFolder) -> Fit:
    read_header(folder.model)  # or an error: the file is missing, or cut short
    rows = read_rows(folder.result, ["dataset"], ["original", "hue_mean", "epochs"])
    if len(rows) != 1:
        raise ValueError(f"{folder.result} has {len(rows)} rows instead of one")
    return Fit(folder, rows[0], rows[0]["epochs"])


def _task(data: ImageData, images: Listing) -> ClassificationTask:
    recipe, options, names = data.recipe, data.options, data.train.class_names
    network = build_network(data)
    if options.processes > 1 and options.sync_norm:
        sync_batch_norm(network)
    facts: dict[str, int | str] = {"images": len(data.train), "classes": len(names)}
    facts["class names"] = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]
    facts["training images"] = images.digest
    # Other processes' gradients are asked for while the backward pass runs.
    graphs = options.graphs and options.processes == 1 and options.strategy != "ddp"
    return ClassificationTask(recipe, network, facts, graphs=graphs and not recipe.compile)


def build_network(data: ImageData) -> Network:
    """The network to train, tried on images and batches as they will come."""
    recipe, options, names = data.recipe, data.options, data.train.class_names
    network = recipe.build(len(names), names)
    shared = Epochs(len(data.train), recipe.batch_size, shuffle=True, world_size=options.processes)
    batch = (shared.batch if options.sync_norm else shared.own_batch) * recipe.augmentation.views
    trial = copy.deepcopy(network).train()
    with torch.random.fork_rng(devices=[]):  # for dropout
        try_images(trial, recipe.size)
        if batch > 1:
            return network
        try:
            try_images(trial, recipe.size, batch)
        except ValueError as error:
            raise ValueError(
                f"a batch of 1 image of {recipe.size} × {recipe.size} pixels is too small for "
                f"the batch norms of {recipe.model}: take larger batches, or larger images"
            ) from error
    return network


@contextlib.contextmanager
def _threads_restored() -> Iterator[None]:
    """Undo what a checkpoint sets: training and judging go on in the threads of before."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _trained_network(
    task: ClassificationTask, class_names: tuple[str, ...], images: Listing
) -> Network:
    """The trained network as it will be loaded: neither compiled nor tied to other processes.

    It turns images grey itself where training did.
    """
    with torch.random.fork_rng(devices=[]):
        network = build_from_config(task.network.config)  # what the recipe fine-tunes may be gone
    network.load_state_dict(task.trained.state_dict(), assign=True)
    network.class_names = class_names
    if task.recipe.gray and not isinstance(network, GrayInput):
        network = GrayInput(network)
    network.origin = task.recipe.origin._replace(training_digest=images.digest)
    return network.eval()


def _speed(folder: RunFolder) -> dict[str, float]:
    """How long the whole run trained, and how fast."""
    epochs = folder.read_metrics()
    seconds = sum(float(row["seconds"]) for row in epochs)
    images = sum(float(row["images_per_second"]) * float(row["seconds"]) for row in epochs)
    rate = images / max(seconds, 1e-9)
    return {"train_seconds": round(seconds, 1), "images_per_second": round(rate, 1)}


def _judge(network: Network, data: ImageData, facts: dict[str, Any]) -> dict[str, Any]:
    """The row of a trained network: accuracy on the test set, as it is and under hue shifts."""
    device = choose_device(data.options.device)
    with counting(data.console, "judging under hue shifts") as progress:
        evaluation = evaluate(
            network.to(device),
            data.test_images(device),
            class_names=data.test.class_names,
            actions=("hsv",),
            autocast=torch.bfloat16 if data.recipe.precision == "bfloat16" else None,
            progress=progress,
            facts=facts,
        )
    return evaluation.rows()[0]
