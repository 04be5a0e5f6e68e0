"""Hue transformations of RGB images: pure, batched, differentiable functions.

Two actions of the hue circle on colours matter here, and they are different:

* the **HSV shift** (:func:`shift_hue`) adds to the hue of the HSV hexcone. It is what
  photo editors and ``torchvision.transforms.functional.adjust_hue`` do, and it never
  leaves the RGB cube;
* the **RGB rotation** (:func:`rotate_hue`) rotates colours about the grey axis. It is
  linear, which is why the paper can move it onto the filters, but it can leave the cube.

They agree exactly at multiples of 120 degrees and nowhere else. ``turns`` is a fraction
of the hue circle: 1 turn is 360 degrees.
"""

import math

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._observed import is_transformed, is_watched
from equicolor.devices import takes_kernels

__all__ = ["hsv_to_rgb", "rgb_to_hsv", "rotate_hue", "rotation_matrix", "shift_hue"]

# Device types on which a kernel shifts hues.
DEVICES: tuple[str, ...] = ("cuda",)


def rgb_to_hsv(images: Tensor) -> Tensor:
    r"""Convert RGB images to HSV.

    Args:
        images: RGB images :math:`[..., 3, H, W]` in [0, 1].

    Returns:
        Hue (in turns, [0, 1)), saturation and value, stacked like the input. Greys have
        hue 0 and black has saturation 0; gradients there are finite.

    Example:
        >>> rgb_to_hsv(torch.tensor([0.0, 0.5, 0.0]).view(3, 1, 1)).flatten().tolist()
        [0.3333333432674408, 1.0, 0.5]
    """
    exact = _checks.precise_images("rgb_to_hsv", images)
    hue, chroma, low = decompose(exact)
    value = low + chroma
    saturation = chroma / _divisor(value)
    hsv = torch.stack((hue, saturation, value), dim=-3).to(images.dtype)
    # A hue just below a full turn may be rounded up to it.
    hue, rest = hsv[..., :1, :, :], hsv[..., 1:, :, :]
    return torch.cat((torch.where(hue >= 1, hue - 1, hue), rest), dim=-3)


def hsv_to_rgb(images: Tensor) -> Tensor:
    r"""Convert HSV images (hue in turns, any real number) to RGB.

    Args:
        images: hue, saturation and value :math:`[..., 3, H, W]`.

    Returns:
        RGB images of the same shape.

    Example:
        >>> hsv_to_rgb(torch.tensor([1 / 3, 1.0, 0.5]).view(3, 1, 1)).flatten().tolist()
        [0.0, 0.5, 0.0]
    """
    hue, saturation, value = _checks.precise_images("hsv_to_rgb", images, kind="HSV").unbind(-3)
    chroma = value * saturation
    return compose(hue.fmod(1), chroma, value - chroma).to(images.dtype)


def shift_hue(images: Tensor, turns: float | Tensor) -> Tensor:
    r"""Shift the HSV hue of RGB images by ``turns``: exact, cyclic, stays in the RGB cube.

    ``shift_hue(shift_hue(x, a), b) == shift_hue(x, a + b)`` up to rounding, for any ``a``
    and ``b``. Only differences and extremes of the channels enter, so the shift commutes
    with any scalar normalisation ``x -> (x - mean) / std`` of all three channels alike.

    Args:
        images: RGB images :math:`[..., 3, H, W]`, meant to be in [0, 1].
        turns: one shift for all images, or one per image, of shape :math:`[...]`.

    Returns:
        Images of the same shape and dtype. Differentiable in both arguments away from
        the seams of the hexcone; gradients are finite everywhere, greys and black included.

    Example:
        >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
        >>> shift_hue(red, 1 / 3).flatten().tolist()
        [0.0, 1.0, 0.0]
        >>> shift_hue(red.expand(2, 3, 4, 4), torch.tensor([0.0, 0.5])).shape
        torch.Size([2, 3, 4, 4])
    """
    exact = _checks.precise_images("shift_hue", images)
    shifts = _per_image("shift_hue", turns, exact)
    if _takes_kernel(images, shifts):
        # Imported at its first use: Triton takes long to import and is not installed everywhere.
        from equicolor import color_kernels

        return color_kernels.shift_hue(images, shifts)
    hue, chroma, low = decompose(exact)
    return compose(hue + shifts, chroma, low).to(images.dtype)


def shift_hue_orbit(images: Tensor, rotations: int) -> Tensor:
    r"""All shifts :math:`T_{-k/n}` of every image; the images are decomposed once.

    Images :math:`[..., 3, H, W]` become :math:`[n, ..., 3, H, W]`. The shift by 0 is the image
    itself, and shifts by thirds of a turn permute its channels, so these are exact.
    """
    exact = _checks.precise_images("shift_hue_orbit", images)
    turns = orbit_turns(rotations, dtype=exact.dtype, device=images.device)
    turns = turns.view(-1, *[1] * (images.ndim - 1))
    return orbit(exact.unsqueeze(0), turns, rotations, 0).to(images.dtype)


def rotate_hue(images: Tensor, turns: float | Tensor, clip: bool = False) -> Tensor:
    r"""Rotate RGB colours about the grey axis by ``turns``.

    Args:
        images: RGB images :math:`[..., 3, H, W]`.
        turns: one rotation for all images, or one per image, of shape :math:`[...]`.
        clip: reproject colours that left the RGB cube into [0, 1]. The plain rotation
            is an exact group action; the clipped one is not.

    Returns:
        Images of the same shape and dtype.

    Example:
        >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
        >>> [round(value, 4) for value in rotate_hue(red, 0.5).flatten().tolist()]
        [-0.3333, 0.6667, 0.6667]
        >>> [round(value, 4) for value in rotate_hue(red, 0.5, clip=True).flatten().tolist()]
        [0.0, 0.6667, 0.6667]
    """
    exact = _checks.precise_images("rotate_hue", images)
    matrix = rotation_matrix(_per_image("rotate_hue", turns, exact).flatten(-2).squeeze(-1))
    # A sum of three scaled channels, not einsum: autocast must not round colours to bfloat16.
    rotated = sum(matrix[..., :, i, None, None] * exact[..., i, None, :, :] for i in range(3))
    assert isinstance(rotated, Tensor)
    return (rotated.clamp(0, 1) if clip else rotated).to(images.dtype)


def to_gray(images: Tensor) -> Tensor:
    """Images ``[..., 3, H, W]`` whose channels are all the mean of the three; not copied."""
    return images.mean(-3, keepdim=True).expand_as(images)


def rotation_matrix(turns: Tensor) -> Tensor:
    r"""The rotation of RGB space by ``turns`` about the grey axis (the paper's :math:`H_n(k)`).

    Args:
        turns: angles :math:`[...]` as fractions of a full circle.

    Returns:
        Matrices :math:`[..., 3, 3]` acting on RGB column vectors.

    Example:
        >>> rotation_matrix(torch.tensor(1 / 3)).round().abs().tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    angle = 2 * math.pi * turns.fmod(1)
    cos = torch.cos(angle)
    a, b = (1 - cos) / 3, torch.sin(angle) / math.sqrt(3)
    diagonal, minus, plus = cos + a, a - b, a + b
    rows = (diagonal, minus, plus), (plus, diagonal, minus), (minus, plus, diagonal)
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def decompose(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """RGB ``[..., 3, H, W]`` to hue in turns, chroma (max - min) and low (min).

    Chroma and low replace saturation and value. They need no division by the value, so black
    and negative (normalised) colours are no special cases.
    """
    red, green, blue = images.unbind(-3)
    high, low = images.amax(-3), images.amin(-3)
    chroma = high - low
    # For greys, the differences below are zero, and any finite divisor gives hue 0.
    scale = _divisor(chroma)
    sextant = torch.where(
        high == red,
        (green - blue) / scale,
        torch.where(high == green, 2 + (blue - red) / scale, 4 + (red - green) / scale),
    )
    return torch.remainder(sextant / 6, 1), chroma, low


def _divisor(x: Tensor) -> Tensor:
    """``x``, or 1 where ``1 / x`` would overflow: zero and subnormal numbers."""
    return torch.where(x < torch.finfo(x.dtype).tiny, torch.ones_like(x), x)


def compose(hue: Tensor, chroma: Tensor, low: Tensor) -> Tensor:
    """The inverse of :func:`decompose`; the channels are stacked at dimension -3."""
    sextant = 6 * hue

    def channel(offset: int) -> Tensor:
        # A trapezoid over the hue circle says how much of the chroma this channel lacks.
        position = torch.remainder(sextant + offset, 6)
        lack = torch.minimum(position, 4 - position).clamp(0, 1)
        return low + chroma * (1 - lack)

    return torch.stack([channel(5), channel(3), channel(1)], dim=-3)


def orbit_turns(
    rotations: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """The shifts of an orbit that have to be computed, ``[m]``; see :func:`orbit`."""
    distinct = rotations if rotations % 3 else rotations // 3  # up to a permutation of the channels
    return torch.arange(1, distinct, dtype=dtype, device=device) / rotations


def orbit(images: Tensor, turns: Tensor, rotations: int, dim: int) -> Tensor:
    """Images ``[..., 3, H, W]`` shifted back by every k/n turns, along a dimension of size 1.

    The turns come from :func:`orbit_turns`, shaped to broadcast against ``images[..., 0, :, :]``.
    The dimension is counted from the front.
    """
    hues = images
    if rotations not in (1, 3):
        hue, chroma, low = decompose(images)
        hues = torch.cat((images, compose(hue - turns, chroma, low)), dim)
    if rotations % 3:
        return hues
    return torch.cat((hues, hues.roll(-1, -3), hues.roll(-2, -3)), dim)


def _takes_kernel(images: Tensor, turns: Tensor) -> bool:
    """Whether the kernel can shift images: no gradients, and nothing observes operations."""
    return (
        # First: torch.compile must not trace the rest.
        not torch.compiler.is_compiling()
        and type(images) in (Tensor, nn.Parameter)
        and not (torch.is_grad_enabled() and (images.requires_grad or turns.requires_grad))
        and not is_transformed((images, turns))
        and not is_watched()
        and takes_kernels(images, DEVICES)
    )


def _per_image(name: str, turns: float | Tensor, images: Tensor) -> Tensor:
    """Turns as a tensor that broadcasts against ``images[..., 0, :, :]``."""
    if type(turns) is int:
        turns = 0.0  # whole turns change nothing, and may be too many for a float
    turns = _checks.per_image(name, "number of turns", turns, images)
    # Before conversion: in float32, numbers above 2^24 have no fraction.
    return turns.fmod(1).to(images)[..., None, None]
