"""Pure functions on rows of one run: ratios between cases, and the goals they are held to."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equicolor.benchmark.timing import paired_ratio

__all__ = ["Goal", "layer_goals", "network_goals", "precision_goals", "with_ratios"]

Row = dict[str, Any]

# What two rows that differ in their variant alone have in common.
_IDENTITY = ("name", "model", "rotations", "width", "lifting", "mode", "batch", "size")


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Rows of one group with their ratios; those of the same rounds are compared.

    Args:
        rows: with ``times_ms`` and ``peak_mib``, unless something went wrong.

    Returns:
        The rows with ``over_plain`` and ``memory_over_plain``: time and memory in multiples of
        the group's plain case; ``dense_over``: how many times faster than the dense variant
        of the same; and, for ``auto``, ``over_best``: time in multiples of the faster of
        dense and cyclic, what the choice costs. None where there is nothing to compare with.

    Example:
        >>> rows = [{"model": "conv", "variant": variant, "times_ms": [ms], "peak_mib": 1.0}
        ...         for variant, ms in (("plain", 1.0), ("dense", 9.0), ("cyclic", 4.0))]
        >>> [(row["over_plain"], row["dense_over"]) for row in with_ratios(rows)]
        [(1.0, None), (9.0, 1.0), (4.0, 2.25)]
    """
    plain = next((row for row in rows if row["variant"] == "plain"), None)
    return [row | _ratios(row, rows, plain) for row in rows]


def _ratios(row: Row, rows: Sequence[Row], plain: Row | None) -> Row:
    alike = {
        other["variant"]: other
        for other in rows
        if all(other.get(key) == row.get(key) for key in _IDENTITY)
    }
    found: Row = {
        "over_plain": _times(row, plain),
        "memory_over_plain": _memory(row, plain),
        "dense_over": None if row["variant"] == "plain" else _times(alike.get("dense"), row),
    }
    if row["variant"] == "auto" and {"dense", "cyclic"} <= alike.keys():
        over = [_times(row, alike[variant]) for variant in ("dense", "cyclic")]
        found["over_best"] = max((ratio for ratio in over if ratio is not None), default=None)
    return found


def _times(row: Row | None, base: Row | None) -> float | None:
    """The ratio of two rows' times, if both have been measured."""
    if row is None or base is None or not row.get("times_ms") or not base.get("times_ms"):
        return None
    return round(paired_ratio(row["times_ms"], base["times_ms"]), 3)


def _memory(row: Row | None, base: Row | None) -> float | None:
    if row is None or base is None or not row.get("peak_mib") or not base.get("peak_mib"):
        return None
    return round(float(row["peak_mib"] / base["peak_mib"]), 3)


@dataclass(frozen=True)
class Goal:
    """A figure that was promised.

    Attributes:
        what: in words.
        value: measured; None if it was not.
        limit: the promise.
        at_most: whether the value may not exceed the limit, or may not stay below it.

    Example:
        >>> Goal("step over plain", 3.1, 3.2).met, Goal("faster", 1.5, 1.8, at_most=False).met
        (True, False)
    """

    what: str
    value: float | None
    limit: float
    at_most: bool = True

    @property
    def met(self) -> bool | None:
        """Whether it is kept; None if it was not measured."""
        if self.value is None:
            return None
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def to_json(self) -> Row:
        """A flat object for the file of results."""
        value = None if self.value is None else float(f"{self.value:.4g}")
        kind = "at_most" if self.at_most else "at_least"
        return {"what": self.what, "value": value, kind: self.limit, "met": self.met}


def network_goals(rows: Sequence[Row]) -> list[Goal]:
    """What the suite of networks is held to, from its rows.

    Training and folded inference are each judged by the faster of what torch compiles
    (``"auto"``) and the fused path.

    Example:
        >>> row = {"name": "n3-fast", "variant": "auto", "mode": "training", "over_plain": 3.1}
        >>> [goal.met for goal in network_goals([row])]
        [True, None, None, None, None, None, None]
    """

    def find(name: str, mode: str, variant: str) -> Row | None:
        wanted = {"name": name, "mode": mode, "variant": variant}
        return next((row for row in rows if wanted.items() <= row.items()), None)

    def trained(name: str) -> Row | None:
        return find(name, "training", variant)

    def value(row: Row | None, key: str) -> float | None:
        return None if row is None else row.get(key)

    def fastest(mode: str) -> str:
        ratios = {
            variant: value(find("n3-fast", mode, variant), "over_plain")
            for variant in ("auto", "fused")
        }
        return min(ratios, key=lambda name: ratios[name] or math.inf)

    variant, form = fastest("training"), fastest("folded")
    fast, hsv, twelve = trained("n3-fast"), trained("n3-fast-hsv"), trained("n12-fast")
    matched, folded = trained("n3-matched"), find("n3-fast", "folded", form)
    twelve_matched = trained("n12-matched")
    how = f" ({variant})"
    return [
        Goal(f"training step, n = 3, fast / plain{how}", value(fast, "over_plain"), 3.2),
        Goal(f"training step, n = 3, matched / plain{how}", value(matched, "over_plain"), 4.0),
        Goal(f"folded inference, n = 3, fast / plain ({form})", value(folded, "over_plain"), 3.0),
        Goal(f"training step, n = 12 / n = 3, fast{how}", _times(twelve, fast), 3.0),
        Goal(f"training step, n = 12 / n = 3, matched{how}", _times(twelve_matched, matched), 3.0),
        Goal(f"peak training memory, n = 3 / plain{how}", value(fast, "memory_over_plain"), 2.5),
        Goal(f"training step, hsv / rgb lifting{how}", _times(hsv, fast), 1.05),
    ]


def layer_goals(rows: Sequence[Row]) -> list[Goal]:
    """What the suite of layers is held to on a CPU: dense over auto at its ResNet shapes.

    The goal is for the geometric mean of the stages; the worst of them is told beside it.

    Example:
        >>> rows = [{"model": stage, "variant": "auto", "rotations": 3, "mode": "training",
        ...          "dense_over": ratio} for stage, ratio in (("stage1", 1.0), ("stage2", 4.0))]
        >>> goal = layer_goals(rows)[0]
        >>> goal.what, goal.value
        ('training step, n = 3, dense / auto, geometric mean of 2 stages (worst: 1.00 at stage1)',
         2.0)
    """
    goals = []
    for rotations, limit in ((3, 1.8), (12, 5.0)):
        wanted = {"variant": "auto", "rotations": rotations, "mode": "training"}
        ratios = {
            row["model"]: float(row["dense_over"])
            for row in rows
            if wanted.items() <= row.items()
            and row["model"].startswith("stage")
            and row.get("dense_over")
        }
        what, mean = f"training step, n = {rotations}, dense / auto", None
        if ratios:
            worst = min(ratios, key=lambda name: ratios[name])
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            what += f", geometric mean of {len(ratios)} stages"
            what += f" (worst: {ratios[worst]:.2f} at {worst})"
        goals.append(Goal(what, mean, limit, at_most=False))
    return goals


def precision_goals(rows: Iterable[Mapping[str, Any]], fast: str = "auto") -> list[Goal]:
    """What the suite of precision is held to: gradients, and the loss on the way and at the end.

    A loss may differ by the deviation of the dense path's over seeds, which is what
    another seed would change; the difference of one seed alone has no such measure.

    Args:
        rows: of the suite.
        fast: the variant that is compared with the dense one.

    Example:
        >>> rows = [{"variant": v, "seed": s, "gradient_error": e, "mean_loss": 2 * f,
        ...          "final_loss": f}
        ...         for v, s, e, f in (("dense", 0, 0.02, 1.0), ("dense", 1, 0.02, 1.2),
        ...                            ("auto", 0, 0.03, 1.1), ("auto", 1, 0.03, 1.1))]
        >>> [round(goal.value, 3) for goal in precision_goals(rows)]
        [1.5, 0.0, 0.0]
    """
    found = {(row["variant"], row["seed"]): row for row in rows}
    seeds = [seed for variant, seed in found if variant == fast and ("dense", seed) in found]

    def pairs(key: str) -> list[tuple[float, float]]:
        both = [(found[fast, seed].get(key), found["dense", seed].get(key)) for seed in seeds]
        return [(own, dense) for own, dense in both if own is not None and dense is not None]

    def loss_goal(key: str, what: str) -> Goal:
        losses, difference, noise = pairs(key), None, 0.0
        if losses:
            dense_mean = sum(dense for _, dense in losses) / len(losses)
            difference = abs(sum(own for own, _ in losses) / len(losses) - dense_mean)
            squares = sum((dense - dense_mean) ** 2 for _, dense in losses)
            noise = math.sqrt(squares / (len(losses) - 1)) if len(losses) > 1 else 0.0
        what += f", |{fast} − dense|, against the deviation over {len(losses)} seeds"
        return Goal(what, difference, float(f"{noise:.4g}"))

    error = max((own / dense for own, dense in pairs("gradient_error")), default=None)
    return [
        Goal(f"gradient error, {fast} / dense, worst seed", error, 2.0),
        loss_goal("mean_loss", "mean loss over all steps"),
        loss_goal("final_loss", "final loss"),
    ]
