"""What will be replaced in a network, decided before anything is."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from equicolor._text import did_you_mean
from equicolor.conversion.dry_run import DROPOUTS, DryRun
from equicolor.conversion.supported import (
    ATTENTION,
    Advice,
    ConversionError,
    Kind,
    Problem,
    Refusal,
    kind_of,
    refuse,
)
from equicolor.nn.batched import HueLift

_HEAD_PARTS = (nn.Linear, nn.LayerNorm, nn.BatchNorm1d)
Modules = Mapping[str, nn.Module]  # by path


@dataclass(frozen=True)
class Conversion:
    """The options of :func:`equicolor.convert`, in the order in which checkpoints keep them."""

    rotations: int
    lifting: str
    until: str | None
    coset_pool: str | None
    takes: str
    check_range: bool
    image_size: int
    resize: int | None  # the short side of an image before its centre is cropped, if known
    init: str
    mean: list[float] | None  # None for a network that takes images in [0, 1]
    std: list[float] | None
    channels: list[tuple[int, int]] | None = None  # old and new counts, if parameters are matched
    padded: bool = False  # whether images have zeros around them, as in detectors; not saved

    def lift(self, like: Tensor) -> HueLift:
        """What the converted network begins with, of the device and dtype of a tensor."""
        lift = HueLift(
            self.rotations,
            self.lifting,
            mean=self.mean,
            std=self.std,
            takes=self.takes,
            padded=self.padded,
            check_range=self.check_range,
        )
        return lift.to(like.device, like.dtype)


class Exit(NamedTuple):
    """Where the hues are pooled: ``"before"`` or ``"after"`` a module, or at the ``"output"``."""

    where: str
    path: str = ""  # of the module

    def time(self, run: DryRun) -> float:
        """When the hues are pooled, in the count of a run."""
        if self.where == "output" or self.path not in run.calls:
            return math.inf
        first = run.calls[self.path][0]
        return first.start if self.where == "before" else first.end


class Plan(NamedTuple):
    """What becomes of a network."""

    replaced: dict[str, Kind]  # by path
    exit: Exit
    first: str  # the path of the convolution that sees the images; it stays as it is
    head: str  # the path of the classifier; empty if there is none, or more than one


def make_plan(
    model: nn.Module,
    options: Conversion,
    run: DryRun,
    training: DryRun | None = None,
    exit_: Exit | None = None,
) -> Plan:
    """Plan a conversion, or refuse it with everything that cannot be converted.

    ``run`` is a pass through the network in eval mode, ``training`` one in train mode, None if
    that failed. By default, the hues are pooled after ``until``, or before the classifier. If they
    are pooled behind it, or kept apart, the classifier sees every hue by itself and mixes none.
    """
    if options.coset_pool == "confidence":
        _check_logits(model, run)
    modules = dict(model.named_modules())
    classifier = Exit("output") if exit_ is not None else _find_head(modules, run)
    if exit_ is None and options.until is not None:
        exit_ = _find_until(modules, run, options.until)
    elif exit_ is None:
        exit_ = classifier if options.coset_pool in ("max", "avg") else Exit("output")
    plain_part = classifier.path if exit_.where == "output" else ""
    problems = [*_attention(run, exit_), *_draws(modules, run, exit_)]
    if training is not None:
        problems += _draws(modules, training, exit_)
    replaced: dict[str, Kind] = {}
    refused = {path for path, _ in problems}
    for path, module in modules.items():
        inside = path not in run.calls or _starts_before(run, path, exit_)
        parts_of_refused = tuple(f"{other}." for other in refused if other)
        if not inside or path in refused or path.startswith(parts_of_refused):
            continue
        if isinstance(module, nn.Linear) and _is_inside(path, plain_part):
            continue
        kind = _kind_in_place(path, module, run, exit_, training)
        if isinstance(kind, Refusal):
            problems.append((path, kind))
            refused.add(path)
        elif kind is not Kind.KEEP and path in run.calls:
            replaced[path] = kind
    convolutions = [path for path in replaced if isinstance(modules[path], nn.Conv2d)]
    first = min(convolutions, key=lambda path: run.calls[path][0].start, default="")
    if convolutions:
        del replaced[first]
        if training is not None:
            problems += _splits(run, training, exit_, replaced)
    elif not problems:  # else this is a consequence of them
        until = options.until
        part = "the network" if until is None else f"what comes before the end of {until!r}"
        reason = f"{part} has no convolution to convert"
        problems.append(("", Refusal(reason, Advice.CONVOLUTION)))
    refuse(model, problems)
    return Plan(replaced, exit_, first, classifier.path)


def _check_logits(model: nn.Module, run: DryRun) -> None:
    """Refuse a network whose output is not one tensor ``[B, C]`` of at least two classes."""
    shapes = run.outputs
    if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][0] != run.batch or shapes[0][1] < 2:
        what = " and ".join(map(str, shapes)) or "no tensor"
        raise ConversionError(
            "coset_pool='confidence' chooses a hue by its logits, so the network must return one "
            f"tensor [B, C] of at least 2 classes; {type(model).__name__} returns {what} for "
            f"{run.batch} images. What works: coset_pool='max' or 'avg'"
        )


def _is_inside(path: str, parent: str) -> bool:
    """Whether a module is the parent or a part of it; nothing is inside of ``""``."""
    return parent != "" and f"{path}.".startswith(f"{parent}.")


def _find_head(modules: Modules, run: DryRun) -> Exit:
    """The classifier: the last layer, if it is linear, and the norms and layers around it."""
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


def _starts_before(run: DryRun, path: str, exit_: Exit) -> bool:
    """Whether a call of a module begins before the hues are pooled."""
    return any(call.start < exit_.time(run) for call in run.calls.get(path, []))


def _kind_in_place(
    path: str, module: nn.Module, run: DryRun, exit_: Exit, training: DryRun | None
) -> Kind | Refusal:
    """Refuse weights that are not used, and modules that are used on both sides of the pool."""
    kind = kind_of(module)
    if isinstance(kind, Refusal):
        return kind
    weights = _has_weights(module) and path != ""
    if weights and path not in run.calls:
        only = ", only in training" if training is not None and path in training.calls else ""
        return Refusal(
            f"it has weights but is not called in eval mode{only}: what it sees is unknown",
            Advice.ONLY_CALLED,
        )
    behind = any(call.start > exit_.time(run) for call in run.calls.get(path, []))
    if behind and _starts_before(run, path, exit_) and (weights or kind is not Kind.KEEP):
        return Refusal("it is used before and after the hues are pooled")
    return kind


def _attention(run: DryRun, exit_: Exit) -> Iterator[Problem]:
    for operation in run.operations:
        if operation.kind == "attention" and _starts_before(run, operation.path, exit_):
            yield operation.path, ATTENTION


def _draws(modules: Modules, run: DryRun, exit_: Exit) -> Iterator[Problem]:
    """Random numbers that the code of a module draws by itself, before the hues are pooled."""
    functions: dict[str, str] = {}
    for operation in run.operations:
        if operation.kind == "draw" and operation.when < exit_.time(run):
            functions.setdefault(operation.path, operation.function)
    for path, function in functions.items():
        kind = kind_of(modules[path])
        is_replaced_or_refused = kind in (Kind.DROPOUT, Kind.DEPTH) or isinstance(kind, Refusal)
        if is_replaced_or_refused or isinstance(modules[path], nn.RReLU):
            continue
        if function in DROPOUTS:
            reason = (
                "its code calls a dropout function, whose mask would differ between the hues; "
                "build the network without it (drop_rate=0), or with nn.Dropout"
            )
        else:
            reason = (
                f"its code draws random numbers ({function}), which would differ between the hues; "
                "build the network without it"
            )
        yield path, Refusal(reason)


def _splits(
    run: DryRun, training: DryRun, exit_: Exit, replaced: Iterable[str]
) -> Iterator[Problem]:
    """Batch norms, layers for hues and code that get only parts of the batch in train mode."""
    before = _shapes(run, exit_, replaced)
    for path, shapes in _shapes(training, exit_, replaced).items():
        sizes = {shape[0] for shape in before.get(path, ())}
        if any(size % run.batch for size in sizes):
            continue  # in eval mode, too: the trial of the result refuses it
        for shape in shapes:
            # A leading sequence has the same length for any batch; the trial refuses that, too.
            if shape[0] % training.batch and shape[0] not in sizes - {run.batch}:
                reason = (
                    f"in training it gets parts of a batch, {shape} of {training.batch} images, "
                    "and the hues would lie in different parts; give it the whole batch"
                )
                yield path, Refusal(reason)


def _shapes(run: DryRun, exit_: Exit, replaced: Iterable[str]) -> dict[str, list[list[int]]]:
    """Shapes that batch norms and layers for hues get before the hues are pooled, by path."""
    shapes = {path: list(run.inputs.get(path, ())) for path in replaced}
    for operation in run.operations:
        if operation.kind == "part" and operation.when < exit_.time(run):
            shapes.setdefault(operation.path, []).append(operation.shape)
    return shapes
