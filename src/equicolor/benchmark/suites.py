"""The named suites of ``equicolor bench``: what they measure on a CPU, on a GPU, or quickly."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from equicolor import _checks
from equicolor.benchmark import report
from equicolor.benchmark.cases import Case, Settings, chosen_from
from equicolor.benchmark.layers import layer_groups
from equicolor.benchmark.measure import LEFT_OUT, OUT_OF_MEMORY, measure
from equicolor.benchmark.networks import Configuration, network_groups
from equicolor.benchmark.precision import Trial, precision_rows
from equicolor.benchmark.ratios import Goal, Row, layer_goals, network_goals, precision_goals
from equicolor.benchmark.resources import matrix_peak
from equicolor.benchmark.rotations import rotation_groups
from equicolor.benchmark.timing import Deadline
from equicolor.benchmark.variants import VARIANTS, can_fuse, check_variants
from equicolor.devices import choose_device
from equicolor.reporting.progress import counting

__all__ = ["Options", "Run", "layers", "loop", "networks", "precision", "rotations"]

Names = Sequence[str] | None


class _Defaults(NamedTuple):
    batch: int
    size: int
    precision: str
    compile: bool
    repeats: int


_DEFAULTS = {
    ("layers", "cpu"): _Defaults(4, 224, "fp32", False, 7),
    ("layers", "cuda"): _Defaults(256, 224, "bf16", False, 20),
    ("networks", "cpu"): _Defaults(4, 224, "fp32", False, 5),
    ("networks", "cuda"): _Defaults(256, 224, "bf16", True, 20),
    ("rotations", "cpu"): _Defaults(8, 224, "fp32", False, 5),
    # Thirty-four cases: compiling them all would take longer than measuring.
    ("rotations", "cuda"): _Defaults(64, 224, "bf16", False, 20),
    ("precision", "cpu"): _Defaults(16, 64, "bf16", False, 1),
    ("precision", "cuda"): _Defaults(64, 224, "bf16", False, 1),
}
_QUICK = _Defaults(2, 32, "fp32", False, 2)
_QUICK_WIDTH = 8


@dataclass(frozen=True)
class Options:
    """What all suites take; None leaves it to the suite and the device.

    Attributes:
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        batch, size: of the images.
        precision: ``"fp32"`` or ``"bf16"``.
        compile: whether to use ``torch.compile``.
        repeats: rounds of timing.
        quick: few cases of tiny sizes, to see that everything runs.
        time_limit: seconds after which nothing new is begun.
        output: a .json file or a folder.
        overwrite: replace results that are there.
        console: where progress is shown, if it is a terminal.

    Example:
        >>> settings, batch, size = Options(device="cpu", batch=3).resolve("layers")
        >>> batch, size, settings.precision
        (3, 224, 'fp32')
    """

    device: str = "auto"
    batch: int | None = None
    size: int | None = None
    precision: str | None = None
    compile: bool | None = None
    repeats: int | None = None
    quick: bool = False
    time_limit: float = math.inf
    output: Path = Path("runs/bench")
    overwrite: bool = False
    console: Console | None = None

    def resolve(self, suite: str) -> tuple[Settings, int, int]:
        """Settings, batch and image size of a suite."""
        device = choose_device(self.device)
        usual = _DEFAULTS[suite, device.type]
        if self.quick:
            usual = _QUICK._replace(precision="bf16" if suite == "precision" else "fp32")
        given = {
            name: value for name in _Defaults._fields if (value := getattr(self, name)) is not None
        }
        usual = usual._replace(**given)
        _checks.positive_int("batch", usual.batch)
        _checks.positive_int("size", usual.size)
        settings = Settings(device, usual.precision, usual.compile, usual.repeats)
        if self.quick:
            settings = replace(settings, warm_up=1, shortest_ms=0.0)
        return settings, usual.batch, usual.size

    def paths(self, suite: str) -> tuple[Path, Path]:
        """Files of a suite for results and figure."""
        device = choose_device(self.device)
        return report.result_paths(self.output, suite, device, overwrite=self.overwrite)


@dataclass(frozen=True)
class Run:
    """A suite that was run.

    Attributes:
        suite: its name.
        rows: what was measured, and what was not and why.
        goals: what the rows are held to; none of a quick run.
        written: files.
    """

    suite: str
    rows: list[Row]
    goals: list[Goal] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a case failed otherwise than for want of memory or time."""
        expected = (None, OUT_OF_MEMORY, LEFT_OUT)
        return any(row.get("problem") not in expected for row in self.rows)


def layers(
    options: Options,
    *,
    models: Names = None,
    rotations: Sequence[int] | None = None,
    modes: Names = None,
    variants: Names = None,
) -> Run:
    """Hidden layers at the shapes of ResNet-18 and ColorMNIST; see :func:`.layer_groups`."""
    settings, batch, size = options.resolve("layers")
    if options.quick:
        models = ["stage1", "colormnist"] if models is None else models
        rotations = [3] if rotations is None else rotations
    groups = layer_groups(
        models=models,
        rotations=(3, 12) if rotations is None else _orders(rotations),
        modes=modes,
        variants=variants,
        batch=batch,
        image_size=size,
        device=settings.device.type,
    )
    # The goals are a CPU's; on a GPU, networks are what counts.
    goals = layer_goals if settings.device.type == "cpu" else None
    return _timed("layers", groups, settings, options, goals)


def networks(
    options: Options,
    *,
    models: Names = None,
    rotations: Sequence[int] | None = None,
    modes: Names = None,
    variants: Names = None,
    architecture: str = "resnet18",
) -> Run:
    """Plain and equivariant ResNets at several widths; see :func:`.network_groups`."""
    settings, batch, size = options.resolve("networks")
    variants = _variants(variants, settings)
    if options.quick and models is None:  # at one width, matched is fast
        models = ["n3-fast", "n3-fast-hsv", "n12-fast"]
    groups = network_groups(
        models=models,
        rotations=None if rotations is None else _orders(rotations),
        modes=modes,
        variants=variants,
        architecture=architecture,
        batch=batch,
        image_size=size,
        width=_QUICK_WIDTH if options.quick else None,
        recorded=settings.compile and settings.device.type == "cuda",
    )
    return _timed("networks", groups, settings, options, network_goals)


def rotations(
    options: Options,
    *,
    models: Sequence[str] = ("stage2",),
    rotations: Sequence[int] | None = None,
    modes: Names = None,
    variants: Names = None,
    width: int | None = None,
) -> Run:
    """One layer or network over the number of rotations; see :func:`.rotation_groups`."""
    settings, batch, size = options.resolve("rotations")
    if variants is not None:
        variants = _variants(variants, settings)
    if options.quick:
        rotations = [2, 3] if rotations is None else rotations
        width = _QUICK_WIDTH if width is None else width
    groups = rotation_groups(
        models=models,
        rotations=range(1, 13) if rotations is None else _orders(rotations),
        modes=modes,
        variants=variants,
        batch=batch,
        image_size=size,
        width=width,
        device=settings.device.type,
    )
    return _timed("rotations", groups, settings, options, None)


def precision(
    options: Options,
    *,
    rotations: int = 3,
    variants: Names = None,
    architecture: str = "resnet18",
    lifting: str = "rgb",
    steps: int | None = None,
    seeds: int | None = None,
) -> Run:
    """Gradients and a fixed training run of every variant; see :func:`.precision_rows`."""
    settings, batch, size = options.resolve("precision")
    wanted = [name for name in _variants(variants, settings) if name != "plain"]
    if options.quick:
        steps, seeds = steps or 4, seeds or 2
    trial = Trial(
        Configuration(rotations, _QUICK_WIDTH if options.quick else "fast", lifting),
        architecture,
        batch,
        size,
        classes=10 if options.quick else 100,
        steps=200 if steps is None else steps,
    )
    count = _checks.positive_int("seeds", 3 if seeds is None else seeds)
    results, picture = options.paths("precision")
    with _progress(options, "training", count * len(wanted)) as progress:
        rows = precision_rows(
            trial,
            settings,
            variants=wanted,
            seeds=range(count),
            deadline=Deadline(options.time_limit),
            progress=progress,
        )
    goals = []
    if not options.quick:
        goals = [goal for fast in wanted if fast != "dense" for goal in precision_goals(rows, fast)]
    report.write("precision", rows, results, device=settings.device, goals=goals)
    return Run("precision", rows, goals, [results, *report.draw("precision", rows, picture)])


def loop(
    options: Options,
    *,
    dataset: str = "flowers102",
    recipe: str = "baseline",
    epochs: int = 24,
    steps: int = 50,
) -> Run:
    """Whole training of a recipe against its bare step; see :func:`.loop_rows`."""
    # Imported here: training needs more packages than the other suites.
    from equicolor.benchmark.loop import loop_goals, loop_rows
    from equicolor.devices import choose_precision
    from equicolor.training.recipes import find_recipe

    device = choose_device(options.device)
    results, _ = options.paths("loop")
    given = {"batch_size": options.batch, "size": options.size}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    changes["epochs"] = _checks.positive_int("epochs", epochs)
    changes["precision"] = choose_precision("auto", cuda=device.type == "cuda")
    wanted = replace(find_recipe(recipe, dataset), **changes)
    rows = loop_rows(
        wanted,
        device.type,
        steps=_checks.positive_int("steps", steps),
        console=options.console,
    )
    # Of a GPU alone: a CPU is busy with the step, and decodes and crops beside it.
    goals = loop_goals(rows) if device.type == "cuda" else []
    report.write("loop", rows, results, device=device, goals=goals)
    return Run("loop", rows, goals, [results])


def _timed(
    suite: str,
    groups: Sequence[Sequence[Case]],
    settings: Settings,
    options: Options,
    judge: Callable[[Sequence[Row]], list[Goal]] | None,
) -> Run:
    """Measure group after group, and write what is there after each."""
    results, picture = options.paths(suite)
    deadline = Deadline(options.time_limit)
    peak = matrix_peak(settings, shortest_ms=0.0 if options.quick else 20.0)
    facts: dict[str, Any] = {"matrix_peak_tflops": float(f"{peak:.4g}"), "quick": options.quick}
    if math.isfinite(options.time_limit):
        facts["time_limit_s"] = options.time_limit
    rows: list[Row] = []
    goals: list[Goal] = []
    total = sum(map(len, groups)) * (1 + settings.repeats)
    with _progress(options, f"timing {suite}", total) as progress:
        for group in groups:
            rows += measure(group, settings, peak_tflops=peak, deadline=deadline, progress=progress)
            goals = [] if judge is None or options.quick else judge(rows)
            # After every group: a run that is killed keeps what it found.
            report.write(suite, rows, results, device=settings.device, goals=goals, facts=facts)
    return Run(suite, rows, goals, [results, *report.draw(suite, rows, picture)])


@contextlib.contextmanager
def _progress(options: Options, title: str, total: int) -> Iterator[Callable[[], None]]:
    done = 0
    with counting(options.console, title) as show:

        def advance() -> None:
            nonlocal done
            done += 1
            show(done, total)

        yield advance


def _variants(names: Names, settings: Settings) -> tuple[str, ...]:
    """Variants of networks: by default what users get, the fused path, and the paper's."""
    if names is None:
        names = ["auto", "dense"]
        if can_fuse(settings.device):
            names = [*names, "fused"]
    chosen = chosen_from("variants", names, VARIANTS)
    check_variants(chosen, settings.device)
    return chosen


def _orders(rotations: Sequence[int]) -> tuple[int, ...]:
    if not rotations:
        raise ValueError("rotations must name at least one number; got none")
    return tuple(_checks.positive_int("rotations", n) for n in rotations)
