"""Mixing over the group dimension, in at least float32.

The matrices of the cyclic algorithm are real numbers such as cosines. Rounding them, or
sums made with them, to bfloat16 would double the error of the layer, so the mixing upcasts
half-precision operands and steps outside autocast; only its result is rounded.
"""

import torch
from torch import Tensor

from equicolor import _checks


def mix_rotations(matrix: Tensor, images: Tensor) -> Tensor:
    """Mix rotation-major images ``[n * B, C, H, W]`` by ``matrix [m, n]`` into ``[m * B, ...]``."""
    m, n = matrix.shape
    pixels = images.permute(0, 2, 3, 1)
    mixed = exact_matmul(matrix, pixels.reshape(n, -1)).to(images.dtype)
    images_per_rotation = pixels.shape[0] // n
    return mixed.view(m * images_per_rotation, *pixels.shape[1:]).permute(0, 3, 1, 2)


def exact_matmul(matrix: Tensor, x: Tensor) -> Tensor:
    """``matrix @ x`` in at least float32, the precision it is also returned in."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    matrix, x = matrix.to(dtype), x.to(dtype)
    if not _checks.autocasting(x.device):
        return matrix @ x
    with torch.autocast(x.device.type, enabled=False):
        return matrix @ x
