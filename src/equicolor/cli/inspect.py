"""The command ``equicolor inspect``."""

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

__all__ = ["inspect"]


def inspect(
    network: NetworkName,
    data: Data = None,
    split: Split = "test",
    split_seed: SplitSeed = None,
    limit_images: Annotated[
        int | None,
        typer.Option(
            help="Look at so many images, evenly from all classes: a few hundred take minutes "
            "on a CPU.",
            show_default="all",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Whose units to look at, separated by commas; NAME#2 is the second call of one.",
            show_default="all nonlinearities",
        ),
    ] = None,
    sheets: Annotated[
        str | None,
        typer.Option(
            help="Layers whose units are drawn, separated by commas.",
            show_default="the last at every resolution, at most four",
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="Images kept for every unit.")] = 50,
    units: Annotated[
        int, typer.Option(help="How many of the most and of the least selective to draw.")
    ] = 3,
    grey: Annotated[
        str, typer.Option(help="What grey is: luma, or opponent (first principal component).")
    ] = "luma",
    shifts: Annotated[int, typer.Option(help="Hue shifts over the whole circle.")] = 37,
    size: Size = None,
    resize: Resize = None,
    gray: Gray = False,
    pretrained: Pretrained = True,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 64,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or auto.")] = "float32",
    skip_corrupt: SkipCorrupt = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page.", show_default="runs/inspect/NETWORK.html"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier page.")] = False,
) -> None:
    """Look into a network: what its units see, which need colour, and how equivariant they are.

    Writes one page to open in a browser, with the hue curve, the colour sensitivity of every
    class, the colour selectivity of every layer, neuron features, the first filters and the
    equivariance error of every layer; and the numbers as JSON beside it.
    """
    from equicolor.analysis.inspection import page
    from equicolor.analysis.inspection.inspect import inspect as look
    from equicolor.devices import choose_device
    from equicolor.evaluation.diagnose import load_subject

    if output is None:
        output = Path("runs") / "inspect" / f"{slug(network, data)}.html"
    if output.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--output must be an HTML file, such as page.html; got {output}")
    page.refuse_existing(output, force)
    where, console = choose_device(device), Console(stderr=True)
    settle_threads(where.type)
    with told_to_skip(skip_corrupt):
        subject = load_subject(
            network,
            data,
            split=split,
            split_seed=split_seed,
            limit=limit_images,
            size=size,
            resize=resize,
            gray=gray,
            pretrained=pretrained,
            batch_size=batch_size,
            device=where,
            precision=precision,
            skip_corrupt=skip_corrupt,
            any_classes=True,
            console=console,
        )
        found = look(
            subject,
            layers=names(layers),
            sheet_layers=names(sheets),
            top=top,
            units=units,
            grey=grey,
            shifts=shifts,
            console=console,
        )
    written = page.write(found, output, device=where, overwrite=force)
    Console().print(page.layer_table(found, page.BRIEF).rich())
    typer.echo(f"wrote {' and '.join(map(str, written))} in {found.seconds:.1f} s")
    typer.echo(page.headline(found))
