"""Tables 1 and 3 from start to report: train recipes, collect their rows, write the tables.

Every network trains in a run folder of its own (:mod:`equicolor.training.fit`), so an
interrupted experiment goes on where it stopped, and a run is there to evaluate or export.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from equicolor import _checks
from equicolor._files import output_folder
from equicolor.data.datasets import find_dataset
from equicolor.experiments import classification_report
from equicolor.results import read_results, write_results
from equicolor.training.fit import fit
from equicolor.training.recipes import TrainingRecipe, find_recipe, recipes
from equicolor.training.run_options import RunOptions

__all__ = ["RESULTS", "Run", "collect", "from_results", "plan", "reproduce"]

RESULTS = "results.json"
_RUNS = "runs"


class Run(NamedTuple):
    """One network to train.

    Attributes:
        name: of its folder.
        recipe: how.
    """

    name: str
    recipe: TrainingRecipe


def plan(
    dataset: str,
    networks: Sequence[str] | None = None,
    *,
    seeds: int = 1,
    epochs: int | None = None,
    **changes: Any,
) -> list[Run]:
    """The runs of a dataset, seed by seed, so that one of each network is done first.

    Args:
        dataset: a name, or the path of a folder of class folders.
        networks: recipes such as ``"hsv-12+jitter"``; all by default.
        seeds: how many, counted from 0.
        epochs: instead of the recipes'.
        changes: other settings of the recipes.

    Example:
        >>> [run.name for run in plan("flowers102", ["baseline", "hsv-12"], seeds=2)]
        ['baseline-seed0', 'hsv-12-seed0', 'baseline-seed1', 'hsv-12-seed1']
    """
    _checks.positive_int("seeds", seeds)
    if epochs is not None:
        changes["epochs"] = _checks.positive_int("epochs", epochs)
    title = find_dataset(dataset).name
    if networks is None:
        networks = [name.removeprefix(f"{title}/") for name in recipes(dataset)]
    return [
        Run(
            f"{network}-seed{seed}",
            dataclasses.replace(find_recipe(network, dataset), seed=seed, **changes),
        )
        for seed in range(seeds)
        for network in networks
    ]


def reproduce(
    runs: Sequence[Run],
    output: Path | str,
    options: RunOptions | None = None,
    *,
    console: Console | None = None,
) -> list[Path]:
    """Train every run that is not finished, then write results, tables and figures.

    Args:
        runs: of :func:`plan`.
        output: the folder; a call in the folder of an interrupted one continues it.
        options: where and how to run.
        console: shows the progress; None shows nothing.

    Returns:
        The files written.
    """
    output = output_folder(output)
    options = RunOptions() if options is None else options
    for number, run in enumerate(runs, 1):
        if console is not None:
            console.print(f"[bold]{run.name}[/bold] ({number} of {len(runs)})")
        fit(run.recipe, output / _RUNS / run.name, options, console=console)
        # After every run: what is known so far can be looked at.
        written = collect(runs[:number], output, device=options.accelerator)
    return written


def collect(runs: Iterable[Run], output: Path | str, *, device: str = "cpu") -> list[Path]:
    """Write results, tables and figures of the runs that are finished.

    Args:
        runs: of :func:`plan`.
        output: the folder they were trained in.
        device: what they were trained on.
    """
    output = Path(output)
    paths = [output / _RUNS / run.name / "result.json" for run in runs]
    rows = [row for path in paths if path.is_file() for row in read_results(path)["rows"]]
    results = write_results(output / RESULTS, rows, device=device, experiment="classification")
    return [results, *classification_report.write(rows, output)]


def from_results(sources: Sequence[Path | str], output: Path | str) -> list[Path]:
    """Write tables and figures from files of rows, without training.

    Args:
        sources: files such as :func:`reproduce` wrote.
        output: the folder.
    """
    rows = [row for source in sources for row in read_results(source)["rows"]]
    return classification_report.write(rows, output)
