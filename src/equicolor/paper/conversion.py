"""Accuracy of a trained network before its conversion, after it, and after a fine-tune."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from equicolor._text import counted
from equicolor.conversion import convert
from equicolor.devices import choose_device
from equicolor.evaluation.diagnose import diagnose
from equicolor.evaluation.figures import Curve, curve_style, hue_panels
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
from equicolor.training.recipes import JITTER
from equicolor.training.run_folder import origin_of, recipe_of_run
from equicolor.training.run_options import RunOptions

_POOLS = ("max", "avg")
_LR = 1e-4  # the highest of a fine-tune


def plan(scope: Scope) -> list[Job]:
    """Train the plain network, and convert it."""
    jobs = []
    for dataset in image_jobs.main_datasets(scope):
        (training,) = image_jobs.training_jobs(dataset, ["baseline"], scope)
        settings = {"rotations": 6, "lifting": "hsv", "finetune_epochs": 3 if scope.quick else 20}
        jobs.append(image_jobs.follow(training, "conversion", run, settings, revision=2))
    return jobs


def run(job: Job, context: Context) -> list[Row]:
    """Evaluate a network before conversion, after it without training, and after a fine-tune.

    The plain network is fine-tuned for as long, without and with hue jitter: this shows the effect
    of more training, and of the usual remedy. Each row has its ``stage`` in words.
    """
    from equicolor.training.fit import fit  # slow: it imports Lightning

    (training,) = context.before
    data, device = job.about["dataset"], choose_device(context.device)
    rotations, epochs = job.settings["rotations"], job.settings["finetune_epochs"]
    length = counted(epochs, "epoch")
    trained = recipe_of_run(training.folder)
    assert trained is not None
    half = device.type == "cuda" and trained.precision == "bfloat16"
    quiet = Console(quiet=True) if context.console is None else context.console

    def measure(path: Path, stage: str) -> Row:
        diagnosis = diagnose(path, data, actions=("hsv",), device=device, console=quiet)
        return diagnosis.rows()[0] | {"stage": stage}

    def tune(path: Path, name: str, stage: str, **changes: float) -> Row:
        recipe = dataclasses.replace(
            finetune_recipe(data, path, like=trained),
            epochs=epochs,
            lr=_LR,
            precision="bfloat16" if half else "float32",
            **changes,  # type: ignore[arg-type]
        )
        folder = context.folder / f"finetuned-{name}"
        outcome = fit(recipe, folder, RunOptions(device=device.type), console=context.console)
        assert outcome is not None
        return outcome.row | {"stage": stage}

    rows = [measure(training.folder, "before conversion")]
    for pool in _POOLS:
        path = context.folder / f"converted-{pool}.safetensors"
        plain = load_model(checkpoint_file(training.folder))
        plain.origin = origin_of(training.folder)
        save_model(convert(plain, rotations, job.settings["lifting"], coset_pool=pool), path)
        untrained = measure(path, f"converted, {pool} over {rotations} hues")
        tuned = tune(path, pool, f"converted and fine-tuned for {length}, {pool}")
        rows += [untrained | {"coset_pool": pool}, tuned | {"coset_pool": pool}]
    for name, words, jitter in (("plain", "", 0.0), ("plain-jitter", " with jitter", JITTER)):
        stage = f"plain, fine-tuned{words} for {length}"
        rows.append(tune(training.folder, name, stage, jitter=jitter))
    return rows


def show(findings: Findings) -> Iterator[Section]:
    """Accuracies and hue curves before conversion and after, for every dataset."""
    rows = [row for row in findings.of("conversion") if "stage" in row]
    for dataset in datasets_of(rows):
        figure = hue_figure(rows, dataset)
        yield Section(
            dataset_title(dataset),
            quick_note([dataset]),
            table(rows, dataset),
            figure,
            "Accuracy over the hue shift, before conversion and after.",
            "" if figure is None else f"conversion-{dataset}",
        )


def table(rows: Sequence[Row], dataset: str) -> Table:
    """Accuracies before conversion, after it, and after a fine-tune."""
    lines = [
        (row["stage"], f"{row['original']:.2f}", f"{row['hue_mean']:.2f}")
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
            row["stage"],
            hue_shifts(len(row["hue_curve"])).tolist(),
            row["hue_curve"],
            style=curve_style(index),
        )
        for index, row in enumerate(swept)
    ]
    return hue_panels({dataset_title(dataset): curves}, width=8.0)


EXPERIMENT = Experiment(
    id="conversion",
    title="Conversion of a trained network",
    paper="",
    finding="Not in the paper.",
    what="a plain network made equivariant, without training and after a short fine-tune",
    full="15 min",
    quick="1 min",
    plan=plan,
    show=show,
    data=("flowers102",),
    options=("datasets", "epochs", "size"),
    keeps=image_jobs.of_other_datasets,
)
