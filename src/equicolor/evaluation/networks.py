"""Networks to judge: our checkpoints, other libraries' networks, and the user's own."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from equicolor.models import Network, list_models, load_model

__all__ = ["ForeignNetwork", "GrayInput", "load_network", "network_facts"]

WEIGHTS = "model.safetensors"  # in the folder of a training run
_FORMS = (
    f"a checkpoint of equicolor, a folder that holds {WEIGHTS}, timm:NAME, torchvision:NAME, "
    "or path/to/file.py:function"
)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ForeignNetwork(nn.Module):
    """A network that was not made by equicolor, with the normalisation it expects in front.

    Args:
        network: maps normalised pictures :math:`[B, 3, H, W]` to logits :math:`[B, C]`.
        name: for tables.
        mean, std: of the normalisation, per channel.
        image_size: height and width it was trained for.
        resize: the short side of a picture before its centre is cropped.

    Example:
        >>> network = ForeignNetwork(nn.Flatten(), "flat", mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> network(torch.ones(2, 3, 1, 1)).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
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
        resize: int = 256,
    ) -> None:
        super().__init__()
        self.network, self.name = network, name
        self.image_size, self.resize = image_size, resize
        self.plain = tuple(mean) == (0.0, 0.0, 0.0) and tuple(std) == (1.0, 1.0, 1.0)
        for key, values in (("mean", mean), ("std", std)):
            self.register_buffer(key, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Pictures ``[B, 3, H, W]`` in [0, 1] to logits ``[B, C]``."""
        images = images if self.plain else (images - self.mean) / self.std
        logits: Tensor = self.network(images)
        return logits


class GrayInput(nn.Module):
    """A network that sees the mean of the channels: the grey baseline.

    The grey is part of the network, not of the pictures: a hue shift comes before it, and
    may change the mean.

    Args:
        network: maps pictures :math:`[B, 3, H, W]` to logits :math:`[B, C]`.

    Example:
        >>> GrayInput(nn.Flatten())(torch.tensor([1.0, 0.5, 0.0]).view(1, 3, 1, 1)).tolist()
        [[0.5, 0.5, 0.5]]
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Pictures ``[B, 3, H, W]`` in [0, 1] to logits ``[B, C]``."""
        logits: Tensor = self.network(images.mean(1, keepdim=True).expand_as(images))
        return logits


def load_network(
    spec: str | Path, *, pretrained: bool = True, device: torch.device | str = "cpu"
) -> nn.Module:
    """A network that maps pictures in [0, 1] to logits, in eval mode.

    Args:
        spec: one of

            * a file of :func:`equicolor.models.save_model`, or a folder with one called
              ``model.safetensors``, such as that of a training run;
            * ``timm:NAME`` or ``torchvision:NAME``, which get the normalisation of their
              weights;
            * ``path/to/file.py:function``, where the function takes no arguments and returns
              a network that normalises pictures itself. The file is executed.
        pretrained: load the weights that timm or torchvision offer.
        device: where to put it.

    Returns:
        The network; one that is not ours is wrapped in :class:`ForeignNetwork`.

    Example:
        >>> import tempfile
        >>> from equicolor.models import save_model, z2cnn
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = save_model(z2cnn(30), folder / "model.safetensors")
        >>> load_network(folder)(torch.rand(2, 3, 28, 28)).shape
        torch.Size([2, 30])
    """
    text = str(spec)
    kind, colon, name = text.partition(":")
    file, _, function = text.rpartition(":")
    if colon and kind in _LIBRARIES:
        network: nn.Module = _LIBRARIES[kind](name, pretrained)
    elif file.endswith(".py"):
        network = _from_file(Path(file), function)
    else:
        network = load_model(_checkpoint(Path(text)))
    return network.to(device).eval()


def network_facts(network: nn.Module) -> dict[str, Any]:
    """What the rows of a result file say about a network.

    Returns:
        ``model``, ``rotations``, ``lifting``, ``ce_stages`` and ``width`` (of the first stage);
        None where it has none.

    Example:
        >>> from equicolor.models import ce_resnet18
        >>> network_facts(ce_resnet18(102, rotations=12, lifting="hsv"))
        {'model': 'ce_resnet18', 'rotations': 12, 'lifting': 'hsv', 'ce_stages': 4, 'width': 41}
    """
    if isinstance(network, GrayInput):
        inner = network_facts(network.network)
        return inner | {"model": f"{inner['model']}-gray"}
    if not isinstance(network, Network):
        name = network.name if isinstance(network, ForeignNetwork) else type(network).__name__
        return dict.fromkeys(("model", "rotations", "lifting", "ce_stages", "width")) | {
            "model": name
        }
    config = network.config
    rotations, width = config.get("rotations", 1), config.get("width")
    return {
        "model": config.get("model", type(network).__name__),
        "rotations": rotations,
        "lifting": config.get("lifting") if rotations > 1 else None,
        "ce_stages": config.get("ce_stages"),
        "width": width[0] if isinstance(width, (list, tuple)) else width,
    }


def _checkpoint(path: Path) -> Path:
    """The file a path means."""
    if path.is_dir():
        if not (path / WEIGHTS).is_file():
            raise FileNotFoundError(f"{path} is a folder without {WEIGHTS}; expected {_FORMS}")
        return path / WEIGHTS
    if not path.exists():
        name = str(path)
        why = (
            " is the name of an architecture, which has no weights" if name in list_models() else ""
        )
        raise FileNotFoundError(f"no network at {name}{';' * bool(why)}{why}; expected {_FORMS}")
    return path


def _import_library(name: str) -> ModuleType:
    """A library of the ``[vision]`` extra."""
    install = "pip install 'equicolor[vision]'"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(f"{name} is not installed: {install}", name=name) from None
    except RuntimeError as error:  # a torchvision built for another torch
        raise ImportError(
            f"{name} is installed but does not fit this torch ({error}); {install} "
            "into an environment with the same build of both"
        ) from None


class _TorchvisionWeights(Protocol):
    """What torchvision says about its weights."""

    crop_size: Sequence[int]
    resize_size: Sequence[int]
    mean: Sequence[float]
    std: Sequence[float]


def _from_torchvision(name: str, pretrained: bool) -> ForeignNetwork:
    models = _import_library("torchvision").models
    if name not in models.list_models():
        raise _unknown("torchvision", name, models.list_models())
    offered = list(models.get_model_weights(name))
    if pretrained and not offered:
        raise ValueError(f"torchvision offers no weights for {name}")
    weights = models.get_model_weights(name).DEFAULT if offered else None
    network = models.get_model(name, weights=weights if pretrained else None)
    title = f"torchvision:{name}"
    if weights is None:
        return ForeignNetwork(network, title, mean=_IMAGENET_MEAN, std=_IMAGENET_STD)
    preset = cast(_TorchvisionWeights, weights.transforms())
    return ForeignNetwork(
        network,
        title,
        mean=preset.mean,
        std=preset.std,
        image_size=preset.crop_size[0],
        resize=preset.resize_size[0],
    )


def _from_timm(name: str, pretrained: bool) -> ForeignNetwork:
    timm = _import_library("timm")
    # A name may say which of several weights, as in resnet18.a1_in1k.
    if not timm.is_model(name.partition(".")[0]):
        raise _unknown("timm", name, timm.list_models())
    network = timm.create_model(name, pretrained=pretrained)
    config = importlib.import_module("timm.data").resolve_model_data_config(network)
    size = config["input_size"][-1]
    return ForeignNetwork(
        network,
        f"timm:{name}",
        mean=config["mean"],
        std=config["std"],
        image_size=size,
        resize=round(size / config["crop_pct"]),
    )


_LIBRARIES: dict[str, Callable[[str, bool], ForeignNetwork]] = {
    "timm": _from_timm,
    "torchvision": _from_torchvision,
}


def _unknown(library: str, name: str, known: Iterable[str]) -> ValueError:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ValueError(f"{library} has no network {name!r}{hint}")


def _from_file(path: Path, function: str) -> nn.Module:
    """What a function of a Python file returns."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; expected {_FORMS}")
    # Not path.stem: a user's file may be called like a package.
    spec = importlib.util.spec_from_file_location(f"_equicolor_network_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look themselves up there
    spec.loader.exec_module(module)
    build = getattr(module, function, None)
    if not callable(build):
        own = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == spec.name
        ]
        raise ValueError(f"{path} has no function {function!r}; it has {', '.join(own) or 'none'}")
    network = build()
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"{path}:{function} must return a torch.nn.Module, got {type(network).__name__}"
        )
    if isinstance(network, (ForeignNetwork, GrayInput, Network)):
        return network
    size = getattr(network, "image_size", 224)
    return ForeignNetwork(
        network, f"{path.name}:{function}", image_size=size, resize=round(size * 256 / 224)
    )
