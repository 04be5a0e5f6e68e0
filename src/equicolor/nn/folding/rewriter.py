"""Rewrite a traced network node by node: what the dense and the cyclic form share.

New nodes are written as ordinary torch code on proxies of torch.fx, which record what is called.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.proxy import GraphAppendingTracer

from equicolor.color import orbit
from equicolor.groups import SpatialGroup
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.folding.batched import BATCHED, fold_layer
from equicolor.nn.folding.plain import batch_norm, conv2d
from equicolor.nn.folding.trace import COSETS, LAYERS, POOLS, layer_input
from equicolor.nn.functional import cyclic_filters
from equicolor.nn.norm import CEBatchNorm2d, CEDropout2d
from equicolor.nn.pooling import CosetMaxPool

# What is allowed between equivariant layers: operations that do not depend on the dimensions.
_ELEMENTWISE_MODULES = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid,
    nn.Hardsigmoid, nn.Hardswish, nn.Tanh, nn.Softplus, nn.Dropout, nn.Dropout2d, nn.Dropout3d,
)  # fmt: skip
_ELEMENTWISE_FUNCTIONS = (
    F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish, F.hardsigmoid, F.hardswish,
    F.softplus, F.dropout, F.dropout2d, F.dropout3d,
    torch.relu, torch.sigmoid, torch.tanh, torch.clamp, torch.add, torch.sub, torch.mul, torch.div,
    operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul,
    operator.truediv, operator.itruediv, operator.neg,
)  # fmt: skip
_ELEMENTWISE_METHODS = (
    "relu", "relu_", "sigmoid", "tanh", "clamp", "add", "add_", "sub", "mul", "mul_", "div",
)  # fmt: skip


class _TracerOfDtype(GraphAppendingTracer):
    """Records functions that read the dtype of tensors."""

    def __init__(self, graph: fx.Graph, dtype: torch.dtype) -> None:
        super().__init__(graph)
        self.dtype = dtype

    def proxy(self, node: fx.Node) -> fx.Proxy:
        proxy = super().proxy(node)
        proxy.dtype = self.dtype  # type: ignore[attr-defined]
        return proxy


class Rewriter:
    """Replaces equivariant layers node by node; subclasses choose the layout of features.

    Methods take and return proxies. ``node`` is the layer that is replaced.
    """

    cyclic: bool
    # From features ``[n * B, C, H, W]`` to the layout of the form, and back.
    enter: Callable[[Any, int], Any]
    leave: Callable[[Any, CEConv2d], Any]
    # Write a lifting convolution, a hidden one, and pooling or flattening of the rotations.
    lift: Callable[[fx.Node, CELiftConv2d, Any], Any]
    conv: Callable[[fx.Node, CEConv2d, Any], Any]
    coset: Callable[[nn.Module, Any, int], Any]

    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced = traced
        self.graph = traced.graph
        self.tracer = GraphAppendingTracer(traced.graph)
        # Of nodes whose result is features.
        self.rotations: dict[fx.Node, int] = {}
        self.channels: dict[fx.Node, int] = {}
        self.names: dict[tuple[str, str], str] = {}  # of added modules, by layer and suffix

    def run(self) -> None:
        """Replace every layer in the graph; raises ValueError where features are the output."""
        modules = dict(self.traced.named_modules())
        for node in list(self.graph.nodes):
            module = modules.get(str(node.target)) if node.op == "call_module" else None
            orders = {self.rotations[x] for x in node.all_input_nodes if x in self.rotations}
            if isinstance(module, LAYERS):
                with self.graph.inserting_before(node):
                    new = self._fold(node, module, layer_input(node))
                node.replace_all_uses_with(new.node)
                self.graph.erase_node(node)
            elif orders and node.op == "output":
                raise ValueError(
                    "fold needs a network that ends its equivariant part (CosetMaxPool, "
                    "CosetAvgPool or CosetFlatten); this one returns features"
                )
            elif orders:
                self._check_elementwise(node, module)
                self.rotations[node], self.channels[node] = orders.pop(), self._channels_after(node)

    def _check_elementwise(self, node: fx.Node, module: nn.Module | None) -> None:
        name = getattr(node.target if module is None else type(module), "__name__", node.target)
        if not (
            isinstance(module, _ELEMENTWISE_MODULES)
            or (node.op == "call_function" and node.target in _ELEMENTWISE_FUNCTIONS)
            or (node.op == "call_method" and node.target in _ELEMENTWISE_METHODS)
            or (node.target in (torch.cat, torch.concat) and _channel_cat(node))
        ):
            raise ValueError(
                f"fold cannot tell what {name} (node {node.name!r}) does to features "
                "[B, C, n, H, W]; between equivariant layers use elementwise operations, torch.cat "
                "over channels, and the layers of equicolor.nn"
            )
        # Folded features have fewer dimensions, so tensors no longer broadcast against them.
        others = [x for x in node.all_input_nodes if not _is_number(self.traced, x)]
        if len({self.rotations.get(x) for x in others}) > 1:
            raise ValueError(
                f"fold can combine features only with numbers and with features of as many "
                f"rotations, which {name} (node {node.name!r}) does not"
            )

    def _channels_after(self, node: fx.Node) -> int:
        """Channels after an operation; in the dense form, those that it broadcasts are repeated."""
        if node.target in (torch.cat, torch.concat):
            tensors: Any = node.args[0] if node.args else node.kwargs["tensors"]
            return sum(self.channels[x] for x in tensors)
        inputs = [x for x in node.all_input_nodes if x in self.channels]
        channels = max(self.channels[x] for x in inputs)
        for x in inputs:
            if self.channels[x] < channels and not self.cyclic:
                with self.graph.inserting_before(node):
                    repeated: Any = self.tracer.proxy(x).repeat(1, channels, 1, 1)
                node.replace_input_with(x, repeated.node)
        return channels

    def _fold(self, node: fx.Node, module: nn.Module, x: fx.Node) -> Any:
        """Add nodes that compute what a layer computes."""
        proxy = self.tracer.proxy(x)
        if isinstance(module, BATCHED):
            return fold_layer(self, node, module, proxy)
        if isinstance(module, CELiftConv2d):
            new, n = self.lift(node, module, proxy), module.rotations
        elif x in self.rotations:
            n = self.rotations[x]
            new = self._hidden(node, module, proxy, n)
        else:
            raise ValueError(f"fold found {type(module).__name__} on images, not features")
        if not isinstance(module, COSETS):
            self.rotations[new.node] = n
            self.channels[new.node] = getattr(module, "out_channels", self.channels.get(x, 0))
        return new

    def _hidden(self, node: fx.Node, module: nn.Module, x: Any, n: int) -> Any:
        if isinstance(module, CEConv2d):
            return self.conv(node, module, x)
        if isinstance(module, CEBatchNorm2d):
            if module.running_mean is None:
                raise ValueError(
                    f"fold needs batch norms with running statistics; {node.target} has "
                    "track_running_stats=False"
                )
            return self.call(node, "norm", batch_norm(module, 1 if self.cyclic else n), x)
        if isinstance(module, CEDropout2d):
            return x
        if isinstance(module, COSETS):
            return _over_elements(module, self.coset(module, x, n))
        plain = next(plain for kind, plain in POOLS.items() if isinstance(module, kind))
        pool = plain.__new__(plain)
        pool.__dict__ = module.__dict__  # the same options in the class without rotations
        return self.call(node, "pool", pool, x)

    def call(self, node: fx.Node, suffix: str, module: nn.Module, x: Any) -> Any:
        """Add a module that replaces an equivariant one, and a call of it."""
        name = self._name(node, suffix)
        self.traced.add_submodule(name, module)
        return self.tracer.create_proxy("call_module", name, (x,), {})

    def buffer(self, node: fx.Node, suffix: str, value: Tensor) -> Any:
        """Add a buffer for a layer, and a node that reads it."""
        name = self._name(node, suffix)
        owner, _, leaf = name.rpartition(".")
        self.traced.get_submodule(owner).register_buffer(leaf, value)
        return self.tracer.create_proxy("get_attr", name, (), {})

    def _name(self, node: fx.Node, suffix: str) -> str:
        """A name that is not taken; a layer that is called twice gets the same name."""
        key = str(node.target), suffix
        if key not in self.names:
            name = f"{key[0]}_{suffix}"
            owner, _, leaf = name.rpartition(".")
            while hasattr(self.traced.get_submodule(owner), leaf):
                name, leaf = f"{name}_", f"{leaf}_"
            self.names[key] = name
        return self.names[key]

    def shifted(self, node: fx.Node, x: Any, rotations: int, turns: Tensor, dim: int) -> Any:
        """Images in every hue along dimension ``dim``; see :func:`equicolor.color.orbit`."""
        shifts = self.buffer(node, "turns", turns)
        tracer = _TracerOfDtype(self.graph, turns.dtype)
        exact: Any = tracer.proxy(x.type_as(shifts).node)
        hues: Any = orbit(exact, tracer.proxy(shifts.node), rotations, dim)  # type: ignore[arg-type]
        return self.tracer.proxy(hues.node).type_as(x)

    def products(
        self,
        node: fx.Node,
        module: CEConv2d,
        mixed: Any,
        plain: Callable[[Tensor, Tensor | None], nn.Module],
    ) -> list[Any]:
        """The products of the cyclic algorithm; ``plain`` makes a layer of filters and bias."""
        products = []
        filters = cyclic_filters(module.weight, module.pointwise_weight, module.tables)
        for index, weight in enumerate(filters):
            # The first product is the mean over the rotations, so it takes n times the bias.
            bias = None if module.bias is None or index else module.rotations * module.bias
            layer = plain(weight, bias)
            products.append(self.call(node, f"product{index}", layer, mixed[index]))
        return products

    def plain(self, node: fx.Node, module: CEConv2d | CELiftConv2d, x: Any) -> Any:
        """Write a convolution with the spatial part of the filters alone."""
        conv = conv2d(module, module.weight.squeeze(2), module.bias, module.groups)
        return self.call(node, "conv", conv, x)


def _over_elements(module: nn.Module, pooled: Any) -> Any:
    """Pool over the elements of a spatial group, after the rotations."""
    order = SpatialGroup(getattr(module, "spatial", "p1")).order
    if order == 1:
        return pooled
    elements = pooled.unflatten(1, (-1, order))
    return elements.amax(2) if isinstance(module, CosetMaxPool) else elements.mean(2)


def _is_number(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node is a parameter or buffer without dimensions."""
    if node.op != "get_attr":
        return False
    value = operator.attrgetter(str(node.target))(traced)
    return isinstance(value, Tensor) and value.ndim == 0


def _channel_cat(node: fx.Node) -> bool:
    """Whether a torch.cat joins channels, which both forms allow."""
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return isinstance(dim, int) and dim == 1
