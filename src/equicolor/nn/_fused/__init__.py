r"""The first layers and the residual blocks of networks with all but convolutions fused.

A hidden layer is :math:`y = C^\top((A x) \circ (B w))`. Written with ordinary operations, the
mixing, batch norm, ReLU and residual around its convolutions take longer than these do. Here
layers meet at their products, :math:`(A x) \circ (B w)`: one kernel goes from the products of
one layer to the inputs of the next one's, others back, so that features inside a block are never
written. Only products, and the features between blocks, are kept for the gradients.

The results are those of the ordinary modules to rounding. :func:`applies` and
:func:`stem_applies` say where this path can be taken; everywhere else, the ordinary one is.
"""

from equicolor.nn._fused.blocks import residual_block
from equicolor.nn._fused.conditions import applies, stem_applies
from equicolor.nn._fused.first_layer import stem

__all__ = ["applies", "residual_block", "stem", "stem_applies"]
