"""Colour selectivity of units, and what equivariance gains: the paper's Figure 4."""

import math
import statistics
from collections.abc import Iterator, Sequence

import matplotlib
import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from equicolor.analysis.inspection.figures import selectivity_figure
from equicolor.paper import image_jobs
from equicolor.paper.experiment import Context, Experiment, Job, Scope
from equicolor.paper.quick_images import IMAGES, quick_note
from equicolor.paper.rows import Findings, alike, setting
from equicolor.paper.variants import (
    all_stages,
    by_variant,
    dataset_title,
    datasets_of,
    figure_file,
    shared_setting,
)
from equicolor.reporting.figures import literal
from equicolor.reporting.html import Section
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import Row
from equicolor.training.recipes import default_recipe

_MARKERS = "osD^vPX"
# Roughly the values in the literature for the units of a plain ResNet on each dataset.
_QUOTED = {"flowers102": "about 0.70"}


def show(findings: Findings) -> Iterator[Section]:
    """Gains over equivariant stages (Figure 4), and the selectivity of units, layer by layer."""
    rows = [row for row in findings.of("selectivity") if "selectivity" in row]
    if not rows:
        return
    yield Section(
        "",
        quick_note(datasets_of(rows)),
        table(rows, findings.trained).without_empty(["selectivity, literature"]),
        gain_figure(rows, findings.trained),
        "Accuracy gained over the plain network by equivariance up to a stage. Colours: mean "
        "colour selectivity of the plain network's units.",
        "selectivity",
    )
    for dataset in datasets_of(rows):
        layers = {
            row["layer"]: torch.tensor(row["values"])
            for row in rows
            if row["dataset"] == dataset and row["layer"] != "all"
        }
        if layers:
            yield Section(
                f"Selectivity by layer, {dataset_title(dataset)}",
                figure=selectivity_figure(layers, list(layers)),
                caption="Colour selectivity of every unit of the plain network, layer by layer. "
                "A point is a unit, the line in a box the median, the diamond the mean.",
                file=figure_file("selectivity-layers", dataset),
            )


def gains(rows: Sequence[Row], dataset: str) -> dict[int, float]:
    """Points of accuracy gained over the plain network, by the number of equivariant stages.

    No stages gain 0. Empty without a plain network.
    """
    means: dict[int, float] = {}
    for variant, group in by_variant(_compared(rows, dataset)).items():
        if not variant.setting and variant.in_paper and variant.kind in ("baseline", "ce"):
            means[variant.ce_stages] = statistics.fmean(row["original"] for row in group)
    if 0 not in means:
        return {}
    return {stages: means[stages] - means[0] for stages in sorted(means)}


def _compared(rows: Sequence[Row], dataset: str) -> list[Row]:
    """Networks without augmentation, trained alike: see :func:`equicolor.paper.rows.alike`."""
    plain = [row for row in rows if (row.get("augmentation") or "none") == "none"]
    return alike([row for row in plain if row["dataset"] == dataset])


def _titles(rows: Sequence[Row], trained: Sequence[Row]) -> dict[str, str]:
    """Titles of datasets, with differences from the paper's training, and epochs if they vary."""
    compared = {
        dataset: _compared(trained, dataset) or [row for row in rows if row["dataset"] == dataset]
        for dataset in datasets_of(rows)
    }
    epochs = {setting(group[0], "epochs") for group in compared.values()}
    always = ("epochs",) if len(epochs) > 1 else ()
    titles = {}
    for dataset, group in compared.items():
        words = shared_setting(group, always=always)
        titles[dataset] = dataset_title(dataset) + (f" ({words})" if words else "")
    return titles


def _scores(rows: Sequence[Row]) -> dict[str, float]:
    """Mean selectivity of the plain network's units by dataset, the highest first."""
    values: dict[str, list[float]] = {dataset: [] for dataset in datasets_of(rows)}
    for row in rows:
        if row["layer"] == "all":
            values[row["dataset"]].append(row["selectivity"])
    scores = {dataset: statistics.fmean(means) for dataset, means in values.items()}
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def table(rows: Sequence[Row], trained: Sequence[Row]) -> Table:
    """Selectivity of rows about all units (layer ``"all"``), and gains of ``trained`` rows."""
    titles, scores = _titles(rows, trained), _scores(rows)
    gained = {dataset: gains(trained, dataset) for dataset in scores}
    stages = sorted({count for gain in gained.values() for count in gain if count})
    lines = []
    for dataset, gain in gained.items():
        units = sum(r["units"] for r in rows if r["dataset"] == dataset and r["layer"] == "all")
        cells = [titles[dataset], _QUOTED.get(dataset, MISSING)]
        cells += [f"{scores[dataset]:.3f}", str(units)]
        cells += [f"{gain[count]:+z.2f}" if count in gain else MISSING for count in stages]
        lines.append(tuple(cells))
    columns = ("dataset", "selectivity, literature", "selectivity, ours", "units")
    title = "Colour selectivity of the plain network, and points gained with CE stages"
    return Table((*columns, *(f"CE-{count}" for count in stages)), lines, title)


def gain_figure(rows: Sequence[Row], trained: Sequence[Row]) -> Figure:
    """The paper's Figure 4: gain over equivariant stages, coloured by selectivity.

    Lines are dotted across stages that were not run.
    """
    scores = _scores(rows)
    span = Normalize(min(0.0, *scores.values()), max(1.0, *scores.values()))
    # Without the bright end of plasma, on which lines are hard to see.
    colors = ListedColormap(matplotlib.colormaps["plasma"](np.linspace(0, 0.9, 256)))
    figure = Figure(figsize=(8, 4.2 + 0.2 * len(scores)), layout="constrained")
    axes = figure.subplots()
    most, titles = 1, _titles(rows, trained)
    for index, (dataset, score) in enumerate(scores.items()):
        gain = gains(trained, dataset) or {0: 0.0}
        most = max(most, *gain)
        label = f"{literal(titles[dataset])}, selectivity {score:z.2f}"
        color = colors(float(span(score)))
        axes.plot(sorted(gain), [gain[count] for count in sorted(gain)], ":", color=color)
        stages = range(max(gain) + 1)
        axes.plot(
            stages, [gain.get(count, math.nan) for count in stages],
            marker=_MARKERS[index % len(_MARKERS)], color=color, linewidth=1.8, label=label,
        )  # fmt: skip
    axes.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(most + 1))
    axes.set(xlabel="equivariant stages", ylabel="accuracy gained, points")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper left", frameon=False, fontsize=9)  # inside it hides points
    figure.colorbar(ScalarMappable(span, colors), ax=axes, label="colour selectivity")
    return figure


def plan(scope: Scope) -> list[Job]:
    """Train the baseline and the hybrids of every dataset, and analyse the baseline's units."""
    jobs = []
    quick = tuple(IMAGES) if scope.quick else ()
    for dataset in scope.datasets or quick or image_jobs.datasets_on_disk(scope):
        place = image_jobs.place(dataset, scope)
        stages = range(1, all_stages(default_recipe(place).model) + 1)
        hybrids = [f"ce-{count}" for count in stages if not (scope.quick and count % 2)]
        trainings = image_jobs.training_jobs(dataset, ["baseline", *hybrids], scope)
        settings = {"top": image_jobs.top(scope), "grey": "luma"}
        units = image_jobs.follow(trainings[0], "selectivity", measure, settings)
        jobs += [*trainings, units]
    return jobs


def measure(job: Job, context: Context) -> list[Row]:
    """A row for all layers of a trained network, and a row for each layer with its units."""
    from equicolor.analysis import selectivity

    (run,) = context.before
    network, images, half = image_jobs.network_and_images(job, context)
    units = selectivity(
        network, images, top=job.settings["top"], grey=job.settings["grey"], autocast=half
    )
    facts = image_jobs.facts(run)
    rows = [{**facts, "layer": "all", "units": units.units, "selectivity": round(units.mean, 4)}]
    for layer, values in units.layers.items():
        each = values.flatten()
        rows.append(
            {
                **facts,
                "layer": layer,
                "units": len(each),
                "selectivity": round(float(each.mean()), 4),
                "values": [round(value, 3) for value in each.tolist()],
            }
        )
    return rows


EXPERIMENT = Experiment(
    id="selectivity",
    title="Colour selectivity",
    paper="Fig. 4",
    finding="Datasets whose networks are colour-selective gain from equivariance up to late "
    "stages, others do not.",
    what="colour selectivity of units, and accuracy gained by equivariance",
    full="40 min a dataset",
    quick="1 min",
    plan=plan,
    show=show,
    data=("flowers102",),
    options=("datasets", "seeds", "epochs", "size"),
    keeps=image_jobs.of_other_datasets,
)
