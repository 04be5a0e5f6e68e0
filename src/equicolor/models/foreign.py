"""Networks of other libraries: torchvision's and timm's, by name."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equicolor._packages import import_vision
from equicolor._text import did_you_mean
from equicolor.models.layers import IMAGENET_MEAN, IMAGENET_STD
from equicolor.models.registry import usual_resize


class ForeignNetwork(nn.Module):
    """A network that was not made by equicolor, with the normalisation it expects in front.

    Args:
        network: maps normalised images :math:`[B, 3, H, W]` to logits :math:`[B, C]`.
        name: for tables.
        mean, std: of the normalisation, per channel.
        image_size: height and width it was trained for.
        resize: the short side of an image before its centre is cropped; None for the usual one.
        class_names: the names of the outputs; empty if unknown.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        name: str,
        *,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        image_size: int = 224,
        resize: int | None = None,
        class_names: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.network, self.name, self.image_size = network, name, image_size
        self.resize = usual_resize(image_size) if resize is None else resize
        self.class_names = tuple(class_names)
        self.plain = tuple(mean) == (0.0, 0.0, 0.0) and tuple(std) == (1.0, 1.0, 1.0)
        for key, values in (("mean", mean), ("std", std)):
            self.register_buffer(key, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in [0, 1] to logits ``[B, C]``."""
        images = images if self.plain else (images - self.mean) / self.std
        return self.network(images)


def load_foreign(spec: str, *, pretrained: bool = True, **options: Any) -> ForeignNetwork:
    """The network ``torchvision:NAME`` or ``timm:NAME`` behind the normalisation of its weights.

    ``pretrained`` loads the weights of the library, which may download them; ``options`` are other
    arguments of the library's builder, such as ``num_classes``.
    """
    library, _, name = spec.partition(":")
    if library not in LIBRARIES:
        forms = " or ".join(f"{each}:NAME" for each in LIBRARIES)
        raise ValueError(f"expected {forms}, got {spec!r}")
    try:
        return LIBRARIES[library](name, pretrained, options)
    except OSError as error:  # also what urllib and the Hugging Face Hub raise
        if not pretrained:
            raise
        raise OSError(
            f"the weights of {spec} could not be downloaded ({error}): try again with a "
            "connection, or take random weights with --no-pretrained (pretrained=False)"
        ) from error


def _from_torchvision(name: str, pretrained: bool, options: dict[str, Any]) -> ForeignNetwork:
    models = import_vision("torchvision").models
    if name not in models.list_models():
        raise _unknown("torchvision", name, models.list_models())
    offered = models.get_model_weights(name)
    weights = offered.DEFAULT if len(offered) else None
    if pretrained and weights is None:
        raise ValueError(f"torchvision offers no weights for {name}")
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        options.setdefault("weights_backbone", None)  # loaded by default, even without weights
    network = models.get_model(name, weights=weights if pretrained else None, **options)
    title = f"torchvision:{name}"
    if weights is None:
        return ForeignNetwork(network, title, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    preset = weights.transforms()
    if not hasattr(preset, "mean"):
        raise ValueError(f"{title} takes lists of images and normalises them itself: a detector")
    # Images for segmentation are not cropped.
    return ForeignNetwork(
        network,
        title,
        mean=preset.mean,
        std=preset.std,
        image_size=getattr(preset, "crop_size", preset.resize_size)[0],
        resize=preset.resize_size[0],
        class_names=weights.meta.get("categories", ()) if pretrained else (),
    )


def published_parameters(spec: str) -> int:
    """The number of parameters by torchvision's metadata; 0 if it is unknown."""
    library, _, name = spec.partition(":")
    if library != "torchvision":
        return 0
    offered = import_vision("torchvision").models.get_model_weights(name)
    return max((weights.meta["num_params"] for weights in offered), default=0)


def _from_timm(name: str, pretrained: bool, options: dict[str, Any]) -> ForeignNetwork:
    timm = import_vision("timm")
    # A name may say which of several weights, as in resnet18.a1_in1k.
    if not timm.is_model(name.partition(".")[0]):
        raise _unknown("timm", name, timm.list_models())
    network = timm.create_model(name, pretrained=pretrained, **options)
    data = import_vision("timm.data")
    config = data.resolve_model_data_config(network)
    # The outputs of random weights have no meaning.
    subset = data.infer_imagenet_subset(network) if pretrained else None
    classes = data.ImageNetInfo(subset) if subset else None
    size = config["input_size"][-1]
    return ForeignNetwork(
        network,
        f"timm:{name}",
        mean=config["mean"],
        std=config["std"],
        image_size=size,
        resize=round(size / config["crop_pct"]),
        class_names=classes.label_descriptions() if classes else (),
    )


LIBRARIES: dict[str, Callable[[str, bool, dict[str, Any]], ForeignNetwork]] = {
    "timm": _from_timm,
    "torchvision": _from_torchvision,
}


def _unknown(library: str, name: str, names: list[str]) -> ValueError:
    hint = did_you_mean(name, names, f"see the list of {library}")
    return ValueError(f"{library} has no network {name!r}; {hint}")
