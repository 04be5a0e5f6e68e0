"""One layer or network over the number of rotations: quadratic or linear?"""

from collections.abc import Sequence

from equicolor import _checks
from equicolor.benchmark.cases import MODES, Case, chosen_from
from equicolor.benchmark.layers import LAYER_MODES, SHAPES, layer_cases, shape_named
from equicolor.benchmark.networks import RESNETS, Configuration, network_case
from equicolor.benchmark.variants import LAYER_VARIANTS, VARIANTS

__all__ = ["rotation_groups"]

# Of the first stage; a multiple of what tensor cores like, near the matched width of n = 3.
_WIDTH = 56


def rotation_groups(
    *,
    models: Sequence[str] = ("stage2",),
    rotations: Sequence[int] = tuple(range(1, 13)),
    modes: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    batch: int = 8,
    image_size: int = 224,
    width: int | None = None,
    device: str = "cpu",
) -> list[list[Case]]:
    """A group for every mode, with every number of rotations in it.

    The width stays the same for all of them, so that time grows with the rotations alone.
    A single rotation is the plain layer or network.

    Args:
        models: layers of :data:`~equicolor.benchmark.layers.SHAPES`, or networks of
            :data:`~equicolor.benchmark.networks.RESNETS`.
        rotations: orders of the group; 1 comes by itself.
        modes: all that a layer or network has, by default.
        variants: of :data:`~equicolor.benchmark.variants.VARIANTS`; by default all that a
            layer has. Layers are not fused.
        batch, image_size: of the images.
        width: channels of the first stage; 56 by default.
        device: the device type.

    Example:
        >>> (group,) = rotation_groups(rotations=[3], modes=["training"])
        >>> [(case.variant, case.shape) for case in group]
        [('plain', (8, 112, 28, 28)), ('auto', (8, 112, 3, 28, 28)),
         ('dense', (8, 112, 3, 28, 28)), ('cyclic', (8, 112, 3, 28, 28))]
    """
    width = _WIDTH if width is None else _checks.positive_int("width", width)
    chosen_from("modes", modes, MODES)
    wanted = chosen_from("variants", LAYER_VARIANTS if variants is None else variants, VARIANTS)
    names = chosen_from("models", models, (*SHAPES, *RESNETS))
    if "fused" in wanted and set(names) & set(SHAPES):
        raise ValueError(f"single layers are not fused, networks are; got models {list(names)}")
    groups = []
    for name in names:
        layer = name in SHAPES
        kinds = LAYER_MODES if layer else MODES
        for mode in kinds if modes is None else [mode for mode in kinds if mode in modes]:
            group = []
            for n in sorted({1, *rotations}):
                own = ("plain",) if n == 1 else tuple(v for v in wanted if v != "plain")
                if layer:
                    shape = shape_named(name, image_size)
                    group += layer_cases(
                        name,
                        shape,
                        n,
                        channels=max(1, width * shape.width // 64),
                        batch=batch,
                        mode=mode,
                        variants=own,
                        device=device,
                    )
                    continue
                group += [
                    network_case(
                        f"n{n}",
                        Configuration(n, width),
                        architecture=name,
                        variant=variant,
                        mode=mode,
                        batch=batch,
                        image_size=image_size,
                    )
                    for variant in own
                ]
            groups.append(group)
    if not groups:
        raise ValueError(f"layers have the modes {', '.join(LAYER_MODES)}; got {list(modes or [])}")
    return groups
