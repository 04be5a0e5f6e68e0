"""The sizes of the ResNets, and widths at equal parameters (paper, appendix C.3).

A separable filter of an equivariant layer has k² + n parameters where a plain one has k²,
a full one n·k². The paper's rule keeps the count by scaling every width with the square
root of that ratio at k = 3. It holds where 3×3 equivariant convolutions dominate. For the
rest (hybrids and bottlenecks) the width follows from counting. A spatial group of m elements
multiplies the parameters of hidden filters by m.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from equicolor import _checks
from equicolor.groups import SpatialGroup

Width = int | str | Sequence[int] | None  # the builders' argument


class Architecture(NamedTuple):
    """What distinguishes one ResNet from another."""

    blocks: tuple[int, ...]  # per stage
    bottleneck: bool
    base_width: int  # of the plain network's first stage
    small_images: bool  # 3×3 stem without pooling, for CIFAR
    reference_classes: int  # the head that parameter counts are matched with

    @property
    def name(self) -> str:
        """The name of the plain network; its depth counts convolutions and the classifier."""
        return f"resnet{2 + len(block_convolutions(1, 1, self.bottleneck)) * sum(self.blocks)}"


ARCHITECTURES = {
    18: Architecture((2, 2, 2, 2), False, 64, False, 1000),
    34: Architecture((3, 4, 6, 3), False, 64, False, 1000),
    44: Architecture((7, 7, 7), False, 32, True, 10),
    50: Architecture((3, 4, 6, 3), True, 64, False, 1000),
    101: Architecture((3, 4, 23, 3), True, 64, False, 1000),
    152: Architecture((3, 8, 36, 3), True, 64, False, 1000),
}


def block_convolutions(
    in_channels: int, width: int, bottleneck: bool
) -> list[tuple[int, int, int]]:
    """Input channels, output channels and kernel size of the convolutions of a block."""
    if bottleneck:
        return [(in_channels, width, 1), (width, width, 3), (width, 4 * width, 1)]
    return [(in_channels, width, 3), (width, width, 3)]


def matched_widths(
    depth: int, rotations: int, ce_stages: int, separable: bool = True, *, spatial: str = "p1"
) -> tuple[int, ...]:
    """Stage widths at which an equivariant ResNet has about the plain one's parameters.

    They depend on the architecture alone, not on the number of classes, so that trained
    stages fit whatever the head.

    Args:
        depth: 18, 34, 44, 50, 101 or 152.
        rotations: the order n of the group.
        ce_stages: equivariant stages.
        separable: whether the filters are.
        spatial: ``"p1"``, ``"p4"`` or ``"p4m"``.

    Example:
        >>> matched_widths(18, 3, 4), matched_widths(18, 3, 2)
        ((55, 110, 221, 443), (63, 126, 252, 504))
        >>> matched_widths(18, 3, 4, spatial="p4")
        (27, 55, 110, 221)
    """
    if depth not in ARCHITECTURES:
        depths = ", ".join(map(str, ARCHITECTURES))
        raise ValueError(f"depth must be one of {depths}; got {depth!r}")
    if isinstance(ce_stages, bool) or not isinstance(ce_stages, int):
        raise TypeError(f"ce_stages must be an int, got {ce_stages!r}")
    group = _checks.positive_int("rotations", rotations), ce_stages, separable, spatial
    return tuple(resolve_widths(ARCHITECTURES[depth], None, *group))


def resolve_widths(
    architecture: Architecture,
    width: Width,
    rotations: int,
    ce_stages: int,
    separable: bool,
    spatial: str = "p1",
) -> list[int]:
    """The ``width`` argument of the builders as one width a stage."""
    stages, group = len(architecture.blocks), (rotations, ce_stages, separable, spatial)
    if not 0 <= ce_stages <= stages:
        raise ValueError(
            f"ce_stages of {architecture.name} lies between 0 and {stages}, got {ce_stages}"
        )
    if width is None:
        return _matched(architecture, *group)
    if width == "fast":
        matched = _matched(architecture, *group)
        order = SpatialGroup(spatial).order
        return _friendly(matched, order, lambda widths: count(architecture, widths, *group))
    if isinstance(width, str):
        raise ValueError(f"width must be None, 'fast', an int or one int a stage; got {width!r}")
    if not isinstance(width, Sequence):
        return doubled(_checks.positive_int("width", width), stages)
    if len(width) != stages:
        raise ValueError(f"width needs {stages} numbers, one a stage; got {list(width)}")
    return [_checks.positive_int("width", value) for value in width]


def _matched(
    architecture: Architecture, rotations: int, ce_stages: int, separable: bool, spatial: str
) -> list[int]:
    """The widths of :func:`matched_widths`."""
    base, stages = architecture.base_width, len(architecture.blocks)
    plain = doubled(base, stages)
    if ce_stages == 0 or (rotations == 1 and spatial == "p1"):
        return plain
    if ce_stages == stages and not architecture.bottleneck:
        return scaled(plain, rotations, separable=separable, spatial=spatial)
    target = count(architecture, plain, 1, 0, separable)

    def excess(widths: list[int]) -> int:
        return count(architecture, widths, rotations, ce_stages, separable, spatial) - target

    candidates = [doubled(width, stages) for width in range(1, base + 1)]
    if ce_stages < stages:  # the widest hybrid that does not exceed the plain network
        return candidates[max(0, bisect.bisect_right(candidates, 0, key=excess) - 1)]
    by_rule = [
        scaled(widths, rotations, separable=separable, spatial=spatial) for widths in candidates
    ]
    return min(reversed(by_rule), key=lambda widths: abs(excess(widths)))


def count(
    architecture: Architecture,
    widths: Sequence[int],
    rotations: int,
    ce_stages: int,
    separable: bool,
    spatial: str = "p1",
) -> int:
    """Parameters of a network that pools over its group, with the reference head."""
    blocks, bottleneck, _, small_images, classes = architecture
    channels = widths[0]
    total = _conv_parameters(3, channels, 3 if small_images else 7)
    for stage, (number, width) in enumerate(zip(blocks, widths, strict=True)):
        n, elements = (rotations, SpatialGroup(spatial).order) if stage < ce_stages else (1, 1)
        for block in range(number):
            convolutions = block_convolutions(channels, width, bottleneck)
            out = convolutions[-1][1]
            if block == 0 and (stage or channels != out):  # the shortcut
                total += _conv_parameters(elements * channels, out, 1, n, separable=False)
            total += sum(
                _conv_parameters(elements * inputs, outputs, kernel, n, separable)
                for inputs, outputs, kernel in convolutions
            )
            channels = out
    return total + channels * classes + classes


def _conv_parameters(
    inputs: int, outputs: int, kernel: int, rotations: int = 1, separable: bool = True
) -> int:
    """Parameters of a convolution without bias and of the batch norm after it."""
    taps = kernel**2
    if rotations > 1:
        taps = taps + rotations if separable else taps * rotations
    return inputs * outputs * taps + 2 * outputs


def doubled(width: int, stages: int) -> list[int]:
    """The widths of a plain network: doubled from stage to stage."""
    return [width << stage for stage in range(stages)]


def scaled(
    widths: Sequence[int], rotations: int, *, separable: bool, spatial: str = "p1"
) -> list[int]:
    """The paper's rule: every width times sqrt(9 / (9 + n)), or 1 / sqrt(n) for full filters.

    A spatial group of m elements divides by sqrt(m), too.
    """
    ratio = 9 / (9 + rotations) if separable and rotations > 1 else 1 / rotations
    ratio /= SpatialGroup(spatial).order
    return [max(1, math.floor(math.sqrt(ratio * width**2))) for width in widths]


def _friendly(
    widths: Sequence[int], elements: int, count: Callable[[Sequence[int]], int]
) -> list[int]:
    """Widths that suit tensor cores, with about as many parameters as ``widths``.

    Multiples of 16 channels are the fastest; in the first stage, whose large features make memory
    the limit, multiples of 32. Stages are rounded to them. The last one, which has most of the
    parameters, is chosen to keep their number. A channel of a spatial group counts once for
    each element.
    """
    multiples = [32 // elements] + [16 // elements] * (len(widths) - 1)
    *fixed, last = [max(m, m * round(w / m)) for w, m in zip(widths, multiples, strict=True)]
    target, step = count(widths), multiples[-1]
    candidates = [[*fixed, last + step * k] for k in range(-4, 5) if last + step * k > 0]
    return min(candidates, key=lambda candidate: abs(count(candidate) - target))
