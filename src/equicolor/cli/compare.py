"""The command ``equicolor compare``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from equicolor.cli.options import (
    JUDGING,
    NETWORK,
    SUBJECT,
    names,
    option,
    settle_threads,
    slug,
    told_to_skip,
    with_options,
)


@with_options([*(option for option in SUBJECT if option.name not in ("network", "data")), *JUDGING])
def compare(
    networks: Annotated[
        list[str], typer.Argument(help=f"Two or more, each {NETWORK}", metavar="NETWORK")
    ],
    data: Annotated[
        str | None,
        option(
            "A name of 'equicolor datasets', or a folder of class folders.",
            "what the first run was trained on",
        ),
    ] = None,
    actions: Annotated[
        str,
        option(
            "What is done to the images, as in 'equicolor evaluate'; the first has more columns.",
            metavar="A,B",
        ),
    ] = "hsv",
    output: Annotated[
        Path | None, option("The folder.", "runs/compare/NETWORKS", "--output", "-o")
    ] = None,
    force: Annotated[bool, option("Replace an earlier comparison.", True, "--force")] = False,
    **options: Any,
) -> None:
    """Judge several networks on the same images: cost, accuracy, and accuracy under hue shifts.

    All must have the classes of the images. Writes one page to open in a browser, the curves of
    all networks in one figure, and the numbers as JSON.

    `equicolor compare runs/plain runs/equivariant mine.py:network --data path/to/folder`
    """
    from equicolor.devices import choose_device
    from equicolor.evaluation import compare as comparison

    if output is None:
        together = "-".join(slug(network, None) for network in networks)
        output = Path("runs") / "compare" / slug(together, data)
    comparison.refuse_existing(output, force)
    options["device"] = choose_device(options["device"])
    settle_threads(options["device"].type)
    with told_to_skip(options["skip_corrupt"]):
        compared = comparison.compare(networks, data, actions=names(actions) or [], **options)
    Console().print(comparison.comparison_table(compared, brief=True).rich())
    written = comparison.write(compared, output, device=options["device"])
    typer.echo(f"wrote {', '.join(map(str, written))}")
    typer.echo(comparison.headline(compared))
