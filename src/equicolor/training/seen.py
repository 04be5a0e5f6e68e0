"""Test images that a network was trained on, or may have been."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from equicolor._text import enumerated
from equicolor.data.datasets import DatasetInfo, find_dataset, load_dataset
from equicolor.data.folder_datasets import Caltech101, Folder
from equicolor.data.images import ImageSet, list_images
from equicolor.models.registry import Origin
from equicolor.training.run_folder import RunFolder, origin_of, recipe_of_run

__all__ = ["Seen", "find_seen", "seed_of_training"]

_SHOWN = 3  # names in a remark


class Seen(NamedTuple):
    """Test images that a network was trained on.

    Attributes:
        names: of the images.
        remarks: sentences about them, and about training images that changed since.
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
    checkpoint: str | Path,
    origin: Origin,
    dataset: str | Path,
    tested: ImageSet,
    root: Path | str | None = None,
) -> Seen:
    """Find test images that a network was trained on, and training images that changed.

    The run of a network lists the files it was trained on, and knows the run that it began from.
    A file without its run knows a digest of that list and the seed of the split. Images that were
    added since do not matter: they move no other one from training to testing. In a folder of
    another name, images count as the same if their names and sizes are.

    Args:
        checkpoint: a file of :func:`equicolor.models.save_model`, or the folder of a run.
        origin: what the network was trained on.
        dataset: a name, or the path of a folder of class folders.
        tested: its images to test on.
        root: the data folder (default: :func:`equicolor.data.data_root`).

    Returns:
        Nothing for datasets that come with a split of their own.

    Example:
        >>> import torch
        >>> pixels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
        >>> toy = ImageSet("cifar10", "test", torch.tensor([0]), ("a",), pixels=pixels)
        >>> find_seen("nowhere", Origin(), "cifar10", toy)
        Seen(names=(), remarks=())
    """
    if not isinstance(find_dataset(dataset).layout, (Folder, Caltech101)):
        return Seen()
    recipe = recipe_of_run(checkpoint)
    last = _seen_last(checkpoint, origin, dataset, tested, root)
    if recipe is None or recipe.finetune is None or not Path(recipe.finetune).exists():
        return last
    before = find_seen(recipe.finetune, origin_of(recipe.finetune), dataset, tested, root)
    names = dict.fromkeys(last.names + before.names)
    return Seen(tuple(names), last.remarks + before.remarks)


def _seen_last(
    checkpoint: str | Path,
    origin: Origin,
    dataset: str | Path,
    tested: ImageSet,
    root: Path | str | None,
) -> Seen:
    """What the last training of a network saw."""
    before = {} if recipe_of_run(checkpoint) is None else _run(checkpoint).read_images()
    same = origin.dataset == tested.name
    if origin.split_seed is None or not (same or before or origin.training_digest):
        return Seen()
    now = list_images(tested).files
    seed = origin.split_seed if find_dataset(dataset).layout.split_by_seed else 0
    train = list_images(load_dataset(dataset, "train", root=root, seed=seed))
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
    elif same and not before and origin.training_digest not in ("", train.digest):
        remarks.append(
            f"warning: the training images of {tested.name} are not those that {checkpoint} was "
            "trained on: files were added, renamed, replaced or removed. Renamed ones may be "
            "among the test images"
        )
    return Seen(tuple(seen), tuple(remarks))


def _run(checkpoint: str | Path) -> RunFolder:
    path = Path(checkpoint)
    return RunFolder(path if path.is_dir() else path.parent)
