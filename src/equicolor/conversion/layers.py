"""Layers of a converted network: what replaces plain ones, and how they are drawn anew."""

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from equicolor._text import enumerated
from equicolor.conversion.supported import CHANNEL_DROPOUTS, pads_to_stride
from equicolor.nn.batched import (
    BatchedCEConv2d,
    BatchedCELinear,
    BatchedDropout,
    BatchedStochasticDepth,
)

__all__ = ["draw", "replace", "replacement"]

# Blocks whose scale per channel starts at a number that they do not keep.
_LAYER_SCALES = {"CNBlock": 1e-6, "ConvNeXtBlock": 1e-6}


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
    settings: Any = module
    new: nn.Module
    if kind == "conv":
        new = _convolution(settings, rotations)
    elif kind == "linear":
        new = _linear(settings, rotations)
    elif kind == "dropout":
        channels = isinstance(module, CHANNEL_DROPOUTS)
        new = BatchedDropout(settings.p, rotations=rotations, channels=channels)
    elif type(module).__name__ == "DropPath":  # timm's stochastic depth
        p, scale = settings.drop_prob or 0.0, settings.scale_by_keep
        new = BatchedStochasticDepth(p, rotations=rotations, scale=scale)
    elif settings.mode == "batch":
        return module  # one decision for all images
    else:
        new = BatchedStochasticDepth(settings.p, rotations=rotations)
    return new.train(module.training)


def _convolution(module: nn.Conv2d, rotations: int) -> nn.Module:
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


def _linear(module: nn.Linear, rotations: int) -> nn.Module:
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


def draw(network: nn.Module) -> None:
    """Draw all weights of a network anew, in place, and let all of them be trained.

    Layers are drawn as torch draws them. That shrinks the signal in every layer, so convolutions
    of networks without norms are drawn with the variance that rectifiers need.
    Scales per channel outside of layers start where their network starts them, if that is
    known. A warning names the parameters that stay as they were.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).requires_grad_(False)
        >>> nn.init.zeros_(network[0].weight), draw(network)  # doctest: +ELLIPSIS
        (...
        >>> bool(network[0].weight.any()), network[0].weight.requires_grad
        (True, True)
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
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.is_meta or not parameter.numel():
                continue
            start = _LAYER_SCALES.get(type(module).__name__)
            if start is not None:
                torch.nn.init.constant_(parameter, start)
            elif bool((parameter != parameter.flatten()[0]).any()):  # else never trained
                unchanged.append(f"{path}.{name}" if path else name)
    network.requires_grad_(True)
    if unchanged:
        warnings.warn(
            "init='random' does not know how these parameters start, so they stay as they are: "
            f"{enumerated(unchanged, 3)}",
            stacklevel=3,
        )
