"""The group of hue rotations (paper, section 3.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equicolor import _checks
from equicolor.color import rotation_matrix


@dataclass(frozen=True)
class HueGroup:
    r"""The cyclic group :math:`H_n` of rotations of RGB space about the grey axis.

    Element ``k`` rotates by ``k / n`` turns. Matrices are float64, rounded to 15 decimals;
    convert them with ``.to(images)`` where needed.

    Args:
        order: the number of rotations :math:`n`.

    Example:
        >>> group = HueGroup(3)
        >>> group.matrix(1).int().tolist()
        [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
        >>> torch.equal(group.matrix(1) @ group.matrix(2), group.matrix(0))
        True
    """

    order: int

    def __post_init__(self) -> None:
        _checks.positive_int("HueGroup order", self.order)

    def matrix(self, k: int) -> Tensor:
        """The rotation ``[3, 3]`` of element ``k``, taken modulo the order."""
        return self.matrices[k % self.order]

    @property
    def matrices(self) -> Tensor:
        """All rotations, ``[n, 3, 3]``."""
        turns = torch.arange(self.order, dtype=torch.float64, device="cpu") / self.order
        # Rounding makes channel permutations exact: cos(2 pi / 3) alone is off by 2e-16.
        return rotation_matrix(turns).round(decimals=15)
