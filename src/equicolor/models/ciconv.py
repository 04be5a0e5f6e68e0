r"""CIConv-W (Lengyel et al., 2021): a colour-invariant first layer, and ResNets behind it.

The layer is the paper's baseline of built-in colour *invariance*: it turns an image into one
channel of edges that hardly depends on the illuminant, at a scale it learns.
"""

import math

import torch
from torch import Tensor, fx, nn

from equicolor import _checks
from equicolor.models.resnet import ResNet, resnet_builder
from equicolor.models.widths import Architecture, Width

# The Gaussian colour model: intensity E and its first two derivatives by wavelength, from RGB.
COLOUR_MODEL = (
    (0.06, 0.63, 0.27),
    (0.30, 0.04, -0.35),
    (0.34, -0.60, 0.17),
)
LIMIT = 2.5  # of the absolute value of the scale
# Kernels have one size whatever the scale, the largest, so that the layer compiles and exports.
RADIUS = math.ceil(3 * 2**LIMIT + 0.5)
EPSILON = 1e-5


def color_invariant(images: Tensor, scale: Tensor) -> Tensor:
    r"""The invariant W: edges of the Gaussian colour model over the intensity.

    With :math:`\sigma = 2^s` and :math:`X` over the three planes
    :math:`(E, E_\lambda, E_{\lambda\lambda})`,

    .. math:: W^2 = \sum_X \frac{(G_x \star X)^2 + (G_y \star X)^2}{(G \star E + 10^{-5})^2}

    and the result is :math:`\log(W^2 + 10^{-5})` with mean 0 and variance 1 over each image.
    :math:`G` sums to 1, and so do the absolute values of :math:`G_x` and those of :math:`G_y`.
    Images are padded with zeros.

    Images are RGB, :math:`[B, 3, H, W]` in [0, 1]; the scale :math:`s` has one element and is
    clamped to ±2.5. The result has one channel and is computed in float32 at least.
    """
    _checks.image_batch("color_invariant", images)
    if scale.numel() != 1:
        raise ValueError(f"color_invariant expects one scale, got {list(scale.shape)}")
    if not _checks.autocasting(images.device):
        return _invariant(images, scale)
    # The logarithm of small differences: bfloat16 would leave noise.
    with torch.autocast(images.device.type, enabled=False):
        return _invariant(images, scale)


# Tracers, such as that of fold, must not look inside.
fx.wrap("color_invariant")


def _invariant(images: Tensor, scale: Tensor) -> Tensor:
    dtype = torch.promote_types(images.dtype, torch.float32)
    red, green, blue = images.to(dtype).unbind(1)
    planes = torch.stack([r * red + g * green + b * blue for r, g, b in COLOUR_MODEL], 1)
    sigma = 2 ** scale.to(dtype).clamp(-LIMIT, LIMIT)
    smooth_x, edge_x = _filters(sigma, images.shape[3])
    smooth_y, edge_y = _filters(sigma, images.shape[2])
    # Both kernels are products of a row and a column, so each direction is filtered by itself,
    # as a product with a band matrix: its gradient takes two more products, which is faster than
    # the gradient of a long depthwise convolution.
    smooth = planes @ smooth_x.mT
    horizontal = smooth_y @ (planes @ edge_x.mT)
    vertical = edge_y @ smooth
    intensity = smooth_y @ smooth[:, :1]
    squares = (horizontal.square() + vertical.square()).sum(1, keepdim=True)
    logarithm = (squares / (intensity + EPSILON).square() + EPSILON).log()
    variance, mean = torch.var_mean(logarithm, (2, 3), correction=0, keepdim=True)
    return ((logarithm - mean) * (variance + EPSILON).rsqrt()).to(images.dtype)


def _filters(sigma: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """A Gaussian and its derivative as matrices ``[length, length]`` that filter a line."""
    tap = torch.arange(-RADIUS, RADIUS + 1, device=sigma.device, dtype=sigma.dtype)
    position = torch.arange(length, device=sigma.device, dtype=sigma.dtype)
    offset = position - position[:, None]
    inside = offset.abs() <= RADIUS

    def bell(x: Tensor) -> Tensor:
        return torch.exp(-x.square() / (2 * sigma.square()))

    band = bell(offset) * inside
    return band / bell(tap).sum(), -offset * band / (tap.abs() * bell(tap)).sum()


class CIConv2d(nn.Module):
    """A layer that replaces colours by a colour invariant, at a learnable scale.

    The one invariant is ``"W"``, edges over intensity: what the paper compares with. ``scale`` is
    the logarithm (base 2) of the Gaussians' width in pixels, ``[1]``, and starts at 0.
    """

    def __init__(self, invariant: str = "W") -> None:
        super().__init__()
        self.invariant = _checks.one_of("invariant", invariant, ("W",))
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in [0, 1] to one channel ``[B, 1, H, W]``."""
        return color_invariant(images, self.scale)

    def extra_repr(self) -> str:  # noqa: D102
        return f"invariant={self.invariant!r}"


class CIConvResNet(ResNet):
    """A plain ResNet that sees an image's colour invariant instead of the image."""

    in_channels = 1

    def __init__(
        self,
        architecture: Architecture,
        num_classes: int = 1000,
        *,
        width: Width = None,
        invariant: str = "W",
    ) -> None:
        super().__init__(architecture, num_classes, width=width, normalize=False)
        self.ciconv = CIConv2d(invariant)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in [0, 1] to logits ``[B, num_classes]``."""
        return super().forward(self.ciconv(images))


_DOCUMENTATION = """ResNet-{depth} on a colour invariant.

    Args:
        num_classes: outputs.
        width: as for :func:`equicolor.models.resnet{depth}`.
        invariant: ``"W"``.

    Example:
        >>> import torch
        >>> from equicolor.models import {name}
        >>> {name}(10, width=4)(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

ciconv_resnet18 = resnet_builder("ciconv_resnet18", CIConvResNet, _DOCUMENTATION)
ciconv_resnet44 = resnet_builder("ciconv_resnet44", CIConvResNet, _DOCUMENTATION)
