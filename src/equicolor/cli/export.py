"""The command ``equicolor export``."""

from pathlib import Path
from typing import Annotated

import typer

from equicolor.cli.options import NETWORK, Pretrained, option


def export(
    model: Annotated[
        str,
        typer.Argument(help=f"A name of 'equicolor models', {NETWORK}", metavar="NETWORK"),
    ],
    output: Annotated[Path, option("File to write.", True, "--output", "-o")],
    to: Annotated[
        str | None,
        option("Format: onnx, torchscript or exported-program.", "by suffix: .onnx, .pt, .pt2"),
    ] = None,
    input_size: Annotated[
        int | None, option("Height and width of the images; the network's by default.")
    ] = None,
    form: Annotated[
        str, option("Form of equivariant layers in the file: auto, dense or cyclic.")
    ] = "auto",
    pretrained: Pretrained = True,
    force: Annotated[bool, option("Replace an existing file.", True, "--force")] = False,
) -> None:
    """Export a network to plain convolutions, and verify the file before keeping it.

    `equicolor export runs/first --output network.onnx`
    """
    from equicolor.conversion.source import choose_image_size
    from equicolor.models.export import export as export_model
    from equicolor.models.loading import find_model

    network, trained = find_model(model, pretrained=pretrained)
    size = choose_image_size(network, None) if input_size is None else input_size
    report = export_model(network, output, to, input_size=size, form=form, overwrite=force)
    typer.echo(
        f"wrote {report.path}: {report.format}, {report.operations} nodes, "
        f"relative error {report.relative_error:.1e}"
    )
    if not trained:
        typer.echo(f"{model} has no trained weights: those in the file are random")
