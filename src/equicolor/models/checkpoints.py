"""Checkpoints: one safetensors file, with the configuration in its header, rebuilds a network.

Nothing here executes code from a file. Every error is one line.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._text import enumerated
from equicolor.models.foreign import published_parameters
from equicolor.models.registry import Network, Origin, build_from_config, original_of
from equicolor.models.tensor_files import (
    WEIGHTS,
    CheckpointError,
    digest,
    one_line,
    read_weights,
    write_weights,
)

_CLASSES = "class_names"  # key in the header
SHOWN = 3  # how many mismatches an error names
# Limits on the numbers of a file, which are checked before a network is built from them.
_LARGEST = 10_000  # of any number, or the longest side of the weights
_LIMITS = {key: _checks.MOST[key] for key in ("image_size", "resize", "rotations")}
_LIMITS["split_seed"] = _checks.MOST["seed"]


class Header(NamedTuple):
    """What a checkpoint says of its network; unknown values are empty."""

    config: dict[str, Any]
    class_names: tuple[str, ...] = ()
    origin: Origin = Origin()


def save_model(model: nn.Module, path: str | Path) -> Path:
    """Save a network with its configuration as one safetensors file.

    The file also holds its class names and its :class:`~equicolor.models.registry.Origin`.

    Args:
        model: a network made by a builder of :mod:`equicolor.models`, or a converted one of
            known source.
        path: the file to write, usually ``*.safetensors``; its folder is created.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> from equicolor.models import z2cnn
        >>> path = save_model(z2cnn(30), Path(tempfile.mkdtemp()) / "z2cnn.safetensors")
        >>> load_model(path).config["num_classes"]
        30
    """
    if not isinstance(model, Network):
        raise TypeError(
            "save_model needs a network built by equicolor.models, which knows its configuration; "
            f"got {type(model).__name__}: keep its weights with torch.save(model.state_dict(), "
            "path), or write a file that runs without its code with equicolor.models.export.export"
        )
    if not model.config:
        raise TypeError(
            f"save_model needs to know where this {type(model).__name__} comes from: convert it "
            "with source='torchvision:NAME' or 'timm:NAME', or keep its state_dict() yourself"
        )
    _check_rebuilt(model)
    path = Path(path)
    header = {"config": json.dumps(model.config)}
    if model.class_names:
        header[_CLASSES] = json.dumps(model.class_names)
    header |= {key: json.dumps(value) for key, value in model.origin.known().items()}
    write_weights(path, model.state_dict(), header)
    return path


def _check_rebuilt(model: Network) -> None:
    """Refuse a network that its configuration would not build again."""
    state = model.state_dict()
    _check_numbers({**model.config, **model.origin.known()}, state)
    hint = "Build it with the options it should have"
    if "source" in model.config:  # another network, whose options are not all known
        rebuilt = build_from_config(model.config)
        options = model.config["source_options"] or "no options"
        hint = (
            f"Its file would build {model.config['source']} with {options}: name all its options, "
            "source=Source(spec, {options}) in equicolor.convert or canonicalize"
        )
    else:
        rebuilt = _build_on_meta(model.config, state)
    problem = _mismatch(rebuilt, state)
    if not problem and not model.same_outputs(rebuilt):
        problem = "with the same weights, the file's network computes something else"
    if problem:
        raise CheckpointError(
            f"{describe(model)} was changed after it was built, so its file could not be loaded: "
            f"{problem}. {hint}"
        )


def load_model(path: str | Path, *, device: torch.device | str = "cpu") -> Network:
    """Rebuild a network saved by :func:`save_model`, in eval mode.

    Args:
        path: the file.
        device: where to put the network.

    Returns:
        The network.
    """
    path = Path(path)
    entries, tensors = read_weights(path, weights=True)
    header = _parse_header(entries, path)
    model = _build_for(header.config, tensors, path)
    set_dtypes(model, tensors)
    load_strict(model, tensors, path)
    model.class_names, model.origin = header.class_names, header.origin
    return model.to(device).eval()


def set_dtypes(module: nn.Module, state: Mapping[str, Tensor], prefix: str = "") -> None:
    """Give a network the dtypes of a state dict, part by part where they differ."""
    tensors = [value for key, value in state.items() if key.startswith(prefix)]
    dtypes = [*dict.fromkeys(tensor.dtype for tensor in tensors if tensor.is_floating_point())]
    if dtypes:
        module.to(dtypes[0])
    if len(dtypes) > 1:
        for name, child in module.named_children():
            set_dtypes(child, state, f"{prefix}{name}.")


def read_header(path: str | Path) -> Header:
    """What a file of :func:`save_model` says of its network; the weights are not read."""
    return _parse_header(read_weights(Path(path))[0], path)


def weights_digest(path: str | Path) -> str:
    """A digest of the configuration and weights in a file of :func:`save_model`.

    Unlike a digest of the whole file, it does not depend on the network's origin.
    """
    entries, tensors = read_weights(Path(path), weights=True)
    _parse_header(entries, path)
    return digest(entries["config"], tensors)


def checkpoint_file(path: str | Path) -> Path:
    """The file of a network by its path, or by that of the folder of its training run."""
    path = Path(path)
    return path / WEIGHTS if path.is_dir() else path


def _parse_header(entries: Mapping[str, str], path: str | Path) -> Header:
    """Read a header. Only the configuration must be valid; other invalid values are left out."""
    try:
        config = json.loads(entries["config"])
        if not isinstance(config, dict) or not isinstance(config.get("model"), str):
            raise ValueError("expected an object with the name of a model")
    except (KeyError, ValueError, RecursionError) as error:
        raise _no_configuration(path, error) from None
    values: dict[str, Any] = {}
    for key in (_CLASSES, *Origin._fields):
        try:
            values[key] = json.loads(entries[key])
        except (KeyError, ValueError, RecursionError):
            values[key] = None
    names = values.pop(_CLASSES)
    class_names = tuple(map(str, names)) if isinstance(names, list) else ()
    return Header(config, class_names, Origin(**{k: v for k, v in values.items() if _valid(k, v)}))


def _valid(key: str, value: object) -> bool:
    """Whether a value of a header can be that field of an origin."""
    if isinstance(Origin._field_defaults[key], str):
        return isinstance(value, str)
    least = 0 if key == "split_seed" else 1
    return type(value) is int and least <= value <= _LIMITS[key]


def _no_configuration(path: str | Path, error: BaseException) -> CheckpointError:
    return CheckpointError(
        f"{path} has no configuration that a network can be built from ({one_line(error)})"
    )


def _build_for(config: dict[str, Any], state: Mapping[str, Tensor], path: Path) -> Network:
    """Build the network that weights are for; memory is allocated only if they fit."""
    try:
        _check_numbers(config, state)
        check_fit(_build_on_meta(config, state), state, path)
        return build_from_config(config)
    except (CheckpointError, ImportError):
        raise
    except Exception as error:  # a wrong configuration makes builders raise anything
        raise _no_configuration(path, error) from None


def _check_numbers(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Refuse numbers that would take time and memory before shapes can be compared."""
    longest = max([_LARGEST, *(size for value in state.values() for size in value.shape)])
    for key, value in _numbers(config):
        if not abs(value) <= (most := _LIMITS.get(key, longest)):
            raise ValueError(f"{key} of a saved network is at most {most}, got {value}")


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in a configuration, each with its name."""
    if isinstance(value, (int, float)):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _numbers(item, name)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers(item, key)


def _build_on_meta(config: dict[str, Any], state: Mapping[str, Tensor]) -> Network:
    """The network of a configuration, without weights if its builder runs on the meta device."""
    try:
        with torch.device("meta"):
            return build_from_config(config)
    except NotImplementedError:  # torchvision's RegNet computes widths with tensors
        values = sum(value.numel() for value in state.values())
        source, _ = original_of(config)
        parameters = published_parameters(source)
        # Conversion keeps most of them; another classifier may have fewer.
        if parameters > 2 * values:
            raise ValueError(
                f"{source} has {parameters:,} parameters, the file {values:,}"
            ) from None
        return build_from_config(config)


def load_strict(model: Network, state: Mapping[str, Tensor], source: str | Path) -> None:
    """Load a state dict whose keys and shapes must be the network's own."""
    check_fit(model, state, source)
    if any(value.is_meta for value in model.state_dict().values()):
        raise CheckpointError(f"{describe(model)} is on the meta device: call to_empty() first")
    model.load_state_dict(dict(state))


def check_fit(model: Network, state: Mapping[str, Tensor], source: str | Path) -> None:
    """Refuse a state dict that is not the network's."""
    if problem := _mismatch(model, state):
        raise CheckpointError(f"{source} does not fit {describe(model)}: {problem}")


def _mismatch(model: Network, state: Mapping[str, Tensor]) -> str:
    """How keys, shapes or kinds of numbers of a state dict differ from the network's."""
    expected = model.state_dict()
    common = [(key, state[key], expected[key]) for key in expected if key in state]
    problems = {
        "missing": [key for key in expected if key not in state],
        "unexpected": [key for key in state if key not in expected],
        "of another shape": [
            f"{key} {list(value.shape)} instead of {list(other.shape)}"
            for key, value, other in common
            if value.shape != other.shape
        ],
        "of another kind": [
            key
            for key, value, other in common
            if other.is_floating_point() and not value.is_floating_point()
        ],
    }
    return "; ".join(
        f"{len(names)} {what}: {enumerated(names, SHOWN)}"
        for what, names in problems.items()
        if names
    )


def describe(model: Network) -> str:
    """A network's name and main options, for errors."""
    config = model.config
    name = config.get("source", config.get("model", type(model).__name__))
    shown = ("num_classes", "rotations", "ce_stages", "ce_layers", "width")
    return f"{name}({', '.join(f'{key}={config[key]}' for key in shown if key in config)})"
