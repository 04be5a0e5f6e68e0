"""Where a converted network came from, so that a checkpoint can build it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from equicolor.conversion.dry_run import DryRun
from equicolor.conversion.plan import Exit
from equicolor.models.foreign import LIBRARIES, ForeignNetwork, load_foreign
from equicolor.models.registry import Network, create_model

__all__ = ["Source", "build_source", "source_of"]

OURS = "equicolor"


@dataclass(frozen=True)
class Source:
    """A network by name.

    Attributes:
        spec: ``equicolor:NAME``, ``torchvision:NAME`` or ``timm:NAME``.
        options: the arguments its builder was called with.

    Example:
        >>> type(build_source(Source("equicolor:z2cnn", {"num_classes": 3}))).__name__
        'Z2CNN'
    """

    spec: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        library, colon, name = self.spec.partition(":")
        if library not in (OURS, *LIBRARIES) or not colon or not name:
            raise ValueError(
                f"source must be equicolor:NAME, torchvision:NAME or timm:NAME, got {self.spec!r}"
            )


def build_source(source: Source) -> nn.Module:
    """The network of a source, without trained weights."""
    library, _, name = source.spec.partition(":")
    if library == OURS:
        return create_model(name, **source.options)
    return load_foreign(source.spec, pretrained=False, **source.options).network


def source_of(
    model: nn.Module, given: "str | Source | None", run: DryRun, exit_: Exit
) -> Source | None:
    """Where a network came from, as given or as it says itself; None if nobody knows."""
    if isinstance(given, Source):
        return given
    if isinstance(model, Network) and given is None:
        options = dict(model.config)
        return Source(f"{OURS}:{options.pop('model')}", options) if options else None
    config = getattr(model, "pretrained_cfg", None) or {}
    name = given
    if name is None and isinstance(model, ForeignNetwork):
        name = model.name
    if name is None and isinstance(config, dict) and config.get("architecture"):
        name = f"timm:{config['architecture']}"
    if name is None or name.partition(":")[0] not in (OURS, *LIBRARIES):
        return Source(name) if given is not None and name is not None else None
    # Classes are the one option that nearly every network is built with.
    classifies = exit_.where == "before" or (len(run.outputs) == 1 and len(run.outputs[0]) == 2)
    return Source(name, {"num_classes": run.outputs[0][1]} if classifies else {})
