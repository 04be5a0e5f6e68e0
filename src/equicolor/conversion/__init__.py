"""Bring your own network: make any convolutional network colour-equivariant."""

from equicolor.conversion.adapt import AdaptedNetwork, adapt
from equicolor.conversion.convert import convert
from equicolor.conversion.network import ConvertedNetwork
from equicolor.conversion.source import Source
from equicolor.conversion.supported import ConversionError

__all__ = ["AdaptedNetwork", "ConversionError", "ConvertedNetwork", "Source", "adapt", "convert"]
