"""Weights of the paper authors' code, loaded strictly."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from equicolor.groups import HueGroup
from equicolor.models.checkpoints import SHOWN, describe, load_strict
from equicolor.models.registry import Network
from equicolor.models.tensor_files import CheckpointError, read_pickle

N = TypeVar("N", bound=nn.Module)


def load_reference(model: N, checkpoint: str | Path | Mapping[str, Any]) -> N:
    """Load weights of the paper authors' code into the corresponding network, strictly.

    Args:
        model: a network built like the checkpoint's.
        checkpoint: a released ``.pth`` file, or its state dict. Only tensors are read from
            a file: code hidden in it is refused, not run.

    Returns:
        The network.

    Example:
        >>> from equicolor.models import resnet44
        >>> released = resnet44(10, rotations=3, width=4).state_dict()
        >>> released["conv1.transformation_matrix"] = HueGroup(3).matrix(1)
        >>> load_reference(resnet44(10, rotations=3, width=4), released).config["width"]
        [4, 8, 16]
    """
    if not isinstance(model, Network):
        raise TypeError(
            f"load_reference needs a network built by equicolor.models, got {type(model).__name__}"
        )
    if isinstance(checkpoint, Mapping):
        source, contents = "the state dict", checkpoint
    else:
        source, contents = str(checkpoint), read_pickle(Path(checkpoint))
    state = _state_dict(contents, source)
    for key in [key for key in state if key.rpartition(".")[2] == "transformation_matrix"]:
        _check_matrix(model, key, state.pop(key), source)
    ours = {model.reference_key(key): key for key in model.state_dict()}
    renamed = {ours.get(key, key): value for key, value in state.items()}
    load_strict(model, renamed, source)
    return model


def _state_dict(contents: Any, source: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint, without the wrappers that trainers add."""
    for wrapper in ("state_dict", "model"):
        if isinstance(contents, Mapping) and isinstance(contents.get(wrapper), Mapping):
            contents = contents[wrapper]
    if not isinstance(contents, Mapping) or not contents:
        raise CheckpointError(f"{source} holds no state dict, but a {type(contents).__name__}")
    others = [
        str(key)
        for key, value in contents.items()
        if not (isinstance(key, str) and isinstance(value, Tensor))
    ]
    if others:
        raise CheckpointError(
            f"{source} holds entries other than named tensors: {', '.join(others[:SHOWN])}"
        )
    for prefix in ("model.", "module.", "model."):
        if all(key.startswith(prefix) for key in contents):
            contents = {key[len(prefix) :]: value for key, value in contents.items()}
    return dict(contents)


def _check_matrix(model: Network, key: str, matrix: Tensor, source: str) -> None:
    """Compare the hue rotation that the authors store with the network's number of rotations."""
    rotations = model.config.get("rotations", 1)
    if model.config.get("lifting") == "hsv" and rotations != 3:
        raise CheckpointError(
            f"{source} was trained with lifting='rgb', which differs from lifting='hsv' for "
            f"{rotations} rotations"
        )
    expected = HueGroup(rotations).matrix(1)
    if matrix.shape != (3, 3) or not torch.allclose(matrix.double(), expected, atol=1e-5):
        raise CheckpointError(
            f"{source} does not fit {describe(model)}: {key} is not the rotation by "
            f"1/{rotations} of the hue circle"
        )
