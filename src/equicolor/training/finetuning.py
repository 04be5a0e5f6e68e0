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

# What a fine-tune takes over from the training of the network, beside split and size.
_LIKE_BEFORE = ("flip", "batch_size", "seed")


def finetune_recipe(
    dataset: str, checkpoint: str | Path, *, like: TrainingRecipe | None = None
) -> TrainingRecipe:
    """A short training of a network that was trained, or converted, before.

    It is the default recipe with a tenth of its learning rate and epochs, and with the images,
    batches and seed of the earlier training. On the same dataset, or a folder with the same
    classes, the split is the same, too: what was trained on is not tested on.

    ``like`` is how the network was trained; that of its run by default. A file without its run
    knows less: size, dataset and split.
    """
    file = checkpoint_file(checkpoint)
    config, class_names, _ = read_header(file)
    like = recipe_of_run(checkpoint) if like is None else like
    trained = origin_of(checkpoint) if like is None else like.origin
    plain = default_recipe(dataset, None if "image_size" in config else config["model"])
    changes: dict[str, Any] = {"model": config["model"], "finetune": str(checkpoint)}
    changes |= {"options": {}, "finetune_digest": weights_digest(file)}
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
        size = trained.image_size or plain.size
        changes |= {"size": size, "resize": trained.resize or usual_resize(size)}
    return dataclasses.replace(plain, **FINETUNING | changes)


def finetune_seen(recipe: TrainingRecipe) -> Seen:
    """The test images of a fine-tune that its network was trained on before."""
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
    anew = f"{recipe.finetune} has {why}: its classifier is drawn anew, with {count} outputs"
    return (anew, *seen.remarks)
