"""Training runs on pictures as jobs, and their rows.

The classification experiment and the ablations are lists of runs; where they have runs in
common, they have jobs in common, which are trained once.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from equicolor import _checks
from equicolor.data.datasets import DATASETS, find_dataset, load_dataset
from equicolor.evaluation.hue_sweep import ACTIONS
from equicolor.paper.jobs import Job, Store, digest
from equicolor.paper.recipe_names import named_recipe
from equicolor.results import Row
from equicolor.training.recipes import TrainingRecipe, recipes
from equicolor.training.run_folder import RunFolder
from equicolor.training.run_options import RunOptions

__all__ = ["Part", "Run", "parts_of", "plan", "settle"]


class Run(NamedTuple):
    """One network to train.

    Attributes:
        name: of its folder.
        recipe: how.
    """

    name: str
    recipe: TrainingRecipe


class Part(NamedTuple):
    """A job whose rows are results, with what else belongs into them.

    Attributes:
        job: gives the rows.
        sweeps: jobs of one row each, which are added to those.
        facts: added to them, too.
    """

    job: Job
    sweeps: tuple[Job, ...] = ()
    facts: Mapping[str, Any] = {}

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All of its jobs."""
        return (self.job, *self.sweeps)

    def rows(self, store: Store) -> list[Row] | None:
        """The rows as far as they are known; None before its job is finished."""
        found = store.outcome(self.job)
        if found is None:
            return None
        more = [outcome for job in self.sweeps if (outcome := store.outcome(job))]
        added = {key: value for outcome in more for key, value in outcome.rows[0].items()}
        return [{**row, **added, **self.facts} for row in found.rows]


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
        networks: recipes such as ``"hsv-12+jitter"`` (see
            :func:`equicolor.paper.recipe_names.named_recipe`); those of the paper's
            tables by default. What is named twice is planned once.
        seeds: how many, counted from 0.
        epochs: instead of the recipes'.
        changes: other settings of the recipes.

    Example:
        >>> [run.name for run in plan("flowers102", ["baseline", "hsv-12"], seeds=2)]
        ['baseline-seed0', 'hsv-12-seed0', 'baseline-seed1', 'hsv-12-seed1']
    """
    _checks.positive_int("seeds", seeds, at_most=_checks.MOST["seeds"])
    if epochs is not None:
        changes["epochs"] = _checks.positive_int("epochs", epochs, at_most=_checks.MOST["epochs"])
    title = find_dataset(dataset).name
    if networks is None:
        networks = [name.removeprefix(f"{title}/") for name in recipes(dataset)]
    named = dict(named_recipe(network, dataset) for network in networks)
    return [
        Run(f"{name}-seed{seed}", dataclasses.replace(recipe, seed=seed, **changes))
        for seed in range(seeds)
        for name, recipe in named.items()
    ]


def settle(runs: Iterable[Run], root: Path) -> list[Run]:
    """Runs with names that no run of another recipe has in a folder.

    Args:
        runs: of :func:`plan`.
        root: the folder of the runs' folders.

    Returns:
        The runs; those whose folder is taken by another recipe have a digest in their name.
    """
    settled = []
    for run in runs:
        suffix = f"-{digest(dataclasses.asdict(run.recipe), 8)}"
        taken = _taken(RunFolder(root / run.name), run.recipe)
        settled.append(Run(run.name + suffix if taken else run.name, run.recipe))
    return settled


def _taken(folder: RunFolder, recipe: TrainingRecipe) -> bool:
    """Whether a folder holds a run of another recipe."""
    if not folder.recipe.is_file():
        return False
    try:
        held = TrainingRecipe.from_json(folder.recipe.read_text())
    except (TypeError, ValueError):
        return True
    if folder.result.is_file() and Path(held.dataset).name == Path(recipe.dataset).name:
        # Finished: since then the pictures may have moved, together with the runs.
        held = dataclasses.replace(held, dataset=recipe.dataset)
    return bool(held.differences(recipe))


def parts_of(
    runs: Sequence[Run],
    *,
    actions: Sequence[str] = (),
    options: RunOptions | None = None,
    prefix: str = "",
) -> list[Part]:
    """Runs as jobs.

    Args:
        runs: of :func:`plan` and :func:`settle`.
        actions: also judged under these, beside HSV hue shifts.
        options: how to run; devices are not among what counts here.
        prefix: of the jobs' names, such as ``"flowers102/"``.

    Example:
        >>> part, = parts_of(plan("flowers102", ["hsv-6"]), actions=["rgb"])
        >>> [job.name for job in part.jobs], part.sweeps[0].after == (part.job,)
        (['hsv-6-seed0', 'hsv-6-seed0.sweep'], True)
    """
    for action in actions:
        _checks.one_of("action", action, ACTIONS)
    others = [action for action in actions if action != "hsv"]  # which every run has
    fingerprints: dict[str, Any] = {}
    parts = []
    for run in runs:
        recipe = run.recipe
        place = recipe.dataset
        if place not in fingerprints:
            fingerprints[place] = _fingerprint(place)
        settings = {
            "recipe": {**dataclasses.asdict(recipe), "dataset": find_dataset(place).name},
            "data": fingerprints[place],
        }
        about = {"dataset": place, "options": _options(options)}
        train = Job(f"{prefix}{run.name}", "training", settings, about=about)
        sweeps: tuple[Job, ...] = ()
        if others:
            wanted = {"actions": others}
            about = {"dataset": place}
            sweeps = (Job(f"{train.name}.sweep", "sweep", wanted, (train,), about),)
        parts.append(Part(train, sweeps, row_facts(recipe)))
    return parts


def row_facts(recipe: TrainingRecipe) -> Row:
    """What rows say of a recipe where it is not the paper's.

    Example:
        >>> row_facts(TrainingRecipe("ce_resnet18", {"coset_pool": None}, size=64))
        {'coset_pool': 'none', 'size': 64}
    """
    facts: Row = {}
    if recipe.options.get("coset_pool", "max") != "max":
        facts["coset_pool"] = recipe.options["coset_pool"] or "none"
    if recipe.crop == "resized" and recipe.size != TrainingRecipe.size:
        facts["size"] = recipe.size
    return facts


def _options(options: RunOptions | None) -> Row:
    """Options that are not the defaults, as JSON; the device is the worker's."""
    if options is None:
        return {}
    usual = RunOptions(device=options.device)
    fields = [field.name for field in dataclasses.fields(options) if field.name != "device"]
    given = {name: getattr(options, name) for name in fields}
    changed = {name: value for name, value in given.items() if value != getattr(usual, name)}
    return {
        name: str(value) if isinstance(value, Path) else value for name, value in changed.items()
    }


def _fingerprint(dataset: str) -> str:
    """Tells apart folders of other pictures; datasets go by their names."""
    if dataset in DATASETS:
        return dataset
    files = []
    for split in ("train", "test"):
        pictures = load_dataset(dataset, split)
        labels = pictures.labels.tolist()
        named = zip(labels, pictures.files, strict=True)
        files.append([(label, f.path.name, f.path.stat().st_size) for label, f in named])
    return digest(files)
