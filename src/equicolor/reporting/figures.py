"""Shared by figures: small PNG files, names in labels, and the strip of hues below a curve."""

import io

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from equicolor._text import printable
from equicolor.color import shift_hue

__all__ = ["as_it_is", "draw_hues", "png"]


def png(figure: Figure, dpi: int = 110, limit: int = 150_000) -> bytes:
    """A figure as a small PNG: 256 colours, or fewer (at least 100) to stay below some bytes."""
    raw = io.BytesIO()
    figure.savefig(raw, dpi=dpi, format="png")
    image = Image.open(raw).convert("RGB")
    for colors in (256, 160, 100):
        packed = io.BytesIO()
        image.quantize(colors, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
        if packed.tell() < limit:
            break
    return packed.getvalue()


def draw_hues(axes: Axes) -> None:
    """What becomes of red under shifts from -180 to 180 degrees, as a strip."""
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1).expand(360, -1, -1, -1)
    hues = shift_hue(red, (torch.arange(360) - 180) / 360)
    axes.imshow(hues.view(1, 360, 3).numpy(), extent=(-180, 180, 0, 1), aspect="auto")
    axes.set_yticks([])


def as_it_is(name: str) -> str:
    r"""A name from outside, escaped so that matplotlib does not read it as a formula.

    Example:
        >>> print(as_it_is("US$ and C$"))
        US\$ and C\$
    """
    return printable(name).replace("$", r"\$")
