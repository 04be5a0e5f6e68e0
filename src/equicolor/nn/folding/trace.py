"""Trace a network for :mod:`equicolor.nn.folding`, with equivariant layers as single nodes."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules import module as module_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_weights

from equicolor._observed import assigned_methods, has_hooks
from equicolor.nn import pooling
from equicolor.nn.batched import BatchedCELinear
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.folding.batched import BATCHED, PadToStride
from equicolor.nn.norm import CEBatchNorm2d, CEDropout2d

_CONVOLUTIONS = (nn.Conv2d, CEConv2d, CELiftConv2d)
POOLS: dict[type[nn.Module], type[nn.Module]] = {
    pooling.CEMaxPool2d: nn.MaxPool2d,
    pooling.CEAvgPool2d: nn.AvgPool2d,
    pooling.CEAdaptiveAvgPool2d: nn.AdaptiveAvgPool2d,
}
COSETS = (pooling.CosetMaxPool, pooling.CosetAvgPool, pooling.CosetFlatten)
LAYERS: tuple[type[nn.Module], ...] = (
    *BATCHED,  # before the layers they are made from
    CELiftConv2d,
    CEConv2d,
    CEBatchNorm2d,
    CEDropout2d,
    *POOLS,
    *COSETS,
)
# timm's convolution with TensorFlow's padding looks at shapes, so it cannot be traced.
_LEAVES = ("Conv2dSame",)
_VIEWS = {"view": "reshape", "view_as": "reshape_as"}
_IN_PLACE_OPERATORS = (operator.iadd, operator.isub, operator.imul, operator.itruediv)


def trace(model: nn.Module) -> fx.GraphModule:
    """The graph of a network in eval mode; changes the network."""
    for name, module in model.named_modules():
        if module.training:
            raise ValueError(
                f"fold needs eval mode, but {_label(name, module)} stays in train mode after "
                f"{type(model).__name__}.eval()"
            )
    _split_modules(model)
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # the network's code may fail in any way on torch.fx's proxies
        raise ValueError(f"fold cannot trace {type(model).__name__}: {error}") from error
    return fx.GraphModule(model, graph, type(model).__name__)


def refuse_custom_modules(model: nn.Module) -> None:
    """Refuse a network that computes something its graph does not show.

    Layers are replaced by what their class computes, so an instance must not change it. Hooks
    would be lost, or run on another module. Call this before the network is copied: weights that a
    hook computes cannot be copied.
    """
    if module_hooks._has_any_global_hook():
        raise ValueError(
            "fold found hooks for all modules (torch.nn.modules.module.register_module_...), which "
            "would see other modules than before; remove them first"
        )
    overrides_call = type(model).__call__ is not nn.Module.__call__
    if overrides_call and not isinstance(model, fx.GraphModule):
        raise ValueError(f"fold would drop {type(model).__name__}.__call__; fold what it calls")
    tracer = _Tracer()
    for name, module in model.named_modules():
        if has_hooks(module):
            kinds = [type(hook).__module__ for hook in module._forward_pre_hooks.values()]
            tip = ""
            if any(kind.startswith("torch.nn.utils.") for kind in kinds):
                tip = " (torch.nn.utils has prune.remove, remove_weight_norm, remove_spectral_norm)"
            raise ValueError(
                f"fold would drop the hooks of {_label(name, module)}; remove them first{tip}"
            )
        # Other modules are traced, which runs the methods assigned to them.
        is_replaced = not name or isinstance(module, _BatchNorm)
        assigned = assigned_methods(module)
        if assigned and (is_replaced or tracer.is_leaf_module(module, name)):
            raise ValueError(
                f"fold would drop the {assigned[0]} that was assigned to {_label(name, module)}; "
                f"write a class with that {assigned[0]}"
            )
        layer = next((kind for kind in LAYERS if isinstance(module, kind)), None)
        if layer is not None and type(module).forward is not layer.forward:
            raise ValueError(
                f"fold knows {layer.__name__}, but {name!r} is a {type(module).__name__} with a "
                "forward of its own"
            )


def _label(name: str, module: nn.Module) -> str:
    return f"{name!r} ({type(module).__name__})" if name else f"the {type(module).__name__} itself"


def bake_parametrizations(model: nn.Module) -> None:
    """Replace parametrized weights, such as weight norm's, by their values.

    Torch's remove_parametrizations would also change the original network, whose class the copy
    shares.
    """
    for module in list(model.modules()):
        if not parametrize.is_parametrized(module):
            continue
        assert isinstance(module.parametrizations, nn.ModuleDict)
        values = {name: getattr(module, name).detach() for name in module.parametrizations}
        module.__class__ = parametrize.type_before_parametrizations(module)
        del module._modules["parametrizations"]
        for name, value in values.items():
            module.register_parameter(name, nn.Parameter(value.clone(), requires_grad=False))


def _split_modules(model: nn.Module) -> None:
    """Replace modules of timm by their layers: norms with an activation, and VGG's last part.

    VGG's part reads the size of features to enlarge small ones, which cannot be traced. A folded
    network needs images that are large enough.
    """
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            kind, parts = type(module).__name__, module._modules
            split: list[nn.Module | None] = []
            if kind == "BatchNormAct2d" and isinstance(module, nn.BatchNorm2d):
                plain = nn.BatchNorm2d.__new__(nn.BatchNorm2d)
                plain.__dict__ = {**module.__dict__, "_modules": {}}
                split = [plain, parts["drop"], parts["act"]]
            elif kind == "ConvMlp" and hasattr(module, "input_kernel_size"):
                split = [parts[key] for key in ("fc1", "act1", "drop", "fc2", "act2")]
            if split:
                layers = [part for part in split if part is not None]
                parent.add_module(name, nn.Sequential(*layers))


def _recorded(operation: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def change(proxy: fx.Proxy, other: Any) -> fx.Proxy:
        return proxy.tracer.create_proxy("call_function", operation, (proxy, other), {})

    return change


class _Proxy(fx.Proxy):
    """Records ``x += y`` as an in-place change; torch.fx would record ``x = x + y``."""

    __iadd__ = _recorded(operator.iadd)
    __isub__ = _recorded(operator.isub)
    __imul__ = _recorded(operator.imul)
    __itruediv__ = _recorded(operator.itruediv)


class _Tracer(fx.Tracer):
    """Keeps equivariant layers whole."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            isinstance(m, (*LAYERS, PadToStride))
            or type(m).__name__ in _LEAVES
            or super().is_leaf_module(m, module_qualified_name)
        )


def allow_any_memory(graph: fx.Graph) -> None:
    """Replace ``view`` by ``reshape``: folded layers return features in another memory layout."""
    for node in graph.nodes:
        values = (*node.args, *node.kwargs.values())
        changes_dtype = any(isinstance(value, torch.dtype) for value in values)
        if node.op == "call_method" and node.target in _VIEWS and not changes_dtype:
            node.target = _VIEWS[node.target]


def fold_batch_norms(traced: fx.GraphModule) -> None:
    """Fold each batch norm into the convolution before it, if nothing else uses that one."""
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        norm = modules.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(norm, _BatchNorm) or norm.running_mean is None:
            continue
        source = layer_input(node)
        conv = modules.get(str(source.target)) if source.op == "call_module" else None
        if not _takes_norms(conv) or len(source.users) > 1 or uses(source) > 1:
            continue
        assert isinstance(conv, _CONVOLUTIONS)
        # Scaling the spatial part of a separable filter scales the whole filter.
        parts = conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias
        exact: Any = (None if part is None else part.double() for part in parts)
        filters, offset, mean, var, scale, shift = exact
        weight, bias = fuse_conv_bn_weights(filters, offset, mean, var, norm.eps, scale, shift)
        conv.bias = nn.Parameter(bias.to(conv.weight), requires_grad=False)
        conv.weight = nn.Parameter(weight.to(conv.weight), requires_grad=False)
        node.replace_all_uses_with(source)
        traced.graph.erase_node(node)


def _takes_norms(conv: nn.Module | None) -> bool:
    """Whether a module convolves with its weight unchanged; torch's quantised ones round it.

    Linear layers do not: their features come last, and norms are over dimension 1.
    """
    return (
        isinstance(conv, LAYERS)
        or type(conv).__name__ in _LEAVES
        or (isinstance(conv, nn.Conv2d) and type(conv).forward is nn.Conv2d.forward)
    ) and (isinstance(conv, _CONVOLUTIONS) and not isinstance(conv, BatchedCELinear))


def layer_input(node: fx.Node) -> fx.Node:
    """The one argument of a layer, by position or by name."""
    x = node.args[0] if node.args else next(iter(node.kwargs.values()))
    assert isinstance(x, fx.Node)
    return x


def uses(node: fx.Node) -> int:
    """How often a graph calls the module of a node or reads one of its tensors."""
    name = str(node.target)
    targets = [str(other.target) for other in node.graph.nodes if other.op != "call_method"]
    return sum(target == name or target.startswith(f"{name}.") for target in targets)


def is_impure(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node has an effect even if its result is not used; fx misses in-place changes."""
    if node.op == "call_module":
        in_place = getattr(traced.get_submodule(str(node.target)), "inplace", False)
    else:
        name = getattr(node.target, "__name__", str(node.target))
        in_place = (
            node.kwargs.get("inplace", False)
            or node.kwargs.get("out") is not None
            or name.endswith("_")
            or node.target in _IN_PLACE_OPERATORS
        )
    return bool(in_place) or node.is_impure()
