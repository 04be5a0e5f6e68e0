"""Train many seeds of one configuration side by side, in one program on one device.

Every run has its own initialisation, order of images, dropout and jitter, all drawn from its
own seed, so what a run draws does not depend on what trains beside it. A checkpoint holds
everything: a killed run resumes where it was.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from equicolor import _checks
from equicolor.models.tensor_files import write_pickle
from equicolor.reporting.progress import Progress
from equicolor.training.ensemble.runs import Recipe, Result, Run, check_runs, read_kept
from equicolor.training.ensemble.trainer import StackedTrainer

__all__ = ["train_many"]


def train_many(
    recipe: Recipe,
    runs: Iterable[Run],
    *,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    checkpoint_every: int = 50,
    progress: Progress | None = None,
) -> list[Result]:
    """Train a network for each of many datasets and seeds, all at once.

    Args:
        recipe: the configuration.
        runs: a dataset and a seed for each network. ``itertools.product(datasets, seeds)`` is
            every seed on every dataset; datasets need equal sizes and classes.
        device: where to train.
        checkpoint: a file to resume from and to save to. It stays at the end, for whoever keeps
            the results to remove: until then the same call gives them again without training.
        checkpoint_every: epochs between saves.
        progress: called after every epoch with (epochs done, epochs).

    Returns:
        The result of each run.

    Example:
        >>> from equicolor.data import load_mnist, longtailed_colormnist
        >>> data = longtailed_colormnist(load_mnist(embedded=True), largest=5, test_per_class=5)
        >>> results = train_many(Recipe("z2cnn", epochs=1), [(data, 0), (data, 1)])
        >>> [result.seed for result in results]
        [0, 1]
    """
    _checks.positive_int("checkpoint_every", checkpoint_every)
    runs = list(runs)
    check_runs(runs)
    with _set_up(torch.device(device)) as where:
        trainer = StackedTrainer(recipe, runs, where)
        _train(trainer, checkpoint, checkpoint_every, progress)
        return trainer.results()


@contextlib.contextmanager
def _set_up(device: torch.device) -> Iterator[torch.device]:
    """The device and cuDNN as training and testing need them."""
    cudnn = torch.backends.cudnn
    with contextlib.ExitStack() as stack:
        if device.type == "cuda":  # CUDA graphs and Triton take the current one
            stack.enter_context(torch.cuda.device(device))
        # Float32 is float32: cuDNN would take TF32 by default.
        stack.enter_context(
            cudnn.flags(
                enabled=cudnn.enabled,
                benchmark=True,
                deterministic=cudnn.deterministic,
                allow_tf32=False,
            )
        )
        yield device


def _train(
    trainer: StackedTrainer,
    checkpoint: Path | None,
    checkpoint_every: int,
    progress: Progress | None,
) -> None:
    recipe = trainer.recipe
    start = _resume(trainer, checkpoint) if checkpoint else 0
    if start == recipe.epochs:  # killed before the test
        return
    cuda = trainer.device.type == "cuda"
    step = trainer.graphed_step() if cuda else trainer.step
    for epoch in range(start, recipe.epochs):
        trainer.start_epoch(epoch)
        for _ in range(trainer.steps_per_epoch):
            step()
        _check(trainer, epoch, checkpoint)
        if progress:
            progress(epoch + 1, recipe.epochs)
        last = epoch + 1 == recipe.epochs
        if checkpoint and (last or (epoch + 1) % checkpoint_every == 0):
            _save(trainer, checkpoint, epoch + 1)


def _check(trainer: StackedTrainer, epoch: int, checkpoint: Path | None) -> None:
    """Stop when a run has diverged; the checkpoint before it stays."""
    seeds = trainer.diverged()
    if not seeds:
        return
    saved = checkpoint is not None and checkpoint.exists()
    kept = f"; {checkpoint} holds the last good state" if saved else ""
    raise ValueError(
        f"the training of seed {', '.join(map(str, seeds))} is no longer finite in epoch "
        f"{epoch + 1} (step {int(trainer.step_number)}, highest learning rate "
        f"{trainer.recipe.lr:g}){kept}"
    )


def _save(trainer: StackedTrainer, path: Path, epochs: int) -> None:
    """Write a checkpoint, whole or not at all."""
    state = {"fingerprint": trainer.fingerprint, "epochs": epochs, "tensors": trainer.tensors()}
    write_pickle(path, state)


def _resume(trainer: StackedTrainer, path: Path) -> int:
    """Continue from a checkpoint, if there is one; the number of epochs it has behind it."""
    if not path.exists():
        return 0
    saved = read_kept(path)
    if saved.get("fingerprint") != trainer.fingerprint:
        raise ValueError(
            f"{path} belongs to another configuration; delete it or choose another folder"
        )
    trainer.restore(saved["tensors"])
    return int(saved["epochs"])
