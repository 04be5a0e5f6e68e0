"""The ``equicolor`` command: thin commands over functions of the package.

A command parses its options, calls one function, and says what was written. Errors that a user
can fix become one line; a traceback always means a bug.
"""

import errno
import sys
import warnings
from typing import Annotated, Any, NoReturn

from equicolor._packages import how_to_install
from equicolor._text import printable

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError as missing:
    # The console script imports this module before it can call main().
    sys.exit(f"equicolor: {missing.name} is not installed: {how_to_install('typer')}")

from equicolor import __version__
from equicolor.cli.canonicalize import canonicalize
from equicolor.cli.compare import compare
from equicolor.cli.convert import convert
from equicolor.cli.datasets import datasets
from equicolor.cli.demo import demo
from equicolor.cli.evaluate import evaluate
from equicolor.cli.export import export
from equicolor.cli.inspect import inspect
from equicolor.cli.models import cost, models
from equicolor.cli.predict import predict
from equicolor.cli.reproduce import reproduce
from equicolor.cli.train import train


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
            if error.errno == errno.EPIPE:  # the reader of our output closed it: typer exits
                raise
            has_file = error.strerror and error.filename
            _fail(f"{error.strerror}: {error.filename}" if has_file else str(error), 1)
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
for command in (
    train, evaluate, compare, predict, convert, canonicalize, inspect, demo, models, cost, export,
):  # fmt: skip
    app.command()(command)


def _print_version(requested: bool) -> None:
    if requested:
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


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    """A warning on one line, without the source line that Python adds."""
    return f"equicolor: warning: {' '.join(str(message).split())}\n"


def main() -> None:
    """Run the command line."""
    warnings.formatwarning = _one_line
    app(prog_name="equicolor")
