"""The symmetries: hue rotations, the algorithms that correlate over them, and turns of images."""

from equicolor.groups.cyclic import (
    CyclicAlgorithm,
    cyclic_algorithm,
    cyclic_products,
    dense_algorithm,
)
from equicolor.groups.hue import HueGroup
from equicolor.groups.space import SpatialGroup

__all__ = [
    "CyclicAlgorithm",
    "HueGroup",
    "SpatialGroup",
    "cyclic_algorithm",
    "cyclic_products",
    "dense_algorithm",
]
