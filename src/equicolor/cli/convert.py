"""The command ``equicolor convert``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from equicolor._files import refuse_to_replace
from equicolor.cli.options import Device, Pretrained, Size, option, prepare_device


def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="A checkpoint, the folder of a training run, timm:NAME or torchvision:NAME."
        ),
    ],
    output: Annotated[Path, option("Checkpoint to write.", True, "--output", "-o")],
    rotations: Annotated[int, option("Number of hues.")] = 6,
    lifting: Annotated[str, option("Lifting: hsv (exact) or rgb (the paper).")] = "hsv",
    until: Annotated[
        str | None,
        option(
            "Last module of the equivariant part.",
            "all but the classifier",
            metavar="MODULE",
        ),
    ] = None,
    init: Annotated[str, option("Initial weights: pretrained or random.")] = "pretrained",
    match_parameters: Annotated[
        bool,
        option("Keep the number of parameters; needs --init random.", True, "--match-parameters"),
    ] = False,
    coset_pool: Annotated[str, option("Pooling over the hues: max, avg or confidence.")] = "max",
    pretrained: Pretrained = True,
    data: Annotated[
        str | None, option("Evaluate both networks on this dataset, or folder of class folders.")
    ] = None,
    size: Size = None,
    device: Device = "auto",
    force: Annotated[bool, option("Replace an existing file.", True, "--force")] = False,
) -> None:
    """Convert a network and its weights to a colour-equivariant one, and report the cost.

    With --data, also reports accuracy under hue shifts, before and after.

    `equicolor convert torchvision:resnet18 --rotations 6 -o converted.safetensors`

    `equicolor train flowers102 --finetune converted.safetensors` trains it further.
    """
    from equicolor.conversion.report import COST_COLUMNS, check_names, convert_source, hue_table
    from equicolor.reporting.tables import Table

    if coset_pool.lower() == "none":
        raise ValueError(
            "a checkpoint gives one answer per image, so --coset-pool is max, avg or confidence; "
            "in Python, equicolor.convert(coset_pool=None) keeps the hues apart"
        )
    refuse_to_replace([output], force)
    check_names(source, output, data)
    where = prepare_device(device)
    rows = convert_source(
        source,
        output,
        rotations=rotations,
        lifting=lifting,
        until=until,
        init=init,
        match_parameters=match_parameters,
        coset_pool=coset_pool,
        pretrained=pretrained,
        size=size,
        device=where,
    )
    console = Console()
    console.print(Table(COST_COLUMNS, rows).rich())
    typer.echo(f"wrote {output}")
    if data is not None:
        table, headline = hue_table(source, output, data, pretrained=pretrained, device=where)
        console.print(table.rich())
        typer.echo(headline)
