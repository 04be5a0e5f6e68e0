"""Watching a run: metrics of every epoch, progress on the terminal, and losses that diverge.

The device is asked for its counts at the end of an epoch, but at most every two seconds:
where epochs are short, asking after each of them would make it wait.
"""

import csv
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from rich.console import Console
from rich.progress import Progress as Bars
from torch import Tensor

from equicolor._files import written_aside
from equicolor.reporting.progress import progress_bars, say
from equicolor.training.tally import NEVER, Counts
from equicolor.training.task import ClassificationTask

__all__ = ["DivergedError", "Metrics", "Monitor"]

COLUMNS = (
    "epoch", "step", "lr", "loss", "accuracy", "test_loss", "test_accuracy",
    "images_per_second", "seconds",
)  # fmt: skip
_ASK_EVERY = 2.0  # seconds between two questions to the device
_DRAW_EVERY = 0.25  # seconds between two updates of the progress bar
_PRINT_EVERY = 30.0  # seconds between two lines where there is no terminal


class DivergedError(ValueError):
    """A loss that is no longer finite: at which step, and what is left."""


@dataclass(frozen=True)
class Metrics:
    """The table of a run, one row an epoch, in a CSV file.

    Attributes:
        path: the file.

    Example:
        >>> import tempfile
        >>> metrics = Metrics(Path(tempfile.mkdtemp()) / "metrics.csv")
        >>> metrics.append([{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": 2.25}])
        >>> metrics.keep(1)
        >>> [row["loss"] for row in metrics.read()]
        ['2.5']
    """

    path: Path

    def read(self) -> list[dict[str, str]]:
        """The rows that are whole: a crash may have cut the last one short."""
        if not self.path.is_file():
            return []
        with self.path.open(newline="", errors="replace") as file:
            rows = list(csv.DictReader(file))
        return [row for row in rows if tuple(row) == COLUMNS and all(map(_number, row.values()))]

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
        if not self.path.is_file() or not self.path.stat().st_size:  # as a full disk leaves it
            writer.writeheader()
        writer.writerows(rows)
        with self.path.open("a", newline="") as file:
            file.write(text.getvalue())

    def keep(self, epochs: int) -> None:
        """Drop the rows after an epoch, which is where a resumed run begins."""
        rows = [
            row for row in self.read() if row["epoch"].isdigit() and int(row["epoch"]) <= epochs
        ]
        if not self.path.is_file():
            return
        with written_aside(self.path) as partial:
            Metrics(partial).append(rows)


def _number(text: object) -> bool:
    """Whether a cell holds a number, or nothing."""
    if text == "":
        return True
    try:
        float(str(text))
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class _Epoch:
    """An epoch that is over, and what the device has counted in it."""

    number: int
    step: int
    lr: float
    totals: Tensor
    validation: Counts | None


class Monitor(Callback):
    """Asks a :class:`~equicolor.training.task.ClassificationTask` how it is getting on.

    Args:
        metrics: where the rows go.
        console: where progress is shown; None shows nothing.
        loggers: makes loggers that get the rows too, given the step the run begins at.
        last_good: says, in words, what is left when a loss diverges.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        console: Console | None = None,
        loggers: Callable[[int], Sequence[Logger]] = lambda step: (),
        last_good: Callable[[], str] = lambda: "nothing was saved",
    ) -> None:
        self.metrics, self.console = metrics, console
        self.make_loggers, self.last_good = loggers, last_good
        self._waiting: list[_Epoch] = []
        self._loggers: Sequence[Logger] = ()
        self._progress: Bars | None = None  # in the first process alone
        self._asked = self._drawn = self._printed = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the rows after the checkpoint, and begin to measure."""
        self._asked = self._drawn = self._printed = time.monotonic()
        if not trainer.is_global_zero:
            return
        self.metrics.keep(trainer.current_epoch)
        self._loggers = self.make_loggers(trainer.global_step)
        # Without a terminal, lines are printed instead.
        terminal = self.console if self.console and self.console.is_terminal else None
        self._progress = progress_bars(terminal, transient=False)
        total = int(trainer.estimated_stepping_batches)
        self._bar = self._progress.add_task(
            "training", total=total, completed=trainer.global_step, note=""
        )
        self._progress.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object
    ) -> None:
        """Move the progress bar, now and then."""
        now = time.monotonic()
        if self._progress is not None and now - self._drawn >= _DRAW_EVERY:
            self._drawn = now
            self._progress.update(self._bar, completed=trainer.global_step)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the counts of the epoch aside, and ask for those of several at once."""
        assert isinstance(pl_module, ClassificationTask)
        lr = pl_module.learning_rates[trainer.global_step]
        number, step = trainer.current_epoch + 1, trainer.global_step
        totals = pl_module.tally.take()
        self._waiting.append(_Epoch(number, step, lr, totals, pl_module.validation))
        pl_module.validation = None
        due = time.monotonic() - self._asked >= _ASK_EVERY
        if trainer.strategy.broadcast(due):  # the first process decides for all
            self.ask(trainer)

    def ask(self, trainer: pl.Trainer) -> None:
        """Wait for the device; write rows, and stop if a loss has diverged."""
        if not self._waiting:
            return
        task = trainer.lightning_module
        assert isinstance(task, ClassificationTask)
        assert task.tally.diverged is not None
        reduce = trainer.strategy.reduce
        sums = reduce(torch.stack([epoch.totals for epoch in self._waiting]), reduce_op="sum")
        counts = [Counts.of(totals) for totals in sums.tolist()]
        diverged = int(reduce(task.tally.diverged, reduce_op="min"))
        if diverged != NEVER:
            raise self._diverged("loss is", diverged, task.learning_rates[diverged], trainer)
        task.learning_rates.clear()
        now = time.monotonic()
        seconds = (now - self._asked) / len(counts)
        rate = sum(count.images for count in counts) / (now - self._asked)
        rows = [
            _row(epoch, count, seconds, rate)
            for epoch, count in zip(self._waiting, counts, strict=True)
        ]
        self._waiting, self._asked = [], now
        if self._progress is not None:
            self._publish(rows, trainer, self._progress)

    def before_saving(self, trainer: pl.Trainer) -> None:
        """The same, and stop if the weights have diverged, which the next loss would tell."""
        self.ask(trainer)
        values = trainer.lightning_module.state_dict().values()
        finite = [value.isfinite().all() for value in values if value.is_floating_point()]
        all_finite = torch.stack(finite).all().long()
        if not int(trainer.strategy.reduce(all_finite, reduce_op="min")):
            lr = trainer.optimizers[0].param_groups[0]["lr"]
            raise self._diverged("weights are", trainer.global_step, lr, trainer)

    def _diverged(self, what: str, step: int, lr: float, trainer: pl.Trainer) -> DivergedError:
        return DivergedError(
            f"the {what} no longer finite at step {step} (epoch {_epoch_of(step, trainer)}, "
            f"learning rate {lr:.3g}); {self.last_good()}. A lower --lr or --clip 1 may help, in "
            "another folder or with --force"
        )

    def _publish(self, rows: list[dict[str, Any]], trainer: pl.Trainer, progress: Bars) -> None:
        self.metrics.append(rows)
        for row in rows:
            numbers = {key: float(value) for key, value in row.items() if value != ""}
            for logger in self._loggers:
                logger.log_metrics(numbers, int(row["step"]))
        last = rows[-1]
        text = f"loss {last['loss']:.3f}, accuracy {last['accuracy']:.1f} %"
        if last["test_accuracy"] != "":
            text += f", test {last['test_accuracy']:.1f} %"
        text += f", {last['images_per_second']:,.0f} images/s"
        label = f"epoch {last['epoch']}/{trainer.max_epochs}"
        progress.update(self._bar, completed=last["step"], description=label, note=text)
        if self.console is None or self.console.is_terminal:
            return
        now, done = time.monotonic(), last["epoch"] == trainer.max_epochs
        if done or now - self._printed >= _PRINT_EVERY:
            self._printed = now
            say(self.console, f"{label}: {text}")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Put the progress bar and the loggers away."""
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


def _row(epoch: _Epoch, counts: Counts, seconds: float, rate: float) -> dict[str, Any]:
    judged = epoch.validation
    return {
        "epoch": epoch.number,
        "step": epoch.step,
        "lr": f"{epoch.lr:.4g}",
        "loss": round(counts.loss, 5),
        "accuracy": round(counts.accuracy, 3),
        "test_loss": "" if judged is None else round(judged.loss, 5),
        "test_accuracy": "" if judged is None else round(judged.accuracy, 3),
        "images_per_second": round(rate, 1),
        "seconds": round(seconds, 4),
    }


def _epoch_of(step: int, trainer: pl.Trainer) -> int:
    return -(-step // int(trainer.num_training_batches))
