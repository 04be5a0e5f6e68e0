"""Accuracy of trained networks against the brightness of the images.

Equivariance to hue promises nothing about brightness: this shows what it does all the same.
"""

from collections.abc import Iterator, Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from equicolor.evaluation.asker import Asker
from equicolor.paper import image_jobs
from equicolor.paper.experiment import Context, Experiment, Job, Scope
from equicolor.paper.quick_images import quick_note
from equicolor.paper.rows import Findings
from equicolor.paper.variants import (
    by_variant,
    dataset_title,
    datasets_of,
    figure_file,
    shared_setting,
)
from equicolor.reporting.html import Section
from equicolor.reporting.tables import Table, mean_and_std
from equicolor.results import Row

__all__ = ["EXPERIMENT", "measure", "plan", "show"]

FACTORS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
_NETWORKS = ("baseline", "ce-4", "hsv-12", "gray", "baseline+jitter")
_QUICK_NETWORKS = ("baseline", "ce-4")


def plan(scope: Scope) -> list[Job]:
    """Train the networks, or take those of other experiments, and measure each."""
    networks = scope.networks or (_QUICK_NETWORKS if scope.quick else _NETWORKS)
    return [
        image_jobs.follow(training, "brightness", measure, {"factors": list(FACTORS)})
        for dataset in image_jobs.main_datasets(scope)
        for training in image_jobs.training_jobs(dataset, networks, scope)
    ]


@torch.inference_mode()
def measure(job: Job, context: Context) -> list[Row]:
    """The accuracy of a network on images that are multiplied by each factor and cut to [0, 1]."""
    network, batches, autocast = image_jobs.network_and_images(job, context)
    ask, factors = Asker(network, autocast), job.settings["factors"]
    correct = []  # [factors], a batch each; on the device, which nothing waits for
    total = 0
    for batch in batches:
        images, labels = ask.place(*batch)
        answers = [ask((images * factor).clamp(max=1)).argmax(1) for factor in factors]
        correct.append(torch.stack([(answer == labels).sum() for answer in answers]))
        total += len(labels)
    curve = [round(100 * count / total, 3) for count in torch.stack(correct).sum(0).tolist()]
    (run,) = context.before
    return [{**image_jobs.facts(run), "factors": factors, "brightness_curve": curve}]


def show(findings: Findings) -> Iterator[Section]:
    """A table and a figure for each dataset."""
    rows = [row for row in findings.of("brightness") if row.get("factors") == list(FACTORS)]
    for dataset in datasets_of(rows):
        of_dataset = [row for row in rows if row["dataset"] == dataset]
        groups, setting = by_variant(of_dataset), shared_setting(of_dataset)
        curves = {
            variant.name: torch.tensor([row["brightness_curve"] for row in group])
            for variant, group in groups.items()
        }
        lines = [
            (name, *(mean_and_std(accuracies.tolist()) for accuracies in curve.T))
            for name, curve in curves.items()
        ]
        title = f"Accuracy over brightness, {dataset_title(dataset)}"
        words = f"{title}; {setting}" if setting else title
        yield Section(
            title,
            quick_note([dataset]),
            Table(("network", *(f"× {factor:g}" for factor in FACTORS)), lines, words),
            _figure(curves),
            "Accuracy on test images whose brightness is multiplied by a factor.",
            figure_file("brightness", dataset),
        )


def _figure(curves: Mapping[str, Tensor]) -> Figure:
    """The mean of the seeds of each network; curves are ``[seeds, factors]``."""
    figure = Figure(figsize=(6.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.plot(FACTORS, curve.mean(0), "o-", label=name)
    axes.set_xscale("log")
    axes.set_xticks(FACTORS, [f"{factor:g}" for factor in FACTORS])
    axes.minorticks_off()
    axes.set(xlabel="brightness of the test images", ylabel="accuracy (%)")
    axes.legend(fontsize=8)
    return figure


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
