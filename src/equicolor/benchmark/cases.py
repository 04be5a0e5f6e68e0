"""What is measured: cases, and the settings they share."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from equicolor import _checks
from equicolor.benchmark.variants import VARIANTS

__all__ = ["MODES", "PRECISIONS", "Case", "Settings", "chosen_from"]

# The order is that of a run: what a time limit cuts off matters least.
MODES = ("training", "folded", "forward")
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Settings:
    """What all cases of a run share.

    Attributes:
        device: where it runs.
        precision: ``"fp32"``, or ``"bf16"``: autocast. Memory is channels_last in both.
        compile: whether ``torch.compile`` sees the network.
        repeats: rounds of timing; every round times every case once.
        warm_up: calls before the first timing.
        shortest_ms: a case is run as often within one timing as it takes to last so long.

    Example:
        >>> Settings(torch.device("cpu"), precision="bf16").dtype
        torch.bfloat16
    """

    device: torch.device
    precision: str = "fp32"
    compile: bool = False
    repeats: int = 7
    warm_up: int = 3
    shortest_ms: float = 10.0

    def __post_init__(self) -> None:
        _checks.one_of("precision", self.precision, PRECISIONS)
        _checks.positive_int("repeats", self.repeats)

    @property
    def dtype(self) -> torch.dtype:
        """What convolutions compute in."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The context of a forward pass."""
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)


@dataclass(frozen=True)
class Case:
    """One thing to measure: a network or a layer, in one mode.

    Attributes:
        build: makes the module, on the CPU.
        shape: of its input.
        mode: ``"training"``: forward, backward and, of a network, Adam's update;
            ``"forward"``: in eval mode, without gradients; ``"folded"``: the same of
            :func:`equicolor.nn.fold`.
        variant: one of :data:`~equicolor.benchmark.variants.VARIANTS`.
        classes: how many a network tells apart; None for a layer.
        facts: what a row says of the case, beside mode, variant and batch.
        recorded: where it is compiled on a GPU, torch.compile also records CUDA graphs, as
            those of the fused variant are.

    Example:
        >>> case = Case(lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8), facts={"model": "stem"})
        >>> case.row
        {'model': 'stem', 'variant': 'plain', 'mode': 'forward', 'batch': 2}
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    mode: str = "forward"
    variant: str = "plain"
    classes: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    recorded: bool = False

    def __post_init__(self) -> None:
        _checks.one_of("mode", self.mode, MODES)
        _checks.one_of("variant", self.variant, VARIANTS)
        if self.mode == "folded" and self.classes is None:
            raise ValueError("only networks are folded: they end their equivariant part")

    @property
    def row(self) -> dict[str, Any]:
        """The beginning of its row of results."""
        own = {"variant": self.variant, "mode": self.mode, "batch": self.shape[0]}
        return {**self.facts, **own}

    @property
    def form(self) -> str:
        """How :func:`equicolor.nn.fold` writes it."""
        return "auto" if self.variant == "plain" else self.variant


def chosen_from(name: str, chosen: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """Those of ``known`` that were chosen, in the order of ``known``; all without a choice.

    Args:
        name: of the option, for errors.
        chosen: names, or None.
        known: what there is.

    Example:
        >>> chosen_from("modes", ["folded", "training"], MODES)
        ('training', 'folded')
    """
    if chosen is None:
        return tuple(known)
    if not chosen:
        raise ValueError(f"{name} must name at least one of {', '.join(known)}; got none")
    for value in chosen:
        _checks.one_of(name, value, known)
    return tuple(value for value in known if value in chosen)
