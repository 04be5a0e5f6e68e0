"""Training on coloured digits, as data: recipe, runs and results."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from equicolor.data.colormnist import ColorMNIST
from equicolor.devices import PRECISIONS, choose_precision
from equicolor.models.registry import create_model
from equicolor.models.z2cnn import DROPPING, Z2CNN
from equicolor.training.fields import check, setting

Run = tuple[ColorMNIST, int]  # the dataset and the seed of a network


@dataclass(frozen=True)
class Recipe:
    """One configuration of a ColorMNIST experiment (paper, section 4.1), as data."""

    model: str  # a name for the result rows
    network: str = setting("z2cnn", choices=("z2cnn", "cecnn"))
    # The builder's arguments besides num_classes.
    options: dict[str, Any] = field(default_factory=dict)
    gray: bool = False  # feed the mean of the channels
    jitter: float = setting(0.0, at_least=0)  # hue jitter in turns, drawn per image from ±jitter
    weighted: bool = False  # weigh classes by N / (c n_i) in the loss
    # Training is with Adam and a one-cycle schedule.
    epochs: int = setting(1000, at_least=1)
    batch_size: int = setting(256, at_least=2)  # for batch normalization
    lr: float = setting(1e-3, at_least=0)
    weight_decay: float = setting(1e-5, at_least=0)
    # What convolutions compute in, "float32" or "bfloat16"; "auto" is bfloat16 on CUDA.
    precision: str = setting("auto", choices=("auto", *PRECISIONS))

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        check(self)

    def precision_on(self, device: torch.device) -> str:
        """What convolutions compute in on a device."""
        return choose_precision(self.precision, cuda=device.type == "cuda")

    def build(self, num_classes: int, seed: int) -> Z2CNN:
        """The initialised network of a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = create_model(self.network, num_classes=num_classes, **self.options)
        assert isinstance(network, Z2CNN)
        return network


@dataclass(frozen=True)
class Result:
    """One trained run: accuracies on the test set in percent, and the state dict on the CPU.

    The loss is the mean training loss of the last epoch.
    """

    dataset: str
    seed: int
    accuracy: float
    per_class: list[float]
    loss: float
    state: dict[str, Tensor]


def check_runs(runs: Sequence[Run]) -> None:
    """Refuse runs that cannot train side by side."""
    if not runs:
        raise ValueError("expected at least one dataset and seed to train for, got none")
    sizes = {
        "training images": {len(data.train.labels) for data, _ in runs},
        "test images": {len(data.test.labels) for data, _ in runs},
        "classes": {data.num_classes for data, _ in runs},
    }
    for what, numbers in sizes.items():
        if len(numbers) > 1:
            raise ValueError(
                f"datasets that train together need equally many {what}, got {sorted(numbers)}"
            )
    pairs = set[tuple[int, int]]()
    for data, seed in runs:
        if (id(data), seed) in pairs:
            raise ValueError(f"seed {seed} would train on {data.name} twice")
        pairs.add((id(data), seed))


def identity(recipe: Recipe, runs: Sequence[Run]) -> dict[str, Any]:
    """All that decides the outcome, as JSON: a checkpoint with another identity is refused."""
    fields = dataclasses.asdict(recipe)
    del fields["network"], fields["options"]
    return {
        # From a built network: defaults that are not in the options decide, too.
        "network": recipe.build(runs[0][0].num_classes, 0).config,
        "dropping": list(DROPPING),
        "recipe": fields,
        "runs": [[data.checksum, seed] for data, seed in runs],
    }
