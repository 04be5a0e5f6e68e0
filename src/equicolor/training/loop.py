"""The Lightning loop of a run: devices, checkpoints, loggers and interrupts."""

import contextlib
import gc
import importlib.util
import logging
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.strategies import DDPStrategy
from rich.console import Console

from equicolor.models.tensor_files import CheckpointError, one_line
from equicolor.reporting.progress import say
from equicolor.training.image_data import ImageData
from equicolor.training.monitor import DivergedError, Metrics, Monitor
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions
from equicolor.training.run_state import REMEDY, EpochCheckpoint, SafeCheckpointIO
from equicolor.training.task import ClassificationTask

__all__ = ["train"]

_PRECISIONS = {"bfloat16": "bf16-mixed", "float32": "32-true"}


def train(
    task: ClassificationTask,
    data: ImageData,
    folder: RunFolder,
    options: RunOptions,
    console: Console | None,
    *,
    first: bool,
) -> int:
    """Train to the end, and return the number of epochs that an earlier call had trained."""
    saves = EpochCheckpoint(folder.checkpoint, every=options.checkpoint_every)
    monitor = Monitor(
        Metrics(folder.metrics),
        console=console,
        loggers=lambda step: _loggers(folder, task.recipe, options, step),
        last_good=lambda: _last_good(folder, saves),
    )
    saves.before = monitor.before_saving
    start = _Start(task.recipe.epochs)
    resume = folder.checkpoint if folder.checkpoint.is_file() else None
    handler = signal.getsignal(signal.SIGINT)
    # Lightning's objects refer to each other in circles: those of an earlier run would hold the
    # device's memory until Python collects them.
    gc.collect()
    with _quiet_lightning(), torch.random.fork_rng(devices=[]):
        trainer = _trainer(task.recipe, folder, options, [start, monitor, saves])
        try:
            trainer.fit(task, datamodule=data, ckpt_path=resume)
        except SystemExit:
            # Lightning turns an interrupt into an exit, and ignores further ones.
            if not trainer.interrupted:
                raise
            signal.signal(signal.SIGINT, handler)
            say(console, f"The same command continues the run in {folder.path}.")
            raise KeyboardInterrupt from None
        except DivergedError:
            if first:
                raise
            raise SystemExit(2) from None  # every process notices; one reports it
        except Exception as error:
            expected = isinstance(error, (ValueError, OSError, torch.OutOfMemoryError))
            if resume is None or start.trained or expected:
                raise
            # Lightning does not check the parts of a checkpoint.
            raise CheckpointError(
                f"{resume} is not the state of this run ({one_line(error)}): {REMEDY}"
            ) from error
    if data.skips_while_training:
        data.say_skipped("train")
    return start.epochs


class _Start(pl.Callback):
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
    """Silence Lightning's remarks and warnings: a user can do nothing about them."""
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
    loggers: list[Logger] = []
    if importlib.util.find_spec("tensorboard") is not None:
        # What a killed run logged after its last checkpoint is logged again.
        board = TensorBoardLogger(folder.path, "tensorboard", "", purge_step=step + 1)
        loggers.append(board)
    if options.wandb:
        config = asdict(recipe)
        loggers.append(WandbLogger(name=folder.path.name, project="equicolor", config=config))
    return loggers


def _last_good(folder: RunFolder, saves: EpochCheckpoint) -> str:
    if not folder.checkpoint.is_file():
        return "it was too early for a checkpoint"
    when = f"after epoch {saves.epochs}" if saves.epochs is not None else "it began with"
    return f"{folder.checkpoint} keeps the state {when}"
