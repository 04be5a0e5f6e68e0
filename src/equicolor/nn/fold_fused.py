"""Find the stems and residual blocks of a network, and replace them by fused ones.

They are found by what they compute, whatever classes they were written as: a lifting
convolution, batch norm, ReLU and perhaps pooling; convolutions and batch norms with ReLU between,
added to what went in or to one such layer of it, and ReLU.
"""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx, nn

from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.fold_batched import BATCHED
from equicolor.nn.fold_trace import is_impure, layer_input, uses
from equicolor.nn.fused.conditions import can_fuse, halves, is_known
from equicolor.nn.fused.frozen import FrozenBlock, FrozenStem
from equicolor.nn.norm import CEBatchNorm2d

if TYPE_CHECKING:
    from equicolor.nn.fold import Folder

_CONVOLUTIONS = CEConv2d, CELiftConv2d, *BATCHED


class Stage(NamedTuple):
    """Nodes of a graph, from the first convolution to the result, that one module replaces."""

    kind: str  # "stem" or "block"
    nodes: Sequence[fx.Node]
    module: nn.Module


def find_stages(traced: fx.GraphModule) -> list[Stage]:
    """The stems and blocks of a network."""
    finder = _Finder(traced)
    found = (finder.stem(node) or finder.block(node) for node in traced.graph.nodes)
    return [stage for stage in found if stage is not None]


def left_over(traced: fx.GraphModule, stages: Sequence[Stage]) -> list[str]:
    """Names of the equivariant convolutions that are in no stage."""
    covered = {node for stage in stages for node in stage.nodes}
    return [
        str(node.target)
        for node in traced.graph.nodes
        if node.op == "call_module"
        and node not in covered
        and isinstance(traced.get_submodule(str(node.target)), _CONVOLUTIONS)
    ]


def prefers_fused(traced: fx.GraphModule, stages: Sequence[Stage]) -> bool:
    """Whether a network is where the fused path is taken, and consists of stages."""
    weights = [tensor for stage in stages for tensor in stage.module.parameters()]
    return bool(stages) and all(map(can_fuse, weights)) and not left_over(traced, stages)


def fuse(folder: "Folder", stages: Sequence[Stage]) -> None:
    """Replace stages by their modules."""
    if missing := left_over(folder.traced, stages):
        raise ValueError(
            "form='fused' knows first layers (lifting, CEBatchNorm2d, ReLU) and residual blocks "
            "of convolutions without bias, groups, padding modes and algorithm='dense', each with "
            f"a CEBatchNorm2d; {missing[0]!r} is in neither: use form='auto'"
        )
    for kind, nodes, module in stages:
        first, last = nodes[0], nodes[-1]
        with folder.graph.inserting_before(last):
            new = folder.call(first, kind, module, layer_input(first))
        last.replace_all_uses_with(new)
        for node in reversed(nodes):
            folder.graph.erase_node(node)


class _Finder:
    """Looks backwards from where a stage ends."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced, self.modules = traced, dict(traced.named_modules())

    def stem(self, relu: fx.Node) -> Stage | None:
        """The stem whose ReLU a node is."""
        layer = self._layer(layer_input(relu), CELiftConv2d) if self._is_relu(relu) else None
        if layer is None or not self._is_stable(layer[0], layer):
            return None
        conv, norm = (self._module(node) for node in layer)
        users = list(relu.users)
        pool = len(users) == 1 and halves(self._module(users[0]))
        nodes = [*layer, relu, *(users if pool else [])]
        return Stage("stem", nodes, FrozenStem(conv, norm, pool=pool))

    def block(self, relu: fx.Node) -> Stage | None:
        """The residual block that ends in a node."""
        added = layer_input(relu) if self._is_relu(relu) else None
        if added is None or not _is_sum(added) or len(added.users) > 1:
            return None
        for main, other in (added.args, added.args[::-1]):
            chain = self._chain(main)
            # What is added to in place must be what no one else sees.
            if not chain or (added.target is operator.iadd and main is not added.args[0]):
                continue
            shortcut = self._layer(other, CEConv2d) or []
            start = layer_input(chain[0])
            if (layer_input(shortcut[0]) if shortcut else other) is not start:
                continue
            nodes = [*chain, *shortcut, added, relu]
            if self._is_stable(chain[0], nodes):
                return Stage("block", nodes, self._frozen(chain, shortcut))
        return None

    def _frozen(self, chain: Sequence[fx.Node], shortcut: Sequence[fx.Node]) -> FrozenBlock:
        modules = [self._module(node) for node in chain if not self._is_relu(node)]
        layers = list(zip(modules[::2], modules[1::2], strict=True))
        conv_and_norm: Any = tuple(map(self._module, shortcut))
        return FrozenBlock(layers, conv_and_norm or None)

    def _chain(self, norm: Any) -> list[fx.Node]:
        """Convolution and norm, and all such layers and ReLU before that are for these alone."""
        layer = self._layer(norm, CEConv2d)
        if layer is None:
            return []
        before = layer_input(layer[0])
        earlier = []
        if self._is_relu(before) and len(before.users) == 1:
            earlier = self._chain(layer_input(before))
        return [*earlier, before, *layer] if earlier else layer

    def _layer(self, norm: Any, kind: type[nn.Module]) -> list[fx.Node] | None:
        """A norm, which may be anything, and the convolution before it."""
        if not isinstance(norm, fx.Node) or type(self._module(norm)) is not CEBatchNorm2d:
            return None
        conv = layer_input(norm)
        module = self._module(conv)
        if type(module) is not kind or (kind is CELiftConv2d and module.dilation != (1, 1)):
            return None
        # Used elsewhere too, they could not be replaced together.
        alone = all(len(node.users) == 1 == uses(node) for node in (conv, norm))
        return [conv, norm] if alone and is_known(module) and is_known(self._module(norm)) else None

    def _is_stable(self, first: fx.Node, nodes: Sequence[fx.Node]) -> bool:
        """Whether nothing else changes what goes into a stage, which it reads later than before."""
        others = (node for node in layer_input(first).users if node not in nodes)
        return not any(is_impure(self.traced, node) for node in others)

    def _is_relu(self, node: fx.Node) -> bool:
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
