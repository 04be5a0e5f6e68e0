"""Does the fast path train as well? Gradients of one step, and a fixed run of 200 steps.

Every variant starts from the same weights and sees the same images. Gradients in the
precision of the run are compared with the dense path's in float64.
"""

import copy
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equicolor import _checks
from equicolor.benchmark.cases import Settings
from equicolor.benchmark.measure import LEFT_OUT, OUT_OF_MEMORY
from equicolor.benchmark.networks import Configuration, network_case
from equicolor.benchmark.ratios import Row
from equicolor.benchmark.resources import out_of_memory
from equicolor.benchmark.steps import adam, called, loss_of, placed, update
from equicolor.benchmark.timing import Deadline
from equicolor.benchmark.variants import apply_variant, takes_fused_path

__all__ = ["Trial", "exact_gradient", "examples", "gradient_error", "precision_rows", "train"]

_LAST = 20  # steps whose mean loss is the final one


@dataclass(frozen=True)
class Trial:
    """A fixed run of training.

    Attributes:
        configuration: rotations, width and lifting of the network.
        architecture: the ResNet.
        batch, size: of the images.
        classes: how many kinds of images there are.
        steps: of Adam.
        lr: its learning rate.
        noise: standard deviation of what is added to every image; the more, the harder.

    Example:
        >>> Trial(Configuration(3, "fast")).steps
        200
    """

    configuration: Configuration
    architecture: str = "resnet18"
    batch: int = 64
    size: int = 224
    classes: int = 100
    steps: int = 200
    lr: float = 1e-3
    noise: float = 1.0

    def __post_init__(self) -> None:
        for name in ("batch", "size", "classes", "steps"):
            _checks.positive_int(name, getattr(self, name))
        if self.configuration.rotations == 1:
            raise ValueError("precision compares variants of equivariant layers: rotations > 1")

    def network(self, seed: int) -> nn.Module:
        """The network, initialised by a seed."""
        case = network_case(
            f"n{self.configuration.rotations}",
            self.configuration,
            architecture=self.architecture,
            batch=self.batch,
            image_size=self.size,
            classes=self.classes,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return case.build()


def examples(
    trial: Trial, seed: int, device: torch.device, steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a task without data: a smooth colour pattern for each class, under noise.

    The noise is new in every batch, so that the loss does not fall to 0 by heart.

    Args:
        trial: sizes and the amount of noise.
        seed: of patterns, order and noise.
        device: where they are made; another device draws other numbers.
        steps: how many batches.

    Example:
        >>> trial = Trial(Configuration(3), batch=2, size=32, classes=5)
        >>> images, labels = next(examples(trial, 0, torch.device("cpu"), 1))
        >>> images.shape, labels.shape
        (torch.Size([2, 3, 32, 32]), torch.Size([2]))
    """
    generator = torch.Generator(device).manual_seed(seed)
    coarse = torch.rand(trial.classes, 3, 6, 6, generator=generator, device=device)
    patterns = F.interpolate(coarse, (trial.size, trial.size), mode="bilinear")
    shape = (trial.batch, 3, trial.size, trial.size)
    for _ in range(steps):
        labels = torch.randint(trial.classes, (trial.batch,), generator=generator, device=device)
        noise = torch.randn(shape, generator=generator, device=device)
        images = (patterns[labels] + trial.noise * noise).clamp(0, 1)
        yield images.contiguous(memory_format=torch.channels_last), labels


def exact_gradient(
    network: nn.Module, batch: tuple[Tensor, Tensor], device: torch.device
) -> Tensor:
    """The gradient of one step by all parameters, as one vector, dense and in float64.

    Args:
        network: in training mode.
        batch: images ``[B, 3, H, W]`` and labels ``[B]``.
        device: where to compute.

    Example:
        >>> trial = Trial(Configuration(3, 4), batch=4, size=32, classes=5)
        >>> cpu = torch.device("cpu")
        >>> exact_gradient(trial.network(0), next(examples(trial, 0, cpu, 1)), cpu).dtype
        torch.float64
    """
    images, labels = batch
    own = apply_variant(copy.deepcopy(network), "dense").to(device).double()
    return _gradient(own, F.cross_entropy(own(images.double()), labels))


def gradient_error(
    network: nn.Module,
    variant: str,
    batch: tuple[Tensor, Tensor],
    exact: Tensor,
    settings: Settings,
) -> float:
    """The relative error of one step's gradient, all parameters together.

    Args:
        network: in training mode, in float32.
        variant: of the network.
        batch: images ``[B, 3, H, W]`` and labels ``[B]``.
        exact: of :func:`exact_gradient`.
        settings: device and precision.

    Returns:
        ``‖g − exact‖ / ‖exact‖``.

    Example:
        >>> trial = Trial(Configuration(3, 4), batch=4, size=32, classes=5)
        >>> cpu, network = torch.device("cpu"), trial.network(0)
        >>> batch = next(examples(trial, 0, cpu, 1))
        >>> exact = exact_gradient(network, batch, cpu)
        >>> gradient_error(network, "cyclic", batch, exact, Settings(cpu)) < 1e-3
        True
    """
    own = placed(apply_variant(copy.deepcopy(network), variant), settings)
    call = called(own, variant, replace(settings, compile=False))
    gradient = _gradient(own, loss_of(call, *batch, settings)).double()
    return float((gradient - exact).norm() / exact.norm())


def _gradient(network: nn.Module, loss: Tensor) -> Tensor:
    parts = torch.autograd.grad(loss, list(network.parameters()))
    return torch.cat([part.flatten() for part in parts])


def train(
    network: nn.Module, variant: str, trial: Trial, seed: int, settings: Settings
) -> list[float]:
    """Losses of every step of a trial.

    Args:
        network: with its initial weights, which it keeps: a copy is trained.
        variant: of the network.
        trial: the run.
        seed: of the data.
        settings: device, precision, and whether to compile.

    Example:
        >>> trial = Trial(Configuration(3, 4), batch=4, size=32, classes=5, steps=3)
        >>> len(train(trial.network(0), "auto", trial, 0, Settings(torch.device("cpu"))))
        3
    """
    own = placed(apply_variant(copy.deepcopy(network), variant), settings).train()
    call, optimizer = called(own, variant, settings), adam(own, settings, trial.lr)
    losses = []
    for images, labels in examples(trial, seed, settings.device, trial.steps):
        loss = loss_of(call, images, labels, settings)
        update(loss, optimizer)
        losses.append(loss.detach())  # asked for at the end: no step waits for it
    return torch.stack(losses).tolist()


def precision_rows(
    trial: Trial,
    settings: Settings,
    *,
    variants: Sequence[str] = ("auto", "dense", "cyclic"),
    seeds: Sequence[int] = (0, 1, 2),
    deadline: Deadline | None = None,
    progress: Callable[[], object] = lambda: None,
) -> list[Row]:
    """The suite of precision: a row for every seed and variant.

    Args:
        trial: the run.
        settings: device, precision, and whether to compile.
        variants: of the network.
        seeds: of weights and data.
        deadline: nothing is begun after it.
        progress: called after every row.

    Returns:
        Rows with ``gradient_error``, ``mean_loss``, ``final_loss`` (of the last 20 steps), the
        ``losses`` of all steps; or with a ``problem``.

    Example:
        >>> trial = Trial(Configuration(3, 4), batch=4, size=32, classes=5, steps=2)
        >>> settings = Settings(torch.device("cpu"), precision="bf16")
        >>> rows = precision_rows(trial, settings, variants=["dense"], seeds=[0])
        >>> rows[0]["rotations"], rows[0]["steps"], len(rows[0]["losses"])
        (3, 2, 2)
    """
    deadline = Deadline() if deadline is None else deadline
    rows = []
    for seed in seeds:
        network = trial.network(seed)
        exact: Tensor | None = None
        for variant in variants:
            own = replace(settings, compile=settings.compile and variant != "fused")
            row = _facts(trial, own) | {"variant": variant, "seed": seed}
            try:
                if deadline.over():
                    row |= {"final_loss": None, "problem": LEFT_OUT}
                else:
                    batch = next(examples(trial, seed, settings.device, 1))
                    if exact is None:
                        exact = exact_gradient(network, batch, settings.device)
                    row |= _errors(network, variant, batch, exact, own)
                    row |= _losses(train(network, variant, trial, seed, own))
            except RuntimeError as problem:
                if not out_of_memory(problem):
                    raise
                row |= {"final_loss": None, "problem": OUT_OF_MEMORY}
            rows.append(row)
            progress()
    return rows


def _facts(trial: Trial, settings: Settings) -> Row:
    rotations, width, lifting = trial.configuration
    return {
        "model": f"ce_{trial.architecture}",
        "rotations": rotations,
        "width": "matched" if width is None else width,
        "lifting": lifting,
        "batch": trial.batch,
        "size": trial.size,
        "steps": trial.steps,
        "lr": trial.lr,
        "precision": settings.precision,
        "compiled": settings.compile,
    }


def _errors(
    network: nn.Module,
    variant: str,
    batch: tuple[Tensor, Tensor],
    exact: Tensor,
    settings: Settings,
) -> Row:
    errors: list[float] = []
    fused = takes_fused_path(
        lambda: errors.append(gradient_error(network, variant, batch, exact, settings))
    )
    if variant == "fused" and not fused:
        raise ValueError("the fused path was not taken; see equicolor.nn._fused.applies")
    return {"fused": fused and not settings.compile, "gradient_error": float(f"{errors[0]:.4g}")}


def _losses(losses: Sequence[float]) -> Row:
    return {
        "mean_loss": round(statistics.fmean(losses), 5),
        "final_loss": round(statistics.fmean(losses[-_LAST:]), 5),
        "losses": [round(loss, 4) for loss in losses],
    }
