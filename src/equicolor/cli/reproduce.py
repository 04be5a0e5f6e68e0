"""The commands ``equicolor reproduce``: ``list``, ``all``, and one for each experiment."""

import functools
import re
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup
from typer.main import get_command

from equicolor import _checks
from equicolor._files import output_folder, write_whole
from equicolor._text import counted
from equicolor.cli.options import limit_threads, option, parameter, with_options
from equicolor.cli.options import names as split_names

if TYPE_CHECKING:
    from equicolor.paper.experiment import Experiment
    from equicolor.paper.launching import Launch


class _Experiments(TyperGroup):
    """Builds its commands on first use, because experiments import much."""

    @property
    def commands(self) -> MutableMapping[str, Any]:
        """A command for each experiment, ``list`` and ``all``."""
        return _all_commands()

    @commands.setter
    def commands(self, commands: MutableMapping[str, Any]) -> None:
        pass


reproduce = typer.Typer(
    cls=_Experiments,
    no_args_is_help=True,
    help="Reproduce an experiment of the paper: results, figures and a report in one folder.",
)

_INTERRUPTED = "The same command continues an interrupted run."
_ALL = f"""Run every experiment, or some, and write one report of all.

Finished jobs are not run again. {_INTERRUPTED} Several computers that share the folder share the
work, if each runs the same command.

`equicolor reproduce all --quick` takes minutes on two cores and needs no data.

`equicolor reproduce all --launcher slurm --workers 16 --launcher-option slurm_partition=gpu
--launcher-option gpus_per_node=1 --device cuda` runs on a cluster.
"""


# Options that change what an experiment runs: fields of Scope.
_SCOPE = [
    parameter("datasets", str | None,
              "Names of 'equicolor datasets' or folders of class folders, separated by commas.",
              metavar="A,B", default="those of the experiment"),
    parameter("networks", str | None,
              "Only these networks, separated by commas: recipes of 'equicolor train "
              "--list-recipes', or networks of ColorMNIST such as cecnn.",
              "--networks", "--models", metavar="A,B", default="all"),
    parameter("seeds", str | None, "Number of seeds, from 0, or seeds such as 1,2 or 3-5.",
              metavar="N|A,B|A-B", default="1; 10 for ColorMNIST"),
    parameter("epochs", int | None, "Epochs of training.", default="as in the paper"),
    parameter("size", int | None, "Height and width of the images.", default="as in the paper"),
    parameter("actions", str | None, "Hue shifts to evaluate under, separated by commas.",
              metavar="A,B", default="hsv"),
    parameter("sigmas", str | None,
              "Standard deviations of the hues in degrees, separated by commas.", metavar="A,B",
              default="the paper's seven"),
    parameter("redraw", bool, "Draw digits, hues and noise for every seed, not once for all.",
              "--redraw", value=False),
    parameter("precision", str | None, "Number format of convolutions: float32 or bfloat16.",
              default="bfloat16 on a GPU"),
]  # fmt: skip
_ONLY = parameter("only", str | None, "Only these experiments, separated by commas.", metavar="A,B")
_DATASET = typer.Argument(
    help="Names of 'equicolor datasets' or folders of class folders, separated by commas.",
    show_default="those of the experiment",
)
_RUNNING = [
    parameter("quick", bool, "Run for minutes on two CPU cores, with small made-up images.",
              "--quick", value=False),
    parameter("device", str, "Device: auto, cpu, cuda, or several, such as cuda:0,cuda:1.",
              "--device", "--devices", value="auto"),
    parameter("workers", int | None, "Processes that share the work; several need submitit.",
              default="one per GPU, or one per core"),
    parameter("shard", str | None, "Run only part I of N of the jobs, with I from 0.",
              metavar="I/N"),
    parameter("launcher", str, "Where workers run: processes (here) or slurm.", value="processes"),
    parameter("launcher_option", list[str] | None,
              "Option of submitit, such as slurm_partition=gpu or timeout_min=600; repeatable.",
              metavar="NAME=VALUE"),
    parameter("output", Path | None, "Output folder.", "--output", "-o",
              default="runs/reproduce, or -quick; runs/report-from"),
    parameter("sources", list[Path] | None,
              "Train nothing: show the rows of this file, folder of files, or run; repeatable.",
              "--from", metavar="PATH"),
    parameter("figures", Path | None, "With --from: write only the figures, to this folder."),
    parameter("pictures", Path | None, "Renamed: --figures.", hidden=True),
]  # fmt: skip


def _command(experiment: "Experiment | None") -> Callable[..., None]:
    """The command of an experiment, with the options it takes; None stands for ``all``."""

    def command(**values: Any) -> None:
        if experiment is None:
            _reproduce(_listed("--only", values.pop("only")), values)
        else:
            _reproduce([experiment.id], values | {"datasets": values.get("dataset")})

    options = [_ONLY, *_SCOPE]
    if experiment is not None:
        options = [option for option in _SCOPE if option.name in experiment.options]
        if "datasets" in experiment.options:  # the first of _SCOPE
            options[0] = options[0].replace(
                name="dataset", annotation=Annotated[str | None, _DATASET]
            )
    return with_options([*options, *_RUNNING])(command)


@functools.cache
def _all_commands() -> MutableMapping[str, Any]:
    from equicolor.paper.registry import EXPERIMENTS

    app = typer.Typer(rich_markup_mode="markdown")
    app.command("list")(list_experiments)
    for experiment in EXPERIMENTS.values():
        place = f" ({experiment.paper})" if experiment.paper else ""
        text = f"{experiment.title}{place}: {experiment.what}.\n\n{_INTERRUPTED}"
        app.command(experiment.id, help=text)(_command(experiment))
    app.command("all", help=_ALL)(_command(None))
    return get_command(app).commands  # type: ignore[attr-defined]


def list_experiments(
    output: Annotated[
        Path, option("Folder of the run; FOLDER-quick has quick runs.", True, "--output", "-o")
    ] = Path("runs/reproduce"),
) -> None:
    """List every figure and table: what it needs, what it costs, and whether it was run."""
    from equicolor.paper.engine import state
    from equicolor.paper.experiment import Scope
    from equicolor.paper.launching import Launch
    from equicolor.paper.registry import EXPERIMENTS, missing_data

    full = Scope(output, cuda=_sees_gpu(Launch()))
    named = output.resolve() if output.name in ("", "..") else output
    quick = Scope(Path(f"{named}-quick"), quick=True)
    for name, experiment in EXPERIMENTS.items():
        missing = missing_data(experiment)
        data = [f"{each} (missing)" if each in missing else each for each in experiment.data]
        typer.echo(f"{name:<22} {experiment.paper or 'not in the paper'}")
        typer.echo(f"    {experiment.what}")
        typer.echo(f"    needs {', '.join(data) or 'no data'}")
        typer.echo(
            f"    about {experiment.full} on one H200: {state(name, full)}; {experiment.quick} "
            f"with --quick on two CPU cores: {state(name, quick)}"
        )
    typer.echo(
        "'equicolor reproduce ID' runs one, 'all' everything; --quick needs no data. "
        "'all --from results' shows results without running anything."
    )


def _listed(option: str, text: str | None) -> list[str] | None:
    """The names that an option lists. An empty list is refused: nothing would be run."""
    items = split_names(text)
    if items == []:
        raise ValueError(f"{option} takes names separated by commas, got {text!r}")
    return items


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds of the command line: a number of seeds, or a list.

    Example:
        >>> parse_seeds("3"), parse_seeds("1,2"), parse_seeds("0,4-6")
        ((0, 1, 2), (1, 2), (0, 4, 5, 6))
    """
    if re.fullmatch(r"\s*-?\d+\s*", text):
        return tuple(range(_checks.positive_int("seeds", int(text))))
    seeds: list[int] = []
    for part in _listed("--seeds", text) or []:
        bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (1, 0)
        if first > last:
            raise ValueError(f"--seeds takes 3, 1,2 or 3-5, say; got {text!r}")
        _checks.positive_int("seeds", last - first + 1)
        seeds += range(first, last + 1)
    return tuple(dict.fromkeys(seeds))


def _parse_sigmas(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, _listed("--sigmas", text) or ()))
    except ValueError:
        raise ValueError(f"--sigmas takes numbers separated by commas, got {text!r}") from None


def _parse_shard(text: str) -> tuple[int, int]:
    parts = re.fullmatch(r"(\d+)/(\d+)", text)
    if parts is None or int(parts[1]) >= int(parts[2]):
        raise ValueError(f"shard must be I/N with I from 0 to N - 1, such as 0/4; got {text!r}")
    return int(parts[1]), int(parts[2])


def _scope_values(values: dict[str, Any]) -> dict[str, Any]:
    """The options of the command line that were given, as fields of Scope."""
    fields: dict[str, Any] = {}
    for name in (each.name for each in _SCOPE):
        value = values.get(name)
        if value is None or value is False:
            continue
        if name in ("epochs", "size"):
            value = _checks.positive_int(name, value)
        elif name == "seeds":
            value = parse_seeds(value)
        elif name == "sigmas":
            value = _parse_sigmas(value)
        elif name in ("datasets", "networks", "actions"):
            value = tuple(_listed(f"--{name}", value) or ())
        fields[name] = value
    return fields


def _launch_options(values: dict[str, Any]) -> "Launch":
    """The options of the command line that say where jobs run."""
    from equicolor.paper.launching import Launch

    options: dict[str, Any] = {}
    for text in values["launcher_option"] or []:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"--launcher-option must be NAME=VALUE, got {text!r}")
        options[name] = int(value) if value.isdigit() else value
    if values["launcher"] == "submitit-local":
        raise ValueError("--launcher submitit-local is now --launcher processes")
    return Launch(
        workers=values["workers"],
        devices=tuple(_listed("--device", values["device"]) or ()),
        shard=None if values["shard"] is None else _parse_shard(values["shard"]),
        launcher=values["launcher"],
        options=options,
    )


def _sees_gpu(how: "Launch") -> bool:
    """Whether jobs run on GPUs. A cluster may have some where this computer has none."""
    from equicolor.devices import choose_device

    if how.launcher == "slurm" and any(name.startswith("cuda") for name in how.devices):
        return True
    return any(choose_device(name).type == "cuda" for name in how.devices)


def _reproduce(ids: list[str] | None, values: dict[str, Any]) -> None:
    """Run experiments, or show their rows in files, and say what was written."""
    from equicolor.paper import engine
    from equicolor.paper.experiment import Scope
    from equicolor.paper.launching import Launch
    from equicolor.paper.registry import EXPERIMENTS, find_experiment
    from equicolor.paper.report import FIGURES

    if values["pictures"] is not None:
        raise ValueError("--pictures is now --figures")
    experiments = [find_experiment(name) for name in ids or EXPERIMENTS]
    quick, figures, output = values["quick"], values["figures"], values["output"]
    how, fields = _launch_options(values), _scope_values(values)
    if values["sources"]:
        if quick or fields or how != Launch():
            raise ValueError("--from shows rows without training: it takes no options of training")
        if figures is not None and output is not None:
            raise ValueError("--figures writes only the figures: it takes no --output")
        _show(values["sources"], ids, output or Path("runs/report-from"), figures)
        return
    if figures is not None:
        raise ValueError("--figures needs --from: a run writes them to its figures/")
    for name in fields:  # one experiment must take it; the others ignore it
        if not any(name in each.options for each in experiments):
            what = "datasets" if name == "datasets" else f"--{name}"
            who = " and ".join(each.id for each in experiments)
            raise ValueError(f"{who} {'does' if len(experiments) == 1 else 'do'} not take {what}")
    cuda = _sees_gpu(how)
    if not (quick or cuda) and any("epochs" in each.options for each in experiments):
        typer.echo("no GPU: the full protocol takes weeks; --quick takes minutes", err=True)
    output = output or Path("runs") / ("reproduce-quick" if quick else "reproduce")
    scope = Scope(output, quick=quick, cuda=cuda, **fields)
    if not cuda and how.launcher == "processes":
        limit_threads("cpu")
    run = engine.reproduce(scope, ids, how, console=Console(stderr=True))
    typer.echo(f"{run.finished} of {run.jobs} jobs are finished")
    for name, reason in run.incomplete.items():
        typer.echo(f"{name}: {reason}", err=True)
    for path in run.results:
        typer.echo(f"wrote {path}")
    typer.echo(f"wrote {run.report}, with figures in {output / FIGURES}")
    if run.failed or (run.incomplete and how.shard is None):
        raise typer.Exit(1)


def _show(sources: list[Path], ids: list[str] | None, output: Path, figures: Path | None) -> None:
    """Write the report of rows in files, or only its figures."""
    from equicolor.paper import report
    from equicolor.paper.store import refuse_run

    if figures is None:
        refuse_run(output)
    findings = report.read(sources)
    if figures is not None:
        folder = output_folder(figures)
        for name, figure in report.figures(findings, ids).items():
            typer.echo(f"wrote {write_whole(folder / f'{name}.png', figure)}")
        return
    page = report.write(findings, output, ids)
    for section in page.sections:  # to paste into the documentation
        if section.table is not None and ids is not None:
            typer.echo(f"{section.title}: {section.table.title}\n\n{section.table.markdown()}\n")
    drawn = counted(len(page.figures), "figure")
    typer.echo(f"wrote {page.report} and {drawn}", err=ids is not None)
    for name, reason in page.failed.items():
        typer.echo(f"{name}: {reason}", err=True)
    if page.failed:
        raise typer.Exit(1)
