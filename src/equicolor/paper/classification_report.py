"""Rows of the classification experiments as files: tables and figures."""

import re
from collections.abc import Sequence
from pathlib import Path

from equicolor._files import output_folder, write_whole
from equicolor.paper.classification_results import figure_1b, hue_figure, table1, table3
from equicolor.paper.variants import dataset_title, datasets_of
from equicolor.reporting.figures import png
from equicolor.results import Row

__all__ = ["write"]


def write(rows: Sequence[Row], output: Path | str) -> list[Path]:
    """Write Tables 1 and 3, Figure 1b and the hue curves of every dataset that has rows."""
    if not rows:
        raise ValueError("no rows to make tables and figures of")
    folder = output_folder(output)
    parts = []
    for dataset in datasets_of(rows):
        parts.append(f"## {dataset_title(dataset)}")
        for table in (table1(rows, dataset), table3(rows, dataset)):
            parts += [f"**{table.title}**", table.markdown()]
    written = [write_whole(folder / "classification.md", "\n\n".join(parts) + "\n")]
    figures = {"fig1b": figure_1b(rows)}
    figures |= {name: hue_figure(rows, name) for name in datasets_of(rows)}
    for name, figure in figures.items():
        if figure is not None:
            path = folder / f"classification-{re.sub('[^A-Za-z0-9.+_-]', '_', name)}.png"
            written.append(write_whole(path, png(figure)))
    return written
