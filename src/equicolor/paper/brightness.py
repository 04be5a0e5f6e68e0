"""Accuracy of trained networks against the brightness of the images.

Equivariance to hue promises nothing about brightness: this measures its effect.
"""

from collections.abc import Iterator

from equicolor.evaluation.actions import action_named
from equicolor.evaluation.figures import action_panels
from equicolor.paper import image_jobs
from equicolor.paper.classification import mean_curve, measured
from equicolor.paper.experiment import Context, Experiment, Job, Scope
from equicolor.paper.quick_images import quick_note
from equicolor.paper.rows import Findings
from equicolor.paper.variants import (
    by_variant,
    dataset_title,
    datasets_of,
    figure_file,
    shared_setting,
    style,
)
from equicolor.reporting.html import Section
from equicolor.reporting.tables import Table, mean_and_std
from equicolor.results import Row

STOPS = (-2.0, -1.0, 0.0, 1.0, 2.0)  # in the table
_NETWORKS = ("baseline", "ce-4", "hsv-12", "gray", "baseline+jitter")
_QUICK_NETWORKS = ("baseline", "ce-4")


def plan(scope: Scope) -> list[Job]:
    """Train the networks, unless other experiments did, and measure each."""
    networks = scope.networks or (_QUICK_NETWORKS if scope.quick else _NETWORKS)
    return [
        image_jobs.follow(training, "brightness", measure, {"actions": ["brightness"]})
        for dataset in image_jobs.main_datasets(scope)
        for training in image_jobs.training_jobs(dataset, networks, scope)
    ]


def measure(job: Job, context: Context) -> list[Row]:
    """The accuracy of a network over the exposure of the images, in stops."""
    (run,), (row,) = context.before, image_jobs.sweep(job, context)
    return [image_jobs.facts(run) | row]


def show(findings: Findings) -> Iterator[Section]:
    """A table and a figure for each dataset."""
    rows = findings.of("brightness")
    show_stops = action_named("brightness").show
    for dataset in datasets_of(rows):
        of_dataset = [row for row in rows if row["dataset"] == dataset]
        groups, setting = by_variant(of_dataset), shared_setting(of_dataset)
        curves = [
            mean_curve(group, "brightness_curve", variant.name, style(variant))
            for variant, group in groups.items()
        ]
        lines = [
            (
                variant.name,
                mean_and_std(measured(group, "brightness_mean")),
                *(mean_and_std([_accuracy(row, stops) for row in group]) for stops in STOPS),
            )
            for variant, group in groups.items()
        ]
        title = f"Accuracy over brightness, {dataset_title(dataset)}"
        words = f"{title}; {setting}" if setting else title
        yield Section(
            title,
            quick_note([dataset]),
            Table(("network", "mean", *map(show_stops, STOPS)), lines, words),
            action_panels({"brightness": curves}, width=7.4),
            "Accuracy over the exposure of the test images.",
            figure_file("brightness", dataset),
        )


def _accuracy(row: Row, stops: float) -> float:
    return row["brightness_curve"][row["brightness_values"].index(stops)]


EXPERIMENT = Experiment(
    id="brightness",
    title="Accuracy over brightness",
    paper="",
    finding="Not in the paper: hue equivariance promises nothing about brightness.",
    what="accuracy of plain and equivariant networks on darker and brighter test images",
    full="10 min",
    quick="1 min",
    plan=plan,
    show=show,
    data=("flowers102",),
    options=("datasets", "networks", "seeds", "epochs", "size"),
)
