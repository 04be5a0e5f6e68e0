"""Fold the layers of :mod:`equicolor.nn.batched`, which keep the rotations in the batch.

Features stay ``[n * B, C, H, W]``. A layer whose group filters are the identity becomes the
plain layer on that batch. Others become one dense layer over all rotations, or the products of
the cyclic algorithm.
"""

from typing import TYPE_CHECKING, Any

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
    choose_rotation,
    confidence,
    pad_to_stride,
)
from equicolor.nn.folding.plain import linear, mix, turns_back
from equicolor.nn.functional import dense_filters, permutes_colors

if TYPE_CHECKING:
    from equicolor.nn.folding.rewriter import Rewriter

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


def fold_layer(rewriter: "Rewriter", node: fx.Node, module: nn.Module, x: Any) -> Any:
    """Add nodes that compute what a layer computes."""
    if isinstance(module, HueLift):
        return _lift(rewriter, node, module, x)
    if isinstance(module, BatchedCELinear):
        return _linear(rewriter, node, module, x)
    if isinstance(module, BatchedCEConv2d):
        if module.pad_to_stride:
            x = rewriter.call(node, "pad", PadToStride(module), x)
        if module.is_identity():
            return rewriter.plain(node, module, x)
        features = rewriter.conv(node, module, rewriter.enter(x, module.rotations))
        return rewriter.leave(features, module)
    if isinstance(module, BatchedCosetPool):
        parts = x.unflatten(0, (module.rotations, -1))
        if module.kind == "confidence":
            exact = next(rewriter.traced.parameters()).dtype == torch.float64
            return choose_rotation(parts, confidence(parts if exact else parts.float()))
        if module.kind is None:
            return parts.transpose(0, 1)
        return parts.amax(0) if module.kind == "max" else parts.mean(0)
    return x  # dropout


def _lift(rewriter: "Rewriter", node: fx.Node, lift: HueLift, x: Any) -> Any:
    if lift.padded:
        raise ValueError("fold cannot fold the backbone of a detector, which sees padded images")
    images, mean, std = x, None, None
    if lift.normalizes:
        mean, std = (rewriter.buffer(node, name, getattr(lift, name)) for name in ("mean", "std"))
    if lift.takes == "normalized":
        x = x * std + mean
    n = lift.rotations
    if lift.lifting == "rgb" or permutes_colors(n):
        table = rewriter.buffer(node, "rotations", HueGroup(n).matrices.to(lift.mean))
        hues = mix(table, x, 1, 1).transpose(1, 2)  # of [k, j, b, h, w]
    else:
        hues = rewriter.shifted(node, x.unsqueeze(0), n, turns_back(n, lift.mean, 3), 0)
    orbit = hues.flatten(0, 1)
    # The constants of half-precision networks are float32.
    return ((orbit - mean) / std).type_as(images) if lift.normalizes else orbit


def _linear(rewriter: "Rewriter", node: fx.Node, module: BatchedCELinear, x: Any) -> Any:
    n = module.rotations
    if module.is_identity():
        return rewriter.call(node, "linear", linear(module.weight, module.bias), x)
    parts = x.unflatten(0, (n, -1))
    if not rewriter.cyclic:
        bank = dense_filters(module.weight, module.pointwise_weight, n)  # [k, O, C, r, 1, 1]
        bias = None if module.bias is None else module.bias.repeat_interleave(n)
        dense = linear(bank.movedim(0, 1).flatten(2).flatten(0, 1), bias)
        y = rewriter.call(node, "linear", dense, parts.movedim(0, -1).flatten(-2))
        return y.unflatten(-1, (module.out_features, n)).movedim(-1, 0).flatten(0, 1)
    mixed = mix(rewriter.buffer(node, "analysis", module.analysis), parts, 1, 0)
    joined = torch.stack(rewriter.products(node, module, mixed, linear))
    return mix(rewriter.buffer(node, "synthesis", module.synthesis), joined, 0, 0).flatten(0, 1)
