"""The command ``equicolor evaluate``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from equicolor.cli.options import (
    Data,
    Device,
    Gray,
    NetworkName,
    Pretrained,
    Resize,
    Size,
    SkipCorrupt,
    Split,
    SplitSeed,
    names,
    settle_threads,
    slug,
    told_to_skip,
)

__all__ = ["evaluate"]

console = Console()


def evaluate(
    network: NetworkName,
    data: Data = None,
    split: Split = "test",
    split_seed: SplitSeed = None,
    actions: Annotated[
        str, typer.Option(help="Which hue shifts, separated by commas.", metavar="A,B")
    ] = "hsv,rgb,rgb-clip",
    shifts: Annotated[int, typer.Option(help="How many, over the whole circle.")] = 37,
    size: Size = None,
    resize: Resize = None,
    gray: Gray = False,
    pretrained: Pretrained = True,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 256,
    device: Device = "auto",
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16, or auto: bfloat16 on a GPU.")
    ] = "auto",
    skip_corrupt: SkipCorrupt = False,
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
            help="Keeps decoded images.", show_default="equicolor/decoded in the user's cache"
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
    settle_threads(where.type)
    with told_to_skip(skip_corrupt):
        found = diagnose(
            network,
            data,
            split=split,
            split_seed=split_seed,
            actions=names(actions) or [],
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
