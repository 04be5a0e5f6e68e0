r"""Colour-equivariant operations as pure functions on tensors.

Equations follow the paper, section 3; images are :math:`[B, 3, H, W]`, features
:math:`[B, C, n, H, W]`. :mod:`equicolor.nn` wraps them in modules.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor import _checks
from equicolor.color import shift_hue_orbit
from equicolor.groups import CyclicAlgorithm, HueGroup, SpatialGroup, cyclic_algorithm
from equicolor.nn.algorithm import ALGORITHMS, choose_algorithm
from equicolor.nn.layout import channels_last, from_pixels
from equicolor.nn.mixing import exact_matmul, mix_apart, mix_together

__all__ = [
    "ce_conv2d",
    "ce_lift_conv2d",
    "coset_avg_pool",
    "coset_flatten",
    "coset_max_pool",
    "hue_orbit",
    "spatial_bank",
]

Padding = str | int | tuple[int, int]
# stride, padding, dilation, groups
_Options = tuple[int | tuple[int, int], Padding, int | tuple[int, int], int]
LIFTINGS = ("rgb", "hsv")
# Channels of a block of oneDNN: AVX-512 has 16 float32 numbers in a register, AVX2 has 8.
_ONEDNN_BLOCK = 16


def hue_orbit(
    images: Tensor, rotations: int, lifting: str = "rgb", *, matrices: Tensor | None = None
) -> Tensor:
    r"""Every image under the inverse of every group element, :math:`g_k^{-1} x`.

    Args:
        images: RGB images :math:`[B, 3, H, W]`.
        rotations: the order :math:`n` of the group.
        lifting: ``"rgb"`` rotates about the grey axis, ``"hsv"`` shifts the HSV hue.
        matrices: for ``"rgb"``, the group as matrices :math:`[n, 3, 3]` acting on filters
            (default: the hue rotations).

    Returns:
        Images :math:`[n, B, 3, H, W]`; entry :math:`k` is shifted by :math:`-k/n` turns.

    Example:
        >>> hue_orbit(torch.rand(2, 3, 8, 8), 4, "hsv").shape
        torch.Size([4, 2, 3, 8, 8])
    """
    _checks.image_batch("hue_orbit", images)
    _checks.one_of("lifting", lifting, LIFTINGS)
    _checks.positive_int("rotations", rotations)
    if lifting == "hsv":
        if matrices is not None:
            raise ValueError("matrices need lifting='rgb', got lifting='hsv'")
        return shift_hue_orbit(images, rotations)
    if matrices is None:
        matrices = HueGroup(rotations).matrices
    if matrices.shape != (rotations, 3, 3):
        raise ValueError(f"expected matrices [{rotations}, 3, 3], got {list(matrices.shape)}")
    dtype = images.dtype
    # In at least float32: rounding the cosines and the partial sums would double the error.
    images = images.to(torch.promote_types(dtype, torch.float32))
    matrices = matrices.to(images)
    # Filters see H(k) psi, so images see the transpose. Written as a sum because autocast
    # would round the colours of an einsum to bfloat16 before the first layer.
    channels = [matrices[:, i, :, None, None].unsqueeze(1) * images[:, i, None] for i in range(3)]
    return (channels[0] + channels[1] + channels[2]).to(dtype)


def permutes_colors(rotations: int) -> bool:
    """Whether both kinds of hue shift permute the channels, as shifts by thirds of a turn do."""
    return 3 % rotations == 0


def in_every_hue(filters: Tensor, matrices: Tensor) -> Tensor:
    """Filters ``[O, 3, kh, kw]`` under matrices ``[n, 3, 3]``: ``[n, O, 3, kh, kw]``."""
    # Not einsum, which autocast would round to bfloat16.
    products = matrices[:, None, :, :, None, None] * filters.to(matrices)[:, None]
    return products.sum(3).to(filters)


def ce_lift_conv2d(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: Padding = 0,
    dilation: int | tuple[int, int] = 1,
    *,
    rotations: int = 3,
    lifting: str = "rgb",
    matrices: Tensor | None = None,
    spatial: str = "p1",
) -> Tensor:
    r"""Lift images to features: :math:`y_k = x \star (H(k)\,\psi) = (H(-k)\,x) \star \psi`.

    The second form is used: it holds for both liftings, needs one filter bank, and yields
    the memory layout of :mod:`equicolor.nn.layout` by itself.

    Args:
        images: RGB images :math:`[B, 3, H, W]`.
        weight: filters :math:`[O, 3, 1, k_h, k_w]`.
        bias: :math:`[O]`, shared by the rotations.
        stride, padding, dilation: as in :func:`torch.nn.functional.conv2d`.
        rotations, lifting, matrices: as in :func:`hue_orbit`.
        spatial: the turns and mirror images of the filters, see :func:`spatial_bank`.

    Returns:
        Features :math:`[B, O m, n, H', W']`.

    Example:
        >>> ce_lift_conv2d(torch.rand(2, 3, 8, 8), torch.rand(4, 3, 1, 3, 3), rotations=6).shape
        torch.Size([2, 4, 6, 6, 6])
    """
    if weight.ndim != 5 or weight.shape[1:3] != (3, 1):
        raise ValueError(
            f"ce_lift_conv2d expects filters [O, 3, 1, kh, kw], got {list(weight.shape)}"
        )
    check_symmetric(spatial, tuple(map(int, weight.shape[3:])), stride, padding, dilation)
    orbit = hue_orbit(images, rotations, lifting, matrices=matrices).flatten(0, 1)
    options: _Options = (stride, padding, dilation, 1)
    bank = spatial_bank(weight, spatial, of_images=True).squeeze(2)
    y = _conv2d(channels_last(orbit), bank, _spatial_bias(bias, spatial), options)
    return from_pixels(y, rotations)


def ce_conv2d(
    x: Tensor,
    weight: Tensor,
    pointwise_weight: Tensor | None = None,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: Padding = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
    tables: CyclicAlgorithm | None = None,
    spatial: str = "p1",
) -> Tensor:
    r"""Correlate features with filters over space and hue:
    :math:`y_{o,k} = \sum_c \sum_r x_{c,r} \star F_{o,c,(r-k) \bmod n}`.

    Args:
        x: features :math:`[B, C m, n, H, W]`; :math:`m` is 1 unless ``spatial`` is given.
        weight: full filters :math:`[O, C m/g, n, k_h, k_w]`, or the spatial part
            :math:`[O, C m/g, 1, k_h, k_w]` of separable ones.
        pointwise_weight: the group part :math:`[O, C m/g, n, 1, 1]` of separable filters.
        bias: :math:`[O]`, shared by the rotations.
        stride, padding, dilation, groups: as in :func:`torch.nn.functional.conv2d`.
        algorithm: ``"dense"`` is one convolution of :math:`n C` channels (the paper's
            construction, :math:`n^2` blocks); ``"cyclic"`` needs about :math:`1.5 n`
            convolutions of :math:`C` channels; ``"auto"`` takes the faster one, and in
            float16 the dense one, since sums over the rotations may leave its range.
            They agree to rounding.
        tables: the cyclic algorithm, if the caller has it already.
        spatial: the turns and mirror images of the filters, see :func:`spatial_bank`.

    Returns:
        Features :math:`[B, O m, n, H', W']`.

    Example:
        >>> x = torch.rand(2, 5, 3, 8, 8)
        >>> spatial, group = torch.rand(4, 5, 1, 3, 3), torch.rand(4, 5, 3, 1, 1)
        >>> ce_conv2d(x, spatial, group, padding=1).shape
        torch.Size([2, 4, 3, 8, 8])
    """
    _checks.features("ce_conv2d", x)
    _checks.one_of("algorithm", algorithm, ALGORITHMS)
    n = int(x.shape[2])  # a tensor under torch.jit.trace
    _check_filters(x, weight, pointwise_weight, bias, groups, tables)
    check_symmetric(spatial, tuple(map(int, weight.shape[3:])), stride, padding, dilation)
    weight, bias = spatial_bank(weight, spatial), _spatial_bias(bias, spatial)
    if pointwise_weight is not None:
        pointwise_weight = spatial_bank(pointwise_weight, spatial)
    if algorithm == "auto":
        shape = [*map(int, weight.shape)]
        in_range = compute_dtype(x) != torch.float16
        algorithm = choose_algorithm(n, shape, groups, x.device.type) if in_range else "dense"
    options: _Options = (stride, padding, dilation, groups)
    if n == 1 or algorithm == "dense":
        y = _dense_conv2d(x, weight, pointwise_weight, options)
    else:
        if tables is None:
            tables = CyclicAlgorithm(*(matrix.to(x.device) for matrix in cyclic_algorithm(n)))
        y = _cyclic_conv2d(x, weight, pointwise_weight, options, tables)
    return y if bias is None else y + bias.to(y.dtype).view(-1, 1, 1, 1)


def spatial_bank(weight: Tensor, spatial: str, *, of_images: bool = False) -> Tensor:
    r"""Filters in every quarter turn and mirror image:
    :math:`W_{(o,s),(c,t)} = \rho_s F_{o,c,s^{-1}t}`.

    With these as filters, a hue layer is equivariant to the elements of the spatial group, too.

    Args:
        weight: filters :math:`[O, C m, n, k, k]`; channel ``c * m + t`` belongs to element ``t``.
        spatial: ``"p1"``, ``"p4"`` or ``"p4m"``, see :class:`equicolor.groups.SpatialGroup`.
        of_images: the filters see images, :math:`[O, 3, 1, k, k]`, which have no elements.

    Returns:
        Filters :math:`[O m, C m, n, k, k]`, or :math:`[O m, 3, 1, k, k]`; row ``o * m + s`` is
        filter ``o`` under element ``s``.

    Example:
        >>> spatial_bank(torch.rand(2, 5 * 4, 3, 3, 3), "p4").shape
        torch.Size([8, 20, 3, 3, 3])
    """
    group = SpatialGroup(spatial)
    if group.order == 1:
        return weight
    if weight.shape[-2] != weight.shape[-1]:
        raise ValueError(
            f"spatial={spatial!r} turns filters, which must be square; got {list(weight.shape)}"
        )
    if not of_images and weight.shape[1] % group.order:
        raise ValueError(
            f"spatial={spatial!r} expects filters [O, C * {group.order}, n, k, k], got "
            f"{list(weight.shape)}"
        )
    elements = weight.unsqueeze(2) if of_images else weight.unflatten(1, (-1, group.order))
    rows = [
        group.transform(elements if of_images else group.permute(elements, s, 2), s)
        for s in range(group.order)
    ]
    return torch.stack(rows, 1).flatten(0, 1).flatten(1, 2)


def _spatial_bias(bias: Tensor | None, spatial: str) -> Tensor | None:
    """A bias ``[O]`` for the rows of :func:`spatial_bank`, ``[O * m]``."""
    order = SpatialGroup(spatial).order
    return bias if bias is None or order == 1 else bias[:, None].expand(-1, order).flatten()


def coset_max_pool(x: Tensor, spatial: str = "p1") -> Tensor:
    """Maximum over the rotations, ``[B, C, n, H, W]`` to ``[B, C, H, W]``: hue-invariant.

    With ``spatial``, also over the elements of that group, from ``[B, C * m, n, H, W]``. A turn of
    the image then turns the result.

    Example:
        >>> coset_max_pool(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
        >>> coset_max_pool(torch.rand(2, 4 * 8, 3, 8, 8), "p4m").shape
        torch.Size([2, 4, 8, 8])
    """
    _checks.features("coset_max_pool", x)
    return x.amax(2) if spatial == "p1" else SpatialGroup(spatial).by_element(x).amax((2, 3))


def coset_avg_pool(x: Tensor, spatial: str = "p1") -> Tensor:
    """Mean over the rotations, ``[B, C, n, H, W]`` to ``[B, C, H, W]``: hue-invariant.

    With ``spatial``, also over the elements of that group, from ``[B, C * m, n, H, W]``. A turn of
    the image then turns the result.

    Example:
        >>> coset_avg_pool(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """
    _checks.features("coset_avg_pool", x)
    return x.mean(2) if spatial == "p1" else SpatialGroup(spatial).by_element(x).mean((2, 3))


def coset_flatten(x: Tensor) -> Tensor:
    """Rotations into channels, ``[B, C, n, H, W]`` to ``[B, C * n, H, W]``: not invariant.

    Channel ``c * n + k`` is rotation ``k`` of channel ``c``.

    Example:
        >>> coset_flatten(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 12, 8, 8])
    """
    _checks.features("coset_flatten", x)
    return x.flatten(1, 2)


def dense_filters(weight: Tensor, pointwise_weight: Tensor | None, rotations: int) -> Tensor:
    """The bank ``[n, O, C/g, n, kh, kw]`` with ``F[o, c, (r - k) mod n]`` at ``[k, o, c, r]``."""
    full = weight if pointwise_weight is None else weight * pointwise_weight
    # Not full[:, :, index], whose gradient is summed in an order that varies between threads.
    return torch.stack([full.roll(k, 2) for k in range(rotations)])


def cyclic_filters(
    weight: Tensor, pointwise_weight: Tensor | None, tables: CyclicAlgorithm
) -> Tensor:
    """The filters ``[r, O, C/g, kh, kw]`` of the cyclic algorithm's products, ``B w``."""
    return mix_filters(weight, pointwise_weight, tables.filters).to(weight.dtype)


def mix_filters(weight: Tensor, pointwise_weight: Tensor | None, matrix: Tensor) -> Tensor:
    """Filters mixed over the rotations by ``matrix [m, n]``: ``[m, O, C/g, kh, kw]``.

    The result is in at least float32, also for separable filters.
    """
    group_part = weight if pointwise_weight is None else pointwise_weight
    by_rotation = group_part.movedim(2, 0)  # [n, O, C/g, kh or 1, kw or 1]
    mixed = exact_matmul(matrix, by_rotation.flatten(1))
    mixed = mixed.view(-1, *by_rotation.shape[1:])
    return mixed if pointwise_weight is None else mixed * weight.squeeze(2)


def pack_filters(filters: Tensor) -> Tensor:
    """Filters ``[r, O, C/g, kh, kw]`` in autocast's dtype and channels_last memory.

    All at once: otherwise each of the r convolutions would launch two small kernels, and two more
    for the gradients.
    """
    pixels = filters.permute(0, 1, 3, 4, 2)
    pixels = pixels.to(compute_dtype(filters), memory_format=torch.contiguous_format)
    return pixels.contiguous().permute(0, 1, 4, 2, 3)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a tensor is convolved: autocast's, or its own."""
    if _checks.autocasting(x.device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def _conv2d(images: Tensor, weight: Tensor, bias: Tensor | None, options: _Options) -> Tensor:
    """:func:`torch.nn.functional.conv2d` without a bug of oneDNN 3.12, torch's library on CPUs.

    For 1 x 1 filters with a stride and fewer channels than a block, in channels_last memory, its
    gradient of the filters writes past the end of a buffer: wrong gradients or a crash, see
    https://github.com/uxlfoundation/oneDNN/issues/6035. Slicing the images by the stride, before a
    convolution without one, gives the same result.
    """
    stride, padding, dilation, groups = options
    rows, columns = (stride, stride) if isinstance(stride, int) else stride
    if (
        (rows > 1 or columns > 1)
        and weight.shape[2:] == (1, 1)
        and weight.shape[1] < _ONEDNN_BLOCK
        and padding in (0, (0, 0), "valid")
        and images.device.type == "cpu"
        and torch.is_grad_enabled()
        and not torch.compiler.is_exporting()
    ):
        images, stride = channels_last(images[..., ::rows, ::columns]), 1
    return F.conv2d(images, weight, bias, stride, padding, dilation, groups)


def _dense_conv2d(
    x: Tensor, weight: Tensor, pointwise_weight: Tensor | None, options: _Options
) -> Tensor:
    """One convolution of n * C channels, ordered (rotation, channel) within a channel group."""
    n, groups = x.shape[2], options[-1]
    filters = dense_filters(weight, pointwise_weight, n)  # [k, O, C/g, r, kh, kw]
    bank = filters.unflatten(1, (groups, -1)).permute(1, 0, 2, 4, 3, 5, 6)
    channels = x.unflatten(1, (groups, -1)).permute(0, 1, 3, 2, 4, 5)  # [B, g, r, C/g, H, W]
    bank = bank.flatten(0, 2).flatten(1, 2)
    y = _conv2d(channels_last(channels.flatten(1, 3)), bank, None, options)
    by_rotation: Tensor = y.permute(0, 2, 3, 1).unflatten(3, (groups, n, -1))
    return by_rotation.permute(0, 3, 5, 4, 1, 2).flatten(1, 2)


def _cyclic_conv2d(
    x: Tensor,
    weight: Tensor,
    pointwise_weight: Tensor | None,
    options: _Options,
    tables: CyclicAlgorithm,
) -> Tensor:
    r"""One convolution of C channels for each product: :math:`y = C^\top ((A x) \circ (B w))`."""
    filters = cyclic_filters(weight, pointwise_weight, tables)
    if x.is_cuda and not torch.compiler.is_compiling():
        filters = pack_filters(filters)
    parts = mix_apart(tables.analysis, x.permute(2, 0, 1, 3, 4))
    if torch.compiler.is_compiling():
        parts = tuple(map(channels_last, parts))
    products = [
        _conv2d(part, kernel, None, options) for part, kernel in zip(parts, filters, strict=True)
    ]
    return mix_together(tables.synthesis.T, products).permute(1, 2, 0, 3, 4)


def check_symmetric(
    spatial: str,
    kernel_size: tuple[int, ...],
    stride: int | tuple[int, ...],
    padding: Padding,
    dilation: int | tuple[int, ...],
) -> None:
    """With turns, refuse options that treat height and width, or opposite sides, differently."""
    if SpatialGroup(spatial).order == 1:
        return
    options = {
        "kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation,
    }  # fmt: skip
    for name, value in options.items():
        if isinstance(value, tuple) and value[0] != value[-1]:
            raise ValueError(
                f"spatial={spatial!r} exchanges height and width: {name} must be the same for "
                f"both, got {value}"
            )
    step = dilation[0] if isinstance(dilation, tuple) else dilation
    if padding == "same" and step * (kernel_size[0] - 1) % 2:
        raise ValueError(
            f"spatial={spatial!r} needs equal padding on opposite sides: with padding='same' "
            f"kernel_size must be odd, got {kernel_size[0]}"
        )


def _check_filters(
    x: Tensor,
    weight: Tensor,
    pointwise_weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    tables: CyclicAlgorithm | None,
) -> None:
    """Refuse filters that do not fit the features; operations would broadcast some silently."""
    n, shape = x.shape[2], list(weight.shape)
    if weight.ndim != 5:
        raise ValueError(f"ce_conv2d expects filters [O, C/g, n or 1, kh, kw], got {shape}")
    group_shape = shape if pointwise_weight is None else list(pointwise_weight.shape)
    if pointwise_weight is not None and shape[2] != 1:
        raise ValueError(f"with pointwise_weight, weight is [O, C/g, 1, kh, kw]; got {shape}")
    if group_shape[:2] != shape[:2]:
        raise ValueError(
            "weight and pointwise_weight must have the same channels, got "
            f"{shape} and {group_shape}"
        )
    if group_shape[2] != n:
        raise ValueError(
            f"features have {n} rotations but filters have {group_shape[2]}: {group_shape}"
        )
    if shape[0] % groups:
        raise ValueError(f"{shape[0]} filters cannot be divided into {groups} groups: {shape}")
    if shape[1] * groups != x.shape[1]:
        raise ValueError(
            f"filters for {shape[1] * groups} channels got features with {x.shape[1]}: "
            f"{list(x.shape)}"
        )
    if bias is not None and list(bias.shape) != shape[:1]:
        raise ValueError(f"expected a bias [{shape[0]}], got {list(bias.shape)}")
    if tables is not None and tables.order != n:
        raise ValueError(f"features have {n} rotations but tables have {tables.order}")
