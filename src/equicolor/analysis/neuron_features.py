r"""Neuron features: what a unit looks for, as an image (paper, figure 5).

After Rafegas and Vanrell (2018): the weighted mean of the crops that excite a unit most, each
crop its receptive field, :math:`\sum_j w_j c_j / \sum_j w_j` with :math:`w_j = a_j / a_1`. For an
equivariant unit there is one for each rotation; they should show one shape in n colours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equicolor import _checks
from equicolor._text import brief_repr
from equicolor.analysis.activations import Batches, TopActivations, select_images, top_activations
from equicolor.reporting.progress import Progress
from equicolor.testing import ACTIONS

ROWS = ("dataset", "orbit")


@dataclass(frozen=True, eq=False)
class NeuronFeatures:
    """The neuron features of some channels of a layer.

    Attributes:
        layer: its name.
        channels: the numbers of these :math:`U` channels.
        features: float32 :math:`[U, n, 3, h, w]`, a row for each rotation; black for units that
            are never active.
        crops: the :math:`m` strongest crops of each unit, :math:`[U, n, m, 3, h, w]`; black where
            the frame reaches outside the image.
        values: the activations of these crops, float32 :math:`[U, n, m]`.
    """

    layer: str
    channels: tuple[int, ...]
    features: Tensor
    crops: Tensor
    values: Tensor

    __repr__ = brief_repr

    def only(self, channels: Sequence[int]) -> "NeuronFeatures":
        """The neuron features of some of the channels."""
        places = [self.channels.index(channel) for channel in channels]
        tables = (table[places] for table in (self.features, self.crops, self.values))
        return NeuronFeatures(self.layer, tuple(channels), *tables)


def neuron_features(
    network: nn.Module,
    batches: Batches,
    layer: str,
    units: Sequence[int] | None = None,
    *,
    top: int = 50,
    crops: int = 3,
    limit: int | None = None,
    rows: str = "dataset",
    action: str = "hsv",
    found: TopActivations | None = None,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
) -> NeuronFeatures:
    """Draw what units of a layer look for.

    Args:
        network, autocast: as in :func:`equicolor.analysis.top_activations`.
        batches: images of one size, or pairs of images and labels; read twice, and the same both
            times.
        layer: a name as of :func:`equicolor.analysis.find_layers`.
        units: which channels; all by default.
        top: the number of images :math:`N` to average.
        crops: how many of the strongest crops to return as well.
        limit: the largest height and width of a frame; larger ones are cut to their centre. By
            default there is none, and frames of late layers may be mostly outside the image.
        rows: how the rows of an equivariant unit are made. ``"dataset"``: each is the mean over
            the images that excite this rotation most, as the paper draws it. ``"orbit"``: each is
            the mean over the images that excite the channel most in any rotation, shifted to the
            hue of the row. ``"dataset"`` would give the same for data that hold every image in
            every hue.
        action: the kind of hue shift for ``"orbit"``, ``"hsv"`` or ``"rgb"``, as in the network's
            lifting.
        found: the result of :func:`equicolor.analysis.top_activations` for this layer, if there
            is one; it decides ``top``.
        progress: called with (steps done, steps in all if known).

    Example:
        >>> red = nn.Conv2d(3, 1, 1, bias=False)
        >>> red.weight.data = torch.tensor([1.0, -1.0, -1.0]).view(1, 3, 1, 1)
        >>> network = nn.Sequential(red, nn.ReLU())
        >>> images = torch.zeros(4, 3, 2, 2)
        >>> images[1, 0, 0, 1], images[2, 0, 1, 1] = 1.0, 0.5  # spots of red
        >>> drawn = neuron_features(network, [images], "1", top=2)
        >>> [round(x, 4) for x in drawn.features.flatten().tolist()]  # (1 + 1/2 · 1/2) / (1 + 1/2)
        [0.8333, 0.0, 0.0]
    """
    _checks.one_of("rows", rows, ROWS)
    _checks.one_of("action", action, tuple(ACTIONS))
    _checks.positive_int("crops", crops)
    if limit is not None:
        _checks.positive_int("limit", limit)
    if found is None:
        found = top_activations(
            network, batches, [layer], top=top, autocast=autocast, progress=progress
        )[layer]
    layer_channels = range(found.layer.channels)
    channels = tuple(layer_channels if units is None else units)
    if not channels or not set(channels) <= set(layer_channels):
        raise ValueError(
            f"units must be channels of {found.layer.name!r}, 0 to {layer_channels[-1]}; "
            f"got {list(channels)}"
        )
    field = found.layer.field
    # All channels have one frame size: the largest, within the limit.
    sizes = zip(*map(field.size, channels), strict=True)
    height, width = (max(size) if limit is None else min(max(size), limit) for size in sizes)
    values, numbers, positions, turns = _entries(found, channels, orbit=rows == "orbit")
    shape = values.shape[:2]
    weights = values.double() / values[..., :1].double()
    features, total_weights = torch.zeros(*shape, 3, height, width), torch.zeros(shape)
    strongest = torch.zeros(*shape, crops, 3, height, width)
    active = values > 0
    which, done = numbers[active].unique(), 0
    for part, images in select_images(batches, which):
        features = features.to(images.device)  # where the crops are
        for number, image in zip(part, images, strict=True):
            for unit, row, rank in (active & (numbers == number)).nonzero().tolist():
                entry = unit, row, rank
                box = field.frame(channels[unit], int(positions[entry]))
                crop = _cut(image, box, height, width)
                if turns[entry]:
                    crop = ACTIONS[action](crop, float(turns[entry]))
                weight = float(weights[entry])
                features[unit, row] += weight * crop
                total_weights[unit, row] += weight
                if rank < crops:
                    strongest[entry] = crop
        done += len(part)
        if progress:
            progress(done, len(which))
    features = features.cpu()
    features /= total_weights.clamp(min=torch.finfo(torch.float32).tiny)[..., None, None, None]
    values = F.pad(values, (0, max(crops - values.shape[2], 0)))[..., :crops]
    return NeuronFeatures(found.layer.name, channels, features, strongest, values)


def _entries(found: TopActivations, channels: Sequence[int], *, orbit: bool) -> tuple[Tensor, ...]:
    """Activations, numbers of images, positions and hue shifts of all crops, ``[U, n, N]`` each.

    In an orbit, every row has the strongest images of all rotations, shifted to its hue.
    """
    tables = found.values, found.images, found.positions
    values, numbers, positions = (table[list(channels)] for table in tables)
    if not orbit:
        return values, numbers, positions, torch.zeros_like(values)
    _, rotations, top = values.shape
    order = values.flatten(1).argsort(descending=True, stable=True)[:, :top]
    strongest = (table.flatten(1).gather(1, order) for table in (values, numbers, positions))
    # Rotation k responds to x as rotation 0 does to x shifted by -k/n.
    turns = (torch.arange(rotations).view(-1, 1) - (order // top).unsqueeze(1)).double() / rotations
    return *(table.unsqueeze(1).expand(-1, rotations, -1) for table in strongest), turns


def _cut(image: Tensor, box: tuple[int, int, int, int], height: int, width: int) -> Tensor:
    """Cut ``[3, height, width]`` around the middle of a box; black outside the image."""
    top, left, bottom, right = box
    top, left = (top + bottom - height) // 2, (left + right - width) // 2
    rows, columns = image.shape[-2:]
    y = slice(max(top, 0), min(top + height, rows))
    x = slice(max(left, 0), min(left + width, columns))
    crop = image.new_zeros(3, height, width)
    if y.start < y.stop and x.start < x.stop:
        inside = slice(y.start - top, y.stop - top), slice(x.start - left, x.stop - left)
        crop[:, *inside] = image[:, y, x]
    return crop
