"""Mixing over the group dimension, in at least float32.

The matrices of the cyclic algorithm are real numbers such as cosines. Rounding them, or
sums made with them, to bfloat16 would double the error of the layer, so the mixing upcasts
half-precision operands and steps outside autocast; only its result is rounded.
"""

import torch
from torch import Tensor

from equicolor import _checks


def mix_rotations(matrix: Tensor, x: Tensor) -> Tensor:
    """Mix rotations ``[n, B, C, H, W]`` by ``matrix [m, n]`` into ``[m, B, C, H, W]``.

    The result lies in memory as ``[m, B, H, W, C]``. Rotations and batch stay apart: merging
    them costs torch.export its dynamic batch.
    """
    pixels = x.permute(0, 1, 3, 4, 2)
    mixed = exact_matmul(matrix, pixels.reshape(x.shape[0], -1)).to(x.dtype)
    return mixed.view(matrix.shape[0], *pixels.shape[1:]).permute(0, 1, 4, 2, 3)


def exact_matmul(matrix: Tensor, x: Tensor) -> Tensor:
    """``matrix @ x`` in at least float32, the precision it is also returned in."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    matrix, x = matrix.to(dtype), x.to(dtype)
    if not _checks.autocasting(x.device):
        return matrix @ x
    with torch.autocast(x.device.type, enabled=False):
        return matrix @ x
