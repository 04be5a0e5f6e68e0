"""The command ``equicolor canonicalize``."""

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

_LEFT_OUT = ("split", "gray")  # judged is the test part, and grey images have no hue
_OPTIONS = [
    *(option for option in SUBJECT if option.name not in _LEFT_OUT),
    *(option for option in JUDGING if option.name == "classes_by_index"),
]


@with_options(_OPTIONS)
def canonicalize(
    unlabelled: Annotated[
        str | None,
        option(
            "Train the selector on the images of this folder, or of this dataset; without "
            "--data, also judge by some of them.",
            "the training images of --data",
            metavar="FOLDER",
        ),
    ] = None,
    rotations: Annotated[int, option("How many hues are compared.")] = 12,
    select: Annotated[
        str,
        option(
            "What finds the hue: learned, energy, entropy, confidence, or the file of a "
            "selector that was trained before; gray-world or shades-of-gray takes the colour of "
            "the light away; gray-world,learned does both."
        ),
    ] = "learned",
    preset: Annotated[
        str, option("Of the learned selector: fast, default or accurate.")
    ] = "default",
    modes: Annotated[int, option("How many angles are tried and averaged.")] = 1,
    gate: Annotated[
        float | None,
        option(
            "The probability of the best angle from which on it is the only one.",
            "all modes are always tried",
        ),
    ] = None,
    epochs: Annotated[
        int | None, option("Of the selector's training.", "240, or fewer that make 4,000 steps")
    ] = None,
    seed: Annotated[int, option("Of the selector's training.")] = 0,
    precision: Annotated[
        str, option("To judge in: float32, bfloat16, or auto: bfloat16 on a GPU.")
    ] = "auto",
    output: Annotated[
        Path | None, option("The folder.", "runs/canonicalize/NETWORK", "--output", "-o")
    ] = None,
    force: Annotated[bool, option("Replace an earlier result.", True, "--force")] = False,
    **subject: Any,
) -> None:
    """Make any network invariant to hue shifts by taking them back first; nothing in it changes.

    Trains a small selector on images without labels, judges the network before and after, and
    writes a checkpoint, the numbers and the curve of accuracy over the hue shift.

    `equicolor canonicalize timm:vit_tiny_patch16_224 --data path/to/folder`

    The same command continues where an interrupted one was.
    """
    from equicolor.canonicalization.report import canonicalize_named, refuse_existing
    from equicolor.devices import choose_device

    data = subject["data"]
    if output is None:
        output = Path("runs") / "canonicalize" / slug(subject["network"], data or unlabelled)
    refuse_existing(output, force)
    subject["device"] = choose_device(subject["device"])
    settle_threads(subject["device"].type)
    console = Console()
    with told_to_skip(subject["skip_corrupt"]):
        outcome = canonicalize_named(
            subject.pop("network"),
            subject.pop("data"),
            output,
            unlabelled=unlabelled,
            epochs=epochs,
            seed=seed,
            precision=precision,
            console=Console(stderr=True),
            options={
                "rotations": rotations,
                "select": names(select),
                "preset": preset,
                "modes": modes,
                "gate": gate,
            },
            **subject,
        )
    console.print(outcome.cost.rich())
    console.print(outcome.accuracy.rich())
    typer.echo(f"wrote {', '.join(map(str, outcome.written))}")
    typer.echo(outcome.headline)
