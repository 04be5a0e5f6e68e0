"""Compare the precision of the algorithms: gradients against float64, and losses of training.

Every variant starts from the same weights and sees the same images. The gradient of one step
is compared with that of the dense network in float64. Then the losses of a training run on
made-up patterns are compared with those of the dense network.
"""

import copy
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _timing import Settings, finish, parser, settings_of, write
from equicolor.models import create_model
from equicolor.nn import set_algorithm
from equicolor.results import Row
from networks import adam, network_named, update

LAST = 20  # last steps, over which the final loss is a mean
NOISE = 1.0  # standard deviation; the more, the harder the task
COLUMNS = ("name", "variant", "seed", "gradient_error", "error_over_dense", "mean_loss",
           "final_loss")  # fmt: skip


class Trial(NamedTuple):
    """A training run: its network, how many classes there are, and its length."""

    model: str
    network: Row
    classes: int
    steps: int
    lr: float = 1e-3

    def build(self, seed: int) -> nn.Module:
        """The network, initialised by a seed."""
        torch.manual_seed(seed)
        options = {key: value for key, value in self.network.items() if key != "name"}
        return create_model(self.model, num_classes=self.classes, **options).train()


def examples(
    trial: Trial, seed: int, steps: int, settings: Settings
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a made-up task: a smooth colour pattern for each class, and fresh noise."""
    device, shape = settings.device, (settings.batch, 3, settings.size, settings.size)
    generator = torch.Generator(device).manual_seed(seed)
    coarse = torch.rand(trial.classes, 3, 6, 6, generator=generator, device=device)
    patterns = F.interpolate(coarse, shape[2:], mode="bilinear")
    for _ in range(steps):
        labels = torch.randint(trial.classes, shape[:1], generator=generator, device=device)
        noise = torch.randn(shape, generator=generator, device=device)
        images = (patterns[labels] + NOISE * noise).clamp(0, 1)
        yield images.contiguous(memory_format=torch.channels_last), labels


def gradient(network: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the loss by all parameters, as one vector in float64."""
    loss = F.cross_entropy(logits, labels)
    parts = torch.autograd.grad(loss, list(network.parameters()))
    return torch.cat([part.double().flatten() for part in parts])


def gradient_error(
    network: nn.Module, variant: str, images: Tensor, labels: Tensor, settings: Settings
) -> float:
    """``‖g − exact‖ / ‖exact‖`` of one step; the exact gradient is dense, in float64."""
    double = set_algorithm(copy.deepcopy(network), "dense").to(images.device).double()
    exact = gradient(double, double(images.double()), labels)
    network = settings.place(set_algorithm(copy.deepcopy(network), variant))
    with settings.autocast():
        logits = network(images)
    return float((gradient(network, logits.float(), labels) - exact).norm() / exact.norm())


def train(
    network: nn.Module, variant: str, trial: Trial, seed: int, settings: Settings
) -> list[float]:
    """Train a copy of a network; returns the losses of all steps."""
    network = settings.place(set_algorithm(copy.deepcopy(network), variant))
    optimizer = adam(network, settings, trial.lr)
    batches = examples(trial, seed, trial.steps, settings)
    losses = [update(optimizer, *batch, settings, network) for batch in batches]
    return torch.stack(losses).tolist()  # once at the end, to spare device syncs


def trial_rows(trial: Trial, seed: int, variants: Sequence[str], settings: Settings) -> list[Row]:
    """A row for every variant, for one seed of weights and data."""
    network, rows = trial.build(seed), []
    images, labels = next(examples(trial, seed, 1, settings))
    for variant in variants:
        error = gradient_error(network, variant, images, labels, settings)
        losses = train(network, variant, trial, seed, settings)
        row: Row = {**trial.network, "model": trial.model, "variant": variant, "seed": seed}
        row |= {"batch": settings.batch, "size": settings.size, "steps": trial.steps}
        row |= {"lr": trial.lr, "precision": settings.precision}
        row |= {
            "gradient_error": float(f"{error:.4g}"),
            "mean_loss": round(statistics.fmean(losses), 5),
            "final_loss": round(statistics.fmean(losses[-LAST:]), 5),
            "losses": [round(loss, 4) for loss in losses],
        }
        rows.append(row)
    for dense in [row for row in rows if row["variant"] == "dense"]:
        for row in rows:
            row["error_over_dense"] = round(row["gradient_error"] / dense["gradient_error"], 3)
    return rows


def main() -> None:
    """Run the script."""
    options = parser(__doc__)
    options.add_argument("--network", default="resnet18", help="plain network: resnet18, resnet44")
    options.add_argument("--equivariant", type=network_named, default="n3-fast", metavar="NAME",
                         help="as in networks.py: n3-fast, n12-matched-hsv, n6-56")  # fmt: skip
    options.add_argument("--variants", nargs="+", choices=("auto", "dense", "cyclic"),
                         default=("auto", "dense"))  # fmt: skip
    options.add_argument("--classes", type=int, default=100)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--seeds", type=int, default=3, help="how many, counted from 0")
    given = options.parse_args()
    on_gpu = torch.cuda.is_available() and given.device != "cpu"
    settings = settings_of(given, batch={"cpu": 16, "cuda": 64}, size=224 if on_gpu else 64,
                           precision="bfloat16")  # fmt: skip
    trial = Trial(f"ce_{given.network}", given.equivariant, given.classes, given.steps)
    rows: list[Row] = []
    for seed in range(given.seeds):
        rows += trial_rows(trial, seed, given.variants, settings)
        write(rows, settings)
    finish(rows, COLUMNS, settings)


if __name__ == "__main__":
    main()
