"""How the equivariant layers of a network compute: the variants that are compared.

``"plain"`` has no such layers, ``"dense"`` is the paper's construction, ``"cyclic"`` the fast
algorithm written with ordinary operations, ``"fused"`` the same with everything but the
convolutions in kernels of :mod:`equicolor.nn._fused`, and ``"auto"`` what a user gets. Of folded
networks they are the forms; ``"auto"`` is then that of plain torch modules, for torch to compile.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from equicolor import _checks
from equicolor.nn import CEConv2d, CELiftConv2d, set_algorithm
from equicolor.nn._fused import blocks, conditions

__all__ = [
    "LAYER_VARIANTS",
    "VARIANTS",
    "apply_variant",
    "can_fuse",
    "check_variants",
    "takes_fused_path",
]

VARIANTS = ("plain", "fused", "auto", "dense", "cyclic")
# Whole residual blocks are fused, not single layers.
LAYER_VARIANTS = tuple(variant for variant in VARIANTS if variant != "fused")


def apply_variant(module: nn.Module, variant: str) -> nn.Module:
    """Make the equivariant layers of a module compute in one way; returns the module.

    Example:
        >>> apply_variant(CEConv2d(4, 4, 3), "dense").algorithm
        'dense'
    """
    _checks.one_of("variant", variant, VARIANTS)
    if variant == "plain":
        return module
    set_algorithm(module, "cyclic" if variant == "fused" else variant)
    if variant in ("dense", "cyclic"):
        for layer in module.modules():
            if isinstance(layer, CEConv2d | CELiftConv2d):
                # What is looked into is not fused, neither blocks nor the first layers.
                layer.register_forward_hook(_look)
    return module


def _look(module: nn.Module, inputs: Any, output: Any) -> None:
    """Do nothing."""


def can_fuse(device: torch.device) -> bool:
    """Whether a device is of a kind that has the fused path.

    Example:
        >>> can_fuse(torch.device("cpu"))
        False
    """
    return device.type in conditions.DEVICES


def takes_fused_path(step: Callable[[], object]) -> bool:
    """Whether a step runs residual blocks of :mod:`equicolor.nn._fused`, folded or not.

    Example:
        >>> from equicolor.models import ce_resnet18
        >>> takes_fused_path(lambda: ce_resnet18(5, width=4)(torch.rand(2, 3, 32, 32)))  # CPU
        False
    """
    calls, original = 0, blocks.block_of

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return original(*arguments, **options)

    blocks.block_of = counted
    try:
        step()
    finally:
        blocks.block_of = original
    return calls > 0


def check_variants(variants: tuple[str, ...], device: torch.device) -> None:
    """Refuse variants that a device does not have.

    Example:
        >>> check_variants(("fused",), torch.device("cpu"))
        Traceback (most recent call last):
            ...
        ValueError: variant 'fused' needs a device of kind cuda, got cpu
    """
    if "fused" in variants and not can_fuse(device):
        kinds = " or ".join(conditions.DEVICES)
        raise ValueError(f"variant 'fused' needs a device of kind {kinds}, got {device.type}")
