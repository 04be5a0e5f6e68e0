"""The command ``equicolor evaluate``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from equicolor.cli.options import (
    EVALUATION,
    SUBJECT,
    names,
    option,
    prepare_device,
    skip_hint,
    slug,
    with_options,
)


@with_options([*SUBJECT, *EVALUATION])
def evaluate(
    actions: Annotated[
        str,
        option(
            "Actions on the images, separated by commas: hsv, rgb and rgb-clip (hue shifts), "
            "cast, gamma, brightness, saturation, turn (quarter turns and mirror images).",
            metavar="A,B",
        ),
    ] = "hsv,rgb,rgb-clip",
    output: Annotated[
        Path | None, option("Output folder.", "runs/evaluate/NETWORK", "--output", "-o")
    ] = None,
    force: Annotated[bool, option("Replace an earlier evaluation.", True, "--force")] = False,
    **subject: Any,
) -> None:
    """Evaluate a network: accuracy, also of each class and under hue shifts, and calibration.

    Takes any network, and a dataset by name or any folder of class folders. Writes the numbers
    and, for each of --actions, the curve of accuracy.
    """
    from equicolor.evaluation import report
    from equicolor.evaluation.diagnose import diagnose

    if output is None:
        output = Path("runs") / "evaluate" / slug(subject["network"], subject["data"])
    report.refuse_existing(output, force)
    subject["device"] = prepare_device(subject["device"])
    with skip_hint(subject["skip_corrupt"]):
        evaluation = diagnose(**subject, actions=names(actions) or [])
    report.show(evaluation, Console())
    written = report.write(evaluation, output, device=subject["device"])
    typer.echo(f"wrote {', '.join(map(str, written))} in {evaluation.seconds:.1f} s")
    typer.echo(report.headline(evaluation))
