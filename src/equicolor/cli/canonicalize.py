"""The command ``equicolor canonicalize``."""

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

_LEFT_OUT = ("split", "gray")  # the test split is evaluated, and grey images have no hue
_OPTIONS = [
    *(option for option in SUBJECT if option.name not in _LEFT_OUT),
    *(option for option in EVALUATION if option.name == "classes_by_index"),
]


@with_options(_OPTIONS)
def canonicalize(
    unlabelled: Annotated[
        str | None,
        option(
            "Folder or dataset whose images train the selector, without labels. Without --data, "
            "one image in five is kept for the evaluation.",
            "the training images of --data",
            metavar="FOLDER",
        ),
    ] = None,
    rotations: Annotated[int, option("Number of hues to compare.")] = 12,
    select: Annotated[
        str,
        option(
            "How to find the hue: learned, energy, entropy, confidence, or the file of a trained "
            "selector. gray-world and shades-of-gray remove the colour of the light instead; "
            "gray-world,learned does both."
        ),
    ] = "learned",
    preset: Annotated[
        str, option("Size of the learned selector: fast, default or accurate.")
    ] = "default",
    modes: Annotated[int, option("Number of angles to try; their answers are averaged.")] = 1,
    gate: Annotated[
        float | None,
        option(
            "Try only the best angle if its probability is at least this.",
            "always try all modes",
        ),
    ] = None,
    epochs: Annotated[
        int | None, option("Epochs of the selector.", "240, or fewer that make 4,000 steps")
    ] = None,
    seed: Annotated[int, option("Seed of the selector's training.")] = 0,
    precision: Annotated[
        str, option("Format of the evaluation: float32, bfloat16, or auto (bfloat16 on a GPU).")
    ] = "auto",
    output: Annotated[
        Path | None, option("Output folder.", "runs/canonicalize/NETWORK", "--output", "-o")
    ] = None,
    force: Annotated[bool, option("Replace an earlier result.", True, "--force")] = False,
    **subject: Any,
) -> None:
    """Make any network invariant to hue shifts: undo them in the image, leave the network as it is.

    Trains a small selector on images without labels, evaluates the network with and without it,
    and writes a checkpoint, the numbers and the curve of accuracy over the hue shift.

    `equicolor canonicalize timm:vit_tiny_patch16_224 --data path/to/folder`

    The same command continues an interrupted run.
    """
    from equicolor.canonicalization.report import canonicalize_named, refuse_existing

    data = subject["data"]
    if output is None:
        output = Path("runs") / "canonicalize" / slug(subject["network"], data or unlabelled)
    refuse_existing(output, force)
    subject["device"] = prepare_device(subject["device"])
    console = Console()
    with skip_hint(subject["skip_corrupt"]):
        outcome = canonicalize_named(
            subject.pop("network"),
            subject.pop("data"),
            output,
            unlabelled=unlabelled,
            epochs=epochs,
            seed=seed,
            precision=precision,
            console=Console(stderr=True),
            overwrite=force,
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
