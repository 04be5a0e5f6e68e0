"""The command ``equicolor evaluate``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from equicolor.cli.options import (
    JUDGING,
    SUBJECT,
    names,
    option,
    settle_threads,
    slug,
    told_to_skip,
    with_options,
)


@with_options([*SUBJECT, *JUDGING])
def evaluate(
    actions: Annotated[
        str,
        option(
            "What is done to the images, separated by commas: hsv, rgb and rgb-clip shift "
            "hues; cast, gamma, brightness, saturation; turn, by quarters and mirrored.",
            metavar="A,B",
        ),
    ] = "hsv,rgb,rgb-clip",
    output: Annotated[
        Path | None, option("The folder.", "runs/evaluate/NETWORK", "--output", "-o")
    ] = None,
    force: Annotated[bool, option("Replace an earlier evaluation.", True, "--force")] = False,
    **subject: Any,
) -> None:
    """Judge a network: accuracy, what hue shifts do to it, class by class, and calibration.

    Any network, on a dataset by name or on any folder of class folders. Writes the numbers
    and the curves of accuracy over the hue shift and over whatever else --actions names.
    """
    from equicolor.devices import choose_device
    from equicolor.evaluation import report
    from equicolor.evaluation.diagnose import diagnose

    if output is None:
        output = Path("runs") / "evaluate" / slug(subject["network"], subject["data"])
    report.refuse_existing(output, force)
    subject["device"] = choose_device(subject["device"])
    settle_threads(subject["device"].type)
    with told_to_skip(subject["skip_corrupt"]):
        evaluation = diagnose(**subject, actions=names(actions) or [])
    report.show(evaluation, Console())
    written = report.write(evaluation, output, device=subject["device"])
    typer.echo(f"wrote {', '.join(map(str, written))} in {evaluation.seconds:.1f} s")
    typer.echo(report.headline(evaluation))
