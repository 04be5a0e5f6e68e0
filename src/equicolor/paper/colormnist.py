"""The paper's two toy experiments, long-tailed and biased ColorMNIST.

On a GPU one job trains all seeds of a network on all its datasets side by side. A CPU has no
memory for that, so there every dataset and seed is a job.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.data import (
    ColorMNIST,
    Digits,
    MissingDataError,
    biased_colormnist,
    data_root,
    load_mnist,
    longtailed_colormnist,
)
from equicolor.data.colormnist import BIASED_SEED
from equicolor.data.mnist import EMBEDDED_SOURCE, FULL_SOURCE
from equicolor.devices import choose_device
from equicolor.evaluation import hue_shifts, hue_sweep
from equicolor.models.checkpoints import save_model
from equicolor.models.z2cnn import Z2CNN
from equicolor.paper.colormnist_figures import (
    hue_figure,
    per_class_figure,
    sample_sheet,
    sigma_figure,
)
from equicolor.paper.colormnist_tables import (
    biased_table,
    gains_table,
    headline,
    longtailed_table,
    sigmas_of,
)
from equicolor.paper.experiment import Context, Experiment, Job, Scope
from equicolor.paper.rows import Findings
from equicolor.reporting.html import Section
from equicolor.reporting.progress import counting
from equicolor.results import Row
from equicolor.training.ensemble.runs import Recipe, Result
from equicolor.training.ensemble.train import train_many

__all__ = [
    "BIASED_EXPERIMENT", "EXPERIMENTS", "HUE_SHIFTS", "LONGTAILED_EXPERIMENT", "MODELS", "SIGMAS",
    "best_known", "digits_of", "hue_curve", "plan", "quick_recipe", "row", "show_biased",
    "show_longtailed", "train", "trained",
]  # fmt: skip

EXPERIMENTS = LONGTAILED, BIASED = "colormnist-longtailed", "colormnist-biased"
SIGMAS = (0.0, 12.0, 24.0, 36.0, 48.0, 60.0, 1e6)
QUICK_EPOCHS = 20
HUE_SHIFTS = hue_shifts(37)  # as the paper sweeps hues: the two ends are the same shift
HUE_IMAGES = 30  # of a class, on which the first seed is swept
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


class _Extent(NamedTuple):
    """How much of an experiment is run unless a scope says otherwise."""

    networks: tuple[str, ...]
    seeds: tuple[int, ...]
    epochs: int
    sigmas: tuple[float, ...] = ()


# Networks in the order of the paper, then what goes beyond it.
_FULL = {
    LONGTAILED: _Extent(
        ("z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled", "cecnn-2", "cecnn-4",
         "z2cnn+jitter", "cecnn+jitter", "z2cnn+weighted", "cecnn+weighted"),
        tuple(range(10)), 1000,
    ),
    BIASED: _Extent(
        ("z2cnn", "cecnn", "cecnn-pooled", "z2cnn-gray", "cecnn-hsv6", "cecnn-hsv12",
         "z2cnn+jitter", "cecnn+jitter"),
        tuple(range(10)), 1500, SIGMAS,
    ),
}  # fmt: skip
# Minutes on two cores.
_QUICK = {
    LONGTAILED: _Extent(("z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled"), (0,), QUICK_EPOCHS),
    BIASED: _Extent(("z2cnn", "cecnn", "cecnn-pooled"), (0,), 10, (0.0, 36.0, 1e6)),
}


def quick_recipe(recipe: Recipe) -> Recipe:
    """A recipe for a fiftieth of the paper's training: larger steps and smaller batches."""
    return dataclasses.replace(recipe, lr=1e-2, batch_size=64)


def plan(experiment: str, scope: Scope) -> list[Job]:
    """The jobs of one of :data:`EXPERIMENTS`.

    Example:
        >>> from pathlib import Path
        >>> scope = Scope(Path("runs"), quick=True, networks=("cecnn",), seeds=(0, 3))
        >>> [job.name for job in plan("colormnist-longtailed", scope)]
        ['colormnist-longtailed/cecnn-seed0', 'colormnist-longtailed/cecnn-seed3']
    """
    extent = (_QUICK if scope.quick else _FULL)[experiment]
    seeds = extent.seeds if scope.seeds is None else scope.seeds
    epochs = extent.epochs if scope.epochs is None else scope.epochs
    biased = experiment == BIASED
    sigmas: Sequence[float | None] = (scope.sigmas or extent.sigmas) if biased else (None,)
    redraw = biased and scope.redraw
    if len(set(sigmas)) < len(sigmas):
        raise ValueError(f"sigmas must differ from each other, got {list(sigmas)}")
    networks = scope.networks or extent.networks
    for name in networks:
        _checks.one_of("network", name, _FULL[experiment].networks)
    digits = load_mnist(embedded=True if scope.quick else None)

    @functools.cache
    def checksum(sigma: float | None, draw_seed: int) -> str:
        return _draw(sigma, digits, draw_seed).checksum

    runs = list(itertools.product(sigmas, seeds))
    jobs = []
    for name, group in itertools.product(networks, [runs] if scope.cuda else [[r] for r in runs]):
        recipe = _recipe(name, epochs=epochs, precision=scope.precision)
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


def _recipe(name: str, *, epochs: int, precision: str) -> Recipe:
    model, _, change = name.partition("+")
    return dataclasses.replace(
        MODELS[model],
        jitter=_JITTER if change == "jitter" else 0.0,
        weighted=change == "weighted",
        epochs=epochs,
        precision=precision,
    )


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
    """What a trained network is and how well it reads the test images."""
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

    Where the colour belongs to the class, as in the long-tailed experiment, a shift changes the
    right answer; the digit stays, so it is the digit alone that counts here. Test images are
    ``per_class`` of each class of :func:`best_known`.

    Returns:
        Percent of digits read correctly at :data:`HUE_SHIFTS`, float64 ``[37]``.
    """
    members = [torch.nonzero(data.test.labels == c).flatten() for c in best_known(data)]
    images, labels = (part[torch.cat([m[:per_class] for m in members])] for part in data.test)
    colors = data.num_classes // 10
    batches = zip(images.split(_BATCH), (labels // colors).split(_BATCH), strict=True)
    return hue_sweep(_DigitReader(network, colors), list(batches), HUE_SHIFTS).accuracy


class _DigitReader(nn.Module):
    """A network that names digits in colours, asked for the digit in whatever colour."""

    def __init__(self, network: nn.Module, colors: int) -> None:
        super().__init__()
        self.network, self.colors = network, colors

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, 28, 28]`` to the highest logit of every digit, ``[B, 10]``."""
        highest: Tensor = self.network(images).unflatten(1, (-1, self.colors)).amax(2)
        return highest


def best_known(data: ColorMNIST) -> list[int]:
    """For every digit the class, so the colour, with most training images.

    Example:
        >>> data = longtailed_colormnist(load_mnist(embedded=True), test_per_class=1)
        >>> [data.class_names[index] for index in best_known(data)][:3]
        ['0 red', '1 blue', '2 blue']
    """
    colors = data.num_classes // 10
    best = data.class_counts().view(10, colors).argmax(1)
    return [int(color) + colors * digit for digit, color in enumerate(best)]


_NETWORKS = """Z2CNN is a plain seven-layer network, CECNN the colour-equivariant one with as many
parameters"""
_ABOUT_LONGTAILED = f"""Ten digits in three colours are thirty classes. Some have a hundred
training images, others one or two; the test set has equally many of each. A network that shares
what it learns about a shape between colours can read a rare class from the frequent ones of the
same digit. {_NETWORKS}."""
_ABOUT_BIASED = f"""Every digit has its own hue, and the hue of an image deviates from it by σ
degrees. At σ = 0 the colour gives the class away, at σ = 10⁶ only the shape is left.
{_NETWORKS}; coset pooling makes it invariant to hue."""


def show_longtailed(findings: Findings) -> list[Section]:
    """Accuracy of every class (Figure 2a), variants of training, hue curves and samples."""
    rows = findings.of(LONGTAILED)
    if not rows:
        return []
    digits = digits_of(rows)
    # Any digits do for the sizes of the classes.
    data = longtailed_colormnist(digits or load_mnist(embedded=True), test_per_class=1)
    plain = [row for row in rows if row["augmentation"] == "none" and not row["weighted"]]
    changed = [row for row in rows if row not in plain]
    sections = [
        Section(
            "Accuracy of every class",
            f"{_ABOUT_LONGTAILED}\n\n{headline(rows)}",
            longtailed_table(rows),
            per_class_figure(plain or rows, data),
            f"Bars: training images of a class. Curves: test accuracy. {_bars(rows)} "
            f"Trained on: {_sources(rows)}.",
            LONGTAILED,
        )
    ]
    if plain and changed:
        sections.append(
            Section(
                "With jitter or a weighted loss",
                figure=per_class_figure(changed, data),
                caption="Hue jitter hides the colour, which is part of the class here. "
                + _bars(rows),
                file=f"{LONGTAILED}-variants",
            )
        )
    curves = {row["model"]: row["hue_curve"] for row in rows if row.get("hue_curve")}
    if curves:
        sections.append(
            Section(
                "Shifted hues",
                figure=hue_figure(curves),
                caption="Digits in the colour each was seen most often, shifted to others: how "
                "often a network still reads the digit; the colour it names does not count. First "
                f"seed, {HUE_IMAGES} test images of each.",
                file=f"{LONGTAILED}-hue",
            )
        )
    return [*sections, _samples(LONGTAILED, rows, digits, "with the number there are", [data])]


def show_biased(findings: Findings) -> list[Section]:
    """Accuracy over the spread of the hue (Figure 2b), gains over the plain network, samples."""
    rows = findings.of(BIASED)
    if not rows:
        return []
    digits, gained, sigmas = digits_of(rows), gains_table(rows), sigmas_of(rows)
    below = " Below: gain over Z2CNN of the same seed, with the standard error."
    sections = [
        Section(
            "Accuracy over the spread of the hue",
            f"{_ABOUT_BIASED}\n\n{headline(rows)}",
            biased_table(rows),
            sigma_figure(rows),
            f"{_bars(rows)}{below if gained.rows else ''} Trained on: {_sources(rows)}.",
            BIASED,
        )
    ]
    if gained.rows:
        sections.append(Section("Compared seed by seed", table=gained))
    some = sorted({sigmas[0], sigmas[len(sigmas) // 2], sigmas[-1]})
    data = [] if digits is None else [biased_colormnist(s, digits, test_size=1) for s in some]
    return [*sections, _samples(BIASED, rows, digits, "for some spreads of the hue", data)]


def _samples(
    experiment: str,
    rows: Sequence[Row],
    digits: Digits | None,
    words: str,
    data: Sequence[ColorMNIST],
) -> Section:
    """The sheet of training images, or why there is none."""
    title, file = "The images", f"{experiment}-samples"
    if digits is None:
        missing = f"{_sources(rows)}, is missing or damaged in {data_root()}"
        return Section(title, f"Not drawn: what was trained on, {missing}.", file=file)
    caption = f"The first training images of every class, {words}. Digits: {digits.source}."
    return Section(title, figure=sample_sheet(data), caption=caption, file=file)


def digits_of(rows: Sequence[Row]) -> Digits | None:
    """The digits that rows were trained on: the full set if any row has it."""
    sources = {row["digits"] for row in rows}
    for source in (FULL_SOURCE, EMBEDDED_SOURCE):
        if source in sources:
            try:
                return load_mnist(embedded=source == EMBEDDED_SOURCE)
            except (MissingDataError, ValueError):  # damaged
                continue
    return None


def _sources(rows: Sequence[Row]) -> str:
    return " and ".join(sorted({row["digits"] for row in rows}))


def _bars(rows: Sequence[Row]) -> str:
    several = len({row["seed"] for row in rows}) > 1
    return "Mean over seeds; error bars are one standard deviation." if several else "One seed."


def _keeps(old: Row, new: Sequence[Row]) -> bool:
    """Whether an old row is shown beside new ones: if its training took as long, on such digits."""
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
    finding="CECNN 91.35 % against 71.59 % of a plain network; whatever cannot tell colours "
    "apart stays below a third. Weighing classes makes no difference; hue jitter takes "
    "CECNN to the level of the pooled one.",
    what="30 classes of unequal size: shapes shared over colours",
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
    what="every digit has its own hue, with more or less spread",
    full="19 min",
    plan=functools.partial(plan, BIASED),
    show=show_biased,
    options=("networks", "seeds", "epochs", "sigmas", "redraw", "precision"),
)
