"""The folder of a training run, and what it holds: recipe, list of images, table of metrics."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equicolor._files import locked, naming, write_whole
from equicolor.data.datasets import find_dataset
from equicolor.data.folder_datasets import Folder
from equicolor.data.images import ImageSet, changes
from equicolor.models.checkpoints import checkpoint_file, read_header
from equicolor.models.registry import Origin
from equicolor.training.recipes import TrainingRecipe

_COLUMNS = (
    "epoch", "step", "lr", "loss", "accuracy", "test_loss", "test_accuracy",
    "images_per_second", "seconds",
)  # fmt: skip


@dataclass
class RunFolder:
    """Where a run keeps its files."""

    path: Path

    def __post_init__(self) -> None:
        path = self.path
        self.recipe = path / "recipe.json"  # marks the folder of a run
        self.images = path / "images.json"  # the training files by name, and their sizes in bytes
        self.checkpoint = path / "last.ckpt"  # the state after the last epoch that was saved
        self.metrics = path / "metrics.csv"  # loss and accuracy of every epoch
        self.model = path / "model.safetensors"  # the trained network, for load_model
        self.result = path / "result.json"  # the evaluation of the network; written last
        self._lock = path / ".lock"

    def locked(self) -> AbstractContextManager[None]:
        """Create the folder and lock it against other processes."""
        self.path.mkdir(parents=True, exist_ok=True)
        return locked(self._lock, f"training in {self.path}: wait for it, or choose another folder")

    def read_recipe(self) -> TrainingRecipe:
        """What the run trains."""
        try:
            return TrainingRecipe.from_json(self.recipe.read_text())
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self.recipe} is not the recipe of a training run: {error}"
            ) from None

    def check_base(self, recipe: TrainingRecipe) -> None:
        """Refuse a run that would replace the network that it fine-tunes."""
        if recipe.finetune is None:
            return
        if checkpoint_file(recipe.finetune).resolve() == self.model.resolve():
            raise ValueError(
                f"{self.path} holds the network to fine-tune: choose another folder for the run"
            )

    def check_place(self, recipe: TrainingRecipe) -> None:
        """Refuse a folder among the images, which would be taken for a class of them."""
        layout = find_dataset(recipe.dataset).layout
        if not isinstance(layout, Folder):
            return
        for place in filter(None, layout.parts or (layout.path,)):
            if self.path.resolve().is_relative_to(place.resolve()):
                raise ValueError(
                    f"{self.path} is inside {place}, where it would be taken for a class of "
                    "images: choose another folder for the run (--output)"
                )

    def check(self, recipe: TrainingRecipe) -> None:
        """Refuse a folder that holds anything but a run of this recipe."""
        if not self.recipe.is_file():
            if self.path.exists() and (not self.path.is_dir() or self._holds_other_files()):
                raise FileExistsError(
                    f"{self.path} exists and is not the folder of a training run (it has no "
                    f"{self.recipe.name}); choose another one"
                )
            return
        differences = self.read_recipe().differences(recipe)
        if differences:
            raise ValueError(
                f"{self.path} holds a run of another recipe: {', '.join(differences)}. Choose "
                "another folder, or --force to delete that run"
            )

    def _holds_other_files(self) -> bool:
        """Whether there are files that a run does not leave when it is killed at once."""
        return any(p != self._lock and p.suffix != ".partial" for p in self.path.iterdir())

    def read_images(self) -> dict[str, int]:
        """The size of every training file by its name; empty without a list."""
        if not self.images.is_file():
            return {}
        try:
            files = json.loads(self.images.read_text())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.images} cannot be read: {error}") from None
        if not isinstance(files, dict) or not all(type(size) is int for size in files.values()):
            raise ValueError(f"{self.images} is not a list of images with their sizes")
        return files

    def check_images(self, files: Mapping[str, int]) -> None:
        """Refuse to continue a run on other training images."""
        before = self.read_images() if self.checkpoint.is_file() else {}
        changed = changes(before, files) if before else []
        if changed:
            raise ValueError(
                f"the training images of {self.path} have changed ({len(files):,} now, "
                f"{len(before):,} when it began): {', '.join(changed)}. Restore them to continue "
                "the run, choose another folder, or --force to delete that run"
            )

    def newer_images(self, images: ImageSet) -> list[str]:
        """Training files written after the run began, if there is a run to continue.

        Times also show changes that keep the size. They show copies with new times, too, which
        need not differ.
        """
        if not (self.checkpoint.is_file() and self.images.is_file()):
            return []
        start = self.images.stat().st_mtime_ns
        states = {file.path: file.path.stat() for file in images.files}
        # A file that was moved here, or copied with its times, has an old mtime but a new ctime.
        return [
            f"{path.parent.name}/{path.name}"
            for path, state in states.items()
            if max(state.st_mtime_ns, state.st_ctime_ns) > start
        ]

    def begin(
        self, recipe: TrainingRecipe, files: Mapping[str, int], *, replace: bool = False
    ) -> None:
        """Write the recipe and, unless there is a checkpoint, the list of images.

        The caller holds the lock. ``replace`` deletes the run that is there.
        """
        written = (self.result, self.model, self.checkpoint, self.metrics, self.images)
        for path in (self.recipe, *written):
            for unfinished in self.path.glob(f"{path.name}.*partial"):  # by a killed process
                unfinished.unlink(missing_ok=True)
        if replace:
            logs = (self.path / "tensorboard").glob("events.out.tfevents.*")
            for path in (*written, *logs):
                path.unlink(missing_ok=True)
        write_whole(self.recipe, recipe.to_json())  # again, as folders may have moved
        if files and not self.checkpoint.is_file():
            write_whole(self.images, json.dumps(files, indent=0) + "\n")

    def remove_unbegun(self) -> None:
        """Remove the folder, unless it holds more than :meth:`begin` writes.

        The caller holds the lock, and made the folder.
        """
        written = {self.recipe, self.images, self._lock}
        if set(self.path.iterdir()) <= written:
            for path in written:
                path.unlink(missing_ok=True)
            self.path.rmdir()

    def read_metrics(self) -> list[dict[str, str]]:
        """The complete rows of the table: a crash may have cut the last one short."""
        if not self.metrics.is_file():
            return []
        with self.metrics.open(newline="", errors="replace") as file:
            rows = list(csv.DictReader(file))
        return [row for row in rows if tuple(row) == _COLUMNS and all(map(_fits, row.items()))]

    def append_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to the table."""
        # A full disk may have left an empty file.
        empty = not self.metrics.is_file() or not self.metrics.stat().st_size
        with naming(self.metrics), self.metrics.open("a", newline="") as file:
            file.write(_csv(rows, header=empty))

    def cut_metrics(self, epochs: int) -> None:
        """Drop the rows after an epoch: a resumed run writes them again."""
        if self.metrics.is_file():
            rows = self.read_metrics()
            kept = [r for r in rows if r["epoch"].isdigit() and int(r["epoch"]) <= epochs]
            write_whole(self.metrics, _csv(kept, header=True))


def _csv(rows: Sequence[Mapping[str, Any]], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _fits(cell: tuple[str, object]) -> bool:
    """Whether the cell of a column holds a number; results of tests may be left out."""
    name, text = cell
    try:
        float(str(text) or ("0" if name.startswith("test_") else ""))
    except ValueError:
        return False
    return True


def find_run(path: Path | str) -> RunFolder | None:
    """The run of a path, which is its folder, or the network or checkpoint in it."""
    path = Path(path)
    run = RunFolder(path if path.is_dir() else path.parent)
    of_run = path.is_dir() or path in (run.model, run.checkpoint)
    return run if path.exists() and of_run and run.recipe.is_file() else None


def recipe_of_run(path: Path | str) -> TrainingRecipe | None:
    """The recipe of the run of a path, see :func:`find_run`."""
    run = find_run(path)
    return None if run is None else run.read_recipe()


def origin_of(path: Path | str) -> Origin:
    """The images a network was trained on: from the recipe of its run, else from its own file."""
    recipe, origin = recipe_of_run(path), read_header(checkpoint_file(path)).origin
    if recipe is None:
        return origin
    return recipe.origin._replace(training_digest=origin.training_digest)
