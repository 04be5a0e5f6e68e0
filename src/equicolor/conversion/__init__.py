"""Bring your own network: make any convolutional network colour-equivariant."""

from equicolor.conversion.adapter import AdaptedNetwork, adapt
from equicolor.conversion.converting import convert
from equicolor.conversion.network import ConvertedNetwork
from equicolor.conversion.sources import Source
from equicolor.conversion.supported import ConversionError

__all__ = ["AdaptedNetwork", "ConversionError", "ConvertedNetwork", "Source", "adapt", "convert"]
