"""Networks equivariant to hue, to space and to both, on turned, mirrored and hue-shifted images."""

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from matplotlib.figure import Figure

from equicolor.color import shift_hue
from equicolor.evaluation.asker import Asker, evaluating
from equicolor.groups import SpatialGroup
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
from equicolor.reporting.progress import counting
from equicolor.reporting.tables import Table, mean_and_std
from equicolor.results import Row

__all__ = ["EXPERIMENT", "measure", "plan", "show"]

_NETWORKS = ("baseline", "hsv-6", "baseline+p4m", "hsv-6+p4m")
_SIZE = 69  # at which ResNets with a spatial group are exact: 32 k + 5
_PLANE = SpatialGroup("p4m")
_HUES = 12
# What is done to the test images, by the keys of the rows.
_CONDITIONS = {
    "original": "as they are",
    "hues_mean": f"in {_HUES} hues",
    "turns_mean": "turned and mirrored",
    "both_mean": "both",
}


def plan(scope: Scope) -> list[Job]:
    """Train the networks at equal parameters, and measure each."""
    networks = scope.networks or _NETWORKS
    if scope.size is None and not scope.quick:  # whose digits are too small for such a size
        scope = dataclasses.replace(scope, size=_SIZE)
    return [
        image_jobs.follow(training, "space", measure, {"hues": _HUES})
        for dataset in image_jobs.main_datasets(scope)
        for training in image_jobs.training_jobs(dataset, networks, scope)
    ]


@torch.inference_mode()
def measure(job: Job, context: Context) -> list[Row]:
    """The accuracy of a network on test images in every turn, mirror image and hue."""
    network, batches, autocast = image_jobs.network_and_images(job, context)
    ask, hues = Asker(network, autocast), job.settings["hues"]
    correct, total = [], 0  # [elements, hues], a batch each; on the device, which nothing waits for
    with evaluating(network), counting(context.console, "turning images and hues") as progress:
        for done, batch in enumerate(batches, start=1):
            images, labels = ask.place(*batch)
            answers = [
                ask(shift_hue(_PLANE.transform(images, element), hue / hues), like=images)
                for element in range(_PLANE.order)
                for hue in range(hues)
            ]
            right = torch.stack([(answer.argmax(1) == labels).sum() for answer in answers])
            correct.append(right.view(_PLANE.order, hues))
            total += len(labels)
            progress(done, len(batches))
    accuracy = 100 * torch.stack(correct).sum(0).double().cpu() / total
    means = accuracy[0, 0], accuracy[0].mean(), accuracy[:, 0].mean(), accuracy.mean()
    (run,) = context.before
    (trained,) = run.rows
    return [
        {
            **image_jobs.facts(run),
            **{key: round(float(mean), 3) for key, mean in zip(_CONDITIONS, means, strict=True)},
            "turn_curve": [round(value, 3) for value in accuracy[:, 0].tolist()],
            "parameters": trained.get("parameters"),
            "train_seconds": trained.get("train_seconds"),
        }
    ]


def show(findings: Findings) -> Iterator[Section]:
    """A table and a figure for each dataset."""
    rows = findings.of("space")
    for dataset in datasets_of(rows):
        of_dataset = [row for row in rows if row["dataset"] == dataset]
        setting = shared_setting(of_dataset)
        cells = {
            variant.name: {key: [row[key] for row in group] for key in _CONDITIONS}
            for variant, group in by_variant(of_dataset).items()
        }
        lines = [(name, *map(mean_and_std, values.values())) for name, values in cells.items()]
        title = f"Hue times space, {dataset_title(dataset)}"
        words = f"{title}; {setting}" if setting else title
        yield Section(
            title,
            quick_note([dataset]),
            Table(("network", *_CONDITIONS.values()), lines, words),
            _figure(cells),
            "Accuracy on the test images as they are, in all hues, turned and mirrored, and both; "
            "p4m is equivariance to quarter turns and mirror images.",
            figure_file("space", dataset),
        )


def _figure(cells: Mapping[str, Mapping[str, list[float]]]) -> Figure:
    """Bars for each condition, one for each network, at the mean of the seeds."""
    figure = Figure(figsize=(6.6, 3.6), layout="constrained")
    axes, width = figure.subplots(), 0.8 / max(len(cells), 1)
    for place, (name, values) in enumerate(cells.items()):
        means = [sum(each) / len(each) for each in values.values()]
        at = [condition + (place + 0.5) * width - 0.4 for condition in range(len(means))]
        bars = axes.bar(at, means, width, label=name)
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(_CONDITIONS)), list(_CONDITIONS.values()))
    axes.set(ylabel="test accuracy, %")
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return figure


EXPERIMENT = Experiment(
    id="space",
    title="Hue times space",
    paper="",
    finding="Not in the paper: equivariance to hue, turns and mirror images multiplies.",
    what="networks equivariant to hue, to quarter turns and mirror images, and to both",
    full="10 min",
    quick="3 min",
    plan=plan,
    show=show,
    data=("flowers102",),
    options=("datasets", "networks", "seeds", "epochs", "size"),
)
