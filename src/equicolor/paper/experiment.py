"""What an experiment is: one object in one module, with its jobs and its sections.

A module of an experiment defines ``EXPERIMENT``, an :class:`Experiment`. Its ``plan`` turns a
:class:`Scope` into jobs, each :class:`Job` names the function that runs it, and its ``show``
turns rows into sections of the report.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from equicolor.reporting.html import Section
from equicolor.results import Row

if TYPE_CHECKING:
    from equicolor.paper.rows import Findings

__all__ = ["Context", "Experiment", "Job", "Outcome", "Scope", "digest"]


@dataclass(frozen=True)
class Scope:
    """How much of an experiment to run. None, or an empty tuple, means the experiment's default.

    Attributes:
        output: the folder of the run.
        quick: minutes on two CPU cores, with made-up data.
        cuda: whether a GPU trains: in bfloat16, and all seeds of ColorMNIST side by side.
        datasets: names or folders of images.
        networks: names of networks or recipes.
        seeds: one network is trained for each.
        epochs: instead of the paper's.
        size: height and width of the images.
        actions: hue shifts to evaluate under.
        sigmas: spreads of the hue in degrees, of the biased ColorMNIST.
        redraw: draw the biased ColorMNIST anew for every seed.
        precision: number format of the ColorMNIST convolutions.
    """

    output: Path
    quick: bool = False
    cuda: bool = False
    datasets: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    epochs: int | None = None
    size: int | None = None
    actions: tuple[str, ...] = ()
    sigmas: tuple[float, ...] = ()
    redraw: bool = False
    precision: str = "auto"


class Outcome(NamedTuple):
    """Rows of a finished job, and the folder with its files, such as a trained network."""

    rows: list[Row]
    folder: Path


class Context(NamedTuple):
    """Where a job runs. None of it changes the rows, up to rounding.

    Attributes:
        folder: for the job's files; what an interrupted call left is still there.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        console: shows progress; None shows nothing.
        before: outcomes of the jobs in :attr:`Job.after`.
    """

    folder: Path
    device: str = "auto"
    console: Console | None = None
    before: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class Job:
    """A unit of work. Experiments that plan equal jobs share the outcome.

    Attributes:
        name: a relative path without suffix; the job's files are there in the store.
        kind: what is computed. Together with the settings it decides the outcome.
        run: the function that computes the rows; at the top of a module, so that other processes
            can import it.
        settings: all that decides the outcome, as JSON.
        after: the jobs whose outcomes it needs.
        about: what the function has to know that does not decide the outcome, as JSON, such as
            the folder of the images.
        revision: raise it when the function computes something else; earlier outcomes are then
            ignored.
        extends: its one row is added to the rows of the job it comes after.
    """

    name: str
    kind: str
    run: Callable[["Job", Context], list[Row]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    after: tuple["Job", ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    revision: int = 1
    extends: bool = False

    @functools.cached_property
    def key(self) -> str:
        """Digest of all that decides the outcome."""
        after = [job.key for job in self.after]
        return digest([self.kind, self.revision, self.settings, after])


def digest(contents: Any, length: int = 16) -> str:
    """A short digest of JSON, whatever the order of keys."""
    text = json.dumps(contents, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper, or one of ours.

    Attributes:
        id: its name on the command line.
        title: what it is called in print.
        paper: where it is in the paper; empty for ours.
        finding: what the paper says of it.
        what: what it measures, in a few words.
        full: about how long the full protocol takes on one H200.
        quick: about how long ``--quick`` takes on two CPU cores.
        plan: the jobs whose rows are its results. Jobs that these need come by themselves.
        show: its sections of the report; none if there are no rows.
        data: the datasets of the full protocol.
        options: the fields of :class:`Scope` that make a difference to it.
        keeps: whether an old row of the results file is still shown beside new ones.
    """

    id: str
    title: str
    paper: str
    finding: str
    what: str
    full: str
    quick: str
    plan: Callable[[Scope], list[Job]]
    show: Callable[["Findings"], Iterable[Section]]
    data: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    keeps: Callable[[Row, Sequence[Row]], bool] = lambda old, new: True
