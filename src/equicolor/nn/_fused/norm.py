"""Batch norms on the fused path: what they do to the features at hand, and what they remember."""

import functools
import importlib
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from equicolor.nn._fused.layout import Products
from equicolor.nn.norm import CEBatchNorm2d

__all__ = ["Norm", "kernels", "normalization"]


class Norm(NamedTuple):
    """A batch norm: its parameters and what it does to the features at hand."""

    weight: Tensor
    bias: Tensor
    vectors: Tensor  # see equicolor.nn._fused.launchers
    training: bool  # whether the statistics are those of the features at hand

    def gradients(self, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Of weight and bias."""
        d_weight, d_bias = slopes[2:, : len(self.weight)]
        return d_weight.to(self.weight.dtype), d_bias.to(self.bias.dtype)


@torch.no_grad()
def normalization(norm: CEBatchNorm2d, outputs: Products, n: int) -> Norm:
    """What a batch norm does to the features of some products; in training, it remembers.

    Args:
        norm: the module.
        outputs: the products.
        n: rotations.
    """
    mean, var, count = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert mean is not None
    assert var is not None
    assert count is not None
    launchers, parameters = kernels(), (norm.weight, norm.bias)
    if not norm.training:
        vectors = launchers.running_vectors(outputs, *parameters, mean, var, eps=norm.eps)
        return Norm(*parameters, vectors, training=False)
    vectors = launchers.moments(outputs, *parameters, n=n, eps=norm.eps)
    count.add_(1)
    share = 1 / count if norm.momentum is None else norm.momentum
    for running, new in ((mean, vectors[0]), (var, vectors[4])):
        running.copy_(torch.lerp(running.to(new.dtype), new[: len(running)], share))
    return Norm(*parameters, vectors, training=True)


@functools.cache
def kernels() -> ModuleType:
    """:mod:`equicolor.nn._fused.launchers`."""
    # Not at the top: Triton takes long to import and is not there everywhere.
    return importlib.import_module("equicolor.nn._fused.launchers")
