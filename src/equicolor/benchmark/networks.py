"""Whole networks: a ResNet, plain and equivariant, at several widths and rotations."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from equicolor import _checks
from equicolor.benchmark.cases import MODES, Case, chosen_from
from equicolor.benchmark.variants import VARIANTS
from equicolor.models import Network, create_model
from equicolor.models.resnet import ARCHITECTURES

__all__ = ["NETWORKS", "RESNETS", "network_case", "network_groups"]

RESNETS = tuple(f"resnet{depth}" for depth in ARCHITECTURES)
_CLASSES = 1000


class Configuration(NamedTuple):
    """An equivariant ResNet: rotations, width as its builder takes it, and lifting."""

    rotations: int
    width: int | str | None = None
    lifting: str = "rgb"


# The first stage of ResNet-18 has 55 channels at n = 3 where the parameters are matched by the
# paper's rule, 64 where that is rounded to what tensor cores like.
NETWORKS = {
    "plain": Configuration(1),
    "n3-fast": Configuration(3, "fast"),
    "n3-matched": Configuration(3),
    "n3-fast-hsv": Configuration(3, "fast", "hsv"),
    "n12-fast": Configuration(12, "fast"),
    "n12-matched": Configuration(12),
}


def network_case(
    name: str,
    configuration: Configuration,
    *,
    architecture: str = "resnet18",
    variant: str = "auto",
    mode: str = "training",
    batch: int = 256,
    image_size: int = 224,
    classes: int = _CLASSES,
    recorded: bool = False,
) -> Case:
    """One network in one mode; a single rotation is the plain one, whatever the variant.

    Args:
        name: what the rows call it.
        configuration: rotations, width and lifting.
        architecture: of :data:`RESNETS`.
        variant, mode: of :data:`~equicolor.benchmark.variants.VARIANTS` and
            :data:`~equicolor.benchmark.cases.MODES`.
        batch, image_size: of the images.
        classes: outputs.
        recorded: of :class:`~equicolor.benchmark.cases.Case`.

    Example:
        >>> network_case("n3-matched", NETWORKS["n3-matched"], batch=2, image_size=32).facts
        {'name': 'n3-matched', 'model': 'ce_resnet18', 'rotations': 3, 'width': 55,
         'lifting': 'rgb', 'size': 32}
    """
    _checks.one_of("architecture", architecture, RESNETS)
    _checks.positive_int("batch", batch)
    _checks.positive_int("size", image_size)
    rotations, width, lifting = configuration
    plain = rotations == 1
    model = architecture if plain else f"ce_{architecture}"
    build = partial(
        create_model, model, num_classes=classes, rotations=rotations, width=width, lifting=lifting
    )
    facts: dict[str, Any] = {"name": name, "model": model, "rotations": rotations}
    facts |= {"width": _first_width(build), "lifting": None if plain else lifting}
    return Case(
        build,
        (batch, 3, image_size, image_size),
        mode,
        "plain" if plain else variant,
        classes,
        facts | {"size": image_size},
        recorded,
    )


def _first_width(build: Callable[[], Network]) -> int:
    with torch.device("meta"):  # shapes are all that is needed
        return int(build().config["width"][0])


def network_groups(
    *,
    models: Sequence[str] | None = None,
    rotations: Sequence[int] | None = None,
    modes: Sequence[str] | None = None,
    variants: Sequence[str] | None = ("plain", "auto", "dense"),
    architecture: str = "resnet18",
    batch: int = 256,
    image_size: int = 224,
    width: int | None = None,
    recorded: bool = False,
) -> list[list[Case]]:
    """The suite of networks: a group for every mode.

    What a time limit cuts off comes last: first the plain network, then every other as users
    get it, then the other variants.

    Args:
        models: of :data:`NETWORKS`; all by default.
        rotations: keep only these, and the plain network.
        modes: of :data:`~equicolor.benchmark.cases.MODES`; all by default.
        variants: of :data:`~equicolor.benchmark.variants.VARIANTS`.
        architecture: of :data:`RESNETS`.
        batch, image_size: of the images.
        width: of the first stage instead of every width, for a quick look.
        recorded: the plain network as CUDA graphs, too.

    Example:
        >>> (group,) = network_groups(rotations=[3], modes=["folded"], variants=["auto"])
        >>> [case.facts["name"] for case in group]
        ['plain', 'n3-fast', 'n3-matched', 'n3-fast-hsv']
    """
    names = ["plain", *chosen_from("models", models, tuple(NETWORKS))]
    configurations = {
        name: NETWORKS[name] if width is None else NETWORKS[name]._replace(width=width)
        for name in names
        if name == "plain" or rotations is None or NETWORKS[name].rotations in rotations
    }
    if len(configurations) == 1 and models != ["plain"]:
        known = sorted({network.rotations for network in NETWORKS.values()})
        raise ValueError(f"no network is left: rotations of the suite are {known}")
    wanted = [name for name in chosen_from("variants", variants, VARIANTS) if name != "plain"]
    groups = []
    for mode in chosen_from("modes", modes, MODES):
        make = partial(
            network_case,
            architecture=architecture,
            mode=mode,
            batch=batch,
            image_size=image_size,
        )
        group = [make("plain", configurations["plain"])]
        if recorded:
            group.append(make("plain-recorded", configurations["plain"], recorded=True))
        group += [
            make(name, configuration, variant=variant)
            for variant in wanted
            for name, configuration in configurations.items()
            if name != "plain"
        ]
        groups.append(group)
    return groups
