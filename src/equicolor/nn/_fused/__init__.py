r"""The first layers and the residual blocks of networks, with all but convolutions fused.

A hidden layer is :math:`y = C^\top((A x) \circ (B w))`. With ordinary operations, the mixing,
batch norm, ReLU and residual around its convolutions take longer than the convolutions. Here,
one kernel goes from the products :math:`(A x) \circ (B w)` of one layer to the inputs of the
next layer's products, and others go back. Features inside a block are never written to memory.
For the gradients, only products are kept, and between blocks the planes of features, or, where
those are larger, the features; and their signs.

Results equal those of the ordinary modules to rounding. :func:`applies`, :func:`stem_applies` and
:func:`pool_applies` say where this path can be taken; elsewhere the ordinary modules are used.
"""

from equicolor.nn._fused.blocks import residual_block
from equicolor.nn._fused.conditions import applies, pool_applies, stem_applies
from equicolor.nn._fused.coset_pool import coset_max
from equicolor.nn._fused.first_layer import stem

__all__ = ["applies", "coset_max", "pool_applies", "residual_block", "stem", "stem_applies"]
