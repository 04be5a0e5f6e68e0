"""Shared by figures: small PNG files, and names in labels."""

import io
from collections.abc import Iterable

from matplotlib.figure import Figure
from PIL import Image

from equicolor._text import printable


def png(figure: Figure, dpi: int = 110, limit: int = 150_000) -> bytes:
    """A figure as a small PNG: 256 colours, or fewer (at least 100) to stay below some bytes."""
    image = _drawn(figure, dpi)
    none = Image.Dither.NONE
    return _packed((image.quantize(colors, dither=none) for colors in (256, 160, 100)), limit)


def photo_png(figure: Figure, dpi: int = 100, limit: int = 950_000) -> bytes:
    """A figure of photographs as a PNG in full colour: a palette would change their hues.

    An image of more bytes than the limit is made smaller, to half its size at most.
    """
    image = _drawn(figure, dpi)
    scales = (1.0, 0.85, 0.7, 0.6, 0.5)
    sizes = ((round(image.width * scale), round(image.height * scale)) for scale in scales)
    return _packed((image.resize(size, Image.Resampling.LANCZOS) for size in sizes), limit)


def _drawn(figure: Figure, dpi: int) -> Image.Image:
    raw = io.BytesIO()
    figure.savefig(raw, dpi=dpi, format="png")
    return Image.open(raw).convert("RGB")


def _packed(images: Iterable[Image.Image], limit: int) -> bytes:
    """The first image of fewer bytes than the limit, or the last one, as a PNG."""
    packed = io.BytesIO()
    for image in images:
        packed = io.BytesIO()
        image.save(packed, "PNG", optimize=True)
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
