"""Where a converted network came from, so that a checkpoint can build it again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from equicolor.conversion.dry_run import DryRun
from equicolor.conversion.plan import Exit
from equicolor.models.checkpoints import build_from_config
from equicolor.models.foreign import LIBRARIES, ForeignNetwork, load_foreign
from equicolor.models.registry import Network, list_models

__all__ = ["Source", "build_source", "source_of"]

OURS = "equicolor"
# What a checkpoint may set in a network of torchvision or timm: sizes and layers by name. Other
# arguments of theirs read files or download; a number of blocks could be without end.
_FILE_OPTIONS = frozenset(
    {
        "act_layer", "aux_logits", "aux_loss", "avg_down", "base_width", "bn_size", "cardinality",
        "channels", "conv_mlp", "dilated", "down_kernel_size", "drop_block_rate", "drop_path_rate",
        "drop_rate", "dropout", "global_pool", "groups", "growth_rate", "head_init_scale",
        "head_norm_first", "init_weights", "ls_init_value", "norm_layer", "num_classes",
        "output_stride", "pad_type", "proj_drop_rate", "reduce_first", "reduced_tail",
        "replace_stem_pool", "replace_stride_with_dilation", "stem_type", "stem_width",
        "stochastic_depth_prob", "transform_input", "width_mult", "width_per_group",
        "zero_init_last", "zero_init_residual",
    }
)  # fmt: skip
_WORD = re.compile(r"\w{0,40}")  # the name of a layer or of a kind of pooling: no path, no address


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
    """The network of a source, without trained weights: what a checkpoint asks for.

    Raises:
        ValueError: for what a file may not ask for; it runs no code and downloads nothing.
    """
    library, _, name = source.spec.partition(":")
    if library == OURS:
        if name not in list_models():
            raise ValueError(f"a checkpoint cannot be built from {source.spec}")
        return build_from_config({"model": name, **source.options})
    for option, value in source.options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        plain = all(isinstance(v, (bool, int, float, type(None))) for v in values)
        if option not in _FILE_OPTIONS or not (
            plain or (isinstance(value, str) and _WORD.fullmatch(value))
        ):
            raise ValueError(
                f"a checkpoint may not set {option}={value!r} of {source.spec}: keep the "
                "state_dict() instead"
            )
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
