"""Pooling over space, rotation by rotation, and over the rotations themselves."""

from typing import Any

from torch import Tensor, nn

from equicolor import _checks
from equicolor.groups import SpatialGroup
from equicolor.nn import functional
from equicolor.nn.layout import per_rotation


class _OverSpace(nn.Module):
    """Mixin that applies the pooling of the next base class to each rotation."""

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[B, C, n, H, W]`` to features ``[B, C, n, H', W']``."""
        _checks.features(type(self).__name__, x)
        return per_rotation(x, super().forward)


class CEMaxPool2d(_OverSpace, nn.MaxPool2d):
    """:class:`torch.nn.MaxPool2d` on each rotation of features ``[B, C, n, H, W]``.

    Example:
        >>> import torch
        >>> CEMaxPool2d(2)(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 3, 4, 4])
    """

    def __init__(self, kernel_size: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(kernel_size, *args, **kwargs)
        if self.return_indices:
            raise ValueError("CEMaxPool2d does not return indices: return_indices must be False")


class CEAvgPool2d(_OverSpace, nn.AvgPool2d):
    """:class:`torch.nn.AvgPool2d` on each rotation of features ``[B, C, n, H, W]``.

    Example:
        >>> import torch
        >>> CEAvgPool2d(2)(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 3, 4, 4])
    """


class CEAdaptiveAvgPool2d(_OverSpace, nn.AdaptiveAvgPool2d):
    """:class:`torch.nn.AdaptiveAvgPool2d` on each rotation of features ``[B, C, n, H, W]``.

    Example:
        >>> import torch
        >>> CEAdaptiveAvgPool2d(1)(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 3, 1, 1])
    """


class _CosetPool(nn.Module):
    """Base of the two poolings over a group."""

    def __init__(self, *, spatial: str = "p1") -> None:
        super().__init__()
        self.spatial = SpatialGroup(spatial).name

    def extra_repr(self) -> str:
        """The spatial group, if there is one."""
        return "" if self.spatial == "p1" else f"spatial={self.spatial!r}"


class CosetMaxPool(_CosetPool):
    """Module form of :func:`equicolor.nn.functional.coset_max_pool`: hue-invariant.

    Args:
        spatial: ``"p4"`` or ``"p4m"`` pools over the elements of that group, too.

    Example:
        >>> import torch
        >>> CosetMaxPool()(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[B, C * m, n, H, W]`` to ``[B, C, H, W]``."""
        return functional.coset_max_pool(x, self.spatial)


class CosetAvgPool(_CosetPool):
    """Module form of :func:`equicolor.nn.functional.coset_avg_pool`: hue-invariant.

    Args:
        spatial: ``"p4"`` or ``"p4m"`` pools over the elements of that group, too.

    Example:
        >>> import torch
        >>> CosetAvgPool()(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[B, C * m, n, H, W]`` to ``[B, C, H, W]``."""
        return functional.coset_avg_pool(x, self.spatial)


class CosetFlatten(nn.Module):
    """Module form of :func:`equicolor.nn.functional.coset_flatten`: keeps colour, not invariant.

    Example:
        >>> import torch
        >>> CosetFlatten()(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 12, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[B, C, n, H, W]`` to ``[B, C * n, H, W]``."""
        return functional.coset_flatten(x)
