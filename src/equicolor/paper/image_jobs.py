"""Jobs that train networks on images and evaluate them, which experiments share.

The tables, the ablations and the analyses are about the same networks. They plan equal jobs, so
each network is trained once. Networks have the names of
:func:`equicolor.training.recipes.named_recipe`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from torch import nn

from equicolor import _checks
from equicolor.data.datasets import DATASETS, dataset_state, find_dataset, load_dataset
from equicolor.devices import choose_device, choose_precision
from equicolor.evaluation.actions import HUE_ACTIONS
from equicolor.models import widths
from equicolor.models.registry import usual_resize
from equicolor.paper.experiment import Context, Job, Outcome, Scope, digest
from equicolor.paper.quick_images import IMAGES, write_images
from equicolor.paper.rows import SUBJECT
from equicolor.paper.variants import PAPER_DATASET, all_stages
from equicolor.results import Row
from equicolor.training.recipes import ROW_KEYS, TrainingRecipe, named_recipe, recipes

# Small networks on small images, with large steps: seconds to a minute each.
_QUICK_RECIPE: dict[str, Any] = {
    "size": 28, "resize": 28, "crop": "padded", "flip": False, "epochs": 10, "batch_size": 50,
    "lr": 5e-3, "precision": "float32",
}  # fmt: skip
_QUICK_WIDTH = 8


def main_datasets(scope: Scope) -> tuple[str, ...]:
    """The datasets of a scope; by default the dataset of the paper's ablations."""
    return scope.datasets or ("coloured-digits" if scope.quick else PAPER_DATASET,)


def datasets_on_disk(scope: Scope) -> tuple[str, ...]:
    """The datasets of a scope; by default all in the data folder, without ImageNet (too slow)."""
    if scope.datasets or scope.quick:
        return main_datasets(scope)
    here = [name for name, info in DATASETS.items() if not dataset_state(info).missing]
    return tuple(name for name in here if name != "imagenet") or (PAPER_DATASET,)


def place(dataset: str, scope: Scope) -> str:
    """A dataset's name, or the path of its folder; made-up images are written first."""
    if scope.quick and dataset in IMAGES:
        return str(write_images(dataset, scope.output / "images").resolve())
    return dataset


def top(scope: Scope) -> int:
    """The number of most exciting images to analyse for each unit."""
    return 20 if scope.quick else 50


def of_other_datasets(old: Row, new: Sequence[Row]) -> bool:
    """Whether an old row is about none of the datasets of new ones."""
    return all(old.get("dataset") != row.get("dataset") for row in new)


def narrow(recipe: TrainingRecipe, width: int) -> TrainingRecipe:
    """The recipe of a ResNet that is narrow enough for quick runs.

    The plain network has ``width`` channels in its first stage; equivariant ones have fewer by the
    paper's rule, for about equal parameters.
    """
    network = recipe.model.removeprefix("ce_").removeprefix("ciconv_")
    plain = widths.doubled(width, all_stages(network))
    rotations, spatial = recipe.options.get("rotations", 1), recipe.options.get("spatial", "p1")
    scaled = widths.scaled(plain, rotations, separable=True, spatial=spatial)
    return dataclasses.replace(recipe, options={**recipe.options, "width": scaled})


def training_jobs(
    dataset: str, networks: Sequence[str] | None, scope: Scope, actions: Sequence[str] = ()
) -> list[Job]:
    """Jobs that train networks on a dataset: all with the first seed, then all with the next.

    Args:
        dataset: a name, or a folder of class folders.
        networks: names for :func:`equicolor.training.recipes.named_recipe`; by default the recipes
            of the paper's tables. A network that is named twice is trained once.
        scope: seeds, epochs, size and whether it is quick.
        actions: hue shifts to evaluate under, beside HSV, under which every training evaluates.

    Raises:
        MissingDataError: if the dataset is not in the data folder.
    """
    for action in actions:
        _checks.one_of("action", action, HUE_ACTIONS)
    folder = place(dataset, scope)
    load_dataset(folder, "test")  # raises for missing files before anything is trained
    title, images = find_dataset(folder).name, _fingerprint(folder)
    about = {"dataset": folder, "workers": 0 if scope.quick else None}
    jobs = []
    named = dict(named_recipe(name, folder) for name in networks or recipes(folder))
    for seed in (0,) if scope.seeds is None else scope.seeds:
        for name, recipe in named.items():
            recipe = dataclasses.replace(recipe, seed=seed, **_changes(scope))
            recipe = narrow(recipe, _QUICK_WIDTH) if scope.quick else recipe
            fields = {**dataclasses.asdict(recipe), "dataset": title}
            settings = {"recipe": fields, "data": images}
            job = Job(f"{title}/{name}-seed{seed}", "training", train, settings, about=about)
            jobs.append(job)
            if others := [action for action in actions if action != "hsv"]:
                jobs.append(follow(job, "sweep", sweep, {"actions": others}, extends=True))
    return jobs


def _changes(scope: Scope) -> dict[str, Any]:
    changes: dict[str, Any] = {"precision": choose_precision("auto", cuda=scope.cuda)}
    if scope.quick:
        changes = dict(_QUICK_RECIPE)
    if scope.epochs is not None:
        changes["epochs"] = scope.epochs
    if scope.size is not None:
        changes |= {"size": scope.size, "resize": usual_resize(scope.size)}
    return changes


def _fingerprint(dataset: str) -> str:
    """Tells folders with different images apart; a dataset is known by its name."""
    if dataset in DATASETS:
        return dataset
    files = []
    for split in ("train", "test"):
        images = load_dataset(dataset, split)
        named = zip(images.labels.tolist(), images.files, strict=True)
        files.append([(label, file.path.name, file.path.stat().st_size) for label, file in named])
    return digest(files)


def follow(training: Job, kind: str, run: Any, settings: Row, *others: Job, **fields: Any) -> Job:
    """A job that needs the network of a training job, its images, and outcomes of other jobs."""
    name, about = f"{training.name}.{kind}", {"dataset": training.about["dataset"]}
    return Job(name, kind, run, settings, (training, *others), about, **fields)


def train(job: Job, context: Context) -> list[Row]:
    """Train a network, and evaluate it under HSV hue shifts."""
    from equicolor.training.fit import fit  # slow: it imports Lightning
    from equicolor.training.run_options import RunOptions

    recipe = TrainingRecipe(**{**job.settings["recipe"], "dataset": job.about["dataset"]})
    options = RunOptions(device=context.device, workers=job.about["workers"])
    run = fit(recipe, context.folder, options, console=context.console)
    assert run is not None  # one process trains
    return [run.row]


def sweep(job: Job, context: Context) -> list[Row]:
    """Evaluate a trained network under other actions than the HSV hue shift: one row."""
    from equicolor.evaluation.diagnose import diagnose
    from equicolor.evaluation.evaluate import PREFIX

    (run,) = context.before
    actions = list(job.settings["actions"])
    evaluation = diagnose(
        run.folder,
        job.about["dataset"],
        actions=actions,
        device=choose_device(context.device),
        precision=run.rows[0]["precision"],
        console=Console(quiet=True) if context.console is None else context.console,
    )
    (row,) = evaluation.rows()
    prefixes = tuple(f"{PREFIX[action]}_" for action in actions)
    return [{name: value for name, value in row.items() if name.startswith(prefixes)}]


def facts(run: Outcome) -> Row:
    """The keys that identify a trained network: all rows about it begin with them."""
    (row,) = run.rows
    return {name: row[name] for name in (*SUBJECT, *ROW_KEYS) if name in row}


def network_and_images(job: Job, context: Context) -> tuple[nn.Module, Any, torch.dtype | None]:
    """The network of the training that a job follows, its test images, and the autocast dtype."""
    from equicolor.data.decoding import default_cache
    from equicolor.evaluation.images import choose_preparation, load_batches
    from equicolor.models.loading import load_network
    from equicolor.training.run_folder import recipe_of_run

    run, *_ = context.before
    device = choose_device(context.device)
    recipe = recipe_of_run(run.folder)
    network = load_network(run.folder, device=device)
    preparation = choose_preparation(network)
    images = load_dataset(job.about["dataset"], "test", seed=recipe.split_seed if recipe else 0)
    batches = load_batches(images, preparation, device=device, cache=default_cache())
    half = device.type == "cuda" and run.rows[0].get("precision") == "bfloat16"
    return network, batches, torch.bfloat16 if half else None
