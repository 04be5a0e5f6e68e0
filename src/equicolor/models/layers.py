"""One switch between plain and equivariant layers, so that a network is written once."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.groups import SpatialGroup
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

COSET_POOLS = {"max": CosetMaxPool, "avg": CosetAvgPool}
# ImageNet statistics. Equivariant networks must treat the channels alike, so they use one
# number for all three, as the paper's code does.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET = IMAGENET_MEAN, IMAGENET_STD
SCALAR = (0.485,), (0.229,)


class Layers(NamedTuple):
    """Makes the layers of a part of a network: plain ones for a group of one, else equivariant."""

    rotations: int = 1
    lifting: str = "rgb"
    separable: bool = True
    spatial: str = "p1"

    @property
    def plain(self) -> bool:
        """Whether the group has one element."""
        return self.rotations == 1 and self.spatial == "p1"

    def lift(self, in_channels: int, channels: int, kernel_size: int, **options: Any) -> nn.Module:
        """The first convolution."""
        if self.plain:
            return nn.Conv2d(in_channels, channels, kernel_size, **options)
        options |= {"rotations": self.rotations, "spatial": self.spatial, "lifting": self.lifting}
        return CELiftConv2d(in_channels, channels, kernel_size, **options)

    def conv(self, in_channels: int, channels: int, kernel_size: int, **options: Any) -> nn.Module:
        """A hidden convolution."""
        if self.plain:
            return nn.Conv2d(in_channels, channels, kernel_size, **options)
        # The group part of a separable filter would be one number for a single rotation.
        separable = self.separable and self.rotations > 1
        options |= {"rotations": self.rotations, "spatial": self.spatial, "separable": separable}
        return CEConv2d(in_channels, channels, kernel_size, **options)

    def norm(self, channels: int) -> nn.Module:
        """Batch normalisation."""
        if self.plain:
            return nn.BatchNorm2d(channels)
        return CEBatchNorm2d(channels, spatial=self.spatial)

    def max_pool(self, kernel_size: int, stride: int, padding: int = 0) -> nn.Module:
        """Spatial max pooling."""
        pool = nn.MaxPool2d if self.plain else CEMaxPool2d
        return pool(kernel_size, stride, padding)

    def dropout(self, p: float) -> nn.Module:
        """Dropout of whole channels."""
        return nn.Dropout2d(p) if self.plain else CEDropout2d(p, spatial=self.spatial)

    def coset_pool(self, kind: str | None) -> nn.Module:
        """The end of the equivariant part: ``"max"``, ``"avg"``, or None to flatten."""
        if self.plain:
            return nn.Identity()
        return CosetFlatten() if kind is None else COSET_POOLS[kind](spatial=self.spatial)


class Normalize(DerivedConstants):
    """Subtract a mean and divide by a standard deviation: three numbers each, or one for all."""

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.numbers = {"mean": mean, "std": std}
        for name, values in self.numbers.items():
            if len(values) not in (1, 3):
                raise ValueError(f"{name} must hold 1 or 3 numbers, got {len(values)}")
        self._reset_constants()

    def _constants(self) -> dict[str, Tensor]:
        mean, std = (
            torch.tensor(values, dtype=torch.float64, device="cpu").view(-1, 1, 1)
            for values in self.numbers.values()
        )
        return {"scale": 1 / std, "shift": -mean / std}

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to images of the same shape and dtype.

        The numbers are never rounded to half precision, only the result is.
        """
        # One operation: on a GPU, each of two would take as long as a convolution.
        return torch.addcmul(self.shift, images, self.scale).to(images.dtype)

    def extra_repr(self) -> str:  # noqa: D102
        return ", ".join(f"{name}={list(values)}" for name, values in self.numbers.items())


def check_group(rotations: int, lifting: str, coset_pool: str | None, spatial: str) -> None:
    """Refuse bad options of equivariant layers before anything is built."""
    _checks.positive_int("rotations", rotations)
    _checks.one_of("lifting", lifting, ("rgb", "hsv"))
    SpatialGroup(spatial)
    if coset_pool not in (*COSET_POOLS, None):
        raise ValueError(f"coset_pool must be 'max', 'avg' or None (flatten); got {coset_pool!r}")
    if coset_pool is None and spatial != "p1":
        raise ValueError(
            f"spatial={spatial!r} needs coset_pool='max' or 'avg', got None: a classifier that "
            "sees every orientation by itself is not invariant to turns. Where colour is the "
            "label, take rotations=1, which keeps colours and pools over turns"
        )


def check_hybrid(
    option: str, count: int, total: int, coset_pool: str | None, spatial: str = "p1"
) -> None:
    """Refuse options that a network with ``count`` equivariant parts of ``total`` cannot have."""
    if spatial != "p1" and count < total:
        raise ValueError(
            f"spatial={spatial!r} needs {option}={total}, all of them, got {count}: plain layers "
            "tell directions apart"
        )
    if coset_pool is None and 0 < count < total:
        raise ValueError(
            f"a hybrid network ({option}={count} of {total}) pools over its hues: "
            "coset_pool must be 'max' or 'avg', got None"
        )


def check_plain(**options: tuple[Any, ...]) -> None:
    """Refuse options that a network with a single rotation would ignore.

    Each option is its value, then the values that change nothing: ``lifting=("hsv", "rgb")``.
    """
    ignored = [name for name, (value, *harmless) in options.items() if value not in harmless]
    if ignored:
        what = ", ".join(f"{name}={options[name][0]!r}" for name in ignored)
        raise ValueError(
            f"{what} {'needs' if len(ignored) == 1 else 'need'} more than one rotation: add "
            f"rotations, such as 6, or leave {' and '.join(ignored)} out"
        )
