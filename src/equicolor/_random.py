"""Random numbers as a function of (seed, stream, step, index), without any state.

Networks that train side by side draw from their own seeds, independently of each other. A resumed
run draws the same numbers as an uninterrupted one, and has no state to save.
"""

import torch
from torch import Tensor

__all__ = ["permutation", "uniform"]

_MASK = 0xFFFFFFFF


def uniform(seeds: Tensor, stream: int, step: int | Tensor, size: int) -> Tensor:
    """Uniform numbers in [0, 1), one row a seed.

    Args:
        seeds: int64 ``[S]``.
        stream: the purpose of the numbers; other streams are independent.
        step: the time: an int, an int64 scalar, or int64 ``[S]``.
        size: numbers for each seed.

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
    # overlap, at different offsets: about 6 % of the dropout masks of a long run. Changing this
    # would change the order and the crops of every run.
    bits = _mix(_mix(key[:, None] + index))
    # 24 bits fit a float32 exactly, so 1.0 cannot come out.
    return (bits >> 8).float() * 2**-24


def permutation(seeds: Tensor, stream: int, step: int | Tensor, size: int) -> Tensor:
    """Random orders of ``size`` items, int64 ``[S, size]``, one for each seed.

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
