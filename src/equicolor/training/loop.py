"""The Lightning loop of a run: devices, checkpoints, loggers and interrupts."""

import contextlib
import gc
import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy

from equicolor.devices import choose_device
from equicolor.models.tensor_files import CheckpointError, one_line, read_pickle, write_pickle
from equicolor.reporting.progress import say
from equicolor.training.image_data import ImageData
from equicolor.training.monitor import DivergedError, Monitor
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions
from equicolor.training.task import REMEDY, ClassificationTask

_PRECISIONS = {"bfloat16": "bf16-mixed", "float32": "32-true"}


def train(
    task: ClassificationTask,
    data: ImageData,
    folder: RunFolder,
    replace: Callable[[], None] | None = None,
) -> int:
    """Train to the end, and return the number of epochs that an earlier call had trained.

    With ``replace``, training starts anew, and the first process calls it before the first step:
    images that cannot be decoded do not cost the run that is there.
    """
    monitor = Monitor(folder, data.options, data.console, replace)
    resume = folder.checkpoint if folder.checkpoint.is_file() and replace is None else None
    handler = signal.getsignal(signal.SIGINT)
    # Lightning's objects refer to each other in circles: those of an earlier run would hold the
    # device's memory until Python collects them.
    gc.collect()
    with _quiet_lightning(), torch.random.fork_rng(devices=[]):
        trainer = _trainer(task.recipe, data.options, monitor)
        try:
            trainer.fit(task, datamodule=data, ckpt_path=resume)
        except SystemExit:
            # Lightning turns an interrupt into an exit, and ignores further ones.
            if not trainer.interrupted:
                raise
            signal.signal(signal.SIGINT, handler)
            say(data.console, monitor.next_call())
            raise KeyboardInterrupt from None
        except DivergedError:
            if trainer.is_global_zero:
                raise
            raise SystemExit(2) from None  # every process notices; one reports it
        except Exception as error:
            expected = isinstance(error, (ValueError, OSError, torch.OutOfMemoryError))
            if resume is None or monitor.trained or expected:
                raise
            # Lightning does not check the parts of a checkpoint.
            raise CheckpointError(
                f"{resume} is not the state of this run ({one_line(error)}): {REMEDY}"
            ) from error
    if data.streamed is not None:
        data.say_skipped("train")
    # Lightning does not begin where there is nothing left to train.
    return task.recipe.epochs if monitor.epochs_before is None else monitor.epochs_before


class SafeCheckpointIO(TorchCheckpointIO):
    """Reads checkpoints without running code in them."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Path | str, storage_options: Any = None
    ) -> None:
        """Write a checkpoint whole or not at all."""
        write_pickle(Path(path), checkpoint)

    def load_checkpoint(
        self, path: Path | str, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint of tensors and plain containers, whatever ``weights_only`` says."""
        contents = read_pickle(Path(path), REMEDY)
        if not isinstance(contents, dict):
            kind = type(contents).__name__
            raise CheckpointError(f"{path} is no checkpoint of a run, but a {kind}: {REMEDY}")
        return contents


def _trainer(recipe: TrainingRecipe, options: RunOptions, monitor: Monitor) -> pl.Trainer:
    many, gpu = options.processes > 1, choose_device(options.device).index
    # Buffers are the same everywhere as long as batch norms share their statistics.
    ddp = DDPStrategy(broadcast_buffers=not options.sync_norm, gradient_as_bucket_view=True)
    plugins: list[Any] = [SafeCheckpointIO()]
    if SLURMEnvironment.detect():
        # The same command continues a run: no checkpoints of Lightning's own are needed.
        plugins.append(SLURMEnvironment(auto_requeue=False))
    return pl.Trainer(
        accelerator=options.accelerator,
        devices=options.devices if gpu is None else [gpu],
        num_nodes=options.num_nodes,
        strategy=ddp if many or options.strategy == "ddp" else "auto",
        precision=_PRECISIONS[recipe.precision],  # type: ignore[arg-type]
        max_epochs=recipe.epochs,
        callbacks=[monitor],
        plugins=plugins,
        benchmark=options.accelerator == "cuda",
        limit_val_batches=None if options.validate_every else 0,
        check_val_every_n_epoch=options.validate_every or 1,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=monitor.folder.path,
    )


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Silence Lightning's remarks and warnings: a user can do nothing about them."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\.")
        # It is about filters with a dimension of size 1, whose stride means nothing.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        hook = threading.excepthook
        # If the disk is full, TensorBoard's thread prints a traceback beside our message.
        threading.excepthook = lambda args: (
            None if isinstance(args.exc_value, OSError) else hook(args)
        )
        try:
            yield
        finally:
            threading.excepthook = hook
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
