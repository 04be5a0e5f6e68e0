"""What result files, tables and figures say about a network."""

from collections.abc import Mapping
from inspect import getdoc
from typing import Any

import torch
from torch import nn

from equicolor.models.foreign import ForeignNetwork
from equicolor.models.registry import GrayInput, Network, create_model, get_builder, list_models

_OPTIONS = ("rotations", "lifting", "ce_stages", "width", "coset_pool")


def network_facts(network: nn.Module) -> dict[str, Any]:
    """What the rows of a result file say about a network.

    Returns:
        ``model``, ``rotations``, ``lifting``, ``ce_stages``, ``width`` (of the first stage) and
        ``coset_pool``, each None if it has none; ``coset_pool`` is ``"none"`` if the hues are not
        pooled. ``spatial`` only if the network is invariant to turns.
    """
    if isinstance(network, GrayInput):
        inner = network_facts(network.network)
        return inner | {"model": f"{inner['model']}-gray"}
    if not isinstance(network, Network):
        name = network.name if isinstance(network, ForeignNetwork) else type(network).__name__
        return {"model": name} | dict.fromkeys(_OPTIONS)
    config = network.config
    model = config.get("model", type(network).__name__)
    if model == "canonicalized":  # its rotations are those of the selector
        config = {"source": config["source"], **config["source_options"]}
    if "source" in config:
        model += f" {config['source'].partition(':')[2]}"
    facts = {"model": model} | {key: config.get(key) for key in _OPTIONS}
    facts["rotations"] = facts["rotations"] or 1
    if isinstance(facts["width"], (list, tuple)):
        facts["width"] = facts["width"][0]
    if config.get("spatial", "p1") != "p1":
        facts["spatial"] = config["spatial"]
    if facts["rotations"] > 1:
        return facts | {"coset_pool": facts["coset_pool"] or "none"}
    pool = facts["coset_pool"] if "spatial" in facts else None
    return facts | {"lifting": None, "coset_pool": pool}


def network_title(facts: Mapping[str, Any]) -> str:
    """Which network on which dataset, for tables, figures and pages.

    Example:
        >>> facts = {"model": "ce_resnet18", "rotations": 12, "lifting": "hsv"}
        >>> network_title(facts | {"run": "my-run", "dataset": "flowers102"})
        'ce_resnet18, n = 12, hsv lifting (my-run) on flowers102'
        >>> network_title({"model": "resnet18", "rotations": 1, "spatial": "p4m"})
        'resnet18, p4m'
    """
    parts = [facts["model"]]
    if (facts.get("rotations") or 1) > 1:
        parts += [f"n = {facts['rotations']}", f"{facts['lifting']} lifting"]
    if facts.get("spatial"):
        parts.append(facts["spatial"])
    run = f" ({facts['run']})" if facts.get("run") else ""
    where = f" on {facts['dataset']}" if facts.get("dataset") else ""
    return f"{', '.join(parts)}{run}{where}"


def catalogue() -> list[dict[str, Any]]:
    """The registered networks with their parameters at default options."""
    with torch.device("meta"):
        networks = {name: create_model(name) for name in list_models()}
    return [
        {
            "model": name,
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "rotations": network.config.get("rotations", 1),
            "image_size": network.image_size,
            "summary": (getdoc(get_builder(name)) or "").partition("\n")[0],
        }
        for name, network in networks.items()
    ]
