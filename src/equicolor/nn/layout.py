"""How features lie in memory, and the views that make every layer an ordinary 2-D layer.

Features are ``[B, C, n, H, W]`` to the user. In memory the layers of this package keep
them as ``[n, B, H, W, C]``: each rotation is a channels_last batch of images. In that
layout normalisation, pooling and activation are the plain 2-D operations on ``n * B``
images, the group mixing of the cyclic algorithm is one matrix product, and each of its
convolutions reads a contiguous block. None of them copies. Any other layout costs one copy.
So does the dense algorithm, which needs the rotations next to the channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def to_images(x: Tensor) -> Tensor:
    """Features ``[B, C, n, H, W]`` as images ``[n * B, C, H, W]``, rotation-major."""
    return x.permute(2, 0, 1, 3, 4).flatten(0, 1)


def to_features(images: Tensor, rotations: int) -> Tensor:
    """The inverse of :func:`to_images`."""
    by_rotation: Tensor = images.unflatten(0, (rotations, -1))
    return by_rotation.permute(1, 2, 0, 3, 4)


def to_pixels(x: Tensor) -> Tensor:
    """:func:`to_images`, but a copy, where needed, is in channels_last memory."""
    return x.permute(2, 0, 3, 4, 1).flatten(0, 1).permute(0, 3, 1, 2)


def from_pixels(images: Tensor, rotations: int) -> Tensor:
    """The inverse of :func:`to_pixels`; copies made in backward are channels_last too."""
    by_rotation: Tensor = images.permute(0, 2, 3, 1).unflatten(0, (rotations, -1))
    return by_rotation.permute(1, 4, 0, 2, 3)


def channels_last(images: Tensor) -> Tensor:
    """Images in channels_last memory; works under vmap, where ``.contiguous`` does not."""
    if torch.compiler.is_compiling():
        # Inductor chooses the layout of a copy. With a fixed layout it fails on other image sizes.
        return images.clone(memory_format=torch.contiguous_format)
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def per_rotation(x: Tensor, operation: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply an operation on images ``[N, C, H, W]`` to each rotation of features alike."""
    return from_pixels(operation(to_pixels(x)), x.shape[2])


def elements_as_rotations(x: Tensor, elements: int) -> Tensor:
    """Features ``[B, C * m, n, H, W]`` with the m elements of a spatial group as rotations.

    The result is ``[B, C, m * n, H, W]``, for operations that treat all of them alike.
    """
    apart: Tensor = x.permute(2, 0, 3, 4, 1).unflatten(4, (-1, elements))  # [n, B, H, W, C, m]
    return apart.permute(5, 0, 1, 2, 3, 4).flatten(0, 1).permute(1, 4, 0, 2, 3)


def rotations_as_elements(x: Tensor, elements: int) -> Tensor:
    """The inverse of :func:`elements_as_rotations`."""
    apart: Tensor = x.permute(2, 0, 3, 4, 1).unflatten(0, (elements, -1))  # [m, n, B, H, W, C]
    return apart.permute(1, 2, 3, 4, 5, 0).flatten(4, 5).permute(1, 4, 0, 2, 3)
