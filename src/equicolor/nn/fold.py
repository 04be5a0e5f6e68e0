"""Fold an equivariant network for inference and export.

Batch norms go into the convolutions before them. What is left of the equivariant layers is
written in one of three forms, the first two with plain torch modules only:

* **dense**: features are ``[B, C * n, H, W]`` and every layer is one ordinary convolution
  with its filters expanded. The simplest graph; n² the multiplications of a plain layer.
* **cyclic**: features are ``[n * B, C, H, W]``, rotation-major, and every hidden layer is
  about 1.5 n ordinary convolutions between two small mixes of the rotations.
* **fused**, for GPUs: first layers and residual blocks are modules of
  :mod:`equicolor.nn.fused.frozen`, convolutions and kernels of our own that read filters and
  norms in the form they need, made once.

Networks made by :func:`equicolor.convert` keep their rotations in the batch; what becomes of
their layers is in :mod:`equicolor.nn.fold_batched`.

The network is traced with torch.fx, so it may be anything torch.fx can trace: the networks
of this package, or your own made of its layers.
"""

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from equicolor import _checks
from equicolor.color import shift_back
from equicolor.groups import HueGroup, cyclic_products
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.fold_batched import BATCHED, fold_layer, permutes_colors
from equicolor.nn.fold_fused import find_stages, fuse, is_where_fused, left_over
from equicolor.nn.fold_trace import (
    COSETS,
    LAYERS,
    POOLS,
    fold_batch_norms,
    is_impure,
    layer_input,
    trace,
    trace_function,
)
from equicolor.nn.functional import cyclic_filters, dense_filters
from equicolor.nn.norm import CEBatchNorm2d, CEDropout2d
from equicolor.nn.pooling import CosetFlatten, CosetMaxPool

__all__ = ["fold"]

PLAIN_FORMS = ("auto", "dense", "cyclic")  # on the CPU, "auto" is one of the others
FORMS = (*PLAIN_FORMS, "fused")
# What may happen to features between equivariant layers: it must not see the dimensions.
_ELEMENTWISE_MODULES = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid,
    nn.Hardsigmoid, nn.Hardswish, nn.Tanh, nn.Softplus, nn.Dropout, nn.Dropout2d, nn.Dropout3d,
)  # fmt: skip
_ELEMENTWISE_FUNCTIONS = (
    F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish, F.hardsigmoid, F.hardswish,
    torch.relu, torch.sigmoid, torch.tanh, torch.clamp, torch.add, torch.sub, torch.mul, torch.div,
    operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul,
    operator.truediv, operator.itruediv, operator.neg,
)  # fmt: skip
_ELEMENTWISE_METHODS = (
    "relu", "relu_", "sigmoid", "tanh", "clamp", "add", "add_", "sub", "mul", "mul_", "div",
)  # fmt: skip


# Weights made in inference mode would not tell when they are changed.
@torch.inference_mode(False)
def fold(model: nn.Module, form: str = "auto") -> fx.GraphModule:
    """An eval-mode copy of a network that computes the same, faster, and cannot be trained.

    Args:
        model: a network of equivariant and ordinary layers that torch.fx can trace.
        form: ``"dense"``, ``"cyclic"`` or ``"fused"`` as described above. ``"auto"`` writes
            networks on a GPU in the fused form if all their equivariant convolutions are in
            first layers and residual blocks that have it, and all others, those on the CPU
            among them, densely for up to three rotations and cyclically for more, where the
            dense form would cost more than three times the multiplications.

    Returns:
        A network in eval mode. In the dense and cyclic forms there are no equivariant layers
        and nothing of this package in it. In the fused form there are: it computes on a GPU
        what the others compute, and runs elsewhere, under ``torch.compile`` or with gradients,
        too, but only as fast as the network itself. It follows changes of its weights, except
        those through ``.data``, which leave no trace: load its own state after them.

    Example:
        >>> from equicolor.models import cecnn
        >>> model = cecnn(10, rotations=4).eval()
        >>> images = torch.rand(2, 3, 28, 28)
        >>> torch.allclose(fold(model)(images), model(images), atol=1e-5)
        True
    """
    _checks.one_of("form", form, FORMS)
    model = copy.deepcopy(model).eval().requires_grad_(False)
    traced = trace(model)
    may_fuse = form == "fused" or (form == "auto" and is_where_fused(traced))
    stages = find_stages(traced) if may_fuse else []
    if stages and not left_over(traced, stages):
        form = "fused"
    if form == "auto":
        orders = [m.rotations for m in model.modules() if isinstance(m, CEConv2d | CELiftConv2d)]
        n = max(orders, default=1)
        form = "cyclic" if n * n > 3 * cyclic_products(n) else "dense"
    if form == "fused":
        fuse(Folder(traced), stages)
        fold_batch_norms(traced)  # of what is plain
    else:
        fold_batch_norms(traced)
        (_DenseFolder if form == "dense" else _CyclicFolder)(traced).run()
    traced.graph.eliminate_dead_code(lambda node: is_impure(traced, node))
    traced.delete_all_unused_submodules()
    traced.graph.lint()
    traced.recompile()
    return traced.eval()


class Folder:
    """Replaces equivariant layers node by node; subclasses say how features are laid out."""

    cyclic: bool

    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced = traced
        self.graph = traced.graph
        self.rotations: dict[fx.Node, int] = {}  # of the nodes that carry features
        self.names: dict[tuple[str, str], str] = {}  # of what was added, by layer and purpose

    def run(self) -> None:
        """Rewrite the graph."""
        modules = dict(self.traced.named_modules())
        for node in list(self.graph.nodes):
            module = modules.get(str(node.target)) if node.op == "call_module" else None
            if module is not None and isinstance(module, BATCHED):
                with self.graph.inserting_before(node):
                    new = fold_layer(self, node, module, layer_input(node))
                node.replace_all_uses_with(new)
                self.graph.erase_node(node)
            elif module is not None and isinstance(module, LAYERS):
                self._replace(node, module)
            elif orders := {self.rotations[n] for n in node.all_input_nodes if n in self.rotations}:
                if node.op == "output":
                    raise ValueError(
                        "fold needs a network that ends its equivariant part (CosetMaxPool, "
                        "CosetAvgPool or CosetFlatten); this one returns features"
                    )
                self._check_elementwise(node, module)
                self.rotations[node] = max(orders)

    def _check_elementwise(self, node: fx.Node, module: nn.Module | None) -> None:
        what = type(module).__name__ if module is not None else getattr(
            node.target, "__name__", str(node.target)
        )  # fmt: skip
        if not (
            isinstance(module, _ELEMENTWISE_MODULES)
            or (node.op == "call_function" and node.target in _ELEMENTWISE_FUNCTIONS)
            or (node.op == "call_method" and node.target in _ELEMENTWISE_METHODS)
            or (node.target in (torch.cat, torch.concat) and _channel_cat(node))
        ):
            raise ValueError(
                f"fold cannot tell what {what} (node {node.name!r}) does to features "
                "[B, C, n, H, W]; between equivariant layers use elementwise operations, torch.cat "
                "over channels, and the layers of equicolor.nn"
            )
        # Features lose a dimension, so whatever would be broadcast against them does not fit.
        alike = {self.rotations.get(other, 0) for other in node.all_input_nodes} - {0}
        strangers = [n for n in node.all_input_nodes if n not in self.rotations]
        if len(alike) > 1 or not all(_is_number(self.traced, n) for n in strangers):
            raise ValueError(
                f"fold cannot combine features with anything but features of as many rotations "
                f"and numbers; {what} (node {node.name!r}) does"
            )

    def _replace(self, node: fx.Node, module: nn.Module) -> None:
        x = layer_input(node)
        with self.graph.inserting_before(node):
            if isinstance(module, CELiftConv2d):
                new, n = self.lift(node, module, x), module.rotations
            else:
                if x not in self.rotations:
                    raise ValueError(f"fold found {type(module).__name__} on images, not features")
                n = self.rotations[x]
                new = self._hidden(node, module, x, n)
        if not isinstance(module, COSETS):
            self.rotations[new] = n
        node.replace_all_uses_with(new)
        self.graph.erase_node(node)

    def _hidden(self, node: fx.Node, module: nn.Module, x: fx.Node, n: int) -> fx.Node:
        if isinstance(module, CEConv2d):
            return self.conv(node, module, x)
        if isinstance(module, CEBatchNorm2d):
            if module.running_mean is None:
                raise ValueError(
                    f"fold needs batch norms with running statistics; {node.target} has "
                    "track_running_stats=False"
                )
            return self.call(node, "norm", self.norm(module, n), x)
        if isinstance(module, CEDropout2d):
            return x
        if isinstance(module, COSETS):
            return self.coset(node, module, x, n)
        plain = next(plain for kind, plain in POOLS.items() if isinstance(module, kind))
        pool = plain.__new__(plain)
        pool.__dict__ = module.__dict__  # the same options in the class without rotations
        return self.call(node, "pool", pool, x)

    def call(self, node: fx.Node, suffix: str, module: nn.Module, x: fx.Node) -> fx.Node:
        """Add a module in place of an equivariant one, and a call of it."""
        name = self._name(node, suffix)
        self.traced.add_submodule(name, module)
        return self.graph.call_module(name, (x,))

    def buffer(self, node: fx.Node, suffix: str, value: Tensor) -> fx.Node:
        name = self._name(node, suffix)
        owner, _, leaf = name.rpartition(".")
        self.traced.get_submodule(owner).register_buffer(leaf, value)
        return self.graph.get_attr(name)

    def _name(self, node: fx.Node, suffix: str) -> str:
        """A name that nothing in the network has; layers called twice keep theirs."""
        key = str(node.target), suffix
        if key not in self.names:
            name = f"{key[0]}_{suffix}"
            owner, _, leaf = name.rpartition(".")
            while hasattr(self.traced.get_submodule(owner), leaf):
                name, leaf = f"{name}_", f"{leaf}_"
            self.names[key] = name
        return self.names[key]

    def method(self, x: fx.Node, name: str, *args: Any) -> fx.Node:
        return self.graph.call_method(name, (x, *args))

    def _inline(
        self, function: Callable[..., Tensor], dtype: torch.dtype, *args: fx.Node
    ) -> fx.Node:
        """Copy the graph of a function of tensors into this one."""
        graph = trace_function(function, dtype)
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        result = self.graph.graph_copy(graph, dict(zip(inputs, args, strict=True)))
        assert isinstance(result, fx.Node)
        return result

    def orbit(
        self, node: fx.Node, x: fx.Node, rotations: int, matrices: Tensor | None, *, like: Tensor
    ) -> fx.Node:
        """Images ``[B, 3, H, W]`` in every hue, ``[n * B, 3, H, W]``."""
        if matrices is None:
            orbit = self.shifted(node, x, _turns(rotations, like, 3))
        else:
            table = self.buffer(node, "rotations", matrices.to(like))
            mixed = self.mix(table, x, 1, 1)  # [k, j, b, h, w]
            orbit = self.method(mixed, "transpose", 1, 2)
        return self.method(orbit, "flatten", 0, 1)

    def shifted(self, node: fx.Node, x: fx.Node, turns: Tensor) -> fx.Node:
        """Images whose HSV hue is shifted back; see :func:`equicolor.color.shift_back`."""
        by = self.buffer(node, "turns", turns)
        shifted = self._inline(shift_back, turns.dtype, self.method(x, "type_as", by), by)
        return self.method(shifted, "type_as", x)

    def mix(self, table: fx.Node, x: fx.Node, dim: int, of: int) -> fx.Node:
        """A table times numbers, over one dimension of either; what is left comes in that order.

        In the dtype of the table, which is float32 at least; only the result is rounded. Not
        with einsum: autocast on GPUs lowers it, but takes tensordot as it is. Autocast on the
        CPU lowers every product of matrices.
        """
        widest = self.method(x, "type_as", table)
        mixed = self.graph.call_function(torch.tensordot, (table, widest, ([dim], [of])))
        return self.method(mixed, "type_as", x)

    def plain(self, module: CEConv2d | CELiftConv2d) -> nn.Conv2d:
        """The convolution of one rotation by the spatial part of the filters."""
        return _conv2d(module, module.weight.movedim(2, 1), module.groups)

    def enter(self, x: fx.Node, rotations: int) -> fx.Node:
        """Features ``[n * B, C, H, W]`` in this layout."""
        raise NotImplementedError

    def leave(self, x: fx.Node, module: CEConv2d) -> fx.Node:
        """Features of this layout as ``[n * B, C, H, W]``."""
        raise NotImplementedError

    def lift(self, node: fx.Node, module: CELiftConv2d, x: fx.Node) -> fx.Node:
        raise NotImplementedError

    def conv(self, node: fx.Node, module: CEConv2d, x: fx.Node) -> fx.Node:
        raise NotImplementedError

    def norm(self, module: CEBatchNorm2d, n: int) -> nn.BatchNorm2d:
        raise NotImplementedError

    def coset(self, node: fx.Node, module: nn.Module, x: fx.Node, n: int) -> fx.Node:
        raise NotImplementedError


class _DenseFolder(Folder):
    """Features are ``[B, C * n, H, W]``, channel-major, so that flattening is free."""

    cyclic = False

    def enter(self, x: fx.Node, rotations: int) -> fx.Node:
        parts = self.method(x, "unflatten", 0, (rotations, -1))
        return self.method(self.method(parts, "permute", 1, 2, 0, 3, 4), "flatten", 1, 2)

    def leave(self, x: fx.Node, module: CEConv2d) -> fx.Node:
        parts = self.method(x, "unflatten", 1, (module.out_channels, module.rotations))
        return self.method(self.method(parts, "permute", 2, 0, 1, 3, 4), "flatten", 0, 1)

    def lift(self, node: fx.Node, module: CELiftConv2d, x: fx.Node) -> fx.Node:
        n, matrices = module.rotations, _matrices(module)
        if matrices is not None:
            weight = _in_every_hue(module, matrices).transpose(0, 1)
            return self.call(node, "conv", _conv2d(module, weight, 1), x)
        # Hues beside the channels, each seen by the filters of its rotation alone.
        hues = self.method(x, "unsqueeze", 1)
        orbit = self.shifted(node, hues, _turns(n, module.weight, 2))  # [B, n, 3, H, W]
        own = torch.eye(n, device=module.weight.device, dtype=module.weight.dtype)
        weight = torch.einsum("kl,ochw->oklchw", own, module.weight[:, :, 0]).flatten(2, 3)
        lifted = self.method(orbit, "flatten", 1, 2)
        return self.call(node, "conv", _conv2d(module, weight, 1), lifted)

    def conv(self, node: fx.Node, module: CEConv2d, x: fx.Node) -> fx.Node:
        bank = dense_filters(module.weight, module.pointwise_weight, module.rotations)
        weight = bank.movedim(0, 1).flatten(2, 3)  # [O, k, C/g * r, kh, kw]
        return self.call(node, "conv", _conv2d(module, weight, module.groups), x)

    def norm(self, module: CEBatchNorm2d, n: int) -> nn.BatchNorm2d:
        return _batch_norm(module, n)

    def coset(self, node: fx.Node, module: nn.Module, x: fx.Node, n: int) -> fx.Node:
        if isinstance(module, CosetFlatten):
            return self.method(x, "clone")  # as eager mode copies: x may be changed in place
        features = self.method(x, "unflatten", 1, (-1, n))
        return self.method(features, "amax" if isinstance(module, CosetMaxPool) else "mean", 2)


class _CyclicFolder(Folder):
    """Features are ``[n * B, C, H, W]``, rotation-major, in channels_last memory."""

    cyclic = True

    def enter(self, x: fx.Node, rotations: int) -> fx.Node:
        return x

    def leave(self, x: fx.Node, module: CEConv2d) -> fx.Node:
        return x

    def lift(self, node: fx.Node, module: CELiftConv2d, x: fx.Node) -> fx.Node:
        n, matrices = module.rotations, _matrices(module)
        pixels = self.method(x, "permute", 0, 2, 3, 1)
        if matrices is None:
            colors = self.method(self.method(pixels, "unsqueeze", -1), "unsqueeze", -1)
            orbit = self.shifted(node, colors, _turns(n, module.weight, 5))
            orbit = self.method(self.method(orbit, "flatten", -3), "flatten", 0, 1)
            images = self.method(orbit, "permute", 0, 3, 1, 2)
            return self.call(node, "conv", self.plain(module), images)
        weight = _in_every_hue(module, matrices)
        bias = None if module.bias is None else module.bias.repeat(n)
        lifted = self.call(node, "conv", _conv2d(module, weight, 1, bias), x)
        pixels = self.method(lifted, "permute", 0, 2, 3, 1)
        features = self.method(pixels, "unflatten", 3, (n, module.out_channels))
        features = self.method(features, "permute", 3, 0, 1, 2, 4)
        return self.method(self.method(features, "flatten", 0, 1), "permute", 0, 3, 1, 2)

    def conv(self, node: fx.Node, module: CEConv2d, x: fx.Node) -> fx.Node:
        n = module.rotations
        tables = module.tables
        analysis = self.buffer(node, "analysis", tables.analysis)
        synthesis = self.buffer(node, "synthesis", tables.synthesis)
        filters = cyclic_filters(module.weight, module.pointwise_weight, tables)
        pixels = self.method(self.method(x, "permute", 0, 2, 3, 1), "unflatten", 0, (n, -1))
        mixed = self.mix(analysis, pixels, 1, 0)  # [r, b, h, w, c]
        images = self.method(mixed, "permute", 0, 1, 4, 2, 3)
        products = []
        for index, weight in enumerate(filters):
            part = self.graph.call_function(operator.getitem, (images, index))
            # The first product is the mean over the rotations: n times the bias comes out as it.
            bias = None if module.bias is None or index else n * module.bias
            plain = _conv2d(module, weight.unsqueeze(1), module.groups, bias)
            products.append(self.call(node, f"product{index}", plain, part))
        joined = self.method(
            self.graph.call_function(torch.cat, (products,)), "permute", 0, 2, 3, 1
        )
        pixels = self.method(joined, "unflatten", 0, (tables.products, -1))
        out = self.mix(synthesis, pixels, 0, 0)  # [n, b, h, w, c]
        return self.method(self.method(out, "flatten", 0, 1), "permute", 0, 3, 1, 2)

    def norm(self, module: CEBatchNorm2d, n: int) -> nn.BatchNorm2d:
        return _batch_norm(module, 1)

    def coset(self, node: fx.Node, module: nn.Module, x: fx.Node, n: int) -> fx.Node:
        features = self.method(x, "unflatten", 0, (n, -1))
        if isinstance(module, CosetFlatten):
            return self.method(self.method(features, "permute", 1, 2, 0, 3, 4), "flatten", 1, 2)
        return self.method(features, "amax" if isinstance(module, CosetMaxPool) else "mean", 0)


def _matrices(module: CELiftConv2d) -> Tensor | None:
    """The group as matrices ``[n, 3, 3]`` acting on filters, where the lifting is linear."""
    matrices = module._transformations()
    if matrices is None and permutes_colors(module.rotations):
        return HueGroup(module.rotations).matrices.to(module.weight)
    return matrices


def _in_every_hue(module: CELiftConv2d, matrices: Tensor) -> Tensor:
    """The filters of a lifting layer under matrices ``[n, 3, 3]``: ``[n, O, 3, kh, kw]``."""
    filters = module.weight.squeeze(2)
    return torch.einsum("kij,ojhw->koihw", matrices, filters.to(matrices)).to(filters)


def _turns(rotations: int, like: Tensor, dimensions: int) -> Tensor:
    """By how much hues are shifted, ``[n]`` and dimensions of size one; float32 at least."""
    steps = torch.arange(rotations, dtype=torch.float64, device="cpu") / rotations
    dtype = torch.promote_types(like.dtype, torch.float32)
    return steps.to(like.device, dtype).view(-1, *[1] * dimensions)


_SAME_BIAS = object()


def _conv2d(
    module: CEConv2d | CELiftConv2d, weight: Tensor, groups: int, bias: object = _SAME_BIAS
) -> nn.Conv2d:
    """A convolution with filters ``[O, m, I, kh, kw]``: m outputs for each channel O."""
    copies = weight.shape[1]
    weight = weight.flatten(0, 1)
    if bias is _SAME_BIAS:
        bias = None if module.bias is None else module.bias.repeat_interleave(copies)
    conv = nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        groups,
        bias is not None,
        module.padding_mode,
        device="meta",  # drawing weights that are replaced at once would take most of the time
    )
    conv.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if isinstance(bias, Tensor):
        conv.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return conv


def _batch_norm(module: CEBatchNorm2d, copies: int) -> nn.BatchNorm2d:
    """A batch norm that was not folded, with every channel repeated."""
    norm = nn.BatchNorm2d(
        module.num_features * copies,
        module.eps,
        module.momentum,
        module.affine,
        module.track_running_stats,
    )
    state = module.state_dict()
    norm.load_state_dict(
        {k: v.repeat_interleave(copies) if v.ndim else v for k, v in state.items()}
    )
    return norm.to(next(iter(state.values())))


def _is_number(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node is a parameter or buffer of one element without dimensions."""
    if node.op != "get_attr":
        return False
    value = operator.attrgetter(str(node.target))(traced)
    return isinstance(value, Tensor) and value.ndim == 0


def _channel_cat(node: fx.Node) -> bool:
    """Whether a torch.cat joins channels, which either layout allows."""
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return isinstance(dim, int) and dim == 1
