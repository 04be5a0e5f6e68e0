"""Options that several commands have in common, and how their texts are read."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from equicolor._files import short_name

__all__ = [
    "Data", "Device", "Gray", "NetworkName", "Pretrained", "Resize", "Size", "SkipCorrupt",
    "Split", "SplitSeed", "names", "settle_threads", "slug", "told_to_skip",
]  # fmt: skip

# A network and images to judge it on, as equicolor.evaluation.diagnose.load_subject takes them.
NetworkName = Annotated[
    str,
    typer.Argument(
        help="A checkpoint, the folder of a training run, timm:NAME, torchvision:NAME, or "
        "path/to/file.py:function.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="A name of 'equicolor datasets', or a folder of class folders.",
        show_default="what the run was trained on",
    ),
]
Split = Annotated[str, typer.Option(help="test or train.")]
SplitSeed = Annotated[
    int | None,
    typer.Option(help="Of datasets without a split.", show_default="the run's, or 0"),
]
Size = Annotated[
    int | None,
    typer.Option(help="Height and width of the images.", show_default="the network's"),
]
Resize = Annotated[
    int | None,
    typer.Option(
        help="The short side of an image before its centre is cropped.",
        show_default="the network's",
    ),
]
Gray = Annotated[
    bool, typer.Option("--gray", help="Feed the mean of the channels; a run knows it itself.")
]
Pretrained = Annotated[bool, typer.Option(help="Load the weights that timm or torchvision offer.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
SkipCorrupt = Annotated[
    bool, typer.Option("--skip-corrupt", help="Leave out images that cannot be decoded.")
]


def names(text: str | None) -> list[str] | None:
    """Names that are separated by commas.

    Example:
        >>> names("hsv, rgb,"), names(None)
        (['hsv', 'rgb'], None)
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def settle_threads(device: str) -> None:
    """On a CPU that others use, too, let torch work in no more threads than are of use.

    OMP_NUM_THREADS is followed if it is set.
    """
    import torch

    from equicolor.devices import usable_threads

    if device != "cpu" or "OMP_NUM_THREADS" in os.environ:
        return
    most, threads = torch.get_num_threads(), usable_threads()
    if threads < most:
        torch.set_num_threads(threads)
        typer.echo(
            f"this machine is busy: torch uses {threads} of {most} threads, since more would be "
            "slower; OMP_NUM_THREADS sets the number",
            err=True,
        )


def slug(network: str, data: str | None) -> str:
    """A name for what is written about a network.

    Example:
        >>> slug("runs/first/model.safetensors", "my images")
        'first-my_images'
    """
    path = Path(network)
    name = path.parent.name if path.name == "model.safetensors" else path.name
    parts = [name] if data is None else [name, Path(data).name]
    return short_name(re.sub(r"[^\w.+-]+", "_", "-".join(parts)))


@contextmanager
def told_to_skip(skip_corrupt: bool) -> Iterator[None]:
    """Add to the error of a corrupt image that there is an option, unless it was given."""
    from equicolor.data.images import CorruptImageError

    try:
        yield
    except CorruptImageError as error:
        if skip_corrupt:
            raise
        hint = "mend or remove it, or leave corrupt images out with --skip-corrupt"
        raise CorruptImageError(f"{error}; {hint}") from None
