"""Colour-equivariant convolutional networks for PyTorch.

Layers live in :mod:`equicolor.nn`, hue transformations of images in
:mod:`equicolor.color`, those of light in :mod:`equicolor.light`, and the tool that measures
equivariance in :mod:`equicolor.testing`. ``equicolor.convert`` makes a network of yours
equivariant, ``equicolor.adapt`` adds an equivariant stem to it. Importing the package needs
torch and numpy alone.
"""

from typing import TYPE_CHECKING, Any

from equicolor import _packages, color, groups, light, nn, testing  # noqa: F401
from equicolor.groups import HueGroup

if TYPE_CHECKING:
    from equicolor.conversion import adapt, convert

__version__ = "0.1.0"

__all__ = [
    "HueGroup",
    "__version__",
    "adapt",
    "color",
    "convert",
    "groups",
    "light",
    "nn",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in ("adapt", "convert"):
        # On demand: conversion builds on the networks, which few scripts need.
        from equicolor import conversion

        return getattr(conversion, name)
    raise AttributeError(f"module 'equicolor' has no attribute {name!r}")
