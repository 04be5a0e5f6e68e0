"""The ColorMNIST experiments as jobs that can be spread, and what a quick run of them is."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from equicolor.data import Digits
from equicolor.data.mnist import FULL_SOURCE
from equicolor.models.z2cnn import Z2CNN
from equicolor.paper import colormnist, demo
from equicolor.paper.jobs import Job, Store, digest

__all__ = ["FULL", "QUICK", "Extent", "as_jobs", "networks", "plan"]


class Extent(NamedTuple):
    """How much of an experiment to run; None is all models, or the paper's epochs."""

    models: tuple[str, ...] | None
    seeds: int
    epochs: int | None
    sigmas: tuple[float, ...] = ()


FULL = Extent(None, colormnist.SEEDS, None, colormnist.SIGMAS)
# Minutes on two cores; steps and batches are the demonstration's.
QUICK = {
    "colormnist-longtailed": Extent(("z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled"), 1, 20),
    "colormnist-biased": Extent(("z2cnn", "cecnn", "cecnn-pooled"), 1, 10, (0.0, 36.0, 1e6)),
}


def plan(
    experiment: str,
    digits: Digits,
    *,
    seeds: int | None = None,
    epochs: int | None = None,
    models: Sequence[str] | None = None,
    sigmas: Sequence[float] | None = None,
    precision: str = "auto",
    redraw: bool = False,
    quick: bool = False,
) -> tuple[int, list[colormnist.Job]]:
    """The number of seeds, and what to train on which data.

    Args:
        experiment: one of :data:`equicolor.paper.colormnist.EXPERIMENTS`.
        digits: what to colour.
        seeds, epochs, models, sigmas: instead of the paper's, or of :data:`QUICK`.
        precision: of :class:`equicolor.training.ensemble.runs.Recipe`.
        redraw: draw the data anew for every seed.
        quick: as in :data:`QUICK`.

    Example:
        >>> from equicolor.data import load_mnist
        >>> count, listed = plan("colormnist-biased", load_mnist(embedded=True), quick=True)
        >>> count, [job.name for job in listed]
        (1, ['z2cnn', 'cecnn', 'cecnn-pooled'])
    """
    extent = QUICK[experiment] if quick else FULL
    count = extent.seeds if seeds is None else seeds
    listed = colormnist.jobs(
        experiment,
        digits,
        epochs=extent.epochs if epochs is None else epochs,
        models=extent.models if models is None else models,
        sigmas=extent.sigmas if sigmas is None else sigmas,
        precision=precision,
        redraw=range(count) if redraw else (),
    )
    if not quick:
        return count, listed
    steps: dict[str, Any] = {"lr": demo.LEARNING_RATE, "batch_size": demo.BATCH_SIZE}
    listed = [job._replace(recipe=dataclasses.replace(job.recipe, **steps)) for job in listed]
    return count, listed


def as_jobs(
    experiment: str,
    listed: Sequence[colormnist.Job],
    seeds: Sequence[int],
    *,
    side_by_side: bool,
    prefix: str = "",
) -> dict[str, list[Job]]:
    """What :func:`plan` listed as jobs that can be spread.

    Args:
        experiment: which.
        listed: of :func:`plan`.
        seeds: one network each.
        side_by_side: all networks of a model in one job, for a GPU; else each in its own.
        prefix: of the jobs' names.

    Returns:
        The jobs of each model.
    """
    found: dict[str, list[Job]] = {}
    for whole in listed:
        jobs = []
        for part, chosen in colormnist.parts([whole], seeds, side_by_side=side_by_side):
            sigmas = [data.sigma for data in part.datasets if data.sigma is not None]
            settings = {
                "experiment": experiment,
                "model": whole.name,
                "recipe": dataclasses.asdict(whole.recipe),
                "sigmas": list(dict.fromkeys(sigmas)),
                "seeds": list(chosen),
                "embedded": part.datasets[0].source != FULL_SOURCE,
                "data": [data.checksum for data in part.datasets],
                **({"redraw": True} if whole.redrawn else {}),
            }
            name = f"{prefix}{part.name}-{digest(settings, 8)}"
            jobs.append(Job(name, "colormnist", settings))
        found.setdefault(whole.name, []).extend(jobs)
    return found


def networks(jobs: Mapping[str, Sequence[Job]], store: Store, seed: int = 0) -> dict[str, Z2CNN]:
    """The trained long-tailed networks of one seed.

    Args:
        jobs: of :func:`as_jobs`, finished.
        store: where they ran.
        seed: which.
    """
    from equicolor.paper.job_kinds import colormnist_job

    found = {}
    for model, parts in jobs.items():
        for part in parts:
            if seed in part.settings["seeds"] and store.folder(part).is_dir():
                kept = colormnist.trained(colormnist_job(part.settings), store.folder(part), seed)
                if kept:
                    found[model] = kept[0]
    return found
