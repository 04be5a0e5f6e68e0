"""Recipes that train a network further, on images cut and split as they were before."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equicolor.data.datasets import find_dataset, load_dataset
from equicolor.models.checkpoints import checkpoint_file, read_header, weights_digest
from equicolor.models.registry import usual_resize
from equicolor.training.pretrained import new_head
from equicolor.training.recipes import FINETUNING, TrainingRecipe, default_recipe
from equicolor.training.run_folder import origin_of, recipe_of_run
from equicolor.training.seen import Seen, find_seen, seed_of_training

# What a fine-tune takes over from the earlier recipe, besides split and size.
_INHERITED = ("flip", "batch_size", "seed")


def finetune_recipe(
    dataset: str, checkpoint: str | Path, *, like: TrainingRecipe | None = None
) -> TrainingRecipe:
    """A short training of a network that was trained, or converted, before.

    It is the default recipe with a tenth of its learning rate and epochs, and with the image size,
    batch size and seed of the earlier training. On the same dataset, or a folder with the same
    classes, the split is the same, too, so that no training image is tested on.

    ``like`` is the earlier recipe, by default that of the network's run. A file without its run
    holds only size, dataset and split.
    """
    file = checkpoint_file(checkpoint)
    config, class_names, _ = read_header(file)
    like = recipe_of_run(checkpoint) if like is None else like
    origin = origin_of(checkpoint) if like is None else like.origin
    plain = default_recipe(dataset, None if "image_size" in config else config["model"])
    changes: dict[str, Any] = {"model": config["model"], "options": {}}
    changes |= {"finetune": str(checkpoint), "finetune_digest": weights_digest(file)}
    info = find_dataset(dataset)
    same_dataset = origin.dataset == info.name
    split_seed = seed_of_training(origin, class_names, info)
    if split_seed is not None:
        changes["split_seed"] = split_seed
    if like is not None:
        changes |= {name: getattr(like, name) for name in _INHERITED}
    if same_dataset and like is not None:
        changes |= {name: getattr(like, name) for name in ("crop", "size", "resize")}
    elif same_dataset or plain.crop == "resized":  # padded crops keep the size of the images
        size = origin.image_size or plain.size
        changes |= {"size": size, "resize": origin.resize or usual_resize(size)}
    return dataclasses.replace(plain, **FINETUNING | changes)


def finetune_seen(recipe: TrainingRecipe) -> Seen:
    """The test images of a fine-tune that its network was already trained on."""
    if recipe.finetune is None:
        return Seen()
    tested = load_dataset(recipe.dataset, "test", seed=recipe.split_seed)
    return find_seen(recipe.finetune, origin_of(recipe.finetune), recipe.dataset, tested)


def finetune_remarks(
    recipe: TrainingRecipe, class_names: Sequence[str], seen: Seen
) -> tuple[str, ...]:
    """What to know about a fine-tune before it runs."""
    if recipe.finetune is None:
        return ()
    count = len(class_names)
    why = new_head(recipe.finetune, count, class_names)
    if not why:
        return seen.remarks
    remark = f"{recipe.finetune} has {why}: its classifier is drawn anew, with {count} outputs"
    return (remark, *seen.remarks)
