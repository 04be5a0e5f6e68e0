"""Plain modules and tables made from the weights of equivariant layers."""

from typing import Any

import torch
from torch import Tensor, nn

from equicolor.color import orbit_turns
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.norm import CEBatchNorm2d


def turns_back(rotations: int, like: Tensor, dimensions: int) -> Tensor:
    """The turns of :func:`equicolor.color.orbit` as ``[m, 1, ...]``, in at least float32."""
    turns = orbit_turns(rotations, dtype=torch.float64)
    dtype = torch.promote_types(like.dtype, torch.float32)
    return turns.to(like.device, dtype).view(-1, *[1] * dimensions)


def conv2d(
    module: CEConv2d | CELiftConv2d, weight: Tensor, bias: Tensor | None, groups: int
) -> nn.Conv2d:
    """A convolution with filters ``[O, I, kh, kw]`` and the options of a layer."""
    conv = nn.Conv2d(
        weight.shape[1] * groups,
        weight.shape[0],
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        groups,
        bias is not None,
        module.padding_mode,
        device="meta",  # drawing weights, which are replaced, would take most of the time
    )
    _set_weights(conv, weight, bias)
    return conv


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with filters ``[O, C, ...]``."""
    weight = weight.flatten(1)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    _set_weights(layer, weight, bias)
    return layer


def _set_weights(layer: nn.Conv2d | nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None:
            copy = value.detach().clone(memory_format=torch.contiguous_format)
            setattr(layer, name, nn.Parameter(copy, requires_grad=False))


def batch_norm(module: CEBatchNorm2d, copies: int) -> nn.BatchNorm2d:
    """A batch norm that was not folded, with every channel repeated."""
    channels = module.num_features * copies
    norm = nn.BatchNorm2d(channels, module.eps, module.momentum, module.affine)
    state = module.state_dict()
    norm.load_state_dict(
        {k: v.repeat_interleave(copies) if v.ndim else v for k, v in state.items()}
    )
    return norm.to(next(iter(state.values())))


def mix(table: Any, x: Any, table_dim: int, x_dim: int) -> Any:
    """``tensordot`` of a table and features over one dimension of each.

    It is computed in the dtype of the table, at least float32; only the result is rounded.
    Autocast lowers the precision of tensordot only on the CPU, that of einsum also on GPUs.
    """
    return torch.tensordot(table, x.type_as(table), ([table_dim], [x_dim])).type_as(x)
