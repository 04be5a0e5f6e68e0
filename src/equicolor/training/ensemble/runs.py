"""What is trained on coloured digits, as data: recipe, runs, and what came of them."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equicolor import _checks
from equicolor.data.colormnist import ColorMNIST
from equicolor.devices import choose_precision
from equicolor.models.registry import create_model
from equicolor.models.tensor_files import read_pickle
from equicolor.models.z2cnn import DROPPING, Z2CNN

__all__ = ["Recipe", "Result", "Run", "check_runs", "identity", "read_kept"]

Run = tuple[ColorMNIST, int]  # what a network is trained on, and its seed


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
        precision: what convolutions compute in, ``"float32"`` or ``"bfloat16"``; ``"auto"`` is
            bfloat16 on CUDA.
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
        """Refuse what cannot be trained."""
        _checks.one_of("network", self.network, ("z2cnn", "cecnn"))
        choose_precision(self.precision, cuda=False)  # which refuses what is none
        _checks.positive_int("epochs", self.epochs)
        if _checks.positive_int("batch_size", self.batch_size) < 2:
            raise ValueError("batch_size must be at least 2 for batch normalization, got 1")
        for name in ("jitter", "lr", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a number of at least 0, got {value}")

    def precision_on(self, device: torch.device) -> str:
        """What convolutions compute in on a device."""
        return choose_precision(self.precision, cuda=device.type == "cuda")

    def dtype(self, device: torch.device) -> torch.dtype:
        """The same, as torch has it."""
        return torch.bfloat16 if self.precision_on(device) == "bfloat16" else torch.float32

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


def check_runs(runs: Sequence[Run]) -> None:
    """Refuse runs that cannot train side by side.

    Args:
        runs: a dataset and a seed for each network.

    Example:
        >>> check_runs([])
        Traceback (most recent call last):
        ValueError: expected at least one dataset and seed to train for, got none
    """
    if not runs:
        raise ValueError("expected at least one dataset and seed to train for, got none")
    for what, found in (
        ("training images", {len(data.train.labels) for data, _ in runs}),
        ("test images", {len(data.test.labels) for data, _ in runs}),
        ("classes", {data.num_classes for data, _ in runs}),
    ):
        if len(found) > 1:
            raise ValueError(
                f"datasets that train together need as many {what}, got {sorted(found)}"
            )
    known = set[tuple[int, int]]()
    for data, seed in runs:
        if (id(data), seed) in known:
            raise ValueError(f"seed {seed} is to train on {data.name} twice")
        known.add((id(data), seed))


def identity(recipe: Recipe, runs: Sequence[Run]) -> dict[str, Any]:
    """What decides the outcome of a training, as JSON: what is kept of it is for these alone.

    Args:
        recipe, runs: as for :func:`equicolor.training.ensemble.train.train_many`.

    Example:
        >>> from equicolor.data import biased_colormnist, load_mnist
        >>> data = biased_colormnist(12.0, load_mnist(embedded=True))
        >>> found = identity(Recipe("z2cnn"), [(data, 7)])
        >>> found["runs"] == [[data.checksum, 7]], found["network"]["width"]
        (True, 20)
    """
    return {
        # Built, since defaults that are not in the recipe decide, too.
        "network": recipe.build(runs[0][0].num_classes, 0).config,
        "dropping": list(DROPPING),
        "recipe": {
            name: value
            for name, value in dataclasses.asdict(recipe).items()
            if name not in ("network", "options")
        },
        "runs": [[data.checksum, seed] for data, seed in runs],
    }


def read_kept(path: Path) -> dict[str, Any]:
    """What an earlier run left in a torch file, on the CPU.

    Raises:
        ValueError: if the file is damaged, in any byte.
    """
    remedy = "delete it to start that job anew"
    saved = read_pickle(path, remedy)
    if not isinstance(saved, dict):
        raise ValueError(f"{path} is not what a run keeps; {remedy}")
    return saved
