"""The command ``equicolor train``."""

import dataclasses
import functools
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from equicolor._text import counted
from equicolor.cli.options import (
    field_options,
    field_values,
    settle_threads,
    told_to_skip,
    with_options,
)
from equicolor.devices import choose_precision
from equicolor.models.registry import usual_resize
from equicolor.training.recipes import TrainingRecipe, default_recipe, find_recipe, recipes
from equicolor.training.run_options import RunOptions

__all__ = ["parse_width", "train"]


def parse_width(text: str) -> int | str | list[int]:
    """The ``width`` of a builder from the command line.

    Example:
        >>> parse_width("32"), parse_width("27,55,110"), parse_width("fast")
        (32, [27, 55, 110], 'fast')
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        return text  # 'fast', or something the builder refuses by name
    return numbers if "," in text else numbers[0]


def _option(panel: str, help: str, default: str | bool = True, *names: str) -> Any:  # noqa: A002
    """An option in a panel of the help; ``default`` is what the help says of it."""
    return typer.Option(*names, help=help, show_default=default, rich_help_panel=panel)


_network = functools.partial(_option, "Network")
_running = functools.partial(_option, "Running")


@with_options([*field_options(TrainingRecipe, unset=True), *field_options(RunOptions)])
def train(
    dataset: Annotated[
        str | None,
        typer.Argument(help="A name of 'equicolor datasets', or a folder of class folders."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Begin from a recipe, such as hsv-12+jitter; other options change it."),
    ] = None,
    finetune: Annotated[
        str | None,
        typer.Option(
            help="Begin from a checkpoint, plain or converted, or from the folder of a run.",
            metavar="CHECKPOINT",
        ),
    ] = None,
    list_recipes: Annotated[
        bool, typer.Option("--list-recipes", help="List the recipes, of DATASET or of all.")
    ] = False,
    # the network
    model: Annotated[
        str | None, _network("A name of 'equicolor models'.", "resnet18; resnet44 for CIFAR")
    ] = None,
    rotations: Annotated[int | None, _network("Hues of equivariant layers.")] = None,
    lifting: Annotated[str | None, _network("rgb (the paper) or hsv (exact).")] = None,
    ce_stages: Annotated[int | None, _network("Equivariant stages, from the input.", "all")] = None,
    width: Annotated[
        str | None, _network("A number, one per stage (27,55,110), or 'fast'.", "matched")
    ] = None,
    coset_pool: Annotated[
        str | None, _network("What ends the equivariant part: max, avg or none.", "max")
    ] = None,
    output: Annotated[
        Path | None,
        _running("The folder of the run.", "runs/DATASET-NETWORK-…", "--output", "-o"),
    ] = None,
    force: Annotated[bool, _running("Delete a run in that folder.", False, "--force")] = False,
    dry_run: Annotated[bool, _running("Say what would be done.", False, "--dry-run")] = False,
    **settings: Any,
) -> None:
    """Train a network on real images, and judge it under hue shifts.

    Without options, a plain ResNet as the paper trains it. The folder gets recipe.json,
    metrics.csv, last.ckpt and, at the end, model.safetensors and result.json. An interrupted
    run is continued by the same command.

    `equicolor train flowers102 --model ce_resnet18 --rotations 12 --lifting hsv`

    `equicolor train flowers102 --finetune converted.safetensors` trains a network further, by
    default for 20 epochs at a tenth of the learning rate, on images of the same size, and on the
    same split if it was trained on DATASET before.

    On several devices, or computers under torchrun or SLURM: `--devices 8 --num-nodes 4`.
    """
    if list_recipes:
        for name in recipes(dataset):
            typer.echo(name)
        return
    options = RunOptions(**field_values(RunOptions, settings))
    network: dict[str, Any] = {"rotations": rotations, "lifting": lifting, "ce_stages": ce_stages}
    network |= {"width": None if width is None else parse_width(width), "coset_pool": coset_pool}
    network = {name: value for name, value in network.items() if value is not None}
    if coset_pool == "none":
        network["coset_pool"] = None
    usual = {"precision": choose_precision("auto", cuda=options.accelerator == "cuda")}
    changes = usual | field_values(TrainingRecipe, settings)
    full_recipe = _choose(dataset, recipe, model, network, changes, finetune)
    folder = Path("runs") / full_recipe.folder_name if output is None else output
    if dry_run:
        _describe(full_recipe, folder, options, force)
    else:
        _run(full_recipe, folder, options, force)


def _choose(
    dataset: str | None,
    recipe: str | None,
    model: str | None,
    network: dict[str, Any],
    changes: dict[str, Any],
    finetune: str | None = None,
) -> TrainingRecipe:
    """The recipe that the options describe."""
    import torch

    from equicolor.training.finetuning import finetune_recipe

    if finetune is not None:
        extra = [*["model"] * bool(model), *["recipe"] * bool(recipe), *network]
        if extra:
            raise ValueError(
                f"--finetune takes the network of the checkpoint as it is, got {', '.join(extra)}"
            )
        if dataset is None:
            raise ValueError("--finetune needs a dataset: a name, or a folder of class folders")
        full_recipe = finetune_recipe(dataset, finetune)
    elif recipe is not None:
        full_recipe = find_recipe(recipe, dataset)
        if model is not None:
            full_recipe = dataclasses.replace(full_recipe, model=model)
    elif dataset is not None:
        full_recipe = default_recipe(dataset, model)
    else:
        raise ValueError("a dataset is needed: a name, a folder, or --recipe DATASET/NETWORK")
    if "size" in changes and full_recipe.crop == "resized":
        changes["resize"] = usual_resize(changes["size"])
    full_recipe = dataclasses.replace(full_recipe, options=full_recipe.options | network, **changes)
    if finetune is None:
        with torch.device("meta"):  # bad options are told before anything else
            full_recipe.build(2)
    return full_recipe


def _run(recipe: TrainingRecipe, folder: Path, options: RunOptions, force: bool) -> None:
    from equicolor.training.fit import fit
    from equicolor.training.run_folder import RunFolder

    run = RunFolder(folder)
    finished = run.result.is_file() and not force
    continued = run.checkpoint.is_file() and not force  # in as many threads as before
    if options.processes == 1 and not finished and not continued:
        settle_threads(options.accelerator)
    with told_to_skip(options.skip_corrupt):
        run_result = fit(recipe, folder, options, overwrite=force, console=Console(stderr=True))
    if run_result is None:  # not the first of several processes
        return
    if finished:
        typer.echo(f"{folder} holds this run already, finished; --force trains it again")
    else:
        typer.echo(f"wrote {', '.join(map(str, run_result.written))}")
    typer.echo(run_result.headline)


def _describe(recipe: TrainingRecipe, folder: Path, options: RunOptions, force: bool) -> None:
    """What a run would do, checked as the run would check it."""
    from equicolor.data.datasets import load_dataset
    from equicolor.data.epochs import Epochs
    from equicolor.data.images import list_images
    from equicolor.data.loaders import choose_data_path
    from equicolor.training.finetuning import finetune_remarks
    from equicolor.training.fit import check_network
    from equicolor.training.image_data import check_images
    from equicolor.training.run_folder import RunFolder

    options.check_launcher()
    images, _ = (
        load_dataset(recipe.dataset, split, root=options.root, seed=recipe.split_seed)
        for split in ("train", "test")
    )
    check_images(recipe, images)
    network = recipe.build(len(images.class_names), images.class_names)
    check_network(network, recipe, len(images), options)
    for remark in finetune_remarks(recipe, images.class_names, options.root):
        typer.echo(remark, err=True)
    count = sum(parameter.numel() for parameter in network.parameters())
    steps = len(Epochs(len(images), recipe.batch_size, shuffle=True))
    side = recipe.short_side("train")
    path = choose_data_path(
        images, options.accelerator, short_side=side, data_path=options.data_path
    )
    typer.echo(recipe.to_json().rstrip())
    typer.echo(
        f"would train {recipe.model} ({count:,} parameters) on {len(images):,} images of "
        f"{len(images.class_names)} classes, {path}, for {counted(recipe.epochs, 'epoch')} of "
        f"{counted(steps, 'step')} on {options.processes} {options.accelerator} device(s), in "
        f"{folder}"
    )
    run = RunFolder(folder)
    if force and run.recipe.is_file():
        typer.echo(f"would delete the run in {folder}", err=True)
        return
    try:
        run.check(recipe)
        run.check_images(list_images(images).files)
    except (OSError, ValueError) as error:
        typer.echo(f"would not begin: {error}", err=True)
    else:
        if run.result.is_file():
            typer.echo(f"would not begin: {folder} holds this run already, finished", err=True)
