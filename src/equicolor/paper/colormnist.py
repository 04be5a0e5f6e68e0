"""The paper's two toy experiments, long-tailed and biased ColorMNIST.

On a GPU one job trains all seeds of a network on all its datasets side by side. A CPU has no
memory for that, so there every dataset and seed is a job.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.data import Digits, biased_colormnist, load_mnist, longtailed_colormnist
from equicolor.data.colormnist import BIASED_SEED, ColorMNIST
from equicolor.data.mnist import FULL_SOURCE
from equicolor.devices import choose_device
from equicolor.evaluation import hue_shifts, hue_sweep
from equicolor.models.checkpoints import save_model
from equicolor.models.z2cnn import Z2CNN
from equicolor.paper.colormnist_results import (
    BIASED,
    HUE_IMAGES,
    LONGTAILED,
    show_biased,
    show_longtailed,
)
from equicolor.paper.experiment import Context, Experiment, Job, Scope
from equicolor.reporting.progress import counting
from equicolor.results import Row
from equicolor.training.ensemble.runs import Recipe, Result
from equicolor.training.ensemble.train import train_many

EXPERIMENTS = (LONGTAILED, BIASED)
SIGMAS = (0.0, 12.0, 24.0, 36.0, 48.0, 60.0, 1e6)
QUICK_EPOCHS = 20
HUE_SHIFTS = hue_shifts(37)  # as the paper sweeps hues: the two ends are the same shift
_BATCH = 250  # of the sweep
_SWEPT = ("z2cnn", "cecnn")  # networks whose first seed is tested on shifted hues
_JITTER = 0.5

# Widths keep the parameters of the plain network; the paper's for three rotations.
MODELS: dict[str, Recipe] = {
    recipe.model: recipe
    for recipe in (
        Recipe("z2cnn"),
        Recipe("z2cnn-gray", gray=True),
        Recipe("cecnn", "cecnn"),
        Recipe("cecnn-pooled", "cecnn", {"coset_pool": "max"}),
        Recipe("cecnn-2", "cecnn", {"ce_layers": 2, "width": 19, "coset_pool": "max"}),
        Recipe("cecnn-4", "cecnn", {"ce_layers": 4, "width": 18, "coset_pool": "max"}),
        Recipe("cecnn-hsv6", "cecnn", {"rotations": 6, "width": 15, "lifting": "hsv"}),
        Recipe("cecnn-hsv12", "cecnn", {"rotations": 12, "width": 13, "lifting": "hsv"}),
    )
}


# Defaults of an experiment: networks, seeds, epochs and σ.
_Extent = tuple[tuple[str, ...], Sequence[int], int, Sequence[float | None]]
# Networks in the order of the paper, then those beyond it.
_FULL: dict[str, _Extent] = {
    LONGTAILED: (
        ("z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled", "cecnn-2", "cecnn-4",
         "z2cnn+jitter", "cecnn+jitter", "z2cnn+weighted", "cecnn+weighted"),
        range(10), 1000, (None,),
    ),
    BIASED: (
        ("z2cnn", "cecnn", "cecnn-pooled", "z2cnn-gray", "cecnn-hsv6", "cecnn-hsv12",
         "z2cnn+jitter", "cecnn+jitter"),
        range(10), 1500, SIGMAS,
    ),
}  # fmt: skip
# For minutes on two cores.
_QUICK: dict[str, _Extent] = {
    LONGTAILED: (("z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled"), (0,), QUICK_EPOCHS, (None,)),
    BIASED: (("z2cnn", "cecnn", "cecnn-pooled"), (0,), 10, (0.0, 36.0, 1e6)),
}


def quick_recipe(recipe: Recipe) -> Recipe:
    """A recipe for a fiftieth of the paper's epochs: larger steps and smaller batches."""
    return dataclasses.replace(recipe, lr=1e-2, batch_size=64)


def plan(experiment: str, scope: Scope) -> list[Job]:
    """The jobs of one of :data:`EXPERIMENTS`."""
    networks, seeds, epochs, sigmas = (_QUICK if scope.quick else _FULL)[experiment]
    seeds = seeds if scope.seeds is None else scope.seeds
    epochs = epochs if scope.epochs is None else scope.epochs
    sigmas = scope.sigmas or sigmas if experiment == BIASED else sigmas
    redraw = experiment == BIASED and scope.redraw
    if len(set(sigmas)) < len(sigmas):
        raise ValueError(f"sigmas must differ from each other, got {list(sigmas)}")
    networks = scope.networks or networks
    for name in networks:
        _checks.one_of("network", name, _FULL[experiment][0])
    digits = load_mnist(embedded=True if scope.quick else None)

    @functools.cache
    def checksum(sigma: float | None, draw_seed: int) -> str:
        return _draw(sigma, digits, draw_seed).checksum

    runs = list(itertools.product(sigmas, seeds))
    jobs = []
    for name, group in itertools.product(networks, [runs] if scope.cuda else [[r] for r in runs]):
        model, _, change = name.partition("+")
        recipe = dataclasses.replace(
            MODELS[model],
            jitter=_JITTER if change == "jitter" else 0.0,
            weighted=change == "weighted",
            epochs=epochs,
            precision=scope.precision,
        )
        settings = {
            "recipe": dataclasses.asdict(quick_recipe(recipe) if scope.quick else recipe),
            "runs": [[sigma, seed] for sigma, seed in group],
            "redraw": redraw,
            "embedded": digits.source != FULL_SOURCE,
            "data": [checksum(sigma, _draw_seed(seed, redraw)) for sigma, seed in group],
        }
        title = f"{experiment}/{name}"
        if not scope.cuda:
            ((sigma, seed),) = group
            title += ("" if sigma is None else f"-sigma{sigma:g}") + f"-seed{seed}"
        jobs.append(Job(title, "colormnist", train, settings, revision=4))
    return jobs


def _draw_seed(seed: int, redraw: bool) -> int:
    return seed if redraw else BIASED_SEED


def _draw(sigma: float | None, digits: Digits, seed: int) -> ColorMNIST:
    if sigma is None:
        return longtailed_colormnist(digits)
    return biased_colormnist(sigma, digits, seed=seed)


def train(job: Job, context: Context) -> list[Row]:
    """Train networks side by side: a row for each, and its checkpoint in the folder."""
    settings, device = job.settings, choose_device(context.device)
    recipe = Recipe(**settings["recipe"])
    digits = load_mnist(embedded=settings["embedded"])

    @functools.cache
    def draw(sigma: float | None, draw_seed: int) -> ColorMNIST:
        return _draw(sigma, digits, draw_seed)

    redraw = settings["redraw"]
    runs = [(draw(sigma, _draw_seed(seed, redraw)), seed) for sigma, seed in settings["runs"]]
    context.folder.mkdir(parents=True, exist_ok=True)
    with counting(context.console, job.name) as progress:
        results = train_many(
            recipe,
            runs,
            device=device,
            checkpoint=context.folder / "training.checkpoint",
            checkpoint_every=50 if device.type == "cuda" else 5,
            progress=progress,
        )
    changed = recipe.jitter or recipe.weighted
    rows = []
    for (data, seed), result in zip(runs, results, strict=True):
        network = trained(recipe, data, result)
        save_model(network, context.folder / f"{data.name}-seed{seed}.safetensors")
        rows.append(row(recipe, data, result, device))
        if redraw:
            rows[-1]["data_seed"] = data.seed
        if seed == 0 and data.sigma is None and recipe.model in _SWEPT and not changed:
            curve = hue_curve(network.to(device), data, HUE_IMAGES)
            rows[-1]["hue_curve"] = [round(value, 3) for value in curve.tolist()]
    return rows


def trained(recipe: Recipe, data: ColorMNIST, result: Result) -> Z2CNN:
    """The network of a result, in eval mode."""
    network = recipe.build(data.num_classes, result.seed)
    network.load_state_dict(result.state)
    return network.eval()


def row(recipe: Recipe, data: ColorMNIST, result: Result, device: torch.device) -> Row:
    """The facts about a trained network, and its accuracy on the test images."""
    options = recipe.build(data.num_classes, 0).config
    biased = data.sigma is not None
    return {
        "model": recipe.model,
        "rotations": options.get("rotations", 1),
        "lifting": options.get("lifting", "none"),
        "ce_layers": options.get("ce_layers", 0),
        "width": options["width"],
        "dataset": BIASED if biased else LONGTAILED,
        **({"sigma": data.sigma} if biased else {}),
        "augmentation": f"jitter {recipe.jitter:g}" if recipe.jitter else "none",
        "weighted": recipe.weighted,
        "seed": result.seed,
        "epochs": recipe.epochs,
        "precision": recipe.precision_on(device),
        "original": round(result.accuracy, 3),
        "loss": round(result.loss, 5),
        "train_size": len(data.train.labels),
        "test_size": len(data.test.labels),
        "digits": data.source,
        **({} if biased else {"per_class": [round(value, 2) for value in result.per_class]}),
    }


def hue_curve(network: nn.Module, data: ColorMNIST, per_class: int) -> Tensor:
    """How often a network still reads the digit when the hue of the test images is shifted.

    In the long-tailed experiment, a class is a digit and its colour. A shift changes the colour but
    not the digit, so only the digit counts here. Test images are ``per_class`` of each class of
    :func:`best_known`.

    Returns:
        Percent of digits read correctly at :data:`HUE_SHIFTS`, float64 ``[37]``.
    """
    members = [torch.nonzero(data.test.labels == c).flatten() for c in best_known(data)]
    images, labels = (part[torch.cat([m[:per_class] for m in members])] for part in data.test)
    colors = data.num_classes // 10
    batches = zip(images.split(_BATCH), (labels // colors).split(_BATCH), strict=True)
    # The logit of a digit is its highest logit in any colour.
    highest = nn.Sequential(nn.Unflatten(1, (-1, colors)), nn.AdaptiveMaxPool1d(1), nn.Flatten())
    return hue_sweep(nn.Sequential(network, highest), list(batches), HUE_SHIFTS).accuracy


def best_known(data: ColorMNIST) -> list[int]:
    """For every digit, the class (so the colour) with the most training images."""
    colors = data.num_classes // 10
    best = data.class_counts().view(10, colors).argmax(1)
    return [int(color) + colors * digit for digit, color in enumerate(best)]


def _keeps(old: Row, new: Sequence[Row]) -> bool:
    """Keep old rows that were trained for as many epochs and on the same digits as new ones."""
    return all(old.get(key) == new[0].get(key) for key in ("epochs", "digits"))


_colormnist = functools.partial(
    Experiment,
    quick="3 min",
    data=("mnist",),
    keeps=_keeps,
)
LONGTAILED_EXPERIMENT = _colormnist(
    id=LONGTAILED,
    title="Long-tailed ColorMNIST",
    paper="Fig. 2a, App. B",
    finding="CECNN reaches 91.35 % and a plain network 71.59 %; networks that cannot tell colours "
    "apart stay below a third. Weighting the classes makes no difference; hue jitter brings "
    "CECNN down to the level of the pooled one.",
    what="30 classes of unequal size, with shapes in three colours",
    full="6 min",
    plan=functools.partial(plan, LONGTAILED),
    show=show_longtailed,
    options=("networks", "seeds", "epochs", "precision"),
)
BIASED_EXPERIMENT = _colormnist(
    id=BIASED,
    title="Biased ColorMNIST",
    paper="Fig. 2b, App. B",
    finding="CECNN is above the plain network at every spread of the hue; the pooled CECNN leads "
    "from σ = 48° on.",
    what="digits that each have their own hue, with small or large spread",
    full="19 min",
    plan=functools.partial(plan, BIASED),
    show=show_biased,
    options=("networks", "seeds", "epochs", "sigmas", "redraw", "precision"),
)
