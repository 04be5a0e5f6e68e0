"""Recipes that train a network further, on images cut and split as they were before."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equicolor.data.datasets import find_dataset, load_dataset
from equicolor.models.checkpoints import checkpoint_file, read_header, weights_digest
from equicolor.models.registry import Origin, usual_resize
from equicolor.training.pretrained import new_head
from equicolor.training.recipes import FINETUNING, TrainingRecipe, default_recipe
from equicolor.training.run_folder import origin_of, recipe_of_run
from equicolor.training.seen import Seen, find_seen, seed_of_training

__all__ = ["finetune_recipe", "finetune_remarks", "finetune_seen"]

# What a fine-tune takes over from the training of the network, beside split and size.
_LIKE_BEFORE = ("flip", "batch_size", "seed")


def finetune_recipe(
    dataset: str, checkpoint: str | Path, *, like: TrainingRecipe | None = None
) -> TrainingRecipe:
    """A short training of a network that was trained, or converted, before.

    Args:
        dataset: a name, or the path of a folder of class folders.
        checkpoint: a file of :func:`equicolor.models.save_model`, or the folder of a run.
        like: how the network was trained; that of the run by default. A file without its run
            says less: size, dataset and split.

    Returns:
        The default recipe with a tenth of its learning rate and epochs, and with the images,
        batches and seed of the earlier training. On the same dataset, or a folder with the same
        classes, the split is the same, too: what was trained on is not tested on.

    Example:
        >>> import tempfile
        >>> from equicolor.models import resnet18, save_model
        >>> path = save_model(resnet18(10, width=4), Path(tempfile.mkdtemp()) / "net.safetensors")
        >>> recipe = finetune_recipe("flowers102", path)
        >>> recipe.model, recipe.epochs, recipe.lr, recipe.size
        ('resnet18', 20, 0.0001, 224)
    """
    config, class_names, _ = read_header(checkpoint_file(checkpoint))
    like = recipe_of_run(checkpoint) if like is None else like
    trained = origin_of(checkpoint) if like is None else like.origin
    plain = default_recipe(dataset, None if "image_size" in config else config["model"])
    changes: dict[str, Any] = {"model": config["model"], "options": {}}
    changes |= {"finetune": str(checkpoint)}
    changes |= {"finetune_digest": weights_digest(checkpoint_file(checkpoint))}
    info = find_dataset(dataset)
    same = trained.dataset == info.name
    split_seed = seed_of_training(trained, class_names, info)
    if split_seed is not None:
        changes["split_seed"] = split_seed
    if like is not None:
        changes |= {name: getattr(like, name) for name in _LIKE_BEFORE}
    if same and like is not None:
        changes |= {name: getattr(like, name) for name in ("crop", "size", "resize")}
    elif same or plain.crop == "resized":  # others are as small as they are
        changes |= _size(trained, plain.size)
    return dataclasses.replace(plain, **FINETUNING | changes)


def _size(trained: Origin, default: int) -> dict[str, int]:
    size = trained.image_size or default
    return {"size": size, "resize": trained.resize or usual_resize(size)}


def finetune_remarks(
    recipe: TrainingRecipe, class_names: Sequence[str], root: Path | None = None
) -> list[str]:
    """What to know about a fine-tune before it runs."""
    if recipe.finetune is None:
        return []
    remarks = []
    why = new_head(recipe.finetune, len(class_names), class_names)
    if why:
        remarks.append(
            f"{recipe.finetune} has {why}: its classifier is drawn anew, with {len(class_names)} "
            "outputs"
        )
    return [*remarks, *finetune_seen(recipe, root).remarks]


def finetune_seen(recipe: TrainingRecipe, root: Path | None = None) -> Seen:
    """The test images of a fine-tune that its network was trained on before."""
    if recipe.finetune is None:
        return Seen()
    tested = load_dataset(recipe.dataset, "test", root=root, seed=recipe.split_seed)
    return find_seen(recipe.finetune, origin_of(recipe.finetune), recipe.dataset, tested, root)
