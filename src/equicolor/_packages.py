"""Required packages: the oldest torch, the extras, and a torchvision built for another torch."""

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

# Checked here, because pip can ignore what a package requires.
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11):
    raise ImportError(
        f"equicolor needs torch 2.11 or newer, and torch {torch.__version__} is installed: "
        "pip install 'torch>=2.11'"
    )

# The extra that installs a package, if it is not [train].
_EXTRAS = {
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "huggingface_hub": "hub",
    "submitit": "cluster",
    "timm": "vision",
    "torchvision": "vision",
}


def how_to_install(package: str) -> str:
    """The command that installs an optional package.

    Example:
        >>> how_to_install("timm")
        "in a checkout of equicolor, pip install -c constraints.txt '.[vision]'"
    """
    extra = _EXTRAS.get(package.partition(".")[0], "train")
    return f"in a checkout of equicolor, pip install -c constraints.txt '.[{extra}]'"


def import_vision(name: str) -> ModuleType:
    """Import torchvision, timm, or a module of theirs.

    Raises:
        ModuleNotFoundError: if it is not installed.
        ImportError: if torchvision is installed and cannot be imported.
    """
    package = name.partition(".")[0]
    declare_vision_operators()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"{package} is not installed: {how_to_install(package)}", name=package
        ) from None
    except (ImportError, RuntimeError) as error:
        if "torchvision" in sys.modules:  # its import succeeded
            raise
        raise ImportError(
            f"torchvision is installed, but not for torch {torch.__version__} ({error}): "
            f"{_reinstall_torchvision()}"
        ) from None


@functools.cache  # torch drops the operators of a library that nothing refers to
def declare_vision_operators() -> torch.library.Library | None:
    """Make torchvision importable if its compiled operators do not load into this torch.

    PyPI's torchvision for Linux is built for CUDA. Beside a CPU build of torch, its operators do
    not load. Then ``import torchvision`` fails, and so do lightning, torchmetrics and timm, which
    import torchvision wherever it is installed. The import asks for two operators by name. This
    function declares them without an implementation: calling them is an error, and what
    does not call them works (networks, datasets, transforms).

    Returns:
        The declared operators; None if torchvision needs none, or is not installed.
    """
    spec = None if "torchvision" in sys.modules else importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        torch.ops.load_library(next(Path(spec.submodule_search_locations[0]).glob("_C.*")))
        return None
    except (OSError, StopIteration):  # built for CUDA or for another torch; or not built at all
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library


def _reinstall_torchvision() -> str:
    """The command that replaces torchvision by the build for this torch."""
    release, _, build = torch.__version__.partition("+")
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f"pip uninstall -y torchvision && pip install torch=={release} torchvision{index}"
