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
    """The names of test images that a network was trained on, and remarks.

    Remarks are about those images, and about training images that changed since.
    """

    names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Keys and values for a result row; none without remarks."""
        return {"seen_images": len(self.names), "warnings": [*self.remarks]} if self.remarks else {}


def seed_of_training(origin: Origin, class_names: Sequence[str], info: DatasetInfo) -> int | None:
    """The seed that splits a dataset as in training, so that no training image is tested on."""
    same_classes = isinstance(info.layout, Folder) and info.layout.classes() == [*class_names]
    if info.layout.split_by_seed and (same_classes or info.name == origin.dataset):
        return origin.split_seed
    return None


def find_seen(
    checkpoint: str | Path, origin: Origin, dataset: str | Path, tested: ImageSet
) -> Seen:
    """Find test images that a network was trained on, and training images that changed.

    The run of a network lists its training files, and names the network that it fine-tuned. A file
    without its run holds only a digest of that list and the seed of the split. Images that were
    added since do not matter: they move no other image from training to testing. In a folder of
    another name, images are the same if their names and sizes are. In datasets with a split of
    their own there is nothing to find.
    """
    if not isinstance(find_dataset(dataset).layout, (Folder, Caltech101)):
        return Seen()
    run = find_run(checkpoint)
    before = {} if run is None else run.read_images()
    last = _seen_last(checkpoint, origin, dataset, tested, before)
    base = None if run is None else _base_network(run.read_recipe())
    if base is None:
        return last
    earlier = find_seen(base, origin_of(base), dataset, tested)
    names = dict.fromkeys(last.names + earlier.names)
    return Seen(tuple(names), last.remarks + earlier.remarks)


def _base_network(recipe: TrainingRecipe) -> str | None:
    """The network that a recipe fine-tunes, unless it is gone or was replaced.

    The run of a replacement says nothing about it, and may even fine-tune what came of it.
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
    """What the last training of a network saw; ``before`` has its files, if they are known."""
    same_name, digest = origin.dataset == tested.name, origin.training_digest
    if origin.split_seed is None or not (same_name or before or digest):
        return Seen()
    now = list_images(tested).files
    layout = find_dataset(dataset).layout
    train = Listing({}, "")
    if not (isinstance(layout, Folder) and layout.test_alone):
        seed = origin.split_seed if layout.split_by_seed else 0
        train = list_images(load_dataset(dataset, "train", seed=seed))
    if not before and (same_name or digest == train.digest):
        trained = train.files
    elif same_name:
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
    changed = [name for name in before if same_name and before[name] != here.get(name)]
    if changed:
        remarks.append(
            f"warning: {len(changed)} of {len(before)} training images of {checkpoint} were "
            f"renamed, replaced or removed since: {enumerated(changed, _SHOWN)}. Renamed ones may "
            "be among the test images"
        )
    elif same_name and not before and train.digest and digest not in ("", train.digest):
        remarks.append(
            f"warning: the training images of {tested.name} are not those that {checkpoint} was "
            "trained on: files were added, renamed, replaced or removed. Renamed ones may be "
            "among the test images"
        )
    return Seen(tuple(seen), tuple(remarks))
