"""Batch norms whose statistics span all processes, on any device and backend.

Processes that each take a slice of a batch must learn what one process learns from the whole
batch, so mean and variance have to be those of the whole batch. torch's ``SyncBatchNorm`` needs a
GPU and does not know features ``[B, C, n, H, W]``. The norms here use ordinary operations and two
small collectives per layer, one forward and one backward.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from equicolor.nn import CEBatchNorm2d

M = TypeVar("M", bound=nn.Module)

_DIMS = (0, 2, 3)  # what statistics run over


class _NormalizeTogether(torch.autograd.Function):
    """Normalise a slice of a batch by the statistics of the whole batch."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Images ``[B, C, H, W]`` to images, and the mean, variance and count of all."""
        mean, var, count = _gather_statistics(x)
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(var + eps), count)
        y = F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
        ctx.mark_non_differentiable(mean, var, count)
        return y, mean, var, count

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        """The losses of all processes depend on the statistics, so their gradients are summed."""
        x, weight, mean, inverse, count = ctx.saved_tensors
        gradient = gradients[0].to(mean.dtype)
        centred = x.to(mean.dtype) - _spread(mean)
        sums = torch.stack([gradient.sum(_DIMS), (gradient * centred).sum(_DIMS)])
        local = sums.clone()
        dist.all_reduce(sums)
        shift, slope = (sums / count).unbind()
        scale = inverse if weight is None else inverse * weight
        result = gradient - _spread(shift) - centred * _spread(slope * inverse**2)
        result *= _spread(scale)
        needed = ctx.needs_input_grad
        return (
            result.to(x.dtype),
            (local[1] * inverse).to(weight.dtype) if needed[1] else None,
            local[0].to(weight.dtype) if needed[2] else None,
            None,
        )


# A collective breaks a compiled graph in any case.
_normalize_together: Callable[..., tuple[Tensor, ...]] = torch.compiler.disable(
    _NormalizeTogether.apply
)


def _gather_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of every channel over all processes, and the number of values."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    var, mean = torch.var_mean(x.to(dtype), _DIMS, correction=0)
    local = torch.cat([mean, var, mean.new_full((1,), x.numel() // x.shape[1])])
    everyone = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, local)
    means, variances, counts = torch.stack(everyone).split([len(mean), len(var), 1], 1)
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    var = (counts * (variances + (means - mean) ** 2)).sum(0) / count
    return mean, var, count


def _spread(channels: Tensor) -> Tensor:
    """One number per channel, in a shape that broadcasts with images ``[B, C, H, W]``."""
    return channels[:, None, None]


class SyncedBatchNorm2d(nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d` over the slices of all processes.

    All processes must run it together while they train.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Images ``[B, C, H, W]`` to images of the same shape."""
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if not (self.training and together):
            return super().forward(x)
        y, mean, var, count = _normalize_together(x, self.weight, self.bias, self.eps)
        if self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            momentum = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            var = var * count / (count - 1)
            self.running_var.lerp_(var.to(self.running_var.dtype), momentum)
        return y


class SyncedCEBatchNorm2d(CEBatchNorm2d, SyncedBatchNorm2d):
    """:class:`~equicolor.nn.CEBatchNorm2d` over the slices of all processes."""


_SYNCED: dict[type[nn.Module], type[SyncedBatchNorm2d]] = {
    nn.BatchNorm2d: SyncedBatchNorm2d,
    CEBatchNorm2d: SyncedCEBatchNorm2d,
}


def sync_batch_norm(network: M) -> M:
    """Let every batch norm of a network share its statistics between processes, in place.

    Parameters, buffers, hooks and the names in the state dict stay what they are.
    """
    norms = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and not isinstance(module, (SyncedBatchNorm2d, nn.SyncBatchNorm))
    }
    for name, module in norms.items():
        if type(module) not in _SYNCED:
            raise ValueError(
                f"only BatchNorm2d and CEBatchNorm2d can share statistics between processes; "
                f"{name} is a {type(module).__name__}"
            )
    for module in norms.values():
        # Both classes have the same state, so only the class of the module changes.
        module.__class__ = _SYNCED[type(module)]
    return network
