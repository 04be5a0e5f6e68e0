"""Colour-equivariant convolutions (paper, section 3.3)."""

import math
from collections.abc import Callable, Mapping
from typing import Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equicolor import _checks
from equicolor.groups import CyclicAlgorithm, HueGroup, SpatialGroup, cyclic_algorithm
from equicolor.nn import functional
from equicolor.nn.algorithm import ALGORITHMS
from equicolor.nn.constants import DerivedConstants
from equicolor.nn.functional import LIFTINGS, Padding, check_symmetric, permutes_colors
from equicolor.nn.layout import per_rotation
from equicolor.nn.mixing import exact_matmul

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
PADDING_MODES: tuple[PaddingMode, ...] = get_args(PaddingMode)


class _CEConvNd(DerivedConstants):
    """Base of the two convolutions: Conv2d's arguments, initialisation, and constants."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int],
        padding: Padding,
        dilation: int | tuple[int, int],
        groups: int,
        padding_mode: PaddingMode,
        rotations: int,
        spatial: str,
    ) -> None:
        super().__init__()
        self.spatial = SpatialGroup(spatial).name
        self.in_channels = _checks.positive_int("in_channels", in_channels)
        self.out_channels = _checks.positive_int("out_channels", out_channels)
        self.kernel_size = _checks.int_pair("kernel_size", kernel_size, minimum=1)
        self.stride = _checks.int_pair("stride", stride, minimum=1)
        self.dilation = _checks.int_pair("dilation", dilation, minimum=1)
        self.groups = _checks.positive_int("groups", groups)
        _checks.one_of("padding_mode", padding_mode, PADDING_MODES)
        self.padding_mode: PaddingMode = padding_mode
        self.rotations = _checks.positive_int("rotations", rotations)
        self.padding: str | tuple[int, int]
        if isinstance(padding, str):
            self.padding = _checks.one_of("padding", padding, ("same", "valid"))
            if padding == "same" and self.stride != (1, 1):
                raise ValueError(f"padding='same' needs stride 1, got stride {stride}")
        else:
            name = "padding (or 'same' or 'valid')"
            self.padding = _checks.int_pair(name, padding, minimum=0)
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if channels % groups:
                raise ValueError(f"{name} must be divisible by groups, got {channels} and {groups}")
        check_symmetric(self.spatial, self.kernel_size, self.stride, self.padding, self.dilation)

    @property
    def _elements(self) -> int:
        return SpatialGroup(self.spatial).order

    def _create_parameters(
        self,
        shapes: Mapping[str, tuple[int, ...] | None],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Register parameters by shape (None: absent, as in Conv2d's bias) and draw them."""
        for name, shape in shapes.items():
            parameter = None
            if shape is not None:
                parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter from U(±1/sqrt(fan-in)), as the paper's code does."""
        bound = 1 / math.sqrt(self._fan_in())
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)
        self._reset_constants()

    def _fan_in(self) -> int:
        """Inputs of one output: channels, rotations (1 for images) and taps."""
        return self.in_channels // self.groups * math.prod(self.kernel_size)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        def on_filters(tensor: Tensor) -> Tensor:
            # .to(memory_format=torch.channels_last) refuses filters of five dimensions. They are
            # mixed over the rotations before they meet images, so they stay as they are; all else
            # that fn does reaches their view. Any other error is raised again for the view.
            try:
                return fn(tensor)
            except RuntimeError:
                if tensor.ndim != 5:
                    raise
                return fn(tensor.flatten()).unflatten(0, tensor.shape)

        return super()._apply(on_filters, recurse)

    @property
    def _zero_padding(self) -> Padding:
        """The padding that the convolution applies itself."""
        return self.padding if self.padding_mode == "zeros" else 0

    def _pad(self, images: Tensor) -> Tensor:
        """Apply a padding mode other than zeros."""
        if self.padding_mode == "zeros" or self.padding == "valid":
            return images
        if isinstance(self.padding, str):
            total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            sides = [(t // 2, t - t // 2) for t in total]
        else:
            sides = [(p, p) for p in self.padding]
        return F.pad(images, (*sides[1], *sides[0]), mode=self.padding_mode)

    def extra_repr(self) -> str:
        """What Conv2d prints, and the rotations."""
        parts = [f"{self.in_channels}, {self.out_channels}", f"kernel_size={self.kernel_size}"]
        parts += [f"rotations={self.rotations}", f"stride={self.stride}"]
        defaults = {"padding": (0, 0), "dilation": (1, 1), "groups": 1, "padding_mode": "zeros"}
        for name, default in (defaults | {"spatial": "p1"}).items():
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)!r}")
        if self.bias is None:
            parts.append("bias=False")
        return ", ".join(parts)


class CELiftConv2d(_CEConvNd):
    r"""Lift images to features over the hue group: every filter in every hue.

    Maps :math:`[B, 3, H, W]` to :math:`[B, C_{out}, n, H', W']` with
    :math:`y_k = (g_k^{-1} x) \star \psi`. Shifting the hue of the image by ``m / n`` turns
    rolls the output: ``torch.roll(y, m, dims=2)``.

    Args:
        in_channels: 3, the colours.
        out_channels, kernel_size, stride, padding, dilation, bias, padding_mode: as in
            :class:`torch.nn.Conv2d`.
        rotations: the number :math:`n` of hues.
        lifting: ``"rgb"``, the paper's rotation about the grey axis, equivariant to
            :func:`equicolor.color.rotate_hue`; or ``"hsv"``, equivariant to
            :func:`equicolor.color.shift_hue`, exactly, for every ``n``.
        learnable: with ``"rgb"``, make the generator of the group, a 3x3 matrix that
            starts as the hue rotation, a parameter ``transformation_matrix``.
        spatial: ``"p4"`` applies every filter in four quarter turns, ``"p4m"`` also in their
            mirror images, ``"p1"`` as it is. The features are :math:`[B, C_{out} m, n, H', W']`,
            see :class:`equicolor.groups.SpatialGroup`.
        device, dtype: of the parameters.

    Example:
        >>> layer = CELiftConv2d(3, 16, 3, padding=1, rotations=12, lifting="hsv")
        >>> layer(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 16, 12, 32, 32])
    """

    matrices: Tensor
    transformation_matrix: nn.Parameter

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: Padding = 0,
        dilation: int | tuple[int, int] = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        *,
        rotations: int = 3,
        lifting: str = "rgb",
        learnable: bool = False,
        spatial: str = "p1",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = stride, padding, dilation, 1, padding_mode
        super().__init__(in_channels, out_channels, kernel_size, *options, rotations, spatial)
        if in_channels != 3:
            raise ValueError(f"CELiftConv2d lifts RGB images: in_channels is 3, got {in_channels}")
        self.lifting = _checks.one_of("lifting", lifting, LIFTINGS)
        self.learnable = learnable
        if learnable and lifting != "rgb":
            raise ValueError(f"learnable=True needs lifting='rgb', got lifting={lifting!r}")
        shapes: dict[str, tuple[int, ...] | None] = {
            "weight": (out_channels, 3, 1, *self.kernel_size),
            "bias": (out_channels,) if bias else None,
        }
        if learnable:
            shapes["transformation_matrix"] = (3, 3)
        self._create_parameters(shapes, device, dtype)

    def reset_parameters(self) -> None:
        """Draw the filters; a learnable transformation starts as the hue rotation."""
        super().reset_parameters()
        if self.learnable:
            with torch.no_grad():
                self.transformation_matrix.copy_(HueGroup(self.rotations).matrix(1))

    @property
    def _is_linear(self) -> bool:
        """Whether hue shifts are matrices, which can act on filters instead of images."""
        return self.lifting == "rgb" or permutes_colors(self.rotations)

    def _constants(self) -> dict[str, Tensor]:
        if self.learnable or not self._is_linear:
            return {}
        return {"matrices": HueGroup(self.rotations).matrices}

    def _transformations(self) -> Tensor | None:
        """The group as matrices ``[n, 3, 3]`` acting on filters, where hue shifts are linear."""
        if self.learnable:
            generator = self.transformation_matrix
            dtype = torch.promote_types(generator.dtype, torch.float32)
            powers = [torch.eye(3, device=generator.device, dtype=dtype)]
            for _ in range(1, self.rotations):
                powers.append(exact_matmul(powers[-1], generator))
            return torch.stack(powers)
        return self.matrices if self._is_linear else None

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to features ``[B, C, n, H', W']``."""
        name = f"CELiftConv2d(rotations={self.rotations})"
        _checks.image_batch(name, images)
        _checks.same_dtype(name, images, self.weight)
        options = self.weight, self.bias, self.stride, self._zero_padding, self.dilation
        return functional.ce_lift_conv2d(
            self._pad(images),
            *options,
            rotations=self.rotations,
            lifting=self.lifting,
            matrices=self._transformations() if self.lifting == "rgb" else None,
            spatial=self.spatial,
        )

    def extra_repr(self) -> str:
        """The common options and the lifting."""
        learnable = ", learnable=True" if self.learnable else ""
        return f"{super().extra_repr()}, lifting={self.lifting!r}{learnable}"


class CEConv2d(_CEConvNd):
    r"""Convolution over space and the hue group, for the hidden layers.

    Maps :math:`[B, C_{in}, n, H, W]` to :math:`[B, C_{out}, n, H', W']` and commutes with
    rolling the group dimension.

    Args:
        in_channels, out_channels, kernel_size, stride, padding: as in :class:`torch.nn.Conv2d`.
        dilation, groups, bias, padding_mode: as in :class:`torch.nn.Conv2d`.
        rotations: the number :math:`n` of hues.
        separable: filters are the product of a spatial part ``weight``
            :math:`[O, I, 1, k_h, k_w]` and a group part ``pointwise_weight``
            :math:`[O, I, n, 1, 1]`; otherwise one full ``weight`` :math:`[O, I, n, k_h, k_w]`.
        algorithm: ``"auto"``, ``"dense"`` or ``"cyclic"``; see
            :func:`equicolor.nn.functional.ce_conv2d`.
        spatial: ``"p1"``, ``"p4"`` or ``"p4m"``, as in the layers before. The layer maps
            :math:`[B, C_{in} m, n, H, W]` to :math:`[B, C_{out} m, n, H', W']`, and its filters
            have :math:`I m` input channels.
        device, dtype: of the parameters.

    Example:
        >>> layer = CEConv2d(16, 32, 3, stride=2, padding=1, rotations=12)
        >>> layer(torch.rand(2, 16, 12, 32, 32)).shape
        torch.Size([2, 32, 12, 16, 16])
    """

    pointwise_weight: nn.Parameter | None
    analysis: Tensor
    filters: Tensor
    synthesis: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: Padding = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        *,
        rotations: int = 3,
        separable: bool = True,
        algorithm: str = "auto",
        spatial: str = "p1",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = stride, padding, dilation, groups, padding_mode
        super().__init__(in_channels, out_channels, kernel_size, *options, rotations, spatial)
        self.separable = separable
        self.algorithm = _checks.one_of("algorithm", algorithm, ALGORITHMS)
        channels = out_channels, in_channels // groups * self._elements
        shapes = {
            "weight": (*channels, 1 if separable else rotations, *self.kernel_size),
            "pointwise_weight": (*channels, rotations, 1, 1) if separable else None,
            "bias": (out_channels,) if bias else None,
        }
        self._create_parameters(shapes, device, dtype)

    def _fan_in(self) -> int:
        return self._elements * self.rotations * super()._fan_in()

    def _constants(self) -> dict[str, Tensor]:
        return cyclic_algorithm(self.rotations)._asdict()

    @property
    def tables(self) -> CyclicAlgorithm:
        """The cyclic algorithm, on the device of the filters."""
        return CyclicAlgorithm(self.analysis, self.filters, self.synthesis)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[B, C_in, n, H, W]`` to features ``[B, C_out, n, H', W']``."""
        name = f"CEConv2d(rotations={self.rotations})"
        orders = {"rotations": self.rotations, "elements": self._elements}
        _checks.features(name, x, channels=self.in_channels, **orders)
        _checks.same_dtype(name, x, self.weight)
        if self.padding_mode != "zeros":
            x = per_rotation(x, self._pad)
        options = self.bias, self.stride, self._zero_padding, self.dilation, self.groups
        return functional.ce_conv2d(
            x,
            self.weight,
            self.pointwise_weight,
            *options,
            algorithm=self.algorithm,
            tables=self.tables,
            spatial=self.spatial,
        )

    def extra_repr(self) -> str:
        """The common options, the kind of filters and the algorithm."""
        return f"{super().extra_repr()}, separable={self.separable}, algorithm={self.algorithm!r}"
