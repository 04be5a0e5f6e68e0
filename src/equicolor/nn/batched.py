"""Equivariant layers that keep the rotations in the batch, for networks written without them.

Features are ``[n * B, C, H, W]``, rotation-major: entry ``k * B + b`` is rotation ``k`` of
image ``b``, the layout of :mod:`equicolor.nn.layout`. All operations that treat the images of a
batch alike (residual sums, concatenation, norms, pooling, squeeze-excite) are equivariant then,
and the code of any convolutional network runs unchanged. Only layers that should mix the
rotations, or draw random numbers, are replaced by those of this module.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equicolor import _checks
from equicolor._observed import is_captured, is_traced
from equicolor.groups import HueGroup
from equicolor.nn import functional
from equicolor.nn.constants import DerivedConstants
from equicolor.nn.conv import CEConv2d
from equicolor.nn.layout import channels_last, from_pixels, to_features, to_images, to_pixels

COSET_POOLS = ("max", "avg", "confidence", None)
TAKES = ("images", "normalized")
# A rotation about the grey axis takes colours of the cube no further than this.
_LOWEST, _HIGHEST = -1 / 3, 4 / 3
_SLACK = 0.01
_CHECKED_CALLS = 3  # on devices other than the CPU, where a check has to wait
_NOT_IMAGES = (
    "a converted network takes images in [0, 1] and normalises them itself, but got {came}: leave "
    "out your own normalisation, and divide 8-bit images by 255 (check_range=False turns this "
    "check off)"
)


def split_rotations(name: str, x: Tensor, rotations: int) -> Tensor:
    """A batch ``[n * B, ...]`` as ``[n, B, ...]``."""
    if not torch.compiler.is_compiling() and x.shape[0] % rotations:
        raise ValueError(
            f"{name} expects a batch of {rotations} rotations, [{rotations} * B, ...], got "
            f"{list(x.shape)}"
        )
    return x.unflatten(0, (rotations, -1))


class BatchedCEConv2d(CEConv2d):
    """:class:`equicolor.nn.CEConv2d` on features ``[n * B, C, H, W]``.

    The output has the memory format of the input, contiguous or channels_last, as with plain
    convolutions: the code of a network may rely on it, as ``x.view(len(x), -1)`` does. It is
    computed in channels_last memory, which costs no copy; contiguous memory costs two.

    ``pad_to_stride`` pads images so that there are ``ceil(size / stride)`` outputs, more at the
    end than at the beginning, as TensorFlow's "SAME" does.
    """

    def __init__(self, *args: Any, pad_to_stride: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pad_to_stride = pad_to_stride

    def reset_parameters(self) -> None:
        """Draw spatial filters as the plain layer does, and group filters of variance 1/n.

        The paper draws group filters from U(±1/sqrt(fan-in)) as well, which scales the outputs
        of every layer down. Norms undo that in the paper's networks, but networks without norms
        would lose the signal. With variance :math:`1/n` the scale stays.
        """
        super().reset_parameters()
        if self.pointwise_weight is None:
            return
        bound = (self.in_channels // self.groups * math.prod(self.kernel_size)) ** -0.5
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                nn.init.uniform_(parameter, -bound, bound)
        bound = math.sqrt(3 / self.rotations)
        nn.init.uniform_(self.pointwise_weight, -bound, bound)

    def set_identity(self) -> None:
        """Set the group filters to the identity: the plain convolution of each rotation."""
        assert self.pointwise_weight is not None
        with torch.no_grad():
            self.pointwise_weight.zero_()
            self.pointwise_weight[:, :, 0] = 1

    def is_identity(self) -> bool:
        """Whether the group filters are the identity."""
        group = self.pointwise_weight
        return group is not None and bool(
            (group[:, :, 0] == 1).all() & (group[:, :, 1:] == 0).all()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[n * B, C_in, H, W]`` to features ``[n * B, C_out, H', W']``."""
        if self.pad_to_stride:
            x = pad_to_stride(x, self.kernel_size, self.stride, self.dilation)
        return self._convolve(x, pixels=_is_channels_last(x))

    def _convolve(self, x: Tensor, *, pixels: bool = True) -> Tensor:
        """Convolve; with ``pixels`` in channels_last memory, else in contiguous memory."""
        split_rotations(type(self).__name__, x, self.rotations)  # checks the batch
        if pixels:
            return to_pixels(super().forward(from_pixels(x, self.rotations)))
        return to_images(super().forward(to_features(x, self.rotations))).contiguous()


class BatchedCELinear(BatchedCEConv2d):
    """:class:`torch.nn.Linear` on ``[n * B, ..., C]`` that also mixes the rotations.

    Takes the options of :class:`equicolor.nn.CEConv2d`.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, **options: Any
    ) -> None:
        super().__init__(in_features, out_features, 1, bias=bias, **options)
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[n * B, ..., C_in]`` to features ``[n * B, ..., C_out]``."""
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"BatchedCELinear expects {self.in_features} features in the last dimension, got "
                f"{list(x.shape)}"
            )
        places = x.unsqueeze(1) if x.ndim == 2 else x.flatten(1, -2)
        # Places as pixels: a view, since channels come last in memory.
        y = self._convolve(places.transpose(1, 2).unsqueeze(-1))
        return y.squeeze(-1).transpose(1, 2).reshape(*x.shape[:-1], self.out_features)


class BatchedCosetPool(nn.Module):
    """Pool the rotations of a batch ``[n * B, ...]``, which ends the equivariant part.

    The kinds ``"max"`` and ``"avg"`` give ``[B, ...]``, hue-invariant; None keeps the rotations
    apart, ``[B, n, ...]``. The kind ``"confidence"`` takes logits ``[n * B, C]`` and gives every
    image those of one rotation, ``[B, C]``: the one whose best class has the largest probability,
    see :func:`confidence`. Gradients go to that rotation. The result is hue-invariant where one
    rotation is surest; of two that are equally sure but differ, the first is taken.

    Example:
        >>> logits = torch.tensor([[1.0, 1.0], [0.0, 5.0], [3.0, 0.0], [0.0, 4.0]])  # of two images
        >>> BatchedCosetPool(2, "confidence")(logits)
        tensor([[3., 0.],
                [0., 5.]])
    """

    def __init__(self, rotations: int, kind: str | None = "max") -> None:
        super().__init__()
        self.rotations = _checks.positive_int("rotations", rotations)
        if kind not in COSET_POOLS:
            raise ValueError(f"coset_pool must be 'max', 'avg', 'confidence' or None, got {kind!r}")
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[n * B, ...]`` to ``[B, ...]``, or ``[B, n, ...]``."""
        if self.kind == "confidence" and (x.ndim != 2 or x.shape[1] < 2):
            raise ValueError(
                "coset_pool='confidence' takes logits [n * B, C] of at least 2 classes, got "
                f"{list(x.shape)}"
            )
        is_last = self.kind is not None and x.ndim == 4 and _is_channels_last(x)
        x = x.permute(0, 2, 3, 1) if is_last else x
        parts = split_rotations("BatchedCosetPool", x, self.rotations)
        if self.kind is None:
            return parts.transpose(0, 1)
        if self.kind == "confidence":
            exact = parts if parts.dtype == torch.float64 else parts.float()
            return choose_rotation(parts, confidence(exact))
        # The gradient of the maximum needs its result, which the next layer may change in place.
        pooled = parts.amax(0).clone() if self.kind == "max" else parts.mean(0)
        return pooled.permute(0, 3, 1, 2) if is_last else pooled

    def extra_repr(self) -> str:  # noqa: D102
        return f"rotations={self.rotations}, kind={self.kind!r}"


def confidence(logits: Tensor) -> Tensor:
    """How sure logits ``[..., C]`` are of their best class: its log-odds, ``[..., 1]``.

    Log-odds give the same order as the largest log-softmax. But log-softmax rounds to 0 where the
    best class leads by more than 17 (in float32), so that all such logits would be equally sure.
    """
    ordered = logits.sort(-1, descending=True)[0]
    return ordered[..., :1] - ordered[..., 1:].logsumexp(-1, keepdim=True)


def choose_rotation(parts: Tensor, scores: Tensor) -> Tensor:
    """The rotation of every image in ``[n, B, ...]`` with the largest score ``[n, B, 1, ...]``."""
    choice = scores.argmax(0, keepdim=True).expand_as(parts[:1])
    return parts.gather(0, choice).squeeze(0)


class BatchedDropout(nn.Module):
    """Dropout with one mask for all rotations of an image, which keeps equivariance.

    ``channels`` drops whole channels, as :class:`torch.nn.Dropout2d` does.
    """

    def __init__(self, p: float, *, rotations: int, channels: bool = False) -> None:
        super().__init__()
        self.p = _checks.probability(f"{type(self).__name__} p", p)
        self.rotations, self.channels = rotations, channels

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[n * B, ...]`` to features of the same shape."""
        if not self.training or not self.p:
            return x
        parts = split_rotations(type(self).__name__, x, self.rotations)
        return (parts * self._mask(parts[0])).flatten(0, 1)

    def _mask(self, x: Tensor) -> Tensor:
        """The mask of features ``[B, ...]``."""
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if self.channels else x.shape
        return F.dropout(x.new_ones(shape), self.p)

    def extra_repr(self) -> str:  # noqa: D102
        return f"p={self.p}, rotations={self.rotations}, channels={self.channels}"


class BatchedStochasticDepth(BatchedDropout):
    """Drop a residual branch for an image, in all its rotations at once.

    ``scale`` divides branches that are not dropped by ``1 - p``.
    """

    def __init__(self, p: float, *, rotations: int, scale: bool = True) -> None:
        super().__init__(p, rotations=rotations)
        self.scale = scale

    def _mask(self, x: Tensor) -> Tensor:
        mask = F.dropout(x.new_ones(len(x), *[1] * (x.ndim - 1)), self.p)
        return mask if self.scale else mask.sign()

    def extra_repr(self) -> str:  # noqa: D102
        return f"p={self.p}, rotations={self.rotations}"


class RangeCheck:
    """Refuses images far outside [0, 1], which were normalised or not divided by 255.

    Values from -1/3 to 4/3 are accepted, since an unclipped rotation about the grey axis gives
    them. On the CPU every call is checked. On other devices only the first three are, because a
    check has to wait for the device. Under torch.compile and export nothing is checked.

    ``message`` is the error, with ``{came}`` where the values of the images go.
    """

    def __init__(self, message: str) -> None:
        self.message = message
        self._calls_left = _CHECKED_CALLS

    def __call__(self, images: Tensor) -> None:
        """Raise a ValueError for images of any shape that are out of range."""
        low, high = self._extremes(images)
        if not (low >= _LOWEST - _SLACK and high <= _HIGHEST + _SLACK):  # also for NaN
            raise ValueError(self.message.format(came=f"values from {low:.3g} to {high:.3g}"))

    def _extremes(self, images: Tensor) -> tuple[float, float]:
        """The lowest and highest value, or 0 and 1 where they are not checked."""
        if is_traced() or images.is_meta or not images.numel():
            return 0, 1
        if images.device.type != "cpu":
            if not self._calls_left or is_captured(images):
                return 0, 1
            self._calls_left -= 1
        low, high = images.detach().aminmax()
        return float(low), float(high)


class HueLift(DerivedConstants):
    r"""Images in every hue, normalised: :math:`[B, 3, H, W]` to :math:`[n \cdot B, 3, H, W]`.

    Entry :math:`k B + b` is image :math:`b` shifted by :math:`-k/n` turns. A plain convolution
    of it is the lifting convolution of the paper. Hue is defined for images in [0, 1], so images
    are normalised after the shift.

    Images far outside [0, 1] are refused, see :class:`RangeCheck`.

    With ``takes="normalized"``, images come normalised: this is undone before the shift and done
    again after it. With ``padded``, pixels that are zero in all channels are not changed: detectors
    pad normalised images with zeros to one size.
    """

    matrices: Tensor
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        rotations: int,
        lifting: str = "hsv",
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        takes: str = "images",
        padded: bool = False,
        check_range: bool = True,
    ) -> None:
        super().__init__()
        self.rotations = _checks.positive_int("rotations", rotations)
        self.lifting = _checks.one_of("lifting", lifting, functional.LIFTINGS)
        self.takes = _checks.one_of("takes", takes, TAKES)
        if (mean is None) != (std is None):
            raise ValueError(f"mean and std belong together, got mean={mean} and std={std}")
        self.normalizes = mean is not None
        if takes == "normalized" and not self.normalizes:
            raise ValueError("takes='normalized' needs the mean and std that images come with")
        if padded and takes != "normalized":
            raise ValueError(
                "padded=True needs takes='normalized', where zeros are no colour; got "
                f"takes={takes!r}, where they are black"
            )
        self.numbers = {"mean": _triple("mean", mean, 0.0), "std": _triple("std", std, 1.0)}
        if min(self.numbers["std"]) <= 0:
            raise ValueError(f"std must be positive, got {list(self.numbers['std'])}")
        self.padded, self.check_range = padded, check_range
        normalized = (
            f"images normalised with mean {list(self.numbers['mean'])} and std "
            f"{list(self.numbers['std'])} were expected, but undoing that gives {{came}} "
            "instead of 0 to 1"
        )
        self._check = RangeCheck(_NOT_IMAGES if takes == "images" else normalized)
        self._reset_constants()

    def _constants(self) -> dict[str, Tensor]:
        constants = {
            name: torch.tensor(values, dtype=torch.float64, device="cpu").view(3, 1, 1)
            for name, values in self.numbers.items()
        }
        return constants | {"matrices": HueGroup(self.rotations).matrices}

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to images ``[n * B, 3, H, W]``."""
        _checks.image_batch("a converted network", images)
        plain = images * self.std + self.mean if self.takes == "normalized" else images
        if self.check_range:
            self._check(plain)
        matrices = self.matrices if self.lifting == "rgb" else None
        orbit = functional.hue_orbit(plain, self.rotations, self.lifting, matrices=matrices)
        lifted = (orbit - self.mean) / self.std if self.normalizes else orbit
        if self.padded:
            lifted = torch.where((images == 0).all(1, keepdim=True), images, lifted)
        batch = lifted.to(images.dtype).flatten(0, 1)
        return channels_last(batch) if _is_channels_last(images) else batch

    def extra_repr(self) -> str:  # noqa: D102
        numbers = ", ".join(f"{name}={list(values)}" for name, values in self.numbers.items())
        normalization = f", {numbers}" if self.normalizes else ""
        return f"{self.rotations}, {self.lifting!r}, takes={self.takes!r}{normalization}"


def pad_to_stride(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """Pad images so that a convolution gives ``ceil(size / stride)`` outputs."""
    sides: list[int] = []
    for size, k, s, d in zip(x.shape[-2:], kernel, stride, dilation, strict=True):
        lack = max((math.ceil(size / s) - 1) * s + (k - 1) * d + 1 - size, 0)
        sides = [lack // 2, lack - lack // 2, *sides]
    return F.pad(x, sides)


def _is_channels_last(x: Tensor) -> bool:
    """Whether a plain convolution of these images would return channels_last memory.

    A slice of channels counts like the whole tensor. False if both formats are the same.
    """
    return x.stride(1) == 1 and not x.is_contiguous()


def _triple(name: str, values: Sequence[float] | None, default: float) -> tuple[float, ...]:
    if values is None:
        return (default,) * 3
    numbers = tuple(float(value) for value in values)
    numbers = numbers * 3 if len(numbers) == 1 else numbers
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{name} must hold 3 numbers, or 1 for all channels; got {list(values)}")
    return numbers
