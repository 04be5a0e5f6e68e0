"""Colour-equivariant layers: thin modules over :mod:`equicolor.nn.functional`."""

from equicolor.nn.algorithm import set_algorithm
from equicolor.nn.capture import capture
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.folding import fold
from equicolor.nn.norm import CEBatchNorm2d, CEDropout2d
from equicolor.nn.pooling import (
    CEAdaptiveAvgPool2d,
    CEAvgPool2d,
    CEMaxPool2d,
    CosetAvgPool,
    CosetFlatten,
    CosetMaxPool,
)

__all__ = [
    "CEAdaptiveAvgPool2d",
    "CEAvgPool2d",
    "CEBatchNorm2d",
    "CEConv2d",
    "CEDropout2d",
    "CELiftConv2d",
    "CEMaxPool2d",
    "CosetAvgPool",
    "CosetFlatten",
    "CosetMaxPool",
    "capture",
    "fold",
    "set_algorithm",
]
