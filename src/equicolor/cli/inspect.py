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
    settle_threads,
    slug,
    told_to_skip,
    with_options,
)


@with_options(SUBJECT)
def inspect(
    limit_images: Annotated[
        int | None,
        option(
            "Look at so many images, evenly from all classes: a few hundred take minutes on a CPU.",
            "all",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        option(
            "Layers to look at, separated by commas; NAME#2 is the second call of one.",
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
    top: Annotated[int, option("Images kept for every unit.")] = 50,
    units: Annotated[int, option("How many of the most and of the least selective to draw.")] = 3,
    grey: Annotated[
        str, option("What grey is: luma, or opponent (first principal component).")
    ] = "luma",
    shifts: Annotated[int, option("Hue shifts over the whole circle.")] = 37,
    compare: Annotated[
        str | None,
        option("Another network, to put beside this one on the interactive page.", "none"),
    ] = None,
    examples: Annotated[int, option("Images of the interactive page.")] = 6,
    batch_size: Annotated[int, option("Images in a batch.")] = 64,
    precision: Annotated[str, option("float32, bfloat16 or auto.")] = "float32",
    output: Annotated[
        Path | None, option("The page.", "runs/inspect/NETWORK.html", "--output", "-o")
    ] = None,
    force: Annotated[bool, option("Replace an earlier page.", True, "--force")] = False,
    **subject: Any,
) -> None:
    """Look into a network: what its units see, which need colour, and how equivariant they are.

    Writes one page to open in a browser, with the hue curve, the colour sensitivity of every
    class, the colour selectivity of every layer, neuron features, the first filters and the
    equivariance error of every layer; the numbers as JSON beside it; and an interactive page,
    on which a slider turns the hue of an image, and features and answers follow.
    """
    from equicolor import _checks
    from equicolor.analysis.inspection import interactive, page
    from equicolor.analysis.inspection.inspect import inspect as look
    from equicolor.devices import choose_device
    from equicolor.evaluation.diagnose import load_subject

    if output is None:
        name = slug(subject["network"], subject["data"])
        output = Path("runs") / "inspect" / f"{name}.html"
    if output.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--output must be an HTML file, such as page.html; got {output}")
    _checks.positive_int("examples", examples)
    page.refuse_existing(output, force)
    subject["device"] = choose_device(subject["device"])
    settle_threads(subject["device"].type)
    console = Console(stderr=True)
    load = partial(
        load_subject,
        limit=limit_images,
        batch_size=batch_size,
        precision=precision,
        any_classes=True,
        console=console,
    )
    with told_to_skip(subject["skip_corrupt"]):
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
