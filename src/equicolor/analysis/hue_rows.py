"""Whether the rows of an equivariant unit's neuron feature are one shape in n colours.

Pages about networks and the paper's experiments choose, draw and measure units alike, from here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equicolor._text import brief_repr
from equicolor.analysis.activations import Batches, TopActivations
from equicolor.analysis.neuron_features import NeuronFeatures, neuron_features
from equicolor.reporting.progress import Progress

SELECTIVE = 0.25  # the least index of channels that are called selective
MEASURED = 48  # channels of a layer whose hues are measured by default
_LIMIT = 128  # pixels of a frame at most, because late units see large parts of images


def chroma(images: Tensor) -> Tensor:
    r"""The colours of images as complex numbers :math:`R + G\omega + B\omega^2`.

    With :math:`\omega = e^{2\pi i/3}`: the angle is the hue and the length the chroma, 0 for
    greys. Rotating colours about the grey axis by ``turns`` multiplies the number by
    :math:`e^{2\pi i \cdot turns}`. Images :math:`[..., 3, H, W]` give :math:`[..., H, W]`.
    """
    angles = torch.arange(3, device=images.device) * (2 * math.pi / 3)
    roots = torch.polar(torch.ones_like(angles), angles)
    red, green, blue = images.float().unbind(-3)
    return red * roots[0] + green * roots[1] + blue * roots[2]


def mean_colour(features: Tensor) -> Tensor:
    """The mean colour of neuron features :math:`[U, n, 3, h, w]`, :math:`[3]`.

    Over the units of a layer it is the colour of the background: the hues that units look for
    cancel, since every unit has all rotations. Rotations that are never active do not count.
    """
    return features[_active(features)].float().mean((0, 2, 3))


def _active(features: Tensor) -> Tensor:
    """Which rows are not black, bool ``[U, n]``: those of rotations that are ever active."""
    return (features != 0).flatten(2).any(2)


@dataclass(frozen=True, eq=False)
class HueRows:
    """The hues of the rows of neuron features.

    Attributes:
        hues: the hue of the mean colour of every row in degrees, float32 :math:`[U, n]`; colourful
            pixels count more. NaN, here and below, for a row without colour, such as that of a
            rotation that is never active.
        chroma: the length of the mean colour, :math:`[U, n]`, from 0 for grey to 1.
        differences: the rotation of row 0 that is nearest to row k, pixel for pixel, in degrees
            from -180 to 180.
        deviations: the differences minus the expected :math:`360 k / n`, from -180 to 180.
    """

    hues: Tensor
    chroma: Tensor
    differences: Tensor
    deviations: Tensor

    __repr__ = brief_repr

    def median_deviation(self, chosen: Tensor | None = None) -> float:
        """The median of the absolute deviations of rows 1 to n - 1, in degrees.

        Args:
            chosen: which units count, bool :math:`[U]`; all by default.

        Returns:
            NaN if there are no such rows. Rows of unrelated hues would give 90.
        """
        deviations = self.deviations if chosen is None else self.deviations[chosen]
        return float(deviations[:, 1:].abs().nanmedian())


def hue_rows(features: Tensor, background: Tensor | None = None) -> HueRows:
    """Measure the hues of the rows of neuron features.

    Args:
        features: :math:`[U, n, 3, h, w]`, of :func:`equicolor.analysis.neuron_features`.
        background: a colour that all images share, :math:`[3]`, such as the mean over many units;
            it is subtracted before hues are measured. None by default.

    Example:
        >>> from equicolor.color import rotate_hue
        >>> row = torch.rand(5, 3, 8, 8) * torch.tensor([1.0, 0.6, 0.3]).view(3, 1, 1)
        >>> rows = torch.stack([rotate_hue(row, k / 5) for k in range(5)], 1)
        >>> measured = hue_rows(rows)
        >>> [round(x) for x in measured.differences[0].tolist()]
        [0, 72, 144, -144, -72]
        >>> measured.median_deviation() < 0.01
        True
    """
    if features.ndim != 5 or features.shape[2] != 3:
        raise ValueError(
            f"hue_rows expects neuron features [U, n, 3, h, w], got {list(features.shape)}"
        )
    colours = chroma(features)
    if background is not None:
        colours = colours - chroma(background.view(3, 1, 1).to(features))
        colours = colours * _active(features)[..., None, None]
    means = colours.mean((-2, -1))
    # The rotation with the least squared difference, from a sum: no angle has to be unwrapped.
    rotations = (colours * colours[:, :1].conj()).mean((-2, -1))
    expected = torch.arange(features.shape[1], device=features.device) / features.shape[1]
    errors = rotations * torch.polar(torch.ones_like(expected), -2 * math.pi * expected)
    return HueRows(_degrees(means) % 360, means.abs(), _degrees(rotations), _degrees(errors))


def _degrees(numbers: Tensor) -> Tensor:
    return torch.where(numbers.abs() > 0, torch.rad2deg(numbers.angle()), math.nan)


class UnitRows(NamedTuple):
    """Neuron features of channels, and the hues of the measured ones; None if none is."""

    drawn: NeuronFeatures
    hues: HueRows | None


def by_selectivity(indices: Tensor, alive: Tensor, least: float = -math.inf) -> list[int]:
    """The channels that are ever active, the most colour selective first.

    Selectivity ``indices`` and ``alive`` are :math:`[C, n]`. The mean over rotations counts; it
    must be at least ``least``.

    Example:
        >>> indices, alive = torch.tensor([[0.1], [0.9], [0.0]]), torch.tensor([[1], [1], [0]])
        >>> by_selectivity(indices, alive.bool()), by_selectivity(indices, alive.bool(), SELECTIVE)
        ([1, 0], [1])
    """
    mean = indices.mean(1)
    active = (alive.any(1) & (mean >= least)).nonzero().flatten()
    order = mean[active].argsort(descending=True, stable=True)
    return [int(channel) for channel in active[order]]


def unit_rows(
    network: nn.Module,
    images: Batches,
    found: TopActivations,
    measured: Sequence[int],
    drawn: Sequence[int] = (),
    *,
    size: tuple[int, int],
    progress: Progress | None = None,
) -> UnitRows:
    """Draw channels of a layer, and measure the hues of the rows of some.

    Hues are measured against the mean colour of the measured channels alone, so that the same
    channels always give the same numbers. Frames are cut to the middle 128 pixels, or to the
    size of the images if that is less.
    """
    features = neuron_features(
        network,
        images,
        found.layer.name,
        list(dict.fromkeys([*drawn, *measured])),
        limit=min(_LIMIT, *size),
        found=found,
        progress=progress,
    )
    if not measured:
        return UnitRows(features, None)
    rows = features.only(measured).features
    return UnitRows(features, hue_rows(rows, mean_colour(rows)))
