"""Random numbers as a function of (seed, stream, step, index), without any state.

Networks that train side by side each draw from their own seed, whatever trains beside them,
and a resumed run draws what the interrupted one would have drawn: there is nothing to save.
"""

import torch
from torch import Tensor

__all__ = ["permutation", "uniform"]

_MASK = 0xFFFFFFFF


def uniform(seeds: Tensor, stream: int, step: int | Tensor, size: int) -> Tensor:
    """Uniform numbers in [0, 1), one row a seed.

    Args:
        seeds: int64 ``[S]``.
        stream: tells apart what the numbers are for.
        step: the time, an int, or int64 of no dimensions or one a seed.
        size: how many numbers a seed.

    Returns:
        float32 ``[S, size]``.

    Example:
        >>> seeds = torch.tensor([0, 1])
        >>> both, first = uniform(seeds, 0, 5, 3), uniform(seeds[:1], 0, 5, 3)
        >>> torch.equal(both[:1], first)
        True
    """
    index = torch.arange(size, device=seeds.device)
    key = _mix(_mix(_mix(seeds) + stream) + step)
    # Rows are windows of one sequence of 2**32 numbers. Of W windows about W² · size / 2**32 pairs
    # overlap, shifted against each other: about 6 % of the dropout masks of a long run. It stays
    # so, since splits of datasets and orders of resumed runs depend on every number.
    bits = _mix(_mix(key[:, None] + index))
    # 24 bits fit a float32 exactly, so 1.0 cannot come out.
    return (bits >> 8).float() * 2**-24


def permutation(seeds: Tensor, stream: int, step: int | Tensor, size: int) -> Tensor:
    """Random orders of ``size`` things, int64 ``[S, size]``, one a seed.

    Example:
        >>> permutation(torch.tensor([3]), 0, 0, 4).sort().values.tolist()
        [[0, 1, 2, 3]]
    """
    return torch.argsort(uniform(seeds, stream, step, size), dim=1, stable=True)


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash (xorshift-multiply, two rounds) in int64 arithmetic."""
    x = (x + 0x9E3779B9) & _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)
