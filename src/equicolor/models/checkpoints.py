"""Checkpoints: one safetensors file rebuilds a network; the paper authors' files load strictly.

Nothing here executes code from a file. Our own format is safetensors with the network's
configuration in the header; the authors' ``.pth`` files go through torch's weights-only
loader. Whatever is wrong with a file is said in one line.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.groups import HueGroup
from equicolor.models.checkpoint_files import (
    WEIGHTS,
    CheckpointError,
    digest,
    one_line,
    read_pickle,
    read_weights,
    write_weights,
)
from equicolor.models.foreign import published_parameters
from equicolor.models.registry import Network, Origin, create_model

__all__ = ["CheckpointError", "load_model", "load_reference", "read_config", "save_model"]

N = TypeVar("N", bound=nn.Module)

_CLASSES = "class_names"  # in the header, where they are known
_MATRIX = "transformation_matrix"
_SHOWN = 3  # how many mismatches an error names
# What a file may ask for before its weights say how large the network is.
_MOST = 10_000  # of anything, or as many as the longest side of its weights
_LIMITS = {key: _checks.MOST[key] for key in ("image_size", "resize", "rotations")}
_LIMITS["split_seed"] = 2**32 - 1


def save_model(model: nn.Module, path: str | Path) -> Path:
    """Save a network with its configuration as one safetensors file.

    What is known of its training goes along: the names of its classes and its
    :class:`~equicolor.models.registry.Origin`.

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
    _check_numbers({**model.config, **model.origin.known()}, model.state_dict())
    converted = model.config["model"] == "converted"
    rebuilt = (
        build_from_config(model.config) if converted else _empty(model.config, model.state_dict())
    )
    own = {key: value.shape for key, value in model.state_dict().items()}
    built = {key: value.shape for key, value in rebuilt.state_dict().items()}
    changed = sorted(key for key in own | built if own.get(key) != built.get(key))
    problem, hint = "", "Build it with the options it should have"
    if changed:
        problem = "; ".join(_listed("differ", changed))
    if converted:
        from equicolor.conversion.rebuilding import same_outputs

        options = model.config["source_options"]
        hint = (
            f"It was taken for {model.config['source']} with {options or 'no options'}: name "
            "every option it was built with, source=Source(spec, {options}) in equicolor.convert"
        )
        if not changed and not same_outputs(model, rebuilt):  # type: ignore[arg-type]
            problem = "with the same weights, the file's network computes something else"
    if problem:
        raise CheckpointError(
            f"{_describe(model)} was changed after it was built, so its file could not be loaded: "
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
    header, tensors = read_weights(path, weights=True)
    model = _build_for(_config(header, path), tensors, str(path))
    dtypes = {value.dtype for value in tensors.values() if value.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    load_strict(model, tensors, str(path))
    model.class_names, model.origin = _class_names(header), _origin(header)
    return model.to(device).eval()


def _config(header: Mapping[str, str], path: Path) -> dict[str, Any]:
    """The configuration in the header of a file."""
    try:
        config = json.loads(header["config"])
        if not isinstance(config, dict) or not isinstance(config.get("model"), str):
            raise ValueError("expected an object with the name of a model")
    except (KeyError, ValueError, RecursionError) as error:
        raise _no_configuration(str(path), error) from None
    return config


def _no_configuration(source: str, error: BaseException) -> CheckpointError:
    return CheckpointError(
        f"{source} has no configuration that a network can be built from ({one_line(error)})"
    )


def _build_for(config: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> Network:
    """Build the network that weights are for; memory is taken only if they fit.

    Raises:
        CheckpointError: if no network can be built, or if it is another one.
        ImportError: if it needs a library that is not installed.
    """
    try:
        _check_numbers(config, state)
        check_fit(_empty(config, state), state, source)
        return build_from_config(config)
    except (CheckpointError, ImportError):
        raise
    except Exception as error:  # a configuration can be wrong in every way there is
        raise _no_configuration(source, error) from None


def _check_numbers(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Refuse numbers that would take time and memory before shapes can be compared."""
    longest = max([_MOST, *(size for value in state.values() for size in value.shape)])
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


def _class_names(header: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads(header.get(_CLASSES, "[]"))))
    except (TypeError, ValueError, RecursionError):  # somebody else's idea of class names
        return ()


def _origin(header: Mapping[str, str]) -> Origin:
    """What a header says of the images; older files say nothing, and others something else."""
    found: dict[str, Any] = {}
    for key in Origin._fields:
        try:
            value = json.loads(header[key])
        except (KeyError, ValueError, RecursionError):
            continue
        words = isinstance(Origin._field_defaults[key], str)
        number = type(value) is int and 0 <= value <= _LIMITS.get(key, 0)
        if isinstance(value, str) if words else number:
            found[key] = value
    return Origin(**found)


def checkpoint_file(path: str | Path) -> Path:
    """The file a path means: itself, or the network in the folder of a training run.

    Example:
        >>> checkpoint_file("net.safetensors")
        PosixPath('net.safetensors')
    """
    path = Path(path)
    return path / WEIGHTS if path.is_dir() else path


def read_config(path: str | Path) -> dict[str, Any]:
    """The configuration in a file of :func:`save_model`, without its weights.

    Example:
        >>> import tempfile
        >>> from equicolor.models import z2cnn
        >>> path = save_model(z2cnn(30), Path(tempfile.mkdtemp()) / "z2cnn.safetensors")
        >>> read_config(path)["model"]
        'z2cnn'
    """
    return _config(read_weights(Path(path))[0], Path(path))


def read_class_names(path: str | Path) -> tuple[str, ...]:
    """What the outputs of a saved network mean; empty if its file does not say that."""
    return _class_names(read_weights(Path(path))[0])


def read_origin(path: str | Path) -> Origin:
    """The images that a saved network was trained on, as far as its file says that.

    Example:
        >>> import tempfile
        >>> from equicolor.models import z2cnn
        >>> path = save_model(z2cnn(30), Path(tempfile.mkdtemp()) / "z2cnn.safetensors")
        >>> read_origin(path).image_size
        28
    """
    header, _ = read_weights(Path(path))
    config = _config(header, Path(path))
    # Older files of converted networks say it in their configuration.
    before = {key: str(value) for key, value in config.items() if isinstance(value, int)}
    return _origin({**before, **header})


def weights_digest(path: str | Path) -> str:
    """A digest of the configuration and weights in a file of :func:`save_model`.

    Unlike that of the file's bytes, it says nothing of where the network was trained.

    Example:
        >>> import tempfile
        >>> from equicolor.models import z2cnn
        >>> path = save_model(z2cnn(30), Path(tempfile.mkdtemp()) / "z2cnn.safetensors")
        >>> len(weights_digest(path))
        16
    """
    header, tensors = read_weights(Path(path), weights=True)
    _config(header, Path(path))
    return digest(header["config"], tensors)


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
    for key in [key for key in state if key.rpartition(".")[2] == _MATRIX]:
        _check_matrix(model, key, state.pop(key), source)
    ours = {model.reference_key(key): key for key in model.state_dict()}
    renamed = {ours.get(key, key): value for key, value in state.items()}
    load_strict(model, renamed, source)
    return model


def build_from_config(config: Mapping[str, Any]) -> Network:
    """Build the network a configuration describes.

    Example:
        >>> build_from_config({"model": "z2cnn", "num_classes": 10}).config["width"]
        20
    """
    options = dict(config)
    if options.get("rotations") == 1:  # plain; older files may hold options that are refused now
        for name in ("separable", "coset_pool", "lifting", "ce_layers"):
            options.pop(name, None)
        options["model"] = str(options["model"]).removeprefix("ce_")
    return create_model(options.pop("model"), **options)


def _empty(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Network:
    """The network of a configuration, without weights if its builder can do without."""
    try:
        with torch.device("meta"):
            return build_from_config(config)
    except NotImplementedError:  # torchvision's RegNet computes widths with tensors
        values = sum(value.numel() for value in state.values())
        parameters = published_parameters(str(config.get("source")))
        # Conversion keeps most of them; another head has fewer.
        if parameters > 2 * values:
            raise ValueError(
                f"{config['source']} has {parameters:,} parameters, the file {values:,}"
            ) from None
        return build_from_config(config)


def load_strict(model: Network, state: Mapping[str, Tensor], source: str) -> None:
    """Load a state dict whose keys and shapes must be the network's own."""
    check_fit(model, state, source)
    if any(value.is_meta for value in model.state_dict().values()):
        raise CheckpointError(f"{_describe(model)} is on the meta device: call to_empty() first")
    model.load_state_dict(dict(state))


def check_fit(model: Network, state: Mapping[str, Tensor], source: str) -> None:
    """Refuse a state dict whose keys, shapes or kinds of numbers are not the network's own."""
    own = model.state_dict()
    problems = [
        *_listed("missing", (key for key in own if key not in state)),
        *_listed("unexpected", (key for key in state if key not in own)),
        *_listed(
            "of another shape",
            (
                f"{key} {list(state[key].shape)} instead of {list(own[key].shape)}"
                for key in own
                if key in state and state[key].shape != own[key].shape
            ),
        ),
    ]
    if problems:
        raise CheckpointError(f"{source} does not fit {_describe(model)}: {'; '.join(problems)}")
    strangers = [k for k in own if own[k].is_floating_point() and not state[k].is_floating_point()]
    if strangers:
        raise CheckpointError(
            f"{source} does not fit {_describe(model)}: {_listed('of another kind', strangers)[0]}"
        )


def _listed(what: str, items: Iterable[str]) -> list[str]:
    names = list(items)
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{more}"]


def _describe(model: Network) -> str:
    config = model.config
    name = config.get("source", config.get("model", type(model).__name__))
    shown = ("num_classes", "rotations", "ce_stages", "ce_layers", "width")
    return f"{name}({', '.join(f'{key}={config[key]}' for key in shown if key in config)})"


def _state_dict(contents: Any, source: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint, out of the wrappings trainers put around them."""
    for wrapper in ("state_dict", "model"):
        if isinstance(contents, Mapping) and isinstance(contents.get(wrapper), Mapping):
            contents = contents[wrapper]
    if not isinstance(contents, Mapping) or not contents:
        raise CheckpointError(f"{source} holds no state dict, but a {type(contents).__name__}")
    strangers = [
        str(key)
        for key, value in contents.items()
        if not isinstance(key, str) or not isinstance(value, Tensor)
    ]
    if strangers:
        raise CheckpointError(
            f"{source} holds no plain state dict: not tensors are {', '.join(strangers[:_SHOWN])}"
        )
    for prefix in ("model.", "module.", "model."):
        if all(key.startswith(prefix) for key in contents):
            contents = {key[len(prefix) :]: value for key, value in contents.items()}
    return dict(contents)


def _check_matrix(model: Network, key: str, matrix: Tensor, source: str) -> None:
    """The authors store the hue rotation; it tells how many rotations they trained with."""
    rotations = model.config.get("rotations", 1)
    if model.config.get("lifting") == "hsv" and rotations != 3:
        raise CheckpointError(
            f"{source} was trained with lifting='rgb', which is another function than "
            f"lifting='hsv' for {rotations} rotations"
        )
    expected = HueGroup(rotations).matrix(1)
    if matrix.shape != (3, 3) or not torch.allclose(matrix.double(), expected, atol=1e-5):
        raise CheckpointError(
            f"{source} does not fit {_describe(model)}: {key} is not the rotation by "
            f"1/{rotations} of the hue circle"
        )
