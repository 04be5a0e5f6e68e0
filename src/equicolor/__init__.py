"""Colour-equivariant convolutional networks for PyTorch.

Layers live in :mod:`equicolor.nn`, hue transformations of images in
:mod:`equicolor.color`, those of light in :mod:`equicolor.light`, and the tool that measures
equivariance in :mod:`equicolor.testing`. ``equicolor.convert`` makes a network of yours
equivariant, ``equicolor.adapt`` adds an equivariant stem to it, and ``equicolor.canonicalize``
shows any network images in their natural hues. Importing the package needs torch and numpy alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

from equicolor import _packages, color, groups, light, nn, testing  # noqa: F401
from equicolor.groups import HueGroup

if TYPE_CHECKING:
    from equicolor import analysis, evaluation, models
    from equicolor.canonicalization import canonicalize
    from equicolor.conversion import adapt, convert

#: The version of the package.
__version__ = "0.1.0"

__all__ = [
    "HueGroup",
    "__version__",
    "adapt",
    "analysis",
    "canonicalize",
    "color",
    "convert",
    "evaluation",
    "groups",
    "light",
    "models",
    "nn",
    "testing",
]
# Imported on first use: few scripts need the networks that these build on.
_FUNCTIONS = {
    "adapt": "conversion",
    "canonicalize": "canonicalization",
    "convert": "conversion",
}
_MODULES = ("analysis", "evaluation", "models")


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"equicolor.{_FUNCTIONS[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"equicolor.{name}")
    raise AttributeError(f"module 'equicolor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
