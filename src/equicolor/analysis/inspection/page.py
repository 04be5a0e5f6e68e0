"""The page about a network: one HTML file, with its numbers and an interactive page beside it."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from equicolor._files import refuse_to_replace
from equicolor.analysis.hue_rows import SELECTIVE
from equicolor.analysis.inspection import figures, interactive
from equicolor.analysis.inspection.inspect import Inspection, Sheet
from equicolor.analysis.inspection.turning import TurnedHues
from equicolor.evaluation.figures import evaluation_figure
from equicolor.evaluation.report import class_table, summary_table
from equicolor.models.facts import network_title
from equicolor.reporting.figures import photo_png
from equicolor.reporting.html import Section, write_report
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import provenance, write_results

COLUMNS = (
    "layer", "units", "field", "selectivity", "quartiles", "silent", "error", "hue of rows",
)  # fmt: skip
BRIEF = ("layer", "units", "field", "selectivity", "error")  # for a terminal


def headline(inspection: Inspection) -> str:
    """In a sentence or two: how selective units are, what hue shifts cost, what was left out."""
    judged, accuracy, hues = inspection.evaluation, "", ""
    if judged is not None:
        mean = judged.sweeps["hsv"].mean
        accuracy = f"{judged.original:.1f} % correct, {mean:.1f} % when hues are shifted; "
    in_random_hues, original = inspection.hue_deviations.values()
    if not math.isnan(in_random_hues):
        hues = (
            f"; hues of rotations {in_random_hues:.1f}° from where they should be for "
            f"images in random hues, {_degrees(original)} for the original images"
        )
    return (
        f"{accuracy}colour selectivity {inspection.selectivity.mean:z.2f} over "
        f"{inspection.selectivity.units} units{hues}.{_left_out(inspection)}"
    )


def _degrees(angle: float | None) -> str:
    return MISSING if angle is None or math.isnan(angle) else f"{angle:.1f}°"


def _left_out(inspection: Inspection) -> str:
    """A sentence about the layers that were not looked at; empty if there are none."""
    which = [
        f"{name} [{'B' if batch == 1 else f'{batch} B'}, {', '.join(map(str, rest))}]"
        for name, (batch, *rest) in inspection.left_out.items()
    ]
    if not which:
        return ""
    layers, places = f"{len(which)} layers that give", f"from {which[0]} to {which[-1]}"
    if len(which) == 1:
        layers, places = "1 layer that gives", which[0]
    return f" Left out: {layers} no map [B, C, H, W], {places}."


def layer_table(inspection: Inspection, columns: Sequence[str] | None = None) -> Table:
    """Every layer: its units, what they see, how selective and how equivariant they are.

    ``columns`` are some of :data:`COLUMNS`; by default all, without those that would be empty.
    """
    rows = inspection.rows()
    if columns is None:
        measured = any("hue_deviation" in row for row in rows)
        columns = COLUMNS if measured else COLUMNS[:-1]
    lines = []
    for row in rows:
        height, width = row["receptive_field"]
        rotations = "" if row["rotations"] == 1 else f" × {row['rotations']}"
        cells = (
            row["layer"],
            f"{row['channels']}{rotations}",
            f"{height} × {width}{'' if row['exact'] else ' or less'}",
            f"{row['selectivity']:z.3f}",
            " / ".join(f"{value:z.2f}" for value in row["selectivity_quartiles"]),
            f"{100 * row['dead']:.1f} %",
            f"{row['equivariance_error']:.1e}",
            _degrees(row.get("hue_deviation")),
        )
        lines.append([cells[COLUMNS.index(column)] for column in columns])
    return Table(columns, lines)


def sections(inspection: Inspection) -> list[Section]:
    """The sections of the page."""
    names = list(inspection.selectivity.layers)
    return [
        *_accuracy_sections(inspection),
        _selectivity_section(inspection, names),
        *(_sheet_section(inspection, sheet) for sheet in inspection.sheets),
        *_filter_sections(inspection),
        _equivariance_section(inspection, names),
        Section(
            "All layers",
            "Units (channels, and rotations if there are any) with the height and width of their "
            "receptive field; mean and quartiles of their colour selectivity; silent: the share "
            "that no image excites; the equivariance error; and, if measured, how far the hues of "
            f"rows are from where they should be, in random hues.{_left_out(inspection)}",
            table=layer_table(inspection),
        ),
    ]


def _accuracy_sections(inspection: Inspection) -> list[Section]:
    judged = inspection.evaluation
    if judged is None:
        why = (
            f"The network's outputs are not the classes of these images "
            f"({inspection.class_mismatch}), so there is no accuracy to measure: neither under hue "
            "shifts nor class by class."
        )
        return [Section("Hue curve", why), Section("Colour sensitivity of classes", why)]
    changes = judged.class_changes("hsv")
    return [
        Section(
            "Hue curve",
            "Accuracy when the hue of every test image is shifted. A flat line means that "
            "answers do not depend on hue. In the table, accuracy is the mean over all shifts, "
            "then over the distinct ones (-180° and 180° are one); lowest is that of the worst "
            "shift; answers changed is the mean share of images whose answer a shift changes.",
            table=summary_table(judged),
            figure=evaluation_figure(judged),
            caption="Accuracy over the hue shift.",
        ),
        Section(
            "Colour sensitivity of classes",
            "The effect of hue shifts on every class, on average over the shifts. The network "
            "recognises classes at the top by their colour; those at the bottom by something else.",
            table=class_table(judged),
            figure=figures.class_figure(changes),
            caption="Accuracy of classes on the original images and with shifted hues.",
        ),
    ]


def _selectivity_section(inspection: Inspection, names: list[str]) -> Section:
    top = next(iter(inspection.selectivity.top.values())).values.shape[-1]
    flat = torch.cat([index.flatten() for index in inspection.selectivity.layers.values()])
    share = 100 * float((flat >= SELECTIVE).float().mean())
    return Section(
        "Colour selectivity",
        f"How much of a unit's activation is lost when the {top} images that excite it most "
        "are made grey: 1 if all, 0 if none, negative if the unit responds more to grey. The mean "
        f"over all {inspection.selectivity.units} units is {inspection.selectivity.mean:z.3f}; "
        f"{share:.0f} % of them have {SELECTIVE} or more.{_left_out(inspection)}",
        figure=figures.selectivity_figure(inspection.selectivity.layers, names),
        caption="Every dot is a unit; boxes are quartiles, whiskers 5 and 95 %, the line in a "
        "box is the median and the diamond the mean.",
    )


def _sheet_section(inspection: Inspection, sheet: Sheet) -> Section:
    layer = sheet.layer
    channels = {*sheet.most.channels, *sheet.least.channels}
    sizes = {layer.field.size(channel) for channel in channels}
    height, width = map(max, zip(*sizes, strict=True))
    most = "" if len(sizes) == 1 else " at most"
    side = sheet.most.features.shape[-1]
    groups, rows = {"most colour selective": sheet.most}, ""
    if sheet.turned is not None:
        groups["the same units, images in random hues"] = sheet.turned
        rows = (
            f" Rows are the {layer.rotations} rotations of a channel, each with the images that "
            "excite it most; they should show one shape in as many colours. What a rotation "
            "finds depends on the hues in the data, so the most selective units are shown once "
            "more with the same images in random hues."
        )
        if sheet.hues is not None and sheet.turned_hues is not None:
            rows += (
                f" There, over the {len(sheet.hues.hues)} most selective channels, the hue of row "
                f"k less that of row 0 is {_degrees(sheet.turned_hues.median_deviation())} from "
                f"360·k/{layer.rotations}° (median); among the original images it is "
                f"{_degrees(sheet.hues.median_deviation())}. Unrelated hues would be at 90°."
            )
    groups["least colour selective"] = sheet.least
    cut = "" if side >= width else f", drawn as the {side} pixels around its middle"
    return Section(
        f"Neuron features: {layer.name}",
        "What a unit looks for: the mean of the crops that excite it most, weighted by activation, "
        f"and beside it the strongest crops. Its receptive field is{most} {height} × {width} pixels"
        f"{cut}; black is outside the image.{rows}",
        figure=photo_png(figures.sheet_figure(groups, sheet.indices)),
        caption=f"Neuron features and top crops of channels of {layer.name}.",
    )


def _filter_sections(inspection: Inspection) -> list[Section]:
    title = "Filters of the first layer"
    filters = inspection.filters
    if filters is None:
        return [Section(title, "The network has no convolution that takes images.")]
    count, rotations = filters.images.shape[:2]
    text = f"{count} filters of {filters.layer}, the strongest first; grey is zero."
    if rotations > 1:
        how = (
            "rotated about the grey axis"
            if filters.lifting == "rgb"
            else "drawn with shifted hues: this lifting shifts the image, not the filter"
        )
        text += f" Rows are their {rotations} rotations, {how}."
    return [
        Section(
            title,
            text,
            figure=photo_png(figures.filter_figure(filters)),
            caption="The filters of the network's first convolution.",
        )
    ]


def _equivariance_section(inspection: Inspection, names: list[str]) -> Section:
    action = {"hsv": "an HSV shift", "rgb": "a rotation about the grey axis"}[inspection.action]
    what = (
        "Layers with rotations should roll them; what comes after coset pooling should not change."
        if _has_rotations(inspection)
        else "The network has no rotations: this is how much its features change."
    )
    return Section(
        "Equivariance",
        "The worst relative error of every layer when the hue is shifted by multiples of "
        f"1/{inspection.rotations} turn, by {action}. {what}",
        figure=figures.equivariance_figure(inspection.equivariance, names),
        caption="Relative equivariance error, layer by layer.",
    )


def _has_rotations(inspection: Inspection) -> bool:
    return any(tops.layer.rotations > 1 for tops in inspection.selectivity.top.values())


def refuse_existing(page: Path, force: bool) -> None:
    """Raise FileExistsError if an earlier page, or what lies beside it, would be lost."""
    files = page, page.with_suffix(".json"), interactive.page_beside(page)
    refuse_to_replace(files, force)


def write(
    inspection: Inspection,
    page: Path,
    *,
    turned: Sequence[TurnedHues] = (),
    device: torch.device | str = "cpu",
) -> list[Path]:
    """Write the page, and beside it its numbers: one row per layer, and those of the network.

    Earlier files are replaced; see :func:`refuse_existing`.

    Args:
        inspection: what is shown.
        page: where it goes.
        turned: of :func:`equicolor.analysis.inspection.interactive.turn`, for an interactive page
            beside it; there is none by default.
        device: on which it was measured.
    """
    numbers, judged, facts = {}, inspection.evaluation, inspection.facts
    if judged is not None:
        numbers["% correct"] = f"{judged.original:.1f}"
        numbers["% correct, hues shifted"] = f"{judged.sweeps['hsv'].mean:.1f}"
    numbers["colour selectivity, mean over units"] = f"{inspection.selectivity.mean:z.2f}"
    if _has_rotations(inspection):
        numbers["largest equivariance error"] = f"{max(inspection.equivariance.values()):.1e}"
    remarks = [
        headline(inspection),
        f"Measured on {inspection.images} images of the {facts['split']} split.",
        *(f"{remark}." for remark in facts.get("warnings", ())),
    ]
    origin = provenance(device)
    written = [page]
    if turned:
        beside = interactive.page_beside(page)
        remarks.append(f"Turn hues by hand in {beside.name}, beside this page.")
        written.append(interactive.write(beside, turned, provenance=origin))
    lead = " ".join(f"{remark[0].upper()}{remark[1:]}" for remark in remarks)
    write_report(
        page,
        network_title(facts),
        sections(inspection),
        lead=lead,
        numbers=numbers,
        provenance=origin,
    )
    data = write_results(
        page.with_suffix(".json"), inspection.rows(), device=device, network=inspection.summary()
    )
    return [*written, data]
