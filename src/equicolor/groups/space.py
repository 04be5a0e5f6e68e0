"""Quarter turns and mirror images of the plane, for a product with the hue group."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equicolor import _checks

ORDERS = {"p1": 1, "p4": 4, "p4m": 8}


@dataclass(frozen=True)
class SpatialGroup:
    r"""Symmetries of the pixel grid: none, quarter turns, or quarter turns and mirror images.

    Element :math:`s` is :math:`r^{s \bmod 4} f^{\lfloor s/4 \rfloor}`: the mirror image ``f``
    exchanges left and right, then ``r`` turns by a quarter, counter-clockwise. The names are those
    of the wallpaper groups.

    Features of a product with the hue group are :math:`[B, C m, n, H, W]`; channel ``c * m + s``
    is element ``s`` of channel ``c``.

    Args:
        name: ``"p1"`` (one element), ``"p4"`` (four) or ``"p4m"`` (eight).

    Example:
        >>> group = SpatialGroup("p4m")
        >>> group.order
        8
        >>> images = torch.rand(2, 3, 5, 5)
        >>> torch.equal(group.transform(group.transform(images, 1), 3), images)
        True
    """

    name: str = "p1"

    def __post_init__(self) -> None:
        _checks.one_of("spatial", self.name, tuple(ORDERS))

    @property
    def order(self) -> int:
        """The number of elements, m."""
        return ORDERS[self.name]

    def transform(self, images: Tensor, element: int) -> Tensor:
        r"""Turn and mirror images or filters :math:`[..., H, W]` by an element: :math:`\rho_s x`.

        Example:
            >>> SpatialGroup("p4").transform(torch.tensor([[1, 2], [3, 4]]), 1).tolist()
            [[2, 4], [1, 3]]
        """
        mirrored, turns = self._parts(element)
        return torch.rot90(images.flip(-1) if mirrored else images, turns, (-2, -1))

    def permute(self, x: Tensor, element: int, dim: int) -> Tensor:
        r"""Move entry :math:`t` of a dimension of m entries to entry :math:`s t`.

        Example:
            >>> SpatialGroup("p4").permute(torch.arange(4), 1, 0).tolist()
            [3, 0, 1, 2]
        """
        # Entry t of the result is entry s⁻¹t. Rolls and flips need no table on the device of the
        # tensor, as indexing would. For t = r^l f^i, s⁻¹t is r^(l - k) f^i if s = r^k, and
        # r^(k - l) f^(1 - i) if s = r^k f.
        mirrored, turns = self._parts(element)
        if self.order == 1:
            return x
        if x.shape[dim] != self.order:
            raise ValueError(
                f"{self.name} permutes {self.order} entries, got {x.shape[dim]} in dimension {dim} "
                f"of {list(x.shape)}"
            )
        dim %= x.ndim
        x = x.unflatten(dim, (-1, 4))
        if mirrored:
            x = x.flip(dim, dim + 1).roll(1, dim + 1)
        return x.roll(turns, dim + 1).flatten(dim, dim + 1)

    def transform_features(self, x: Tensor, element: int) -> Tensor:
        """Features ``[B, C * m, n, H, W]`` after an element has acted on the image.

        Example:
            >>> SpatialGroup("p4").transform_features(torch.rand(2, 12, 3, 5, 7), 1).shape
            torch.Size([2, 12, 3, 7, 5])
        """
        elements = self.permute(self.by_element(x), element, 2)
        return self.transform(elements.flatten(1, 2), element)

    def by_element(self, x: Tensor) -> Tensor:
        """Channels ``[B, C * m, ...]`` as ``[B, C, m, ...]``.

        Example:
            >>> SpatialGroup("p4").by_element(torch.rand(2, 12, 3, 5, 5)).shape
            torch.Size([2, 3, 4, 3, 5, 5])
        """
        if x.shape[1] % self.order:
            raise ValueError(
                f"spatial={self.name!r} expects channels in groups of {self.order}, got "
                f"{x.shape[1]}: {list(x.shape)}"
            )
        return x.unflatten(1, (-1, self.order))

    def _parts(self, element: int) -> tuple[bool, int]:
        """Whether an element mirrors, and its quarter turns."""
        if not 0 <= element < self.order:
            raise ValueError(
                f"{self.name} has the elements 0 to {self.order - 1}, got element {element}"
            )
        return element >= 4, element % 4
