"""The command ``equicolor compare``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from equicolor.cli.options import (
    DATA,
    EVALUATION,
    NETWORK,
    SUBJECT,
    names,
    option,
    prepare_device,
    skip_hint,
    slug,
    with_options,
)


@with_options(
    [*(option for option in SUBJECT if option.name not in ("network", "data")), *EVALUATION]
)
def compare(
    networks: Annotated[
        list[str], typer.Argument(help=f"Two or more, each {NETWORK}", metavar="NETWORK")
    ],
    data: Annotated[str | None, option(DATA, "what the first run was trained on")] = None,
    actions: Annotated[
        str,
        option(
            "Actions on the images, as in 'equicolor evaluate'. The first has more columns.",
            metavar="A,B",
        ),
    ] = "hsv",
    output: Annotated[
        Path | None, option("Output folder.", "runs/compare/NETWORKS", "--output", "-o")
    ] = None,
    force: Annotated[bool, option("Replace an earlier comparison.", True, "--force")] = False,
    **options: Any,
) -> None:
    """Compare networks on the same images: cost, accuracy, and accuracy under hue shifts.

    All networks must have the same classes as the images. Writes one page to open in a browser,
    the curves of all networks in one figure, and the numbers as JSON.

    `equicolor compare runs/plain runs/equivariant mine.py:network --data path/to/folder`
    """
    from equicolor.evaluation import compare as comparison

    if output is None:
        together = "-".join(slug(network, None) for network in networks)
        output = Path("runs") / "compare" / slug(together, data)
    comparison.refuse_existing(output, force)
    options["device"] = prepare_device(options["device"])
    with skip_hint(options["skip_corrupt"]):
        compared = comparison.compare(networks, data, actions=names(actions) or [], **options)
    Console().print(comparison.comparison_table(compared, brief=True).rich())
    written = comparison.write(compared, output, device=options["device"])
    typer.echo(f"wrote {', '.join(map(str, written))}")
    typer.echo(comparison.headline(compared))
