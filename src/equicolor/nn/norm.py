"""Normalisation and dropout that treat the rotations of a channel alike."""

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.groups import SpatialGroup
from equicolor.nn.layout import elements_as_rotations, per_rotation, rotations_as_elements


class CEBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation with one mean, variance, scale and shift per channel.

    Statistics are shared over batch, rotations and space. Separate ones for each rotation would
    break equivariance. Arguments and state are those of :class:`torch.nn.BatchNorm2d`, features
    are ``[B, C, n, H, W]``.

    Args:
        num_features: the number of channels, C.
        eps, momentum, affine, track_running_stats: as in :class:`torch.nn.BatchNorm2d`.
        device, dtype: of the parameters.
        spatial: ``"p4"`` or ``"p4m"`` shares statistics over the elements of that group, too;
            features are ``[B, C * m, n, H, W]``.

    Example:
        >>> import torch
        >>> CEBatchNorm2d(4)(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 3, 8, 8])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        spatial: str = "p1",
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.spatial = SpatialGroup(spatial).name

    @property
    def _elements(self) -> int:
        return SpatialGroup(self.spatial).order

    def forward(self, x: Tensor) -> Tensor:
        """Features to features of the same shape."""
        _checks.features("CEBatchNorm2d", x, channels=self.num_features, elements=self._elements)
        if self._elements == 1:
            return per_rotation(x, super().forward)
        shared = per_rotation(elements_as_rotations(x, self._elements), super().forward)
        return rotations_as_elements(shared, self._elements)

    def extra_repr(self) -> str:
        """What BatchNorm2d prints, and the spatial group."""
        spatial = "" if self.spatial == "p1" else f", spatial={self.spatial!r}"
        return f"{super().extra_repr()}{spatial}"  # type: ignore[no-untyped-call]


class CEDropout2d(nn.Dropout3d):
    """Dropout of whole channels, all rotations of a channel together.

    Args:
        p: probability of a channel to be zeroed.
        inplace: overwrite the input.
        spatial: ``"p4"`` or ``"p4m"`` drops all elements of that group together, too; features
            are ``[B, C * m, n, H, W]``.

    Example:
        >>> import torch
        >>> CEDropout2d(0.3)(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 3, 8, 8])
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, *, spatial: str = "p1") -> None:
        super().__init__(_checks.probability("CEDropout2d p", p), inplace)
        self.spatial = SpatialGroup(spatial).name

    def forward(self, x: Tensor) -> Tensor:
        """Features to features of the same shape."""
        _checks.features("CEDropout2d", x)
        if self.spatial == "p1":
            return super().forward(x)
        elements = SpatialGroup(self.spatial).by_element(x)
        drop = torch.feature_dropout_ if self.inplace else torch.feature_dropout
        return drop(elements, self.p, self.training).flatten(1, 2)

    def extra_repr(self) -> str:
        """What Dropout prints, and the spatial group."""
        spatial = "" if self.spatial == "p1" else f", spatial={self.spatial!r}"
        return super().extra_repr() + spatial
