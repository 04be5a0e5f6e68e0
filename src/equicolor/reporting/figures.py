"""Shared by figures: small PNG files, and names in labels."""

import io

from matplotlib.figure import Figure
from PIL import Image

from equicolor._text import printable

__all__ = ["as_it_is", "png"]


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


def as_it_is(name: str) -> str:
    r"""A name from outside, escaped so that matplotlib does not read it as a formula.

    Example:
        >>> print(as_it_is("US$ and C$"))
        US\$ and C\$
    """
    return printable(name).replace("$", r"\$")
