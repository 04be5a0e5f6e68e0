"""Test images that a network was trained on, or may have been."""

from pathlib import Path

from equicolor._text import enumerated
from equicolor.data.datasets import find_dataset, load_dataset
from equicolor.data.folders import Caltech101, Folder
from equicolor.data.listing import list_images
from equicolor.data.pictures import Pictures
from equicolor.models.registry import Origin
from equicolor.training.run_folder import RunFolder, recipe_of_run

__all__ = ["seen_remarks"]

_SHOWN = 3  # names in a remark


def seen_remarks(
    checkpoint: str | Path,
    origin: Origin,
    dataset: str | Path,
    tested: Pictures,
    root: Path | str | None = None,
) -> list[str]:
    """Warn of test images that a network was trained on, and of training images that changed.

    The run of a network lists the files it was trained on. A file without its run knows a digest
    of that list and the seed of the split. Images that were added since do not matter: they move
    no other one from training to testing.

    Args:
        checkpoint: a file of :func:`equicolor.models.save_model`, or the folder of a run.
        origin: what the network was trained on.
        dataset: a name, or the path of a folder of class folders.
        tested: its images to test on; None of those of other datasets was trained on.
        root: the data folder (default: :func:`equicolor.data.data_root`).

    Returns:
        Sentences; none for datasets that come with a split of their own.

    Example:
        >>> import torch
        >>> pixels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
        >>> toy = Pictures("cifar10", "test", torch.tensor([0]), ("a",), pixels=pixels)
        >>> seen_remarks("nowhere", Origin(), "cifar10", toy)
        []
    """
    info = find_dataset(dataset)
    by_name = isinstance(info.layout, (Folder, Caltech101))
    if not by_name or origin.dataset != tested.name or origin.split_seed is None:
        return []
    now = list_images(tested).files
    seed = origin.split_seed if info.split_by_seed else 0
    train = list_images(load_dataset(dataset, "train", root=root, seed=seed))
    before = {} if recipe_of_run(checkpoint) is None else _run(checkpoint).read_images()
    seen = [name for name in now if name in (before or train.files)]
    remarks = []
    if seen:
        remarks.append(
            f"warning: {len(seen)} of {len(now)} test images are training images of {checkpoint}: "
            f"{enumerated(seen, _SHOWN)}"
        )
    here = now | train.files
    changed = [name for name in before if before[name] != here.get(name)]
    if changed:
        remarks.append(
            f"warning: {len(changed)} of {len(before)} training images of {checkpoint} were "
            f"renamed, replaced or removed since: {enumerated(changed, _SHOWN)}. Renamed ones may "
            "be among the test images"
        )
    elif not before and origin.training_digest not in ("", train.digest):
        remarks.append(
            f"warning: the training images of {tested.name} are not those that {checkpoint} was "
            "trained on: files were added, renamed, replaced or removed. Renamed ones may be "
            "among the test images"
        )
    return remarks


def _run(checkpoint: str | Path) -> RunFolder:
    path = Path(checkpoint)
    return RunFolder(path if path.is_dir() else path.parent)
