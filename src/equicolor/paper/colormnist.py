"""The paper's two toy experiments, long-tailed and biased ColorMNIST, with their variants.

An experiment is a list of jobs: a recipe and the datasets it trains on. A job's rows are kept
in the run folder as soon as it is done, and its checkpoint while it is not, so an interrupted
experiment goes on where it stopped.
"""

import dataclasses
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from equicolor import _checks
from equicolor.data import (
    ColorMNIST,
    Digits,
    biased_colormnist,
    load_mnist,
    longtailed_colormnist,
)
from equicolor.data.colormnist import BIASED_SEED
from equicolor.models.tensor_files import write_pickle
from equicolor.models.z2cnn import Z2CNN
from equicolor.reporting.progress import Progress
from equicolor.results import read_results, write_results
from equicolor.training.ensemble.runs import Recipe, Result, Run, check_runs, identity, read_kept
from equicolor.training.ensemble.train import train_many

__all__ = [
    "EXPERIMENTS",
    "MODELS",
    "PAPER_BIASED",
    "PAPER_LONGTAILED",
    "SIGMAS",
    "Job",
    "jobs",
    "parts",
    "run",
    "trained",
]

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

# Mean over ten seeds and the deviation given with it, in percent (paper, section 4.1).
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
    """One configuration and the datasets it trains on, all seeds at once.

    Attributes:
        name: of the model, with its variant.
        recipe: the configuration.
        datasets: what it trains on.
        redrawn: each dataset is for the seed it was drawn with, not for all.
    """

    name: str
    recipe: Recipe
    datasets: tuple[ColorMNIST, ...]
    redrawn: bool = False

    def runs(self, seeds: Sequence[int]) -> list[Run]:
        """The networks to train: dataset and seed of each.

        Raises:
            ValueError: if there are data for each seed, but none for one of these.
        """
        if self.redrawn and (missing := sorted(set(seeds) - {data.seed for data in self.datasets})):
            raise ValueError(f"no data were drawn for seed {', '.join(map(str, missing))}")
        pairs = itertools.product(self.datasets, seeds)
        return [(data, seed) for data, seed in pairs if not self.redrawn or data.seed == seed]


def jobs(
    experiment: str,
    digits: Digits | None = None,
    *,
    epochs: int | None = None,
    models: Sequence[str] | None = None,
    sigmas: Sequence[float] = SIGMAS,
    precision: str = "auto",
    redraw: Sequence[int] = (),
) -> list[Job]:
    """The jobs of an experiment.

    Args:
        experiment: ``"colormnist-longtailed"`` or ``"colormnist-biased"``.
        digits: what to colour (default: :func:`equicolor.data.load_mnist`).
        epochs: instead of the paper's 1000 or 1500.
        models: only jobs of these names; ``"cecnn+jitter"`` names a variant.
        sigmas: of the biased experiment, in degrees.
        precision: of :class:`equicolor.training.ensemble.runs.Recipe`.
        redraw: seeds to draw the data of the biased experiment for; by default they are drawn
            once for all.

    Example:
        >>> [job.name for job in jobs("colormnist-longtailed", epochs=1)][:4]
        ['z2cnn', 'z2cnn-gray', 'cecnn', 'cecnn-pooled']
    """
    _checks.one_of("experiment", experiment, EXPERIMENTS)
    longtailed = experiment == "colormnist-longtailed"
    if not (longtailed or sigmas):
        raise ValueError("sigmas must hold at least one number of degrees, got none")
    for name, values in (("sigmas", sigmas), ("redraw", redraw)):
        if len(set(values)) < len(values):
            raise ValueError(f"{name} must differ from each other, got {list(values)}")
    if longtailed and redraw:
        raise ValueError("the long-tailed data are one draw, class sizes included: no redraw")
    digits = load_mnist() if digits is None else digits
    if longtailed:
        datasets = [longtailed_colormnist(digits)]
    else:
        drawn = itertools.product(sigmas, redraw or (BIASED_SEED,))
        datasets = [biased_colormnist(sigma, digits, seed=seed) for sigma, seed in drawn]
    default = 1000 if longtailed else 1500
    listed = []
    for model, jittered, weighted in _LONGTAILED if longtailed else _BIASED:
        recipe = dataclasses.replace(
            MODELS[model],
            jitter=_JITTER if jittered else 0.0,
            weighted=weighted,
            epochs=default if epochs is None else epochs,
            precision=precision,
        )
        name = model + ("+jitter" if jittered else "") + ("+weighted" if weighted else "")
        listed.append(Job(name, recipe, tuple(datasets), redrawn=bool(redraw)))
    if models is None:
        return listed
    known = [job.name for job in listed]
    for name in models:
        _checks.one_of("model", name, known)
    return [job for job in listed if job.name in models]


def parts(
    listed: Sequence[Job], seeds: Sequence[int], *, side_by_side: bool = True
) -> list[tuple[Job, tuple[int, ...]]]:
    """What trains together: a job with all its datasets and seeds, or with one of each.

    Args:
        listed: the jobs.
        seeds: one network each.
        side_by_side: all networks of a job at once, which is what a GPU is fast at and a CPU
            has no memory for.

    Example:
        >>> listed = jobs("colormnist-biased", epochs=1, models=["z2cnn"], sigmas=[0.0, 12.0])
        >>> [(job.name, seeds) for job, seeds in parts(listed, [0, 1], side_by_side=False)][:2]
        [('z2cnn.colormnist-biased-0.0', (0,)), ('z2cnn.colormnist-biased-0.1', (1,))]
    """
    if not seeds:
        raise ValueError("expected at least one seed, got none")
    if side_by_side:
        return [(job, tuple(seeds)) for job in listed]
    return [
        (job._replace(name=f"{job.name}.{data.name}.{seed}", datasets=(data,)), (seed,))
        for job in listed
        for data, seed in job.runs(seeds)
    ]


def run(
    listed: Sequence[Job],
    folder: Path,
    *,
    seeds: Sequence[int] = tuple(range(SEEDS)),
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    checkpoint_every: int = 50,
    networks: bool = False,
) -> list[dict[str, Any]]:
    """Run jobs, resuming what a previous call in the same folder left unfinished.

    Args:
        listed: the jobs.
        folder: keeps the rows of finished jobs and the checkpoint of the current one.
        seeds: one network each.
        device: where to train.
        progress: called after every epoch with (epochs done, epochs) of a job, and
            once for a job that was finished before.
        checkpoint_every: epochs between checkpoints.
        networks: also keep the trained networks, for :func:`trained`.

    Returns:
        One flat row for each job, dataset and seed.

    Raises:
        ValueError: if the folder holds another configuration of one of the jobs.
    """
    rows: list[dict[str, Any]] = []
    for job, chosen in parts(listed, seeds):
        done = folder / f"{job.name}.json"
        runs = job.runs(chosen)
        check_runs(runs)
        wanted = identity(job.recipe, runs)
        if done.exists():
            kept = _kept(done)
            if kept["key"] != wanted:
                raise ValueError(
                    f"{done} holds results of another configuration; delete it or choose another "
                    "folder"
                )
            made = kept["rows"]
            if progress:
                progress(job.recipe.epochs, job.recipe.epochs)
        else:
            started = time.perf_counter()
            results = _train(job, runs, folder, device, progress, checkpoint_every)
            taken = round(time.perf_counter() - started, 1)
            if networks:
                _save_networks(folder / f"{job.name}.pt", results)
            precision = job.recipe.precision_on(torch.device(device))
            made = [_row(job, result, precision) for result in results]
            write_results(done, made, device=device, key=wanted, seconds=taken)
        _checkpoint(folder, job).unlink(missing_ok=True)  # not before there are rows
        rows += made
    return rows


def trained(job: Job, folder: Path, seed: int = 0) -> list[Z2CNN]:
    """The networks that :func:`run` kept of one seed, one for each dataset, in eval mode.

    Args:
        job: one of those that ran.
        folder: where they ran.
        seed: which.

    Returns:
        An empty list if none were kept.
    """
    found = []
    for data, _ in job.runs([seed]):
        for name in (job.name, f"{job.name}.{data.name}.{seed}"):
            path = folder / f"{name}.pt"
            states = read_kept(path) if path.exists() else {}
            if f"{data.name} {seed}" in states:
                network = job.recipe.build(data.num_classes, seed)
                network.load_state_dict(states[f"{data.name} {seed}"])
                found.append(network.eval())
                break
    return found


def _checkpoint(folder: Path, job: Job) -> Path:
    return folder / f"{job.name}.checkpoint"


def _save_networks(path: Path, results: Sequence[Result]) -> None:
    write_pickle(path, {f"{result.dataset} {result.seed}": result.state for result in results})


def _train(
    job: Job,
    runs: Sequence[Run],
    folder: Path,
    device: torch.device | str,
    progress: Progress | None,
    checkpoint_every: int,
) -> list[Result]:
    folder.mkdir(parents=True, exist_ok=True)
    return train_many(
        job.recipe,
        runs,
        device=device,
        checkpoint=_checkpoint(folder, job),
        checkpoint_every=checkpoint_every,
        progress=progress,
    )


def _kept(path: Path) -> dict[str, Any]:
    """The results of a finished job."""
    try:
        kept = read_results(path)
        complete = "key" in kept
    except ValueError:
        complete = False
    if not complete:
        raise ValueError(f"{path} is damaged; delete it to run that job anew")
    return kept


def _row(job: Job, result: Result, precision: str) -> dict[str, Any]:
    recipe = job.recipe
    data = next(data for data, _ in job.runs([result.seed]) if data.name == result.dataset)
    options = recipe.build(data.num_classes, 0).config
    biased = data.sigma is not None
    return {
        "model": recipe.model,
        "rotations": options.get("rotations", 1),
        "lifting": options.get("lifting", "none"),
        "ce_layers": options.get("ce_layers", 0),
        "width": options["width"],
        "dataset": "colormnist-biased" if biased else result.dataset,
        **({"sigma": data.sigma} if biased else {}),
        "augmentation": f"jitter {recipe.jitter:g}" if recipe.jitter else "none",
        "weighted": recipe.weighted,
        "seed": result.seed,
        "epochs": recipe.epochs,
        "precision": precision,
        "original": round(result.accuracy, 3),
        "loss": round(result.loss, 5),
        "train_size": len(data.train.labels),
        "test_size": len(data.test.labels),
        "digits": data.source,
        **({"data_seed": data.seed} if job.redrawn else {}),
        **({} if biased else {"per_class": [round(value, 2) for value in result.per_class]}),
    }
