"""Which mean and standard deviation a network expects of its images."""

from typing import Any, NamedTuple

import torch
from torch import nn

from equicolor.conversion.supported import ConversionError
from equicolor.models.foreign import ForeignNetwork
from equicolor.models.layers import IMAGENET_MEAN, IMAGENET_STD
from equicolor.models.registry import Network

__all__ = ["Normalization", "find_normalization"]


class Normalization(NamedTuple):
    """Mean and standard deviation per channel; None for a network that takes plain images."""

    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


_NONE = Normalization(None, None)


def find_normalization(model: nn.Module, given: Any = "auto") -> Normalization:
    """The normalisation of a network, as given or as its metadata says.

    Args:
        model: the network.
        given: ``"auto"`` reads the metadata of timm's networks and knows that equicolor's take
            images as they are; ``"imagenet"``; a pair (mean, std); a member of a torchvision
            weights enum; or None for a network that takes images in [0, 1].

    Raises:
        ConversionError: if nothing is known of it.

    Example:
        >>> find_normalization(nn.Identity(), ((0.5,), (0.25,)))
        Normalization(mean=(0.5,), std=(0.25,))
        >>> find_normalization(nn.Identity(), None)
        Normalization(mean=None, std=None)
    """
    numbers = _find(model, given)
    mean, std = numbers.mean or (0.0,), numbers.std or (1.0,)
    if not 0 <= min(mean) <= max(mean) <= 1 or max(std) > 1:
        raise ConversionError(
            f"the normalisation of images in [0, 1] has a mean in [0, 1] and a std of at most 1, "
            f"got mean {list(mean)} and std {list(std)}: divide those of 8-bit images by 255"
        )
    return numbers


def _find(model: nn.Module, given: Any) -> Normalization:
    if given is None:
        return _NONE
    if isinstance(given, str):
        if given == "imagenet":
            return Normalization(IMAGENET_MEAN, IMAGENET_STD)
        if given == "auto":
            return _from_metadata(model)
    elif isinstance(given, type):
        raise ConversionError(
            f"normalization must be a member of {given.__name__}, such as "
            f"{given.__name__}.DEFAULT; got the class itself"
        )
    elif hasattr(given, "transforms"):
        preset = given.transforms()
        if hasattr(preset, "mean") and hasattr(preset, "std"):
            return Normalization(tuple(preset.mean), tuple(preset.std))
    elif isinstance(given, (tuple, list)) and len(given) == 2:
        return Normalization(*(tuple(_numbers(each)) for each in given))
    raise ConversionError(f"normalization must be {_FORMS}; got {given!r}")


_FORMS = (
    "'imagenet', a pair (mean, std), a member of a torchvision weights enum such as "
    "ResNet18_Weights.DEFAULT, or None for a network that takes images in [0, 1] as they are"
)


def _numbers(given: Any) -> list[float]:
    """The numbers of a sequence, a tensor, an array, or one alone."""
    try:
        values: list[float] = (
            torch.as_tensor(given, dtype=torch.float64, device="cpu").flatten().tolist()
        )
    except (TypeError, ValueError, RuntimeError):
        raise ConversionError(f"mean and std must be numbers, got {given!r}") from None
    return values


def _from_metadata(model: nn.Module) -> Normalization:
    if isinstance(model, Network):
        return _NONE  # ours take images in [0, 1], and normalise inside where they need it
    if isinstance(model, ForeignNetwork):
        numbers = (tuple(t.flatten().tolist()) for t in (model.mean.double(), model.std.double()))
        return _NONE if model.plain else Normalization(*numbers)
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    if isinstance(config, dict) and "mean" in config and "std" in config:
        return Normalization(tuple(config["mean"]), tuple(config["std"]))
    raise ConversionError(
        f"nothing says how {type(model).__name__} expects its images to be normalised, and hue is "
        f"defined for images in [0, 1]: pass normalization={_FORMS}"
    )
