"""Train a network by a recipe, in a folder from which a killed run can be continued."""

import contextlib
import copy
import functools
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
    row: dict[str, Any]  # the test results: original, hue_mean and so on
    continued: int  # epochs trained before this call; all if the run was finished


def fit(
    recipe: TrainingRecipe,
    output: Path | str,
    options: RunOptions | None = None,
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> Fit | None:
    """Train a network, and test it under hue shifts.

    A call in the folder of an interrupted run continues it from its last checkpoint. In one
    process on a CPU it ends with the weights of an uninterrupted run: it uses as many threads as
    before, unless OMP_NUM_THREADS is set or there are fewer cores. A call in the folder of a
    finished run returns its result. Of several processes, each makes the same call. A
    DivergedError leaves the last good checkpoint.

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
    replace = overwrite and folder.recipe.is_file()
    if replace:
        _check_alone(folder, options)
    else:
        if first:
            folder.check(recipe)
        if folder.result.is_file():
            if not first:
                return None
            _warn_of_changes(folder, recipe, console)
            return _read_finished(folder)
    _check_saving()
    folder.check_place(recipe)
    data = ImageData(recipe, options, console)
    images, class_names = list_images(data.train), data.train.class_names
    if not replace:
        folder.check_images(images.files)
        _warn_of_newer_images(folder, data.train, console)
    task = _task(data, images)
    begin = functools.partial(folder.begin, recipe, images.files, replace=replace)
    replacing = begin if replace else None
    if not first:
        with _threads_restored():
            train(task, data, folder, replacing)
        return None
    seen = finetune_seen(recipe)
    for remark in finetune_remarks(recipe, class_names, seen):
        say(console, remark)
    folder_is_new = not folder.path.exists()
    with folder.locked(), _threads_restored():  # last, so that a wrong recipe leaves no folder
        if not replace:  # meanwhile another process may have trained here
            folder.check(recipe)
            if folder.result.is_file():
                return _read_finished(folder)
            begin()
        try:
            epochs_before = train(task, data, folder, replacing)
        except Exception:
            if folder_is_new:
                folder.remove_unbegun()
            raise
        network = _trained_network(task, class_names, images)
        save_model(network, folder.model)
        facts = {"dataset": data.test.name, **recipe.row(), **_speed(folder), **seen.facts()}
        facts |= {f"skipped_{split}": len(data.skipped(split)) for split in ("train", "test")}
        row = _test(network, data, facts)
        more = {"recipe": asdict(recipe), "class_names": class_names}
        write_results(folder.result, [row], device=choose_device(options.device), **more)
    return Fit(folder, row, epochs_before)


def _check_alone(folder: RunFolder, options: RunOptions) -> None:
    """Refuse to delete a run that other processes may be reading."""
    launched = TorchElasticEnvironment.detect() or SLURMEnvironment.detect()
    if options.processes > 1 and launched:  # else the first process starts the others later
        raise ValueError(
            f"--force cannot delete a run while several processes start at once: delete "
            f"{folder.path} first"
        )


def _check_saving() -> None:
    """Refuse to train what could not be saved."""
    if importlib.util.find_spec("safetensors") is None:
        raise ModuleNotFoundError(
            f"trained networks are saved with safetensors: {how_to_install('safetensors')}",
            name="safetensors",
        )


def _warn_of_newer_images(folder: RunFolder, images: ImageSet, console: Console | None) -> None:
    newer = folder.newer_images(images)
    if newer:
        say(
            console,
            f"warning: {counted(len(newer), 'training file')} may have changed since the run "
            f"began ({enumerated(newer, 3)}); --force trains it anew",
        )


def _warn_of_changes(folder: RunFolder, recipe: TrainingRecipe, console: Console | None) -> None:
    """Warn of training images that changed since a finished run began; no image is opened."""
    try:
        before = folder.read_images()
        if not before:  # without files, or too many to list
            return
        images = load_dataset(recipe.dataset, "train", seed=recipe.split_seed)
        changed = changes(before, list_images(images).files)
        if not changed:
            _warn_of_newer_images(folder, images, console)
            return
        reason = (
            f"have changed since it began: {', '.join(changed)}. The result is that of the old "
            "images; --force trains it anew"
        )
    except (OSError, ValueError) as error:  # which need not hide the result
        reason = f"cannot be compared with those it began with: {error}"
    say(console, f"warning: the training images of {folder.path} {reason}")


def _read_finished(folder: RunFolder) -> Fit:
    read_header(folder.model)  # raises if the file is missing or truncated
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
    # DDP exchanges gradients during the backward pass, which a graph would record.
    graphs = options.graphs and options.processes == 1 and options.strategy != "ddp"
    return ClassificationTask(recipe, network, facts, graphs=graphs and not recipe.compile)


def build_network(data: ImageData) -> Network:
    """The network to train, after a trial with the size of its images and batches."""
    recipe, options, names = data.recipe, data.options, data.train.class_names
    network = recipe.build(len(names), names)
    epochs = Epochs(len(data.train), recipe.batch_size, shuffle=True, world_size=options.processes)
    batch = (epochs.batch if options.sync_norm else epochs.own_batch) * recipe.augmentation.views
    trial = copy.deepcopy(network).train()
    with torch.random.fork_rng(devices=[]):  # dropout draws from it
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
    """Restore the number of threads at the end: loading a checkpoint may change it."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _trained_network(
    task: ClassificationTask, class_names: tuple[str, ...], images: Listing
) -> Network:
    """The trained network to save, neither compiled nor tied to other processes.

    It turns images grey itself where training did.
    """
    with torch.random.fork_rng(devices=[]):
        network = build_from_config(task.network.config)  # a checkpoint to fine-tune may be gone
    network.load_state_dict(task.trained.state_dict(), assign=True)
    network.class_names = class_names
    if task.recipe.gray and not isinstance(network, GrayInput):
        network = GrayInput(network)
    network.origin = task.recipe.origin._replace(training_digest=images.digest)
    return network.eval()


def _speed(folder: RunFolder) -> dict[str, float]:
    """Seconds of training and images per second, of the whole run."""
    epochs = folder.read_metrics()
    seconds = sum(float(row["seconds"]) for row in epochs)
    images = sum(float(row["images_per_second"]) * float(row["seconds"]) for row in epochs)
    rate = images / max(seconds, 1e-9)
    return {"train_seconds": round(seconds, 1), "images_per_second": round(rate, 1)}


def _test(network: Network, data: ImageData, facts: dict[str, Any]) -> dict[str, Any]:
    """The result row of a network: accuracy on the test set, without and with hue shifts."""
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
