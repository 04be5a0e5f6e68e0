"""The maximum over the rotations on the fused path."""

from typing import Any

import torch
from torch import Tensor

from equicolor.devices import on_device_of
from equicolor.nn._fused.functions import apply, refuse_second_derivatives
from equicolor.nn._fused.layout import Features
from equicolor.nn._fused.norm import kernels


def coset_max(x: Tensor) -> Tensor:
    """The maximum over the rotations, ``[B, C, n, H, W]`` to ``[B, C, H, W]``."""
    with on_device_of(x):
        return apply(_CosetMax, x)


class _CosetMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return kernels().coset_max(Features.of(x))[..., : x.shape[1]].permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        refuse_second_derivatives()
        (x,) = ctx.saved_tensors
        gradient = Features.packed(gradients[0].unsqueeze(2))
        return kernels().coset_max_backward(Features.of(x), gradient).tensor
