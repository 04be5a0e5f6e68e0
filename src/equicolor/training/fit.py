"""Train a network by a recipe, in a folder that a killed run is continued from."""

import contextlib
import copy
import gc
import hashlib
import importlib.util
import json
import logging
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.strategies import DDPStrategy
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
from equicolor.models.checkpoints import read_config
from equicolor.models.gray import GrayInput
from equicolor.models.tensor_files import CheckpointError, one_line
from equicolor.reporting.progress import counting, say
from equicolor.results import read_rows, write_results
from equicolor.training.finetuning import finetune_remarks, finetune_seen
from equicolor.training.image_data import ImageData
from equicolor.training.monitor import DivergedError, Metrics, Monitor
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions
from equicolor.training.run_state import REMEDY, EpochCheckpoint, SafeCheckpointIO
from equicolor.training.sync_norm import sync_batch_norm
from equicolor.training.task import ClassificationTask

__all__ = ["Fit", "RunOptions", "check_network", "fit"]

_PRECISIONS = {"bfloat16": "bf16-mixed", "float32": "32-true"}


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
    data = ImageData(
        recipe,
        data_path=options.data_path,
        workers=options.workers,
        skip_corrupt=options.skip_corrupt,
        root=options.root,
        cache=options.cache,
        console=console,
    )
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
            _fit(task, data, folder, options, None, first=False)
        return None
    seen = finetune_seen(recipe, options.root)
    with folder.locked(), _threads_restored():  # now that nothing can be wrong with the recipe
        if not anew:  # meanwhile another process may have trained here
            folder.check(recipe)
            if folder.result.is_file():
                return _finished(folder)
        folder.begin(recipe, images.files, anew=anew)
        begun = _fit(task, data, folder, options, console, first=True)
        network = _trained_network(task, data, images)
        save_model(network, folder.model)
        row = _judge(network, data, recipe, folder, options, console, seen.facts())
        facts = {"recipe": asdict(recipe), "class_names": data.train.class_names}
        write_results(folder.result, [row], device=options.accelerator, **facts)
    return Fit(folder, row, begun)


def _fit(
    task: ClassificationTask,
    data: ImageData,
    folder: RunFolder,
    options: RunOptions,
    console: Console | None,
    *,
    first: bool,
) -> int:
    """Train, watched; the number of epochs that had been trained before."""
    saves = EpochCheckpoint(folder.checkpoint, every=options.checkpoint_every)
    monitor = Monitor(
        Metrics(folder.metrics),
        console=console,
        loggers=lambda step: _loggers(folder, task.recipe, options, step),
        last_good=lambda: _last_good(folder, saves),
    )
    saves.before = monitor.before_saving
    try:
        begun = _train(task, data, folder, options, [monitor, saves], console)
    except DivergedError:
        if first:
            raise
        raise SystemExit(2) from None  # every process finds it; one says it
    if data.skips_while_training:
        data.say_skipped("train")
    return begun


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
    read_config(folder.model)  # or an error: the file is missing, or cut short
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


def _train(
    task: ClassificationTask,
    data: ImageData,
    folder: RunFolder,
    options: RunOptions,
    callbacks: list[pl.Callback],
    console: Console | None,
) -> int:
    """Train to the end; the number of epochs that had been trained before."""
    # Lightning's objects refer to each other in circles: an earlier run's would hold on to
    # the device's memory until Python happens to look.
    gc.collect()
    resume = folder.checkpoint if folder.checkpoint.is_file() else None
    begun = _Begun(task.recipe.epochs)
    handler = signal.getsignal(signal.SIGINT)
    with _quiet_lightning(), torch.random.fork_rng(devices=[]):
        trainer = _trainer(task.recipe, folder, options, [begun, *callbacks])
        try:
            trainer.fit(task, datamodule=data, ckpt_path=resume)
        except SystemExit:
            # Lightning turns an interrupt into an exit, and ignores further ones.
            if not trainer.interrupted:
                raise
            signal.signal(signal.SIGINT, handler)
            say(console, f"The same command continues the run in {folder.path}.")
            raise KeyboardInterrupt from None
        except Exception as error:
            known = (ValueError, OSError, torch.OutOfMemoryError)
            if resume is None or begun.trained or isinstance(error, known):
                raise
            # Lightning takes the parts of a checkpoint as they are.
            raise CheckpointError(
                f"{resume} is not the state of this run ({one_line(error)}): {REMEDY}"
            ) from error
    return begun.epochs


@contextlib.contextmanager
def _threads_restored() -> Iterator[None]:
    """Undo what a checkpoint sets: training and judging go on in the threads of before."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Begun(pl.Callback):
    """Remembers where training began."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs  # where there is nothing left to train
        self.trained = False  # whether a step went well

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.epochs = trainer.current_epoch

    def on_train_batch_end(self, *_: Any) -> None:
        self.trained = True


def _trainer(
    recipe: TrainingRecipe, folder: RunFolder, options: RunOptions, callbacks: list[pl.Callback]
) -> pl.Trainer:
    many = options.processes > 1
    # Buffers are the same everywhere as long as batch norms share their statistics.
    ddp = DDPStrategy(broadcast_buffers=not options.sync_norm, gradient_as_bucket_view=True)
    plugins: list[Any] = [SafeCheckpointIO()]
    if SLURMEnvironment.detect():
        # The same command continues a run: no checkpoints of Lightning's own are needed.
        plugins.append(SLURMEnvironment(auto_requeue=False))
    return pl.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=ddp if many or options.strategy == "ddp" else "auto",
        precision=_PRECISIONS[recipe.precision],  # type: ignore[arg-type]
        max_epochs=recipe.epochs,
        callbacks=callbacks,
        plugins=plugins,
        benchmark=options.accelerator == "cuda",
        limit_val_batches=None if options.validate_every else 0,
        check_val_every_n_epoch=options.validate_every or 1,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder.path,
    )


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Lightning's remarks and warnings kept out of the output: a user can do nothing about them."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\.")
        # Of filters with a dimension of size 1, whose stride means nothing.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        hook = threading.excepthook
        # Of a full disk TensorBoard's thread prints a traceback, beside our own line.
        threading.excepthook = lambda args: (
            None if isinstance(args.exc_value, OSError) else hook(args)
        )
        try:
            yield
        finally:
            threading.excepthook = hook
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _loggers(
    folder: RunFolder, recipe: TrainingRecipe, options: RunOptions, step: int
) -> Sequence[Logger]:
    """TensorBoard where it is installed, Weights & Biases where it is asked for."""
    made: list[Logger] = []
    if importlib.util.find_spec("tensorboard") is not None:
        # What a killed run logged after its last checkpoint is logged again.
        board = TensorBoardLogger(folder.path, "tensorboard", "", purge_step=step + 1)
        made.append(board)
    if options.wandb:
        made.append(WandbLogger(name=folder.path.name, project="equicolor", config=asdict(recipe)))
    return made


def _last_good(folder: RunFolder, saves: EpochCheckpoint) -> str:
    if not folder.checkpoint.is_file():
        return "it was too early for a checkpoint"
    when = f"after epoch {saves.epochs}" if saves.epochs is not None else "it began with"
    return f"{folder.checkpoint} keeps the state {when}"


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
        found = evaluate(
            network.to(device),
            data.test_images(device),
            class_names=data.test.class_names,
            actions=("hsv",),
            autocast=torch.bfloat16 if recipe.precision == "bfloat16" else None,
            progress=progress,
            facts=facts,
        )
    return found.rows()[0]
