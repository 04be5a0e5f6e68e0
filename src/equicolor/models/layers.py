"""One switch between plain and equivariant layers, so that a network is written once."""

from typing import Any, NamedTuple

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
from equicolor.nn.constants import DerivedConstants

# The end of the equivariant part: a pool over the rotations, or flattening them.
COSET_POOLS = {"max": CosetMaxPool, "avg": CosetAvgPool, None: CosetFlatten}
# ImageNet statistics. Equivariant networks must treat the channels alike, so they use one
# number for all three, as the paper's code does.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET = IMAGENET_MEAN, IMAGENET_STD
SCALAR = (0.485,), (0.229,)


class Layers(NamedTuple):
    """Makes the layers of a part of a network: plain ones for one rotation, else equivariant."""

    rotations: int = 1
    lifting: str = "rgb"
    separable: bool = True

    def lift(self, in_channels: int, channels: int, kernel_size: int, **options: Any) -> nn.Module:
        """The first convolution."""
        if self.rotations == 1:
            return nn.Conv2d(in_channels, channels, kernel_size, **options)
        options |= {"rotations": self.rotations, "lifting": self.lifting}
        return CELiftConv2d(in_channels, channels, kernel_size, **options)

    def conv(self, in_channels: int, channels: int, kernel_size: int, **options: Any) -> nn.Module:
        """A hidden convolution."""
        if self.rotations == 1:
            return nn.Conv2d(in_channels, channels, kernel_size, **options)
        options |= {"rotations": self.rotations, "separable": self.separable}
        return CEConv2d(in_channels, channels, kernel_size, **options)

    def norm(self, channels: int) -> nn.Module:
        """Batch normalisation."""
        return nn.BatchNorm2d(channels) if self.rotations == 1 else CEBatchNorm2d(channels)

    def max_pool(self, kernel_size: int, stride: int, padding: int = 0) -> nn.Module:
        """Spatial max pooling."""
        pool = nn.MaxPool2d if self.rotations == 1 else CEMaxPool2d
        return pool(kernel_size, stride, padding)

    def dropout(self, p: float) -> nn.Module:
        """Dropout of whole channels."""
        return nn.Dropout2d(p) if self.rotations == 1 else CEDropout2d(p)


class Normalize(DerivedConstants):
    """Subtract a mean and divide by a standard deviation: three numbers each, or one for all."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.numbers = {"mean": mean, "std": std}
        for name, values in self.numbers.items():
            if len(values) not in (1, 3):
                raise ValueError(f"{name} must hold 1 or 3 numbers, got {len(values)}")
        self._reset_constants()

    def _constants(self) -> dict[str, Tensor]:
        return {
            name: torch.tensor(values, dtype=torch.float64, device="cpu").view(-1, 1, 1)
            for name, values in self.numbers.items()
        }

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to images of the same shape and dtype.

        The numbers are never rounded to half precision, only the result is.
        """
        return ((images - self.mean) / self.std).to(images.dtype)

    def extra_repr(self) -> str:
        """The numbers."""
        return ", ".join(f"{name}={list(values)}" for name, values in self.numbers.items())


def check_group(rotations: int, lifting: str, coset_pool: str | None) -> None:
    """Refuse bad options of equivariant layers before anything is built."""
    _checks.positive_int("rotations", rotations)
    _checks.one_of("lifting", lifting, ("rgb", "hsv"))
    if coset_pool not in COSET_POOLS:
        raise ValueError(f"coset_pool must be 'max', 'avg' or None (flatten); got {coset_pool!r}")


def check_hybrid(option: str, count: int, total: int, coset_pool: str | None) -> None:
    """Refuse a network that turns plain after ``count`` parts without pooling over its hues."""
    if coset_pool is None and 0 < count < total:
        raise ValueError(
            f"a hybrid network ({option}={count} of {total}) pools over its hues: "
            "coset_pool must be 'max' or 'avg', got None"
        )


def check_plain(**options: tuple[Any, ...]) -> None:
    """Refuse options that a network without equivariant layers would ignore.

    An option is its value, and the values that ask for nothing: ``lifting=("hsv", "rgb")``.
    """
    ignored = [name for name, (value, *harmless) in options.items() if value not in harmless]
    if ignored:
        what = ", ".join(f"{name}={options[name][0]!r}" for name in ignored)
        raise ValueError(
            f"{what} {'needs' if len(ignored) == 1 else 'need'} equivariant layers and this "
            f"network has none: add rotations, such as 6, or leave {' and '.join(ignored)} out"
        )
