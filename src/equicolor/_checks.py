"""Argument checks shared by the package: each error names what was expected and what came."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class WrongTypeError(TypeError, ValueError):
    """An argument of a type it cannot have; a ValueError too, for those who catch bad input."""


# Larger numbers are typos: they would overflow, need too much memory or never end.
MOST = {
    "rotations": 1_000, "width": 65_536, "size": 32_768, "image_size": 32_768,
    "resize": 32_768, "shifts": 100_000, "num_classes": 10_000_000, "epochs": 1_000_000_000,
    "batch_size": 1_000_000_000, "seeds": 1_000_000, "workers": 1_024,
    "seed": 2**32 - 1,
}  # fmt: skip


def positive_int(name: str, value: object) -> int:
    """Return ``value`` if it is an integer of at least 1, and not above its limit."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError(f"{name} must be an int, got {type(value).__name__}: {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    if value > MOST.get(name, value):
        raise ValueError(f"{name} must be at most {MOST[name]:,}, got {value}")
    return value


MARGIN = 0.01  # how far resampling may carry images out of [0, 1]

# Old names of values, and what they are called now.
_RENAMED = {
    ("action", "rotate"): "rgb",
    ("action", "rotate-clip"): "rgb-clip",
    ("precision", "32"): "float32",
    ("precision", "fp32"): "float32",
    ("precision", "bf16"): "bfloat16",
}


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Return ``value`` if it is among ``allowed``."""
    if value not in allowed:
        new = _RENAMED.get((name, value)) if isinstance(value, str) else None
        hint = f", which is called {new!r} now" if new else ""
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}{hint}"
        )
    return value


def int_pair(name: str, value: object, *, minimum: int) -> tuple[int, int]:
    """Return an int or a pair of ints as a pair, each at least ``minimum``."""
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2 or any(isinstance(v, bool) or not isinstance(v, int) for v in pair):
        what = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise WrongTypeError(f"{name} must be an int or a pair of ints, got {what}")
    if min(pair) < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}")
    return pair


def probability(name: str, value: float) -> float:
    """Return ``value`` if it lies in [0, 1]."""
    if not (isinstance(value, (int, float)) and math.isfinite(value) and 0 <= value <= 1):
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
    return value


def rgb_images(name: str, images: Tensor, *, kind: str = "RGB") -> None:
    """Refuse anything that is not a floating-point tensor ``[..., 3, H, W]``."""
    if not isinstance(images, Tensor):
        raise TypeError(f"{name} expects a torch.Tensor, got {type(images).__name__}")
    if not images.is_floating_point():
        raise TypeError(
            f"{name} expects floating-point images in [0, 1], got {images.dtype}; "
            "divide 8-bit images by 255 first"
        )
    if images.ndim < 3 or images.shape[-3] != 3:
        raise ValueError(f"{name} expects {kind} images [..., 3, H, W], got {list(images.shape)}")


def precise_images(name: str, images: Tensor, *, kind: str = "RGB") -> Tensor:
    """Check images as :func:`rgb_images`, and return them in at least float32.

    Colours need more than the 8 bits of bfloat16.
    """
    rgb_images(name, images, kind=kind)
    return images.float() if images.dtype in (torch.float16, torch.bfloat16) else images


def per_image(
    name: str, what: str, value: object, images: Tensor, *, each: tuple[int, ...] = ()
) -> Tensor:
    """Return a value for all images, or one per image, as a tensor.

    Images ``[..., 3, H, W]`` take tensors of shape ``each`` or ``[..., *each]``. Numbers become
    float64 on the CPU and must be finite. Values of tensors are not checked: that would wait for
    a GPU.
    """
    if not isinstance(value, Tensor):
        numbers: Sequence[Any] = value if each and isinstance(value, (list, tuple)) else [value]
        if any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in numbers):
            raise TypeError(f"{name} expects a {what} or a tensor, got {value!r}")
        if not all(abs(n) < math.inf for n in numbers):
            raise ValueError(f"{name} expects a finite {what}, got {value!r}")
        value = torch.tensor(value, dtype=torch.float64, device="cpu")
    shape = *images.shape[:-3], *each
    if value.shape not in (each, shape):
        raise ValueError(
            f"{name} expects one {what} or one per image {list(shape)}, got {list(value.shape)}"
        )
    return value


def image_batch(name: str, images: Tensor) -> None:
    """Refuse anything that is not a batch of RGB images ``[B, 3, H, W]``."""
    rgb_images(name, images)
    if images.ndim != 4:
        hint = "; add the batch dimension with images.unsqueeze(0)" if images.ndim == 3 else ""
        raise ValueError(
            f"{name} expects a batch of RGB images [B, 3, H, W], got {list(images.shape)}{hint}"
        )


def images_in_range(name: str, images: Tensor) -> None:
    """Refuse anything that is not a batch of RGB images in [0, 1], give or take ``MARGIN``.

    This reads the values, so it waits for a GPU.
    """
    image_batch(name, images)
    if not images.numel():
        return
    low, high = (float(value) for value in images.detach().aminmax())
    if not (low >= -MARGIN and high <= 1 + MARGIN):  # also refuses NaN
        raise ValueError(
            f"{name} expects images in [0, 1], but got values from {low:.3g} to {high:.3g}: leave "
            "out your own normalisation, and divide 8-bit images by 255"
        )


def features(
    name: str,
    x: Tensor,
    *,
    channels: int | None = None,
    rotations: int | None = None,
    elements: int = 1,
) -> None:
    """Refuse anything that is not a batch of features ``[B, C, n, H, W]``.

    A spatial group multiplies the channels by its elements.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} expects a torch.Tensor, got {type(x).__name__}")
    shape = list(x.shape)
    if x.ndim != 5:
        hint = ""
        if x.ndim == 4:
            hint = "; lift images with CELiftConv2d first, or add the batch dimension to features"
        raise ValueError(f"{name} expects features [B, C, n, H, W], got {shape}{hint}")
    if rotations is not None and shape[2] != rotations:
        raise ValueError(f"{name} got features with {shape[2]} rotations: {shape}")
    if channels is not None and shape[1] != channels * elements:
        each = "" if elements == 1 else f" ({channels} of {elements} elements each)"
        raise ValueError(
            f"{name} expects {channels * elements} channels{each}, got {shape[1]}: {shape}"
        )


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for a device."""
    # Meta tensors have no autocast, and torch 2.11 cannot compile is_autocast_available.
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def same_dtype(name: str, x: Tensor, weight: Tensor) -> None:
    """Refuse an input whose dtype differs from the weights' outside autocast."""
    if x.dtype != weight.dtype and not autocasting(x.device):
        raise TypeError(
            f"{name} has {weight.dtype} weights but got {x.dtype} input; "
            f"convert one of them, or use torch.autocast"
        )
