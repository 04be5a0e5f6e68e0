"""What will be replaced in a network, decided before anything is."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from equicolor._text import did_you_mean
from equicolor.conversion.dry_run import DROPOUTS, DryRun
from equicolor.conversion.supported import (
    ATTENTION,
    Advice,
    ConversionError,
    LayerError,
    Problem,
    kind_of,
)

__all__ = ["Exit", "Plan", "make_plan"]

_HEAD_PARTS = (nn.Linear, nn.LayerNorm, nn.BatchNorm1d)
Modules = Mapping[str, nn.Module]  # by path


@dataclass(frozen=True)
class Exit:
    """Where the hues are pooled.

    Attributes:
        where: ``"before"`` or ``"after"`` a module, or at the ``"output"``.
        path: of that module.
    """

    where: str
    path: str = ""

    def time(self, run: DryRun) -> float:
        """When the hues are pooled, in the count of a run."""
        if self.where == "output" or self.path not in run.calls:
            return math.inf
        first = run.calls[self.path][0]
        return first.start if self.where == "before" else first.end


@dataclass(frozen=True)
class Plan:
    """What becomes of a network.

    Attributes:
        first: the convolution that sees the images; it stays as it is.
        replaced: what becomes of which path: ``"conv"``, ``"linear"``, ``"dropout"``, ``"depth"``.
        exit: where the hues are pooled.
        problems: what cannot be converted.
        head: the path of the classifier; empty if there is none, or more than one.
    """

    first: str
    replaced: dict[str, str]
    exit: Exit
    problems: tuple[Problem, ...]
    head: str = ""

    @property
    def mixes(self) -> bool:
        """Whether any layer gets a filter over the hues."""
        return any(kind in ("conv", "linear") for kind in self.replaced.values())

    def exit_for(self, coset_pool: str | None) -> Exit:
        """Where the hues are pooled; if they are kept apart, a classifier sees every one."""
        apart = self.exit.where == "before" and coset_pool is None
        return Exit("output") if apart else self.exit


def make_plan(
    model: nn.Module,
    run: DryRun,
    until: str | None = None,
    exit_: Exit | None = None,
    training: DryRun | None = None,
) -> Plan:
    """Plan a conversion.

    Args:
        model: the network.
        run: a pass through it.
        until: the module that the equivariant part ends with; None for all but the classifier.
        exit_: where to pool the hues, if that is not to be found out.
        training: a pass through it in train mode, if there is one.

    Example:
        >>> from equicolor.conversion.dry_run import dry_run
        >>> convolutions = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)
        >>> model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64, 5))
        >>> plan = make_plan(model, dry_run(model, 8))
        >>> plan.first, plan.replaced, plan.exit
        ('0', {'2': 'conv'}, Exit(where='before', path='4'))
    """
    modules = dict(model.named_modules())
    classifier = Exit("output") if exit_ is not None else _find_head(modules, run)
    if exit_ is None:
        exit_ = classifier if until is None else _find_until(modules, run, until)
    draws = [_draws(modules, mode, exit_) for mode in (run, training) if mode is not None]
    problems = [*_attention(modules, run, exit_), *dict.fromkeys(itertools.chain(*draws))]
    replaced: dict[str, str] = {}
    refused = {problem.path for problem in problems}
    for path, module in modules.items():
        inside = path not in run.calls or _starts_before(run, path, exit_.time(run))
        part = any(path.startswith(f"{other}.") for other in refused if other)
        if path in refused or part or not inside:
            continue
        try:
            kind = kind_of(module)
            _check_called(path, module, kind, run, exit_, training)
        except LayerError as error:
            problems.append(Problem(path, type(module).__name__, str(error), error.advice))
            refused.add(path)
            continue
        if kind != "keep" and path in run.calls:
            replaced[path] = kind
    convolutions = [path for path, kind in replaced.items() if kind == "conv"]
    if not convolutions:
        where = "the network" if until is None else f"what comes before the end of {until!r}"
        if not problems:  # else this is a consequence of them
            reason = f"{where} has no convolution to convert"
            problems.append(Problem("", type(model).__name__, reason, Advice.CONVOLUTION))
        return Plan("", {}, exit_, tuple(problems))
    first = min(convolutions, key=lambda path: run.calls[path][0].start)
    del replaced[first]
    if training is not None:
        problems += dict.fromkeys(_splits(modules, run, training, exit_, replaced))
    return Plan(first, replaced, exit_, tuple(problems), classifier.path)


def _find_head(modules: Modules, run: DryRun) -> Exit:
    """The classifier: the linear layer that everything ends with, and what belongs to it."""
    ends = sorted(run.calls, key=lambda path: run.calls[path][-1].end, reverse=True)
    last = next((path for path in ends if _has_weights(modules[path])), "")
    if not last or not isinstance(modules[last], nn.Linear) or len(run.calls[last]) > 1:
        return Exit("output")
    head = last
    while "." in head:
        parent = head.rpartition(".")[0]
        parts = [part for part in modules[parent].modules() if _has_weights(part)]
        whole = isinstance(modules[parent], nn.Sequential) and parent in run.calls
        if not whole or not all(isinstance(part, _HEAD_PARTS) for part in parts):
            break
        head = parent
    return Exit("before", head)


def _has_weights(module: nn.Module) -> bool:
    """Whether a module has parameters itself, not only in its parts."""
    return any(parameter is not None for parameter in module._parameters.values())


def _find_until(modules: Modules, run: DryRun, until: str) -> Exit:
    paths = [path for path in modules if path]
    if until not in paths:
        parts = [path for path in paths if "." not in path]
        hint = did_you_mean(until, paths, f"it has {', '.join(parts[:8])}")
        raise ConversionError(f"until names no module of the network: {until!r}; {hint}")
    calls = len(run.calls.get(until, []))
    if calls != 1:
        times = f"calls it {calls} times" if calls else "never calls it"
        children = [path for path in run.calls if path.rpartition(".")[0] == until]
        hint = f"; its parts are {', '.join(children[:8])}" if not calls and children else ""
        raise ConversionError(
            f"until={until!r} cannot end the equivariant part: the network {times}{hint}"
        )
    return Exit("after", until)


def _starts_before(run: DryRun, path: str, time: float) -> bool:
    return any(call.start < time for call in run.calls.get(path, []))


def _check_called(
    path: str, module: nn.Module, kind: str, run: DryRun, exit_: Exit, training: DryRun | None
) -> None:
    """Refuse weights that are not used, and modules that are used on both sides of the pool."""
    weights = _has_weights(module) and path != ""
    if weights and path not in run.calls:
        only = ", only in training" if training is not None and path in training.calls else ""
        raise LayerError(
            f"it has weights but is not called in eval mode{only}: what it sees is unknown",
            Advice.ONLY_CALLED,
        )
    time = exit_.time(run)
    starts = [call.start for call in run.calls.get(path, [])]
    crosses = any(start < time for start in starts) and any(start > time for start in starts)
    if crosses and (weights or kind != "keep"):
        raise LayerError("it is used before and after the hues are pooled")


def _attention(modules: Modules, run: DryRun, exit_: Exit) -> Iterator[Problem]:
    for path in dict.fromkeys(run.attention):
        if _starts_before(run, path, exit_.time(run)):
            kind = type(modules[path]).__name__
            yield Problem(path, kind, ATTENTION, Advice.NO_ATTENTION)


def _draws(modules: Modules, run: DryRun, exit_: Exit) -> Iterator[Problem]:
    """Random numbers that the code of a module draws by itself, before the hues are pooled."""
    time = exit_.time(run)
    functions = {draw.path: draw.function for draw in reversed(run.draws) if draw.when < time}
    for path, function in functions.items():
        module = modules[path]
        if _shares_or_is_refused(module):
            continue
        reason = (
            f"its code draws random numbers ({function}), which would differ between the hues; "
            "build the network without it"
        )
        if function in DROPOUTS:
            reason = (
                "its code calls a dropout function, whose mask would differ between the hues; "
                "build the network without it (drop_rate=0), or with nn.Dropout"
            )
        yield Problem(path, type(module).__name__, reason)


def _shares_or_is_refused(module: nn.Module) -> bool:
    """Whether a module that draws gets a version for hues, or is refused for what it is."""
    try:
        return isinstance(module, nn.RReLU) or kind_of(module) in ("dropout", "depth")
    except LayerError:
        return True


def _splits(
    modules: Modules, run: DryRun, training: DryRun, exit_: Exit, replaced: Iterable[str]
) -> Iterator[Problem]:
    """Batch norms, layers for hues and code that get the whole batch in eval mode alone."""
    before, after = _shapes(run, exit_, replaced), _shapes(training, exit_, replaced)
    for path, shapes in after.items():
        sizes = {shape[0] for shape in before.get(path, ())}
        if any(size % run.batch for size in sizes):
            continue  # the same in eval mode: the trial of the result names it
        for shape in shapes:
            # A sequence that comes first is as long for any batch; the trial names that, too.
            if shape[0] % training.batch and shape[0] not in sizes - {run.batch}:
                reason = (
                    f"in training it gets parts of a batch, {shape} of {training.batch} images, "
                    "and the hues would lie in different parts; give it the whole batch"
                )
                yield Problem(path, type(modules[path]).__name__, reason)


def _shapes(run: DryRun, exit_: Exit, replaced: Iterable[str]) -> dict[str, list[list[int]]]:
    """What batch norms and layers for hues get before the hues are pooled, by their paths."""
    time = exit_.time(run)
    shapes = {path: list(run.inputs.get(path, ())) for path in replaced}
    for norm in run.norms:
        if norm.when < time:
            shapes.setdefault(norm.path, []).append(norm.shape)
    return shapes
