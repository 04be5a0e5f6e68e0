"""The command ``equicolor inspect``."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from equicolor.cli.options import (
    SUBJECT,
    names,
    option,
    prepare_device,
    skip_hint,
    slug,
    with_options,
)


@with_options(SUBJECT)
def inspect(
    limit_images: Annotated[
        int | None,
        option(
            "Use this many images, evenly from all classes. A few hundred take minutes on a CPU.",
            "all",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        option(
            "Layers to inspect, separated by commas. NAME#2 is the second call of layer NAME.",
            "all nonlinearities",
        ),
    ] = None,
    sheets: Annotated[
        str | None,
        option(
            "Layers whose units are drawn, separated by commas.",
            "the last at every resolution, at most four",
        ),
    ] = None,
    top: Annotated[int, option("Number of most exciting images kept for each unit.")] = 50,
    units: Annotated[int, option("Most selective units to draw, and as many least selective.")] = 3,
    grey: Annotated[
        str, option("Definition of grey: luma, or opponent (first principal component).")
    ] = "luma",
    shifts: Annotated[int, option("Number of hue shifts over the whole circle.")] = 37,
    compare: Annotated[
        str | None,
        option("Another network, shown beside this one on the interactive page.", "none"),
    ] = None,
    examples: Annotated[int, option("Number of images on the interactive page.")] = 6,
    batch_size: Annotated[int, option("Images per batch.")] = 64,
    precision: Annotated[str, option("Number format: float32, bfloat16 or auto.")] = "float32",
    output: Annotated[
        Path | None, option("Page to write.", "runs/inspect/NETWORK.html", "--output", "-o")
    ] = None,
    force: Annotated[bool, option("Replace an earlier page.", True, "--force")] = False,
    **subject: Any,
) -> None:
    """Inspect a network: what its units respond to, which need colour, how equivariant they are.

    Writes one page to open in a browser, with the hue curve, the colour sensitivity of every
    class, the colour selectivity of every layer, neuron features, the first filters and the
    equivariance error of every layer. Beside it are the numbers as JSON, and an interactive page
    with a slider that shifts the hue of an image and shows how features and answers change.
    """
    from equicolor import _checks
    from equicolor.analysis.inspection import interactive, page
    from equicolor.analysis.inspection.inspect import inspect as look
    from equicolor.evaluation.diagnose import load_subject

    if output is None:
        name = slug(subject["network"], subject["data"])
        output = Path("runs") / "inspect" / f"{name}.html"
    if output.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--output must be an HTML file, such as page.html; got {output}")
    _checks.positive_int("examples", examples)
    page.refuse_existing(output, force)
    subject["device"] = prepare_device(subject["device"])
    console = Console(stderr=True)
    load = partial(
        load_subject,
        limit=limit_images,
        batch_size=batch_size,
        precision=precision,
        any_classes=True,
        console=console,
    )
    with skip_hint(subject["skip_corrupt"]):
        first, second = load(**subject), None
        if compare is not None:
            same = {"data": first.data, "split_seed": first.facts["split_seed"]}
            second = load(**subject | {"network": compare} | same)
        inspection = look(
            first,
            layers=names(layers),
            sheet_layers=names(sheets),
            top=top,
            units=units,
            grey=grey,
            shifts=shifts,
            console=console,
        )
        turned = interactive.turn(
            first, inspection, second, shifts=shifts, examples=examples, console=console
        )
    written = page.write(inspection, output, turned=turned, device=subject["device"])
    Console().print(page.layer_table(inspection, page.BRIEF).rich())
    typer.echo(
        f"wrote {', '.join(map(str, written[:-1]))} and {written[-1]} in {inspection.seconds:.1f} s"
    )
    typer.echo(page.headline(inspection))
