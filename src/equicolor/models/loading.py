"""Load a network by name or path: our checkpoints, other libraries' networks, a user's own."""

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

from equicolor import _checks
from equicolor.models.checkpoints import checkpoint_file, load_model
from equicolor.models.foreign import LIBRARIES, ForeignNetwork, load_foreign
from equicolor.models.registry import (
    Network,
    Origin,
    class_names_of,
    create_model,
    list_models,
    original_of,
)
from equicolor.models.tensor_files import WEIGHTS

_FORMS = (
    f"a checkpoint of equicolor, a folder that holds {WEIGHTS}, timm:NAME, torchvision:NAME, "
    "or path/to/file.py:function"
)
_folders: set[Path] = set()  # of users' files, from which they may have imported others


def load_network(
    spec: str | Path, *, pretrained: bool = True, device: torch.device | str = "cpu"
) -> nn.Module:
    """A network that maps images in [0, 1] to logits, in eval mode.

    Args:
        spec: one of

            * a file of :func:`equicolor.models.save_model`, or a folder with one called
              ``model.safetensors``, such as that of a training run;
            * ``timm:NAME`` or ``torchvision:NAME``, which get the normalisation of their
              weights;
            * ``path/to/file.py:function``, where the function takes no arguments and returns
              a network that normalises images itself. It may have an ``image_size`` and
              ``class_names``. The file is executed.
        pretrained: load the weights of timm or torchvision.
        device: where to put it.

    Returns:
        The network; one that is not ours is wrapped in a ``ForeignNetwork``.
    """
    text = str(spec)
    file, _, function = (text, "", "") if text.endswith(".py") else text.rpartition(":")
    if is_foreign(text):
        network: nn.Module = load_foreign(text, pretrained=pretrained)
    elif not pretrained:
        raise ValueError(
            f"pretrained chooses the weights of timm's and torchvision's networks; {text} has its "
            "own: leave --no-pretrained out"
        )
    elif file.endswith(".py"):
        network = _from_file(Path(file), function)
    else:
        network = load_model(_checkpoint(Path(text)))
    return network.to(device).eval()


def is_foreign(spec: str | Path) -> bool:
    """Whether a network is named as one of timm's or torchvision's.

    Example:
        >>> is_foreign("timm:resnet18"), is_foreign("runs/first"), is_foreign("timm")
        (True, False, False)
    """
    library, colon, _ = str(spec).partition(":")
    return bool(colon) and library in LIBRARIES


def named_by_library(config: dict[str, Any], origin: Origin) -> bool:
    """Whether the class names of a converted or canonicalised network are timm's or torchvision's.

    Those are words, whereas the folders of ImageNet have codes. A network that was trained since
    then has the names of its folders.

    Example:
        >>> config = {"model": "converted", "source": "timm:resnet18", "source_options": {}}
        >>> named_by_library(config, Origin()), named_by_library(config, Origin(dataset="mine"))
        (True, False)
    """
    return is_foreign(original_of(config)[0]) and not origin.dataset


def find_model(spec: str, *, pretrained: bool = True) -> tuple[nn.Module, bool]:
    """A network of :func:`load_network`, or one of a registered name with random weights.

    Returns:
        The network in eval mode, and whether it has trained weights.
    """
    path = checkpoint_file(spec)
    is_path = path.is_file() or (path.suffix and spec not in list_models())
    if is_path or ":" in spec or not pretrained:
        return load_network(spec, pretrained=pretrained), pretrained
    return create_model(spec).eval(), False


def _checkpoint(path: Path) -> Path:
    """The file of a network by its path or folder; it must exist."""
    file = checkpoint_file(path)
    if file.exists():
        return file
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder without {WEIGHTS}; expected {_FORMS}")
    hint = ""
    if str(path) in list_models():
        hint = "that is the name of an architecture, which has no weights; "
    raise FileNotFoundError(f"no network at {path}; {hint}expected {_FORMS}")


def _from_file(path: Path, function: str) -> nn.Module:
    """The network that a function of a Python file returns."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; expected {_FORMS}")
    # Not path.stem: a user's file may be called like a package.
    spec = importlib.util.spec_from_file_location(f"_equicolor_network_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look themselves up there
    _import_from(path.parent.resolve())
    try:
        spec.loader.exec_module(module)
        build = getattr(module, function, None)
        network = build() if callable(build) else None
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise _explain(path, error) from error
    if not callable(build):
        lacks = f"has no function {function!r}" if function else "needs the name of a function"
        functions = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == spec.name
        ]
        advice = "; it has none: write one that takes no arguments and returns the network"
        if functions:
            advice = f", as in {path}:{functions[0]}; it has {', '.join(functions)}"
        raise ValueError(f"{path} {lacks}{advice}")
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"{path}:{function} must return a torch.nn.Module, got {type(network).__name__}"
        )
    if isinstance(network, (ForeignNetwork, Network)):
        return network
    size = getattr(network, "image_size", 224)
    _checks.positive_int(f"image_size of the network of {path.name}:{function}", size)
    name, names = f"{path.name}:{function}", class_names_of(network)
    return ForeignNetwork(network, name, image_size=size, class_names=names)


def _import_from(folder: Path) -> None:
    """Let a file import those beside it, as a program does.

    Modules of the same names beside files loaded earlier are forgotten: they are other modules.
    """
    _folders.add(folder)
    sys.path[:] = [str(folder), *(place for place in sys.path if place != str(folder))]
    others = _folders - {folder}
    hidden = {
        name
        for name, module in sys.modules.items()
        if ((folder / f"{name}.py").is_file() or (folder / name).is_dir())
        and any(Path(place).parent.resolve() in others for place in _places(module))
    }
    for name in [*sys.modules]:
        if name.partition(".")[0] in hidden:
            del sys.modules[name]


def _places(module: object) -> list[str]:
    """The folders of a package, or the file of another module."""
    file = getattr(module, "__file__", None)
    return [*getattr(module, "__path__", [file] if file else [])]


def _explain(path: Path, error: BaseException) -> Exception:
    """An error of the user's code in one line, with the place in the user's files."""
    folder = path.resolve().parent
    places = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if folder in Path(frame.filename).resolve().parents
    ]
    message = str(error)
    if isinstance(error, SyntaxError):
        message, places = error.msg, [(error.filename or str(path), error.lineno)]
    # Without a place in these files, the function was not entered: it takes arguments.
    place = f" (line {places[-1][1]} of {places[-1][0]})" if places else ""
    message = " ".join(message.split())
    if isinstance(error, ImportError):
        return ImportError(f"{path} cannot be used: {message}{place}")
    kind = type(error).__name__
    message = f"{kind}: {message}" if message else kind
    return ValueError(f"{path} cannot be used: {message}{place}")
