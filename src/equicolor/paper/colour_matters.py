"""Networks on images whose colours matter: the label is a colour, or a stain tells it.

Invariance to hue loses what the hue tells. This measures what it costs on the images as they are,
and what it saves when hues, saturations or the light change.
"""

from collections.abc import Iterator, Mapping, Sequence

from equicolor.evaluation.evaluate import PREFIX
from equicolor.evaluation.figures import Curve, action_panels
from equicolor.paper import image_jobs
from equicolor.paper.classification import accuracy_table, mean_curve
from equicolor.paper.experiment import Experiment, Job, Scope
from equicolor.paper.quick_images import quick_note
from equicolor.paper.rows import Findings
from equicolor.paper.variants import Variant, by_variant, dataset_title, datasets_of, style
from equicolor.reporting.html import Section
from equicolor.results import Row

_CHANGES = {"saturation": "saturation", "cast": "coloured light"}  # beside the hue shift
_NETWORKS = ("baseline", "baseline+jitter-0.1", "baseline+jitter", "gray", "hsv-6", "hsv-6+flatten")
_QUICK_NETWORKS = ("baseline", "hsv-6")


def plan(scope: Scope) -> list[Job]:
    """Train the networks, unless other experiments did, and measure each under more changes."""
    networks = scope.networks or (_QUICK_NETWORKS if scope.quick else _NETWORKS)
    datasets = scope.datasets or ("coloured-digits" if scope.quick else "breakhis",)
    return [
        job
        for dataset in datasets
        for training in image_jobs.training_jobs(dataset, networks, scope)
        for job in (training, _measured(training))
    ]


def _measured(training: Job) -> Job:
    actions = {"actions": list(_CHANGES)}
    return image_jobs.follow(training, "colours", image_jobs.sweep, actions, extends=True)


def show(findings: Findings) -> Iterator[Section]:
    """A table and curves for each dataset."""
    rows = findings.of("colour-matters")
    for dataset in datasets_of(rows):
        of_dataset = [row for row in rows if row["dataset"] == dataset]
        groups = by_variant(of_dataset)
        means = {title: f"{PREFIX[action]}_mean" for action, title in _CHANGES.items()}
        more = {title: key for title, key in means.items() if any(key in row for row in of_dataset)}
        panels = {
            action: _curves(groups, f"{PREFIX[action]}_curve") for action in ("hsv", *_CHANGES)
        }
        name = dataset_title(dataset)
        yield Section(
            f"Where colour matters, {name}",
            quick_note([dataset]),
            accuracy_table(groups, dataset, more=more),
            action_panels({action: curves for action, curves in panels.items() if curves}),
            "Accuracy on changed test images.",
            f"colour-matters-{dataset}",
        )


def _curves(groups: Mapping[Variant, Sequence[Row]], key: str) -> list[Curve]:
    """The curves of the networks whose rows all have one."""
    return [
        mean_curve(group, key, variant.name, style(variant))
        for variant, group in groups.items()
        if all(key in row for row in group)
    ]


EXPERIMENT = Experiment(
    id="colour-matters",
    title="Where colour matters",
    paper="",
    finding="Not in the paper: what invariance to hue costs where hue tells the label.",
    what="plain, grey and equivariant networks on images whose colours tell their labels",
    full="15 min",
    quick="1 min",
    plan=plan,
    show=show,
    data=("breakhis",),
    options=("datasets", "networks", "seeds", "epochs", "size"),
)
