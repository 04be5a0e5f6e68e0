"""The command ``equicolor train``."""

import dataclasses
import functools
import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from equicolor._text import counted
from equicolor.cli.options import (
    DATA,
    field_options,
    field_values,
    limit_threads,
    network_options,
    option,
    prepare_device,
    skip_hint,
    with_options,
)
from equicolor.devices import choose_device, choose_precision
from equicolor.models.registry import usual_resize
from equicolor.training.recipes import TrainingRecipe, default_recipe, find_recipe, recipes
from equicolor.training.run_options import RunOptions

_network = functools.partial(option, panel="Network")
_running = functools.partial(option, panel="Running")


@with_options([*field_options(TrainingRecipe, unset=True), *field_options(RunOptions)])
def train(
    dataset: Annotated[
        str | None,
        typer.Argument(help=DATA),
    ] = None,
    recipe: Annotated[
        str | None, option("Start from a recipe, such as hsv-12+jitter; other options change it.")
    ] = None,
    finetune: Annotated[
        str | None,
        option(
            "Start from a checkpoint, plain or converted, or from the folder of a run.",
            metavar="CHECKPOINT",
        ),
    ] = None,
    list_recipes: Annotated[
        bool, option("List the recipes of DATASET, or all recipes.", True, "--list-recipes")
    ] = False,
    model: Annotated[
        str | None, _network("A name of 'equicolor models'.", "resnet18; resnet44 for CIFAR")
    ] = None,
    rotations: Annotated[
        int | None, _network("Number of hues.", "3, as in the paper; 12 is more robust")
    ] = None,
    lifting: Annotated[str | None, _network("Lifting: rgb (the paper) or hsv (exact).")] = None,
    ce_stages: Annotated[int | None, _network("Equivariant stages, from the input.", "all")] = None,
    width: Annotated[
        str | None, _network("Channels: a number, one per stage (27,55,110), or 'fast'.", "matched")
    ] = None,
    coset_pool: Annotated[
        str | None, _network("Pooling after the equivariant part: max, avg or none.", "max")
    ] = None,
    spatial: Annotated[
        str | None, _network("Spatial group: p4 (quarter turns), p4m (also mirror images).", "p1")
    ] = None,
    output: Annotated[
        Path | None, _running("Folder of the run.", "runs/DATASET-NETWORK-…", "--output", "-o")
    ] = None,
    advise: Annotated[
        bool,
        option(
            "Train nothing: measure the images and this device, and suggest what to run.",
            False,
            "--advise",
        ),
    ] = False,
    force: Annotated[bool, _running("Delete an earlier run there.", False, "--force")] = False,
    dry_run: Annotated[bool, _running("Only say what would be done.", False, "--dry-run")] = False,
    **settings: Any,
) -> None:
    """Train a network on real images, and evaluate it under hue shifts.

    Without options, trains a plain ResNet as in the paper. The folder gets recipe.json,
    metrics.csv, last.ckpt and, at the end, model.safetensors and result.json. The same command
    continues an interrupted run.

    `equicolor train flowers102 --model ce_resnet18 --rotations 12 --lifting hsv`

    `equicolor train flowers102 --finetune converted.safetensors` trains a network further, by
    default for 20 epochs at a tenth of the learning rate, on images of the same size, and on the
    same split if it was trained on DATASET before.

    `equicolor train path/to/folder --advise` suggests a network and says how long it trains.

    `--devices 8 --num-nodes 4` uses several devices, and computers under torchrun or SLURM.
    """
    if advise:
        _refuse_with_advise(locals() | settings)
        _advise(dataset, settings)
        return
    if list_recipes:
        for name in recipes(dataset):
            typer.echo(name)
        return
    options = RunOptions(**field_values(RunOptions, settings))
    network = network_options(
        rotations=rotations,
        lifting=lifting,
        ce_stages=ce_stages,
        width=width,
        coset_pool=coset_pool,
        spatial=spatial,
    )
    changes = {"precision": choose_precision("auto", cuda=options.accelerator == "cuda")}
    changes |= field_values(TrainingRecipe, settings)
    full_recipe = _choose_recipe(dataset, recipe, finetune, model, network, changes)
    if recipe is None and finetune is None:
        _suggest_stronger(full_recipe)
    folder = Path("runs") / full_recipe.folder_name if output is None else output
    if dry_run:
        _describe(full_recipe, folder, options, force)
    else:
        _run(full_recipe, folder, options, force)


_TAKEN_BY_ADVISE = ("dataset", "advise", "device", "split_seed", "skip_corrupt")


def _refuse_with_advise(values: dict[str, Any]) -> None:
    """Refuse options that --advise would ignore."""
    ignored = [
        f"--{name.replace('_', '-')}"
        for name, parameter in inspect.signature(train).parameters.items()
        if name not in _TAKEN_BY_ADVISE and values[name] != parameter.default
    ]
    if ignored:
        raise ValueError(
            "--advise takes no options of training, only DATASET, --device, --split-seed and "
            f"--skip-corrupt; got {', '.join(ignored)}"
        )


def _advise(dataset: str | None, settings: dict[str, Any]) -> None:
    from equicolor.training.advice import advise

    if dataset is None:
        raise ValueError("--advise needs a dataset: a name, or a folder of class folders")
    device = prepare_device(settings["device"])
    typer.echo("measuring colours, and a step of each network: about a minute", err=True)
    with skip_hint(settings["skip_corrupt"]):
        advice = advise(
            dataset,
            device=device,
            split_seed=settings["split_seed"] or 0,
            skip_corrupt=settings["skip_corrupt"],
        )
    for line in advice.lines():
        typer.echo(line)


def _suggest_stronger(recipe: TrainingRecipe) -> None:
    """Point to stronger settings when the user left the paper's default."""
    import torch

    with torch.device("meta"):
        config = recipe.build(2).config
    rotations = config.get("rotations", 1)
    if rotations == 1 or "rotations" in recipe.options:
        return
    usual, better = f"{rotations} rotations", "--rotations 12"
    if "lifting" not in recipe.options:
        usual, better = f"{usual} and {config['lifting']} lifting", f"{better} --lifting hsv"
    typer.echo(
        f"{recipe.model} takes {usual}, as in the paper; {better} withstands hue shifts better and "
        "trains several times as long; 'Which network?' in the documentation compares them",
        err=True,
    )


def _choose_recipe(
    dataset: str | None,
    recipe: str | None,
    finetune: str | None,
    model: str | None,
    network: dict[str, Any],
    changes: dict[str, Any],
) -> TrainingRecipe:
    """The recipe that the options describe."""
    import torch

    from equicolor.training.finetuning import finetune_recipe

    if finetune is not None:
        extra = [*["model"] * bool(model), *["recipe"] * bool(recipe), *network]
        if extra:
            raise ValueError(
                f"--finetune keeps the network of the checkpoint: it takes no {', '.join(extra)}"
            )
        if dataset is None:
            raise ValueError("--finetune needs a dataset: a name, or a folder of class folders")
        full_recipe = finetune_recipe(dataset, finetune)
    elif recipe is not None:
        full_recipe = find_recipe(recipe, dataset)
        if model is not None:
            inherited = full_recipe.options.keys() - network.keys()
            if "rotations" in inherited and not model.startswith("ce_"):
                raise ValueError(
                    f"{recipe} has {full_recipe.options['rotations']} rotations: take ce_{model}, "
                    f"or another recipe; got --model {model}"
                )
            full_recipe = dataclasses.replace(full_recipe, model=model)
    elif dataset is not None:
        full_recipe = default_recipe(dataset, model)
    else:
        raise ValueError("a dataset is needed: a name, a folder, or --recipe DATASET/NETWORK")
    full_recipe = dataclasses.replace(full_recipe, options=full_recipe.options | network)
    crop = changes.get("crop", full_recipe.crop)
    if finetune is None:
        with torch.device("meta"):  # refuses bad options before anything else is done
            built = full_recipe.build(2)
        if "spatial" in network and crop == "resized":
            changes = {"size": built.image_size} | changes  # turns are exact at this size
    if crop == "resized" and {"crop", "size"} & changes.keys():
        changes["resize"] = usual_resize(changes.get("size", full_recipe.size))
    return dataclasses.replace(full_recipe, **changes)


def _run(recipe: TrainingRecipe, folder: Path, options: RunOptions, force: bool) -> None:
    from equicolor.training.fit import fit
    from equicolor.training.run_folder import RunFolder

    run = RunFolder(folder)
    finished = run.result.is_file() and not force
    continued = run.checkpoint.is_file() and not force  # keeps its number of threads
    if options.processes == 1 and not finished and not continued:
        limit_threads(options.accelerator)
    with skip_hint(options.skip_corrupt):
        ended = fit(recipe, folder, options, overwrite=force, console=Console(stderr=True))
    if ended is None:  # not the first of several processes
        return
    if finished:
        typer.echo(f"{folder} already holds this run, finished; --force trains it again")
    else:
        typer.echo(f"wrote {run.model}, {run.result}, {run.metrics}, {run.checkpoint}")
    row = ended.row
    typer.echo(
        f"{row['original']:.2f} % on the test set of {row['dataset']}, {row['hue_mean']:.2f} % on "
        f"average over hue shifts, after {counted(row['epochs'], 'epoch')}"
    )


def _describe(recipe: TrainingRecipe, folder: Path, options: RunOptions, force: bool) -> None:
    """Say what a run would do, after the checks that the run would make."""
    from equicolor.data.epochs import Epochs
    from equicolor.data.images import list_images
    from equicolor.training.finetuning import finetune_remarks, finetune_seen
    from equicolor.training.fit import build_network
    from equicolor.training.image_data import ImageData
    from equicolor.training.run_folder import RunFolder

    options.check_launcher()
    run = RunFolder(folder)
    run.check_place(recipe)
    data = ImageData(recipe, options)
    images, device = data.train, choose_device(options.device)
    network = build_network(data)
    for remark in finetune_remarks(recipe, images.class_names, finetune_seen(recipe)):
        typer.echo(remark, err=True)
    count = sum(parameter.numel() for parameter in network.parameters())
    steps = len(Epochs(len(images), recipe.batch_size, shuffle=True))
    typer.echo(recipe.to_json().rstrip())
    typer.echo(
        f"would train {recipe.model} ({count:,} parameters) on {len(images):,} images of "
        f"{len(images.class_names)} classes, {data.path(images, device)}, for "
        f"{counted(recipe.epochs, 'epoch')} of {counted(steps, 'step')} on {options.processes} "
        f"{device.type} device(s), in {folder}"
    )
    try:
        run.check_base(recipe)
        if force and run.recipe.is_file():
            typer.echo(f"would delete the run in {folder}", err=True)
            return
        run.check(recipe)
        run.check_images(list_images(images).files)
    except (OSError, ValueError) as error:
        typer.echo(f"would not begin: {error}", err=True)
    else:
        if run.result.is_file():
            typer.echo(f"would not begin: {folder} already holds this run, finished", err=True)
