"""The symmetry: the group of hue rotations and the algorithms that correlate over it."""

from equicolor.groups.cyclic import (
    CyclicAlgorithm,
    cyclic_algorithm,
    cyclic_products,
    dense_algorithm,
)
from equicolor.groups.hue import HueGroup

__all__ = ["CyclicAlgorithm", "HueGroup", "cyclic_algorithm", "cyclic_products", "dense_algorithm"]
