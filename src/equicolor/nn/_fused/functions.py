"""The fused path as autograd functions: Triton kernels, convolutions, and their gradients."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equicolor.nn._fused import streams
from equicolor.nn._fused.layout import Features, Options, Planes, Products, rows_of
from equicolor.nn._fused.norm import Norm, kernels


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply``, which has no types."""
    return function.apply(*arguments)


class MixFilters(torch.autograd.Function):
    """The filters of a layer, mixed and packed: one tensor for each of its convolutions."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        pointwise: Tensor | None,
        table: Tensor,
        dtype: torch.dtype,
        planes: Planes,
    ) -> Products:
        ctx.planes = planes
        ctx.save_for_backward(weight, pointwise, table)
        memory = kernels("filter_kernels").mix(weight, pointwise, table, dtype, planes)
        return planes.filters(memory)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        streams.join(gradients[0])
        each = _in_rows(gradients)
        back = kernels("filter_kernels").mix_backward(each, *ctx.saved_tensors, ctx.planes)
        return *back, None, None, None


class Convolutions(NamedTuple):
    """The convolutions of planes ``[m, B, H, W, P]`` with the filters of :class:`MixFilters`."""

    options: Options
    planes: Planes

    @property
    def number(self) -> int:
        """The number of convolutions."""
        return self.planes.number

    def products(self, parts: Tensor, filters: Sequence[Tensor]) -> Products:
        each = zip(self.planes.images(parts), filters, strict=True)
        calls = [partial(torch.conv2d, *one, None, *self.options) for one in each]
        return _in_rows(streams.side_by_side(calls, parts))

    def skipping(self, filters: Sequence[Tensor]) -> tuple[int, int]:
        """Steps between the rows, and the columns, that the layer sees; (1, 1) if it sees all."""
        stride, padding, _ = self.options
        return stride if filters[0].shape[2:] == (1, 1) and padding == (0, 0) else (1, 1)

    def input_gradients(
        self,
        gradients: Products,
        parts: Tensor,
        filters: Sequence[Tensor],
        steps: tuple[int, int] = (1, 1),
    ) -> Products:
        """Gradients of the planes, of which only the shapes are read.

        If the layer skips rows or columns, only those of the others, where there are gradients.
        """
        layer = self
        if steps != (1, 1):
            layer = self._replace(options=((1, 1), *self.options[1:]))
            parts = parts.new_empty(
                len(parts), *gradients[0].permute(0, 2, 3, 1).shape[:3], parts.shape[4]
            )
        calls = layer._backward(gradients, parts, filters, of_inputs=True)
        return _in_rows(streams.side_by_side(calls, parts))

    def filter_gradients(
        self, gradients: Products, parts: Tensor, filters: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Gradients for :class:`MixFilters`, which waits for them; None if it will not run."""
        if not _is_asked_for(filters[0]):
            return [None] * len(filters)
        calls = self._backward(gradients, parts, filters, of_inputs=False)
        return streams.later(calls, parts, gradients, parts, filters)

    def _backward(
        self, gradients: Products, parts: Tensor, filters: Sequence[Tensor], *, of_inputs: bool
    ) -> list[Callable[[], Tensor]]:
        each = gradients, self.planes.images(parts), filters
        return [
            partial(convolution_backward, *one, self.options, of_inputs=of_inputs)
            for one in zip(*each, strict=True)
        ]


class ProductsOf(torch.autograd.Function):
    """Features to their products with the filters of one or two layers, and the same features.

    Backward keeps the filters and the inputs of the products; or, where those are larger, the
    features, from which it computes them again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        parts: Tensor | None,
        layers: Sequence[Convolutions],
        *filters: Tensor,
    ) -> Products:
        """``parts``: the planes of the features, if they were computed before."""
        ctx.set_materialize_grads(False)
        features = Features.of(x)
        if parts is None:
            paired = layers[0].planes.paired
            parts = kernels().analyse(features, filters[0].dtype, paired=paired)
        ctx.layers, ctx.keeps_inputs = layers, len(parts) == features.rotations
        ctx.save_for_backward(parts if ctx.keeps_inputs else x, *filters)
        ctx.empty = partial(Features.empty, x.shape, x.dtype, x.device, beside=features.beside)
        outputs: Products = ()
        for layer, group in zip(layers, _of_layers(filters, layers), strict=True):
            outputs += layer.products(parts, group)
        return *outputs, x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradient of the returned features is added to that of the products."""
        refuse_second_derivatives()
        kept, *filters = ctx.saved_tensors
        *flat, residual = gradients
        if ctx.keeps_inputs:
            parts = kept.contiguous()  # hooks on saved tensors may return another memory layout
        else:
            paired = ctx.layers[0].planes.paired
            parts = kernels().analyse(Features.of(kept), filters[0].dtype, paired=paired)
        of_inputs: list[Products] = []
        of_filters: list[Tensor | None] = []
        steps = 1, 1
        each = ctx.layers, _of_layers(flat, ctx.layers), _of_layers(filters, ctx.layers)
        for layer, of_outputs, group in zip(*each, strict=True):
            arguments = _in_rows(of_outputs), parts, group
            of_filters += layer.filter_gradients(*arguments)
            if ctx.needs_input_grad[0]:
                if of_inputs:  # the kernel below adds those of the second layer where there are any
                    steps = layer.skipping(group)
                of_inputs.append(layer.input_gradients(*arguments, steps))
        if not of_inputs:
            return None, None, None, *of_filters
        first, *others = of_inputs
        added = None if residual is None else Features.of(residual)
        back = ctx.empty()
        kernels().analyse_backward(first, others[0] if others else None, added, back, steps)
        return back.tensor, None, None, *of_filters


class NormProducts(torch.autograd.Function):
    """Products of one layer, through batch norm and ReLU, to the products of the next.

    Backward keeps only products and filters.
    """

    @staticmethod
    def forward(ctx: Any, norm: Norm, layer: Convolutions, n: int, *tensors: Tensor) -> Products:
        """``tensors``: weight and bias of the norm, the filters, then the products."""
        filters, outputs = groups(tensors[2:], [layer.number])
        ctx.norm, ctx.layer, ctx.n = norm, layer, n
        ctx.save_for_backward(*filters, *outputs)
        paired = layer.planes.paired
        parts = kernels().norm_analyse(outputs, norm, n=n, paired=paired)
        return layer.products(parts, filters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs come first.

        The kernel that sums them for the norm also computes the inputs again, which the
        gradients of the filters need.
        """
        refuse_second_derivatives()
        norm, layer, n = ctx.norm, ctx.layer, ctx.n
        filters, outputs = groups(ctx.saved_tensors, [layer.number])
        # Saved tensors too: hooks on them, as of save_on_cpu, may return another memory layout.
        gradients, outputs = _in_rows(gradients), _in_rows(outputs)
        parts = kernels().empty_planes(outputs, layer.planes)
        back = layer.input_gradients(gradients, parts, filters)
        slopes = kernels().norm_analyse_sums(outputs, back, norm, parts, n=n)
        of_filters = layer.filter_gradients(gradients, parts, filters)
        del parts
        memory = kernels().norm_analyse_backward(outputs, back, norm, slopes, n=n)
        of_outputs = Planes.of_products(outputs, n).images(memory)
        return None, None, None, *norm.gradients(slopes), *of_filters, *of_outputs


class NormAddReLU(torch.autograd.Function):
    """Products, through batch norm, plus a residual and through ReLU, to features.

    The residual is features, or products with a norm of their own. ``planes``, unless None, is
    filled with the planes of the features, and ``signs`` with their signs. Backward keeps the
    products and the signs.
    """

    @staticmethod
    def forward(
        ctx: Any,
        norms: Sequence[Norm],
        sizes: Sequence[int],
        shape: Sequence[int],
        planes: Tensor | None,
        signs: Tensor | None,
        identity: Tensor | None,
        *tensors: Tensor,
    ) -> Tensor:
        """``tensors``: weights and biases of the norms, then the products of each norm."""
        flat = tensors[2 * len(norms) :]
        outputs, *others = groups(flat, sizes)
        residual: Features | tuple[Products, Norm]
        if identity is None:
            dtype, residual = outputs[0].dtype, (others[0], norms[1])
        else:
            dtype = torch.promote_types(outputs[0].dtype, identity.dtype)
            residual = Features.of(identity)
        out = Features.empty(shape, dtype, outputs[0].device)
        kernels().norm_add(outputs, norms[0], residual, out, planes, signs)
        ctx.norms, ctx.sizes = norms, sizes
        ctx.save_for_backward(signs, *flat)
        return out.tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The first pass also writes the gradient after ReLU, which is the identity's gradient."""
        refuse_second_derivatives()
        signs, *flat = ctx.saved_tensors
        inner = Features.of(gradients[0])
        of_parameters: list[Tensor] = []
        of_products: list[Tensor] = []
        for norm, outputs in zip(ctx.norms, groups(_in_rows(flat), ctx.sizes), strict=True):
            of_relu = signs.contiguous() if norm is ctx.norms[0] else None
            slopes, inner = kernels().norm_add_sums(inner, of_relu, outputs, norm)
            back = kernels().norm_backward(inner, outputs, norm, slopes)
            of_parameters += norm.gradients(slopes)
            of_products += Planes.of_products(outputs, inner.rotations).images(back)
        of_identity = inner.tensor if len(ctx.norms) == 1 else None
        return None, None, None, None, None, of_identity, *of_parameters, *of_products


def groups(flat: Iterable[Any], sizes: Sequence[int]) -> list[tuple[Any, ...]]:
    """Split a sequence: ``groups("abc", [2])`` is ``[("a", "b"), ("c",)]``."""
    rest = iter(flat)
    return [*(tuple(itertools.islice(rest, size)) for size in sizes), tuple(rest)]


def _of_layers(flat: Iterable[Any], layers: Sequence[Convolutions]) -> list[tuple[Any, ...]]:
    """One group for each layer."""
    return groups(flat, [layer.number for layer in layers[:-1]])


def _is_asked_for(tensor: Tensor) -> bool:
    """Whether this backward pass goes on from a tensor; autograd.grad may leave it out."""
    node = tensor.grad_fn
    return tensor.requires_grad and (node is None or torch._C._will_engine_execute_node(node))


def convolution_backward(
    gradient: Tensor, images: Tensor, filters: Tensor, options: Options, *, of_inputs: bool
) -> Tensor:
    """The gradient of a convolution's input (whose values are not read) or of its filters."""
    mask = of_inputs, not of_inputs, False
    arguments = gradient, images, filters, None, *options, False, (0, 0), 1, mask
    return torch.ops.aten.convolution_backward(*arguments)[0 if of_inputs else 1]


def _in_rows(tensors: Iterable[Tensor]) -> Products:
    return tuple(map(rows_of, tensors))


def refuse_second_derivatives() -> None:
    """Raise an error if a gradient is to be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the fused layers have no second derivatives (create_graph=True); take the ordinary "
            "ones with equicolor.nn.set_algorithm(network, 'dense')"
        )
