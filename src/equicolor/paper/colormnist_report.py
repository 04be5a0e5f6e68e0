"""The figures and the report of a ColorMNIST experiment in a folder of its own."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from equicolor._files import output_folder, write_whole
from equicolor.paper.colormnist_results import LONGTAILED, show_biased, show_longtailed
from equicolor.paper.rows import Findings
from equicolor.reporting.figures import png
from equicolor.reporting.html import write_report
from equicolor.results import Row

__all__ = ["write"]


def write(
    experiment: str,
    rows: Sequence[Row],
    folder: Path | str,
    *,
    report: bool = True,
    curves: Mapping[str, Sequence[float]] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the figures of an experiment, and a report with all of it."""
    folder, written, sections = output_folder(folder), [], []
    swept = [
        {**row, "hue_curve": (curves or {}).get(row["model"])}
        if row["seed"] == 0 and row["augmentation"] == "none" and not row["weighted"]
        else row
        for row in rows
    ]
    show = show_longtailed if experiment == LONGTAILED else show_biased
    for section in show(Findings({experiment: swept})):
        if isinstance(section.figure, Figure):
            figure = png(section.figure)
            section = dataclasses.replace(section, figure=figure)
            written.append(write_whole(folder / f"{section.file}.png", figure))
        sections.append(section)
    if report:
        title = "Long-tailed ColorMNIST" if experiment == LONGTAILED else "Biased ColorMNIST"
        path = write_report(folder / "report.html", title, sections, provenance=provenance)
        written.append(path)
    return written
