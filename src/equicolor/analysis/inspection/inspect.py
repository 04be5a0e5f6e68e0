"""Everything a page about a network shows, measured."""

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from equicolor import _checks
from equicolor.analysis import (
    FirstFilters,
    HueRows,
    Layer,
    NeuronFeatures,
    RandomHues,
    Selectivity,
    TopActivations,
    find_layers,
    first_filters,
    layer_equivariance,
    layers_left_out,
    selectivity,
    stage_ends,
    top_activations,
)
from equicolor.analysis.activations import Batches
from equicolor.analysis.hue_rows import MEASURED, by_selectivity, selective_channels, unit_rows
from equicolor.analysis.selectivity import GREYS
from equicolor.evaluation.diagnose import Subject, judge
from equicolor.evaluation.evaluate import Evaluation
from equicolor.evaluation.images import OtherClassesError, count_outputs, match_classes
from equicolor.models.facts import network_facts
from equicolor.reporting.progress import counting

__all__ = ["Inspection", "Sheet", "inspect"]

_SHEETS = 4  # layers whose units are drawn
_COMPARED = 8  # images to measure equivariance on
_PLAIN_ROTATIONS = 3  # thirds of a turn for networks without a group


@dataclass(frozen=True, eq=False)
class Sheet:
    """The neuron features of a layer.

    Attributes:
        layer: which.
        most: those of its most colour selective channels, the most selective first.
        least: those of its least selective ones, the least selective first.
        indices: colour selectivity of all channels, the mean over rotations, :math:`[C]`.
        hues: of the rows of selective channels, if the layer has rotations.
        turned: the most selective ones on the same images in random hues, if it has rotations.
        turned_hues: of the rows of selective channels, on those images.
    """

    layer: Layer
    most: NeuronFeatures
    least: NeuronFeatures
    indices: Tensor
    hues: HueRows | None = None
    turned: NeuronFeatures | None = None
    turned_hues: HueRows | None = None


@dataclass(frozen=True, eq=False)
class Inspection:
    """What :func:`inspect` found.

    Attributes:
        facts: about the network and the images.
        evaluation: accuracy under hue shifts; None if the network's outputs are not the
            classes of the images, and ``unjudged`` says why.
        selectivity: of all units.
        sheets: neuron features of some layers.
        filters: of the first convolution, if there is one.
        equivariance: the error of every layer, for ``rotations`` shifts by an ``action``.
        images: how many were looked at.
        seconds: how long it took.
        left_out: the shapes of :func:`equicolor.analysis.layers_left_out`; empty if layers were
            named.
    """

    facts: dict[str, Any]
    evaluation: Evaluation | None
    selectivity: Selectivity
    sheets: list[Sheet]
    filters: FirstFilters | None
    equivariance: dict[str, float]
    rotations: int
    action: str
    images: int
    seconds: float
    unjudged: str = ""
    left_out: dict[str, list[int]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """One row a layer, for a result file.

        ``receptive_field`` is height and width of the frame, ``dead`` the share of units that
        are never active. ``hue_deviation``, of layers with rotations that were drawn, is how far
        the hues of rows are from 360 k / n degrees on images in random hues (median over
        ``hue_channels`` selective channels); ``hue_deviation_data`` on the images as they are.
        """
        sheets = {sheet.layer.name: sheet for sheet in self.sheets}
        rows = []
        for name, tops in self.selectivity.top.items():
            index, layer = self.selectivity.layers[name], tops.layer
            quartiles = torch.quantile(index.flatten(), torch.tensor([0.25, 0.5, 0.75]))
            row = {
                "layer": name,
                "channels": layer.channels,
                "rotations": layer.rotations,
                "receptive_field": list(layer.field.size()),
                "exact": not layer.field.unknown,
                "selectivity": round(float(index.mean()), 4),
                "selectivity_quartiles": [round(x, 4) for x in quartiles.tolist()],
                "dead": round(1 - float(tops.alive.float().mean()), 4),
                "equivariance_error": self.equivariance[name],
            }
            sheet = sheets.get(name)
            if sheet is not None and sheet.hues is not None and sheet.turned_hues is not None:
                row["hue_deviation"] = round(sheet.turned_hues.median_deviation(), 2)
                row["hue_deviation_data"] = round(sheet.hues.median_deviation(), 2)
                row["hue_channels"] = len(sheet.hues.hues)
            rows.append(row)
        return rows

    def summary(self) -> dict[str, Any]:
        """What belongs to the whole network, for a result file."""
        judged = {} if self.evaluation is None else self.evaluation.rows()[0]
        deviations = {
            "hue_deviation": self.hue_deviation,
            "hue_deviation_data": self.hue_deviation_data,
        }
        return {
            **self.facts,
            **judged,
            "selectivity": round(self.selectivity.mean, 4),
            "units": self.selectivity.units,
            "left_out": self.left_out,
            **{key: None if math.isnan(x) else round(x, 2) for key, x in deviations.items()},
            "images": self.images,
            "inspect_seconds": round(self.seconds, 1),
        }

    @property
    def hue_deviation(self) -> float:
        """How far hues of rows are from 360 k / n degrees: the median over all layers.

        On the images in random hues; NaN without rotations or selective units.
        """
        return _median([sheet.turned_hues for sheet in self.sheets])

    @property
    def hue_deviation_data(self) -> float:
        """The same on the images as they are."""
        return _median([sheet.hues for sheet in self.sheets])


def _median(measured: Sequence[HueRows | None]) -> float:
    parts = [hues.deviations[:, 1:].abs().flatten() for hues in measured if hues is not None]
    return float(torch.cat(parts).nanmedian()) if parts else math.nan


def _matched(subject: Subject) -> tuple[Subject | None, str]:
    """A subject whose labels count the classes as its network does, or why there is none."""
    network, images = subject.network, subject.images
    outputs, classes = count_outputs(network, subject.facts["size"]), len(images.class_names)
    if outputs != classes:
        return None, f"the network has {outputs} outputs, {images.name} has {classes} classes"
    try:
        matched = match_classes(network, images)
    except OtherClassesError as error:
        return None, error.reason
    if matched.class_names == images.class_names:
        return subject, ""
    number = torch.tensor([matched.class_names.index(name) for name in images.class_names])
    batches = _Renumbered(subject.batches, number)
    return dataclasses.replace(subject, images=matched, batches=batches), ""


@dataclass(frozen=True, eq=False)
class _Renumbered:
    """Batches of images and labels, with other numbers for the labels."""

    batches: Any
    number: Tensor

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.batches:
            yield images, self.number.to(labels.device)[labels]

    def __len__(self) -> int:
        return len(self.batches)


def inspect(
    subject: Subject,
    *,
    layers: Sequence[str] | None = None,
    sheet_layers: Sequence[str] | None = None,
    top: int = 50,
    units: int = 3,
    measured_units: int = MEASURED,
    grey: str = "luma",
    shifts: int | Sequence[float] | Tensor = 37,
    console: Console | None = None,
) -> Inspection:
    """Look at a network from all sides.

    Args:
        subject: of :func:`equicolor.evaluation.diagnose.load_subject`.
        layers: whose units to look at; by default all nonlinearities.
        sheet_layers: whose neuron features to draw; by default the last one at every
            resolution, at most four.
        top: images kept for each unit.
        units: how many of the most and of the least selective channels to draw.
        measured_units: of how many of the most selective channels to measure the hues of rows.
        grey, shifts: see :func:`equicolor.analysis.selectivity`,
            :func:`equicolor.evaluation.evaluate`.
        console: shows progress; None shows nothing.
    """
    start = time.perf_counter()
    network, autocast = subject.network, subject.autocast
    facts = network_facts(network)
    # Wrong options are refused before minutes are spent.
    _checks.one_of("grey", grey, GREYS)
    _checks.positive_int("units", units)
    _checks.positive_int("measured_units", measured_units)
    size = subject.facts["size"]
    layers_seen = find_layers(network, size, layers)
    drawn = stage_ends(layers_seen)[-_SHEETS:] if sheet_layers is None else list(sheet_layers)
    names = list(layers_seen | find_layers(network, size, drawn))
    matched, unjudged = _matched(subject)
    evaluation = None
    if matched is not None:
        evaluation = judge(matched, actions=["hsv"], shifts=shifts, console=console)

    def strongest(title: str, batches: Batches, names: list[str]) -> dict[str, TopActivations]:
        with counting(console, title) as progress:
            return top_activations(
                network, batches, names, top=top, autocast=autocast, progress=progress
            )

    found = strongest("looking for what excites units", subject.batches, names)
    with counting(console, "the same without colour") as progress:
        measured = selectivity(
            network, subject.batches, grey=grey, found=found, autocast=autocast, progress=progress
        )
    rotated = [name for name in drawn if found[name].layer.rotations > 1]
    turned: dict[str, TopActivations] = {}
    if rotated:
        turned = strongest("the same in random hues", RandomHues(subject.batches), rotated)
    sheets = [
        _sheet(subject, measured.only([name]), turned.get(name), units, measured_units, console)
        for name in drawn
    ]
    rotations = facts["rotations"] or 1
    rotations = rotations if rotations > 1 else _PLAIN_ROTATIONS
    action = facts["lifting"] or "hsv"
    images, _ = next(iter(subject.batches))
    errors = layer_equivariance(
        network, images[:_COMPARED], layers_seen, rotations=rotations, action=action
    )
    return Inspection(
        facts={**facts, **subject.facts},
        evaluation=evaluation,
        selectivity=measured.only(layers_seen),
        sheets=sheets,
        filters=first_filters(network),
        equivariance=errors,
        rotations=rotations,
        action=action,
        images=len(subject.images),
        seconds=time.perf_counter() - start,
        unjudged=unjudged,
        left_out=layers_left_out(network, size) if layers is None else {},
    )


def _sheet(
    subject: Subject,
    measured: Selectivity,
    turned: TopActivations | None,
    units: int,
    measured_units: int,
    console: Console | None,
) -> Sheet:
    """The sheet of the one layer that was measured."""
    ((name, tops),) = measured.top.items()
    layer, indices = tops.layer, measured.layers[name].mean(1)
    by_index = by_selectivity(measured.layers[name], tops.alive) or list(range(layer.channels))
    most = by_index[:units]
    least = sorted(by_index, key=lambda channel: abs(float(indices[channel])))[:units]
    selective: list[int] = []
    if turned is not None:
        selective = selective_channels(measured.layers[name], tops.alive)[:measured_units]
    size = subject.facts["size"], subject.facts["size"]
    network, batches = subject.network, subject.batches
    with counting(console, f"drawing units of {name}") as progress:
        drawn, hues = unit_rows(
            network, batches, tops, selective, [*most, *least], size=size, progress=progress
        )
        sheet = Sheet(layer, drawn.only(most), drawn.only(least), indices, hues)
        if turned is None:
            return sheet
        rows = unit_rows(
            network, RandomHues(batches), turned, selective, most, size=size, progress=progress
        )
    return dataclasses.replace(sheet, turned=rows.drawn.only(most), turned_hues=rows.hues)
