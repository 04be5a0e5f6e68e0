"""The first layers of a network on the fused path: lifting, batch norm, ReLU and pooling."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor.devices import on_device_of
from equicolor.nn._fused.functions import apply, convolution_backward, refuse_second_derivatives
from equicolor.nn._fused.layout import Features, Options, padded_channels, rows_of
from equicolor.nn._fused.norm import Norm, kernels, normalization
from equicolor.nn.conv import CELiftConv2d
from equicolor.nn.functional import ce_lift_conv2d, compute_dtype, spatial_bank
from equicolor.nn.layout import to_images
from equicolor.nn.norm import CEBatchNorm2d


def stem(images: Tensor, conv: CELiftConv2d, norm: CEBatchNorm2d, *, pool: bool) -> Tensor:
    """Lifting convolution, batch norm, ReLU and, with ``pool``, 3×3 max pooling with stride 2.

    Maps images ``[B, 3, H, W]`` to features ``[B, C, n, H', W']``.
    """
    with on_device_of(images):
        activations = lift(images, conv)
        statistics = normalization(norm, (activations,), 1)
        return norm_relu(activations, statistics, conv.rotations, pool=pool)


def lift(images: Tensor, conv: CELiftConv2d) -> Tensor:
    """Lifting convolution of images ``[B, 3, H, W]`` to ``[n * B, P, H', W']``, padded channels."""
    matrices = conv._transformations()
    learnable = matrices is not None and matrices.requires_grad
    if not (images.requires_grad or learnable) and conv.dilation == (1, 1):
        return lift_columns(images, conv, packed_columns(conv, compute_dtype(images)), matrices)
    weight, options = _padded(_bank(conv)), (conv.stride, conv.padding, conv.dilation)
    group: Any = {"rotations": conv.rotations, "lifting": conv.lifting, "matrices": matrices}
    return rows_of(to_images(ce_lift_conv2d(images, weight, None, *options, **group)))


def packed_columns(conv: CELiftConv2d, dtype: torch.dtype) -> Tensor:
    """The filters of a lifting convolution for columns of pixels, with padded channels."""
    columns = kernels("lift_kernels").column_filters(_bank(conv).squeeze(2), conv.stride[0])
    return _padded(columns).to(dtype)


def _bank(conv: CELiftConv2d) -> Tensor:
    return spatial_bank(conv.weight, conv.spatial, of_images=True)


def _padded(filters: Tensor) -> Tensor:
    """Filters ``[O, ...]`` with zeros for padded channels."""
    spare = padded_channels(len(filters)) - len(filters)
    return F.pad(filters, (*[0] * (2 * filters.ndim - 1), spare))


def lift_columns(
    images: Tensor, conv: CELiftConv2d, filters: Tensor, matrices: Tensor | None
) -> Tensor:
    """:func:`lift` with the filters of :func:`packed_columns`.

    ``matrices`` are the group acting on filters, or None for shifts of the HSV hue.
    """
    assert isinstance(conv.padding, tuple)
    options = conv.stride, conv.padding, conv.dilation
    size = tuple(conv.weight.shape[-2:])
    how = conv.rotations, matrices, filters.dtype, size, options
    return apply(_Lift, how, images, filters)


def norm_relu(activations: Tensor, norm: Norm, n: int, *, pool: bool) -> Tensor:
    """Batch norm, ReLU and, with ``pool``, 3×3 max pooling with stride 2.

    Maps ``[n * B, P, H, W]``, with padded channels, to features ``[B, C, n, H', W']``.
    """
    tensors = norm.weight, norm.bias, activations
    # Inside an autograd function, gradients are always off.
    backward = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return apply(_NormReLU, norm, n, pool, backward, *tensors)


class _Lift(torch.autograd.Function):
    """Images to the convolution of their orbit, which backward computes again."""

    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], images: Tensor, filters: Tensor) -> Tensor:
        """``how``: the arguments of the kernel after the images."""
        ctx.how = how
        ctx.save_for_backward(images, filters)
        orbit = kernels("lift_kernels").orbit_columns(images, *how)
        return rows_of(torch.conv2d(orbit, filters))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Only the filters have a gradient."""
        refuse_second_derivatives()
        images, filters = ctx.saved_tensors
        orbit = kernels("lift_kernels").orbit_columns(images, *ctx.how)
        each = [rows_of(gradients[0])], [orbit], [filters]
        options: Options = ((1, 1), (0, 0), (1, 1))  # the orbit is laid out for it
        (of_filters,) = convolution_backward(*each, options, of_inputs=False)
        return None, None, of_filters


class _NormReLU(torch.autograd.Function):
    """Images ``[n * B, P, H, W]``, through norm, ReLU and perhaps pooling, to features."""

    @staticmethod
    def forward(
        ctx: Any, norm: Norm, n: int, pool: bool, backward: bool, *tensors: Tensor
    ) -> Tensor:
        """``tensors``: weight and bias of the norm, and the activations.

        The kernels get one rotation: nothing is mixed.
        """
        _, _, activations = tensors
        ctx.norm, taps = norm, None
        if pool:
            pool_kernels = kernels("pool_kernels")
            out, taps = pool_kernels.norm_pool(activations, norm, keep_taps=backward)
        else:
            out = kernels().norm_analyse((activations,), norm, n=1)[0]
        ctx.save_for_backward(activations, taps)
        return Features.of_memory(out.unflatten(0, (n, -1)), norm.channels).tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        norm, (activations, taps) = ctx.norm, ctx.saved_tensors
        gradient = Features.packed(gradients[0]).tensor
        if taps is None:
            pixels = (activations,), (gradient,), norm
            slopes = kernels().norm_analyse_sums(*pixels, None, n=1)
            (memory,) = kernels().norm_analyse_backward(*pixels, slopes, n=1)
            back = memory.permute(0, 3, 1, 2)
        else:
            windows = activations, gradient, taps, norm
            slopes = kernels("pool_kernels").norm_pool_sums(*windows)
            back = kernels("pool_kernels").norm_pool_backward(*windows, slopes)
        return None, None, None, None, *norm.gradients(slopes), back
