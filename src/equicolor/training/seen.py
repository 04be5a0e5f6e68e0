"""Test images that a network was trained on, or may have been."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from equicolor._text import enumerated
from equicolor.data.datasets import DatasetInfo, find_dataset, load_dataset
from equicolor.data.folder_datasets import Caltech101, Folder
from equicolor.data.images import ImageSet, Listing, list_images
from equicolor.models.checkpoints import checkpoint_file, weights_digest
from equicolor.models.registry import Origin
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import find_run, origin_of

_SHOWN = 3  # names in a remark


class Seen(NamedTuple):
    """The names of test images that a network was trained on, and remarks about them.

    There are also remarks about training images that changed since.
    """

    names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """What a result says about them; nothing where there is nothing to remark."""
        return {"seen_images": len(self.names), "warnings": [*self.remarks]} if self.remarks else {}


def seed_of_training(origin: Origin, class_names: Sequence[str], info: DatasetInfo) -> int | None:
    """The seed to split a dataset with, so that no image is tested that was trained on."""
    moved = isinstance(info.layout, Folder) and info.layout.classes() == [*class_names]
    if info.layout.split_by_seed and (moved or info.name == origin.dataset):
        return origin.split_seed
    return None


def find_seen(
    checkpoint: str | Path, origin: Origin, dataset: str | Path, tested: ImageSet
) -> Seen:
    """Find test images that a network was trained on, and training images that changed.

    The run of a network lists the files it was trained on, and knows the run that it began from.
    A file without its run knows a digest of that list and the seed of the split. Images that were
    added since do not matter: they move no other one from training to testing. In a folder of
    another name, images count as the same if their names and sizes are. Datasets with a split of
    their own have nothing to find.
    """
    if not isinstance(find_dataset(dataset).layout, (Folder, Caltech101)):
        return Seen()
    run = find_run(checkpoint)
    before = {} if run is None else run.read_images()
    last = _seen_last(checkpoint, origin, dataset, tested, before)
    earlier = None if run is None else _begun_with(run.read_recipe())
    if earlier is None:
        return last
    first = find_seen(earlier, origin_of(earlier), dataset, tested)
    names = dict.fromkeys(last.names + first.names)
    return Seen(tuple(names), last.remarks + first.remarks)


def _begun_with(recipe: TrainingRecipe) -> str | None:
    """The network that a recipe fine-tunes, unless it is gone or another one has taken its place.

    A run that replaced it says nothing of it, and might even have begun with what came of it.
    """
    if recipe.finetune is None or not (file := checkpoint_file(recipe.finetune)).is_file():
        return None
    same = recipe.finetune_digest in ("", weights_digest(file))
    return recipe.finetune if same else None


def _seen_last(
    checkpoint: str | Path,
    origin: Origin,
    dataset: str | Path,
    tested: ImageSet,
    before: dict[str, int],
) -> Seen:
    """What the last training of a network saw; ``before`` are its files, if they are known."""
    same = origin.dataset == tested.name
    if origin.split_seed is None or not (same or before or origin.training_digest):
        return Seen()
    now = list_images(tested).files
    layout = find_dataset(dataset).layout
    train = Listing({}, "")
    if not (isinstance(layout, Folder) and layout.test_alone):
        seed = origin.split_seed if layout.split_by_seed else 0
        train = list_images(load_dataset(dataset, "train", seed=seed))
    if not before and (same or origin.training_digest == train.digest):
        trained = train.files
    elif same:
        trained = before
    else:
        trained = {name: size for name, size in before.items() if now.get(name) == size}
    seen = [name for name in now if name in trained]
    remarks = []
    if seen:
        remarks.append(
            f"warning: {len(seen)} of {len(now)} test images are training images of {checkpoint}: "
            f"{enumerated(seen, _SHOWN)}"
        )
    here = now | train.files
    changed = [name for name in before if same and before[name] != here.get(name)]
    if changed:
        remarks.append(
            f"warning: {len(changed)} of {len(before)} training images of {checkpoint} were "
            f"renamed, replaced or removed since: {enumerated(changed, _SHOWN)}. Renamed ones may "
            "be among the test images"
        )
    elif same and not before and train.digest and origin.training_digest not in ("", train.digest):
        remarks.append(
            f"warning: the training images of {tested.name} are not those that {checkpoint} was "
            "trained on: files were added, renamed, replaced or removed. Renamed ones may be "
            "among the test images"
        )
    return Seen(tuple(seen), tuple(remarks))
