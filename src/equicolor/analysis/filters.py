"""The filters of a network's first convolution, in all their rotations."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equicolor._text import brief_repr
from equicolor.color import shift_hue
from equicolor.groups import HueGroup
from equicolor.nn import CELiftConv2d
from equicolor.nn.batched import BatchedCEConv2d, HueLift


@dataclass(frozen=True, eq=False)
class FirstFilters:
    """The filters of a network's first convolution.

    Attributes:
        layer: its name.
        images: float32 :math:`[O, n, 3, k_h, k_w]` in [0, 1]: filters with their rotations,
            mid-grey where the weight is 0, each filter with full contrast.
        lifting: ``"rgb"``, ``"hsv"``, or None for an ordinary convolution. An HSV lift shifts
            the image and not the filter; its rotations are drawn as hue shifts of the filter.
        strength: the norm of every filter, :math:`[O]`.
    """

    layer: str
    images: Tensor
    lifting: str | None
    strength: Tensor

    __repr__ = brief_repr


def first_filters(network: nn.Module) -> FirstFilters | None:
    """The filters of the first convolution that takes images, or one channel made of them.

    Returns:
        None if there is no such layer.

    Example:
        >>> from equicolor.models import ce_resnet18
        >>> filters = first_filters(ce_resnet18(10, rotations=6))
        >>> filters.layer, filters.images.shape, filters.lifting
        ('conv1', torch.Size([49, 6, 3, 7, 7]), 'rgb')
    """
    lift: HueLift | None = None  # of a converted network, before an ordinary convolution
    for name, module in network.named_modules():
        if isinstance(module, HueLift):
            lift = module
        if isinstance(module, CELiftConv2d):
            weight = module.weight.detach().float().squeeze(2)
            return _draw(name, weight, module.rotations, module.lifting, module._transformations())
        if isinstance(module, (nn.Conv2d, BatchedCEConv2d)) and module.in_channels in (1, 3):
            weight = module.weight.detach().float()
            weight = weight.squeeze(2) if weight.ndim == 5 else weight
            if module.groups == 1:
                weight = weight.expand(-1, 3, -1, -1)
            else:  # every filter sees one colour
                colors = torch.eye(3, device=weight.device).repeat_interleave(len(weight) // 3, 0)
                weight = weight * colors[..., None, None]
            if lift is None:
                return _draw(name, weight, 1, None, None)
            matrices = HueGroup(lift.rotations).matrices if lift.lifting == "rgb" else None
            return _draw(name, weight, lift.rotations, lift.lifting, matrices)
    return None


def _draw(
    name: str, weight: Tensor, rotations: int, lifting: str | None, matrices: Tensor | None
) -> FirstFilters:
    """Filters ``[O, 3, k, k]`` as images, rotated by matrices or else by shifting hues."""
    weight = weight.cpu()
    if matrices is not None:
        group = matrices.detach().float().cpu()
        images = _full_contrast(torch.einsum("nij,ojhw->onihw", group, weight))
    else:
        first = _full_contrast(weight.unsqueeze(1)).expand(-1, rotations, -1, -1, -1)
        turns = torch.arange(rotations) / rotations
        images = shift_hue(first, turns.expand(len(weight), -1))
    return FirstFilters(name, images, lifting, weight.flatten(1).norm(dim=1))


def _full_contrast(filters: Tensor) -> Tensor:
    """Filters ``[O, n, 3, k, k]`` with weight 0 at 0.5 and the largest of each at 0 or 1."""
    largest = filters.abs().amax((1, 2, 3, 4), keepdim=True)
    return 0.5 + filters / (2 * largest.clamp(min=torch.finfo(filters.dtype).tiny))
