"""The rows of equivariant units: which are drawn, and how their hues are measured."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from equicolor.analysis.activations import Batches, TopActivations
from equicolor.analysis.hue_rows import HueRows, hue_rows, mean_colour
from equicolor.analysis.neuron_features import NeuronFeatures, neuron_features
from equicolor.reporting.progress import Progress

__all__ = ["MEASURED", "SELECTIVE", "UnitRows", "by_selectivity", "selective_channels", "unit_rows"]

SELECTIVE = 0.25  # channels from here on are called selective
MEASURED = 48  # channels of a layer whose hues are measured, unless another number is asked for
_LIMIT = 128  # pixels of a frame at most, and those of the image: late units see more


class UnitRows(NamedTuple):
    """Neuron features of channels of a layer, and the hues of their rows.

    Attributes:
        drawn: of all channels asked for.
        hues: of those to measure, in their order; None if there are none.
    """

    drawn: NeuronFeatures
    hues: HueRows | None


def by_selectivity(indices: Tensor, alive: Tensor) -> list[int]:
    """The channels that are ever active, the most colour selective first.

    Selectivity ``indices`` and ``alive`` are :math:`[C, n]`; the mean over rotations counts.

    Example:
        >>> import torch
        >>> indices, alive = torch.tensor([[0.1], [0.9], [0.0]]), torch.tensor([[1], [1], [0]])
        >>> by_selectivity(indices, alive.bool())
        [1, 0]
    """
    active = alive.any(1).nonzero().flatten()
    order = indices.mean(1)[active].argsort(descending=True, stable=True)
    return [int(channel) for channel in active[order]]


def selective_channels(indices: Tensor, alive: Tensor) -> list[int]:
    """Those of :func:`by_selectivity` whose selectivity is :data:`SELECTIVE` or more."""
    mean = indices.mean(1)
    return [channel for channel in by_selectivity(indices, alive) if mean[channel] >= SELECTIVE]


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

    Hues are measured against the mean colour of the measured channels, whatever else is drawn,
    so that the same channels always give the same numbers. Frames are cut to the middle 128
    pixels, or to the size of the images if that is less.

    Example:
        >>> import torch
        >>> from equicolor.analysis import top_activations
        >>> from equicolor.models import cecnn
        >>> network, images = cecnn(width=4), [torch.rand(8, 3, 28, 28)]
        >>> found = top_activations(network, images, ["blocks.0.2"], top=4)["blocks.0.2"]
        >>> rows = unit_rows(network, images, found, [0, 2], [3], size=(28, 28))
        >>> rows.drawn.channels, rows.hues.hues.shape
        ((3, 0, 2), torch.Size([2, 3]))
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
