"""The surgery: one module in the place of another."""

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from equicolor.conversion.network import ConvertedNetwork, PoolEach
from equicolor.conversion.plan import Exit, Plan
from equicolor.conversion.supported import drops_channels, pads_to_stride
from equicolor.nn.batched import (
    BatchedCEConv2d,
    BatchedCELinear,
    BatchedCosetPool,
    BatchedDropout,
    BatchedStochasticDepth,
    HueLift,
)

__all__ = ["carry_out", "end_with", "exit_of", "new_path", "replace", "replacement"]


def carry_out(
    original: nn.Module, plan: Plan, lift: HueLift, coset_pool: str | None
) -> ConvertedNetwork:
    """Convert a copy of a network as planned; the new hue filters are the identity.

    Args:
        original: the network; it is not changed.
        plan: made for it.
        lift: images in every hue, what the network will begin with.
        coset_pool: ``"max"``, ``"avg"`` or None.
    """
    network = copy.deepcopy(original)
    modules = dict(network.named_modules())
    for path, kind in plan.replaced.items():
        replace(network, modules[path], replacement(modules[path], kind, lift.rotations))
    pool: BatchedCosetPool | nn.Identity = BatchedCosetPool(lift.rotations, coset_pool)
    exit_, head = exit_of(plan, coset_pool), plan.head
    if exit_.where != "output":
        end_with(network, exit_, pool)
        pool = nn.Identity()
        head = f"{head}.head" if exit_.where == "before" else head
    converted = ConvertedNetwork(lift, network, pool)
    converted.head = head
    for module in (converted, converted.lift, converted.pool):  # the others have modes of their own
        module.training = original.training
    return converted


def exit_of(plan: Plan, coset_pool: str | None) -> Exit:
    """Where the hues are pooled; where they are kept apart, a classifier sees every one."""
    apart = plan.exit.where == "before" and coset_pool is None
    return Exit("output") if apart else plan.exit


def new_path(path: str, exit_: Exit) -> str:
    """Where a replaced module of the original is in the converted network.

    Example:
        >>> new_path("layer2.0.conv1", Exit("after", "layer2"))
        'network.layer2.body.0.conv1'
    """
    if exit_.where == "after" and f"{path}.".startswith(f"{exit_.path}."):
        path = f"{exit_.path}.body{path.removeprefix(exit_.path)}"
    return f"network.{path}"


def replacement(module: nn.Module, kind: str, rotations: int) -> nn.Module:
    """The equivariant module that computes, at first, what a plain one computes.

    Args:
        module: a layer of the network.
        kind: of :func:`equicolor.conversion.supported.kind_of`.
        rotations: the number of hues.

    Example:
        >>> conv = nn.Conv2d(3, 4, 3)
        >>> x = torch.rand(6, 3, 5, 5)
        >>> torch.allclose(replacement(conv, "conv", 3)(x), conv(x), atol=1e-6)
        True
    """
    made = _MAKERS[kind](module, rotations)
    return made.train(module.training)


def replace(network: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in every place of a network where another one is.

    Example:
        >>> network = nn.Sequential(relu := nn.ReLU(), relu)
        >>> replace(network, relu, nn.Tanh())
        >>> [type(layer).__name__ for layer in network]
        ['Tanh', 'Tanh']
    """
    for parent in list(network.modules()):
        for name, child in parent._modules.items():
            if child is old and parent is not new:
                parent._modules[name] = new


def end_with(network: nn.Module, exit_: Exit, pool: nn.Module) -> None:
    """Pool the hues before or after a module."""
    module = network.get_submodule(exit_.path)
    parts = {"pool": pool, "head": module} if exit_.where == "before" else {
        "body": module, "pool": PoolEach(pool),
    }  # fmt: skip
    both = nn.Sequential(OrderedDict(parts))
    both.training = module.training  # not train(), which would change what is inside
    replace(network, module, both)


def _convolution(module: nn.Module, rotations: int) -> nn.Module:
    assert isinstance(module, nn.Conv2d)
    new = BatchedCEConv2d(
        module.in_channels,
        module.out_channels,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.groups,
        module.bias is not None,
        module.padding_mode,
        rotations=rotations,
        pad_to_stride=pads_to_stride(module),
        device="meta",  # nothing is drawn that would be overwritten
        dtype=module.weight.dtype,
    )
    return _with_weights(new, module.weight.unsqueeze(2), module.bias)


def _linear(module: nn.Module, rotations: int) -> nn.Module:
    assert isinstance(module, nn.Linear)
    new = BatchedCELinear(
        module.in_features,
        module.out_features,
        module.bias is not None,
        rotations=rotations,
        device="meta",
        dtype=module.weight.dtype,
    )
    return _with_weights(new, module.weight[:, :, None, None, None], module.bias)


def _with_weights(
    new: BatchedCEConv2d, weight: torch.Tensor, bias: torch.Tensor | None
) -> BatchedCEConv2d:
    trained = weight.requires_grad
    assert new.pointwise_weight is not None
    group = torch.empty(new.pointwise_weight.shape, device=weight.device, dtype=weight.dtype)
    new.weight = nn.Parameter(weight.detach().clone(), requires_grad=trained)
    new.pointwise_weight = nn.Parameter(group, requires_grad=trained)
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
    new._reset_constants()
    new.set_identity()
    return new


def _dropout(module: nn.Module, rotations: int) -> nn.Module:
    settings: Any = module
    return BatchedDropout(settings.p, rotations=rotations, channels=drops_channels(module))


def _stochastic_depth(module: nn.Module, rotations: int) -> nn.Module:
    settings: Any = module
    if type(module).__name__ == "DropPath":  # timm's
        p, scale = settings.drop_prob or 0.0, settings.scale_by_keep
    elif settings.mode == "batch":
        return module  # one decision for all images
    else:
        p, scale = settings.p, True
    return BatchedStochasticDepth(p, rotations=rotations, scale=scale)


_MAKERS = {
    "conv": _convolution,
    "linear": _linear,
    "dropout": _dropout,
    "depth": _stochastic_depth,
}
