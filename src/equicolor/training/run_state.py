"""Checkpoints of training: written whole or not at all, and read without running code."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from equicolor.models.tensor_files import CheckpointError, read_pickle, write_pickle

__all__ = ["REMEDY", "EpochCheckpoint", "SafeCheckpointIO"]

REMEDY = "delete it to train from the start, or the whole run with --force"


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all, and reads only tensors and plain containers.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "last.ckpt"
        >>> SafeCheckpointIO().save_checkpoint({"epoch": 3}, path)
        >>> SafeCheckpointIO().load_checkpoint(path)
        {'epoch': 3}
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Path | str, storage_options: Any = None
    ) -> None:
        """Write a checkpoint."""
        write_pickle(Path(path), checkpoint)

    def load_checkpoint(
        self, path: Path | str, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint; code hidden in it is refused, whatever ``weights_only`` says.

        Raises:
            CheckpointError: if it is damaged or something else, and what to do.
        """
        contents = read_pickle(Path(path), REMEDY)
        if not isinstance(contents, dict):
            kind = type(contents).__name__
            raise CheckpointError(f"{path} is no checkpoint of a run, but a {kind}: {REMEDY}")
        return contents


class EpochCheckpoint(Checkpoint):
    """Saves the state of training at the end of epochs.

    Args:
        path: the file.
        every: seconds that must lie between two saves; 0 saves every epoch. The end is
            always saved.
        before: called before each save; what it raises keeps the file as it is.

    Attributes:
        epochs: how many epochs are behind the last save of this process; None before it.
    """

    def __init__(
        self, path: Path, *, every: float = 30.0, before: Callable[[pl.Trainer], None] | None = None
    ) -> None:
        self.path, self.every, self.before = path, every, before
        self.epochs: int | None = None
        self._saved = time.monotonic()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin to count the seconds."""
        self._saved = time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save, if it is time."""
        assert trainer.max_epochs is not None
        last = trainer.current_epoch + 1 >= trainer.max_epochs
        due = last or time.monotonic() - self._saved >= self.every
        # Clocks differ: the first process decides for all.
        if not trainer.strategy.broadcast(due):
            return
        if self.before is not None:
            self.before(trainer)
        trainer.save_checkpoint(self.path)
        self.epochs = trainer.current_epoch + 1
        self._saved = time.monotonic()
