"""The command ``equicolor evaluate``."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["evaluate", "slug"]

console = Console()


def evaluate(
    network: Annotated[
        str,
        typer.Argument(
            help="A checkpoint, the folder of a training run, timm:NAME, torchvision:NAME, or "
            "path/to/file.py:function.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="A name of 'equicolor datasets', or a folder of class folders.",
            show_default="what the run was trained on",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="test or train.")] = "test",
    split_seed: Annotated[
        int | None,
        typer.Option(help="Of datasets without a split.", show_default="the run's, or 0"),
    ] = None,
    actions: Annotated[
        str, typer.Option(help="Which hue shifts, separated by commas.", metavar="A,B")
    ] = "hsv,rotate,rotate-clip",
    shifts: Annotated[int, typer.Option(help="How many, over the whole circle.")] = 37,
    size: Annotated[
        int | None,
        typer.Option(help="Height and width of the images.", show_default="the network's"),
    ] = None,
    resize: Annotated[
        int | None,
        typer.Option(
            help="The short side of a picture before its centre is cropped.",
            show_default="the network's",
        ),
    ] = None,
    gray: Annotated[
        bool, typer.Option("--gray", help="Feed the mean of the channels; a run knows it itself.")
    ] = False,
    pretrained: Annotated[
        bool, typer.Option(help="Load the weights that timm or torchvision offer.")
    ] = True,
    batch_size: Annotated[int, typer.Option(help="Pictures in a batch.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16, or auto: bfloat16 on a GPU.")
    ] = "auto",
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave out pictures that cannot be decoded.")
    ] = False,
    classes_by_index: Annotated[
        bool,
        typer.Option(
            "--classes-by-index",
            help="The classes are the network's, in its order, whatever their names.",
        ),
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Keeps decoded pictures.", show_default="equicolor/decoded in the user's cache"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder.", show_default="runs/evaluate/NETWORK"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier evaluation.")] = False,
) -> None:
    """Judge a network: accuracy, what hue shifts do to it, class by class, and calibration.

    Any network, on a dataset by name or on any folder of class folders. Writes the numbers
    and the curve of accuracy over the hue shift.
    """
    from equicolor.devices import choose_device
    from equicolor.evaluation import report
    from equicolor.evaluation.diagnose import diagnose

    output = Path("runs") / "evaluate" / slug(network, data) if output is None else output
    report.refuse_existing(output, force)
    where = choose_device(device)
    found = diagnose(
        network,
        data,
        split=split,
        split_seed=split_seed,
        actions=[name.strip() for name in actions.split(",") if name.strip()],
        shifts=shifts,
        size=size,
        resize=resize,
        gray=gray,
        pretrained=pretrained,
        batch_size=batch_size,
        device=where,
        precision=precision,
        skip_corrupt=skip_corrupt,
        classes_by_index=classes_by_index,
        cache=cache,
    )
    report.show(found, console)
    written = report.write(found, output, device=where, overwrite=force)
    typer.echo(f"wrote {', '.join(map(str, written))} in {found.seconds:.1f} s")
    typer.echo(report.headline(found))


def slug(network: str, data: str | None) -> str:
    """A name for what is written about a network."""
    path = Path(network)
    name = path.parent.name if path.name == "model.safetensors" else path.name
    parts = [name] if data is None else [name, Path(data).name]
    return re.sub(r"[^\w.+-]+", "_", "-".join(parts))
