"""Networks equivariant to hue, to space and to both, on turned, mirrored and hue-shifted images.

Two experiments: sizes at which random networks are exact, and the gain of trained networks.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from equicolor.color import shift_hue
from equicolor.evaluation.runner import Runner, evaluating
from equicolor.groups import SpatialGroup
from equicolor.models import create_model
from equicolor.nn import CEConv2d, CELiftConv2d
from equicolor.paper import image_jobs
from equicolor.paper.equivariance import sample_photo
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
from equicolor.testing import equivariance_error

_NETWORKS = ("baseline", "hsv-6", "baseline+p4m", "hsv-6+p4m")
_SIZE = 69  # ResNets with a spatial group are exact at sizes of 32 k + 5
_PLANE = SpatialGroup("p4m")
_HUES = 12
# What is done to the test images, by the keys of the rows.
_CONDITIONS = {
    "original": "as they are",
    "hues_mean": f"in {_HUES} hues",
    "turns_mean": "turned and mirrored",
    "both_mean": "both",
}
# A size at which all layers with a stride treat both borders alike, and the usual size.
_SIZES = {"resnet18": (229, 224), "resnet44": (33, 32)}


def plan(scope: Scope) -> list[Job]:
    """Train the networks at equal parameters, and measure each."""
    networks = scope.networks or _NETWORKS
    if scope.size is None and not scope.quick:  # quick digits are too small for it
        scope = dataclasses.replace(scope, size=_SIZE)
    return [
        image_jobs.follow(training, "space", measure, {"hues": _HUES})
        for dataset in image_jobs.main_datasets(scope)
        for training in image_jobs.training_jobs(dataset, networks, scope)
    ]


def exactness(job: Job, context: Context) -> list[Row]:
    """How much hue shifts, turns and mirror images change a random network's logits, in float64."""
    settings = dict(job.settings)
    name = settings.pop("network")
    torch.manual_seed(0)
    network = create_model(name, num_classes=10, lifting="hsv", **settings).double()
    rows = []
    for size in _SIZES[name]:
        photo = _square_photo(size).double()
        with torch.no_grad():
            network.train()(photo.expand(2, -1, -1, -1))  # sets the batch statistics
        group = settings["rotations"], "hsv"
        change = equivariance_error(network.eval(), photo, *group, spatial=settings["spatial"])
        row = {"network": name, **settings, "lifting": "hsv", "input_size": size}
        rows.append({**row, "change": float(f"{change:.3g}")})
    return rows


def _square_photo(size: int) -> Tensor:
    """A part of the photo of a flower without any symmetry."""
    photo = sample_photo(size * 4 // 3)
    return photo[..., -size:, size // 3 : size // 3 + size]


@torch.inference_mode()
def measure(job: Job, context: Context) -> list[Row]:
    """The accuracy of a network on test images in every turn, mirror image and hue."""
    network, batches, autocast = image_jobs.network_and_images(job, context)
    runner, hues = Runner(network, autocast), job.settings["hues"]
    correct, total = [], 0  # for each batch [elements, hues], on the device to spare device syncs
    with evaluating(network), counting(context.console, "turning images and hues") as progress:
        for done, batch in enumerate(batches, start=1):
            images, labels = runner.place(*batch)
            answers = [
                runner(shift_hue(_PLANE.transform(images, element), hue / hues), like=images)
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
            "parameters": sum(weight.numel() for weight in network.parameters()),
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
        parameters = {
            variant.name: f"{group[0]['parameters'] / 1e6:.2f} M"
            for variant, group in by_variant(of_dataset).items()
        }
        lines = [
            (name, parameters[name], *map(mean_and_std, values.values()))
            for name, values in cells.items()
        ]
        title, note = f"Hue times space, {dataset_title(dataset)}", quick_note([dataset])
        words = f"{title}; {setting}" if setting else title
        yield Section(
            title,
            f"{note} Turns are not exact at their 28 pixels." if note else "",
            Table(("network", "parameters", *_CONDITIONS.values()), lines, words),
            _figure(cells),
            "Accuracy on the test images as they are, in all hues, turned and mirrored, and both; "
            "p4m is equivariance to quarter turns and mirror images.",
            figure_file("space", dataset),
        )


def plan_turns(scope: Scope) -> list[Job]:
    """A job for each network; nothing is trained."""
    settings: Row = {"rotations": 3, "spatial": "p4m", "width": 4}
    return [
        Job(f"turns/{network}", "turns", exactness, settings | {"network": network})
        for network in _SIZES
    ]


def show_turns(findings: Findings) -> Iterator[Section]:
    """The sizes at which networks are exact, and a figure of features that turn and roll."""
    rows = findings.of("turns")
    if not rows:
        return
    lines = [(row["network"], str(row["input_size"]), f"{row['change']:.0e}") for row in rows]
    caption = (
        "One channel of a random network with three hues (rows) and four quarter turns (columns). "
        "A turn of the photo turns the maps and moves them to the next column; a hue shift moves "
        "them to the next row."
    )
    yield Section(
        "",
        "Hue shifts, turns and mirror images leave the logits of a random network (p4m, n = 3) "
        "where they are if every layer with a stride sees both borders of the image alike.",
        Table(("network", "size", "largest change"), lines, "Ours: relative change of the logits"),
        _turning(_square_photo(65)),
        caption,
        "space-features",
    )


def _turning(photo: Tensor) -> Figure:
    """The features of a photo, of the turned photo, of the photo in another hue, and of both."""
    torch.manual_seed(5)
    features = nn.Sequential(
        CELiftConv2d(3, 4, 7, stride=2, padding=3, lifting="hsv", rotations=3, spatial="p4"),
        nn.ReLU(),
        CEConv2d(4, 1, 7, padding=3, rotations=3, spatial="p4"),
    )
    turned = _PLANE.transform(photo, 1)
    images = {
        "a photo": photo,
        "turned by 90°": turned,
        "hue shifted": shift_hue(photo, 1 / 3),
        "both": shift_hue(turned, 1 / 3),
    }
    figure = Figure(figsize=(6.6, 3.2), layout="constrained")
    grid = figure.subplots(2, 4, width_ratios=[1, 1.9, 1, 1.9])
    for (title, image), (line, column) in zip(
        images.items(), itertools.product(range(2), (0, 2)), strict=True
    ):
        with torch.no_grad():
            maps = features(image)[0].transpose(0, 1)  # [hues, turns, H, W]
        tiles = F.pad(maps, (1, 1, 1, 1), value=float("nan"))
        mosaic = tiles.permute(0, 2, 1, 3).flatten(0, 1).flatten(1, 2)
        grid[line, column].imshow(image[0].permute(1, 2, 0))
        grid[line, column].set_title(title, fontsize=9)
        grid[line, column + 1].imshow(mosaic, cmap="magma")
        for axes in grid[line, column : column + 2]:
            axes.set_axis_off()
    return figure


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


TURNS = Experiment(
    id="turns",
    title="Sizes at which turns are exact",
    paper="",
    finding="Not in the paper: turns are exact where strides see both borders alike.",
    what="change of random networks' logits under hue shifts, turns and mirror images",
    full="1 min",
    quick="1 min",
    plan=plan_turns,
    show=show_turns,
)
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
