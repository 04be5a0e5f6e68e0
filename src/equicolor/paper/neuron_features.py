"""Neuron features of a trained network as one figure (paper, Figure 5), and their hues."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from equicolor._files import write_whole
from equicolor.analysis import (
    NeuronFeatures,
    RandomHues,
    find_layers,
    selectivity,
    stage_ends,
    top_activations,
)
from equicolor.analysis.activations import Batches, images_of
from equicolor.analysis.hue_rows import MEASURED, SELECTIVE, HueRows, by_selectivity, unit_rows
from equicolor.analysis.inspection.figures import tiles
from equicolor.paper import image_jobs
from equicolor.paper.experiment import Context, Experiment, Job, Scope
from equicolor.paper.quick_images import quick_note
from equicolor.paper.rows import Findings
from equicolor.paper.variants import all_stages, dataset_title, datasets_of, figure_file, variant_of
from equicolor.reporting.figures import photo_png
from equicolor.reporting.html import Section
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import Row
from equicolor.training.recipes import default_recipe


def show(findings: Findings) -> Iterator[Section]:
    """The hues of the features in numbers, and the figure if its file is there."""
    rows = findings.of("neuron-features")
    for dataset in datasets_of(rows):
        stages = [row for row in rows if row["dataset"] == dataset]
        file = figure_file("neuron-features", dataset)
        figure = findings.figures.get(file)
        text = [quick_note([dataset]), _hue_sentence(stages)]
        if figure is None:
            text.append("The figure needs the network and its images, which are not here.")
        caption = (
            "Neuron features of the most colour-selective units at the end of every stage that "
            "keeps more than one position, and the three images that excite each most; a row for "
            "each rotation. Left: among the images as they are. Right: among the same images in "
            "random hues."
        )
        words = " ".join(filter(None, text))
        named = "" if figure is None else file
        title = dataset_title(dataset)
        yield Section(title, words, _hue_table(stages), figure, caption, named)


def _hue_sentence(rows: Sequence[Row]) -> str:
    deviations = [row["hue_deviation"] for row in rows if row.get("hue_deviation") is not None]
    if not deviations:
        return ""
    several = len({variant_of(row) for row in rows}) > 1
    return (
        "From row to row the hue of a feature moves by 360°/n, give or take "
        f"{statistics.median(deviations):.0f}° (median over {'networks and ' if several else ''}"
        "stages of the median over units) where images come in all hues."
    )


def _hue_table(rows: Sequence[Row]) -> Table:
    def degrees(value: float | None) -> str:
        return MISSING if value is None else f"{value:.1f}°"

    lines = [
        (
            variant_of(row).name, row["layer"], str(row["units"]), str(row["selective"]),
            degrees(row.get("hue_deviation")), degrees(row.get("hue_deviation_data")),
        )
        for row in rows
    ]  # fmt: skip
    title = "Hue of row k minus row 0, deviation from 360° k / n: median over selective units"
    columns = "network", "layer", "units", "selective", "in random hues", "in the data's hues"
    return Table(columns, lines, title, text_columns=2)


def measure_and_draw(
    network: nn.Module,
    images: Batches,
    *,
    top: int = 50,
    units: int = 2,
    measured_units: int = MEASURED,
    autocast: torch.dtype | None = None,
) -> tuple[list[Row], bytes]:
    """Draw the most colour-selective units of every stage, and measure the hues of their rows.

    Features are means of the ``top`` images. For every stage, ``units`` are drawn, and hues of at
    most ``measured_units`` are measured. The images are read several times.

    Returns:
        A row for each stage, and the sheet as PNG. ``selective`` is the number of selective
        channels. ``hue_deviation`` and ``hue_deviation_data`` say by how many degrees the hue of
        row k minus row 0 differs from 360 k / n: the median over selective channels and rows (None
        without any), among images in random hues and among the images as they are.
    """
    first = images_of(next(iter(images)))
    size = first.shape[-2], first.shape[-1]
    layers = find_layers(network, size)
    ends = [name for name in stage_ends(layers) if layers[name].rotations > 1]
    if not ends:
        raise ValueError("the network has no equivariant layers: rows need rotations")
    sources: dict[str, Batches] = {"": images, "random hues": RandomHues(images)}
    tops = {
        which: top_activations(network, source, ends, top=top, autocast=autocast)
        for which, source in sources.items()
    }
    index = selectivity(network, images, found=tops[""], autocast=autocast)
    rows, drawn, scores = [], {}, {}
    for name in ends:
        alive = tops[""][name].alive
        order = (by_selectivity(index.layers[name], alive) or list(range(len(alive))))[:units]
        selective = by_selectivity(index.layers[name], alive, SELECTIVE)
        measured = selective[:measured_units]
        units_of = {
            which: unit_rows(network, source, tops[which][name], measured, order, size=size)
            for which, source in sources.items()
        }
        score = scores[name] = index.layers[name].mean(1)  # over the rotations
        rows.append(
            {
                "layer": name,
                "units": len(score),
                "selective": len(selective),
                "selectivity": round(float(score.mean()), 4),
                "hue_deviation": _deviation(units_of["random hues"].hues),
                "hue_deviation_data": _deviation(units_of[""].hues),
                "hue_channels": len(measured),
                "top": top,
            }
        )
        drawn[name] = {which: one.drawn.only(order) for which, one in units_of.items()}
    return rows, photo_png(sheet(drawn, scores))


def _deviation(hues: HueRows | None) -> float | None:
    if hues is None or math.isnan(deviation := hues.median_deviation()):
        return None
    return round(deviation, 2)


def sheet(
    drawn: Mapping[str, Mapping[str, NeuronFeatures]], scores: Mapping[str, Tensor]
) -> Figure:
    """A line of blocks for each layer; blocks of the same channel are neighbours.

    Each row of a block is a rotation: the neuron feature, and the crops that excite the unit most.

    Args:
        drawn: for each layer, the features of the same channels by source of images; the name of
            the source is empty for the data as they are.
        scores: colour selectivity of all channels of each layer.
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


def plan(scope: Scope) -> list[Job]:
    """Train the network that is equivariant in all stages, and analyse its units."""
    jobs = []
    for dataset in image_jobs.main_datasets(scope):
        place = image_jobs.place(dataset, scope)
        network = f"ce-{all_stages(default_recipe(place).model)}"
        (training,) = image_jobs.training_jobs(dataset, [network], scope)
        settings = {"top": image_jobs.top(scope), "units": 2}
        jobs.append(image_jobs.follow(training, "neuron-features", draw, settings, revision=2))
    return jobs


def draw(job: Job, context: Context) -> list[Row]:
    """Draw the features into the folder; a row for each stage has the deviation of its hues."""
    (run,) = context.before
    network, images, half = image_jobs.network_and_images(job, context)
    facts = image_jobs.facts(run)
    stages, figure = measure_and_draw(
        network, images, top=job.settings["top"], units=job.settings["units"], autocast=half
    )
    file = figure_file("neuron-features", facts["dataset"])
    write_whole(context.folder / f"{file}.png", figure)
    return [{**facts, **row} for row in stages]


EXPERIMENT = Experiment(
    id="neuron-features",
    title="Neuron features",
    paper="Fig. 5, App. C",
    finding="Each row of a neuron feature shows the same shape in another colour.",
    what="what units respond to, a row for each rotation",
    full="10 min",
    quick="½ min",
    plan=plan,
    show=show,
    data=("flowers102",),
    options=("datasets", "epochs", "size"),
    keeps=image_jobs.of_other_datasets,
)
