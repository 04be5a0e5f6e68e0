"""What canonicalisation does to the accuracy of trained networks."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from equicolor.canonicalization import Canonicalized, HueSelector, canonicalize, hue_selector
from equicolor.canonicalization.fit import collect, fit_selector
from equicolor.canonicalization.network import PRESETS
from equicolor.data.datasets import load_dataset
from equicolor.devices import choose_device
from equicolor.evaluation.evaluate import PREFIX, evaluate
from equicolor.evaluation.figures import Curve, action_panels, curve_style
from equicolor.evaluation.hue_sweep import hue_shifts
from equicolor.evaluation.runner import Runner, evaluating
from equicolor.models.checkpoints import load_model, save_model
from equicolor.models.registry import GrayInput
from equicolor.models.tensor_files import WEIGHTS
from equicolor.paper import image_jobs
from equicolor.paper.experiment import Context, Experiment, Job, Scope
from equicolor.paper.quick_images import quick_note
from equicolor.paper.rows import Findings
from equicolor.paper.variants import dataset_title, datasets_of
from equicolor.reporting.html import Section
from equicolor.reporting.progress import counting
from equicolor.reporting.tables import MISSING, Table, mean_and_std
from equicolor.results import Row

_NETWORKS = ("baseline", "hsv-6", "hsv-12")
_ROTATIONS = 12
# What is put in front of a network, by the words of the tables.
_ALONE, _GRAY = "network alone", "grey input"
_BY_THE_NETWORK = {
    "highest energy": "energy",
    "lowest entropy": "entropy",
    "highest confidence": "confidence",
}
# The network sees each image in 12 hues, so there is time for few shifts. Answers repeat every 30°;
# these shifts lie 0°, 10° and 20° above multiples of 30°, three times each.
_FEW_SHIFTS = 10
_LIGHTS = {"grey world": "gray-world", "shades of grey": "shades-of-gray"}
_SIZES = {f"{name} selector": size for name, size in PRESETS.items()}
_TINY = {"tiny selector": {"size": 28, "width": 8}}
# The slowest ones come last.
_SELECTIONS = (_ALONE, *_TINY, *reversed(_SIZES), *_LIGHTS, _GRAY, *_BY_THE_NETWORK)
# Measured with one plain network and one seed.
_ONCE = (*_BY_THE_NETWORK, "fast selector", "shades of grey")


def plan(scope: Scope) -> list[Job]:
    """Train networks, unless other experiments did, and put each selection in front of them."""
    jobs = []
    for dataset in image_jobs.main_datasets(scope):
        networks = scope.networks or (_NETWORKS[:1] if scope.quick else _NETWORKS)
        trainings = image_jobs.training_jobs(dataset, networks, scope)
        plain = [each for each in trainings if _is_plain(each.settings["recipe"]["options"])]
        for selection in _SELECTIONS:
            for training in trainings:
                if _is_measured(selection, training, scope, first=training in plain[:1]):
                    jobs.append(_measure_job(training, selection, scope))
    return jobs


def _is_plain(options: Row) -> bool:
    """Whether a network with these options, or the network of this row, is plain."""
    return (options.get("rotations") or 1) == 1


def _is_measured(selection: str, training: Job, scope: Scope, *, first: bool) -> bool:
    if scope.quick:
        return selection in (_ALONE, *_TINY, "grey world")
    options = training.settings["recipe"]["options"]
    if not _is_plain(options):
        # A selector cannot help a network that has as many hues as the selector compares.
        fewer = options["rotations"] < _ROTATIONS
        return selection in (_ALONE, "grey world") or (selection == "default selector" and fewer)
    return selection not in _TINY and (first or selection not in _ONCE)


def _measure_job(training: Job, selection: str, scope: Scope) -> Job:
    size = (_SIZES | _TINY).get(selection)
    fits = () if size is None else (_fit_job(training, selection, size, scope),)
    kind = f"canonicalization-{selection.replace(' ', '-')}"
    return image_jobs.follow(training, kind, measure, {"selection": selection}, *fits)


def _fit_job(training: Job, selection: str, size: dict[str, int], scope: Scope) -> Job:
    """The job that trains a selector: on images only, so all networks of a seed share it."""
    recipe = training.settings["recipe"]
    settings = {
        "selector": {"rotations": _ROTATIONS, **size},
        "epochs": 3 if scope.quick else None,
        "seed": recipe["seed"],
        "split_seed": recipe["split_seed"],
        "data": training.settings["data"],
    }
    name = f"{recipe['dataset']}/{selection.replace(' ', '-')}-seed{recipe['seed']}"
    return Job(name, "selector", fit, settings, about={"dataset": training.about["dataset"]})


def fit(job: Job, context: Context) -> list[Row]:
    """Train a selector on the training images of a dataset."""
    settings = job.settings
    images = load_dataset(job.about["dataset"], "train", seed=settings["split_seed"])
    selector = hue_selector(**settings["selector"]).to(choose_device(context.device))
    with counting(context.console, "fitting a selector") as progress:
        fitted = fit_selector(
            selector,
            collect(images, selector.size),
            epochs=settings["epochs"],
            seed=settings["seed"],
            checkpoint=context.folder / "fit.ckpt",
            progress=progress,
        )
    save_model(selector, context.folder / WEIGHTS)
    return [{"selector_epochs": fitted.epochs, "fit_seconds": round(fitted.seconds, 1)}]


def measure(job: Job, context: Context) -> list[Row]:
    """Evaluate a network behind one selection; a plain one also with two modes of its selector."""
    network, batches, autocast = image_jobs.network_and_images(job, context)
    run, *fits = context.before
    selection = job.settings["selection"]
    row: Row = {**image_jobs.facts(run), "stage": selection}
    subjects = {selection: _in_front(network, selection)}
    if fits:
        selector = load_model(fits[0].folder / WEIGHTS).to(choose_device(context.device))
        assert isinstance(selector, HueSelector)
        subjects[selection] = one = canonicalize(network, select=selector)
        if _is_plain(row):
            subjects[f"{selection}, two modes"] = canonicalize(network, select=selector, modes=2)
        row |= fits[0].rows[0] | {"hue_kept": _share_at_zero(one, batches)}
    by_the_network = selection in _BY_THE_NETWORK
    actions: tuple[str, ...] = ("hsv", "cast")
    if fits or by_the_network:  # these do not change the light
        actions = ("hsv",)
    elif selection in _LIGHTS:
        actions = ("cast",)
    elif selection == _ALONE:  # the training has its hue sweep
        actions = ("cast",)
        row |= {key: value for key, value in run.rows[0].items() if key.startswith("hue_")}
    shifts = _FEW_SHIFTS if by_the_network else len(hue_shifts())
    rows = []
    for stage, subject in subjects.items():
        evaluation = evaluate(subject, batches, actions=actions, shifts=shifts, autocast=autocast)
        (evaluated,) = evaluation.rows()
        keys = ("original", "nll", "ece", "images", "evaluate_seconds")
        prefixes = tuple(f"{PREFIX[action]}_" for action in actions)
        measured = {k: v for k, v in evaluated.items() if k in keys or k.startswith(prefixes)}
        rows.append(row | {"stage": stage} | measured)
    return rows


def _in_front(network: nn.Module, selection: str) -> nn.Module:
    """The network behind a selection that has nothing to train."""
    if selection == _GRAY:
        return GrayInput(network)
    if selection in _LIGHTS:
        return canonicalize(network, select=_LIGHTS[selection])
    if selection in _BY_THE_NETWORK:
        return canonicalize(network, _ROTATIONS, select=_BY_THE_NETWORK[selection])
    return network


@torch.inference_mode()
def _share_at_zero(network: Canonicalized, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The percentage of images whose hue the selector keeps, to within half a step."""
    runner = Runner(network, None)
    with evaluating(network):
        angles = torch.cat([network.angle(runner.place(*batch)[0]) for batch in batches])
    within = angles.abs() < 0.5 / network.options.rotations
    return round(100 * float(within.double().mean()), 2)


def show(findings: Findings) -> Iterator[Section]:
    """A table and hue curves for every dataset and network, and casts for every dataset."""
    rows = [row for row in findings.of("canonicalization") if "stage" in row]
    for dataset in datasets_of(rows):
        of_dataset = [row for row in rows if row["dataset"] == dataset]
        words, note = dataset_title(dataset), quick_note([dataset])
        for model in dict.fromkeys(map(_network, of_dataset)):
            group = [row for row in of_dataset if _network(row) == model]
            title, curves = f"{model} on {words}, as it is and canonicalised", _curves(group, "hsv")
            if not curves:  # what is measured under hue shifts is not finished
                yield Section(title, note, _table(group, title))
                continue
            yield Section(
                title,
                note,
                _table(group, title),
                action_panels({"hsv": curves}, width=8.0),
                "Accuracy over the hue shift.",
                f"canonicalization-{dataset}-{model.replace(' ', '-').replace(',', '')}",
            )
        if casts := _curves(of_dataset, "cast", named=True):
            yield Section(
                f"A coloured light on {words}",
                note,
                None,
                action_panels({"cast": casts}, width=8.0),
                "Accuracy over the hue of a light that gives the image a cast.",
                f"canonicalization-{dataset}-cast",
            )


def _network(row: Row) -> str:
    if _is_plain(row):
        return str(row["model"])
    return f"{row['model']}, {row['lifting']} {row['rotations']}"


def _table(rows: Sequence[Row], title: str) -> Table:
    lines = []
    for stage in dict.fromkeys(row["stage"] for row in rows):
        group = [row for row in rows if row["stage"] == stage]
        numbers = "original", "hue_mean", "cast_mean", "hue_kept", "fit_seconds"
        cells = [[row[name] for row in group if name in row] for name in numbers]
        lines.append((stage, *(mean_and_std(cell) if cell else MISSING for cell in cells)))
    columns = (
        "in front of the network", "original", "hue-shifted", "under a cast", "hue kept", "fit, s",
    )  # fmt: skip
    words = "accuracy in percent; 'hue kept' is the share of untouched images"
    return Table(columns, lines, f"{title}: {words}")


def _curves(rows: Sequence[Row], action: str, *, named: bool = False) -> list[Curve]:
    """The mean curve over seeds of every selection; ``named`` adds the network to its name."""
    groups: dict[str, list[list[float]]] = {}
    for row in rows:
        name = f"{_network(row)}: {row['stage']}" if named else row["stage"]
        if curve := row.get(f"{PREFIX[action]}_curve"):
            groups.setdefault(name, []).append(curve)
    curves = []
    for index, (name, group) in enumerate(groups.items()):
        mean = torch.tensor(group).mean(0)
        turns = hue_shifts(len(mean)).tolist()
        style = curve_style(index)
        if len(mean) == _FEW_SHIFTS:  # a line would suggest waves that do not exist
            style |= {"linestyle": "none", "markevery": 1}
        curves.append(Curve(name, turns, mean.tolist(), style=style))
    return curves


EXPERIMENT = Experiment(
    id="canonicalization",
    title="Canonicalisation of a trained network",
    paper="",
    finding="Not in the paper.",
    what="a frozen network on images that are taken back to their natural hues or light",
    full="25 min",
    quick="2 min",
    plan=plan,
    show=show,
    data=("flowers102",),
    options=("datasets", "networks", "seeds", "epochs", "size"),
)
