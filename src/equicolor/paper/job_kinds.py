"""What the jobs of each kind do: functions from settings to rows.

Each gets the settings of a job, a folder for its files, where to compute, and the outcomes of
the jobs it needs. What is imported within is what its own jobs need, and no others.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from equicolor._files import write_whole
from equicolor.data import Digits, load_mnist
from equicolor.devices import choose_device
from equicolor.paper import colormnist
from equicolor.paper.jobs import Outcome, Where
from equicolor.reporting.progress import counting
from equicolor.results import Row

__all__ = [
    "convert",
    "count",
    "draw_features",
    "measure_equivariance",
    "measure_selectivity",
    "sweep",
    "train",
    "train_colormnist",
]

Settings = Mapping[str, Any]
Before = tuple[Outcome, ...]


def train_colormnist(
    settings: Settings, folder: Path, where: Where, before: Before = ()
) -> list[Row]:
    """Train one network on coloured digits, some seeds side by side.

    Args:
        settings: ``experiment``, ``model`` (of the jobs of the experiment), ``recipe`` (changes
            of it), ``sigmas``, ``seeds``, whether the digits are the ``embedded`` ones, and
            ``redraw`` if they are drawn for each seed.
        folder: keeps the checkpoint, and the trained networks at the end.
        where: device and console.
        before: nothing.
    """
    job = colormnist_job(settings)
    cuda = choose_device(where.device).type == "cuda"
    title = f"{job.name} on {where.device}"
    with counting(where.console, title) as progress:
        return colormnist.run(
            [job],
            folder,
            seeds=settings["seeds"],
            device=choose_device(where.device),
            progress=progress,
            checkpoint_every=50 if cuda else 5,
            networks=True,
        )


def colormnist_job(settings: Settings) -> colormnist.Job:
    """What to train on which digits, of the settings of a job."""
    (job,) = colormnist.jobs(
        settings["experiment"],
        _digits(settings["embedded"]),
        models=[settings["model"]],
        sigmas=settings["sigmas"],
        redraw=settings["seeds"] if settings.get("redraw") else (),
    )
    return job._replace(recipe=dataclasses.replace(job.recipe, **settings["recipe"]))


@functools.cache
def _digits(embedded: bool) -> Digits:
    return load_mnist(embedded=embedded)


def train(settings: Settings, folder: Path, where: Where, before: Before = ()) -> list[Row]:
    """Train a network on pictures, and judge it under HSV hue shifts.

    Args:
        settings: the ``recipe``; its pictures are at ``dataset``.
        folder: of the run.
        where: device and console.
        before: nothing.
    """
    from equicolor.training.fit import fit
    from equicolor.training.recipes import TrainingRecipe
    from equicolor.training.run_options import RunOptions

    recipe = TrainingRecipe(**{**settings["recipe"], "dataset": settings["dataset"]})
    options = RunOptions(device=where.device, **settings.get("options", {}))
    found = fit(recipe, folder, options, console=where.console)
    assert found is not None  # one process trains
    return [found.row]


def sweep(settings: Settings, folder: Path, where: Where, before: Before) -> list[Row]:
    """Judge a trained network under other actions than the HSV hue shift.

    Args:
        settings: ``actions``; the pictures are at ``dataset``.
        folder: stays empty.
        where: device and console.
        before: the run.

    Returns:
        One row with the curves and means of the actions alone.
    """
    from equicolor.evaluation.diagnose import diagnose
    from equicolor.evaluation.evaluate import PREFIX

    (run,) = before
    actions = list(settings["actions"])
    found = diagnose(
        run.folder,
        settings["dataset"],
        actions=actions,
        device=choose_device(where.device),
        precision=run.rows[0]["precision"],
        console=Console(quiet=True) if where.console is None else where.console,
    )
    (row,) = found.rows()
    kept = tuple(PREFIX[action] for action in actions)
    return [{name: value for name, value in row.items() if name.startswith(kept)}]


def count(settings: Settings, folder: Path, where: Where, before: Before = ()) -> list[Row]:
    """Count parameters and multiply-accumulates of the paper's configurations."""
    from equicolor.paper import configurations

    return configurations.run()


def measure_equivariance(
    settings: Settings, folder: Path, where: Where, before: Before = ()
) -> list[Row]:
    """Measure what hue shifts do to small random networks; rows hold the whole curve."""
    from equicolor.paper import equivariance

    return equivariance.rows()


def measure_selectivity(
    settings: Settings, folder: Path, where: Where, before: Before
) -> list[Row]:
    """Measure how colour-selective the units of a trained network are.

    Args:
        settings: how many ``top`` pictures count, what ``grey`` is; the pictures are at
            ``dataset``.
        folder: stays empty.
        where: device and console.
        before: the run.

    Returns:
        A row for each layer with the selectivity of all its units, and one for all layers.
    """
    from equicolor.analysis import selectivity

    (run,) = before
    network, pictures, half = _network_and_pictures(run, settings["dataset"], where)
    found = selectivity(
        network, pictures, top=settings["top"], grey=settings["grey"], autocast=half
    )
    facts = {key: run.rows[0].get(key) for key in _FACTS}
    rows = [{**facts, "layer": "all", "units": found.units, "selectivity": round(found.mean, 4)}]
    for layer, values in found.layers.items():
        units = values.flatten()
        listed = [round(value, 3) for value in units.tolist()]
        mean = round(float(units.mean()), 4)
        rows.append({**facts, "layer": layer, "units": len(listed), "selectivity": mean})
        rows[-1]["values"] = listed
    return rows


_FACTS = ("dataset", "model", "rotations", "lifting", "ce_stages", "width", "augmentation",
          "seed", "epochs")  # fmt: skip


def draw_features(settings: Settings, folder: Path, where: Where, before: Before) -> list[Row]:
    """Draw what units of a trained network respond to, a row for each rotation.

    Args:
        settings: how many ``top`` pictures are averaged, and how many ``units`` of each stage
            are drawn; the pictures are at ``dataset``.
        folder: gets the picture, ``neuron-features-DATASET.png`` (of Flowers-102, the paper's,
            ``neuron-features.png``).
        where: device and console.
        before: the run of an equivariant network.

    Returns:
        A row for each stage: how far the hues of rows differ from what they should be.
    """
    from equicolor.paper.neuron_features import measure_and_draw

    (run,) = before
    network, pictures, half = _network_and_pictures(run, settings["dataset"], where)
    facts = {key: run.rows[0].get(key) for key in _FACTS}
    drawn, picture = measure_and_draw(
        network, pictures, top=settings["top"], units=settings["units"], autocast=half
    )
    suffix = "" if facts["dataset"] == "flowers102" else f"-{facts['dataset']}"
    write_whole(folder / f"neuron-features{suffix}.png", picture)
    return [{**facts, **row} for row in drawn]


def _network_and_pictures(
    run: Outcome, dataset: str, where: Where
) -> tuple[nn.Module, Any, torch.dtype | None]:
    """The network of a run and its test pictures, on the device, and what to compute in."""
    from equicolor.data.datasets import load_dataset
    from equicolor.data.decoding import default_cache
    from equicolor.evaluation.images import choose_preparation, load_batches
    from equicolor.models.loading import load_network
    from equicolor.training.run_folder import recipe_of_run

    device = choose_device(where.device)
    recipe = recipe_of_run(run.folder)
    network = load_network(run.folder, device=device)
    preparation = choose_preparation(network)
    pictures = load_dataset(dataset, "test", seed=recipe.split_seed if recipe else 0)
    batches = load_batches(pictures, preparation, device=device, cache=default_cache())
    half = run.rows[0].get("precision") == "bfloat16" and device.type == "cuda"
    return network, batches, torch.bfloat16 if half else None


def convert(settings: Settings, folder: Path, where: Where, before: Before) -> list[Row]:
    """Convert a trained plain network, and judge it before and after.

    Args:
        settings: ``rotations``, ``lifting`` and ``finetune_epochs``; the pictures are at
            ``dataset``.
        folder: of the fine-tuned networks.
        where: device and console.
        before: the run of a plain network.
    """
    from equicolor.paper.conversion import rows

    (run,) = before
    return rows(
        run.folder,
        settings["dataset"],
        rotations=settings["rotations"],
        lifting=settings["lifting"],
        finetune_epochs=settings["finetune_epochs"],
        output=folder,
        device=where.device,
        console=where.console,
    )
