"""Networks for inference and export: what follows from the weights is computed once."""

from equicolor.nn.folding.fold import fold

__all__ = ["fold"]
