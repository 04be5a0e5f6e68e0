"""What is known of a network: its origin, its normalisation and the size of its images."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from equicolor import _checks
from equicolor.conversion.dry_run import DryRun
from equicolor.conversion.supported import ConversionError
from equicolor.models.foreign import LIBRARIES, ForeignNetwork, load_foreign
from equicolor.models.layers import IMAGENET_MEAN, IMAGENET_STD
from equicolor.models.registry import Network, build_from_config, class_names_of, list_models

OURS = "equicolor"
# What a checkpoint may set in a network of torchvision or timm: sizes, and layers by name. Other
# arguments read files or download; a number of blocks could be huge.
_FILE_OPTIONS = frozenset(
    {
        "act_layer", "aux_logits", "aux_loss", "avg_down", "base_width", "bn_size", "cardinality",
        "channels", "conv_mlp", "dilated", "down_kernel_size", "drop_block_rate", "drop_path_rate",
        "drop_rate", "dropout", "global_pool", "groups", "growth_rate", "head_init_scale",
        "head_norm_first", "init_weights", "ls_init_value", "norm_layer", "num_classes",
        "output_stride", "pad_type", "proj_drop_rate", "reduce_first", "reduced_tail",
        "replace_stem_pool", "replace_stride_with_dilation", "stem_type", "stem_width",
        "stochastic_depth_prob", "transform_input", "width_mult", "width_per_group",
        "zero_init_last", "zero_init_residual",
    }
)  # fmt: skip
_WORD = re.compile(r"\w{0,40}")  # the name of a layer or of a kind of pooling: no path, no address


@dataclass(frozen=True)
class Source:
    """A network by name.

    Attributes:
        spec: ``equicolor:NAME``, ``torchvision:NAME`` or ``timm:NAME``.
        options: the arguments its builder was called with.
    """

    spec: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        library, colon, name = self.spec.partition(":")
        if library not in (OURS, *LIBRARIES) or not colon or not name:
            raise ValueError(
                f"source must be equicolor:NAME, torchvision:NAME or timm:NAME, got {self.spec!r}"
            )


def build_source(source: Source, more: Sequence[str] = ()) -> nn.Module:
    """The network of a source, as a checkpoint names it, without trained weights.

    ``more`` names builders beside those of :func:`equicolor.models.list_models`.

    Raises:
        ValueError: for options that could run code, read files or download.
    """
    library, _, name = source.spec.partition(":")
    if library == OURS:
        if name not in (*list_models(), *more):
            raise ValueError(f"a checkpoint cannot be built from {source.spec}")
        return build_from_config({"model": name, **source.options})
    for option, value in source.options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        plain = all(isinstance(v, (bool, int, float, type(None))) for v in values)
        if option not in _FILE_OPTIONS or not (
            plain or (isinstance(value, str) and _WORD.fullmatch(value))
        ):
            raise ValueError(
                f"a checkpoint may not set {option}={value!r} of {source.spec}: keep the "
                "state_dict() instead"
            )
    return load_foreign(source.spec, pretrained=False, **source.options).network


def source_of(model: nn.Module, source: str | Source | None, run: DryRun) -> Source | None:
    """Where a network came from: ``source``, or what the network says; None if unknown."""
    known = known_source(model, source)
    if known is None or known.options or isinstance(source, Source) or isinstance(model, Network):
        return known
    # Classes are the one option that nearly every network is built with.
    classifies = len(run.outputs) == 1 and len(run.outputs[0]) == 2
    return Source(known.spec, {"num_classes": run.outputs[0][1]} if classifies else {})


def known_source(model: nn.Module, source: str | Source | None) -> Source | None:
    """Where a network came from, without looking at what it computes; None if unknown."""
    if isinstance(source, Source):
        return source
    if source is not None:
        return Source(source)
    if isinstance(model, Network):
        options = dict(model.config)
        built = options.pop("model", None)
        # No file is built from a canonicalised network or from a selector.
        buildable = built in (*list_models(), "converted")
        return Source(f"{OURS}:{built}", options) if buildable else None
    name = model.name if isinstance(model, ForeignNetwork) else ""
    if not name and (architecture := _timm_config(model).get("architecture")):
        name = f"timm:{architecture}"
    if name.partition(":")[0] not in LIBRARIES:
        return None
    body = model.network if isinstance(model, ForeignNetwork) else model
    # timm's networks say it; torchvision's weights name the classes.
    classes = getattr(body, "num_classes", len(class_names_of(model)) or None)
    return Source(name, {"num_classes": classes} if isinstance(classes, int) else {})


def _timm_config(model: nn.Module) -> Mapping[str, Any]:
    """The metadata that timm's networks carry; empty for others."""
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    return config if isinstance(config, dict) else {}


def choose_image_size(model: nn.Module, image_size: int | None) -> int:
    """The height and width of images to try a network with."""
    if image_size is not None:
        return _checks.positive_int("image_size", image_size)
    size = getattr(model, "image_size", None)
    if isinstance(size, int):
        return size
    shape = _timm_config(model).get("input_size")
    return int(shape[-1]) if shape else 224


def choose_resize(model: nn.Module, size: int) -> int | None:
    """The short side before the centre is cropped, in the proportion of the network's training."""
    if isinstance(model, (ForeignNetwork, Network)):
        return None if model.resize is None else round(model.resize * size / model.image_size)
    crop_share = _timm_config(model).get("crop_pct")
    return round(size / float(crop_share)) if crop_share else None


_FORMS = (
    "'imagenet', a pair (mean, std), a member of a torchvision weights enum such as "
    "ResNet18_Weights.DEFAULT, or None for a network that takes images in [0, 1] as they are"
)


def find_normalization(
    model: nn.Module, normalization: Any
) -> tuple[list[float], list[float]] | tuple[None, None]:
    """Mean and standard deviation per channel; None for a network that takes plain images.

    The argument is that of :func:`equicolor.convert`.

    Raises:
        ConversionError: if it is unknown.
    """
    numbers = _mean_and_std(model, normalization)
    if numbers is None:
        return None, None
    mean, std = map(list, numbers)
    if not 0 <= min(mean) <= max(mean) <= 1 or max(std) > 1:
        raise ConversionError(
            f"the normalisation of images in [0, 1] has a mean in [0, 1] and a std of at most 1, "
            f"got mean {mean} and std {std}: divide those of 8-bit images by 255"
        )
    return mean, std


def _mean_and_std(model: nn.Module, normalization: Any) -> tuple[Iterable[float], ...] | None:
    """Mean and standard deviation; None for a network that takes plain images."""
    if normalization is None:
        return None
    if isinstance(normalization, str) and normalization == "imagenet":
        return IMAGENET_MEAN, IMAGENET_STD
    if isinstance(normalization, str) and normalization == "auto":
        return _from_metadata(model)
    if isinstance(normalization, type):
        raise ConversionError(
            f"normalization must be a member of {normalization.__name__}, such as "
            f"{normalization.__name__}.DEFAULT; got the class itself"
        )
    if isinstance(normalization, (tuple, list)) and len(normalization) == 2:
        return tuple(map(_numbers, normalization))
    preset: Any = normalization.transforms() if hasattr(normalization, "transforms") else None
    if not hasattr(preset, "mean") or not hasattr(preset, "std"):
        raise ConversionError(f"normalization must be {_FORMS}; got {normalization!r}")
    return preset.mean, preset.std


def _numbers(values: Any) -> list[float]:
    """The numbers of a sequence, a tensor, an array, or one alone."""
    try:
        numbers = torch.as_tensor(values, dtype=torch.float64, device="cpu").flatten().tolist()
    except (TypeError, ValueError, RuntimeError):
        numbers = []
    if not numbers:
        raise ConversionError(f"mean and std must be numbers, got {values!r}")
    return numbers


def _from_metadata(model: nn.Module) -> tuple[Iterable[float], ...] | None:
    if isinstance(model, Network):
        return None  # ours take images in [0, 1], and normalise inside where they need it
    if isinstance(model, ForeignNetwork):
        return None if model.plain else (_numbers(model.mean), _numbers(model.std))
    config = _timm_config(model)
    if "mean" in config and "std" in config:
        return config["mean"], config["std"]
    raise ConversionError(
        f"nothing says how {type(model).__name__} expects its images to be normalised, and hue is "
        f"defined for images in [0, 1]: pass normalization={_FORMS}"
    )
