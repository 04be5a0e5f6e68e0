"""Time a whole training with `equicolor.training`, data included, against its bare step.

The bare step runs on images that are already on the device, in every form of networks.py. The
first quarter of the epochs does not count: kernels are chosen and graphs recorded there.
"""

import statistics
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from _timing import Case, Settings, finish, measure, parser, settings_of, write
from equicolor.results import Row
from equicolor.training.fit import fit
from equicolor.training.recipes import TrainingRecipe, find_recipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions
from networks import FORMS, network_steps

COLUMNS = ("name", "form", "ms", "images_per_s", "over_bare", "seconds")


def loop_rows(recipe: TrainingRecipe, device: str) -> list[Row]:
    """Train a recipe: one row for the loop and one for the hue sweep after it."""
    with tempfile.TemporaryDirectory() as place:
        run = fit(recipe, Path(place) / "run", RunOptions(device=device), console=Console())
        assert run is not None  # one process trains
        epochs = RunFolder(Path(place) / "run").read_metrics()
    speeds = [float(row["images_per_second"]) for row in epochs[len(epochs) // 4 :]]
    loop = {"name": "training loop", "images_per_s": statistics.median(speeds)}
    loop |= {"dataset": run.row["dataset"], "epochs": recipe.epochs}
    sweep = {"name": "hue sweep", "seconds": run.row["evaluate_seconds"]}
    sweep |= {key: run.row[key] for key in ("images", "original", "hue_mean")}
    return [loop, sweep | {"shifts": len(run.row["hue_curve"])}]


def bare_rows(recipe: TrainingRecipe, settings: Settings) -> list[Row]:
    """The training step alone, in every form."""
    build = partial(replace(recipe, finetune=None).build, 10)
    forms = FORMS if settings.device.type == "cuda" else ("eager",)
    cases = []
    for form in forms:
        row: Row = {"name": "bare step", "variant": "plain", "form": form, "mode": "training"}
        # "plain" keeps the algorithm that the recipe's network has.
        cases.append(Case(row, partial(network_steps, build, "training", "plain", form, settings)))
    return measure(cases, settings)


def main() -> None:
    """Run the script."""
    options = parser(__doc__)
    options.add_argument(
        "dataset", nargs="?", default="flowers102", help="a name, or a folder of class folders"
    )
    options.add_argument(
        "--recipe", default="baseline", help="see 'equicolor train --list-recipes'"
    )
    options.add_argument("--epochs", type=int, default=24)
    given = options.parse_args()
    recipe = find_recipe(given.recipe, given.dataset)
    size = given.size or recipe.size
    settings = settings_of(
        given, batch=dict.fromkeys(("cpu", "cuda"), recipe.batch_size), size=size
    )
    changes: dict[str, Any] = {"batch_size": settings.batch, "size": size, "epochs": given.epochs}
    recipe = replace(recipe, **changes, precision=settings.precision)
    loop, sweep = loop_rows(recipe, settings.device.type)
    bare = bare_rows(recipe, settings)
    fastest = max((row.get("images_per_s", 0.0) for row in bare), default=0.0)
    loop["over_bare"] = round(loop["images_per_s"] / fastest, 3) if fastest else None
    facts = {"model": recipe.model, **recipe.options, "batch": recipe.batch_size, "size": size}
    rows = [row | facts for row in (loop, *bare, sweep)]
    write(rows, settings)
    finish(rows, COLUMNS, settings)


if __name__ == "__main__":
    main()
