"""The folder of a training run."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from equicolor._files import locked, write_whole
from equicolor.data.images import ImageSet, changes
from equicolor.models.checkpoints import checkpoint_file, read_header
from equicolor.models.registry import Origin
from equicolor.training.recipes import TrainingRecipe

__all__ = ["RunFolder", "origin_of", "recipe_of_run"]


@dataclass
class RunFolder:
    """Where a run keeps its files.

    Attributes:
        path: the folder.
        recipe: what the run trains; what makes a folder the folder of a run.
        images: the files that the run trains on, by name, and their sizes in bytes.
        checkpoint: the state after the last epoch that was saved.
        metrics: loss and accuracy of every epoch.
        model: the trained network, for ``load_model``.
        result: the evaluation of the trained network; written last.

    Example:
        >>> RunFolder(Path("runs/flowers")).recipe
        PosixPath('runs/flowers/recipe.json')
    """

    path: Path

    def __post_init__(self) -> None:
        path = self.path
        self.recipe = path / "recipe.json"
        self.images = path / "images.json"
        self.checkpoint = path / "last.ckpt"
        self.metrics = path / "metrics.csv"
        self.model = path / "model.safetensors"
        self.result = path / "result.json"
        self._lock = path / ".lock"

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder, which is created, against other processes."""
        self.path.mkdir(parents=True, exist_ok=True)
        return locked(self._lock, f"training in {self.path}: wait for it, or choose another folder")

    def check(self, recipe: TrainingRecipe) -> None:
        """Refuse a folder that holds something else than a run of this recipe."""
        if not self.recipe.is_file():
            if self.path.exists() and (not self.path.is_dir() or self._strangers()):
                raise FileExistsError(
                    f"{self.path} exists and is not the folder of a training run (it has no "
                    f"{self.recipe.name}); choose another one"
                )
            return
        try:
            trained = TrainingRecipe.from_json(self.recipe.read_text())
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.recipe} cannot be read: {error}") from None
        differences = trained.differences(recipe)
        if differences:
            raise ValueError(
                f"{self.path} holds a run of another recipe: {', '.join(differences)}. Choose "
                "another folder, or --force to delete that run"
            )

    def read_images(self) -> dict[str, int]:
        """The size of every training file by its name; empty where the run does not say."""
        if not self.images.is_file():
            return {}
        try:
            files = json.loads(self.images.read_text())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.images} cannot be read: {error}") from None
        if not isinstance(files, dict) or not all(type(size) is int for size in files.values()):
            raise ValueError(f"{self.images} is no list of images with their sizes")
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
        """Training files that were written after a run began that is to be continued.

        Their sizes may still be the same, and what is in them not. Copies with other times of an
        unchanged folder are named, too.
        """
        if not (self.checkpoint.is_file() and self.images.is_file()):
            return []
        start = self.images.stat().st_mtime_ns
        states = {path: path.stat() for path in (file.path for file in images.files)}
        # A file that was moved here, or copied with its times, keeps its time of writing alone.
        return [
            f"{path.parent.name}/{path.name}"
            for path, state in states.items()
            if max(state.st_mtime_ns, state.st_ctime_ns) > start
        ]

    def _strangers(self) -> bool:
        """Whether there is anything that a run which was killed at once does not leave."""
        ours = {self._lock.name}
        return any(p.name not in ours and p.suffix != ".partial" for p in self.path.iterdir())

    def begin(
        self,
        recipe: TrainingRecipe,
        files: Mapping[str, int] | None = None,
        *,
        anew: bool = False,
    ) -> None:
        """Create the folder with its recipe, unless it is there; the caller holds the lock."""
        written = (self.result, self.model, self.checkpoint, self.metrics, self.images)
        for path in (self.recipe, *written):
            for half in self.path.glob(f"{path.name}.*partial"):  # of a process that was killed
                half.unlink(missing_ok=True)
        if anew:
            logs = (self.path / "tensorboard").glob("events.out.tfevents.*")
            for path in (*written, *logs):
                path.unlink(missing_ok=True)
        if anew or not self.recipe.is_file():
            write_whole(self.recipe, recipe.to_json())
        if files and not self.checkpoint.is_file():
            write_whole(self.images, json.dumps(files, indent=0) + "\n")


def recipe_of_run(path: Path | str) -> TrainingRecipe | None:
    """The recipe of a training run.

    Example:
        >>> recipe_of_run("nowhere") is None
        True
    """
    path = Path(path)
    run = RunFolder(path if path.is_dir() else path.parent)
    file, of_run = run.recipe, path.is_dir() or path in (run.model, run.checkpoint)
    if not (path.exists() and of_run and file.is_file()):
        return None
    try:
        return TrainingRecipe.from_json(file.read_text())
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} is not the recipe of a training run: {error}") from None


def origin_of(path: Path | str) -> Origin:
    """The images a network was trained on: by the recipe of its run, else by its own file."""
    recipe, file = recipe_of_run(path), checkpoint_file(path)
    if recipe is None:
        return read_header(file).origin
    return recipe.origin._replace(training_digest=read_header(file).origin.training_digest)
