"""Networks by name, each remembering the call that built it."""

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from torch import Tensor, nn

from equicolor import _checks
from equicolor._text import did_you_mean
from equicolor.color import to_gray


class OptionError(TypeError, ValueError):
    """An option that a network does not have."""


class Origin(NamedTuple):
    """The images that a network was trained on and how they were cut, as far as known."""

    image_size: int | None = None  # height and width of the images
    resize: int | None = None  # the short side of a test image before its centre is cropped
    # The name of the dataset or of the folder, without its path; empty if unknown.
    dataset: str = ""
    split_seed: int | None = None  # of the split, for datasets that come without one
    training_digest: str = ""  # of the training images, see equicolor.data.images.Listing

    def known(self) -> dict[str, Any]:
        """The values that are known, by name."""
        return {key: value for key, value in self._asdict().items() if value not in (None, "")}


def usual_resize(size: int) -> int:
    """The default short side of images before a centre of this size is cropped: 256 for 224."""
    return _checks.positive_int("size", size) * 8 // 7


class Network(nn.Module):
    """A network that knows the call that builds it and its names in the paper authors' code.

    Attributes:
        config: the builder's name under ``"model"`` and every argument, defaults included.
        resolved: arguments that the network chose itself, such as a matched width.
        image_size: the height and width of the images it was designed for, or trained on.
        class_names: the names of its outputs; empty if unknown.
        resize, dataset, split_seed, training_digest: see :class:`Origin`.
    """

    config: dict[str, Any]
    resolved: dict[str, Any]
    image_size: int = 224
    resize: int | None = None
    class_names: tuple[str, ...] = ()
    dataset: str = ""
    split_seed: int | None = None
    training_digest: str = ""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.resolved = {}, {}

    @property
    def origin(self) -> Origin:
        """The images that the network was trained on; unknown values of a new one are ignored."""
        return Origin(*(getattr(self, name) for name in Origin._fields))

    @origin.setter
    def origin(self, origin: Origin) -> None:
        for name, value in origin.known().items():
            setattr(self, name, value)

    def reference_key(self, key: str) -> str:
        """The name of a state-dict entry in the paper authors' code."""
        return key

    def same_outputs(self, rebuilt: "Network") -> bool:
        """Whether ``rebuilt``, a network with the same weights, computes the same."""
        return True


class GrayInput(Network):
    """The grey baseline: a network that sees the mean of the channels.

    The grey is part of the network, not of the images: a hue shift comes before it, and may
    change the mean. ``create_model(NAME, gray=True)`` makes one.

    Args:
        network: maps images :math:`[B, 3, H, W]` to logits :math:`[B, C]`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.image_size = getattr(network, "image_size", self.image_size)
        resize = getattr(network, "resize", None)
        self.resize = resize if isinstance(resize, int) else None
        self.class_names = class_names_of(network)
        if isinstance(network, Network):
            self.origin = network.origin
            if network.config:
                self.config = {**network.config, "gray": True}

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in [0, 1] to logits ``[B, C]``."""
        return self.network(to_gray(images))

    def reference_key(self, key: str) -> str:
        """The name of a state-dict entry in the paper authors' code, which makes images grey."""
        inner = key.removeprefix("network.")
        return self.network.reference_key(inner) if isinstance(self.network, Network) else inner


P = ParamSpec("P")
M = TypeVar("M", bound=Network)

_BUILDERS: dict[str, Callable[..., Network]] = {}
# Builders imported when a checkpoint asks for them; not listed, since they need more than a name.
_UNLISTED = {
    "canonicalized": "equicolor.canonicalization.canonicalize",
    "converted": "equicolor.conversion.convert",
    "hue_selector": "equicolor.models.selector",
}


def register_model(builder: Callable[P, M]) -> Callable[P, M]:
    """Make a builder known under its name, and let its networks carry their configuration."""
    name = builder.__name__
    signature = inspect.signature(builder)

    @functools.wraps(builder)
    def build(*args: P.args, **kwargs: P.kwargs) -> M:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        bound.apply_defaults()
        model = builder(*bound.args, **bound.kwargs)
        arguments = {key: model.resolved.get(key, value) for key, value in bound.arguments.items()}
        model.config = {"model": name, **arguments}
        return model

    _BUILDERS[name] = build
    return build


def list_models() -> list[str]:
    """The names that :func:`create_model` knows.

    Example:
        >>> {"z2cnn", "cecnn", "resnet18", "ce_resnet18"} <= set(list_models())
        True
    """
    return sorted(_BUILDERS)


def get_builder(name: str) -> Callable[..., Network]:
    """The function that builds the networks of a name."""
    if name in _UNLISTED:
        return getattr(importlib.import_module(_UNLISTED[name]), name)
    if name not in _BUILDERS:
        hint = did_you_mean(name.lower().replace("-", "_"), _BUILDERS, "see 'equicolor models'")
        raise ValueError(f"unknown model {name!r}; {hint}")
    return _BUILDERS[name]


def create_model(name: str, *, gray: bool = False, **options: Any) -> Network:
    """Build a network by name.

    Args:
        name: one of :func:`list_models`.
        gray: let it see the mean of the channels alone, as :class:`GrayInput`.
        options: the builder's arguments.

    Raises:
        ValueError: for an unknown name.
        OptionError: for an option the network does not have.

    Example:
        >>> create_model("ce_resnet18", rotations=12, lifting="hsv").config["width"]
        [41, 83, 167, 335]
    """
    builder = get_builder(name)
    accepted = inspect.signature(builder).parameters
    for option in options:
        if option not in accepted:
            hint = did_you_mean(option, accepted)
            hint = f" ({hint})" if hint else ""
            raise OptionError(
                f"{name} has no option {option!r}{hint}; it takes {', '.join(accepted)}"
            )
    if name in _UNLISTED and not options:
        raise OptionError(f"{name!r} is no network by itself: name its checkpoint")
    network = builder(**options)
    return GrayInput(network) if gray else network


def build_from_config(config: Mapping[str, Any]) -> Network:
    """Build the network that a configuration describes, with random weights."""
    options = dict(config)
    return create_model(options.pop("model"), **options)


def class_names_of(network: nn.Module) -> tuple[str, ...]:
    """The ``class_names`` of a network; empty if unknown.

    Example:
        >>> class_names_of(nn.Identity())
        ()
    """
    return tuple(map(str, getattr(network, "class_names", None) or ()))


def original_of(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The network that a converted or canonicalised one was made from; empty for other networks.

    Returns:
        The source, and the arguments of its builder; without a source, the configuration itself.

    Example:
        >>> converted = {"source": "timm:resnet18", "source_options": {"num_classes": 5}}
        >>> original_of({"source": "equicolor:converted", "source_options": converted})
        ('timm:resnet18', {'num_classes': 5})
    """
    source = str(config.get("source", ""))
    while isinstance(options := config.get("source_options"), dict):
        source, config = str(options.get("source", source)), options
    return source, config


def classes_of(config: dict[str, Any]) -> int | None:
    """The number of classes a configuration says; None if it does not."""
    classes = original_of(config)[1].get("num_classes")
    return classes if isinstance(classes, int) else None


def with_classes(network: Network, num_classes: int) -> Network:
    """A network with ``num_classes`` outputs and the same weights before its classifier.

    Returns the network itself if it has as many; else a new one with a new classifier.
    """
    _checks.positive_int("num_classes", num_classes)
    classes = classes_of(network.config)
    if classes == num_classes:
        return network
    if classes is None:
        raise ValueError("the configuration of the network does not say its number of classes")
    config = copy.deepcopy(network.config)
    original_of(config)[1]["num_classes"] = num_classes
    new = build_from_config(config)
    state = new.state_dict()
    shared = {k: v for k, v in network.state_dict().items() if v.shape == state[k].shape}
    new.load_state_dict(shared, strict=False)
    weight = next(network.parameters())
    return new.to(weight.device, weight.dtype).train(network.training)
