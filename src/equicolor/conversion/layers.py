"""Layers of a converted network: what replaces plain ones, and how they are drawn anew."""

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from equicolor._text import enumerated
from equicolor.conversion.supported import CHANNEL_DROPOUTS, Kind, pads_to_stride
from equicolor.nn.batched import (
    BatchedCEConv2d,
    BatchedCELinear,
    BatchedDropout,
    BatchedStochasticDepth,
)

# Initial scales per channel, of blocks that do not store them.
_LAYER_SCALES = {"CNBlock": 1e-6, "ConvNeXtBlock": 1e-6}


def replace(network: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module of a network wherever it occurs."""
    for parent in list(network.modules()):
        for name, child in parent._modules.items():
            if child is old and parent is not new:
                parent._modules[name] = new


def replacement(module: Any, kind: Kind, rotations: int) -> nn.Module:
    """The equivariant module that computes, at first, what a plain one computes."""
    new: nn.Module
    if kind is Kind.MIX:
        new = _with_hue_filters(module, rotations)
    elif kind is Kind.DROPOUT:
        channels = isinstance(module, CHANNEL_DROPOUTS)
        new = BatchedDropout(module.p, rotations=rotations, channels=channels)
    elif type(module).__name__ == "DropPath":  # timm's stochastic depth
        p, scale = module.drop_prob or 0.0, module.scale_by_keep
        new = BatchedStochasticDepth(p, rotations=rotations, scale=scale)
    elif module.mode == "batch":
        new = module  # one decision for all images
    else:
        new = BatchedStochasticDepth(module.p, rotations=rotations)
    return new.train(module.training)


def _with_hue_filters(module: nn.Conv2d | nn.Linear, rotations: int) -> BatchedCEConv2d:
    weight, bias = module.weight, module.bias
    # On the meta device, no weights are drawn that would be overwritten.
    options: dict[str, Any] = {"rotations": rotations, "device": "meta", "dtype": weight.dtype}
    new: BatchedCEConv2d
    if isinstance(module, nn.Linear):
        sizes = module.in_features, module.out_features
        new = BatchedCELinear(*sizes, bias is not None, **options)
    else:
        new = BatchedCEConv2d(
            module.in_channels,
            module.out_channels,
            module.kernel_size,
            module.stride,
            module.padding,
            module.dilation,
            module.groups,
            bias is not None,
            module.padding_mode,
            pad_to_stride=pads_to_stride(module),
            **options,
        )
    assert new.pointwise_weight is not None
    filters = torch.empty(new.pointwise_weight.shape, device=weight.device, dtype=weight.dtype)
    copied = weight.detach().clone().reshape(new.weight.shape)
    new.weight = nn.Parameter(copied, requires_grad=weight.requires_grad)
    new.pointwise_weight = nn.Parameter(filters, requires_grad=weight.requires_grad)
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
    new._reset_constants()
    new.set_identity()
    return new


def draw(network: nn.Module) -> None:
    """Draw all weights of a network anew, in place, and let all of them be trained.

    Layers are drawn as torch draws them. That shrinks the signal in every layer, so convolutions
    of networks without norms are drawn with the variance that rectifiers need. Scales per channel
    of known blocks get their initial value. A warning names the parameters that stay as they were.
    """
    unchanged = []
    norms = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    normalised = any(isinstance(module, norms) for module in network.modules())
    for path, module in network.named_modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
            if not normalised and isinstance(module, (nn.Conv2d, BatchedCEConv2d)):
                nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
            continue
        for name, parameter in module.named_parameters(path, recurse=False):
            if parameter.is_meta or not parameter.numel():
                continue
            start = _LAYER_SCALES.get(type(module).__name__)
            if start is not None:
                nn.init.constant_(parameter, start)
            elif bool((parameter != parameter.flatten()[0]).any()):  # else never trained
                unchanged.append(name)
    network.requires_grad_(True)
    if unchanged:
        warnings.warn(
            "init='random' does not know how these parameters start, so they stay as they are: "
            f"{enumerated(unchanged, 3)}",
            stacklevel=3,
        )
