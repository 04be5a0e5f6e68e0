"""Rewrite a traced network node by node: what the dense and the cyclic form share."""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from equicolor.color import orbit
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.folding.batched import BATCHED, fold_layer
from equicolor.nn.folding.plain import batch_norm, conv2d, turns_back
from equicolor.nn.folding.trace import COSETS, LAYERS, POOLS, layer_input, trace_function
from equicolor.nn.functional import cyclic_filters
from equicolor.nn.norm import CEBatchNorm2d, CEDropout2d

# What is allowed between equivariant layers: operations that do not depend on the dimensions.
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


class Folder:
    """Replaces equivariant layers node by node; subclasses choose the layout of features."""

    cyclic: bool

    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced = traced
        self.graph = traced.graph
        self.rotations: dict[fx.Node, int] = {}  # for nodes whose result is features
        self.names: dict[tuple[str, str], str] = {}  # of added modules, by layer and suffix

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
        # Folded features have fewer dimensions, so nothing can be broadcast against them.
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
            return self.call(node, "norm", batch_norm(module, 1 if self.cyclic else n), x)
        if isinstance(module, CEDropout2d):
            return x
        if isinstance(module, COSETS):
            return self.coset(node, module, x, n)
        plain = next(plain for kind, plain in POOLS.items() if isinstance(module, kind))
        pool = plain.__new__(plain)
        pool.__dict__ = module.__dict__  # the same options in the class without rotations
        return self.call(node, "pool", pool, x)

    def call(self, node: fx.Node, suffix: str, module: nn.Module, x: fx.Node) -> fx.Node:
        """Add a module that replaces an equivariant one, and a call of it."""
        name = self._name(node, suffix)
        self.traced.add_submodule(name, module)
        return self.graph.call_module(name, (x,))

    def buffer(self, node: fx.Node, suffix: str, value: Tensor) -> fx.Node:
        """Add a buffer for a layer, and a node that reads it."""
        name = self._name(node, suffix)
        owner, _, leaf = name.rpartition(".")
        self.traced.get_submodule(owner).register_buffer(leaf, value)
        return self.graph.get_attr(name)

    def _name(self, node: fx.Node, suffix: str) -> str:
        """A name that is not taken; a layer that is called twice gets the same one."""
        key = str(node.target), suffix
        if key not in self.names:
            name = f"{key[0]}_{suffix}"
            owner, _, leaf = name.rpartition(".")
            while hasattr(self.traced.get_submodule(owner), leaf):
                name, leaf = f"{name}_", f"{leaf}_"
            self.names[key] = name
        return self.names[key]

    def method(self, x: fx.Node, name: str, *args: Any) -> fx.Node:
        """Add a call of a method of a tensor."""
        return self.graph.call_method(name, (x, *args))

    def function(self, function: Callable[..., Any], *args: Any) -> fx.Node:
        """Add a call of a function."""
        return self.graph.call_function(function, args)

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
            images = self.method(x, "unsqueeze", 0)
            hues = self.shifted(node, images, rotations, turns_back(rotations, like, 3), 0)
        else:
            table = self.buffer(node, "rotations", matrices.to(like))
            mixed = self.mix(table, x, 1, 1)  # [k, j, b, h, w]
            hues = self.method(mixed, "transpose", 1, 2)
        return self.method(hues, "flatten", 0, 1)

    def shifted(
        self, node: fx.Node, x: fx.Node, rotations: int, turns: Tensor, dim: int
    ) -> fx.Node:
        """Images in every hue along dimension ``dim``; see :func:`equicolor.color.orbit`."""

        def shift(images: Tensor, by: Tensor) -> Tensor:
            return orbit(images, by, rotations, dim)

        by = self.buffer(node, "turns", turns)
        shifted = self._inline(shift, turns.dtype, self.method(x, "type_as", by), by)
        return self.method(shifted, "type_as", x)

    def mix(self, table: fx.Node, x: fx.Node, dim: int, of: int) -> fx.Node:
        """``tensordot`` of a table and features over dimension ``dim`` of one, ``of`` of the other.

        It is computed in the dtype of the table, at least float32; only the result is rounded.
        Unlike einsum, autocast on GPUs does not lower its precision; on the CPU it lowers both.
        """
        widest = self.method(x, "type_as", table)
        mixed = self.function(torch.tensordot, table, widest, ([dim], [of]))
        return self.method(mixed, "type_as", x)

    def products(
        self,
        node: fx.Node,
        module: CEConv2d,
        mixed: fx.Node,
        plain: Callable[[Tensor, Tensor | None], nn.Module],
    ) -> list[fx.Node]:
        """The products of the cyclic algorithm; ``plain`` makes a layer of filters and bias."""
        products = []
        filters = cyclic_filters(module.weight, module.pointwise_weight, module.tables)
        for index, weight in enumerate(filters):
            part = self.function(operator.getitem, mixed, index)
            # The first product is the mean over the rotations, so it takes n times the bias.
            bias = None if module.bias is None or index else module.rotations * module.bias
            products.append(self.call(node, f"product{index}", plain(weight, bias), part))
        return products

    def plain(self, module: CEConv2d | CELiftConv2d) -> nn.Conv2d:
        """A convolution with the spatial part of the filters alone."""
        return conv2d(module, module.weight.movedim(2, 1), module.groups)

    def enter(self, x: fx.Node, rotations: int) -> fx.Node:
        """Bring features ``[n * B, C, H, W]`` into the layout of this form."""
        raise NotImplementedError

    def leave(self, x: fx.Node, module: CEConv2d) -> fx.Node:
        """Bring features of this form into the layout ``[n * B, C, H, W]``."""
        raise NotImplementedError

    def lift(self, node: fx.Node, module: CELiftConv2d, x: fx.Node) -> fx.Node:
        """Write a lifting convolution of images ``[B, 3, H, W]``."""
        raise NotImplementedError

    def conv(self, node: fx.Node, module: CEConv2d, x: fx.Node) -> fx.Node:
        """Write a hidden convolution."""
        raise NotImplementedError

    def coset(self, node: fx.Node, module: nn.Module, x: fx.Node, n: int) -> fx.Node:
        """Write pooling over the rotations, or flattening."""
        raise NotImplementedError


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
