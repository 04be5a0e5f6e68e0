"""What canonicalisation does to trained networks: accuracy before and after, and what it costs."""

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from equicolor.canonicalization import Canonicalized, HueSelector, canonicalize, hue_selector
from equicolor.canonicalization.network import LIGHTS, PRESETS
from equicolor.evaluation.asker import Asker, evaluating
from equicolor.evaluation.evaluate import PREFIX, evaluate
from equicolor.evaluation.figures import Curve, action_panels, curve_style
from equicolor.evaluation.hue_sweep import hue_shifts
from equicolor.models.registry import GrayInput
from equicolor.paper import image_jobs
from equicolor.paper.experiment import Context, Experiment, Job, Scope
from equicolor.paper.quick_images import quick_note
from equicolor.paper.rows import Findings
from equicolor.paper.variants import dataset_title, datasets_of
from equicolor.reporting.html import Section
from equicolor.reporting.progress import counting
from equicolor.reporting.tables import MISSING, Table, mean_and_std
from equicolor.results import Row

__all__ = ["EXPERIMENT", "measure", "plan", "show"]

_NETWORKS = ("baseline", "hsv-6")
# What is put in front of a network: the arguments of canonicalize, by the words of the tables.
# The same selector with one mode and with two is trained once.
_SELECTIONS: dict[str, Sequence[Mapping[str, Any]]] = {
    "network alone": [{}],
    "grey input": [{"gray": True}],
    "highest energy": [{"select": "energy"}],
    "lowest entropy": [{"select": "entropy"}],
    "highest confidence": [{"select": "confidence"}],
    "tiny selector": [{"modes": 1}, {"modes": 2}],
    "fast selector": [{"modes": 1}, {"modes": 2}],
    "default selector": [{"modes": 1}, {"modes": 2}],
    "accurate selector": [{"modes": 1}, {"modes": 2}],
    "grey world": [{"select": "gray-world"}],
    "shades of grey": [{"select": "shades-of-gray"}],
}
_SIZES = PRESETS | {"tiny": {"size": 28, "width": 8}}
_QUICK = ("network alone", "tiny selector", "grey world")
_ACTIONS = ("hsv", "cast")
_REPEATS, _BATCH = 10, 128  # to take the time of


def plan(scope: Scope) -> list[Job]:
    """Train the networks, or take those of other experiments, and put each selection in front."""
    jobs = []
    epochs = 3 if scope.quick else 120
    for dataset in image_jobs.main_datasets(scope):
        networks = scope.networks or (_NETWORKS[:1] if scope.quick else _NETWORKS)
        for training in image_jobs.training_jobs(dataset, networks, scope):
            stages = _QUICK if scope.quick else [each for each in _SELECTIONS if each[:4] != "tiny"]
            for stage in stages:
                settings = {"selection": stage, "rotations": 12, "epochs": epochs}
                kind = f"canonicalization-{stage.replace(' ', '-')}"
                jobs.append(image_jobs.follow(training, kind, measure, settings))
    return jobs


def measure(job: Job, context: Context) -> list[Row]:
    """Judge a network behind one selection; a selector with one mode and with two."""
    network, batches, autocast = image_jobs.network_and_images(job, context)
    (run,) = context.before
    selection, rotations = job.settings["selection"], job.settings["rotations"]
    alone, rows = Asker(network, autocast), []
    selector = _fitted(network, job, context)
    for options in _SELECTIONS[selection]:
        stage = f"{selection}, two modes" if options.get("modes") == 2 else selection
        row = {**image_jobs.facts(run), "stage": stage}
        subject = _in_front(network, rotations, options, selector)
        if selector is not None:
            assert isinstance(subject, Canonicalized)
            row |= {"selector_epochs": job.settings["epochs"], "fit_seconds": selector.seconds}
            row["hue_kept"] = _share_at_zero(subject, batches)
        found = evaluate(subject, batches, actions=_ACTIONS, autocast=autocast).rows()[0]
        kept = ("original", "nll", "ece", "images", "evaluate_seconds")
        prefixes = ("hue_", "cast_")
        row |= {k: v for k, v in found.items() if k in kept or k.startswith(prefixes)}
        if subject is not network:
            row["time_ratio"] = _time_ratio(alone, Asker(subject, autocast), batches)
        rows.append(row)
    return rows


class _Fitted(NamedTuple):
    selector: HueSelector
    seconds: float


def _fitted(network: nn.Module, job: Job, context: Context) -> _Fitted | None:
    """The selector of a job, trained on the images of the network; None if it has none."""
    selection, (run,) = job.settings["selection"], context.before
    name, _, kind = selection.partition(" ")
    if kind != "selector":
        return None
    selector = hue_selector(rotations=job.settings["rotations"], **_SIZES[name])
    with counting(context.console, selection) as progress:
        canonical = canonicalize(network, select=selector).fit(
            image_jobs.training_images(job, context),
            epochs=job.settings["epochs"],
            seed=run.rows[0].get("seed", 0),
            checkpoint=context.folder / "fit.ckpt",
            progress=progress,
        )
    assert canonical.fitted is not None
    return _Fitted(selector, round(canonical.fitted.seconds, 1))


def _in_front(
    network: nn.Module, rotations: int, options: Mapping[str, Any], fitted: _Fitted | None
) -> nn.Module:
    """The network behind a selection."""
    if not options:
        return network
    if options.get("gray"):
        return GrayInput(network)
    if fitted is not None:
        return canonicalize(network, select=fitted.selector, **options)
    hues: dict[str, Any] = {} if options["select"] in LIGHTS else {"rotations": rotations}
    return canonicalize(network, **hues, **options)


@torch.inference_mode()
def _share_at_zero(network: Canonicalized, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The percentage of images that are left in the hue they have, to half a step."""
    with evaluating(network):
        angles = torch.cat([network.angle(images) for images, _ in batches])
    within = angles.abs() < 0.5 / network.options.rotations
    return round(100 * float(within.double().mean()), 2)


@torch.inference_mode()
def _time_ratio(alone: Asker, behind: Asker, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """How much longer a batch takes with a selection in front, by the median of several."""
    images, labels = next(iter(batches))
    images, _ = alone.place(images[:_BATCH], labels[:_BATCH])
    medians = []
    for ask in (alone, behind):
        with evaluating(ask.model):
            times = []
            for _ in range(_REPEATS + 2):
                start = time.perf_counter()
                ask(images)
                if images.is_cuda:
                    torch.cuda.synchronize(images.device)
                times.append(time.perf_counter() - start)
        medians.append(statistics.median(times[2:]))  # the first calls record and warm up
    return round(medians[1] / medians[0], 3)


def show(findings: Findings) -> Iterator[Section]:
    """A table and hue curves for every dataset and network."""
    rows = [row for row in findings.of("canonicalization") if row.get("hue_curve")]
    for dataset in datasets_of(rows):
        of_dataset = [row for row in rows if row["dataset"] == dataset]
        networks = {
            model: [row for row in of_dataset if _network(row) == model]
            for model in dict.fromkeys(map(_network, of_dataset))
        }
        for model, group in networks.items():
            title = f"{model} on {dataset_title(dataset)}, as it is and canonicalised"
            yield Section(
                title,
                quick_note([dataset]),
                _table(group, title),
                _figure(group),
                "Accuracy over the hue shift, and over the hue of a light that gives a cast.",
                f"canonicalization-{dataset}-{model.replace(' ', '-').replace(',', '')}",
            )


def _network(row: Row) -> str:
    if (row.get("rotations") or 1) == 1:
        return str(row["model"])
    return f"{row['model']}, {row['lifting']} {row['rotations']}"


def _table(rows: Sequence[Row], title: str) -> Table:
    lines = []
    for stage in dict.fromkeys(row["stage"] for row in rows):
        group = [row for row in rows if row["stage"] == stage]
        numbers = "original", "hue_mean", "cast_mean", "hue_kept", "time_ratio", "fit_seconds"
        cells = [[row[name] for row in group if name in row] for name in numbers]
        lines.append((stage, *(mean_and_std(cell) if cell else MISSING for cell in cells)))
    columns = (
        "in front of the network", "original", "hue-shifted", "under a cast", "hue kept",
        "time", "fit, s",
    )  # fmt: skip
    words = "accuracy in percent; 'hue kept' is the share of untouched images, time a ratio"
    return Table(columns, lines, f"{title}: {words}")


def _figure(rows: Sequence[Row]) -> Figure:
    panels: dict[str, list[Curve]] = {action: [] for action in _ACTIONS}
    for index, stage in enumerate(dict.fromkeys(row["stage"] for row in rows)):
        group = [row for row in rows if row["stage"] == stage]
        for action, curves in panels.items():
            found = torch.tensor([row[f"{PREFIX[action]}_curve"] for row in group]).mean(0)
            turns = hue_shifts(len(found)).tolist()
            curves.append(Curve(stage, turns, found.tolist(), style=curve_style(index)))
    return action_panels(panels, width=8.0)


EXPERIMENT = Experiment(
    id="canonicalization",
    title="Canonicalisation of a trained network",
    paper="",
    finding="Not in the paper.",
    what="a frozen network that sees images in their natural hues or light",
    full="25 min",
    quick="2 min",
    plan=plan,
    show=show,
    data=("flowers102",),
    options=("datasets", "networks", "seeds", "epochs", "size"),
    keeps=image_jobs.of_other_datasets,
)
