"""Plain modules and tables made from the weights of equivariant layers."""

import torch
from torch import Tensor, nn

from equicolor.color import orbit_turns
from equicolor.groups import HueGroup
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.norm import CEBatchNorm2d


def permutes_colors(rotations: int) -> bool:
    """Whether both kinds of hue shift permute the channels, as shifts by thirds of a turn do.

    Example:
        >>> [n for n in range(1, 13) if permutes_colors(n)]
        [1, 3]
    """
    return 3 % rotations == 0


def matrices_of(module: CELiftConv2d) -> Tensor | None:
    """The group as matrices ``[n, 3, 3]`` acting on filters, where the lifting is linear."""
    matrices = module._transformations()
    if matrices is None and permutes_colors(module.rotations):
        return HueGroup(module.rotations).matrices.to(module.weight)
    return matrices


def in_every_hue(module: CELiftConv2d, matrices: Tensor) -> Tensor:
    """The filters of a lifting layer under matrices ``[n, 3, 3]``: ``[n, O, 3, kh, kw]``."""
    filters = module.weight.squeeze(2)
    return torch.einsum("kij,ojhw->koihw", matrices, filters.to(matrices)).to(filters)


def turns_back(rotations: int, like: Tensor, dimensions: int) -> Tensor:
    """Hue shifts ``[m, 1, ...]`` in turns, in at least float32."""
    turns = orbit_turns(rotations, dtype=torch.float64)
    dtype = torch.promote_types(like.dtype, torch.float32)
    return turns.to(like.device, dtype).view(-1, *[1] * dimensions)


_SAME_BIAS = object()


def conv2d(
    module: CEConv2d | CELiftConv2d, weight: Tensor, groups: int, bias: object = _SAME_BIAS
) -> nn.Conv2d:
    """A convolution with filters ``[O, m, I, kh, kw]``: m outputs for each channel."""
    copies = weight.shape[1]
    weight = weight.flatten(0, 1)
    if bias is _SAME_BIAS:
        bias = None if module.bias is None else module.bias.repeat_interleave(copies)
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
        device="meta",  # drawing weights, which are replaced below, would take most of the time
    )
    conv.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if isinstance(bias, Tensor):
        conv.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return conv


def batch_norm(module: CEBatchNorm2d, copies: int) -> nn.BatchNorm2d:
    """A batch norm that was not folded, with every channel repeated."""
    norm = nn.BatchNorm2d(
        module.num_features * copies,
        module.eps,
        module.momentum,
        module.affine,
        module.track_running_stats,
    )
    state = module.state_dict()
    norm.load_state_dict(
        {k: v.repeat_interleave(copies) if v.ndim else v for k, v in state.items()}
    )
    return norm.to(next(iter(state.values())))
