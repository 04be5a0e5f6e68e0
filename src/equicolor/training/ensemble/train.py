"""Train many seeds of one configuration side by side, in one program on one device.

Every run has its own initialisation, order of images, dropout and jitter. They are functions of its
seed and the step (:mod:`equicolor._random`), so a run does not depend on what trains beside it.
Data stay on the device; on a GPU a step is replayed as one CUDA graph. A checkpoint holds
everything: a killed run resumes where it was.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor import _checks
from equicolor._random import permutation, uniform
from equicolor.color import shift_hue, to_gray
from equicolor.models.tensor_files import read_pickle, write_pickle
from equicolor.models.z2cnn import DROPPING, Z2CNN
from equicolor.reporting.progress import Progress
from equicolor.training.ensemble.network import StackedZ2CNN, stack_states
from equicolor.training.ensemble.runs import Recipe, Result, Run, check_runs, identity

_SHUFFLE, _JITTER, _DROPOUT = range(3)  # streams of random numbers
_BETA2, _EPS = 0.999, 1e-8  # Adam's, as in torch
_TEST_BATCH = 250


class StackedTrainer:
    """The state of all runs on a device, and their training step."""

    def __init__(self, recipe: Recipe, runs: Sequence[Run], device: torch.device) -> None:
        self.recipe, self.runs, self.device = recipe, runs, device
        networks = [recipe.build(data.num_classes, seed) for data, seed in runs]
        half = recipe.precision_on(device) == "bfloat16"
        dtype = torch.bfloat16 if half else torch.float32
        self.stacked = StackedZ2CNN.like(networks[0], dtype=dtype, pad=device.type == "cuda")
        self.dropout = float(networks[0].config["dropout"])
        self.run_seeds = torch.tensor([seed for _, seed in runs], device=device)
        self._place_networks(networks)
        self._place_data()
        self._cut_epochs()

    def _place_networks(self, networks: Sequence[Z2CNN]) -> None:
        state = {key: value.to(self.device) for key, value in stack_states(networks).items()}
        trained = dict(networks[0].named_parameters())
        # All parameters of a run in one row, so that an update takes a few kernels, not hundreds.
        self.shapes = {key: value.shape for key, value in trained.items()}
        self.parameters = torch.cat([state[key].flatten(1) for key in trained], 1).requires_grad_()
        self.buffers = {key: value for key, value in state.items() if key not in trained}
        self.first = torch.zeros_like(self.parameters)
        self.second = torch.zeros_like(self.parameters)

    def _place_data(self) -> None:
        # Each dataset is on the device once, however many seeds train on it.
        distinct = {id(data): data for data, _ in self.runs}
        self.datasets = datasets = list(distinct.values())
        places = [list(distinct).index(id(data)) for data, _ in self.runs]
        self.run_data = torch.tensor(places, device=self.device)
        self.images = torch.stack([data.train.images for data in datasets]).to(self.device)
        self.labels = torch.stack([data.train.labels for data in datasets]).to(self.device)
        counts = torch.stack([data.class_counts() for data in datasets]).to(self.device)
        self.size, classes = self.labels.shape[1], counts.shape[1]
        weights = self.size / (classes * counts.clamp_min(1).float())
        self.class_weights = weights[self.run_data] if self.recipe.weighted else None

    def _cut_epochs(self) -> None:
        # An epoch is cut into equal batches, so that every step has the same shape; the last
        # batch is filled from the start of the order.
        self.steps_per_epoch = math.ceil(self.size / self.recipe.batch_size)
        self.batch = math.ceil(self.size / self.steps_per_epoch)
        total = self.recipe.epochs * self.steps_per_epoch
        self.schedule = _one_cycle(self.recipe.lr, total).to(self.device)
        self.step_number = torch.zeros((), dtype=torch.int64, device=self.device)
        shape = len(self.runs), self.batch * self.steps_per_epoch
        self.order = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self.losses = torch.zeros(len(self.runs), device=self.device)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest that a checkpoint must share to be continued."""
        facts = identity(self.recipe, self.runs)
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def start_epoch(self, epoch: int) -> None:
        """Draw the order of the images."""
        order = permutation(self.run_seeds, _SHUFFLE, epoch, self.size)
        missing = self.order.shape[1] - self.size
        self.order.copy_(torch.cat([order, order[:, :missing]], 1))
        self.losses.zero_()

    def step(self) -> None:
        """One batch for every run: forward, backward, update."""
        losses = self._losses()
        (gradient,) = torch.autograd.grad(losses.sum(), self.parameters)
        self.losses += losses.detach()
        self._update(gradient)

    def _state(self) -> dict[str, Tensor]:
        """Stacked parameters and buffers by name, as views."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        rows = self.parameters.split(sizes, 1)
        named = zip(self.shapes.items(), rows, strict=True)
        return {key: row.unflatten(1, shape) for (key, shape), row in named} | self.buffers

    def _losses(self) -> Tensor:
        """The loss of every run on its batch, ``[S]``."""
        position = self.step_number % self.steps_per_epoch
        offsets = position * self.batch + torch.arange(self.batch, device=self.device)
        places = self.order[:, offsets]
        images = self.images[self.run_data[:, None], places]
        labels = self.labels[self.run_data[:, None], places]
        if self.recipe.jitter:
            turns = uniform(self.run_seeds, _JITTER, self.step_number, self.batch)
            images = shift_hue(images, self.recipe.jitter * (2 * turns - 1))
        images = to_gray(images) if self.recipe.gray else images
        dropout = self._dropout_factors() if self.dropout else None
        logits = self.stacked.logits(self._state(), images, training=True, dropout=dropout)
        # Gather, not F.cross_entropy: class weights differ from run to run.
        losses = -logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
        if self.class_weights is None:
            return losses.mean(1)
        weights = self.class_weights.gather(1, labels)
        return (weights * losses).sum(1) / weights.sum(1)

    def _dropout_factors(self) -> Tensor:
        """Zero or the inverse probability to stay, for layers with dropout, ``[4, B, S, C]``."""
        shape = len(DROPPING), self.batch, self.stacked.width
        numbers = uniform(self.run_seeds, _DROPOUT, self.step_number, math.prod(shape))
        keep = (numbers >= self.dropout).float() / (1 - self.dropout)
        return keep.unflatten(1, shape).movedim(0, 2)

    @torch.no_grad()
    def _update(self, gradient: Tensor) -> None:
        """Adam as in torch, with the schedule's step size and momentum."""
        # index_select, since indexing with a scalar tensor would wait for the device
        row = self.schedule.index_select(0, self.step_number.view(1))
        size, beta1, correction = row[0].unbind()
        gradient = gradient.add(self.parameters, alpha=self.recipe.weight_decay)
        self.first.lerp_(gradient, 1 - beta1)
        self.second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        self.parameters -= size * self.first / (self.second.sqrt() / correction + _EPS)
        self.step_number += 1

    def graphed_step(self) -> Callable[[], None]:
        """The step as one CUDA graph, which launches hundreds of small kernels at once."""
        saved = {key: value.detach().clone() for key, value in self.tensors().items()}
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
                self.step_number.zero_()  # the schedule may be shorter than the warm-up
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):  # records without running
            self.step()
        # The warm-up trained a little: undo that.
        self.restore(saved)
        return graph.replay

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes, by name."""
        state = {"parameters": self.parameters, "first": self.first, "second": self.second}
        return {**self.buffers, **state, "step": self.step_number, "losses": self.losses}

    @torch.no_grad()
    def restore(self, saved: dict[str, Tensor]) -> None:
        """Restore the values of :meth:`tensors`."""
        for key, tensor in self.tensors().items():
            tensor.copy_(saved[key])

    @torch.no_grad()
    def results(self) -> list[Result]:
        """Accuracy of every run on the test set, in float32, as the networks are delivered."""
        state, stacked = self._state(), dataclasses.replace(self.stacked, dtype=torch.float32)
        labels = torch.stack([data.test.labels for data in self.datasets]).to(self.device)
        predicted = []
        for start in range(0, labels.shape[1], _TEST_BATCH):
            part = slice(start, start + _TEST_BATCH)
            images = torch.stack([data.test.images[part] for data in self.datasets])
            images = images.to(self.device)[self.run_data]
            images = to_gray(images) if self.recipe.gray else images
            predicted.append(stacked.logits(state, images).argmax(-1))
        correct = (torch.cat(predicted, 1) == labels[self.run_data]).float()
        members = F.one_hot(labels, self.datasets[0].num_classes).float()[self.run_data]
        per_class = 100 * (correct[:, :, None] * members).sum(1) / members.sum(1).clamp_min(1)
        return [
            Result(
                dataset=data.name,
                seed=seed,
                accuracy=100 * float(correct[run].mean()),
                per_class=per_class[run].tolist(),
                loss=float(self.losses[run]) / self.steps_per_epoch,
                state={key: value[run].cpu().clone() for key, value in state.items()},
            )
            for run, (data, seed) in enumerate(self.runs)
        ]


def _one_cycle(lr: float, steps: int) -> Tensor:
    """For every step: Adam's step size, beta1 and root of the second bias correction.

    Taken from torch's own OneCycleLR, which also cycles the momentum.
    """
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps)
    rows = []
    for step in range(1, steps + 1):
        group = optimizer.param_groups[0]
        beta1 = group["betas"][0]
        rows.append((group["lr"] / (1 - beta1**step), beta1, math.sqrt(1 - _BETA2**step)))
        optimizer.step()
        if step < steps:
            scheduler.step()
    return torch.tensor(rows)


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
        device: the device to train on.
        checkpoint: a file to resume from and to save to. It stays at the end: until the caller
            removes it, the same call returns the results without training.
        checkpoint_every: epochs between saves.
        progress: called after every epoch with (epochs done, epochs).
    """
    _checks.positive_int("checkpoint_every", checkpoint_every)
    runs = list(runs)
    check_runs(runs)
    device, cudnn = torch.device(device), torch.backends.cudnn
    # CUDA graphs and Triton use the current device.
    current = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    # By default, cuDNN would compute float32 in TF32.
    flags = {"benchmark": True, "deterministic": cudnn.deterministic, "allow_tf32": False}
    with current, cudnn.flags(enabled=cudnn.enabled, **flags):
        trainer = StackedTrainer(recipe, runs, device)
        _train(trainer, checkpoint, checkpoint_every, progress)
        return trainer.results()


def _train(
    trainer: StackedTrainer,
    checkpoint: Path | None,
    checkpoint_every: int,
    progress: Progress | None,
) -> None:
    epochs = trainer.recipe.epochs
    start = _resume(trainer, checkpoint) if checkpoint else 0
    if start == epochs:  # killed before the results were computed
        return
    step = trainer.graphed_step() if trainer.device.type == "cuda" else trainer.step
    for epoch in range(start + 1, epochs + 1):
        trainer.start_epoch(epoch - 1)
        for _ in range(trainer.steps_per_epoch):
            step()
        _check_finite(trainer, epoch, checkpoint)
        if progress:
            progress(epoch, epochs)
        if checkpoint and (epoch == epochs or epoch % checkpoint_every == 0):
            _save(trainer, checkpoint, epoch)


def _check_finite(trainer: StackedTrainer, epoch: int, checkpoint: Path | None) -> None:
    """Raise if a run is no longer finite; the last checkpoint stays."""
    # Parameters, too: no loss of an epoch shows its last update.
    broken = ~(trainer.losses.isfinite() & trainer.parameters.detach().isfinite().all(1))
    seeds = trainer.run_seeds[broken].unique().tolist()
    if not seeds:
        return
    saved = checkpoint is not None and checkpoint.exists()
    left = f"; {checkpoint} holds the last good state" if saved else ""
    raise ValueError(
        f"the training of seed {', '.join(map(str, seeds))} is no longer finite in epoch {epoch} "
        f"(step {int(trainer.step_number)}, highest learning rate {trainer.recipe.lr:g}){left}"
    )


def _save(trainer: StackedTrainer, path: Path, epochs: int) -> None:
    """Write a checkpoint, whole or not at all."""
    state = {"fingerprint": trainer.fingerprint, "epochs": epochs, "tensors": trainer.tensors()}
    write_pickle(path, state)


def _resume(trainer: StackedTrainer, path: Path) -> int:
    """Restore a checkpoint, if there is one, and return its number of epochs."""
    if not path.exists():
        return 0
    remedy = "delete it to start that job anew"
    saved = read_pickle(path, remedy)
    if not isinstance(saved, dict):
        raise ValueError(f"{path} is not a checkpoint of a run; {remedy}")
    if saved.get("fingerprint") != trainer.fingerprint:
        raise ValueError(
            f"{path} belongs to another configuration; delete it or choose another folder"
        )
    trainer.restore(saved["tensors"])
    return int(saved["epochs"])
