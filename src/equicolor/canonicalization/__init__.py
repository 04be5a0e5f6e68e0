"""Canonicalisation: any network made invariant to hue shifts, without touching it."""

from equicolor.canonicalization.canonicalize import canonicalize
from equicolor.canonicalization.network import Canonicalized
from equicolor.models.selector import HueSelector, hue_selector

__all__ = ["Canonicalized", "HueSelector", "canonicalize", "hue_selector"]
