"""The evaluation of one network on one set of images."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._text import counted
from equicolor.evaluation import metrics
from equicolor.evaluation.actions import ACTIONS, HUE_ACTIONS, action_named
from equicolor.evaluation.hue_sweep import Batches, HueSweep, hue_shifts, sweep_actions
from equicolor.models.facts import network_facts, network_title
from equicolor.reporting.progress import Progress

# Of the keys of a row. The HSV shift, which is the paper's, is just "hue".
PREFIX = {name: name.replace("-", "_") for name in ACTIONS} | {"hsv": "hue"}


class ClassChange(NamedTuple):
    """The effect of hue shifts, or of another action, on one class; numbers in percent.

    Attributes:
        name: of the class.
        images: how many there are.
        original: accuracy on the untouched images.
        shifted: mean accuracy over the distinct shifts.
        changed: how often a shift changes the answer, on average.
    """

    name: str
    images: int
    original: float
    shifted: float
    changed: float

    @property
    def drop(self) -> float:
        """Points lost to the shifts."""
        return self.original - self.shifted


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of :func:`evaluate`.

    Attributes:
        facts: about the network and the images, for rows and tables.
        class_names: one for each output.
        original: accuracy on the untouched images in percent.
        per_class: the same for every class, float64 :math:`[C]`; NaN if it has no images.
        nll: mean negative log-likelihood in nats.
        reliability: confidence against accuracy.
        sweeps: one for each action.
        images: how many there were.
        seconds: how long it took.
    """

    facts: dict[str, Any]
    class_names: tuple[str, ...]
    original: float
    per_class: Tensor
    nll: float
    reliability: metrics.Reliability
    sweeps: dict[str, HueSweep]
    images: int
    seconds: float

    def __repr__(self) -> str:
        swept = [
            f"{action_named(action).label} {sweep.mean:.1f} %"
            for action, sweep in self.sweeps.items()
        ]
        accuracies = [f"original {self.original:.1f} %", *swept]
        return (
            f"Evaluation({network_title(self.facts)}, {counted(self.images, 'image')} of "
            f"{len(self.class_names)} classes: {', '.join(accuracies)}, calibration error "
            f"{self.reliability.expected_error:.1f})"
        )

    def class_changes(self, action: str = "hsv") -> list[ClassChange]:
        """The effect of an action on every class that has images, the largest loss first.

        Args:
            action: one that was swept.
        """
        sweep = self.sweeps[_checks.one_of("action", action, tuple(self.sweeps))]
        columns = sweep.counts, sweep.original_per_class, sweep.mean_per_class, sweep.mean_changed
        changes = map(ClassChange, self.class_names, *(column.tolist() for column in columns))
        return sorted(
            (change for change in changes if change.images),
            key=lambda change: change.drop,
            reverse=True,
        )

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for a result file.

        Returns:
            A list of one row: the facts; ``original`` accuracy; ``hue_mean``,
            ``hue_mean_distinct`` and ``hue_curve`` of the HSV shift, and the same of the other
            actions under their names (``rgb_…``, ``rgb_clip_…``, ``gamma_…``); ``nll`` and
            ``ece``; the number of ``images`` and ``evaluate_seconds``. ``shifts`` are there if they
            are not the paper's; values in other units, such as ``gamma_values``, always are.
        """
        row = {**self.facts, "original": round(self.original, 3)}
        for action, sweep in self.sweeps.items():
            prefix = PREFIX[action]
            row[f"{prefix}_mean"] = round(sweep.mean, 3)
            row[f"{prefix}_mean_distinct"] = round(sweep.mean_distinct, 3)
            row[f"{prefix}_curve"] = [round(value, 3) for value in sweep.accuracy.tolist()]
            if action_named(action).unit != "turns":
                row[f"{prefix}_values"] = [round(value, 6) for value in sweep.shifts.tolist()]
            elif not torch.equal(sweep.shifts, hue_shifts()):
                row["shifts"] = sweep.shifts.tolist()
        return [
            row
            | {
                "nll": round(self.nll, 5),
                "ece": round(self.reliability.expected_error, 3),
                "images": self.images,
                "evaluate_seconds": round(self.seconds, 2),
            }
        ]


def evaluate(
    network: nn.Module,
    batches: Batches,
    *,
    class_names: Sequence[str] | None = None,
    actions: Sequence[str] = HUE_ACTIONS,
    shifts: int | Sequence[float] | Tensor = 37,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Judge a network: accuracy, calibration, and both under hue shifts, class by class.

    Args:
        network, batches, shifts, autocast, progress: see :func:`equicolor.evaluation.hue_sweep`.
        class_names: one for each output; numbers by default.
        actions: some of :data:`equicolor.evaluation.ACTIONS`; may be empty.
        facts: more entries for the row: dataset, seed, and so on.

    Example:
        >>> from equicolor.models import cecnn
        >>> batches = [(torch.rand(8, 3, 28, 28), torch.arange(8) % 4)]
        >>> network = cecnn(4, coset_pool="max")
        >>> result = evaluate(network, batches, shifts=[0.0, 1 / 3], actions=["rgb"])
        >>> result.sweeps["rgb"].accuracy.tolist() == [result.original] * 2
        True
        >>> result.rows()[0]["model"], result.images, len(result.class_changes("rgb"))
        ('cecnn', 8, 4)
    """
    start = time.perf_counter()
    answers: list[tuple[Tensor, Tensor]] = []

    def keep(logits: Tensor, labels: Tensor) -> None:
        if class_names is not None and logits.shape[1] != len(class_names):
            raise ValueError(
                f"the network has {logits.shape[1]} outputs, but the images have "
                f"{len(class_names)} classes"
            )
        answers.append((logits, labels))

    sweeps = sweep_actions(
        network, batches, shifts, actions, autocast=autocast, progress=progress, on_original=keep
    )
    logits, labels = (torch.cat(parts).cpu() for parts in zip(*answers, strict=True))
    names = map(str, range(logits.shape[1])) if class_names is None else class_names
    return Evaluation(
        facts={**network_facts(network), **(facts or {})},
        class_names=tuple(names),
        original=metrics.accuracy(logits, labels),
        per_class=metrics.per_class_accuracy(logits, labels),
        nll=metrics.negative_log_likelihood(logits, labels),
        reliability=metrics.reliability(logits, labels),
        sweeps=sweeps,
        images=len(labels),
        seconds=time.perf_counter() - start,
    )
