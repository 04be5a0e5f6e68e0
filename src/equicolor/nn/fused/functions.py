"""The fused path as autograd functions: Triton kernels, convolutions, and their gradients."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from equicolor.nn.fused.layout import Features, Options, Products, padded_channels, rows_of
from equicolor.nn.fused.norm import Norm, kernels

__all__ = [
    "NormAddReLU",
    "NormProducts",
    "Pack",
    "ProductsOf",
    "apply",
    "as_images",
    "convolution_backward",
    "groups",
    "refuse_second_derivatives",
]


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Call an autograd function."""
    return function.apply(*arguments)


class Pack(torch.autograd.Function):
    """Filters ``[r, O, C, kh, kw]`` in a dtype, padded, each in channels_last memory."""

    @staticmethod
    def forward(ctx: Any, filters: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert, pad and transpose in one go."""
        ctx.dtype, ctx.shape = filters.dtype, filters.shape
        r, outputs, inputs, height, width = filters.shape
        shape = r, padded_channels(outputs), height, width, padded_channels(inputs)
        memory = filters.new_zeros(shape, dtype=dtype)
        memory[:, :outputs, ..., :inputs] = filters.permute(0, 1, 3, 4, 2)
        return memory.permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Leave out what was padded."""
        _, outputs, inputs, _, _ = ctx.shape
        return gradients[0][:, :outputs, :inputs].to(ctx.dtype), None


class ProductsOf(torch.autograd.Function):
    """Features to their products with the filters of one or two layers, and the same features.

    Only the features and filters are kept; the inputs of the products are made again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, options: Sequence[Options], *filters: Tensor) -> Products:
        """Analyse, then convolve."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *filters)
        ctx.options = options
        parts = kernels().analyse(Features.of(x), filters[0].dtype)
        outputs: Products = ()
        for one, option in zip(filters, options, strict=True):
            outputs += _convolve(parts, one, option)
        return *outputs, x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradient of the features given back joins that of the products."""
        refuse_second_derivatives()
        x, *filters = ctx.saved_tensors
        *flat, residual = gradients
        features = Features.of(x)
        parts = kernels().analyse(features, filters[0].dtype)
        back: list[Products] = []
        of_filters = []
        for group, *layer in zip(groups(flat, len(filters)), filters, ctx.options, strict=True):
            layer_gradients = _in_rows(group)
            of_filters.append(_filter_gradients(layer_gradients, parts, *layer))
            if ctx.needs_input_grad[0]:
                back.append(_input_gradients(layer_gradients, parts, *layer))
        if not back:
            return None, None, *of_filters
        of_x = kernels().analyse_backward(
            back[0],
            back[1] if len(back) > 1 else None,
            None if residual is None else Features.of(residual),
            n=features.rotations,
            channels=features.channels,
            dtype=x.dtype,
        )
        return of_x.tensor, None, *of_filters


class NormProducts(torch.autograd.Function):
    """Products to the products of their normalised and cut features with the next filters.

    Only the products and filters are kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        norm: Norm,
        options: Options,
        n: int,
        weight: Tensor,
        bias: Tensor,
        filters: Tensor,
        *outputs: Tensor,
    ) -> Products:
        """Normalise, cut and analyse, then convolve."""
        ctx.norm, ctx.options, ctx.n = norm, options, n
        ctx.save_for_backward(filters, *outputs)
        parts = kernels().norm_analyse(outputs, norm.vectors, n=n)
        return _convolve(parts, filters, options)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs come first.

        The kernel that reads them for the norm's then also makes the inputs again, which the
        gradients of the filters need.
        """
        refuse_second_derivatives()
        norm, n = ctx.norm, ctx.n
        filters, *saved = ctx.saved_tensors
        outputs, gradients = tuple(saved), _in_rows(gradients)
        parts = kernels().empty_parts_like(outputs)
        back = _input_gradients(gradients, parts, filters, ctx.options)
        slopes = kernels().norm_analyse_sums(
            outputs, back, norm.vectors, parts, n=n, training=norm.training
        )
        of_filters = _filter_gradients(gradients, parts, filters, ctx.options)
        del parts
        of_outputs = kernels().norm_analyse_backward(outputs, back, norm.vectors, slopes, n=n)
        return None, None, None, *norm.gradients(slopes), of_filters, *as_images(of_outputs)


class NormAddReLU(torch.autograd.Function):
    """Products to normalised features plus a residual, cut.

    The residual is features, or products with a norm of their own. Only products and what
    comes out are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, norms: Sequence[Norm], n: int, identity: Tensor | None, *tensors: Tensor
    ) -> Tensor:
        """Tensors are weights and biases of the norms, then the products they are for."""
        flat = tensors[2 * len(norms) :]
        outputs, *others = groups(flat, len(norms))
        dtype = outputs[0].dtype
        residual: Features | tuple[Products, Tensor]
        if identity is None:
            residual = others[0], norms[1].vectors
        else:
            residual = Features.of(identity)
            dtype = torch.promote_types(dtype, identity.dtype)
        channels, vectors = len(norms[0].weight), norms[0].vectors
        out: Tensor = (
            kernels()
            .norm_add(outputs, vectors, residual, n=n, channels=channels, dtype=dtype)
            .tensor
        )
        ctx.norms = norms
        ctx.save_for_backward(out, *flat)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The first pass also keeps what ReLU lets through, which is the identity's gradient."""
        refuse_second_derivatives()
        out, *flat = ctx.saved_tensors
        inner, output = Features.of(gradients[0]), Features.of(out)
        of_parameters: list[Tensor] = []
        of_products: list[Tensor] = []
        for norm, outputs in zip(ctx.norms, groups(flat, len(ctx.norms)), strict=True):
            slopes, inner = kernels().norm_add_sums(
                inner,
                output if norm is ctx.norms[0] else None,
                outputs,
                norm.vectors,
                training=norm.training,
            )
            back = kernels().norm_backward(inner, outputs, norm.vectors, slopes)
            of_parameters += norm.gradients(slopes)
            of_products += as_images(back)
        of_identity = inner.tensor if len(ctx.norms) == 1 else None
        return None, None, of_identity, *of_parameters, *of_products


def groups(flat: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    """A sequence as some equal groups.

    Example:
        >>> groups("abcd", 2)
        [('a', 'b'), ('c', 'd')]
    """
    size = len(flat) // count
    return [tuple(flat[start : start + size]) for start in range(0, len(flat), size)]


def _convolve(parts: Tensor, filters: Tensor, options: Options) -> Products:
    return tuple(
        rows_of(torch.conv2d(part, one, None, *options))
        for part, one in zip(as_images(parts), filters.unbind(), strict=True)
    )


def _input_gradients(
    gradients: Products, parts: Tensor, filters: Tensor, options: Options
) -> Products:
    """Of parts that need not be filled."""
    each = gradients, as_images(parts), filters.unbind()
    return _in_rows(convolution_backward(*each, options, of_inputs=True))


def _filter_gradients(
    gradients: Products, parts: Tensor, filters: Tensor, options: Options
) -> Tensor | None:
    if not filters.requires_grad:
        return None
    each = gradients, as_images(parts), filters.unbind()
    back = convolution_backward(*each, options, of_inputs=False)
    return torch.stack([one.permute(0, 2, 3, 1) for one in back]).permute(0, 1, 4, 2, 3)


def convolution_backward(
    gradients: Iterable[Tensor],
    parts: Iterable[Tensor],
    filters: Iterable[Tensor],
    options: Options,
    *,
    of_inputs: bool,
) -> list[Tensor]:
    """Gradients of convolutions: of their inputs, which are not read then, or of their filters."""
    wanted = of_inputs, not of_inputs, False
    return [
        torch.ops.aten.convolution_backward(
            gradient, part, one, None, *options, False, (0, 0), 1, wanted
        )[0 if of_inputs else 1]
        for gradient, part, one in zip(gradients, parts, filters, strict=True)
    ]


def as_images(parts: Tensor) -> Products:
    """What kernels write, ``[r, B, H, W, P]``, as r tensors ``[B, P, H, W]``."""
    return parts.permute(0, 1, 4, 2, 3).unbind()


def _in_rows(tensors: Iterable[Tensor]) -> Products:
    return tuple(map(rows_of, tensors))


def refuse_second_derivatives() -> None:
    """To be called in a gradient that is not differentiable itself."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the fused layers have no second derivatives (create_graph=True); take the ordinary "
            "ones with equicolor.nn.set_algorithm(network, 'dense')"
        )
