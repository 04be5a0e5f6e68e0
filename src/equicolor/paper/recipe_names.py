"""Recipes of the ablations by name, beside those of the paper's tables.

A name is a network and what was changed, joined by plus signs: ``rgb-6`` and ``hsv-6`` are
equivariant in all stages with six rotations, ``+jitter-0.2`` draws hues from ±0.2 turns,
``+flatten`` and ``+avg`` replace the maximum over the rotations. What two names describe alike
has one canonical name, so that nothing is trained twice: ``rgb-3`` is ``ce-4``, ``rgb-1`` and
``hsv-1`` are ``baseline``.
"""

import dataclasses
import re
from typing import Any, NamedTuple

from equicolor.data.datasets import find_dataset
from equicolor.models import widths
from equicolor.paper.variants import all_stages
from equicolor.training.recipes import JITTER, TrainingRecipe, find_recipe, recipes

__all__ = ["NamedRecipe", "named_recipe", "narrow"]

_GROUP = re.compile(r"(rgb|hsv)-([1-9]\d*)")
_JITTER_STRENGTH = re.compile(r"jitter-(0(?:\.\d+)?|1(?:\.0+)?)")
_POOLS: dict[str, str | None] = {"flatten": None, "avg": "avg"}


class NamedRecipe(NamedTuple):
    """A recipe and its canonical name.

    Attributes:
        name: such as ``"ce-4+jitter-0.1"``.
        recipe: how to train it.
    """

    name: str
    recipe: TrainingRecipe


def named_recipe(name: str, dataset: str) -> NamedRecipe:
    """A recipe of the tables or of the ablations.

    Args:
        name: one of :func:`equicolor.training.recipes.recipes`, without the dataset, or a
            network (also ``rgb-N`` or ``hsv-N``) with ``+flatten`` or ``+avg``, then
            ``+jitter``, ``+jitter-0.1`` or ``+augmix``.
        dataset: a name, or the path of a folder of class folders.

    Raises:
        ValueError: if there is none, with the nearest names.

    Example:
        >>> named_recipe("rgb-3", "flowers102").name, named_recipe("hsv-1", "cifar10").name
        ('ce-4', 'baseline')
        >>> named_recipe("rgb-6+flatten+jitter-0.10", "flowers102").name
        'rgb-6+flatten+jitter-0.1'
    """
    title = find_dataset(dataset).name
    name = name.removeprefix(f"{title}/")
    if f"{title}/{name}" in recipes(dataset):
        return NamedRecipe(name, find_recipe(name, dataset))
    network, *changes = name.split("+")
    found = _network(network, dataset)
    pools = [change for change in changes if change in _POOLS]
    rest = [change for change in changes if change not in _POOLS]
    augmentations = [_augmentation(change) for change in rest]
    if len(pools) > 1 or len(augmentations) > 1 or None in augmentations:
        find_recipe(name, dataset)  # says what is wrong with the name
        raise AssertionError(name)
    canonical, recipe = found
    for pool in pools:
        if recipe.options.get("rotations", 1) == 1:
            raise ValueError(f"{network} has no rotations to pool: +{pool} does not apply to it")
        options = {**recipe.options, "coset_pool": _POOLS[pool]}
        recipe, canonical = dataclasses.replace(recipe, options=options), f"{canonical}+{pool}"
    for augmentation in augmentations:
        assert augmentation is not None
        suffix, change = augmentation
        recipe, canonical = dataclasses.replace(recipe, **change), f"{canonical}{suffix}"
    return NamedRecipe(canonical, recipe)


def _network(name: str, dataset: str) -> NamedRecipe:
    group = _GROUP.fullmatch(name)
    if group is None:
        return NamedRecipe(name, find_recipe(name, dataset))
    lifting, rotations = group[1], int(group[2])
    plain = find_recipe("baseline", dataset)
    if rotations == 1:
        return NamedRecipe("baseline", plain)
    if (lifting, rotations) == ("rgb", 3):
        name = f"ce-{all_stages(plain.model)}"
        return NamedRecipe(name, find_recipe(name, dataset))
    options = {"rotations": rotations, "lifting": lifting}
    model = f"ce_{plain.model}"
    return NamedRecipe(name, dataclasses.replace(plain, model=model, options=options))


def _augmentation(change: str) -> tuple[str, dict[str, Any]] | None:
    """What a change is called and does; None if it is unknown."""
    if change == "augmix":
        return "+augmix", {"augmix": "original"}
    strength = _JITTER_STRENGTH.fullmatch(change)
    if change != "jitter" and strength is None:
        return None
    turns = JITTER if strength is None else float(strength[1])
    if turns == 0:
        return "", {}
    return ("+jitter" if turns == JITTER else f"+jitter-{turns:g}"), {"jitter": turns}


def narrow(recipe: TrainingRecipe, width: int) -> TrainingRecipe:
    """The recipe of a ResNet as narrow as asked, for training in seconds.

    Args:
        recipe: of a ResNet.
        width: of the plain network's first stage; equivariant networks get fewer channels by
            the paper's rule, so that parameters stay about equal.

    Example:
        >>> narrow(named_recipe("hsv-6", "flowers102").recipe, 8).options["width"]
        [6, 12, 24, 49]
    """
    network = recipe.model.removeprefix("ce_").removeprefix("ciconv_")
    plain = widths.doubled(width, all_stages(network))
    rotations = recipe.options.get("rotations", 1)
    scaled = widths.scaled(plain, rotations, separable=True) if rotations > 1 else plain
    return dataclasses.replace(recipe, options={**recipe.options, "width": scaled})
