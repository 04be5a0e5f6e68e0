"""The sections of the report: what each experiment found, beside what the paper found."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from matplotlib.figure import Figure

from equicolor.analysis.inspection.figures import selectivity_figure
from equicolor.paper import (
    ablation_figures,
    ablations,
    classification_figures,
    classification_tables,
    colormnist_report,
    colormnist_tables,
    configurations,
    conversion_figures,
    equivariance,
    selectivity_figures,
)
from equicolor.paper.classification_variants import dataset_title, datasets_of, variant_of
from equicolor.paper.quick_pictures import PICTURES
from equicolor.paper.registry import Experiment
from equicolor.paper.rows import identity
from equicolor.paper.settings import alike, deviations
from equicolor.reporting.figures import png
from equicolor.reporting.html import Section
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import Row

__all__ = ["Findings", "heading", "rows_shown", "sections"]


class Findings:
    """The rows of all experiments, and pictures that rows cannot hold.

    Args:
        rows: by the id of the experiment.
        pictures: PNG files by name, such as ``"neuron-features-flowers102"``.
        quick: whether any are of a quick run.
        notes: what to know about the rows, by the id of the experiment.

    Example:
        >>> row = {"dataset": "flowers102", "model": "resnet18", "seed": 0, "original": 66.0}
        >>> both = Findings({"classification": [row], "ablation-jitter": [row]})
        >>> len(both.trained)
        1
    """

    def __init__(
        self,
        rows: Mapping[str, Sequence[Row]],
        pictures: Mapping[str, bytes] | None = None,
        *,
        quick: bool = False,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self.rows = {name: list(found) for name, found in rows.items()}
        self.pictures = dict(pictures or {})
        self.quick, self.notes = quick, dict(notes or {})

    def of(self, experiment: str) -> list[Row]:
        """The rows of one experiment."""
        return self.rows.get(experiment, [])

    @property
    def trained(self) -> list[Row]:
        """The rows of networks trained on pictures, each once, whoever asked for it."""
        found: dict[tuple[str, ...], Row] = {}
        for experiment in ("classification", *ablations.ABLATIONS, "selectivity"):
            for row in self.of(experiment):
                if "original" in row:
                    key = identity(row)
                    found[key] = {**found.get(key, {}), **row}
        return list(found.values())


# A section, and the name of its figure's file. A name without a figure is that of one that cannot
# be drawn here; the text says why.
Parts = list[tuple[Section, str]]


def sections(experiment: Experiment, found: Findings) -> Parts:
    """What there is to show of an experiment.

    Args:
        experiment: which.
        found: all rows.

    Returns:
        Sections, each with the name of the file of its figure (empty if it has none; a figure
        that cannot be drawn here has a name, and the text says why). One that says so if there
        are no rows.

    Example:
        >>> from equicolor.paper.registry import EXPERIMENTS
        >>> (section, name), = sections(EXPERIMENTS["conversion"], Findings({}))
        >>> section.title, "not run" in section.text
        ('Conversion of a trained network', True)
    """
    made = _MAKERS[experiment.name](experiment.name, found)
    title, paper = heading(experiment)
    if not made:
        # Unlike the experiment's own command, this adds to the folder of the report.
        command = f"equicolor reproduce all --only {experiment.name}"
        command += " --quick" if found.quick else ""
        return [(Section(title, f"{paper}\n\nIt was not run: {command}"), "")]
    (first, name), *rest = made
    text = f"{paper}\n\n{first.text}" if first.text else paper
    head = Section(title, text, first.table, first.figure, first.caption)
    return [(head, name), *rest]


def heading(experiment: Experiment) -> tuple[str, str]:
    """The title of an experiment, and what the paper says of it.

    Example:
        >>> from equicolor.paper.registry import EXPERIMENTS
        >>> heading(EXPERIMENTS["ablation-cosetpool"])[0]
        'Coset pooling (App. D)'
    """
    place = f" ({experiment.paper})" if experiment.paper else ""
    paper = f"The paper: {experiment.finding}" if experiment.paper else experiment.finding
    return f"{experiment.title}{place}", paper


def rows_shown(experiment: str, found: Findings) -> list[Row]:
    """The rows of an experiment; of an ablation without any, those of others that it shows.

    Example:
        >>> row = {"dataset": "flowers102", "model": "resnet18", "seed": 0, "original": 66.0}
        >>> len(rows_shown("ablation-jitter", Findings({"classification": [row]})))
        1
    """
    own = found.of(experiment)
    if own or experiment not in ablations.ABLATIONS:
        return own
    groups = [
        ablations.of_ablation(experiment, _comparable(experiment, found, dataset), dataset)
        for dataset in _datasets(experiment, found)
    ]
    return [row for each in groups for group in each.values() for row in group]


def _figure(figure: Figure | bytes) -> bytes:
    return figure if isinstance(figure, bytes) else png(figure)


def _equivariance(name: str, found: Findings) -> Parts:
    rows = found.of(name)
    if not rows or any("change" not in row for row in rows):
        return []
    responses = [equivariance.response(row) for row in rows]
    lines = [
        (
            row["network"], f"{row['worst']:.1%}", f"{row['mean']:.1%}",
            MISSING if row["at_group_angles"] is None else f"{row['at_group_angles']:.0e}",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("network", "worst shift", "mean over the circle", "at the group's angles")
    table = Table(columns, lines, "Ours: relative change of a random network's output")
    figure = equivariance.plot(responses, equivariance.sample_photo())
    caption = "Change of the pooled output of small random networks while a photo's hue shifts."
    first, last = rows[0], rows[-1]
    text = (
        f"A hue shift changes the output by up to {first['worst']:.0%} ({first['network']}), "
        f"against {last['worst']:.1%} ({last['network']}), and {last['at_group_angles'] or 0:.0e} "
        "at the group's own angles."
    )
    return [(Section("", text, table, _figure(figure), caption), "equivariance")]


def _colormnist(name: str, found: Findings) -> Parts:
    rows = found.of(name)
    if not rows:
        return []
    digits = colormnist_report.digits_of(rows)
    captions = colormnist_report.captions(name, rows, digits)
    table = colormnist_tables.summary_table(name, rows)
    made: Parts = []
    for file, figure in colormnist_report.draw(name, rows, digits).items():
        title, caption = captions[file]
        first = not made
        text = colormnist_tables.headline(name, rows) if first else ""
        section = Section(title, text, table if first else None, _figure(figure), caption)
        made.append((section, file))
    if digits is None:
        samples = f"{name}-samples"
        made.append((Section(*captions[samples]), samples))
    return made


def _classification(name: str, found: Findings) -> Parts:
    rows = [row for row in found.of(name) if "original" in row]
    made: Parts = []
    datasets = datasets_of(rows)
    of_paper = classification_figures.FIGURE_1B
    for dataset in datasets:
        title = _title(dataset)
        # Without the paper's dataset, others stand in for it.
        shown = dataset == of_paper or of_paper not in datasets
        figure = classification_figures.figure_1b(rows, dataset) if shown else None
        table = classification_tables.table1(rows, dataset)
        picture = None if figure is None else _figure(figure)
        caption = "As the paper's Figure 1b: accuracy over the hue shift of the test pictures."
        text = _made_up([dataset])
        file = f"{name}-fig1b" if dataset == of_paper else f"{name}-{dataset}-fig1b"
        made.append(_part(Section(title, text, table, picture, caption), file))
        figure = classification_figures.hue_figure(rows, dataset)
        table = classification_tables.table3(rows, dataset)
        picture = None if figure is None else _figure(figure)
        caption = "All networks, a panel for each augmentation (paper, appendix C)."
        section = Section(f"{title}: all networks", "", table, picture, caption)
        made.append(_part(section, f"{name}-{dataset}"))
    return made


def _part(section: Section, file: str) -> tuple[Section, str]:
    """A section and the file of its figure; without one, it needs neither file nor caption."""
    if section.figure is None:
        return dataclasses.replace(section, caption=""), ""
    return section, file


def _configurations(name: str, found: Findings) -> Parts:
    rows = found.of(name)
    if not rows:
        return []
    table = configurations.report_table(rows)
    figure = configurations.plot(rows)
    caption = "Multiply-accumulates executed for one image, against the plain network's."
    return [(Section("", configurations.headline(rows), table, _figure(figure), caption), name)]


def _ablation(name: str, found: Findings) -> Parts:
    made: Parts = []
    for dataset in datasets_of([{"dataset": dataset} for dataset in _datasets(name, found)]):
        rows = _comparable(name, found, dataset)
        drawn = ablation_figures.figures(name, rows, dataset)
        table: Table | None = ablations.table(name, rows, dataset)
        text = _made_up([dataset])
        title = _title(dataset)
        for file, figure in drawn.items():
            suffix = "" if dataset == "flowers102" else f"-{dataset}"
            caption = _CAPTIONS[file]
            section = Section(title, text, table, _figure(figure), caption)
            made.append((section, f"{file}{suffix}"))
            table = ablations.peak_table(rows, dataset) if name == "ablation-rotations" else None
            text, title = "", f"{_title(dataset)}: {_FURTHER.get(name, 'more')}"
    return made


def _datasets(name: str, found: Findings) -> set[str]:
    """The datasets an ablation is shown for: those it ran on, else the paper's."""
    own = {row["dataset"] for row in found.of(name)}
    return own or {row["dataset"] for row in found.trained if row["dataset"] == "flowers102"}


def _comparable(name: str, found: Findings, dataset: str) -> list[Row]:
    """An ablation's own rows and others trained like them; without any, those of the tables."""
    everything = [row for row in found.trained if row["dataset"] == dataset]
    own = {identity(row) for row in found.of(name) if row["dataset"] == dataset}
    if not own:
        return alike(everything)
    ways = [deviations(row) for row in everything if identity(row) in own]
    return [row for row in everything if deviations(row) in ways]


_FURTHER = {"ablation-rotations": "accuracy over the number of rotations, and heights of peaks"}
_CAPTIONS = {
    "ablation-rotations": "Accuracy over the hue shift, for both liftings and three kinds of hue "
    "shift. Where a panel says exact, theory promises peaks of equal height.",
    "ablation-rotations-accuracy": "Accuracy over the number of rotations at about equal "
    "parameters.",
    "ablation-jitter": "Accuracy over the hue shift, for training with hue jitter of different "
    "strengths.",
    "ablation-cosetpool": "Accuracy over the hue shift, for different ends of the equivariant "
    "part.",
}


def _selectivity(name: str, found: Findings) -> Parts:
    rows = [row for row in found.of(name) if "selectivity" in row]
    if not rows:
        return []
    text = _made_up(datasets_of(rows))
    made: Parts = []
    gains = selectivity_figures.gain_figure(rows, found.trained)
    table = selectivity_figures.table(rows, found.trained)
    table = table.without_empty(["selectivity, literature"])
    caption = (
        "Accuracy gained over the plain network by equivariance up to a stage; colours say how "
        "colour-selective the plain network's units are on average."
    )
    made.append((Section("", text, table, _figure(gains), caption), name))
    for dataset in datasets_of(rows):
        own = [row for row in rows if row["dataset"] == dataset and row["layer"] != "all"]
        if not own:
            continue
        layers = {row["layer"]: torch.tensor(row["values"]) for row in own}
        figure = selectivity_figure(layers, list(layers))
        caption = (
            "Colour selectivity of every unit of the plain network, layer by layer: a point is a "
            "unit, the line in a box is the median and the diamond the mean."
        )
        title = f"Selectivity by layer, {_title(dataset)}"
        suffix = "" if dataset == "flowers102" else f"-{dataset}"
        section = Section(title, "", None, _figure(figure), caption)
        made.append((section, f"{name}-layers{suffix}"))
    return made


def _features(name: str, found: Findings) -> Parts:
    rows = found.of(name)
    made: Parts = []
    for dataset in datasets_of(rows):
        own = [row for row in rows if row["dataset"] == dataset]
        file = name if dataset == "flowers102" else f"{name}-{dataset}"
        picture = found.pictures.get(file)
        text = [_made_up([dataset]), _hue_sentence(own)]
        if picture is None:
            text.append("The picture takes the network and its pictures, and is not among them.")
        caption = (
            "Neuron features of the most colour-selective units at the end of every stage that "
            "keeps more than one position, and the three pictures that excite each most; a row for "
            "each rotation. Left among the pictures as they are, right among the same in random "
            "hues."
        )
        section = Section(
            _title(dataset), " ".join(filter(None, text)), _hue_table(own), picture, caption
        )
        made.append(_part(section, file))
    return made


def _hue_sentence(rows: Sequence[Row]) -> str:
    deviations = [row["hue_deviation"] for row in rows if row.get("hue_deviation") is not None]
    if not deviations:
        return ""
    several = len({variant_of(row) for row in rows}) > 1
    return (
        "From row to row the hue of a feature moves by 360°/n, give or take "
        f"{statistics.median(deviations):.0f}° (median over {'networks and ' if several else ''}"
        "stages of the median over units) where pictures come in all hues."
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


def _conversion(name: str, found: Findings) -> Parts:
    rows = [row for row in found.of(name) if "original" in row]
    made: Parts = []
    for dataset in datasets_of(rows):
        table = conversion_figures.table(rows, dataset)
        figure = conversion_figures.hue_figure(rows, dataset)
        picture = None if figure is None else _figure(figure)
        caption = "Accuracy over the hue shift, before conversion and after."
        section = Section(_title(dataset), _made_up([dataset]), table, picture, caption)
        made.append(_part(section, f"{name}-{dataset}"))
    return made


def _title(dataset: str) -> str:
    return dataset_title(dataset)


def _made_up(datasets: Sequence[str]) -> str:
    """A sentence for pictures that are not the paper's."""
    quick = [PICTURES[dataset] for dataset in datasets if dataset in PICTURES]
    if not quick:
        return ""
    return (
        f"A quick run, on made-up pictures: {', and '.join(each.title for each in quick)}; "
        f"{quick[0].train} for training, with narrow networks and few epochs. It shows that "
        "everything runs; differences of ten points mean nothing."
    )


_MAKERS: dict[str, Callable[[str, Findings], Parts]] = {
    "equivariance": _equivariance,
    "colormnist-longtailed": _colormnist,
    "colormnist-biased": _colormnist,
    "classification": _classification,
    "configurations": _configurations,
    "selectivity": _selectivity,
    "neuron-features": _features,
    "conversion": _conversion,
    **dict.fromkeys(ablations.ABLATIONS, _ablation),
}
