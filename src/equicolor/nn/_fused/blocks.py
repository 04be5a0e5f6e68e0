"""Residual blocks with all but convolutions fused; see :mod:`equicolor.nn._fused`."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from equicolor._observed import is_captured
from equicolor.devices import on_device_of
from equicolor.groups import cyclic_algorithm
from equicolor.nn._fused import functions
from equicolor.nn._fused.functions import Convolutions
from equicolor.nn._fused.layout import Planes, Products, pairs_pay
from equicolor.nn._fused.norm import Norm, kernels, normalization
from equicolor.nn.conv import CEConv2d
from equicolor.nn.functional import compute_dtype, spatial_bank
from equicolor.nn.norm import CEBatchNorm2d

Layer = tuple[CEConv2d, CEBatchNorm2d]


class Filters(NamedTuple):
    """The filters of a layer's convolutions, with padded channels, and how to use them."""

    tensors: Products  # [O, C, kh, kw], or [2 O, 2 C, kh, kw] of a pair
    convolutions: Convolutions

    @classmethod
    def of(cls, conv: CEConv2d, dtype: torch.dtype) -> Self:
        """The filters of a layer; gradients flow back to its weights."""
        assert isinstance(conv.padding, tuple)
        weight = spatial_bank(conv.weight, conv.spatial)
        group_weight: Tensor | None = conv.pointwise_weight
        if group_weight is not None:
            group_weight = spatial_bank(group_weight, conv.spatial)
        # Decided by the inputs, which a shortcut shares with the first layer.
        planes = Planes.of(conv.rotations, paired=pairs_pay(weight.shape[1]))
        table = conv.tables.filters
        if planes.paired:
            table = _paired_table(conv.rotations, conv.weight.device)
        mixed = functions.apply(functions.MixFilters, weight, group_weight, table, dtype, planes)
        options = conv.stride, conv.padding, conv.dilation
        return cls(mixed, Convolutions(options, planes))


@functools.cache
def _paired_table(n: int, device: torch.device) -> Tensor:
    r"""The float32 matrix ``[m, n]`` that mixes filters for paired planes.

    The three products of a frequency have filters :math:`a, b, c`. From the real and imaginary
    parts :math:`x, y` they compute :math:`a(x+y) - cy` and :math:`a(x+y) + bx`. Paired, this is
    one convolution of :math:`(x, y)` with the filters :math:`(a, a - c)` and :math:`(a + b, a)`.
    """
    alone = Planes.of(n, paired=True).alone
    with torch.inference_mode(False):  # cached, and may be used with gradients later
        table = cyclic_algorithm(n).filters
        a, b, c = table[alone:].unflatten(0, (-1, 3)).unbind(1)
        four = torch.stack([a, a - c, a + b, a], 1).flatten(0, 1)
        return torch.cat([table[:alone], four]).to(device, torch.float32)


class BlockLayer(NamedTuple):
    """The filters of a convolution, and the norm after it."""

    filters: Filters
    normalization: Callable[[Products, int], Norm]  # from the products of n rotations


def residual_block(
    x: Tensor, layers: Sequence[Layer], shortcut: Layer | None = None, *, followed: bool = False
) -> Tensor:
    """Convolutions and norms with ReLU between, plus the shortcut, and ReLU.

    Maps features ``[B, C, n, H, W]`` to features ``[B, C', n, H', W']``. There is at least one
    layer. The shortcut is a layer of its own, or None for the identity. If another block follows,
    this one also computes the planes that it begins with.
    """
    dtype = compute_dtype(x)

    def layer_of(conv: CEConv2d, norm: CEBatchNorm2d) -> BlockLayer:
        return BlockLayer(Filters.of(conv, dtype), functools.partial(normalization, norm))

    residual = None if shortcut is None else layer_of(*shortcut)
    return block_of(x, [layer_of(*layer) for layer in layers], residual, followed=followed)


def block_of(
    x: Tensor,
    layers: Sequence[BlockLayer],
    shortcut: BlockLayer | None = None,
    *,
    followed: bool = False,
) -> Tensor:
    """:func:`residual_block` with filters that were computed before."""
    n = x.shape[2]
    with on_device_of(x):
        layer, *later = layers
        entrances = [layer] if shortcut is None else [layer, shortcut]
        (outputs, *others), x = products(x, [one.filters for one in entrances])
        for following in later:
            norm = layer.normalization(outputs, n)
            outputs = norm_products(outputs, norm, following.filters, n)
            layer = following
        residual: Tensor | tuple[Products, Norm] = x
        if shortcut is not None:
            residual = others[0], shortcut.normalization(others[0], n)
        norm, planes = layer.normalization(outputs, n), None
        # In inference mode torch does not count changes of the features, after which their planes
        # would be others.
        if followed and not torch.is_inference_mode_enabled():
            paired = pairs_pay(norm.channels)
            planes = kernels().empty_planes(outputs, Planes.of(n, paired=paired))
        y = norm_add_relu(outputs, norm, residual, n, planes)
        if planes is not None:
            y._equicolor_planes = _stamp(y), planes  # type: ignore[attr-defined]
        return y


def _stamp(features: Tensor) -> tuple[object, ...]:
    """What differs if features have changed, or where their planes should not be read.

    A recording that was given features must compute their planes whenever it is replayed. On
    another stream, the planes could be freed before they are read: torch would not know of it.
    """
    # A number, as streams cannot be copied or saved with the features.
    stream = torch.cuda.current_stream(features.device).stream_id if features.is_cuda else None
    return features.data_ptr(), features._version, is_captured(features), stream


def products(x: Tensor, filters: Sequence[Filters]) -> tuple[list[Products], Tensor]:
    """The products of features with the filters of one or two layers, and the features again.

    Use the returned features instead of ``x``: their gradient is then added to that of the
    products at no cost.
    """
    layers = [one.convolutions for one in filters]
    tensors = [tensor for one in filters for tensor in one.tensors]
    parts = _planes_of(x, filters[0])
    *flat, x = functions.apply(functions.ProductsOf, x, parts, layers, *tensors)
    return functions.groups(flat, [layer.number for layer in layers[:-1]]), x


def _planes_of(x: Tensor, filters: Filters) -> Tensor | None:
    """The planes that the block before has computed, unless the features have changed since.

    Changes through ``.data`` are not noticed: torch does not count them.
    """
    stamp, planes = x.__dict__.pop("_equicolor_planes", (None, None))
    if planes is None or stamp != _stamp(x):
        return None
    fits = len(planes) == filters.convolutions.planes.total
    return planes if fits and planes.dtype == filters.tensors[0].dtype else None


def norm_products(outputs: Products, norm: Norm, filters: Filters, n: int) -> Products:
    """Batch norm and ReLU of features, given as products, and their products with filters."""
    tensors = norm.weight, norm.bias, *filters.tensors, *outputs
    arguments = norm, filters.convolutions, n, *tensors
    return functions.apply(functions.NormProducts, *arguments)


def norm_add_relu(
    outputs: Products,
    norm: Norm,
    residual: Tensor | tuple[Products, Norm],
    n: int,
    planes: Tensor | None = None,
) -> Tensor:
    """Batch norm of features given as products, plus a residual, and ReLU: ``[B, C, n, H, W]``.

    The residual is features, or products with a norm of their own. ``planes``, unless None, is
    filled with the planes of the result.
    """
    batch, _, height, width = outputs[0].shape
    shape = batch, norm.channels, n, height, width
    identity, norms, each = None, [norm], [outputs]
    if not isinstance(residual, Tensor):
        each.append(residual[0])
        norms.append(residual[1])
    elif residual.shape != shape:  # the kernel would read outside of it
        raise RuntimeError(f"features {list(shape)} and residual {list(residual.shape)} differ")
    else:
        identity = residual
    parameters = [parameter for one in norms for parameter in (one.weight, one.bias)]
    flat = [product for one in each for product in one]
    sizes = [len(one) for one in each[:-1]]
    signs = kernels().empty_signs(outputs, n) if torch.is_grad_enabled() else None
    arguments = norms, sizes, shape, planes, signs, identity, *parameters, *flat
    return functions.apply(functions.NormAddReLU, *arguments)
