"""Train many seeds of one configuration side by side, in one program on one device.

Every run has its own initialisation, order of images, dropout and jitter, all drawn from its
own seed (:mod:`equicolor._random`), so what a run draws does not depend on what trains
beside it. Data stay on the device; on a GPU a training step is replayed as one CUDA graph. A
checkpoint holds everything: a killed run resumes where it was.
"""

import dataclasses
import functools
import hashlib
import json
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor import _checks
from equicolor._files import written_aside
from equicolor._random import permutation, uniform
from equicolor.color import shift_hue
from equicolor.data.colormnist import ColorMNIST
from equicolor.models.registry import create_model
from equicolor.models.z2cnn import DROPPING, Z2CNN
from equicolor.training.recipes import PRECISIONS, usual_precision
from equicolor.training.stacked import StackedZ2CNN, stack_states

__all__ = ["Recipe", "Result", "Run", "identity", "train_many"]

_SHUFFLE, _JITTER, _DROPOUT = range(3)  # streams of random numbers
_BETA2, _EPS = 0.999, 1e-8  # Adam's, as in torch
_TEST_BATCH = 250


@dataclass(frozen=True)
class Recipe:
    """One configuration of a ColorMNIST experiment (paper, section 4.1), as data.

    Attributes:
        model: a name for the result rows.
        network: ``"z2cnn"`` or ``"cecnn"``.
        options: the builder's arguments beside ``num_classes``.
        gray: feed the mean of the channels.
        jitter: hue jitter in turns, drawn per image from ±jitter.
        weighted: weigh classes by ``N / (c n_i)`` in the loss.
        epochs, batch_size, lr, weight_decay: of training with Adam and a one-cycle schedule.
        precision: what convolutions compute in, ``"bf16"`` or ``"32"``; ``"auto"`` is bf16 on
            CUDA.
    """

    model: str
    network: str = "z2cnn"
    options: dict[str, Any] = field(default_factory=dict)
    gray: bool = False
    jitter: float = 0.0
    weighted: bool = False
    epochs: int = 1000
    batch_size: int = 256
    lr: float = 1e-3
    weight_decay: float = 1e-5
    precision: str = "auto"

    def __post_init__(self) -> None:
        """Refuse a precision that is none."""
        _checks.one_of("precision", self.precision, ("auto", *PRECISIONS))

    def dtype(self, device: torch.device) -> torch.dtype:
        """What convolutions compute in on a device."""
        usual = usual_precision(cuda=device.type == "cuda")
        chosen = usual if self.precision == "auto" else self.precision
        return torch.bfloat16 if chosen == "bf16" else torch.float32

    def build(self, num_classes: int, seed: int) -> Z2CNN:
        """The network of one seed, freshly drawn."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = create_model(self.network, num_classes=num_classes, **self.options)
        assert isinstance(network, Z2CNN)
        return network


@dataclass(frozen=True)
class Result:
    """One trained run.

    Attributes:
        dataset, seed: which.
        accuracy: on the test set, in percent.
        per_class: accuracy of every class, in percent.
        loss: mean training loss of the last epoch.
        state: the network's state dict, on the CPU.
    """

    dataset: str
    seed: int
    accuracy: float
    per_class: list[float]
    loss: float
    state: dict[str, Tensor]


Run = tuple[ColorMNIST, int]  # what a network is trained on, and its seed
Progress = Callable[[int, int, float], None]


def identity(recipe: Recipe, runs: Iterable[Run]) -> dict[str, Any]:
    """What decides the outcome of a training, as JSON: what is kept of it is for these alone.

    Args:
        recipe, runs: as for :func:`train_many`.

    Example:
        >>> from equicolor.data import biased_colormnist, load_mnist
        >>> data = biased_colormnist(12.0, load_mnist(embedded=True))
        >>> identity(Recipe("z2cnn"), [(data, 7)])["runs"] == [[data.checksum, 7]]
        True
    """
    return {
        "recipe": dataclasses.asdict(recipe),
        "runs": [[data.checksum, seed] for data, seed in runs],
        "dropping": list(DROPPING),
    }


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
        checkpoint: a file to resume from and to save to; it is removed at the end.
        checkpoint_every: epochs between saves.
        progress: called after every epoch with (epochs done, epochs, mean loss).

    Returns:
        The result of each run.

    Example:
        >>> from equicolor.data import load_mnist, longtailed_colormnist
        >>> data = longtailed_colormnist(load_mnist(embedded=True), largest=5, test_per_class=5)
        >>> results = train_many(Recipe("z2cnn", epochs=1), [(data, 0), (data, 1)])
        >>> [result.seed for result in results]
        [0, 1]
    """
    _checks.positive_int("epochs", recipe.epochs)
    trainer = _Trainer(recipe, list(runs), torch.device(device))
    # Float32 is float32: cuDNN would take TF32 by default.
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
        _train(trainer, checkpoint, checkpoint_every, progress)
    results = trainer.results()
    if checkpoint:
        checkpoint.unlink(missing_ok=True)
    return results


def _train(
    trainer: "_Trainer",
    checkpoint: Path | None,
    checkpoint_every: int,
    progress: Progress | None,
) -> None:
    recipe = trainer.recipe
    start = trainer.resume(checkpoint) if checkpoint else 0
    if start == recipe.epochs:  # killed before the test
        return
    cuda = trainer.device.type == "cuda"
    step = trainer.graphed_step() if cuda else trainer.step
    for epoch in range(start, recipe.epochs):
        trainer.start_epoch(epoch)
        for _ in range(trainer.steps_per_epoch):
            step()
        trainer.check_losses(epoch, checkpoint)
        if progress:
            progress(epoch + 1, recipe.epochs, trainer.mean_loss())
        last = epoch + 1 == recipe.epochs
        if checkpoint and (last or (epoch + 1) % checkpoint_every == 0):
            trainer.save(checkpoint, epoch + 1)


class _Trainer:
    """The state of all runs on the device, and one step on it."""

    def __init__(self, recipe: Recipe, runs: Sequence[Run], device: torch.device) -> None:
        if not runs:
            raise ValueError("expected at least one dataset and seed to train for, got none")
        self.recipe, self.runs, self.device = recipe, runs, device
        # Each dataset is on the device once, however many seeds train on it.
        distinct = {id(data): data for data, _ in runs}
        self.datasets = datasets = list(distinct.values())
        classes = datasets[0].num_classes
        sizes = {len(data.train.labels) for data in datasets}
        if len(sizes) > 1:
            raise ValueError(f"datasets that train together need equal sizes, got {sorted(sizes)}")
        self.size = sizes.pop()
        networks = [recipe.build(classes, seed) for _, seed in runs]
        cuda = device.type == "cuda"
        dtype = recipe.dtype(device)
        self.stacked = StackedZ2CNN.like(networks[0], dtype=dtype, pad=cuda, fused=cuda)
        self.dropout = float(networks[0].config["dropout"])
        state = {key: value.to(device) for key, value in stack_states(networks).items()}
        trained = dict(networks[0].named_parameters())
        # All parameters of a run in one row: an update is then a few kernels, not hundreds.
        self.shapes = {key: value.shape for key, value in trained.items()}
        self.parameters = torch.cat([state[key].flatten(1) for key in trained], 1).requires_grad_()
        self.buffers = {key: value for key, value in state.items() if key not in trained}
        self.first = torch.zeros_like(self.parameters)
        self.second = torch.zeros_like(self.parameters)

        self.run_seeds = torch.tensor([seed for _, seed in runs], device=device)
        places = [list(distinct).index(id(data)) for data, _ in runs]
        self.run_data = torch.tensor(places, device=device)
        self.images = torch.stack([data.train.images for data in datasets]).to(device)
        self.labels = torch.stack([data.train.labels for data in datasets]).to(device)
        counts = torch.stack([data.class_counts() for data in datasets]).to(device)
        weights = self.size / (classes * counts.clamp_min(1).float())
        self.class_weights = weights[self.run_data] if recipe.weighted else None

        # An epoch is cut into equal batches, so that every step has the same shape; the few
        # images that are missing to fill the last one come from the start of the order.
        self.steps_per_epoch = math.ceil(self.size / recipe.batch_size)
        self.batch = math.ceil(self.size / self.steps_per_epoch)
        total = recipe.epochs * self.steps_per_epoch
        self.schedule = _one_cycle(recipe.lr, total).to(device)
        self.step_number = torch.zeros((), dtype=torch.int64, device=device)
        length = self.batch * self.steps_per_epoch
        self.order = torch.zeros(len(runs), length, dtype=torch.int64, device=device)
        self.losses = torch.zeros(len(runs), device=device)

    def start_epoch(self, epoch: int) -> None:
        """Draw the order of the images."""
        order = permutation(self.run_seeds, _SHUFFLE, epoch, self.size)
        spare = self.order.shape[1] - self.size
        self.order.copy_(torch.cat([order, order[:, :spare]], 1))
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
        chosen = self.order[:, offsets]
        images = self.images[self.run_data[:, None], chosen]
        labels = self.labels[self.run_data[:, None], chosen]
        if self.recipe.jitter:
            turns = uniform(self.run_seeds, _JITTER, self.step_number, self.batch)
            images = shift_hue(images, self.recipe.jitter * (2 * turns - 1))
        logits = self.stacked.logits(
            self._state(),
            _gray(images) if self.recipe.gray else images,
            training=True,
            dropout=self._dropout_factors() if self.dropout else None,
        )
        # Gather, not F.cross_entropy: class weights differ from run to run.
        losses = -logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
        if self.class_weights is None:
            return losses.mean(1)
        weights = self.class_weights.gather(1, labels)
        return (weights * losses).sum(1) / weights.sum(1)

    def _dropout_factors(self) -> Tensor:
        """Zero or the inverse probability to stay, for the layers that drop, ``[4, B, S, C]``."""
        shape = len(DROPPING), self.batch, self.stacked.width
        numbers = uniform(self.run_seeds, _DROPOUT, self.step_number, math.prod(shape))
        keep = (numbers >= self.dropout).float() / (1 - self.dropout)
        factors: Tensor = keep.unflatten(1, shape).movedim(0, 2)
        return factors

    @torch.no_grad()
    def _update(self, gradient: Tensor) -> None:
        """Adam as torch does it, with the schedule's step size and momentum."""
        # index_select, since indexing with a tensor of no dimensions would wait for the device
        row = self.schedule.index_select(0, self.step_number.view(1))
        size, beta1, correction = row[0].unbind()
        gradient = gradient.add(self.parameters, alpha=self.recipe.weight_decay)
        self.first.lerp_(gradient, 1 - beta1)
        self.second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        self.parameters -= size * self.first / (self.second.sqrt() / correction + _EPS)
        self.step_number += 1

    def graphed_step(self) -> Callable[[], None]:
        """The step as one CUDA graph: hundreds of small kernels without launching each."""
        saved = {key: value.detach().clone() for key, value in self._tensors().items()}
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
                self.step_number.zero_()  # the schedule may be shorter than the warm-up
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # records without running
            self.step()
        # Warming up trained a little: put everything back.
        self._restore(saved)
        return graph.replay

    def check_losses(self, epoch: int, checkpoint: Path | None) -> None:
        """Stop when a run has diverged; the checkpoint before it stays."""
        # The parameters too: the last update of an epoch shows in no loss of it.
        broken = ~(self.losses.isfinite() & self.parameters.detach().isfinite().all(1))
        if not broken.any():
            return
        seeds = ", ".join(map(str, self.run_seeds[broken].unique().tolist()))
        saved = checkpoint is not None and checkpoint.exists()
        kept = f"; {checkpoint} holds the last good state" if saved else ""
        raise ValueError(
            f"the training of seed {seeds} is no longer finite in epoch {epoch + 1} "
            f"(step {int(self.step_number)}, highest learning rate {self.recipe.lr:g}){kept}"
        )

    def mean_loss(self) -> float:
        """The mean loss of this epoch over all runs."""
        return float(self.losses.mean()) / self.steps_per_epoch

    def _tensors(self) -> dict[str, Tensor]:
        """Everything that training changes, by name."""
        return {
            **self.buffers,
            "parameters": self.parameters,
            "first": self.first,
            "second": self.second,
            "step": self.step_number,
            "losses": self.losses,
        }

    @torch.no_grad()
    def _restore(self, saved: dict[str, Tensor]) -> None:
        for key, tensor in self._tensors().items():
            tensor.copy_(saved[key])

    @functools.cached_property
    def _fingerprint(self) -> str:
        """What a checkpoint must agree on to be continued."""
        facts = identity(self.recipe, self.runs)
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def save(self, path: Path, epochs: int) -> None:
        """Write a checkpoint, whole or not at all."""
        state = {"fingerprint": self._fingerprint, "epochs": epochs, "tensors": self._tensors()}
        with written_aside(path) as partial:
            torch.save(state, partial)

    def resume(self, path: Path) -> int:
        """Continue from a checkpoint, if there is one; the number of epochs it has behind it."""
        if not path.exists():
            return 0
        saved = read_kept(path, self.device)
        if saved.get("fingerprint") != self._fingerprint:
            raise ValueError(
                f"{path} belongs to another configuration; delete it or choose another folder"
            )
        self._restore(saved["tensors"])
        return int(saved["epochs"])

    @torch.no_grad()
    def results(self) -> list[Result]:
        """Accuracy of every run on the test set, in float32, as the networks are delivered."""
        state, stacked = self._state(), dataclasses.replace(self.stacked, dtype=torch.float32)
        labels = torch.stack([data.test.labels for data in self.datasets]).to(self.device)
        predicted = []
        for start in range(0, labels.shape[1], _TEST_BATCH):
            chosen = slice(start, start + _TEST_BATCH)
            part = torch.stack([data.test.images[chosen] for data in self.datasets])
            batch = part.to(self.device)[self.run_data]
            batch = _gray(batch) if self.recipe.gray else batch
            predicted.append(stacked.logits(state, batch).argmax(-1))
        correct = (torch.cat(predicted, 1) == labels[self.run_data]).float()
        hits = F.one_hot(labels, self.datasets[0].num_classes).float()[self.run_data]
        per_class = 100 * (correct[:, :, None] * hits).sum(1) / hits.sum(1).clamp_min(1)
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


def read_kept(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What an earlier run left in a torch file.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to start that job anew") from None
    if not isinstance(saved, dict):
        raise ValueError(f"{path} is not what a run keeps; delete it to start that job anew")
    return saved


def _gray(images: Tensor) -> Tensor:
    """The mean of the channels, repeated."""
    return images.mean(-3, keepdim=True).expand_as(images)


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
