"""Single hidden layers at the shapes of the paper's networks."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from equicolor import _checks
from equicolor.benchmark.cases import Case, chosen_from
from equicolor.benchmark.variants import LAYER_VARIANTS
from equicolor.models import widths
from equicolor.nn import CEConv2d
from equicolor.nn.algorithm import choose_algorithm

__all__ = ["LAYER_MODES", "SHAPES", "layer_cases", "layer_groups", "shape_named"]

LAYER_MODES = ("training", "forward")  # folding is for networks


class Shape(NamedTuple):
    """A hidden 3×3 layer with as many outputs as inputs.

    Attributes:
        width: channels of the plain network.
        size: height and width of its features.
    """

    width: int
    size: int


_STAGES = 4
SHAPES = (*(f"stage{stage}" for stage in range(1, _STAGES + 1)), "colormnist")


def shape_named(name: str, image_size: int = 224) -> Shape:
    """A shape of :data:`SHAPES`: a stage of ResNet-18, or the hidden layers for ColorMNIST.

    Args:
        name: of the shape.
        image_size: height and width of the images a ResNet gets.

    Example:
        >>> [shape_named(f"stage{stage}") for stage in (1, 4)], shape_named("colormnist")
        ([Shape(width=64, size=55), Shape(width=512, size=7)], Shape(width=20, size=26))
    """
    _checks.one_of("models", name, SHAPES)
    _checks.positive_int("size", image_size)
    if name == "colormnist":
        return Shape(20, 26)
    stage = int(name.removeprefix("stage"))
    size = _halved(_strided(image_size, 7, 1))  # the stem and its pooling
    for _ in range(stage - 1):
        size = _halved(size)
    return Shape(widths.doubled(64, _STAGES)[stage - 1], size)


def _strided(size: int, kernel: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // 2 + 1


def _halved(size: int) -> int:
    """By a 3×3 window with stride 2 and padding 1."""
    return _strided(size, 3, 1)


def layer_cases(
    name: str,
    shape: Shape,
    rotations: int,
    *,
    channels: int | None = None,
    batch: int,
    mode: str,
    variants: Sequence[str],
    device: str = "cpu",
) -> list[Case]:
    """One layer in several variants.

    Args:
        name: what the rows call it.
        shape: of the plain layer.
        rotations: the order n of the group.
        channels: of the equivariant layer; None matches the parameters of the plain one.
        batch: images.
        mode: one of :data:`LAYER_MODES`.
        variants: of :data:`~equicolor.benchmark.variants.LAYER_VARIANTS`; a single rotation
            has only the plain one.
        device: what ``"auto"`` is chosen for.

    Example:
        >>> cases = layer_cases("stage1", Shape(64, 55), 3, batch=2, mode="forward",
        ...                     variants=("plain", "auto"))
        >>> [(case.shape, case.facts["width"]) for case in cases]
        [((2, 64, 55, 55), 64), ((2, 55, 3, 55, 55), 55)]
    """
    _checks.one_of("mode", mode, LAYER_MODES)
    own = widths.scaled([shape.width], rotations, separable=True)[0]
    own = own if channels is None else channels
    cases = []
    for variant in variants:
        plain = variant == "plain"
        if rotations == 1 and not plain:
            continue
        width = (shape.width if channels is None else channels) if plain else own
        facts: dict[str, Any] = {"model": name, "rotations": 1 if plain else rotations}
        facts |= {"width": width, "size": shape.size}
        if variant == "auto":
            facts["chosen"] = choose_algorithm(rotations, (own, own, 1, 3, 3), 1, device)
        space = (shape.size, shape.size)
        cases.append(
            Case(
                partial(_layer, width, None if plain else rotations),
                (batch, width, *space) if plain else (batch, width, rotations, *space),
                mode,
                variant,
                facts=facts,
            )
        )
    return cases


def _layer(channels: int, rotations: int | None) -> nn.Module:
    if rotations is None:
        return nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    return CEConv2d(channels, channels, 3, padding=1, bias=False, rotations=rotations)


def layer_groups(
    *,
    models: Sequence[str] | None = None,
    rotations: Sequence[int] = (3, 12),
    modes: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    batch: int = 8,
    image_size: int = 224,
    device: str = "cpu",
) -> list[list[Case]]:
    """The suite of layers: a group for every mode, shape and number of rotations.

    Widths are matched: the layers have about the parameters of the plain one.

    Args:
        models: of :data:`SHAPES`; all by default.
        rotations: orders of the group.
        modes: of :data:`LAYER_MODES`; all by default.
        variants: of :data:`~equicolor.benchmark.variants.LAYER_VARIANTS`; all by default, and
            the plain layer always.
        batch: images.
        image_size: height and width of the images a ResNet gets.
        device: the device type.

    Example:
        >>> groups = layer_groups(models=["stage3"], rotations=[3], modes=["training"])
        >>> [case.variant for case in groups[0]]
        ['plain', 'auto', 'dense', 'cyclic']
    """
    names = chosen_from("models", models, SHAPES)
    others = [name for name in chosen_from("variants", variants, LAYER_VARIANTS) if name != "plain"]
    return [
        layer_cases(
            name,
            shape_named(name, image_size),
            n,
            batch=batch,
            mode=mode,
            variants=("plain", *others),
            device=device,
        )
        for mode in chosen_from("modes", modes, LAYER_MODES)
        for name in names
        for n in rotations
    ]
