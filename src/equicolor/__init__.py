"""Colour-equivariant convolutional networks for PyTorch.

Layers live in :mod:`equicolor.nn`, hue transformations of images in
:mod:`equicolor.color`, and the tool that measures equivariance in
:mod:`equicolor.testing`. Importing the package needs torch and numpy alone.
"""

from equicolor import color, groups, nn, testing
from equicolor.groups import HueGroup

__version__ = "0.1.0"

__all__ = ["HueGroup", "__version__", "color", "groups", "nn", "testing"]
