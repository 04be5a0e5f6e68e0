"""Random numbers as a function of (seed, stream, step, index), without any state.

Networks that train side by side draw from their own seeds, independently of each other. A resumed
run draws the same numbers as an uninterrupted one, and has no state to save.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_WEIGHTS = (0x2545F4914F6CDD1D, 0x5851F42D4C957F2D, 0x369DEA0F31A53F85)
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))  # of int64


def uniform(seeds: Tensor, stream: int, step: int | Tensor, size: int) -> Tensor:
    """Uniform numbers in [0, 1), one row for each seed.

    Args:
        seeds: int64 ``[S]``.
        stream: a number for what they are used for; streams are independent of each other.
        step: an int, an int64 scalar, or int64 ``[S]``.
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
    first, second = _keys(seeds, stream, step)
    # With one key of 32 bits, rows would be windows of one sequence, and some of them overlap.
    bits = _mix(_mix(first[:, None] + index) ^ second[:, None])
    # 24 bits fit a float32 exactly, so 1.0 cannot come out.
    return (bits >> 8).float() * 2**-24


def permutation(seeds: Tensor, stream: int, step: int | Tensor, size: int) -> Tensor:
    """Random orders of ``size`` items, int64 ``[S, size]``, one for each seed.

    Example:
        >>> permutation(torch.tensor([3]), 0, 0, 4).sort().values.tolist()
        [[0, 1, 2, 3]]
    """
    return torch.argsort(uniform(seeds, stream, step, size), dim=1, stable=True)


def _keys(seeds: Tensor, stream: int, step: int | Tensor) -> tuple[Tensor, Tensor]:
    """Two 32-bit keys for each seed: a weighted sum, then the last rounds of SplitMix64."""
    time = step * _WEIGHTS[2]
    time = time if isinstance(time, Tensor) else _wrapped(time)
    x = seeds * _WEIGHTS[0] + _wrapped(stream * _WEIGHTS[1]) + time
    for shift, factor in _ROUNDS:
        x = (x ^ _shifted(x, shift)) * factor
    x = x ^ _shifted(x, 31)
    return x & _MASK, _shifted(x, 32)


def _wrapped(number: int) -> int:
    """A number modulo 2**64, in the range of int64."""
    return (number + 2**63) % 2**64 - 2**63


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift int64 to the right, filling with zeros."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """A 32-bit integer hash (xorshift-multiply, two rounds) in int64 arithmetic."""
    x = (x + 0x9E3779B9) & _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)
