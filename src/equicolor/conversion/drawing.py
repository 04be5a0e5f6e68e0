"""Weights drawn anew, for a converted network that shall be trained from the start."""

import warnings

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from equicolor.nn.batched import BatchedCEConv2d

__all__ = ["draw"]

# Blocks whose scale per channel starts at a number that they do not keep.
_LAYER_SCALES = {"CNBlock": 1e-6, "ConvNeXtBlock": 1e-6}
_SHOWN = 3


def draw(network: nn.Module) -> None:
    """Draw all weights anew, and let all of them be trained.

    Layers are drawn as torch draws them, after which less than half of the signal is left
    behind every layer; networks without norms that make up for it get convolutions of the
    variance that keeps it through rectifiers.
    Scales per channel outside of layers start where their network starts them, if that is
    known. What is left as it was, a warning names.

    Args:
        network: changed in place.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).requires_grad_(False)
        >>> nn.init.zeros_(network[0].weight), draw(network)  # doctest: +ELLIPSIS
        (...
        >>> bool(network[0].weight.any()), network[0].weight.requires_grad
        (True, True)
    """
    kept = []
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
                kept.append(f"{path}.{name}" if path else name)
    network.requires_grad_(True)
    if kept:
        more = f" and {len(kept) - _SHOWN} more" if len(kept) > _SHOWN else ""
        warnings.warn(
            f"init='random' does not know how these parameters start, so they stay as they are: "
            f"{', '.join(kept[:_SHOWN])}{more}",
            stacklevel=3,
        )
