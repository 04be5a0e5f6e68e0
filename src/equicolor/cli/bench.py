"""The commands ``equicolor bench …``."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from equicolor.cli.options import Device, names

if TYPE_CHECKING:
    from equicolor.benchmark.suites import Options, Run

__all__ = ["bench"]

console = Console()

bench = typer.Typer(
    no_args_is_help=True,
    help="Measure speed, memory and precision, as ratios within one run.",
)

Batch = Annotated[int | None, typer.Option(help="Images at a time.", show_default="by device")]
Size = Annotated[
    int | None, typer.Option(help="Height and width of the images.", show_default="224")
]
Precision = Annotated[
    str | None,
    typer.Option(help="fp32, or bf16: autocast.", show_default="fp32 on a CPU, bf16 on a GPU"),
]
Compile = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="Use torch.compile.", show_default="by suite"),
]
Repeats = Annotated[int | None, typer.Option(help="Rounds of timing.", show_default="5 to 20")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Tiny sizes, seconds: to see that everything runs.")
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        help="Seconds after which nothing new is begun; says what was left out.",
        show_default="none",
    ),
]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="A .json file, or a folder; the plot goes beside it.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace earlier results.")]
Rotations = Annotated[
    str | None, typer.Option(help="Only these, as 3,12 or 1-12.", show_default="the suite's")
]
Modes = Annotated[
    str | None,
    typer.Option(help="Only these: training, forward, folded (networks).", show_default="all"),
]
Variants = Annotated[str, typer.Option(help="Beside plain: of auto, dense, cyclic.", metavar="A,B")]
NetworkVariants = Annotated[
    str | None,
    typer.Option(
        help="Beside plain: of auto, dense, cyclic, and on a GPU fused.",
        show_default="auto,dense, fused on a GPU",
        metavar="A,B",
    ),
]
Architecture = Annotated[str, typer.Option(help="The ResNet: resnet18, resnet44, resnet50, …")]


@bench.command()
def layers(
    models: Annotated[
        str | None,
        typer.Option(
            help="Shapes: stage1 to stage4 of ResNet-18, colormnist.",
            show_default="all",
            metavar="A,B",
        ),
    ] = None,
    rotations: Rotations = None,
    modes: Modes = None,
    variants: Variants = "auto,dense,cyclic",
    batch: Batch = None,
    size: Size = None,
    precision: Precision = None,
    compiled: Compile = None,
    repeats: Repeats = None,
    quick: Quick = False,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    output: Output = Path("runs/bench"),
    force: Force = False,
) -> None:
    """Single hidden layers: plain, dense as in the paper, cyclic, and as chosen."""
    from equicolor.benchmark import suites

    options = _options(
        device, batch, size, precision, compiled, repeats, quick, time_limit, output, force
    )
    _finish(
        suites.layers(
            options,
            models=names(models),
            rotations=_orders(rotations),
            modes=names(modes),
            variants=names(variants),
        )
    )


@bench.command()
def networks(
    models: Annotated[
        str | None,
        typer.Option(
            help="Of n3-fast, n3-matched, n3-fast-hsv, n12-fast, n12-matched; plain is always "
            "measured.",
            show_default="all",
            metavar="A,B",
        ),
    ] = None,
    rotations: Rotations = None,
    modes: Modes = None,
    variants: NetworkVariants = None,
    architecture: Architecture = "resnet18",
    batch: Batch = None,
    size: Size = None,
    precision: Precision = None,
    compiled: Compile = None,
    repeats: Repeats = None,
    quick: Quick = False,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    output: Output = Path("runs/bench"),
    force: Force = False,
) -> None:
    """Whole ResNets against the plain one: training step, forward pass, folded inference."""
    from equicolor.benchmark import suites

    options = _options(
        device, batch, size, precision, compiled, repeats, quick, time_limit, output, force
    )
    _finish(
        suites.networks(
            options,
            models=names(models),
            rotations=_orders(rotations),
            modes=names(modes),
            variants=names(variants),
            architecture=architecture,
        )
    )


@bench.command("rotations")
def over_rotations(
    models: Annotated[
        str, typer.Option(help="Layers (stage1 to stage4, colormnist) or ResNets.", metavar="A,B")
    ] = "stage2",
    rotations: Rotations = None,
    modes: Modes = None,
    variants: Annotated[
        str,
        typer.Option(
            help="Beside plain: of auto, dense, cyclic, and of networks on a GPU fused.",
            metavar="A,B",
        ),
    ] = "auto,dense,cyclic",
    width: Annotated[
        int | None, typer.Option(help="Of the first stage, for all n.", show_default="56")
    ] = None,
    batch: Batch = None,
    size: Size = None,
    precision: Precision = None,
    compiled: Compile = None,
    repeats: Repeats = None,
    quick: Quick = False,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    output: Output = Path("runs/bench"),
    force: Force = False,
) -> None:
    """Time over n = 1 to 12 at one width, between linear and quadratic growth."""
    from equicolor.benchmark import suites

    options = _options(
        device, batch, size, precision, compiled, repeats, quick, time_limit, output, force
    )
    _finish(
        suites.rotations(
            options,
            models=names(models) or [],
            rotations=_orders(rotations),
            modes=names(modes),
            variants=names(variants),
            width=width,
        )
    )


@bench.command("precision")
def of_training(
    rotations: Annotated[int, typer.Option(help="Hues of the network.")] = 3,
    lifting: Annotated[str, typer.Option(help="rgb or hsv.")] = "rgb",
    variants: NetworkVariants = None,
    architecture: Architecture = "resnet18",
    steps: Annotated[int | None, typer.Option(help="Of training.", show_default="200")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many, counted from 0.", show_default="3")
    ] = None,
    batch: Batch = None,
    size: Annotated[
        int | None, typer.Option(help="Of the images.", show_default="64 on a CPU, else 224")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, or bf16: autocast.", show_default="bf16")
    ] = None,
    compiled: Compile = None,
    quick: Quick = False,
    device: Device = "auto",
    time_limit: TimeLimit = None,
    output: Output = Path("runs/bench"),
    force: Force = False,
) -> None:
    """Gradients against float64, and the loss of a fixed training run, of every variant."""
    from equicolor.benchmark import suites

    options = _options(
        device, batch, size, precision, compiled, None, quick, time_limit, output, force
    )
    _finish(
        suites.precision(
            options,
            rotations=rotations,
            variants=names(variants),
            architecture=architecture,
            lifting=lifting,
            steps=steps,
            seeds=seeds,
        )
    )


@bench.command("loop")
def of_a_loop(
    dataset: Annotated[
        str, typer.Argument(help="A name of 'equicolor datasets', or a folder of class folders.")
    ] = "flowers102",
    recipe: Annotated[
        str, typer.Option(help="Of 'equicolor train --list-recipes'.", metavar="NAME")
    ] = "baseline",
    epochs: Annotated[int, typer.Option(help="To train.")] = 24,
    size: Size = None,
    batch: Batch = None,
    steps: Annotated[int, typer.Option(help="Bare steps to time.")] = 50,
    device: Device = "auto",
    output: Output = Path("runs/bench"),
    force: Force = False,
) -> None:
    """Whole training, data included, against the bare step; and the hue sweep after it."""
    from equicolor.benchmark.suites import Options, loop

    options = Options(
        device, batch, size, output=output, overwrite=force, console=Console(stderr=True)
    )
    _finish(loop(options, dataset=dataset, recipe=recipe, epochs=epochs, steps=steps))


def _options(
    device: str,
    batch: int | None,
    size: int | None,
    precision: str | None,
    compiled: bool | None,
    repeats: int | None,
    quick: bool,
    time_limit: float | None,
    output: Path,
    force: bool,
) -> "Options":
    from equicolor.benchmark.suites import Options

    return Options(
        device=device,
        batch=batch,
        size=size,
        precision=precision,
        compile=compiled,
        repeats=repeats,
        quick=quick,
        time_limit=math.inf if time_limit is None else time_limit,
        output=output,
        overwrite=force,
        console=Console(stderr=True),
    )


def _finish(run: "Run") -> None:
    """Show what was found; status 1 if a case failed otherwise than for want of memory or time."""
    from equicolor.benchmark import report

    report.show(run.suite, run.rows, console)
    for line in report.goal_lines(run.goals):
        typer.echo(line)
    typer.echo(f"wrote {', '.join(map(str, run.written))}")
    if run.failed:
        raise typer.Exit(1)


def _orders(text: str | None) -> list[int] | None:
    """Numbers of rotations: ``"3,12"``, ``"1-12"``, or both kinds together."""
    if text is None:
        return None
    orders: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or part.endswith("-"):
            raise ValueError(f"rotations are numbers or ranges, such as 3,12 or 1-12; got {part!r}")
        orders += range(int(first), int(last or first) + 1)
    if not orders:
        raise ValueError(f"rotations are numbers or ranges, such as 3,12 or 1-12; got {text!r}")
    return orders
