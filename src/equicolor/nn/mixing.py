"""Mixing over the group dimension, in at least float32.

The matrices of the cyclic algorithm hold real numbers such as cosines. Rounding them, or
sums made with them, to bfloat16 would double the error of the layer. So the mixing converts
half-precision operands and turns autocast off; only its result is rounded.

Mixing is a matrix product, for which tensors are joined first. Where nothing traces or
transforms operations, there are faster ways: on a GPU, a kernel of
:mod:`equicolor.nn._fused.mix_kernels`; on a CPU, for large images, matrix products of pieces
that fit into the cache. Results are the same to rounding, and so are derivatives of any order.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._observed import is_transformed, is_watched
from equicolor.devices import takes_kernels

# Device types on which a kernel mixes.
DEVICES: tuple[str, ...] = ("cuda",)
_MOST_PRODUCTS = 24  # that the kernel keeps in registers: up to 16 rotations
# On a CPU: the size from which on a tensor is mixed in pieces, and the size of a piece.
_LARGE, _PIECE = 2**18, 2**15


def mix_apart(matrix: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Mix rotations ``[n, B, C, H, W]`` by ``matrix [m, n]`` into m tensors ``[B, C, H, W]``.

    Each is in channels_last memory, as the input of one convolution.
    """
    if not _takes_fast_path(matrix, (x,)):
        return mix_rotations(matrix, x).unbind(0)
    return _Apart.apply(matrix, x)  # type: ignore[no-untyped-call]


def mix_together(matrix: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Mix n tensors ``[B, C, H, W]`` by ``matrix [m, n]`` into ``[m, B, C, H, W]``.

    The result lies in memory as ``[m, B, H, W, C]``.
    """
    if not _takes_fast_path(matrix, parts):
        stacked: Tensor = torch.cat(tuple(parts)).unflatten(0, (len(parts), -1))
        return mix_rotations(matrix, stacked)
    # Permuted here: torch refuses in-place operations, such as a ReLU, on a view that an
    # autograd function returns.
    mixed: Tensor = _Together.apply(matrix, *parts)  # type: ignore[no-untyped-call]
    return mixed.permute(0, 1, 4, 2, 3)


def mix_rotations(matrix: Tensor, x: Tensor) -> Tensor:
    """Mix rotations ``[n, B, C, H, W]`` by ``matrix [m, n]`` into ``[m, B, C, H, W]``.

    The result lies in memory as ``[m, B, H, W, C]``. Rotations and batch are not merged: with
    that, torch.export would lose the dynamic batch.
    """
    pixels = x.permute(0, 1, 3, 4, 2)
    mixed = exact_matmul(matrix, pixels.reshape(x.shape[0], -1)).to(x.dtype)
    return mixed.view(matrix.shape[0], *pixels.shape[1:]).permute(0, 1, 4, 2, 3)


def exact_matmul(matrix: Tensor, x: Tensor) -> Tensor:
    """``matrix @ x``, computed and returned in at least float32."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    matrix, x = matrix.to(dtype), x.to(dtype)
    if not _checks.autocasting(x.device):
        return matrix @ x
    with torch.autocast(x.device.type, enabled=False):
        return matrix @ x


class _Apart(torch.autograd.Function):
    """One tensor ``[n, B, C, H, W]`` to m tensors."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(matrix)
        if _takes_kernel(matrix, (x,)):
            pixels = x.permute(0, 1, 3, 4, 2).contiguous()
            mixed = _mix_by_kernel(matrix, pixels.unbind(0)).permute(0, 1, 4, 2, 3)
        else:
            mixed = mix_rotations(matrix, x)
        return mixed.unbind(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (matrix,) = ctx.saved_tensors
        if _takes_fast_path(matrix.T, gradients):
            return None, mix_together(matrix.T, gradients)
        # Also works for many gradients at once (is_grads_batched).
        return None, mix_rotations(matrix.T, torch.stack(gradients))


class _Together(torch.autograd.Function):
    """n tensors to one, ``[m, B, H, W, C]`` as it lies in memory."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        pixels = [part.permute(0, 2, 3, 1).contiguous() for part in parts]
        mix = _mix_by_kernel if _takes_kernel(matrix, parts) else _mix_in_pieces
        return mix(matrix, pixels)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (matrix,) = ctx.saved_tensors
        return None, *mix_apart(matrix.T, gradients[0].permute(0, 1, 4, 2, 3))


def _mix_by_kernel(matrix: Tensor, parts: Sequence[Tensor]) -> Tensor:
    # Imported at its first use: Triton takes long to import and is not installed everywhere.
    from equicolor.nn._fused import mix_kernels

    return mix_kernels.mix(matrix, parts)


def _mix_in_pieces(matrix: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Mix n contiguous tensors on a CPU in pieces, which stay in the cache when joined."""
    flat = [part.view(-1) for part in parts]
    matrix, piece = matrix.to(flat[0].dtype), _PIECE * torch.get_num_threads()
    mixed = parts[0].new_empty(matrix.shape[0], *parts[0].shape)
    rows = mixed.view(matrix.shape[0], -1)
    for start in range(0, len(flat[0]), piece):
        joined = torch.stack([part[start : start + piece] for part in flat])
        torch.mm(matrix, joined, out=rows[:, start : start + piece])
    return mixed


def _takes_fast_path(matrix: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether tensors can be mixed by the kernel or in pieces."""
    return (
        # First: torch.compile must not trace the rest.
        not torch.compiler.is_compiling()
        and all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
        and (_takes_kernel(matrix, tensors) or _takes_pieces(matrix, tensors))
        and not is_transformed(tensors)
        and not is_watched()
        and not matrix.requires_grad
    )


def _takes_pieces(matrix: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether tensors lie on a CPU and are large enough for pieces."""
    first = tensors[0]
    return (
        first.device.type == matrix.device.type == "cpu"
        and first.numel() >= _LARGE
        and first.dtype in (torch.float32, torch.float64)
        and not _checks.autocasting(first.device)
    )


def _takes_kernel(matrix: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether the kernel can mix tensors on their device."""
    first = tensors[0]
    return (
        first.device == matrix.device
        and max(matrix.shape) <= _MOST_PRODUCTS
        and takes_kernels(first, DEVICES)
    )
