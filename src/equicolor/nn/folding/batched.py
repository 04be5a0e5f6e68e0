"""Fold the layers of :mod:`equicolor.nn.batched`, which keep the rotations in the batch.

Features stay ``[n * B, C, H, W]``. A layer whose group filters are the identity becomes the
plain layer on that batch. Others become one dense layer over all rotations, or the products of
the cyclic algorithm.
"""

import operator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from equicolor.groups import HueGroup
from equicolor.nn.batched import (
    BatchedCEConv2d,
    BatchedCELinear,
    BatchedCosetPool,
    BatchedDropout,
    BatchedStochasticDepth,
    HueLift,
    pad_to_stride,
)
from equicolor.nn.folding.plain import permutes_colors
from equicolor.nn.functional import dense_filters

if TYPE_CHECKING:
    from equicolor.nn.folding.folder import Folder

BATCHED: tuple[type[nn.Module], ...] = (
    BatchedCELinear,
    BatchedCEConv2d,
    BatchedCosetPool,
    BatchedDropout,
    BatchedStochasticDepth,
    HueLift,
)


class PadToStride(nn.Module):
    """Pads images so that a convolution gives ``ceil(size / stride)`` outputs."""

    def __init__(self, conv: BatchedCEConv2d) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.dilation = conv.kernel_size, conv.stride, conv.dilation

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[N, C, H, W]`` to larger images."""
        return pad_to_stride(x, self.kernel_size, self.stride, self.dilation)


def fold_layer(folder: "Folder", node: fx.Node, module: nn.Module, x: fx.Node) -> fx.Node:
    """Add nodes that compute what a layer computes; returns the last one."""
    if isinstance(module, HueLift):
        return _lift(folder, node, module, x)
    if isinstance(module, BatchedCELinear):
        return _linear(folder, node, module, x)
    if isinstance(module, BatchedCEConv2d):
        if module.pad_to_stride:
            x = folder.call(node, "pad", PadToStride(module), x)
        if module.is_identity():
            return folder.call(node, "conv", folder.plain(module), x)
        return folder.leave(folder.conv(node, module, folder.enter(x, module.rotations)), module)
    if isinstance(module, BatchedCosetPool):
        parts = folder.method(x, "unflatten", 0, (module.rotations, -1))
        if module.kind is None:
            return folder.method(parts, "transpose", 0, 1)
        return folder.method(parts, "amax" if module.kind == "max" else "mean", 0)
    return x  # dropout


def _lift(folder: "Folder", node: fx.Node, lift: HueLift, x: fx.Node) -> fx.Node:
    if lift.padded:
        raise ValueError("fold cannot fold the backbone of a detector, which sees padded images")
    numbers: dict[str, fx.Node] = {}
    if lift.normalizes:
        numbers = {name: folder.buffer(node, name, getattr(lift, name)) for name in ("mean", "std")}
    if lift.takes == "normalized":
        x = folder.function(operator.mul, x, numbers["std"])
        x = folder.function(operator.add, x, numbers["mean"])
    linear = lift.lifting == "rgb" or permutes_colors(lift.rotations)
    matrices = HueGroup(lift.rotations).matrices if linear else None
    orbit = folder.orbit(node, x, lift.rotations, matrices, like=lift.mean)
    if numbers:
        orbit = folder.function(operator.sub, orbit, numbers["mean"])
        orbit = folder.function(operator.truediv, orbit, numbers["std"])
    return orbit


def _linear(folder: "Folder", node: fx.Node, module: BatchedCELinear, x: fx.Node) -> fx.Node:
    n = module.rotations
    if module.is_identity():
        return folder.call(node, "linear", _plain_linear(module.weight, module.bias), x)
    parts = folder.method(x, "unflatten", 0, (n, -1))
    if not folder.cyclic:
        bank = dense_filters(module.weight, module.pointwise_weight, n)  # [k, O, C, r, 1, 1]
        weight = bank.movedim(0, 1).flatten(2).flatten(0, 1)
        bias = None if module.bias is None else module.bias.repeat_interleave(n)
        joined = folder.method(folder.method(parts, "movedim", 0, -1), "flatten", -2)
        y = folder.call(node, "linear", _plain_linear(weight, bias), joined)
        y = folder.method(y, "unflatten", -1, (module.out_features, n))
        return folder.method(folder.method(y, "movedim", -1, 0), "flatten", 0, 1)
    mixed = folder.mix(folder.buffer(node, "analysis", module.analysis), parts, 1, 0)
    joined = folder.function(torch.stack, folder.products(node, module, mixed, _plain_linear))
    out = folder.mix(folder.buffer(node, "synthesis", module.synthesis), joined, 0, 0)
    return folder.method(out, "flatten", 0, 1)


def _plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with filters ``[O, C, ...]``."""
    weight = weight.flatten(1)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return linear
