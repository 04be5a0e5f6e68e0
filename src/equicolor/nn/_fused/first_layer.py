"""The first layers of a network on the fused path: lifting, batch norm, ReLU and pooling."""

from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor.devices import on_device_of
from equicolor.groups import SpatialGroup
from equicolor.nn._fused.functions import apply, convolution_backward, refuse_second_derivatives
from equicolor.nn._fused.layout import Features, Options, padded_channels, rows_of, with_lanes
from equicolor.nn._fused.norm import Norm, kernels, normalization
from equicolor.nn.conv import CELiftConv2d
from equicolor.nn.functional import ce_lift_conv2d, compute_dtype, in_every_hue, spatial_bank
from equicolor.nn.layout import to_images
from equicolor.nn.norm import CEBatchNorm2d

_CHANNELS = 64  # of a convolution; with fewer, tensor cores take as long


class Hues(NamedTuple):
    """How a first layer computes its n hues.

    If hue shifts are linear, filters are shifted instead of images: one convolution of the images
    has all hues beside the channels.
    """

    of_images: int  # hues of the images: n or 1
    together: int  # columns of the result that one convolution gives, each with its channels

    @classmethod
    def of(cls, conv: CELiftConv2d, images: Tensor) -> Self:
        """Columns come together until the convolution has as many channels as tensor cores want."""
        padding: Any = conv.padding
        sides = images.shape[3] + 2 * padding[1] - conv.kernel_size[1]
        columns, together = sides // conv.stride[1] + 1, 1
        channels = padded_lanes(conv) * (conv.rotations if conv._is_linear else 1)
        while together * channels < _CHANNELS and columns % (2 * together) == 0:
            together *= 2
        return cls(1 if conv._is_linear else conv.rotations, together)


def stem(images: Tensor, conv: CELiftConv2d, norm: CEBatchNorm2d, *, pool: bool) -> Tensor:
    """Lifting convolution, batch norm, ReLU and, with ``pool``, 3×3 max pooling with stride 2.

    Maps images ``[B, 3, H, W]`` to features ``[B, C, n, H', W']``.
    """
    with on_device_of(images):
        activations, beside = lift(images, conv)
        statistics = normalization(norm, (activations,), 1)
        return norm_relu(activations, statistics, conv.rotations, beside=beside, pool=pool)


def lift(images: Tensor, conv: CELiftConv2d) -> tuple[Tensor, bool]:
    """Lifting convolution of images ``[B, 3, H, W]``, in channels_last memory for a norm.

    Returns ``[n * B, P, H', W']`` with padded channels and False or, if the rotations lie beside
    the channels, ``[B, P, H', W' * n]`` and True.
    """
    if not images.requires_grad and conv.dilation == (1, 1):
        hues = Hues.of(conv, images)
        filters = packed_columns(conv, compute_dtype(images), hues)
        return lift_columns(images, conv, filters, hues)
    weight, options = _padded(_bank(conv)), (conv.stride, conv.padding, conv.dilation)
    matrices = conv._transformations() if conv.lifting == "rgb" else None
    group: Any = {"rotations": conv.rotations, "lifting": conv.lifting, "matrices": matrices}
    lifted = ce_lift_conv2d(images, weight, None, *options, **group)
    return rows_of(to_images(lifted)), False


def packed_columns(conv: CELiftConv2d, dtype: torch.dtype, hues: Hues) -> Tensor:
    """The filters of a lifting convolution for columns of pixels, with padded channels."""
    filters = _bank(conv).squeeze(2)
    filters = filters[None] if hues.of_images > 1 else in_every_hue(filters, _matrices(conv))
    filters = _padded(filters.transpose(0, 1)).transpose(0, 1).flatten(0, 1)
    step, last = conv.stride[1], hues.together - 1
    if last:  # the columns that come together see windows that lie beside each other
        places = range(hues.together)
        filters = torch.cat([F.pad(filters, (step * i, step * (last - i))) for i in places])
    packed = kernels("lift_kernels").column_filters(filters, conv.stride[0]).to(dtype)
    return packed.contiguous(memory_format=torch.channels_last)


def _matrices(conv: CELiftConv2d) -> Tensor:
    matrices = conv._transformations()
    assert matrices is not None
    return matrices


def padded_lanes(conv: CELiftConv2d) -> int:
    """The padded channels of a first layer's features."""
    return padded_channels(conv.out_channels * SpatialGroup(conv.spatial).order)


def _bank(conv: CELiftConv2d) -> Tensor:
    return spatial_bank(conv.weight, conv.spatial, of_images=True)


def _padded(filters: Tensor) -> Tensor:
    """Filters ``[O, ...]`` with zeros for padded channels."""
    spare = padded_channels(len(filters)) - len(filters)
    return F.pad(filters, (*[0] * (2 * filters.ndim - 1), spare))


def lift_columns(
    images: Tensor, conv: CELiftConv2d, filters: Tensor, hues: Hues
) -> tuple[Tensor, bool]:
    """:func:`lift` with the filters of :func:`packed_columns`."""
    assert isinstance(conv.padding, tuple)
    rows, step = conv.stride
    height, width = conv.kernel_size
    options = (rows, step * hues.together), conv.padding, conv.dilation
    size = height, width + step * (hues.together - 1)
    how = hues.of_images, filters.dtype, size, options
    lifted = apply(_Lift, how, padded_lanes(conv), images, filters)
    return lifted, hues.of_images < conv.rotations


def norm_relu(activations: Tensor, norm: Norm, n: int, *, beside: bool, pool: bool) -> Tensor:
    """Batch norm, ReLU and, with ``pool``, 3×3 max pooling with stride 2.

    Maps what :func:`lift` returns to features ``[B, C, n, H', W']``.
    """
    tensors = norm.weight, norm.bias, activations
    # Inside an autograd function, gradients are always off.
    backward = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return apply(_NormReLU, norm, n, beside, pool, backward, *tensors)


class _Lift(torch.autograd.Function):
    """Images to the convolution of their columns, which backward computes again."""

    @staticmethod
    def forward(
        ctx: Any, how: tuple[Any, ...], lanes: int, images: Tensor, filters: Tensor
    ) -> Tensor:
        """``how``: the arguments of the kernel after the images."""
        ctx.how = how
        ctx.save_for_backward(images, filters)
        columns = kernels("lift_kernels").columns(images, *how)
        return with_lanes(rows_of(torch.conv2d(columns, filters)), lanes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Only the filters have a gradient."""
        refuse_second_derivatives()
        images, filters = ctx.saved_tensors
        columns = kernels("lift_kernels").columns(images, *ctx.how)
        gradient = with_lanes(rows_of(gradients[0]), len(filters))
        options: Options = ((1, 1), (0, 0), (1, 1))  # the columns are laid out for it
        of_filters = convolution_backward(gradient, columns, filters, options, of_inputs=False)
        return None, None, None, of_filters


class _NormReLU(torch.autograd.Function):
    """The activations of a first layer, through norm, ReLU and perhaps pooling, to features."""

    @staticmethod
    def forward(
        ctx: Any, norm: Norm, n: int, beside: bool, pool: bool, backward: bool, *tensors: Tensor
    ) -> Tensor:
        """``tensors``: weight and bias of the norm, and the activations.

        The kernels get one rotation: nothing is mixed.
        """
        _, _, activations = tensors
        ctx.norm, ctx.beside, taps = norm, beside, None
        if pool:
            lanes = activations.shape[1] * (n if beside else 1)
            images = with_lanes(activations, lanes)
            out, taps = kernels("pool_kernels").norm_pool(images, norm, keep_taps=backward)
        else:
            out = kernels().norm_analyse((activations,), norm, n=1)[0]
        if beside:
            memory = out.view(*out.shape[:2], -1, n, activations.shape[1])
            features = memory[..., : norm.channels].permute(0, 4, 3, 1, 2)
        else:
            features = Features.of_memory(out.unflatten(0, (n, -1)), norm.channels).tensor
        # All of the memory, so that hooks on saved tensors keep how features lie in it.
        ctx.save_for_backward(activations, *([out, taps] if pool else []))
        return features

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        norm, (activations, *pooled) = ctx.norm, ctx.saved_tensors
        activations = rows_of(activations)
        gradient = Features.packed(gradients[0], beside=ctx.beside).tensor
        if not pooled:
            pixels = (activations,), (gradient,), norm
            slopes = kernels().norm_analyse_sums(*pixels, None, n=1)
            (memory,) = kernels().norm_analyse_backward(*pixels, slopes, n=1)
            back = memory.permute(0, 3, 1, 2)
        else:
            out, taps = pooled
            images = with_lanes(activations, taps.shape[3])
            slopes = kernels("pool_kernels").norm_pool_sums(images, out, gradient, taps, norm)
            windows = images, gradient, taps, norm
            back = kernels("pool_kernels").norm_pool_backward(*windows, slopes)
            back = with_lanes(back, activations.shape[1])
        return None, None, None, None, None, *norm.gradients(slopes), back
