"""Image classification: Tables 1 and 3, Figure 1b."""

from equicolor.paper import image_jobs
from equicolor.paper.classification_results import show
from equicolor.paper.experiment import Experiment, Job, Scope

__all__ = ["EXPERIMENT", "plan"]

_QUICK_NETWORKS = ("baseline", "gray", "ce-2", "ce-4", "hsv-6", "baseline+jitter", "ce-4+jitter")

_DATASETS = (
    "flowers102", "cifar10", "cifar100", "stl10", "oxford_pet", "caltech101", "stanford_cars",
    "imagenet",
)  # fmt: skip


def plan(scope: Scope) -> list[Job]:
    """Train the networks of the paper's tables on every dataset."""
    networks = scope.networks or (_QUICK_NETWORKS if scope.quick else None)
    return [
        job
        for dataset in image_jobs.datasets_on_disk(scope)
        for job in image_jobs.training_jobs(dataset, networks, scope, scope.actions)
    ]


EXPERIMENT = Experiment(
    id="classification",
    title="Image classification",
    paper="Tables 1, 3, Fig. 1b, App. C",
    finding="Equivariant networks are on par with plain ones on the original test sets and far "
    "more robust to hue shifts; with hue jitter they are best of all.",
    what="real images, original and with shifted hues",
    full="2 h a seed and dataset",
    quick="2 min",
    plan=plan,
    show=show,
    data=_DATASETS,
    options=("datasets", "networks", "seeds", "epochs", "size", "actions"),
)
