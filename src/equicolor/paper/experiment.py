"""What an experiment is: one object in one module, with its jobs and its sections.

A module defines an :class:`Experiment` as ``EXPERIMENT``, or several under other names. Its
``plan`` turns a :class:`Scope` into jobs, each :class:`Job` names the function that runs it, and
its ``show`` turns rows into sections of the report.
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


@dataclass(frozen=True)
class Scope:
    """How much of an experiment to run. None, or an empty tuple, means the experiment's default."""

    output: Path  # the folder of the run
    quick: bool = False  # minutes on two CPU cores, with made-up data
    # Whether a GPU trains: in bfloat16, and all seeds of ColorMNIST side by side.
    cuda: bool = False
    datasets: tuple[str, ...] = ()  # names or folders of images
    networks: tuple[str, ...] = ()  # names of networks or recipes
    seeds: tuple[int, ...] | None = None  # one network is trained for each
    epochs: int | None = None  # instead of the paper's
    size: int | None = None  # height and width of the images
    actions: tuple[str, ...] = ()  # hue shifts to evaluate under
    sigmas: tuple[float, ...] = ()  # spreads of the hue in degrees, of the biased ColorMNIST
    redraw: bool = False  # draw the biased ColorMNIST anew for every seed
    precision: str = "auto"  # number format of the ColorMNIST convolutions


class Outcome(NamedTuple):
    """Rows of a finished job, and the folder with its files, such as a trained network."""

    rows: list[Row]
    folder: Path


class Context(NamedTuple):
    """Where a job runs. None of it changes the rows, up to rounding."""

    folder: Path  # for the job's files; those of an interrupted call are still there
    device: str = "auto"  # "auto", "cpu", "cuda" or one GPU, such as "cuda:1"
    console: Console | None = None  # shows progress; None shows nothing
    before: tuple[Outcome, ...] = ()  # outcomes of the jobs in Job.after


@dataclass(frozen=True)
class Job:
    """A unit of work. Experiments that plan equal jobs share the outcome."""

    name: str  # relative path of the job's files in the store, without suffix
    kind: str  # what is computed. Together with the settings it decides the outcome
    # The function that computes the rows; at the top of a module, so that other processes can
    # import it.
    run: Callable[["Job", Context], list[Row]]
    # All that decides the outcome, as JSON.
    settings: Mapping[str, Any] = field(default_factory=dict)
    after: tuple["Job", ...] = ()  # the jobs whose outcomes it needs
    # Further input of the function, as JSON, that does not decide the outcome, such as the path of
    # the images.
    about: Mapping[str, Any] = field(default_factory=dict)
    # To be raised when the function computes something else: earlier outcomes are then ignored.
    revision: int = 1
    extends: bool = False  # its one row is merged into each row of the first job in after

    @functools.cached_property
    def key(self) -> str:
        """Digest of all that decides the outcome."""
        after = [job.key for job in self.after]
        return digest([self.kind, self.revision, self.settings, after])


def digest(contents: Any, length: int = 16) -> str:
    """A short digest of JSON that does not depend on the order of keys."""
    text = json.dumps(contents, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper, or one of ours."""

    id: str  # its name on the command line
    title: str  # its title in the report
    paper: str  # where it is in the paper; empty for ours
    finding: str  # what the paper says of it
    what: str  # what it measures, in a few words
    full: str  # about how long the full protocol takes on one H200
    quick: str  # about how long --quick takes on two CPU cores
    # The jobs whose rows are its results. The engine adds the jobs that these need.
    plan: Callable[[Scope], list[Job]]
    # Its sections of the report; none if there are no rows.
    show: Callable[["Findings"], Iterable[Section]]
    data: tuple[str, ...] = ()  # the datasets of the full protocol
    options: tuple[str, ...] = ()  # the fields of Scope that it uses
    # Whether an old row of the results file is kept beside new ones.
    keeps: Callable[[Row, Sequence[Row]], bool] = lambda old, new: True
