"""Time whole trainings with `equicolor.training`, data included, against their bare steps.

The bare step runs on images that are already on the device, in forms of networks.py. The first
quarter of the epochs does not count: kernels are chosen and graphs recorded there. Long trainings
run differently from short ones; `--seconds` measures the beginning of one.
"""

import argparse
import contextlib
import signal
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from _timing import Case, Settings, finish, measure, parser, positive_int, settings_of, write
from equicolor.results import Row
from equicolor.training.fit import fit
from equicolor.training.recipes import TrainingRecipe, find_recipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions
from networks import FORMS, network_steps

COLUMNS = ("dataset", "name", "form", "ms", "images_per_s", "over_bare", "seconds")


@contextlib.contextmanager
def interrupted_after(seconds: float | None) -> Iterator[None]:
    """Interrupt what runs inside, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)  # 0 is never
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def loop_rows(recipe: TrainingRecipe, device: str, seconds: float | None) -> list[Row]:
    """Train a recipe: one row for the loop, and one for the hue sweep unless time was up."""
    with tempfile.TemporaryDirectory() as place:
        output, sweep = Path(place) / "run", list[Row]()
        try:
            with interrupted_after(seconds):
                run = fit(recipe, output, RunOptions(device=device), console=Console())
            assert run is not None  # one process trains
            row = {key: run.row[key] for key in ("images", "original", "hue_mean")}
            row |= {"seconds": run.row["evaluate_seconds"], "shifts": len(run.row["hue_curve"])}
            sweep = [{"name": "hue sweep", **row}]
        except KeyboardInterrupt:
            if seconds is None:
                raise
        epochs = RunFolder(output).read_metrics()
    counted = epochs[len(epochs) // 4 :]
    if not counted:
        raise SystemExit(f"no epoch of {recipe.dataset} ended within {seconds} seconds")
    speeds = [float(row["images_per_second"]) for row in counted]
    loop = {"name": "training loop", "images_per_s": statistics.median(speeds)}
    return [loop | {"epochs": recipe.epochs, "speeds": speeds}, *sweep]


def bare_rows(recipe: TrainingRecipe, settings: Settings, forms: list[str]) -> list[Row]:
    """The training step alone, in some forms."""
    build = partial(replace(recipe, finetune=None).build, 10)
    cases = []
    for form in forms:
        row: Row = {"name": "bare step", "variant": "plain", "form": form, "mode": "training"}
        # "plain" keeps the algorithm that the recipe's network has.
        cases.append(Case(row, partial(network_steps, build, "training", "plain", form, settings)))
    return measure(cases, settings)


def rows_of(recipe: TrainingRecipe, given: argparse.Namespace, settings: Settings) -> list[Row]:
    """The loop, its bare steps and its sweep."""
    on_gpu = settings.device.type == "cuda"
    loop, *sweep = loop_rows(recipe, settings.device.type, given.seconds)
    bare = bare_rows(recipe, settings, given.forms or (list(FORMS) if on_gpu else ["eager"]))
    fastest = max((row.get("images_per_s", 0.0) for row in bare), default=0.0)
    loop["over_bare"] = round(loop["images_per_s"] / fastest, 3) if fastest else None
    facts = {"dataset": recipe.dataset, "model": recipe.model, **recipe.options}
    facts |= {"batch": recipe.batch_size, "size": recipe.size}
    return [row | facts for row in (loop, *bare, *sweep)]


def planned(dataset: str, given: argparse.Namespace) -> tuple[TrainingRecipe, Settings]:
    """The recipe of a dataset, changed as the options say."""
    recipe = find_recipe(given.recipe, dataset)
    batch = dict.fromkeys(("cpu", "cuda"), recipe.batch_size)
    settings = settings_of(given, batch=batch, size=recipe.size)
    recipe = replace(
        recipe,
        batch_size=settings.batch,
        size=settings.size,
        precision=settings.precision,
        epochs=given.epochs or recipe.epochs,
    )
    return recipe, settings


def main() -> None:
    """Run the script."""
    options = parser(__doc__)
    options.add_argument(
        "datasets", nargs="*", default=["flowers102"], help="names, or folders of class folders"
    )
    options.add_argument(
        "--recipe", default="baseline", help="see 'equicolor train --list-recipes'"
    )
    options.add_argument("--epochs", type=positive_int, help="default: those of the recipe")
    options.add_argument("--seconds", type=float, help="interrupt each training after these")
    options.add_argument("--forms", nargs="+", choices=FORMS, help="of the bare step; default: all")
    given, rows = options.parse_args(), list[Row]()
    # All before the first begins, as settings_of refuses a file that is there.
    for recipe, settings in [planned(dataset, given) for dataset in given.datasets]:
        rows += rows_of(recipe, given, settings)
        write(rows, settings)  # a killed run keeps them
    finish(rows, COLUMNS, settings)


if __name__ == "__main__":
    main()
