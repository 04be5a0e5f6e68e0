"""Normalisation and dropout that treat the rotations of a channel alike."""

from torch import Tensor, nn

from equicolor import _checks
from equicolor.nn.layout import per_rotation


class CEBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation with one mean, variance, scale and shift per channel.

    Statistics are shared over batch, rotations and space. Separate ones for each rotation would
    break equivariance. Arguments and state are those of :class:`torch.nn.BatchNorm2d`, features
    are ``[B, C, n, H, W]``.

    Example:
        >>> import torch
        >>> CEBatchNorm2d(4)(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 3, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Features to features of the same shape."""
        _checks.features("CEBatchNorm2d", x, channels=self.num_features)
        return per_rotation(x, super().forward)


class CEDropout2d(nn.Dropout3d):
    """Dropout of whole channels, all rotations of a channel together.

    Args:
        p: probability of a channel to be zeroed.
        inplace: overwrite the input.

    Example:
        >>> import torch
        >>> CEDropout2d(0.3)(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 3, 8, 8])
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(_checks.probability("CEDropout2d p", p), inplace)

    def forward(self, x: Tensor) -> Tensor:
        """Features to features of the same shape."""
        _checks.features("CEDropout2d", x)
        return super().forward(x)
