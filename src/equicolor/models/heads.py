"""Another number of classes for a trained network."""

import copy
from typing import Any

from equicolor import _checks
from equicolor.models.checkpoints import build_from_config
from equicolor.models.registry import Network

__all__ = ["classes_of", "with_classes"]


def classes_of(config: dict[str, Any]) -> int | None:
    """The number of classes a configuration says; None if it does not.

    Example:
        >>> from equicolor.models import z2cnn
        >>> classes_of(z2cnn(30).config)
        30
    """
    classes = _options(config).get("num_classes")
    return classes if isinstance(classes, int) else None


def with_classes(network: Network, num_classes: int) -> Network:
    """A network with ``num_classes`` outputs and the same weights before its classifier.

    It is the network itself if it has as many; else a new one with a classifier drawn anew.

    Example:
        >>> from equicolor.models import resnet18
        >>> with_classes(resnet18(10, width=4), 7).config["num_classes"]
        7
    """
    _checks.positive_int("num_classes", num_classes, at_most=_checks.MOST["num_classes"])
    if classes_of(network.config) == num_classes:
        return network
    config = copy.deepcopy(network.config)
    if classes_of(config) is None:
        raise ValueError("the network does not say its number of classes: its head stays")
    _options(config)["num_classes"] = num_classes
    new = build_from_config(config)
    state = new.state_dict()
    shared = {k: v for k, v in network.state_dict().items() if v.shape == state[k].shape}
    new.load_state_dict(shared, strict=False)
    tensor = next(iter(shared.values()))
    return new.to(tensor.device, next(network.parameters()).dtype).train(network.training)


def _options(config: dict[str, Any]) -> dict[str, Any]:
    """Where a configuration keeps the arguments of the network's builder."""
    inner = config.get("source_options")
    return inner if isinstance(inner, dict) else config
