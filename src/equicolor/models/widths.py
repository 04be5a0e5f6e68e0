"""Channel widths that match the parameter count of a plain network (paper, appendix C.3).

A separable filter of an equivariant layer has k² + n parameters where a plain one has k²,
a full one n·k². The paper's rule keeps the count by scaling every width with the square
root of that ratio at k = 3. It holds where 3×3 equivariant convolutions dominate. For the
rest (hybrids and bottlenecks) the width follows from counting.
"""

import math
from collections.abc import Callable, Sequence

Count = Callable[[Sequence[int]], int]


def doubled(width: int, stages: int) -> list[int]:
    """The widths of a plain network: doubled from stage to stage.

    Example:
        >>> doubled(64, 4)
        [64, 128, 256, 512]
    """
    return [width << stage for stage in range(stages)]


def scaled(widths: Sequence[int], rotations: int, *, separable: bool) -> list[int]:
    """The paper's rule: every width times sqrt(9 / (9 + n)), or 1 / sqrt(n) for full filters.

    Example:
        >>> scaled([64, 128, 256, 512], 3, separable=True)
        [55, 110, 221, 443]
    """
    ratio = 9 / (9 + rotations) if separable else 1 / rotations
    return [max(1, math.floor(math.sqrt(ratio * width**2))) for width in widths]


def largest_within(count: Count, limit: int, stages: int) -> list[int]:
    """The widest doubled widths whose parameters do not exceed ``limit``, by bisection.

    Example:
        >>> largest_within(lambda widths: sum(widths), 70, stages=3)
        [10, 20, 40]
    """
    low, high = 1, 2
    while count(doubled(high, stages)) <= limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if count(doubled(middle, stages)) <= limit:
            low = middle
        else:
            high = middle
    return doubled(low, stages)


def nearest_scaled(
    count: Count, target: int, base: int, stages: int, rotations: int, *, separable: bool
) -> list[int]:
    """The paper's rule on the base width, at most ``base``, that comes nearest to ``target``.

    Example:
        >>> count = lambda widths: sum(width**2 for width in widths)
        >>> nearest_scaled(count, 2000, 64, 2, 3, separable=True)
        [20, 41]
    """
    candidates = [
        scaled(doubled(width, stages), rotations, separable=separable)
        for width in range(base, 0, -1)
    ]
    # Counts fall with the width: stop at the first one below the target.
    best = candidates[0]
    for widths in candidates:
        if abs(count(widths) - target) < abs(count(best) - target):
            best = widths
        if count(widths) < target:
            break
    return best


def friendly(widths: Sequence[int], count: Count) -> list[int]:
    """Widths that tensor cores like, with about the parameters of others.

    Convolutions of multiples of 16 channels are the fastest, and in the first stage, whose
    large features make memory the limit, those of multiples of 32. Stages are rounded to
    them; the last, which has most of the parameters, takes what keeps their number.

    Args:
        widths: one a stage.
        count: parameters at some widths.

    Example:
        >>> friendly([55, 110, 221, 443], lambda widths: sum(width**2 for width in widths))
        [64, 112, 224, 432]
    """
    *fixed, last = [_nearest(width, 16 if stage else 32) for stage, width in enumerate(widths)]
    target = count(widths)
    candidates = [[*fixed, last + 16 * step] for step in range(-4, 5) if last + 16 * step > 0]
    return min(candidates, key=lambda candidate: abs(count(candidate) - target))


def _nearest(width: int, multiple: int) -> int:
    return max(multiple, multiple * round(width / multiple))
