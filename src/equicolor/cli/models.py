"""The commands ``equicolor models`` and ``equicolor cost``."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from equicolor.cli.options import NETWORK, network_options, option


def models(
    as_json: Annotated[bool, option("Print JSON instead of a table.", True, "--json")] = False,
) -> None:
    """List the networks and their parameters at default options."""
    from equicolor.models import facts

    rows = facts.catalogue()
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    line = "{:<16}{:>11}{:>6}{:>9}".format
    typer.echo(line("model", "parameters", "hues", "images"))
    for row in rows:
        size = f"{row['image_size']}×{row['image_size']}"
        typer.echo(line(row["model"], f"{row['parameters']:,}", row["rotations"], size))


def cost(
    model: Annotated[
        str | None,
        typer.Argument(
            help=f"A name of 'equicolor models', {NETWORK} Without one: the paper's Table 4.",
            metavar="NETWORK",
        ),
    ] = None,
    rotations: Annotated[int | None, option("Number of hues of the equivariant layers.")] = None,
    ce_stages: Annotated[
        int | None, option("Number of equivariant stages of a ResNet; all by default.")
    ] = None,
    lifting: Annotated[str | None, option("Lifting: rgb or hsv.")] = None,
    width: Annotated[
        str | None,
        option("Channels: a number, one per stage (27,55,110), or 'fast'; matched by default."),
    ] = None,
    spatial: Annotated[
        str | None, option("Spatial group: p4 (quarter turns) or p4m (also mirror images).")
    ] = None,
    coset_pool: Annotated[
        str | None, option("Pooling over the hues at the end: max, avg or none.")
    ] = None,
    classes: Annotated[int | None, option("Number of classes.")] = None,
    input_size: Annotated[
        int | None, option("Height and width of the image; the network's by default.")
    ] = None,
    output: Annotated[
        Path | None, option("Also write the rows to this JSON file.", True, "--output", "-o")
    ] = None,
    force: Annotated[bool, option("Replace an existing file.", True, "--force")] = False,
) -> None:
    """Count parameters and executed multiply-accumulates, dense and cyclic.

    Without NETWORK, shows the networks of the paper's Table 4 with the paper's numbers beside ours.
    Architecture options need a name of 'equicolor models'. No pretrained weights are downloaded.
    """
    from equicolor.paper import configurations
    from equicolor.results import write_results

    options = network_options(
        num_classes=classes,
        rotations=rotations,
        ce_stages=ce_stages,
        lifting=lifting,
        spatial=spatial,
        coset_pool=coset_pool,
        width=width,
        input_size=input_size,
    )
    if model is None and options:
        names = ", ".join(options).replace("num_classes", "classes")
        raise ValueError(f"architecture options need a network, got only {names}")
    if output is not None and output.exists() and not force:
        raise FileExistsError(f"{output} exists; --force replaces it")
    if model is None:
        rows = configurations.run(Console(stderr=True))
        Console().print(configurations.table(rows))
        typer.echo(configurations.headline(rows))
    else:
        rows = [configurations.measure(model, **options)]
        typer.echo(configurations.summary(rows[0]))
    if output is not None:
        # 'reproduce --from' shows rows of "configurations" as Table 4.
        name = "configurations" if model is None else "cost"
        path = write_results(output, rows, experiment=name, batch=1)
        typer.echo(f"wrote {path}")
