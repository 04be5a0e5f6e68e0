"""The paper's two toy experiments, long-tailed and biased ColorMNIST, with their variants.

An experiment is a list of jobs: a recipe and the datasets it trains on. A job's rows are kept
in the run folder as soon as it is done, and its checkpoint while it is not, so an interrupted
experiment goes on where it stopped.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from equicolor import _checks
from equicolor.data import ColorMNIST, Digits, biased_colormnist, longtailed_colormnist
from equicolor.results import write_results
from equicolor.training.many_seeds import Recipe, Result, train_many

__all__ = ["EXPERIMENTS", "MODELS", "PAPER_LONGTAILED", "SIGMAS", "Job", "jobs", "run"]

SIGMAS = (0.0, 12.0, 24.0, 36.0, 48.0, 60.0, 1e6)
EXPERIMENTS = ("colormnist-longtailed", "colormnist-biased")
SEEDS = 10
_JITTER = 0.5

# Widths keep the parameters of the plain network; the paper's for three rotations.
MODELS: dict[str, Recipe] = {
    recipe.model: recipe
    for recipe in (
        Recipe("z2cnn"),
        Recipe("z2cnn-gray", gray=True),
        Recipe("cecnn", "cecnn"),
        Recipe("cecnn-pooled", "cecnn", {"coset_pool": "max"}),
        Recipe("cecnn-2", "cecnn", {"ce_layers": 2, "width": 19, "coset_pool": "max"}),
        Recipe("cecnn-4", "cecnn", {"ce_layers": 4, "width": 18, "coset_pool": "max"}),
        Recipe("cecnn-hsv6", "cecnn", {"rotations": 6, "width": 15, "lifting": "hsv"}),
        Recipe("cecnn-hsv12", "cecnn", {"rotations": 12, "width": 13, "lifting": "hsv"}),
    )
}

# Mean and standard deviation over ten seeds, in percent (paper, section 4.1).
PAPER_LONGTAILED = {
    "z2cnn": (71.59, 0.61),
    "z2cnn-gray": (24.19, 0.53),
    "cecnn": (91.35, 0.40),
    "cecnn-pooled": (29.43, 0.46),
}
# At the two ends of sigma (section 4.1); the curves between are only plotted there.
PAPER_BIASED = {"z2cnn-gray": {0.0: 89.89, 1e6: 79.94}}

# (model, augmentation, weighted loss) in the order of the paper, then what goes beyond it.
_LONGTAILED = (
    ("z2cnn", False, False),
    ("z2cnn-gray", False, False),
    ("cecnn", False, False),
    ("cecnn-pooled", False, False),
    ("cecnn-2", False, False),
    ("cecnn-4", False, False),
    ("z2cnn", True, False),
    ("cecnn", True, False),
    ("z2cnn", False, True),
    ("cecnn", False, True),
)
_BIASED = (
    ("z2cnn", False, False),
    ("cecnn", False, False),
    ("cecnn-pooled", False, False),
    ("z2cnn-gray", False, False),
    ("cecnn-hsv6", False, False),
    ("cecnn-hsv12", False, False),
    ("z2cnn", True, False),
    ("cecnn", True, False),
)


class Job(NamedTuple):
    """One configuration and the datasets it trains on, all seeds at once."""

    name: str
    recipe: Recipe
    datasets: tuple[ColorMNIST, ...]


def jobs(
    experiment: str,
    digits: Digits | None = None,
    *,
    epochs: int | None = None,
    models: Sequence[str] | None = None,
    sigmas: Sequence[float] = SIGMAS,
) -> list[Job]:
    """The jobs of an experiment.

    Args:
        experiment: ``"colormnist-longtailed"`` or ``"colormnist-biased"``.
        digits: what to colour (default: :func:`equicolor.data.load_mnist`).
        epochs: instead of the paper's 1000 or 1500.
        models: only jobs of these names; ``"cecnn+jitter"`` names a variant.
        sigmas: of the biased experiment, in degrees.

    Example:
        >>> [job.name for job in jobs("colormnist-longtailed", epochs=1)][:4]
        ['z2cnn', 'z2cnn-gray', 'cecnn', 'cecnn-pooled']
    """
    _checks.one_of("experiment", experiment, EXPERIMENTS)
    longtailed = experiment == "colormnist-longtailed"
    data = (
        (longtailed_colormnist(digits),)
        if longtailed
        else tuple(biased_colormnist(sigma, digits) for sigma in sigmas)
    )
    default = 1000 if longtailed else 1500
    listed = []
    for model, jittered, weighted in _LONGTAILED if longtailed else _BIASED:
        recipe = dataclasses.replace(
            MODELS[model],
            jitter=_JITTER if jittered else 0.0,
            weighted=weighted,
            epochs=default if epochs is None else epochs,
        )
        name = model + ("+jitter" if jittered else "") + ("+weighted" if weighted else "")
        listed.append(Job(name, recipe, data))
    if models is None:
        return listed
    known = [job.name for job in listed]
    for name in models:
        _checks.one_of("model", name, known)
    return [job for job in listed if job.name in models]


Progress = Callable[[str, int, int, float], None]


def run(
    listed: Sequence[Job],
    folder: Path,
    *,
    seeds: Sequence[int] = tuple(range(SEEDS)),
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Run jobs, resuming what a previous call in the same folder left unfinished.

    Args:
        listed: the jobs.
        folder: keeps the rows of finished jobs and the checkpoint of the current one.
        seeds: one network each.
        device: where to train.
        progress: called after every epoch with (job, epochs done, epochs, mean loss).

    Returns:
        One flat row for each job, dataset and seed.
    """
    if not seeds:
        raise ValueError("expected at least one seed, got none")
    rows: list[dict[str, Any]] = []
    for job in listed:
        done = folder / f"{job.name}.json"
        wanted = _key(job, seeds)
        kept = json.loads(done.read_text()) if done.exists() else {}
        if kept.get("key") != wanted:
            results = _train(job, folder, seeds, device, progress)
            made = [_row(job, result) for result in results]
            write_results(done, made, device=device, key=wanted)
            kept = {"rows": made}
        rows += kept["rows"]
    return rows


def _train(
    job: Job,
    folder: Path,
    seeds: Sequence[int],
    device: torch.device | str,
    progress: Progress | None,
) -> list[Result]:
    def report(done: int, total: int, loss: float) -> None:
        if progress:
            progress(job.name, done, total, loss)

    return train_many(
        job.recipe,
        job.datasets,
        seeds,
        device=device,
        checkpoint=folder / f"{job.name}.checkpoint",
        progress=report,
    )


def _key(job: Job, seeds: Sequence[int]) -> dict[str, Any]:
    """What finished rows must agree on to stand for a job; JSON turns tuples into lists."""
    datasets = [[data.name, data.source, data.seed] for data in job.datasets]
    return {"recipe": dataclasses.asdict(job.recipe), "datasets": datasets, "seeds": list(seeds)}


def _row(job: Job, result: Result) -> dict[str, Any]:
    recipe = job.recipe
    data = next(data for data in job.datasets if data.name == result.dataset)
    options = recipe.build(data.num_classes, 0).config
    base, _, sigma = result.dataset.rpartition("-")
    biased = base == "colormnist-biased"
    return {
        "model": recipe.model,
        "rotations": options.get("rotations", 1),
        "lifting": options.get("lifting", "none"),
        "ce_layers": options.get("ce_layers", 0),
        "width": options["width"],
        "dataset": base if biased else result.dataset,
        **({"sigma": float(sigma)} if biased else {}),
        "augmentation": f"jitter {recipe.jitter:g}" if recipe.jitter else "none",
        "weighted": recipe.weighted,
        "seed": result.seed,
        "epochs": recipe.epochs,
        "original": round(result.accuracy, 3),
        "loss": round(result.loss, 5),
        "train_size": len(data.train.labels),
        "test_size": len(data.test.labels),
        "digits": data.source,
        **({} if biased else {"per_class": [round(value, 2) for value in result.per_class]}),
    }
