"""The ``equicolor`` command: thin commands over functions of the package.

A command parses its options, calls one function, and says what was written. Errors a user
can mend become one line; a traceback always means a bug.
"""

import errno
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

try:
    import typer
    from rich.console import Console
    from typer.core import TyperGroup
except ModuleNotFoundError as missing:
    # The console script imports this module before it can call main().
    sys.exit(f"equicolor: {missing.name} is not installed: pip install 'equicolor[train]'")

from equicolor import __version__

__all__ = ["app", "main"]

console = Console()


class _Commands(TyperGroup):
    """Turns expected errors of every command into one line and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "equicolor":
                raise
            _fail(f"{error.name} is not installed: pip install 'equicolor[train]'", 1)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of our output left: not an error
                raise
            named = error.strerror and error.filename
            _fail(f"{error.strerror}: {error.filename}" if named else str(error), 1)
        except ValueError as error:
            _fail(str(error), 2)


def _fail(message: str, status: int) -> NoReturn:
    typer.echo(f"equicolor: {message}", err=True)
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
        Path, typer.Option("--output", "-o", help="Folder for the picture and the numbers.")
    ] = Path("demo-report"),
) -> None:
    """Show what a hue shift does to plain and to equivariant networks (half a minute).

    Needs no data and no training: small random networks look at one photo while its hue goes
    round the circle. Writes equivariance.png and summary.json to the output folder.
    """
    from equicolor.experiments import equivariance

    responses = equivariance.run(output)
    console.print(equivariance.table(responses))
    typer.echo(f"wrote {output / equivariance.PICTURE} and {output / equivariance.SUMMARY}")
    typer.echo(equivariance.headline(responses))


def main() -> None:
    """Run the command line."""
    app(prog_name="equicolor")


if __name__ == "__main__":
    main()
