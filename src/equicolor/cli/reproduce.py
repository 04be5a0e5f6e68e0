"""The commands ``equicolor reproduce list``, ``all`` and those of most experiments."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from equicolor._text import counted
from equicolor.cli.options import names as split_names

if TYPE_CHECKING:
    from equicolor.paper.launching import Launch

__all__ = ["Devices", "Epochs", "LauncherName", "LauncherOptions", "ShardName", "Size", "Workers",
           "launch_options", "listed", "register", "run_experiments"]  # fmt: skip

# Commands of their own, with options of their own, have these.
OWN = ("colormnist-longtailed", "colormnist-biased", "classification")
_SLOW = (*OWN, "selectivity", "neuron-features", "ablation-rotations", "ablation-jitter",
         "ablation-cosetpool", "conversion")  # fmt: skip

Dataset = Annotated[
    str | None,
    typer.Argument(
        help="A name of 'equicolor datasets' or a folder of class folders; several with commas.",
        show_default="flowers102",
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Minutes on two CPU cores, on small made-up pictures.")
]
Seeds = Annotated[
    int | None, typer.Option(help="How many, from 0.", show_default="1; 10 for ColorMNIST")
]
Epochs = Annotated[int | None, typer.Option(help="Epochs.", show_default="as in the paper")]
Size = Annotated[
    int | None, typer.Option(help="Height and width of pictures.", show_default="as in the paper")
]
Devices = Annotated[
    str,
    typer.Option("--device", "--devices", help="auto, cpu, cuda, or several: cuda:0,cuda:1."),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes that share the work.", show_default="one a GPU, or one a core"),
]
ShardName = Annotated[
    str | None,
    typer.Option("--shard", help="Only the I-th of N parts of the jobs, I from 0.", metavar="I/N"),
]
LauncherName = Annotated[
    str, typer.Option("--launcher", help="processes, slurm or submitit-local (both submitit).")
]
LauncherOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--launcher-option",
        help="For submitit, such as slurm_partition=gpu or timeout_min=600; repeatable.",
        metavar="NAME=VALUE",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="The folder.",
        show_default="runs/reproduce, or -quick; runs/report-from",
    ),
]
Sources = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        help="No training: show the rows of this file, or folder of files; repeatable.",
        metavar="PATH",
    ),
]
Pictures = Annotated[
    Path | None,
    typer.Option("--pictures", help="With --from: write the figures alone to this folder."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``equicolor reproduce``."""
    from equicolor.paper.registry import EXPERIMENTS

    app.command("list")(list_experiments)
    for experiment in EXPERIMENTS.values():
        if experiment.name not in OWN:
            place = f" ({experiment.paper})" if experiment.paper else ""
            about = f"{experiment.title}{place}: {experiment.what}."
            more = "An interrupted run is continued by the same command."
            app.command(experiment.name, help=f"{about}\n\n{more}")(_command(experiment.name))
    app.command("all")(reproduce_all)


def list_experiments(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder whose state is shown.")
    ] = Path("runs/reproduce"),
) -> None:
    """List every figure and table: what it needs, what it costs, and whether it was run."""
    from equicolor.paper.plans import Scope
    from equicolor.paper.registry import EXPERIMENTS, missing_data
    from equicolor.paper.reproduce_all import state

    full = Scope(output, cuda=_sees_gpu(("auto",)))
    quick = Scope(output.with_name(f"{output.name}-quick"), quick=True)
    for name, experiment in EXPERIMENTS.items():
        absent = missing_data(experiment)
        data = [f"{each} (missing)" if each in absent else each for each in experiment.data]
        needs = f"needs {', '.join(data)}" if data else "needs no data"
        typer.echo(f"{name:<22} {experiment.paper or 'not in the paper'}")
        typer.echo(f"    {experiment.what}")
        typer.echo(f"    {needs}")
        typer.echo(
            f"    about {experiment.full} on one H200: {state(name, full)}; {experiment.quick} "
            f"with --quick on two CPU cores: {state(name, quick)}"
        )
    typer.echo(
        "'equicolor reproduce ID' runs one, 'all' everything; --quick needs no data. "
        "'all --from results' shows results without running anything."
    )


def _command(name: str) -> Callable[..., None]:
    def command(
        dataset: Dataset = None,
        quick: Quick = False,
        seeds: Seeds = None,
        epochs: Epochs = None,
        size: Size = None,
        device: Devices = "auto",
        workers: Workers = None,
        shard: ShardName = None,
        launcher: LauncherName = "processes",
        launcher_option: LauncherOptions = None,
        output: Output = None,
        sources: Sources = None,
        pictures: Pictures = None,
    ) -> None:
        how = launch_options(device, workers, shard, launcher, launcher_option)
        run_experiments(
            [name], how, output, quick=quick, sources=sources, pictures=pictures,
            datasets=listed("DATASET", dataset), seeds=seeds, epochs=epochs, size=size,
        )  # fmt: skip

    return command


def reproduce_all(
    only: Annotated[
        str | None, typer.Option(help="Only these, separated by commas.", metavar="A,B")
    ] = None,
    datasets: Annotated[
        str | None, typer.Option(help="Of experiments on pictures, separated by commas.")
    ] = None,
    quick: Quick = False,
    seeds: Seeds = None,
    epochs: Epochs = None,
    size: Size = None,
    device: Devices = "auto",
    workers: Workers = None,
    shard: ShardName = None,
    launcher: LauncherName = "processes",
    launcher_option: LauncherOptions = None,
    output: Output = None,
    sources: Sources = None,
    pictures: Pictures = None,
) -> None:
    """Run every experiment, or some, and write one report of all.

    Finished jobs are not run again; an interrupted run is continued by the same command. The
    same command on several computers that share the folder shares the work.

    `equicolor reproduce all --quick` takes minutes on two cores and needs no data.

    `equicolor reproduce all --launcher slurm --workers 16 --launcher-option slurm_partition=gpu
    --launcher-option gpus_per_node=1 --device cuda` runs on a cluster.
    """
    how = launch_options(device, workers, shard, launcher, launcher_option)
    run_experiments(
        listed("--only", only), how, output, quick=quick, sources=sources, pictures=pictures,
        datasets=listed("--datasets", datasets), seeds=seeds, epochs=epochs, size=size,
    )  # fmt: skip


def listed(option: str, text: str | None) -> list[str] | None:
    """What an option lists; one that lists nothing would be taken for nothing to do.

    Example:
        >>> listed("--only", "equivariance, conversion"), listed("--only", None)
        (['equivariance', 'conversion'], None)
        >>> listed("--only", ",")
        Traceback (most recent call last):
            ...
        ValueError: --only takes names separated by commas, got ','
    """
    found = split_names(text)
    if found == []:
        raise ValueError(f"{option} takes names separated by commas, got {text!r}")
    return found


def launch_options(
    device: str,
    workers: int | None,
    shard: str | None,
    launcher: str,
    launcher_option: list[str] | None,
) -> "Launch":
    """The options of the command line that say how jobs are spread."""
    from equicolor.paper.launching import Launch, parse_shard

    options: dict[str, Any] = {}
    for text in launcher_option or []:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"--launcher-option must be NAME=VALUE, got {text!r}")
        options[name] = int(value) if value.isdigit() else value
    return Launch(
        workers=workers,
        devices=tuple(listed("--device", device) or ()),
        shard=None if shard is None else parse_shard(shard),
        launcher=launcher,
        options=options,
    )


def _sees_gpu(devices: tuple[str, ...], launcher: str = "processes") -> bool:
    """Whether jobs run on GPUs; those of a cluster may, where this computer has none."""
    import torch

    if devices == ("auto",):
        return torch.cuda.is_available()
    if any(name.startswith("cuda") for name in devices):
        if launcher == "processes" and not torch.cuda.is_available():
            raise ValueError("a CUDA device was asked for, but torch sees none; use --device cpu")
        return True
    return False


def run_experiments(
    names: list[str] | None,
    how: "Launch",
    output: Path | None,
    *,
    quick: bool,
    sources: list[Path] | None,
    pictures: Path | None,
    datasets: list[str] | None = None,
    **given: int | None,
) -> None:
    """Run experiments, or show what files hold of them, and say what was written."""
    from equicolor.paper import report
    from equicolor.paper.launching import Launch
    from equicolor.paper.registry import find_experiment

    for name in names or []:
        find_experiment(name)
    if sources and pictures is not None and output is not None:
        raise ValueError("--pictures writes the figures alone: it takes no --output")
    if output is None:
        usual = "report-from" if sources else "reproduce-quick" if quick else "reproduce"
        output = Path("runs") / usual
    chosen = {name: value for name, value in given.items() if value is not None}
    if sources:
        if quick or datasets or chosen or how != Launch(workers=None):
            raise ValueError(
                "--from shows the rows that are there: it takes no options of training"
            )
        _show(sources, names, output, pictures)
        return
    if pictures is not None:
        raise ValueError("--pictures needs --from: a run has them in its figures/")
    from equicolor import _checks
    from equicolor.paper.plans import Scope, options_of
    from equicolor.paper.reproduce_all import reproduce_all as run_all

    if names is not None and len(names) == 1:  # of several, each takes what it has
        for name in (*(["datasets"] if datasets else []), *chosen):
            if name not in options_of(names[0]):
                what = "datasets" if name == "datasets" else f"--{name}"
                raise ValueError(f"{names[0]} does not take {what}")
    for name, value in chosen.items():
        _checks.positive_int(name, value, at_most=_checks.MOST.get(name))
    cuda = _sees_gpu(how.devices, how.launcher)
    scope = Scope(output, quick=quick, datasets=tuple(datasets or ()), cuda=cuda, **chosen)
    if not (quick or cuda or set(names or _SLOW).isdisjoint(_SLOW)):
        typer.echo("no GPU: the full protocol takes weeks; --quick takes minutes", err=True)
    found = run_all(scope, names, how, console=Console(stderr=True))
    typer.echo(f"{found.finished} of {found.jobs} jobs are finished")
    for name, why in found.failed.items():
        typer.echo(f"{name}: {why}", err=True)
    for path in found.results:
        typer.echo(f"wrote {path}")
    typer.echo(f"wrote {found.report}, with figures in {output / report.FIGURES}")
    if found.broken or (found.failed and how.shard is None):
        raise typer.Exit(1)


def _show(
    sources: list[Path], names: list[str] | None, output: Path, pictures: Path | None
) -> None:
    from equicolor._files import output_folder, write_whole
    from equicolor.paper import report
    from equicolor.paper.jobs import refuse_run

    if pictures is None:
        refuse_run(output)
    found = report.read(sources)
    if pictures is not None:
        folder = output_folder(pictures)
        for name, picture in report.pictures(found, names).items():
            write_whole(folder / f"{name}.png", picture)
            typer.echo(f"wrote {folder / name}.png")
        return
    written = report.write(found, output, names)
    for section in written.sections:  # to paste into the documentation
        if section.table is not None and names is not None:
            typer.echo(f"{section.title}: {section.table.title}\n\n{section.table.markdown()}\n")
    figures = counted(len(written.pictures), "figure")
    typer.echo(f"wrote {written.report} and {figures}", err=names is not None)
    for name, why in written.failed.items():
        typer.echo(f"{name}: {why}", err=True)
    if written.failed:
        raise typer.Exit(1)
