"""Neuron features of a trained network as one picture (paper, Figure 5), and their hues."""

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from equicolor.analysis import (
    NeuronFeatures,
    RandomHues,
    find_layers,
    selectivity,
    stage_ends,
    top_activations,
)
from equicolor.analysis.activations import Batches, images_of
from equicolor.analysis.hue_rows import HueRows
from equicolor.analysis.inspection.figures import photo_png, tiles
from equicolor.analysis.unit_rows import MEASURED, by_selectivity, selective_channels, unit_rows
from equicolor.results import Row

__all__ = ["measure_and_draw", "sheet"]


def measure_and_draw(
    network: nn.Module,
    pictures: Batches,
    *,
    top: int = 50,
    units: int = 2,
    measured_units: int = MEASURED,
    autocast: torch.dtype | None = None,
) -> tuple[list[Row], bytes]:
    """Draw the most colour-selective units of every stage, and measure the hues of their rows.

    Args:
        network: an equivariant network, on the pictures' device.
        pictures: batches of one size, to go through several times.
        top: pictures to average.
        units: how many of a stage to draw.
        measured_units: of how many of a stage, the most selective ones, to measure the hues.
        autocast: compute with torch's autocast to this dtype.

    Returns:
        A row for each stage: how many channels are ``selective``, and by how many degrees the hue
        of row k less that of row 0 differs from 360 k / n, the median over selective channels and
        rows (None if there are none): ``hue_deviation`` among pictures in random hues, where every
        rotation finds what it looks for, ``hue_deviation_data`` among the pictures as they are.
        And the sheet as PNG.
    """
    images = images_of(next(iter(pictures)))
    size = images.shape[-2], images.shape[-1]
    layers = find_layers(network, size)
    ends = [name for name in stage_ends(layers) if layers[name].rotations > 1]
    if not ends:
        raise ValueError("the network has no equivariant layers: rows need rotations")
    sources: dict[str, Batches] = {"": pictures, "random hues": RandomHues(pictures)}
    found = {
        which: top_activations(network, source, ends, top=top, autocast=autocast)
        for which, source in sources.items()
    }
    index = selectivity(network, pictures, found=found[""], autocast=autocast)
    rows, drawn, scores = [], {}, {}
    for name in ends:
        alive = found[""][name].alive
        order = (by_selectivity(index.layers[name], alive) or list(range(len(alive))))[:units]
        selective = selective_channels(index.layers[name], alive)
        measured = selective[:measured_units]
        made = {
            which: unit_rows(network, source, found[which][name], measured, order, size=size)
            for which, source in sources.items()
        }
        score = scores[name] = index.layers[name].mean(1)  # over the rotations
        rows.append(
            {
                "layer": name,
                "units": len(score),
                "selective": len(selective),
                "selectivity": round(float(score.mean()), 4),
                "hue_deviation": _deviation(made["random hues"].hues),
                "hue_deviation_data": _deviation(made[""].hues),
                "hue_channels": len(measured),
                "top": top,
            }
        )
        drawn[name] = {which: one.drawn.only(order) for which, one in made.items()}
    return rows, photo_png(sheet(drawn, scores))


def _deviation(hues: HueRows | None) -> float | None:
    return None if hues is None else round(hues.median_deviation(), 2)


def sheet(
    drawn: Mapping[str, Mapping[str, NeuronFeatures]], scores: Mapping[str, Tensor]
) -> Figure:
    """Neuron features with the crops that excite each unit most, a row for each rotation.

    Args:
        drawn: the same channels of each layer among some pictures, by a word for those (empty
            for the data as they are).
        scores: colour selectivity of all channels of each layer.

    Returns:
        A line of blocks for each layer, a channel's next to each other; in a block, a row is a
        rotation: the feature, and beside it the crops.

    Example:
        >>> features, crops = torch.rand(1, 3, 3, 8, 8), torch.rand(1, 3, 3, 3, 8, 8)
        >>> unit = NeuronFeatures("relu", (4,), features, crops, torch.ones(1, 3, 3))
        >>> len(sheet({"relu": {"": unit, "random hues": unit}}, {"relu": torch.rand(8)}).axes)
        2
    """
    everything = [features for sources in drawn.values() for features in sources.values()]
    columns = max(len(s) * len(next(iter(s.values())).channels) for s in drawn.values())
    rotations = max(features.features.shape[1] for features in everything)
    figure = Figure(
        figsize=(3.4 * columns, (0.66 * rotations + 0.4) * len(drawn)), layout="constrained"
    )
    grid = figure.subplots(len(drawn), columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for line, (name, sources) in zip(grid, drawn.items(), strict=True):
        for number, (which, features) in enumerate(sources.items()):
            for place, channel in enumerate(features.channels):
                axes = line[place * len(sources) + number]
                block = torch.cat((features.features[place, :, None], features.crops[place]), 1)
                axes.imshow(tiles(block), interpolation="nearest")
                about = which or f"selectivity {scores[name][channel]:z.2f}"
                axes.set_title(f"{name}, channel {channel}, {about}", fontsize=8)
    return figure
