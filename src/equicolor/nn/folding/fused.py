"""Find the stems and residual blocks of a network, and replace them by fused modules.

They are recognised by what they compute, not by their classes. A stem is a lifting convolution,
batch norm, ReLU and perhaps pooling. A block is a chain of convolutions and batch norms with ReLU
between, plus its input or one such layer of its input, and ReLU.
"""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn

from equicolor.nn._fused.blocks import Layer
from equicolor.nn._fused.conditions import can_fuse, is_known, is_stem_pool
from equicolor.nn._fused.frozen import FrozenBlock, FrozenStem
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.folding.batched import BATCHED
from equicolor.nn.folding.trace import LAYERS, is_impure, layer_input, uses
from equicolor.nn.norm import CEBatchNorm2d

if TYPE_CHECKING:
    from equicolor.nn.folding.rewriter import Rewriter

_CONVOLUTIONS = CEConv2d, CELiftConv2d, *BATCHED


class Stage(NamedTuple):
    """Nodes, from the first convolution to the result, that one module replaces."""

    kind: str  # "stem" or "block"
    nodes: Sequence[fx.Node]
    module: nn.Module


def find_stages(traced: fx.GraphModule) -> list[Stage]:
    """The stems and blocks of a network."""
    finder = _Finder(traced)
    relus = [node for node in traced.graph.nodes if finder.is_relu(node)]
    stages = (finder.stem(relu) or finder.block(relu) for relu in relus)
    return [stage for stage in stages if stage is not None]


def convolutions_outside(traced: fx.GraphModule, stages: Sequence[Stage]) -> list[str]:
    """Names of equivariant convolutions that are in no stage."""
    inside = {node for stage in stages for node in stage.nodes}
    return [
        str(node.target)
        for node in traced.graph.nodes
        if node.op == "call_module"
        and node not in inside
        and isinstance(traced.get_submodule(str(node.target)), _CONVOLUTIONS)
    ]


def all_can_fuse(traced: fx.GraphModule) -> bool:
    """Whether a network has equivariant layers, all of a device and dtype that can be fused."""
    layers = (module for module in traced.modules() if isinstance(module, LAYERS))
    weights = [tensor for layer in layers for tensor in layer.parameters()]
    return bool(weights) and all(map(can_fuse, weights))


def fuse(rewriter: "Rewriter", stages: Sequence[Stage]) -> None:
    """Replace stages by their modules."""
    if others := convolutions_outside(rewriter.traced, stages):
        raise ValueError(
            "form='fused' knows first layers (lifting, CEBatchNorm2d, ReLU) and residual blocks "
            "(each convolution without bias, groups, padding modes and algorithm='dense', and with "
            "a CEBatchNorm2d after it; no broadcasting, no other operations in place); "
            f"{others[0]!r} is in neither: use form='auto'"
        )
    for kind, nodes, module in stages:
        first, last = nodes[0], nodes[-1]
        with rewriter.graph.inserting_before(last):
            new = rewriter.call(first, kind, module, rewriter.tracer.proxy(layer_input(first)))
        last.replace_all_uses_with(new.node)
        for node in reversed(nodes):
            rewriter.graph.erase_node(node)


class _Finder:
    """Finds stages from their last ReLU, going backwards."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced, self.modules = traced, dict(traced.named_modules())
        self.order = list(traced.graph.nodes)

    def stem(self, relu: fx.Node) -> Stage | None:
        """The stem whose ReLU is this node."""
        layer = self._layer(layer_input(relu), CELiftConv2d)
        if layer is None:
            return None
        conv, norm = (self._module(node) for node in layer)
        users = list(relu.users)
        pool = len(users) == 1 and is_stem_pool(self._module(users[0]))
        nodes = [*layer, relu, *(users if pool else [])]
        if not self._is_stable(nodes):
            return None
        return Stage("stem", nodes, FrozenStem(conv, norm, pool=pool))

    def block(self, relu: fx.Node) -> Stage | None:
        """The residual block that ends with this node."""
        added = layer_input(relu)
        if not _is_sum(added) or len(added.users) > 1:
            return None
        for main, other in (added.args, added.args[::-1]):
            chain = self._chain(main)
            # An in-place sum must not overwrite the input, which other nodes may read.
            overwrites = added.target is operator.iadd and main is not added.args[0]
            if not chain or main is other or overwrites:
                continue
            shortcut = self._layer(other, CEConv2d) or []
            start = layer_input(chain[0])
            if (layer_input(shortcut[0]) if shortcut else other) is not start:
                continue
            nodes, layers = [*chain, *shortcut, added, relu], self._layers(chain)
            residual = self._layers(shortcut)
            if _have_same_shape(layers, residual) and self._is_stable(nodes):
                followed = any(type(self._module(user)) is CEConv2d for user in relu.users)
                block = FrozenBlock(layers, *residual, followed=followed)
                return Stage("block", nodes, block)
        return None

    def _layers(self, chain: Sequence[fx.Node]) -> list[Layer]:
        modules = [self._module(node) for node in chain if not self.is_relu(node)]
        return list(zip(modules[::2], modules[1::2], strict=True))

    def _chain(self, norm: Any) -> list[fx.Node]:
        """The chain of convolutions, norms and ReLU that ends with ``norm`` and has no branches."""
        layer = self._layer(norm, CEConv2d)
        if layer is None:
            return []
        before = layer_input(layer[0])
        earlier = []
        if self.is_relu(before) and len(before.users) == 1:
            earlier = self._chain(layer_input(before))
        return [*earlier, before, *layer] if earlier else layer

    def _layer(self, norm: Any, kind: type[nn.Module]) -> list[fx.Node] | None:
        """``norm`` and the convolution before it; None unless they are a layer to fuse."""
        if not isinstance(norm, fx.Node) or type(self._module(norm)) is not CEBatchNorm2d:
            return None
        conv = layer_input(norm)
        module = self._module(conv)
        if type(module) is not kind or (kind is CELiftConv2d and module.dilation != (1, 1)):
            return None
        # If they were also used elsewhere, they could not be replaced together.
        alone = all(len(node.users) == 1 == uses(node) for node in (conv, norm))
        return [conv, norm] if alone and is_known(module) and is_known(self._module(norm)) else None

    def _is_stable(self, nodes: Sequence[fx.Node]) -> bool:
        """Whether no other node between those of a stage works in place.

        Such a node could change the input of the stage, which the fused module reads at its end.
        """
        inside = [node in nodes for node in self.order]
        first, last = inside.index(True), len(inside) - 1 - inside[::-1].index(True)
        between = (node for node in self.order[first:last] if node not in nodes)
        return not any(is_impure(self.traced, node) for node in between)

    def is_relu(self, node: fx.Node) -> bool:
        """Whether a node is a ReLU."""
        if node.op == "call_function":
            return node.target in (F.relu, torch.relu)
        if node.op == "call_method":
            return node.target in ("relu", "relu_")
        module = self._module(node)
        return type(module) is nn.ReLU and is_known(module)

    def _module(self, node: fx.Node) -> Any:
        return self.modules.get(str(node.target)) if node.op == "call_module" else None


def _is_sum(node: fx.Node) -> bool:
    """Whether a node adds two others and does nothing else."""
    sums = node.op == "call_function" and node.target in (operator.add, operator.iadd, torch.add)
    operands = [argument for argument in node.args if isinstance(argument, fx.Node)]
    return sums and not node.kwargs and len(node.args) == len(operands) == 2


def _have_same_shape(layers: Sequence[Layer], others: Sequence[Layer]) -> bool:
    """Whether two chains give the same shape for any image size; no layers return their input.

    A sum that broadcasts is no residual.
    """
    inputs = layers[0][0].in_channels
    shape = _shape_after(layers, inputs)
    return shape is not None and shape == _shape_after(others, inputs)


def _shape_after(
    layers: Sequence[Layer], channels: int
) -> tuple[int, list[tuple[int, int]]] | None:
    """Channels after a chain and, for height and width, ``(a, b)``: sizes become (size + a) // b.

    None if the layers do not fit together.
    """
    sides = [(0, 1), (0, 1)]
    for conv, norm in layers:
        if conv.in_channels != channels or conv.out_channels != norm.num_features:
            return None
        channels = conv.out_channels
        assert isinstance(conv.padding, tuple)
        for dim, (offset, total) in enumerate(sides):
            stride, reach = conv.stride[dim], conv.dilation[dim] * (conv.kernel_size[dim] - 1)
            offset += total * (2 * conv.padding[dim] - reach - 1 + stride)
            sides[dim] = offset, total * stride
    return channels, sides
