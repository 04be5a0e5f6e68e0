"""One switch between plain and equivariant layers, so that a network is written once."""

from typing import Any

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.nn import (
    CEBatchNorm2d,
    CEConv2d,
    CEDropout2d,
    CELiftConv2d,
    CEMaxPool2d,
    CosetAvgPool,
    CosetFlatten,
    CosetMaxPool,
)

COSET_POOLS = ("max", "avg", None)
# ImageNet statistics. Equivariant networks must treat the channels alike, so they use one
# number for all three, as the paper's code does.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALAR_MEAN, SCALAR_STD = (0.485,), (0.229,)


def conv(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    rotations: int,
    separable: bool = True,
    **options: Any,
) -> nn.Module:
    """A hidden convolution: ``CEConv2d``, or ``nn.Conv2d`` for a single rotation."""
    if rotations == 1:
        return nn.Conv2d(in_channels, out_channels, kernel_size, **options)
    return CEConv2d(
        in_channels, out_channels, kernel_size, rotations=rotations, separable=separable, **options
    )


def lift(
    out_channels: int, kernel_size: int, *, rotations: int, lifting: str, **options: Any
) -> nn.Module:
    """The first convolution: ``CELiftConv2d``, or ``nn.Conv2d`` for a single rotation."""
    if rotations == 1:
        return nn.Conv2d(3, out_channels, kernel_size, **options)
    return CELiftConv2d(
        3, out_channels, kernel_size, rotations=rotations, lifting=lifting, **options
    )


def norm(channels: int, *, rotations: int) -> nn.Module:
    """Batch normalisation."""
    return nn.BatchNorm2d(channels) if rotations == 1 else CEBatchNorm2d(channels)


def max_pool(kernel_size: int, stride: int, padding: int = 0, *, rotations: int) -> nn.Module:
    """Spatial max pooling."""
    pool = nn.MaxPool2d if rotations == 1 else CEMaxPool2d
    return pool(kernel_size, stride, padding)


def dropout(p: float, *, rotations: int) -> nn.Module:
    """Dropout of whole channels."""
    return nn.Dropout2d(p) if rotations == 1 else CEDropout2d(p)


def coset_pool(kind: str | None) -> nn.Module:
    """What ends the equivariant part: pooling over the rotations, or flattening them."""
    return {"max": CosetMaxPool, "avg": CosetAvgPool, None: CosetFlatten}[kind]()


class Normalize(nn.Module):
    """Subtract a mean and divide by a standard deviation, per channel or one for all.

    Args:
        mean, std: three numbers, or one number for all channels.

    Example:
        >>> Normalize((0.5,), (0.25,))(torch.full((1, 3, 2, 2), 0.75)).unique().tolist()
        [1.0]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, 3):
                raise ValueError(f"{name} must hold 1 or 3 numbers, got {len(values)}")
            # Constants of the architecture, not state: out of the state dict.
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to images of the same shape."""
        return (images - self.mean) / self.std

    def extra_repr(self) -> str:
        """The numbers."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


def check_group(rotations: int, lifting: str, coset_pool: str | None) -> None:
    """Refuse bad options before anything is built, even where a plain network ignores them."""
    _checks.positive_int("rotations", rotations)
    _checks.one_of("lifting", lifting, ("rgb", "hsv"))
    if coset_pool not in COSET_POOLS:
        raise ValueError(f"coset_pool must be 'max', 'avg' or None (flatten); got {coset_pool!r}")
