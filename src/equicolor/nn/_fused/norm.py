"""Batch norms on the fused path, and the modules of Triton kernels."""

import functools
import importlib
from types import ModuleType
from typing import NamedTuple, Self

import torch
from torch import Tensor

from equicolor.groups import SpatialGroup
from equicolor.nn._fused.layout import Products
from equicolor.nn.norm import CEBatchNorm2d


class TrainingNorm(NamedTuple):
    """The tensors and options of a batch norm in training."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor
    batches: Tensor  # how many there were, this one included
    momentum: float | None  # None: the statistics are means over all batches
    eps: float


class Norm(NamedTuple):
    """A batch norm with the statistics to use."""

    weight: Tensor
    bias: Tensor
    vectors: Tensor  # mean, scale, ...; see equicolor.nn._fused.launchers
    training: bool  # whether the statistics come from the features themselves
    elements: int = 1  # of the spatial group, which share weight, bias and statistics

    @property
    def channels(self) -> int:
        """Channels of the features, ``C * m``."""
        return len(self.weight) * self.elements

    def gradients(self, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of weight and bias."""
        d_weight, d_bias = slopes[2:, : self.channels : self.elements]
        return d_weight.to(self.weight.dtype), d_bias.to(self.bias.dtype)

    def for_rows(self, outputs: Products) -> Self:
        """From vectors for one pixel to vectors for the rows of some products."""
        return self._replace(vectors=kernels().row_vectors(self.vectors, outputs))


@torch.no_grad()
def running_norm(norm: CEBatchNorm2d) -> Norm:
    """The batch norm with running statistics, with vectors for one pixel."""
    statistics, elements = (norm.running_mean, norm.running_var), SpatialGroup(norm.spatial).order
    options = {"eps": norm.eps, "elements": elements}
    vectors = kernels().channel_vectors(norm.weight, norm.bias, *statistics, **options)
    return Norm(norm.weight, norm.bias, vectors, training=False, elements=elements)


@torch.no_grad()
def normalization(norm: CEBatchNorm2d, outputs: Products, n: int) -> Norm:
    """The batch norm of features given as products; in training, updates running statistics."""
    if not norm.training:
        return running_norm(norm).for_rows(outputs)
    mean, var, count = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert mean is not None
    assert var is not None
    assert count is not None
    elements = SpatialGroup(norm.spatial).order
    batch, _, height, width = outputs[0].shape
    if batch * height * width * n * elements == 1:
        raise ValueError("Expected more than 1 value per channel when training")  # as torch does
    tensors = norm.weight, norm.bias, mean, var, count
    count.add_(1)  # raises for tensors that refuse changes, before a kernel changes the others
    training = TrainingNorm(*tensors, norm.momentum, norm.eps)
    vectors = kernels().moments(outputs, training, n=n, elements=elements)
    return Norm(norm.weight, norm.bias, vectors, training=True, elements=elements)


@functools.cache
def kernels(module: str = "launchers") -> ModuleType:
    """A module of kernels, imported at its first use.

    Triton takes long to import and is not installed everywhere.
    """
    return importlib.import_module(f"equicolor.nn._fused.{module}")
