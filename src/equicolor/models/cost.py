"""Cost of a network: parameters and the multiply-accumulates that are executed."""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from equicolor import _checks
from equicolor.models.foreign import ForeignNetwork


class Cost(NamedTuple):
    """Parameters of a network and multiply-accumulates of one forward pass."""

    parameters: int
    macs: int


def cost(model: nn.Module, input_size: int | Sequence[int] = 224) -> Cost:
    """Count parameters and the multiply-accumulates executed for one image.

    Torch counts the operations that run, mixing over the group included, with the algorithm
    the layers are set to (:func:`equicolor.nn.set_algorithm`). Nothing is computed: the
    network runs on the meta device, where ``"auto"`` chooses as on the CPU.

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
    from torch.utils.flop_counter import FlopCounterMode  # slow: it imports triton

    shape = _shape(input_size)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    meta_model = copy.deepcopy(model).to("meta").eval()
    dtype = next((p.dtype for p in model.parameters()), torch.get_default_dtype())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        try:
            meta_model(torch.empty(shape, device="meta", dtype=dtype))
        # what torch and other libraries raise for wrong shapes
        except (RuntimeError, ValueError, AssertionError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            name = model.name if isinstance(model, ForeignNetwork) else type(model).__name__
            raise ValueError(f"{name} does not take input {list(shape)}: {reason}") from error
    # One multiply-accumulate is two floating-point operations.
    return Cost(parameters, counter.get_total_flops() // 2)


def _shape(input_size: int | Sequence[int]) -> tuple[int, ...]:
    shape = (input_size, input_size) if isinstance(input_size, int) else input_size
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    sizes = (1, 3, *sizes) if len(sizes) == 2 else sizes
    if len(sizes) != 4 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ValueError(f"input_size must be an int, [H, W] or [B, 3, H, W], got {input_size!r}")
    for size in sizes[2:]:
        _checks.positive_int("size", size)
    return sizes
