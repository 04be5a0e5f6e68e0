"""From the id of an experiment to its jobs, at the paper's scale or in minutes."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equicolor.data import load_mnist
from equicolor.data.datasets import DATASETS, dataset_state, find_dataset, load_dataset
from equicolor.devices import choose_precision
from equicolor.evaluation.hue_sweep import ACTIONS
from equicolor.models.registry import usual_resize
from equicolor.paper import ablations, colormnist_jobs
from equicolor.paper.jobs import JOBS, Job
from equicolor.paper.picture_jobs import Part, parts_of, plan, settle
from equicolor.paper.quick_pictures import PICTURES, write_pictures
from equicolor.paper.recipe_names import narrow
from equicolor.paper.registry import find_experiment
from equicolor.paper.variants import all_stages
from equicolor.training.recipes import default_recipe
from equicolor.training.run_options import RunOptions

__all__ = ["Scope", "options_of", "parts"]

MAIN = "flowers102"  # the dataset of the paper's ablations
QUICK_MAIN = "coloured-digits"
TOP = 50  # pictures that excite a unit most
_QUICK_TOP = 20
_QUICK_NETWORKS = ("baseline", "gray", "ce-2", "ce-4", "hsv-6", "baseline+jitter", "ce-4+jitter")
# Small networks on small pictures, with large steps: seconds to a minute each.
_QUICK_RECIPE: dict[str, Any] = {
    "size": 28, "resize": 28, "crop": "padded", "flip": False, "epochs": 10, "batch_size": 50,
    "lr": 5e-3, "precision": "float32",
}  # fmt: skip
_QUICK_WIDTH = 8
_CONVERSION = {"rotations": 6, "lifting": "hsv"}
_CONVERSION_EPOCHS, _QUICK_CONVERSION_EPOCHS = 20, 3


@dataclass(frozen=True)
class Scope:
    """How much of an experiment to run.

    Attributes:
        output: the folder; jobs are kept in ``jobs/``, made-up pictures in ``pictures/``.
        quick: minutes on two cores.
        datasets: of the experiments on pictures; by default Flowers-102 for ablations and
            features, and whatever is on disk (ImageNet aside) for tables and selectivity.
        seeds: how many; by default 10 for ColorMNIST, or as quick has it, and 1 on pictures.
        epochs: instead of the paper's.
        size: height and width of the pictures, for a reduced setting.
        cuda: whether a GPU trains: in bfloat16, and all seeds of ColorMNIST side by side.
    """

    output: Path
    quick: bool = False
    datasets: tuple[str, ...] = ()
    seeds: int | None = None
    epochs: int | None = None
    size: int | None = None
    cuda: bool = False


def parts(experiment: str, scope: Scope) -> list[Part]:
    """The jobs of an experiment, and which of their rows belong together.

    Args:
        experiment: an id.
        scope: how much of it.

    Raises:
        MissingDataError: if a dataset is not there.

    Example:
        >>> [part.job.name for part in parts("configurations", Scope(Path("runs")))]
        ['configurations']
    """
    find_experiment(experiment)
    return _PLANS[experiment](experiment, scope)


def _alone(experiment: str, scope: Scope) -> list[Part]:
    return [Part(Job(experiment, experiment, {}))]


def _colormnist(experiment: str, scope: Scope) -> list[Part]:
    digits = load_mnist(embedded=True if scope.quick else None)
    count, listed = colormnist_jobs.plan(
        experiment, digits, seeds=scope.seeds, epochs=scope.epochs, quick=scope.quick
    )
    made = colormnist_jobs.as_jobs(
        experiment, listed, range(count), side_by_side=scope.cuda, prefix=f"{experiment}/"
    )
    return [Part(job) for jobs in made.values() for job in jobs]


def _classification(experiment: str, scope: Scope) -> list[Part]:
    networks = _QUICK_NETWORKS if scope.quick else None
    chosen = scope.datasets or ((QUICK_MAIN,) if scope.quick else _present())
    return [part for name in chosen for part in _runs(name, networks, scope)]


def _ablation(experiment: str, scope: Scope) -> list[Part]:
    found = []
    actions = ACTIONS if experiment == "ablation-rotations" else ()
    for name in scope.datasets or (QUICK_MAIN if scope.quick else MAIN,):
        networks = ablations.networks(experiment, _place(name, scope), quick=scope.quick)
        found += _runs(name, networks, scope, actions)
    return found


def _selectivity(experiment: str, scope: Scope) -> list[Part]:
    """The baseline and the hybrids of every dataset; the baseline's units are looked at."""
    found = []
    for name in scope.datasets or (tuple(PICTURES) if scope.quick else _present()):
        place = _place(name, scope)
        stages = range(1, all_stages(default_recipe(place).model) + 1)
        hybrids = [f"ce-{count}" for count in stages if not (scope.quick and count % 2)]
        runs = _runs(name, ["baseline", *hybrids], scope)
        settings = {"top": _QUICK_TOP if scope.quick else TOP, "grey": "luma"}
        train = runs[0].job
        job = Job(f"{train.name}.selectivity", experiment, settings, (train,), {"dataset": place})
        found += [*runs, Part(job)]
    return found


def _features(experiment: str, scope: Scope) -> list[Part]:
    found = []
    for name in scope.datasets or (QUICK_MAIN if scope.quick else MAIN,):
        place = _place(name, scope)
        full = f"ce-{all_stages(default_recipe(place).model)}"
        run, *_ = _runs(name, [full], scope)
        settings = {"top": _QUICK_TOP if scope.quick else TOP, "units": 2}
        after, about = (run.job,), {"dataset": place}
        found.append(Part(Job(f"{run.job.name}.features", experiment, settings, after, about)))
    return found


def _conversion(experiment: str, scope: Scope) -> list[Part]:
    found = []
    for name in scope.datasets or (QUICK_MAIN if scope.quick else MAIN,):
        run, *_ = _runs(name, ["baseline"], scope)
        epochs = _QUICK_CONVERSION_EPOCHS if scope.quick else _CONVERSION_EPOCHS
        settings = {**_CONVERSION, "finetune_epochs": epochs}
        after, about = (run.job,), {"dataset": _place(name, scope)}
        found.append(Part(Job(f"{run.job.name}.conversion", experiment, settings, after, about)))
    return found


def options_of(experiment: str) -> tuple[str, ...]:
    """The settings of a :class:`Scope` that make a difference to an experiment.

    Example:
        >>> options_of("colormnist-biased"), options_of("configurations")
        (('seeds', 'epochs'), ())
    """
    if find_experiment(experiment).name in ("equivariance", "configurations"):
        return ()
    if experiment.startswith("colormnist"):
        return "seeds", "epochs"
    one = experiment in ("neuron-features", "conversion")  # of one seed
    return ("datasets", "epochs", "size") if one else ("datasets", "seeds", "epochs", "size")


_PLANS: dict[str, Callable[[str, Scope], list[Part]]] = {
    "equivariance": _alone,
    "configurations": _alone,
    "colormnist-longtailed": _colormnist,
    "colormnist-biased": _colormnist,
    "classification": _classification,
    "selectivity": _selectivity,
    "neuron-features": _features,
    "conversion": _conversion,
    **dict.fromkeys(ablations.ABLATIONS, _ablation),
}


def _present() -> tuple[str, ...]:
    """The datasets on disk that train within a day; Flowers-102 if there are none."""
    found = [name for name, info in DATASETS.items() if not dataset_state(info).missing]
    return tuple(name for name in found if name != "imagenet") or (MAIN,)


def _place(dataset: str, scope: Scope) -> str:
    """A dataset's name, or the path of a folder, written first if it is made up."""
    if scope.quick and dataset in PICTURES:
        return str(write_pictures(dataset, scope.output / "pictures").resolve())
    return dataset


def _runs(
    dataset: str, networks: Sequence[str] | None, scope: Scope, actions: Sequence[str] = ()
) -> list[Part]:
    place = _place(dataset, scope)
    load_dataset(place, "test")  # which says what is missing, before anything is trained
    name = find_dataset(place).name
    runs = plan(place, networks, seeds=scope.seeds or 1)
    precision = choose_precision("auto", cuda=scope.cuda)
    changes: dict[str, Any] = dict(_QUICK_RECIPE) if scope.quick else {"precision": precision}
    if scope.epochs is not None:
        changes["epochs"] = scope.epochs
    if scope.size is not None:
        changes |= {"size": scope.size, "resize": usual_resize(scope.size)}
    runs = [run._replace(recipe=dataclasses.replace(run.recipe, **changes)) for run in runs]
    if scope.quick:
        runs = [run._replace(recipe=narrow(run.recipe, _QUICK_WIDTH)) for run in runs]
    prefix = f"{name}/"
    options = RunOptions(workers=0) if scope.quick else None
    return parts_of(
        settle(runs, scope.output / JOBS / name), actions=actions, options=options, prefix=prefix
    )
