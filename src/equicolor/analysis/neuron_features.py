r"""Neuron features: what a unit looks for, as an image (paper, figure 5).

After Rafegas and Vanrell (2018): the weighted mean of the crops that excite a unit most, each
crop its receptive field, :math:`\sum_j w_j c_j / \sum_j w_j` with :math:`w_j = a_j / a_1`. For an
equivariant unit there is one for each rotation; they should show one shape in n colours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.analysis.activations import (
    Batches,
    TopActivations,
    select_images,
    top_activations,
)
from equicolor.analysis.receptive_field import ReceptiveField
from equicolor.reporting.progress import Progress
from equicolor.testing import ACTIONS

__all__ = ["ROWS", "NeuronFeatures", "neuron_features"]

ROWS = ("dataset", "orbit")


@dataclass(frozen=True, eq=False)
class NeuronFeatures:
    """The neuron features of some channels of a layer.

    Attributes:
        layer: its name.
        channels: which :math:`U` of its channels.
        features: float32 :math:`[U, n, 3, h, w]`, a row for each rotation; black for units that
            are never active.
        crops: the strongest :math:`m` crops of each, :math:`[U, n, m, 3, h, w]`; black where the
            frame reaches outside the image.
        values: their activations, float32 :math:`[U, n, m]`.
    """

    layer: str
    channels: tuple[int, ...]
    features: Tensor
    crops: Tensor
    values: Tensor

    def only(self, channels: Sequence[int]) -> "NeuronFeatures":
        """Those of some of the channels.

        Example:
            >>> tables = torch.rand(2, 1, 3, 4, 4), torch.rand(2, 1, 5, 3, 4, 4), torch.ones(2, 1)
            >>> NeuronFeatures("relu", (4, 7), *tables).only([7]).features.shape
            torch.Size([1, 1, 3, 4, 4])
        """
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
        network: takes images :math:`[B, 3, H, W]` in [0, 1]; looked at in eval mode.
        batches: images of one size, or pairs of images and labels; gone through
            twice, and the same both times.
        layer: a name as of :func:`equicolor.analysis.find_layers`.
        units: which channels; all by default.
        top: the number of images :math:`N` to average.
        crops: how many of them to give as well.
        limit: the largest height and width of a frame; larger ones are cut around their centre.
            By default none: frames of late layers may be mostly outside the image.
        rows: what the rows of an equivariant unit are averages of. ``"dataset"``: each rotation
            of the images that excite it most, as the paper draws it. ``"orbit"``: all of the
            images that excite the channel most in any rotation, turned to the hue of each
            row. That is what ``"dataset"`` would give for data that hold every image in
            every hue.
        action: what turning the hue is, for ``"orbit"``: ``"hsv"`` or ``"rgb"``, as the
            network's lifting.
        found: of :func:`equicolor.analysis.top_activations` for this layer, if that has been
            done; then ``top`` is that.
        autocast: compute with torch's autocast to this dtype.
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
    for name, value in (("crops", crops), ("limit", 1 if limit is None else limit)):
        _checks.positive_int(name, value)
    if found is None:
        found = top_activations(
            network, batches, [layer], top=top, autocast=autocast, progress=progress
        )[layer]
    channels = _channels(units, found)
    height, width = _size(found.layer.field, channels, limit)
    shape = len(channels), found.layer.rotations
    features: Tensor | None = None
    strongest = torch.zeros(*shape, crops, 3, height, width)
    values, weights = torch.zeros(*shape, crops), torch.zeros(*shape)
    by_image: dict[int, list[_Entry]] = {}
    for entry in _entries(found, channels, rows == "orbit"):
        by_image.setdefault(entry.image, []).append(entry)
    done, which = 0, torch.tensor(sorted(by_image), dtype=torch.int64)
    for numbers, images in select_images(batches, which):
        if features is None:  # on the device of the images, so that crops stay there
            features = torch.zeros(*shape, 3, height, width, device=images.device)
        for number, image in zip(numbers.tolist(), images, strict=True):
            for entry in by_image[number]:
                box = found.layer.field.frame(channels[entry.unit], entry.position)
                crop = _cut(image, box, height, width)
                if entry.turns:
                    crop = ACTIONS[action](crop, entry.turns)
                place = entry.unit, entry.row
                features[place] += entry.weight * crop
                weights[place] += entry.weight
                if entry.rank < crops:
                    strongest[(*place, entry.rank)] = crop
                    values[(*place, entry.rank)] = entry.value
        done += len(numbers)
        if progress:
            progress(done, len(which))
    total = torch.zeros(*shape, 3, height, width) if features is None else features.cpu()
    total /= weights.clamp(min=torch.finfo(torch.float32).tiny)[..., None, None, None]
    return NeuronFeatures(found.layer.name, channels, total, strongest, values)


class _Entry(NamedTuple):
    """A crop and where it goes."""

    image: int
    position: int
    unit: int  # place among the channels asked for
    row: int
    rank: int
    value: float
    weight: float
    turns: float


def _entries(found: TopActivations, channels: Sequence[int], orbit: bool) -> Iterator[_Entry]:
    """The crops of every unit and row; of an orbit, every row has those of all rotations."""
    rotations, top = found.values.shape[1:]
    for unit, channel in enumerate(channels):
        tables = (found.values, found.images, found.positions)
        values, images, positions = (table[channel].flatten().tolist() for table in tables)
        # Of equal ones the first comes first: sorted is stable, in reverse too.
        strongest = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:top]
        for row in range(rotations):
            order = strongest if orbit else range(row * top, (row + 1) * top)
            for rank, index in enumerate(order):
                if values[index] <= 0:
                    break
                weight = values[index] / values[order[0]]
                # Rotation k is active on x as rotation 0 is on x turned by -k/n.
                turns = (row - index // top) / rotations
                place = images[index], positions[index], unit, row, rank
                yield _Entry(*place, values[index], weight, turns)


def _channels(units: Sequence[int] | None, found: TopActivations) -> tuple[int, ...]:
    count = found.layer.channels
    channels = tuple(range(count)) if units is None else tuple(units)
    strangers = [unit for unit in channels if not 0 <= unit < count]
    if strangers or not channels:
        raise ValueError(
            f"units must be channels of {found.layer.name!r}, 0 to {count - 1}; "
            f"got {list(channels)}"
        )
    return channels


def _size(field: ReceptiveField, channels: Sequence[int], limit: int | None) -> tuple[int, int]:
    """One frame for all: the largest, within the limit."""
    sizes = zip(*(field.size(channel) for channel in channels), strict=True)
    height, width = (max(size) if limit is None else min(max(size), limit) for size in sizes)
    return height, width


def _cut(image: Tensor, box: tuple[int, int, int, int], height: int, width: int) -> Tensor:
    """Cut ``[3, h, w]`` around the middle of a box; black outside the image."""
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
