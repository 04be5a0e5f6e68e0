"""Light in RGB images: pure, batched, differentiable functions.

Images hold sRGB values, which follow the light that fell on the sensor along a curve. A light
of another colour or strength multiplies the channels *before* that curve, in linear RGB
(:func:`scale_channels`). That is no hue shift: no hue-equivariant network undoes it.
:func:`balance_light` does.

Values outside [0, 1] are continued along the curve, so that nothing is lost unless ``clip`` is
set. Numbers are checked; the values of tensors are not, so that a GPU never waits.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from equicolor import _checks

__all__ = [
    "balance_light",
    "cast_light",
    "change_brightness",
    "change_gamma",
    "change_saturation",
    "linear_to_srgb",
    "scale_channels",
    "srgb_to_linear",
]

# The curve of IEC 61966-2-1: a line near black, a power above. The standard rounds the place
# where they meet; here it is exact, so that the curve has no step and an exact inverse.
_SLOPE, _OFFSET, _EXPONENT = 12.92, 0.055, 2.4
_JOINT = 0.003130668442500555  # in linear light

LUMA = 0.299, 0.587, 0.114  # Rec. 601, the grey of Pillow and torchvision


def srgb_to_linear(images: Tensor) -> Tensor:
    r"""Undo the sRGB curve: from the values of an image to amounts of light.

    Args:
        images: RGB images :math:`[..., 3, H, W]`; values below 0 lie on the line that the curve
            begins with.

    Returns:
        Images of the same shape and dtype.

    Example:
        >>> grey = torch.full((3, 1, 1), 0.5, dtype=torch.float64)
        >>> [round(value, 4) for value in srgb_to_linear(grey).flatten().tolist()]
        [0.214, 0.214, 0.214]
    """
    return _decode(_checks.precise_images("srgb_to_linear", images)).to(images.dtype)


def linear_to_srgb(images: Tensor) -> Tensor:
    r"""Apply the sRGB curve: from amounts of light to the values of an image.

    Args:
        images: linear RGB images :math:`[..., 3, H, W]`.

    Returns:
        Images of the same shape and dtype. Gradients are finite, also at black.

    Example:
        >>> light = torch.tensor([0.0, 0.214, 1.0], dtype=torch.float64).view(3, 1, 1)
        >>> [round(value, 4) for value in linear_to_srgb(light).flatten().tolist()]
        [0.0, 0.5, 1.0]
    """
    return _encode(_checks.precise_images("linear_to_srgb", images)).to(images.dtype)


def scale_channels(images: Tensor, gains: Sequence[float] | Tensor, clip: bool = False) -> Tensor:
    r"""Multiply the channels of images by ``gains`` in linear RGB, as a coloured light does.

    Args:
        images: RGB images :math:`[..., 3, H, W]` in [0, 1].
        gains: of red, green and blue, at least 0: three for all images, or three per image, of
            shape :math:`[..., 3]`.
        clip: limit values to [0, 1], as a camera does. What is cut off is lost.

    Returns:
        Images of the same shape and dtype; differentiable in both arguments.

    Example:
        >>> grey = torch.full((3, 1, 1), 0.5, dtype=torch.float64)
        >>> warm = scale_channels(grey, (1.5, 1.0, 0.5))
        >>> [round(value, 3) for value in warm.flatten().tolist()]
        [0.602, 0.5, 0.361]
        >>> bool((scale_channels(warm, (1 / 1.5, 1.0, 2.0)) - grey).abs().max() < 1e-15)
        True
    """
    exact = _checks.precise_images("scale_channels", images)
    factors = _checks.per_image("scale_channels", "triple of gains", gains, exact, each=(3,))
    if not isinstance(gains, Tensor) and min(gains) < 0:
        raise ValueError(f"scale_channels expects gains of at least 0, got {gains!r}")
    return _scale(exact, factors.to(exact), clip).to(images.dtype)


def cast_light(
    images: Tensor, turns: float | Tensor, strength: float | Tensor, clip: bool = False
) -> Tensor:
    r"""Give images the cast of a coloured light, as a wrong white balance does.

    The gain of channel :math:`c` is :math:`1 + s \cos(2 \pi (v - c / 3))` in linear RGB, for a
    light of hue :math:`v` and strength :math:`s`. The mean of the three gains is 1: the light
    changes its colour and keeps its strength.

    Args:
        images: RGB images :math:`[..., 3, H, W]` in [0, 1].
        turns: the hue of the light: 0 is red, 1/3 green, 2/3 blue. One for all images, or one per
            image, of shape :math:`[...]`.
        strength: from 0, white light, to 1, light of one pure hue. One for all images, or one per
            image.
        clip: limit values to [0, 1].

    Returns:
        Images of the same shape and dtype; differentiable in all tensors.

    Example:
        >>> grey = torch.full((3, 1, 1), 0.5, dtype=torch.float64)
        >>> [round(value, 3) for value in cast_light(grey, 0.0, 0.3).flatten().tolist()]
        [0.564, 0.464, 0.464]
    """
    exact = _checks.precise_images("cast_light", images)
    hue = _checks.per_image("cast_light", "number of turns", turns, exact).fmod(1).to(exact)
    amount = _checks.per_image("cast_light", "strength", strength, exact).to(exact)
    if not isinstance(strength, Tensor) and not 0 <= strength <= 1:
        raise ValueError(f"cast_light expects a strength from 0 to 1, got {strength!r}")
    channels = torch.arange(3, dtype=exact.dtype, device=exact.device) / 3
    gains = 1 + amount[..., None] * torch.cos(2 * math.pi * (hue[..., None] - channels))
    return _scale(exact, gains, clip).to(images.dtype)


def change_brightness(images: Tensor, stops: float | Tensor, clip: bool = False) -> Tensor:
    r"""Change the exposure of images: twice the light for every stop.

    Args:
        images: RGB images :math:`[..., 3, H, W]` in [0, 1].
        stops: powers of two that linear RGB is multiplied by: one for all images, or one per
            image, of shape :math:`[...]`.
        clip: limit values to [0, 1].

    Returns:
        Images of the same shape and dtype; differentiable in both arguments.

    Example:
        >>> grey = torch.full((3, 1, 1), 0.5, dtype=torch.float64)
        >>> [round(change_brightness(grey, stops).max().item(), 3) for stops in (-1, 0, 1)]
        [0.361, 0.5, 0.686]
    """
    exact = _checks.precise_images("change_brightness", images)
    exponent = _checks.per_image("change_brightness", "number of stops", stops, exact)
    return _scale(exact, torch.exp2(exponent.to(exact))[..., None], clip).to(images.dtype)


def change_gamma(images: Tensor, gamma: float | Tensor) -> Tensor:
    r"""Raise the values of images to the power ``gamma``, as they are, not in linear RGB.

    Args:
        images: RGB images :math:`[..., 3, H, W]` in [0, 1]; values below 0 become 0.
        gamma: above 0. Below 1 it lightens, above 1 it darkens. One for all images, or one per
            image, of shape :math:`[...]`.

    Returns:
        Images of the same shape and dtype. Gradients are finite: at black they are 0, although
        those of the power may be infinite.

    Example:
        >>> grey = torch.full((3, 1, 1), 0.25)
        >>> change_gamma(grey, 0.5).flatten().tolist()
        [0.5, 0.5, 0.5]
    """
    exact = _checks.precise_images("change_gamma", images)
    power = _checks.per_image("change_gamma", "gamma", gamma, exact).to(exact)
    if not isinstance(gamma, Tensor) and gamma <= 0:
        raise ValueError(f"change_gamma expects a gamma above 0, got {gamma!r}")
    black = exact < torch.finfo(exact.dtype).tiny
    raised = torch.where(black, 1, exact).pow(power[..., None, None, None])
    return torch.where(black, 0, raised).to(images.dtype)


def change_saturation(images: Tensor, factor: float | Tensor, clip: bool = False) -> Tensor:
    r"""Move colours away from their grey, or towards it, as photo editors do.

    The grey is the luma of Rec. 601, computed on the values as they are, as in Pillow and
    torchvision.

    Args:
        images: RGB images :math:`[..., 3, H, W]` in [0, 1].
        factor: multiplies the distance from grey: 0 gives grey images, 1 changes nothing. One for
            all images, or one per image, of shape :math:`[...]`.
        clip: reproject colours that left the RGB cube into [0, 1].

    Returns:
        Images of the same shape and dtype; differentiable in both arguments.

    Example:
        >>> red = torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1)
        >>> [round(value, 4) for value in change_saturation(red, 0.5).flatten().tolist()]
        [0.6495, 0.1495, 0.1495]
    """
    exact = _checks.precise_images("change_saturation", images)
    amount = _checks.per_image("change_saturation", "factor", factor, exact).to(exact)
    if not isinstance(factor, Tensor) and factor < 0:
        raise ValueError(f"change_saturation expects a factor of at least 0, got {factor!r}")
    channels = zip(LUMA, exact.unbind(-3), strict=True)
    gray = torch.stack([weight * channel for weight, channel in channels], -3).sum(-3, True)
    changed = gray + amount[..., None, None, None] * (exact - gray)
    return (changed.clamp(0, 1) if clip else changed).to(images.dtype)


def balance_light(images: Tensor, power: float = 1.0) -> Tensor:
    r"""Remove the colour and the strength of the light from every image.

    Every channel is divided by its norm over the pixels in linear RGB. This assumes that the
    average of all pixels is grey (*grey world*, ``power=1``), or that of the brighter ones
    (*shades of grey*, ``power=6``). So gains of the channels (:func:`scale_channels`), even a
    common one, change nothing in the result, as long as they clip nothing.

    The division leaves the overall scale open. The largest value of an image becomes 1: this never
    clips, and of the scales tried (also fixed means, norms and quantiles) it changed photographs
    least, or nearly so.

    Args:
        images: RGB images :math:`[..., 3, H, W]` in [0, 1]; values below 0 are taken as 0.
        power: :math:`p` of the norm :math:`(\operatorname{mean} |x|^p)^{1/p}`, at least 1.

    Returns:
        Images of the same shape and dtype in [0, 1]. A black channel stays black. Values and
        gradients are finite, also for black images and images of one colour.

    Example:
        >>> images = 0.5 * torch.rand(2, 3, 8, 8, dtype=torch.float64)
        >>> balanced = balance_light(images, power=6)
        >>> reddish = scale_channels(images, (1.8, 0.9, 0.6))
        >>> bool((balance_light(reddish, power=6) - balanced).abs().max() < 1e-12)
        True
    """
    exact = _checks.precise_images("balance_light", images)
    if isinstance(power, bool) or not isinstance(power, (int, float)):
        raise TypeError(f"balance_light expects power as a number, got {power!r}")
    if not 1 <= power < math.inf:
        raise ValueError(f"balance_light expects a finite power of at least 1, got {power!r}")
    linear = _decode(exact).clamp(min=0)
    # Powers of values near 1 neither overflow nor vanish. The maximum cancels below, in the
    # gradient too.
    relative = linear / _divisor(linear.detach().amax((-2, -1), keepdim=True))
    norm = _divisor(relative.pow(power).mean((-2, -1), keepdim=True)).pow(1 / power)
    balanced = relative / norm
    return _encode(balanced / _divisor(balanced.amax((-3, -2, -1), keepdim=True))).to(images.dtype)


def _scale(images: Tensor, gains: Tensor, clip: bool) -> Tensor:
    """Images with gains ``[..., 3]`` or ``[..., 1]`` in linear RGB."""
    scaled = _encode(_decode(images) * gains[..., None, None])
    return scaled.clamp(0, 1) if clip else scaled


def _decode(images: Tensor) -> Tensor:
    joint = _SLOPE * _JOINT
    power = ((images.clamp(min=joint) + _OFFSET) / (1 + _OFFSET)).pow(_EXPONENT)
    return torch.where(images <= joint, images / _SLOPE, power)


def _encode(light: Tensor) -> Tensor:
    power = light.clamp(min=_JOINT).pow(1 / _EXPONENT)
    # Written like this, 1 gives exactly 1.
    return torch.where(light <= _JOINT, light * _SLOPE, power + _OFFSET * (power - 1))


def _divisor(x: Tensor) -> Tensor:
    """``x``, or 1 where it is so small that quotients or their gradients could overflow."""
    return torch.where(x < torch.finfo(x.dtype).tiny ** 0.5, 1, x)
