r"""The mixing matrices of the cyclic algorithm as products of sparse matrices, for kernels.

Features are mixed by four matrices: :math:`A` (features to products), :math:`C^\top` (products
to features), and the transposes of both for gradients. A dense matrix costs :math:`nr`
multiplications a pixel, which for twelve rotations takes longer than reading the memory. But
the rows are real Fourier modes: even and odd parts of the features separate (twice for even
:math:`n`), and of the three products of a frequency one row is the sum of the others. This
leaves four sparse stages: 49 additions and 16 multiplications for :math:`n = 12`, not 204.

Where a frequency is one product of 2C channels instead of three of C, features are mixed to
modes and back, and the last (or first) stage does nothing.
"""

import functools

import torch
from torch import Tensor

from equicolor.groups.cyclic import cyclic_algorithm, cyclic_products

# Features to products (A), products to features (C^T), and the transposes of both.
ANALYSIS, ANALYSIS_T, SYNTHESIS, SYNTHESIS_T = range(4)
# Added to a kind, for modes instead of products.
PAIRED = 4


def stages(kind: int, n: int) -> tuple[Tensor, ...]:
    """The float64 matrices to apply one after the other, for one of the kinds above."""
    first, second = _folds(n)
    modes, weights = _modes(n)
    analyse, synthesise = _expansions(n)
    if kind >= PAIRED:
        kind -= PAIRED
        analyse = synthesise = torch.eye(n, dtype=torch.float64, device="cpu")
    transform = modes @ torch.linalg.inv(second @ first)
    weighted = weights[:, None] * transform
    return {
        ANALYSIS: (first, second, transform, analyse),
        ANALYSIS_T: (analyse.T, transform.T, second.T, first.T),
        SYNTHESIS: (synthesise, weighted.T, second.T, first.T),
        SYNTHESIS_T: (first, second, weighted, synthesise.T),
    }[kind]


@functools.cache
def terms(kind: int, n: int, stage: int, row: int) -> tuple[int | float, ...]:
    """One row of a stage as a flat tuple: index, coefficient, index, coefficient, ..."""
    values = _rows(kind, n)[stage][row]
    return tuple(x for index, value in enumerate(values) if value for x in (index, value))


def outputs(kind: int, n: int, stage: int) -> int:
    """The number of rows of a stage."""
    return len(_rows(kind, n)[stage])


@functools.cache
def _rows(kind: int, n: int) -> tuple[list[list[float]], ...]:
    # Rounded, because coefficients that are exactly zero or one cost nothing.
    return tuple(stage.round(decimals=14).tolist() for stage in stages(kind, n))


def _folds(n: int) -> tuple[Tensor, Tensor]:
    """Matrices that take even and odd parts of n features, and for even n again about n / 4."""
    half = n // 2
    first, second = _zeros(n, n), _zeros(n, n)
    even, odd = range(half + 1), range(1, (n + 1) // 2)
    for row, k in enumerate((*even, *odd)):
        first[row, k] = 1
        if k != -k % n:
            first[row, -k % n] = 1 if row < len(even) else -1
    # cos(f (n/2 - k)) is ± cos(f k), by the parity of f, and the same holds for sines.
    for start, part in ((0, even), (len(even), odd)):
        for row, k in enumerate(part, start=start):
            twin = start + part.index(half - k) if n % 2 == 0 else row
            second[row, row] = 1 if row <= twin else -1
            second[row, twin] = 1
    return first, second


def _modes(n: int) -> tuple[Tensor, Tensor]:
    """The real Fourier modes (ones, signs for even n, cosines and sines), and their weights.

    Each is a row of the algorithm's A; of the three rows of a frequency, the first is their sum.
    """
    analysis, single = cyclic_algorithm(n).analysis, 2 - n % 2
    pairs = analysis[single:].view(-1, 3, n)[:, 1:].flatten(0, 1)
    weights = [1 / n] * single + [2 / n] * (n - single)
    modes = torch.cat([analysis[:single], pairs])
    return modes, torch.tensor(weights, dtype=torch.float64, device="cpu")


def _expansions(n: int) -> tuple[Tensor, Tensor]:
    """Modes to the inputs of the products ``[r, n]``, and products to modes ``[n, r]``."""
    products = cyclic_products(n)
    analyse, synthesise = _zeros(products, n), _zeros(n, products)
    single = 2 - n % 2
    for matrix in (analyse, synthesise):
        matrix[:single, :single].fill_diagonal_(1)
    for frequency in range((n - single) // 2):
        mode, product = single + 2 * frequency, single + 3 * frequency
        block = slice(product, product + 3), slice(mode, mode + 2)
        analyse[block] = torch.tensor([[1.0, 1], [1, 0], [0, 1]], device="cpu")
        synthesise.T[block] = torch.tensor([[1.0, 1], [0, 1], [-1, 0]], device="cpu")
    return analyse, synthesise


def _zeros(rows: int, columns: int) -> Tensor:
    # On the CPU even if the default device is another one.
    return torch.zeros(rows, columns, dtype=torch.float64, device="cpu")
