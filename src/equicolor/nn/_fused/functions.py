"""The fused path as autograd functions: Triton kernels, convolutions, and their gradients."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from equicolor.nn._fused.layout import Features, Options, Planes, Products, padded_channels, rows_of
from equicolor.nn._fused.norm import Norm, kernels


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply``, which has no types."""
    return function.apply(*arguments)


class Pack(torch.autograd.Function):
    """Filters ``[m, O, C, kh, kw]`` in a dtype, padded, as they lie in memory for convolutions."""

    @staticmethod
    def forward(ctx: Any, filters: Tensor, dtype: torch.dtype, planes: Planes) -> Tensor:
        ctx.dtype, ctx.shape, ctx.planes = filters.dtype, filters.shape, planes
        count, outputs, inputs, height, width = filters.shape
        shape = count, padded_channels(outputs), height, width, padded_channels(inputs)
        memory = filters.new_zeros(shape, dtype=dtype)
        for place, part in zip(_blocks(memory, planes), _blocks_of(filters, planes), strict=True):
            place[..., :outputs, :, :, :inputs] = part
        return memory

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        _, outputs, inputs, _, _ = ctx.shape
        back = gradients[0].new_empty(ctx.shape, dtype=ctx.dtype)
        parts = _blocks(gradients[0], ctx.planes)
        for place, part in zip(_blocks_of(back, ctx.planes), parts, strict=True):
            place.copy_(part[..., :outputs, :, :, :inputs])
        return back, None, None


def _blocks(memory: Tensor, planes: Planes) -> list[Tensor]:
    """Packed filters ``[m, O, kh, kw, C]`` as views: single planes, then four for each pair."""
    alone, pairs = memory[: planes.alone], memory[planes.alone :]
    if not planes.paired:
        return [alone]
    _, outputs, height, width, inputs = memory.shape
    # A pair is one filter of twice the outputs and inputs.
    wide = pairs.view(-1, 2, outputs, height, width, 2, inputs)
    return [alone, wide.permute(0, 1, 5, 2, 3, 4, 6)]


def _blocks_of(filters: Tensor, planes: Planes) -> list[Tensor]:
    """:func:`_blocks` of filters ``[m, O, C, kh, kw]``."""
    rows = filters.permute(0, 1, 3, 4, 2)
    if not planes.paired:
        return [rows]
    return [rows[: planes.alone], rows[planes.alone :].unflatten(0, (-1, 2, 2))]


class ProductsOf(torch.autograd.Function):
    """Features to their products with the filters of one or two layers, and the same features.

    Backward keeps only features and filters, and computes the inputs of the products again.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, options: Sequence[Options], planes: Planes, *filters: Tensor
    ) -> Products:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *filters)
        ctx.options = options
        ctx.planes = planes
        parts = kernels().analyse(Features.of(x), filters[0].dtype, paired=planes.paired)
        outputs: Products = ()
        for one, option in zip(filters, options, strict=True):
            outputs += _convolve(parts, one, option, planes)
        return *outputs, x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradient of the returned features is added to that of the products."""
        refuse_second_derivatives()
        x, *filters = ctx.saved_tensors
        *flat, residual = gradients
        features, planes = Features.of(x), ctx.planes
        parts = kernels().analyse(features, filters[0].dtype, paired=planes.paired)
        back: list[Products] = []
        of_filters = []
        of_layers = groups(flat, [len(flat) // len(filters)] * len(filters))
        for group, one, options in zip(of_layers, filters, ctx.options, strict=True):
            layer = parts, one, options, planes
            layer_gradients = _in_rows(group)
            of_filters.append(_filter_gradients(layer_gradients, *layer))
            if ctx.needs_input_grad[0]:
                back.append(_input_gradients(layer_gradients, *layer))
        if not back:
            return None, None, None, *of_filters
        of_x = kernels().analyse_backward(
            back[0],
            back[1] if len(back) > 1 else None,
            None if residual is None else Features.of(residual),
            n=features.rotations,
            channels=features.channels,
            dtype=x.dtype,
        )
        return of_x.tensor, None, None, *of_filters


class NormProducts(torch.autograd.Function):
    """Products of one layer, through batch norm and ReLU, to the products of the next.

    Backward keeps only products and filters.
    """

    @staticmethod
    def forward(
        ctx: Any,
        norm: Norm,
        options: Options,
        planes: Planes,
        n: int,
        weight: Tensor,
        bias: Tensor,
        filters: Tensor,
        *outputs: Tensor,
    ) -> Products:
        ctx.norm, ctx.options, ctx.planes, ctx.n = norm, options, planes, n
        ctx.save_for_backward(filters, *outputs)
        parts = kernels().norm_analyse(outputs, norm.vectors, n=n, paired=planes.paired)
        return _convolve(parts, filters, options, planes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs come first.

        The kernel that sums them for the norm also computes the inputs again, which the
        gradients of the filters need.
        """
        refuse_second_derivatives()
        norm, n, layer = ctx.norm, ctx.n, (ctx.options, ctx.planes)
        filters, *saved = ctx.saved_tensors
        outputs, gradients = tuple(saved), _in_rows(gradients)
        parts = kernels().empty_planes(outputs, ctx.planes)
        back = _input_gradients(gradients, parts, filters, *layer)
        slopes = kernels().norm_analyse_sums(
            outputs, back, norm.vectors, parts, n=n, training=norm.training
        )
        of_filters = _filter_gradients(gradients, parts, filters, *layer)
        del parts
        memory = kernels().norm_analyse_backward(outputs, back, norm.vectors, slopes, n=n)
        of_outputs = Planes.of_products(outputs, n).images(memory)
        return None, None, None, None, *norm.gradients(slopes), of_filters, *of_outputs


class NormAddReLU(torch.autograd.Function):
    """Products, through batch norm, plus a residual and through ReLU, to features.

    The residual is features, or products with a norm of their own. Backward keeps only the
    products and the output.
    """

    @staticmethod
    def forward(
        ctx: Any,
        norms: Sequence[Norm],
        sizes: Sequence[int],
        n: int,
        identity: Tensor | None,
        *tensors: Tensor,
    ) -> Tensor:
        """``tensors``: weights and biases of the norms, then the products of each norm."""
        flat = tensors[2 * len(norms) :]
        outputs, *others = groups(flat, sizes)
        dtype = outputs[0].dtype
        residual: Features | tuple[Products, Tensor]
        if identity is None:
            residual = others[0], norms[1].vectors
        else:
            residual = Features.of(identity)
            dtype = torch.promote_types(dtype, identity.dtype)
        channels, vectors = len(norms[0].weight), norms[0].vectors
        sizes_and_dtype = {"n": n, "channels": channels, "dtype": dtype}
        out: Tensor = kernels().norm_add(outputs, vectors, residual, **sizes_and_dtype).tensor
        ctx.norms, ctx.sizes = norms, sizes
        ctx.save_for_backward(out, *flat)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The first pass also writes the gradient after ReLU, which is the identity's gradient."""
        refuse_second_derivatives()
        out, *flat = ctx.saved_tensors
        inner, output = Features.of(gradients[0]), Features.of(out)
        of_parameters: list[Tensor] = []
        of_products: list[Tensor] = []
        for norm, outputs in zip(ctx.norms, groups(flat, ctx.sizes), strict=True):
            slopes, inner = kernels().norm_add_sums(
                inner,
                output if norm is ctx.norms[0] else None,
                outputs,
                norm.vectors,
                training=norm.training,
            )
            back = kernels().norm_backward(inner, outputs, norm.vectors, slopes)
            of_parameters += norm.gradients(slopes)
            of_products += Planes.of_products(outputs, inner.rotations).images(back)
        of_identity = inner.tensor if len(ctx.norms) == 1 else None
        return None, None, None, of_identity, *of_parameters, *of_products


def groups(flat: Sequence[Any], sizes: Sequence[int]) -> list[tuple[Any, ...]]:
    """Split a sequence: ``groups("abc", [2, 1])`` is ``[("a", "b"), ("c",)]``."""
    rest = iter(flat)
    return [tuple(itertools.islice(rest, size)) for size in sizes]


def _convolve(parts: Tensor, filters: Tensor, options: Options, planes: Planes) -> Products:
    return tuple(
        rows_of(torch.conv2d(part, one, None, *options))
        for part, one in zip(planes.images(parts), planes.filters(filters), strict=True)
    )


def _input_gradients(
    gradients: Products, parts: Tensor, filters: Tensor, options: Options, planes: Planes
) -> Products:
    """Gradients of the inputs; of ``parts`` only the shapes are read."""
    each = gradients, planes.images(parts), planes.filters(filters)
    return _in_rows(convolution_backward(*each, options, of_inputs=True))


def _filter_gradients(
    gradients: Products, parts: Tensor, filters: Tensor, options: Options, planes: Planes
) -> Tensor | None:
    if not filters.requires_grad:
        return None
    each = gradients, planes.images(parts), planes.filters(filters)
    return planes.join_filters(convolution_backward(*each, options, of_inputs=False))


def convolution_backward(
    gradients: Iterable[Tensor],
    parts: Iterable[Tensor],
    filters: Iterable[Tensor],
    options: Options,
    *,
    of_inputs: bool,
) -> list[Tensor]:
    """Gradients of convolutions, of their inputs (whose values are not read) or their filters."""
    wanted = of_inputs, not of_inputs, False
    return [
        torch.ops.aten.convolution_backward(
            gradient, part, one, None, *options, False, (0, 0), 1, wanted
        )[0 if of_inputs else 1]
        for gradient, part, one in zip(gradients, parts, filters, strict=True)
    ]


def _in_rows(tensors: Iterable[Tensor]) -> Products:
    return tuple(map(rows_of, tensors))


def refuse_second_derivatives() -> None:
    """Raise an error if a gradient is to be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the fused layers have no second derivatives (create_graph=True); take the ordinary "
            "ones with equicolor.nn.set_algorithm(network, 'dense')"
        )
