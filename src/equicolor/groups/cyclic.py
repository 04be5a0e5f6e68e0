r"""Algorithms for cyclic correlation, as data.

A hidden layer correlates features and filters over the hue group:

.. math:: y_k = \sum_s x_{k+s} w_s, \qquad k, s \in \mathbb{Z}_n.

Any way to compute it with :math:`r` products is a triple of matrices :math:`A, B, C` of
shape :math:`[r, n]` with :math:`y = C^\top ((A x) \circ (B w))`. The definition itself is
the triple with :math:`r = n^2`; the real Fourier transform gives :math:`r \approx 1.5 n`,
which is the least possible over the real numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from equicolor import _checks


class CyclicAlgorithm(NamedTuple):
    """A bilinear algorithm: the matrices A, B and C, each ``[r, n]``."""

    analysis: Tensor
    filters: Tensor
    synthesis: Tensor

    @property
    def order(self) -> int:
        """The order of the group, n."""
        return self.analysis.shape[1]

    @property
    def products(self) -> int:
        """The number of products, r."""
        return self.analysis.shape[0]

    def correlate(self, x: Tensor, w: Tensor) -> Tensor:
        """Correlate two sequences ``[..., n]`` over their last dimension.

        Example:
            >>> x, w = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0, 0.0])
            >>> dense_algorithm(3).correlate(x, w).tolist()
            [21.0, 32.0, 13.0]
        """
        a, b, c = (matrix.to(x) for matrix in self)
        return ((x @ a.T) * (w @ b.T)) @ c


def dense_algorithm(n: int, *, dtype: torch.dtype = torch.float64) -> CyclicAlgorithm:
    """The definition: one product for each of the n² pairs.

    Example:
        >>> dense_algorithm(3).products
        9
    """
    _checks.positive_int("n", n)
    one_hot = torch.eye(n, dtype=dtype, device="cpu")
    pairs = torch.arange(n * n, device="cpu")
    k, s = pairs // n, pairs % n
    return CyclicAlgorithm(one_hot[(k + s) % n], one_hot[s], one_hot[k])


def cyclic_products(n: int) -> int:
    """The number of products of :func:`cyclic_algorithm`, ``(3n - 1) // 2``.

    Example:
        >>> [cyclic_products(n) for n in (1, 2, 3, 4, 6, 12)]
        [1, 2, 4, 5, 8, 17]
    """
    return (3 * _checks.positive_int("n", n) - 1) // 2


def cyclic_algorithm(n: int, *, dtype: torch.dtype = torch.float64) -> CyclicAlgorithm:
    """The fast algorithm: real Fourier modes, with three real products for a complex one.

    Frequency 0 (and n/2 when n is even) needs one product, every other frequency three.

    Example:
        >>> cyclic_algorithm(3).products, dense_algorithm(3).products
        (4, 9)
    """
    _checks.positive_int("n", n)
    # On the CPU even if the default device is another one: "meta" tensors hold no numbers.
    steps = torch.arange(n, dtype=torch.float64, device="cpu")
    one = torch.ones_like(steps)
    a, b, c = [one], [one], [one / n]
    if n % 2 == 0:
        sign = 1 - 2 * (steps % 2)
        a, b, c = [*a, sign], [*b, sign], [*c, sign / n]
    for frequency in range(1, (n + 1) // 2):
        angle = 2 * torch.pi * ((frequency * steps) % n) / n
        cos, sin = torch.cos(angle), torch.sin(angle)
        a += [cos - sin, cos, -sin]
        b += [cos, sin - cos, cos + sin]
        c += [2 / n * (cos - sin), -2 / n * sin, -2 / n * cos]
    return CyclicAlgorithm(*(torch.stack(rows).to(dtype) for rows in (a, b, c)))
