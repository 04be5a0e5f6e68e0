"""Watching a run: metrics of every epoch, progress, checkpoints, and losses that diverge.

The counts of an epoch are read from the device at its end, but at most every two seconds: reading
after every short epoch would make the device wait.
"""

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from rich.console import Console
from rich.progress import Progress as Bars
from torch import Tensor

from equicolor._text import roughly
from equicolor.reporting.progress import PRINT_EVERY, Pace, progress_bars, say
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions
from equicolor.training.tally import NEVER, Counts
from equicolor.training.task import ClassificationTask

_READ_EVERY = 2.0  # seconds between two reads from the device
_DRAW_EVERY = 0.25  # seconds between two updates of the progress bar
# After a first step that warms up, so many steps or seconds tell how long a run will take.
_MEASURED_STEPS, _MEASURED_SECONDS = 3, 5.0
_LONG = 3600.0  # seconds on a CPU; a warning says that a run takes longer


class DivergedError(ValueError):
    """A loss that is no longer finite: at which step, and which checkpoint remains."""


class Monitor(Checkpoint):
    """Reads the losses of a :class:`~equicolor.training.task.ClassificationTask`, and saves it."""

    def __init__(
        self,
        folder: RunFolder,
        options: RunOptions,
        console: Console | None,
        replace: Callable[[], None] | None = None,
    ) -> None:
        self.folder, self.options, self.console = folder, options, console
        self._replace = replace  # deletes an earlier run
        self.epochs_before: int | None = None  # in earlier calls; None until training begins
        self.trained = False  # whether a step succeeded
        self._epochs_saved: int | None = None  # in the last checkpoint of this process
        self._unread: list[tuple[dict[str, Any], Tensor]] = []  # rows, and totals on the device
        self._loggers: Sequence[Logger] = ()
        self._progress: Bars | None = None  # in the first process alone
        self._read_at = self._drawn_at = self._printed_at = self._saved_at = 0.0
        self._pace, self._first_step, self._steps = Pace(), 0, 0
        self._warm_at, self._pace_known = 0.0, False  # the time after the first step

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Drop the rows after the checkpoint, and begin to measure."""
        self.epochs_before = trainer.current_epoch
        self._read_at = self._drawn_at = self._printed_at = self._saved_at = time.monotonic()
        self._pace, self._first_step = Pace(trainer.global_step), trainer.global_step
        self._steps = int(trainer.estimated_stepping_batches)
        if not trainer.is_global_zero:
            return
        if self._replace is not None:
            self._replace()
        if self.epochs_before:
            say(
                self.console,
                f"continuing from epoch {self.epochs_before} of {trainer.max_epochs}, as "
                f"{self.folder.checkpoint} left it",
            )
        self.folder.cut_metrics(trainer.current_epoch)
        recipe = _task(trainer).recipe
        self._loggers = _loggers(self.folder, recipe, self.options, trainer.global_step)
        # Without a terminal, lines are printed instead.
        terminal = self.console if self.console and self.console.is_terminal else None
        self._progress = progress_bars(terminal, transient=False)
        self._bar = self._progress.add_task(
            "training", total=self._steps, completed=trainer.global_step, note=""
        )
        self._progress.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object
    ) -> None:
        """Move the progress bar now and then; without a terminal, print a line in long epochs."""
        self.trained = True
        if self._progress is None:
            return
        now, step = time.monotonic(), trainer.global_step
        if now - self._drawn_at >= _DRAW_EVERY:
            self._drawn_at = now
            self._progress.update(self._bar, completed=step)
        measured = step - self._first_step - 1
        if measured == 0:
            self._pace = Pace(step)  # the first step includes one-time preparation
            self._warm_at = now
        elif not self._pace_known and (
            measured >= _MEASURED_STEPS or now - self._warm_at >= _MEASURED_SECONDS
        ):
            self._pace_known = True
            self._warn_of_hours(trainer)
        # At the end of an epoch, _publish prints a line with its loss and accuracy.
        due = now - self._printed_at >= PRINT_EVERY and not trainer.is_last_batch
        if self._is_piped and due:
            self._printed_at = now
            epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            left = self._pace.words(step, self._steps)
            say(self.console, f"{epoch}: step {step:,} of {self._steps:,}{left}")

    @property
    def _is_piped(self) -> bool:
        return self.console is not None and not self.console.is_terminal

    def _warn_of_hours(self, trainer: pl.Trainer) -> None:
        """Say what to change if the first steps predict hours on a CPU."""
        seconds = self._pace.left(trainer.global_step, self._steps)
        if self.options.accelerator != "cpu" or seconds is None or seconds < _LONG:
            return
        recipe = _task(trainer).recipe
        changes = [f"a smaller --size than {recipe.size}", f"fewer --epochs than {recipe.epochs}"]
        rotations = recipe.options.get("rotations", 1)
        if rotations > 1:
            changes.append(f"fewer --rotations than {rotations}")
        say(
            self.console,
            f"warning: at the pace of the first steps, this run takes about {roughly(seconds)} on "
            f"this CPU. It is shorter with {', '.join(changes)}, or on a GPU; 'equicolor train "
            "DATASET --advise' measures what fits",
        )

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Queue this epoch's counts; read those of several epochs together, and save."""
        task, step = _task(trainer), trainer.global_step
        row: dict[str, Any] = {"epoch": trainer.current_epoch + 1, "step": step}
        row["lr"] = f"{task.learning_rates[step]:.4g}"
        test, task.validation = task.validation, None
        row["test_loss"] = "" if test is None else round(test.loss, 5)
        row["test_accuracy"] = "" if test is None else round(test.accuracy, 3)
        self._unread.append((row, task.tally.take()))
        now, last = time.monotonic(), row["epoch"] == trainer.max_epochs
        save = last or now - self._saved_at >= self.options.checkpoint_every
        read = save or now - self._read_at >= _READ_EVERY
        # Clocks differ: the first process decides for all.
        read, save = trainer.strategy.broadcast((read, save))
        if read:
            self._read(trainer)
        if save:
            self._save(trainer)

    def _read(self, trainer: pl.Trainer) -> None:
        """Read the queued counts and write their rows; raise if a loss has diverged."""
        task = _task(trainer)
        assert task.tally.diverged is not None
        reduce = trainer.strategy.reduce
        sums = reduce(torch.stack([totals for _, totals in self._unread]), reduce_op="sum")
        counts = [Counts.of(totals) for totals in sums.tolist()]
        diverged = int(reduce(task.tally.diverged, reduce_op="min"))
        if diverged != NEVER:
            raise self._diverged("loss is", diverged, task.learning_rates[diverged], trainer)
        task.learning_rates.clear()
        now = time.monotonic()
        seconds = (now - self._read_at) / len(counts)
        rate = sum(count.images for count in counts) / (now - self._read_at)
        rows = [
            row
            | {"loss": round(count.loss, 5), "accuracy": round(count.accuracy, 3)}
            | {"images_per_second": round(rate, 1), "seconds": round(seconds, 4)}
            for (row, _), count in zip(self._unread, counts, strict=True)
        ]
        self._unread, self._read_at = [], now
        if self._progress is not None:
            self._publish(rows, trainer, self._progress)

    def _save(self, trainer: pl.Trainer) -> None:
        """Save, unless the weights have diverged, which only the next loss would show."""
        values = trainer.lightning_module.state_dict().values()
        finite = [value.isfinite().all() for value in values if value.is_floating_point()]
        all_finite = torch.stack(finite).all().long()
        if not int(trainer.strategy.reduce(all_finite, reduce_op="min")):
            lr = trainer.optimizers[0].param_groups[0]["lr"]
            raise self._diverged("weights are", trainer.global_step, lr, trainer)
        trainer.save_checkpoint(self.folder.checkpoint)
        self._epochs_saved, self._saved_at = trainer.current_epoch + 1, time.monotonic()

    def next_call(self) -> str:
        """What the same command does after an interrupt."""
        path, kept = self.folder.path, self._epochs_saved or self.epochs_before
        if not self.folder.checkpoint.is_file():
            return f"The same command begins the run in {path} again: no checkpoint was due yet."
        return f"The same command continues the run in {path}" + f" after epoch {kept}" * bool(kept)

    def _diverged(self, what: str, step: int, lr: float, trainer: pl.Trainer) -> DivergedError:
        epoch = -(-step // int(trainer.num_training_batches))
        if not self.folder.checkpoint.is_file():
            left = "it was too early for a checkpoint"
        elif self._epochs_saved is None:
            left = f"{self.folder.checkpoint} keeps the state it began with"
        else:
            left = f"{self.folder.checkpoint} keeps the state after epoch {self._epochs_saved}"
        return DivergedError(
            f"the {what} no longer finite at step {step} (epoch {epoch}, learning rate {lr:.3g}); "
            f"{left}. A lower --lr or --clip 1 may help, in another folder or with --force"
        )

    def _publish(self, rows: list[dict[str, Any]], trainer: pl.Trainer, progress: Bars) -> None:
        self.folder.append_metrics(rows)
        for row in rows:
            numbers = {key: float(value) for key, value in row.items() if value != ""}
            for logger in self._loggers:
                logger.log_metrics(numbers, row["step"])
        last = rows[-1]
        text = f"loss {last['loss']:.3f}, accuracy {last['accuracy']:.1f} %"
        if last["test_accuracy"] != "":
            text += f", test {last['test_accuracy']:.1f} %"
        text += f", {last['images_per_second']:,.0f} images/s"
        label = f"epoch {last['epoch']}/{trainer.max_epochs}"
        progress.update(self._bar, completed=last["step"], description=label, note=text)
        if not self._is_piped:
            return
        now, done = time.monotonic(), last["epoch"] == trainer.max_epochs
        if done or now - self._printed_at >= PRINT_EVERY:
            self._printed_at = now
            say(self.console, f"{label}: {text}{self._pace.words(last['step'], self._steps)}")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Stop the progress bar and the loggers."""
        if self._progress is not None:
            self._progress.stop()
        for logger in self._loggers:
            logger.finalize("success")
        self._progress, self._loggers = None, ()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """The same, when training stops early."""
        self.teardown(trainer, pl_module, "fit")


def _task(trainer: pl.Trainer) -> ClassificationTask:
    assert isinstance(trainer.lightning_module, ClassificationTask)
    return trainer.lightning_module


def _loggers(
    folder: RunFolder, recipe: TrainingRecipe, options: RunOptions, step: int
) -> Sequence[Logger]:
    """TensorBoard if it is installed, Weights & Biases if an option asks for it."""
    loggers: list[Logger] = []
    if importlib.util.find_spec("tensorboard") is not None:
        # Steps after the checkpoint of a killed run are logged again.
        loggers.append(TensorBoardLogger(folder.path, "tensorboard", "", purge_step=step + 1))
    if options.wandb:
        config = asdict(recipe)
        loggers.append(WandbLogger(name=folder.path.name, project="equicolor", config=config))
    return loggers
