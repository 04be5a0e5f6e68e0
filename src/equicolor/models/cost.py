"""Honest cost: parameters and the multiply-accumulates that are executed."""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["Cost", "cost"]


class Cost(NamedTuple):
    """Parameters of a network and multiply-accumulates of one forward pass."""

    parameters: int
    macs: int


def cost(model: nn.Module, input_size: int | Sequence[int] = 224) -> Cost:
    """Count parameters and the multiply-accumulates executed for one image.

    Counted by torch on the operations that run, mixing over the group included, with the
    algorithm the layers are set to (:func:`equicolor.nn.set_algorithm`). Nothing is
    computed: the network runs on the meta device, where ``"auto"`` chooses as on the CPU.

    Args:
        model: any network of images.
        input_size: height and width, or the whole shape ``[B, 3, H, W]``; MACs are those of
            the whole batch.

    Returns:
        Parameters and MACs.

    Example:
        >>> from equicolor.models import resnet18
        >>> parameters, macs = cost(resnet18(), 224)
        >>> parameters, round(macs / 1e9, 2)
        (11689512, 1.79)
    """
    shape = (1, 3, input_size, input_size) if isinstance(input_size, int) else tuple(input_size)
    if len(shape) != 4:
        raise ValueError(f"input_size must be an int or [B, 3, H, W], got {input_size!r}")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    ghost = copy.deepcopy(model).to("meta").eval()
    dtype = next((p.dtype for p in model.parameters()), torch.get_default_dtype())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        ghost(torch.empty(shape, device="meta", dtype=dtype))
    # One multiply-accumulate is two floating-point operations.
    return Cost(parameters, counter.get_total_flops() // 2)
