"""Measures everything that a page about a network shows."""

import dataclasses
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
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
from equicolor.analysis.hue_rows import MEASURED, SELECTIVE, by_selectivity, unit_rows
from equicolor.analysis.selectivity import GREYS
from equicolor.canonicalization.network import Canonicalized
from equicolor.evaluation.diagnose import Subject, judge
from equicolor.evaluation.evaluate import Evaluation
from equicolor.models.facts import network_facts
from equicolor.reporting.progress import counting

SHEETS = 4  # layers whose units are drawn
_EQUIVARIANCE_IMAGES = 8
_PLAIN_ROTATIONS = 3  # thirds of a turn for networks without a group


@dataclass(frozen=True, eq=False)
class Sheet:
    """The neuron features of a layer; fields after ``indices`` are for layers with rotations."""

    layer: Layer
    most: NeuronFeatures  # of the most colour selective channels, the most selective first
    least: NeuronFeatures  # of the least selective ones, the least selective first
    indices: Tensor  # colour selectivity of all channels, the mean over rotations, [C]
    hues: HueRows | None = None  # of the rows of selective channels
    turned: NeuronFeatures | None = None  # as most, on the same images in random hues
    turned_hues: HueRows | None = None  # as hues, on the same images in random hues


@dataclass(frozen=True, eq=False)
class Inspection:
    """The result of :func:`inspect`."""

    facts: dict[str, Any]  # about the network and the images
    evaluation: Evaluation | None  # under hue shifts; class_mismatch says why there is none
    selectivity: Selectivity
    sheets: list[Sheet]
    filters: FirstFilters | None
    equivariance: dict[str, float]  # the error of every layer over `rotations` shifts by `action`
    rotations: int
    action: str
    images: int  # how many were looked at
    seconds: float
    class_mismatch: str
    left_out: dict[str, list[int]]  # by layers_left_out; empty if the user named layers

    def rows(self) -> list[dict[str, Any]]:
        """One row per layer, for a result file.

        ``receptive_field`` is height and width of the largest frame, ``dead`` the share of units
        that are never active. ``hue_deviation``, for layers with rotations that were drawn, is how
        far the hues of rows are from 360 k / n degrees on images in random hues (median over
        ``hue_channels`` selective channels); ``hue_deviation_data`` is the same on the original
        images. Both are None where too few rotations are ever active.
        """
        sheets = {sheet.layer.name: sheet for sheet in self.sheets}
        rows = []
        for name, tops in self.selectivity.top.items():
            index, layer = self.selectivity.layers[name], tops.layer
            quartiles = torch.quantile(index.flatten(), torch.tensor([0.25, 0.5, 0.75]))
            frames = layer.field.frame_rows, layer.field.frame_columns
            row = {
                "layer": name,
                "channels": layer.channels,
                "rotations": layer.rotations,
                "receptive_field": [int(frame[:, 2].max()) for frame in frames],
                "exact": not layer.field.unknown,
                "selectivity": round(float(index.mean()), 4),
                "selectivity_quartiles": [round(x, 4) for x in quartiles.tolist()],
                "dead": round(1 - float(tops.alive.float().mean()), 4),
                "equivariance_error": self.equivariance[name],
            }
            sheet = sheets.get(name)
            if sheet is not None and sheet.hues is not None and sheet.turned_hues is not None:
                row["hue_deviation"] = _rounded(sheet.turned_hues.median_deviation())
                row["hue_deviation_data"] = _rounded(sheet.hues.median_deviation())
                row["hue_channels"] = len(sheet.hues.hues)
            rows.append(row)
        return rows

    def summary(self) -> dict[str, Any]:
        """The numbers of the whole network, for a result file."""
        deviations = self.hue_deviations.items()
        return {
            **self.facts,
            **({} if self.evaluation is None else self.evaluation.rows()[0]),
            "selectivity": round(self.selectivity.mean, 4),
            "units": self.selectivity.units,
            "left_out": self.left_out,
            **{key: _rounded(degrees) for key, degrees in deviations},
            "images": self.images,
            "inspect_seconds": round(self.seconds, 1),
        }

    @property
    def hue_deviations(self) -> dict[str, float]:
        """How far hues of rows are from 360 k / n degrees: the median over all layers drawn.

        On images in random hues, and on the original images (``_data``); NaN without rotations
        or selective units.
        """
        return {
            "hue_deviation": _median(sheet.turned_hues for sheet in self.sheets),
            "hue_deviation_data": _median(sheet.hues for sheet in self.sheets),
        }


def _rounded(degrees: float) -> float | None:
    """Degrees for JSON, which has no NaN."""
    return None if math.isnan(degrees) else round(degrees, 2)


def _median(measured: Iterable[HueRows | None]) -> float:
    parts = [hues.deviations[:, 1:].abs().flatten() for hues in measured if hues is not None]
    return float(torch.cat(parts).nanmedian()) if parts else math.nan


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
    """Measure everything that a page about a network shows.

    Args:
        subject: of :func:`equicolor.evaluation.diagnose.load_subject`.
        layers: the layers to look at; by default all nonlinearities.
        sheet_layers: the layers whose neuron features to draw; by default the last one at every
            resolution, at most four.
        top: how many images to keep for each unit.
        units: how many of the most and of the least selective channels to draw.
        measured_units: for how many of the most selective channels to measure hues of rows.
        grey: see :func:`equicolor.analysis.selectivity`.
        shifts: see :func:`equicolor.evaluation.evaluate`.
        console: shows progress; None shows nothing.
    """
    start = time.perf_counter()
    network, batches, autocast = subject.network, subject.batches, subject.autocast
    # Refuse wrong options now: what follows takes minutes.
    _checks.one_of("grey", grey, GREYS)
    _checks.positive_int("top", top)
    _checks.positive_int("units", units)
    _checks.positive_int("measured_units", measured_units)
    size = subject.facts["size"]
    layers_seen = find_layers(network, size, layers)
    drawn = stage_ends(layers_seen)[-SHEETS:] if sheet_layers is None else list(sheet_layers)
    others = [] if layers_seen.keys() >= set(drawn) else find_layers(network, size, drawn)
    names = list(dict.fromkeys([*layers_seen, *others]))
    evaluation = None
    if not subject.class_mismatch:
        evaluation = judge(subject, actions=["hsv"], shifts=shifts, console=console)

    def strongest(title: str, batches: Batches, names: list[str]) -> dict[str, TopActivations]:
        with counting(console, title) as progress:
            return top_activations(
                network, batches, names, top=top, autocast=autocast, progress=progress
            )

    tops = strongest("finding images that excite units", batches, names)
    with counting(console, "measuring colour selectivity") as progress:
        measured = selectivity(
            network, batches, grey=grey, found=tops, autocast=autocast, progress=progress
        )
    rotated = [name for name in drawn if tops[name].layer.rotations > 1]
    turned: dict[str, TopActivations] = {}
    if rotated:
        turned = strongest("finding images in random hues", RandomHues(batches), rotated)
    sheets = [
        _sheet(subject, measured.only([name]), turned.get(name), units, measured_units, console)
        for name in drawn
    ]
    facts = network_facts(network)
    filters = first_filters(network)
    rotations = facts["rotations"]
    if rotations is None:  # a network of the user's own
        rotations = max(layer.rotations for layer in layers_seen.values())
    rotations = rotations if rotations > 1 else _PLAIN_ROTATIONS
    action = facts["lifting"] or (filters and filters.lifting) or "hsv"
    if isinstance(network, Canonicalized) and network.options.select is not None:
        rotations, action = network.options.rotations, "hsv"  # facts are about what is inside
    images, _ = next(iter(batches))
    errors = layer_equivariance(
        network, images[:_EQUIVARIANCE_IMAGES], layers_seen, rotations=rotations, action=action
    )
    return Inspection(
        facts={**facts, **subject.facts},
        evaluation=evaluation,
        selectivity=measured.only(layers_seen),
        sheets=sheets,
        filters=filters,
        equivariance=errors,
        rotations=rotations,
        action=action,
        # Without corrupt ones.
        images=sum(len(x) for x, _ in batches) if evaluation is None else evaluation.images,
        seconds=time.perf_counter() - start,
        class_mismatch=subject.class_mismatch,
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
    """The sheet of a layer; ``measured`` is of this layer alone."""
    ((name, tops),) = measured.top.items()
    all_indices, alive = measured.layers[name], tops.alive
    indices = all_indices.mean(1)
    order = by_selectivity(all_indices, alive) or list(range(tops.layer.channels))
    most = order[:units]
    least = sorted(order, key=lambda channel: abs(float(indices[channel])))[:units]
    selective = [] if turned is None else by_selectivity(all_indices, alive, SELECTIVE)
    selective = selective[:measured_units]
    size = subject.facts["size"], subject.facts["size"]
    with counting(console, f"drawing units of {name}") as progress:
        draw = partial(unit_rows, subject.network, measured=selective, size=size, progress=progress)
        drawn, hues = draw(subject.batches, tops, drawn=[*most, *least])
        sheet = Sheet(tops.layer, drawn.only(most), drawn.only(least), indices, hues)
        if turned is None:
            return sheet
        drawn, hues = draw(RandomHues(subject.batches), turned, drawn=most)
    return dataclasses.replace(sheet, turned=drawn.only(most), turned_hues=hues)
