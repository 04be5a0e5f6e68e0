"""The command ``equicolor predict``."""

import json
import math
from typing import Annotated, Any

import typer
from rich.console import Console

from equicolor.cli.options import SUBJECT, names, option, prepare_device, skip_hint, with_options

_LEFT_OUT = ("data", "split", "split_seed")


@with_options([option for option in SUBJECT if option.name not in _LEFT_OUT])
def predict(
    images: Annotated[
        list[str],
        typer.Argument(
            help="Images, folders of images, or - to read such paths from stdin, one per line.",
            metavar="IMAGE",
        ),
    ],
    hue: Annotated[
        str | None,
        option("Also shift hues by these degrees, separated by commas.", "none", metavar="A,B"),
    ] = None,
    top: Annotated[int, option("Number of classes to show.")] = 5,
    as_json: Annotated[bool, option("Print JSON instead of a table.", True, "--json")] = False,
    **subject: Any,
) -> None:
    """Classify images: the most probable classes, as they are and with shifted hues.

    Images are resized and cropped as in 'equicolor evaluate'. Classes have their names if the
    network stores them, else numbers.

    `equicolor predict runs/first photo.jpg --hue 60,120,180`

    `find . -name "*.jpg" | equicolor predict runs/first - --json`
    """
    from equicolor._text import counted
    from equicolor.evaluation.predict import find_images, prediction_table
    from equicolor.evaluation.predict import predict as classify
    from equicolor.models.loading import load_network
    from equicolor.models.registry import GrayInput
    from equicolor.reporting.progress import counting

    turns = dict.fromkeys([0.0, *(degrees / 360 for degrees in _parse_hues(hue))])
    files = find_images(images)
    device = prepare_device(subject["device"])
    network = load_network(subject["network"], pretrained=subject["pretrained"], device=device)
    if subject["gray"] and not isinstance(network, GrayInput):
        network = GrayInput(network)
    skip = subject["skip_corrupt"]
    with skip_hint(skip), counting(Console(stderr=True), "classifying") as progress:
        predictions = classify(
            network,
            files,
            top=top,
            turns=[*turns],
            size=subject["size"],
            resize=subject["resize"],
            on_corrupt="skip" if skip else "error",
            progress=progress,
        )
    if as_json:
        lines = [json.dumps(each.row()) for each in predictions]
        typer.echo("[\n " + ",\n ".join(lines) + "\n]")
    else:
        Console().print(prediction_table(predictions).rich())
    skipped = len(files) - len(predictions) // len(turns)
    if skipped:
        typer.echo(f"left out {counted(skipped, 'corrupt image')} of {len(files):,}", err=True)


def _parse_hues(text: str | None) -> list[float]:
    """Degrees from the command line."""
    try:
        degrees = [float(part) for part in names(text) or ()]
    except ValueError:
        degrees = [math.nan]
    if not all(abs(each) <= 360 for each in degrees):  # also refuses NaN
        raise ValueError(
            "--hue takes degrees separated by commas, such as 60,120, from -360 to 360; "
            f"got {text!r}"
        )
    return degrees
