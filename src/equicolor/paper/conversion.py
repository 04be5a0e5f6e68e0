"""What conversion does to a trained network: accuracy before, after, and after a fine-tune."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from equicolor._files import output_folder
from equicolor._text import counted
from equicolor.conversion import convert
from equicolor.data.datasets import DATASETS
from equicolor.devices import choose_device
from equicolor.evaluation.diagnose import diagnose
from equicolor.evaluation.figures import Curve, hue_panels
from equicolor.evaluation.hue_sweep import hue_shifts
from equicolor.models.checkpoints import checkpoint_file, load_model, save_model
from equicolor.paper import image_jobs
from equicolor.paper.experiment import Context, Experiment, Job, Scope
from equicolor.paper.quick_images import quick_note
from equicolor.paper.rows import Findings
from equicolor.paper.variants import dataset_title, datasets_of
from equicolor.reporting.html import Section
from equicolor.reporting.tables import Table
from equicolor.results import Row
from equicolor.training.finetuning import finetune_recipe
from equicolor.training.fit import fit
from equicolor.training.recipes import JITTER, TrainingRecipe
from equicolor.training.run_folder import origin_of, recipe_of_run
from equicolor.training.run_options import RunOptions

__all__ = ["EXPERIMENT", "hue_figure", "plan", "rows", "run", "show", "table"]

# Seven colours and four kinds of dashes: 28 curves before one looks like another.
_COLORS = ("#d55e00", "#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#000000", "#e69f00")
_DASHES = ("-", "--", "-.", ":")
_MARKERS = "osD^vPX"
_EVERY = 7  # points of a curve from marker to marker


def rows(
    checkpoint: str | Path,
    data: str | None = None,
    *,
    rotations: int = 6,
    lifting: str = "hsv",
    coset_pools: Sequence[str] = ("max", "avg"),
    finetune_epochs: int = 20,
    lr: float = 1e-4,
    output: str | Path = "runs/conversion",
    device: str = "auto",
    console: Console | None = None,
) -> list[Row]:
    """Judge a network before conversion, after it without training, and after a fine-tune.

    The plain network is fine-tuned as long, without and with hue jitter: what more training, or
    the usual remedy, does by itself.

    Args:
        checkpoint: a plain network of :func:`equicolor.models.save_model`, or the folder of its
            training run. Images are prepared as they were there.
        data: a dataset by name, or a folder of class folders; the run's by default.
        rotations, lifting: of :func:`equicolor.convert`.
        coset_pools: each is tried.
        finetune_epochs: 0 for no fine-tune.
        lr: the highest learning rate of the fine-tune.
        output: the folder of the converted networks and the runs that fine-tune them; a call in
            the folder of an interrupted one continues it.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        console: shows progress; None shows nothing.

    Returns:
        Flat rows with ``stage`` in words, ``original``, ``hue_mean`` and ``hue_curve``.
    """
    output, where = output_folder(output), choose_device(device)
    trained, origin = recipe_of_run(checkpoint), origin_of(checkpoint)
    if data is None and trained is None and origin.dataset not in DATASETS:
        raise ValueError(f"{checkpoint} is not the folder of a training run: say which data")
    if data is None:
        data = origin.dataset if trained is None else trained.dataset
    quiet = Console(quiet=True) if console is None else console

    def judge(path: str | Path, stage: str, **facts: Any) -> Row:
        found = diagnose(path, data, actions=("hsv",), device=where, console=quiet)
        return found.rows()[0] | {"stage": stage, **facts}

    def tune(recipe: TrainingRecipe, name: str, stage: str) -> Row:
        found = fit(recipe, output / name, RunOptions(device=where.type), console=console)
        assert found is not None
        return found.row | {"stage": stage}

    length = counted(finetune_epochs, "epoch")
    made = [judge(checkpoint, "before conversion")]
    for pool in coset_pools:
        path = output / f"converted-{pool}.safetensors"
        plain = load_model(checkpoint_file(checkpoint))
        plain.origin = origin
        network = convert(plain, rotations, lifting, coset_pool=pool)
        save_model(network, path)
        facts = {"coset_pool": pool}
        made.append(judge(path, f"converted, {pool} over {rotations} hues", **facts))
        if finetune_epochs:
            recipe = _finetune(data, path, trained, finetune_epochs, lr, where.type)
            stage = f"converted and fine-tuned for {length}, {pool}"
            made.append(tune(recipe, f"finetuned-{pool}", stage) | facts)
    for name, jitter in (("plain", 0.0), ("plain-jitter", JITTER)) if finetune_epochs else ():
        recipe = _finetune(data, checkpoint, trained, finetune_epochs, lr, where.type)
        stage = f"plain, fine-tuned{' with jitter' if jitter else ''}"
        recipe = dataclasses.replace(recipe, jitter=jitter)
        made.append(tune(recipe, f"finetuned-{name}", f"{stage} for {length}"))
    return made


def _finetune(
    data: str, path: str | Path, trained: TrainingRecipe | None, epochs: int, lr: float, device: str
) -> TrainingRecipe:
    recipe = finetune_recipe(data, path, like=trained)
    half = device == "cuda" and (trained is None or trained.precision == "bfloat16")
    precision = "bfloat16" if half else "float32"
    return dataclasses.replace(recipe, epochs=epochs, lr=lr, precision=precision)


def show(findings: Findings) -> list[Section]:
    """Accuracies and hue curves before conversion and after, for every dataset."""
    rows = [row for row in findings.of("conversion") if "original" in row]
    shown = []
    for dataset in datasets_of(rows):
        figure = hue_figure(rows, dataset)
        shown.append(
            Section(
                dataset_title(dataset),
                quick_note([dataset]),
                table(rows, dataset),
                figure,
                "Accuracy over the hue shift, before conversion and after.",
                "" if figure is None else f"conversion-{dataset}",
            )
        )
    return shown


def table(rows: Sequence[Row], dataset: str) -> Table:
    """Accuracies before conversion, after it, and after a fine-tune."""
    lines = [
        (_stage(row), f"{row['original']:.2f}", f"{row['hue_mean']:.2f}")
        for row in rows
        if row["dataset"] == dataset
    ]
    title = f"{dataset_title(dataset)}: accuracy in percent (ours; the paper has none)"
    return Table(("network", "original", "hue-shifted"), lines, title)


def hue_figure(rows: Sequence[Row], dataset: str) -> Figure | None:
    """Accuracy over the hue shift, before conversion and after."""
    swept = [row for row in rows if row["dataset"] == dataset and row.get("hue_curve")]
    if not swept:
        return None
    curves = [
        Curve(
            _stage(row),
            hue_shifts(len(row["hue_curve"])).tolist(),
            row["hue_curve"],
            style=_style(index),
        )
        for index, row in enumerate(swept)
    ]
    return hue_panels({dataset_title(dataset): curves}, width=8.0)


def _style(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of a curve; markers of equal curves do not coincide."""
    return {
        "color": _COLORS[index % len(_COLORS)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markevery": (index % _EVERY, _EVERY),
    }


def _stage(row: Row) -> str:
    return str(row.get("stage") or row.get("state") or row.get("model"))


def plan(scope: Scope) -> list[Job]:
    """Train the plain network, and convert it."""
    jobs = []
    for dataset in image_jobs.main_datasets(scope):
        (training,) = image_jobs.training_jobs(dataset, ["baseline"], scope)
        settings = {"rotations": 6, "lifting": "hsv", "finetune_epochs": 3 if scope.quick else 20}
        jobs.append(image_jobs.follow(training, "conversion", run, settings, revision=2))
    return jobs


def run(job: Job, context: Context) -> list[Row]:
    """Evaluate the network before and after conversion, and after fine-tunes."""
    (training,) = context.before
    return rows(
        training.folder,
        job.about["dataset"],
        **job.settings,
        output=context.folder,
        device=context.device,
        console=context.console,
    )


EXPERIMENT = Experiment(
    id="conversion",
    title="Conversion of a trained network",
    paper="",
    finding="Not in the paper.",
    what="a plain network made equivariant, without training and after a little",
    full="15 min",
    quick="1 min",
    plan=plan,
    show=show,
    data=("flowers102",),
    options=("datasets", "epochs", "size"),
    keeps=image_jobs.of_other_datasets,
)
