"""Residual blocks with all but convolutions fused; see :mod:`equicolor.nn._fused`."""

import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from equicolor.groups import cyclic_algorithm
from equicolor.nn._fused import functions
from equicolor.nn._fused.layout import (
    Options,
    Planes,
    Products,
    compute_dtype,
    on_device_of,
    pairs_pay,
)
from equicolor.nn._fused.norm import Norm, normalization
from equicolor.nn.conv import CEConv2d
from equicolor.nn.functional import mix_filters
from equicolor.nn.norm import CEBatchNorm2d

__all__ = [
    "BlockLayer",
    "Filters",
    "Layer",
    "block_of",
    "norm_add_relu",
    "norm_products",
    "products",
    "residual_block",
]

Layer = tuple[CEConv2d, CEBatchNorm2d]


class Filters(NamedTuple):
    """Filters ``[m, O, kh, kw, C]`` of products, with padded channels, and how to convolve."""

    tensor: Tensor
    options: Options
    planes: Planes

    @classmethod
    def of(cls, conv: CEConv2d, dtype: torch.dtype) -> Self:
        """The filters of a layer, differentiable."""
        assert isinstance(conv.padding, tuple)
        options = conv.stride, conv.padding, conv.dilation
        # By the inputs, which a shortcut has in common with the first layer.
        planes = Planes.of(conv.rotations, paired=pairs_pay(conv.in_channels))
        table = conv.tables.filters
        if planes.paired:
            table = _paired_table(conv.rotations, conv.weight.device)
        mixed = mix_filters(conv.weight, conv.pointwise_weight, table)
        return cls(functions.apply(functions.Pack, mixed, dtype, planes), options, planes)


@functools.cache
def _paired_table(n: int, device: torch.device) -> Tensor:
    r"""What mixes filters for pairs, float32 ``[m, n]``.

    The three products of a frequency, with filters :math:`a, b, c`, give of real and imaginary
    parts :math:`x, y` the parts :math:`a(x+y) - cy` and :math:`a(x+y) + bx`. So paired they are
    one convolution with the filters :math:`a, a - c` for its first half and :math:`a + b, a` for
    its second.
    """
    alone = Planes.of(n, paired=True).alone
    with torch.inference_mode(False):  # kept: others may want gradients
        table = cyclic_algorithm(n).filters
        a, b, c = table[alone:].unflatten(0, (-1, 3)).unbind(1)
        four = torch.stack([a, a - c, a + b, a], 1).flatten(0, 1)
        return torch.cat([table[:alone], four]).to(device, torch.float32)


class BlockLayer(Protocol):
    """A convolution and the norm after it, as a block asks for them."""

    def filters(self, dtype: torch.dtype) -> Filters:
        """Of the convolution."""
        ...

    def normalization(self, outputs: Products, n: int) -> Norm:
        """What the norm does to the features of some products."""
        ...


class _Modules(NamedTuple):
    """A layer as its modules are: everything follows from their weights, at every call."""

    conv: CEConv2d
    norm: CEBatchNorm2d

    def filters(self, dtype: torch.dtype) -> Filters:
        return Filters.of(self.conv, dtype)

    def normalization(self, outputs: Products, n: int) -> Norm:
        return normalization(self.norm, outputs, n)


def residual_block(x: Tensor, layers: Sequence[Layer], shortcut: Layer | None = None) -> Tensor:
    """Convolutions and norms with ReLU between, plus the shortcut, and ReLU.

    Args:
        x: features ``[B, C, n, H, W]``.
        layers: at least one.
        shortcut: a layer of its own, or None for the identity.

    Returns:
        Features ``[B, C', n, H', W']``.
    """
    modules = [_Modules(*layer) for layer in layers]
    return block_of(x, modules, None if shortcut is None else _Modules(*shortcut))


def block_of(x: Tensor, layers: Sequence[BlockLayer], shortcut: BlockLayer | None = None) -> Tensor:
    """As :func:`residual_block`, of anything that has filters and norms."""
    n, dtype = x.shape[2], compute_dtype(x)
    with on_device_of(x):
        layer, *later = layers
        entrances = [layer] if shortcut is None else [layer, shortcut]
        (outputs, *others), x = products(x, [one.filters(dtype) for one in entrances])
        for following in later:
            before = layer.normalization(outputs, n)
            outputs = norm_products(outputs, before, following.filters(dtype), n)
            layer = following
        residual: Tensor | tuple[Products, Norm] = x
        if shortcut is not None:
            residual = others[0], shortcut.normalization(others[0], n)
        return norm_add_relu(outputs, layer.normalization(outputs, n), residual, n)


def products(x: Tensor, filters: Sequence[Filters]) -> tuple[list[Products], Tensor]:
    """The products of features with the filters of one or two layers, and the features again.

    Use those that come back instead of ``x``: their gradient joins that of the products at no
    cost.

    Args:
        x: features ``[B, C, n, H, W]``.
        filters: of each layer.
    """
    options, tensors = [one.options for one in filters], [one.tensor for one in filters]
    *flat, x = functions.apply(functions.ProductsOf, x, options, filters[0].planes, *tensors)
    return functions.groups(flat, [len(flat) // len(filters)] * len(filters)), x


def norm_products(outputs: Products, norm: Norm, filters: Filters, n: int) -> Products:
    """Batch norm and ReLU of features, given as products, and their products with filters.

    Args:
        outputs: the products.
        norm: the batch norm.
        filters: of the next layer.
        n: rotations.
    """
    tensors = norm.weight, norm.bias, filters.tensor, *outputs
    layer = filters.options, filters.planes
    result: Products = functions.apply(functions.NormProducts, norm, *layer, n, *tensors)
    return result


def norm_add_relu(
    outputs: Products, norm: Norm, residual: Tensor | tuple[Products, Norm], n: int
) -> Tensor:
    """Batch norm of features given as products, plus a residual, and ReLU.

    Args:
        outputs: the products.
        norm: the batch norm.
        residual: features, or products and a norm of their own.
        n: rotations.

    Returns:
        Features ``[B, C, n, H, W]``.
    """
    identity, norms, flat = None, [norm], outputs
    if isinstance(residual, Tensor):
        batch, _, height, width = outputs[0].shape
        shape = batch, len(norm.weight), n, height, width
        if residual.shape != shape:  # the kernel would read what is not there
            raise RuntimeError(f"features {list(shape)} and residual {list(residual.shape)} differ")
        identity = residual
    else:
        norms, flat = [norm, residual[1]], outputs + residual[0]
    parameters = [parameter for one in norms for parameter in (one.weight, one.bias)]
    sizes = [len(outputs), len(flat) - len(outputs)][: len(norms)]
    tensors = *parameters, *flat
    result: Tensor = functions.apply(functions.NormAddReLU, norms, sizes, n, identity, *tensors)
    return result
