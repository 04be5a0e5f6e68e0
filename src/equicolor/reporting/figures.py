"""Figures as small PNG files, and names in their labels."""

import io
from collections.abc import Iterable

from matplotlib.figure import Figure
from PIL import Image

from equicolor._text import printable


def png(figure: Figure, dpi: int = 110, limit: int = 150_000) -> bytes:
    """A figure as a small PNG: 256 colours, or down to 100 to stay below ``limit`` bytes."""
    image = _rendered(figure, dpi)
    none = Image.Dither.NONE
    return _first_below((image.quantize(colors, dither=none) for colors in (256, 160, 100)), limit)


def photo_png(figure: Figure, dpi: int = 100, limit: int = 950_000) -> bytes:
    """A figure of photographs as a PNG in full colour: a palette would change their hues.

    To stay below ``limit`` bytes it is made smaller, down to half its size.
    """
    image = _rendered(figure, dpi)
    scales = (1.0, 0.85, 0.7, 0.6, 0.5)
    sizes = ((round(image.width * scale), round(image.height * scale)) for scale in scales)
    return _first_below((image.resize(size, Image.Resampling.LANCZOS) for size in sizes), limit)


def _rendered(figure: Figure, dpi: int) -> Image.Image:
    raw = io.BytesIO()
    figure.savefig(raw, dpi=dpi, format="png")
    return Image.open(raw).convert("RGB")


def _first_below(images: Iterable[Image.Image], limit: int) -> bytes:
    """The first image with fewer bytes than the limit, or the last one, as a PNG."""
    for image in images:
        file = io.BytesIO()
        image.save(file, "PNG", optimize=True)
        if file.tell() < limit:
            break
    return file.getvalue()


def literal(name: str) -> str:
    r"""A name with dollar signs escaped, so that matplotlib does not read it as a formula.

    Example:
        >>> print(literal("US$ and C$"))
        US\$ and C\$
    """
    return printable(name).replace("$", r"\$")
