"""Tables 1 and 3 from start to report: train recipes, collect their rows, write the tables.

Every network trains in a run folder of its own (:mod:`equicolor.training.fit`), so an
interrupted experiment goes on where it stopped, and a run is there to evaluate or export.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from equicolor._files import output_folder
from equicolor.paper import classification_report
from equicolor.paper.jobs import RESULTS, RUNS, Store, refuse_run
from equicolor.paper.launching import Launch, launch
from equicolor.paper.picture_jobs import Part, Run, parts_of, plan, row_facts, settle
from equicolor.paper.rows import distinct
from equicolor.results import read_results, read_rows, write_results
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions

__all__ = ["RESULTS", "Run", "collect", "from_results", "plan", "read", "reproduce"]

_NEEDED = ("dataset", "model", "augmentation", "seed", "epochs")
_NUMBERS = ("original", "hue_mean")


def reproduce(
    runs: Sequence[Run],
    output: Path | str,
    options: RunOptions | None = None,
    *,
    actions: Sequence[str] = (),
    how: Launch | None = None,
    console: Console | None = None,
) -> list[Path]:
    """Train every run that is not finished, then write results, tables and figures.

    Args:
        runs: of :func:`plan`.
        output: the folder; a call in the folder of an interrupted one continues it.
        options: where and how to run.
        actions: also judge the networks under these, beside HSV hue shifts.
        how: how to spread the runs; one after the other on the device of the options by default.
        console: shows the progress; None shows nothing.

    Returns:
        The files written.
    """
    output = output_folder(output)
    options = RunOptions() if options is None else options
    how = Launch(devices=(options.device,)) if how is None else how
    store = Store(output / RUNS)
    runs = settle(runs, store.root)
    parts = parts_of(runs, actions=actions, options=options)
    written: list[Path] = []

    def show() -> None:  # after every run: what is known so far can be looked at
        written[:] = collect(runs, output, device=options.accelerator, parts=parts)

    try:
        jobs = [job for part in parts for job in part.jobs]
        launch(jobs, store, how, console=console, on_done=show)
    finally:
        if any(store.outcome(part.job) for part in parts):
            show()
    return written


def collect(
    runs: Sequence[Run],
    output: Path | str,
    *,
    device: str = "cpu",
    parts: Sequence[Part] = (),
) -> list[Path]:
    """Write results, tables and figures of the runs that are finished.

    Those that earlier calls trained in the same folder come after, so that no call takes away
    what another found.

    Args:
        runs: of :func:`plan`.
        output: the folder they were trained in.
        device: what they were trained on.
        parts: of the runs, where it is known; else rows are read from the runs' folders.
    """
    output = Path(output)
    store = Store(output / RUNS)
    names = [run.name for run in settle(runs, store.root)]
    finished = _finished(store.root)
    known = {store.folder(part.job).name: part.rows(store) for part in parts}
    rows = [
        row
        for name in [*names, *(name for name in finished if name not in names)]
        if name in finished
        for row in known.get(name) or [_row(RunFolder(store.root / name))]
    ]
    results = write_results(output / RESULTS, rows, device=device, experiment="classification")
    return [results, *classification_report.write(rows, output)]


def _finished(root: Path) -> list[str]:
    """The names of finished runs; of those with one recipe, on other pictures, the newest."""
    newest: dict[str, str] = {}
    for path in sorted(root.glob("*/result.json"), key=lambda path: path.stat().st_mtime_ns):
        folder = RunFolder(path.parent)
        recipe = TrainingRecipe.from_json(folder.recipe.read_text())
        newest[repr(replace(recipe, dataset=Path(recipe.dataset).name))] = folder.path.name
    return sorted(newest.values())


def _row(folder: RunFolder) -> dict[str, Any]:
    """The row of a finished run, with what was swept after training."""
    (row,) = read_results(folder.result)["rows"]
    sweep = folder.path.with_name(f"{folder.path.name}.sweep.json")
    swept: dict[str, Any] = next(iter(read_results(sweep)["rows"]), {}) if sweep.is_file() else {}
    recipe = TrainingRecipe.from_json(folder.recipe.read_text())
    return {**row, **swept, **row_facts(recipe)}


def read(sources: Sequence[Path | str]) -> list[dict[str, Any]]:
    """The rows of files such as :func:`reproduce` wrote; those that come again count once.

    Raises:
        ValueError: if a file holds other things, or if two rows are about the same and do not
            agree.
    """
    return distinct([row for source in sources for row in read_rows(source, _NEEDED, _NUMBERS)])


def from_results(sources: Sequence[Path | str], output: Path | str) -> list[Path]:
    """Write tables and figures from files of rows, without training.

    Args:
        sources: as :func:`read` takes them.
        output: the folder; not that of a run, which has its own.
    """
    refuse_run(output)
    return classification_report.write(read(sources), output)
