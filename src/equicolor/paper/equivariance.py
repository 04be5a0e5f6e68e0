"""What a hue shift does to the output of small random networks, over the whole hue circle.

Nothing is trained: equivariance is a property of the layers, so random weights show it. A plain
network and colour-equivariant ones of the same shape see one photo in all hues; the curve is the
change of the pooled output. The output of an equivariant network must not change at the angles of
its group, and only a little between them if the group is fine.
"""

import importlib.util
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

from equicolor.color import shift_hue
from equicolor.models.layers import Layers
from equicolor.nn import CosetMaxPool
from equicolor.paper.experiment import Context, Experiment, Job
from equicolor.paper.rows import Findings
from equicolor.reporting.html import Section
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import Row

WIDTHS = (16, 32, 64)
SHIFTS = 72  # every 5 degrees, so that the angles of n = 3, 6 and 12 are among them
SEEDS = 3
COLOURS = ("#555555", "#d1700f", "#b7a1d8", "#1f77b4")


@dataclass(frozen=True)
class Spec:
    """A network of the demonstration; a plain one has a single rotation."""

    name: str
    rotations: int = 1
    lifting: str = "rgb"


DEMO = (
    Spec("plain"),
    Spec("rgb, n = 3", 3, "rgb"),
    Spec("rgb, n = 12", 12, "rgb"),
    Spec("hsv, n = 12", 12, "hsv"),
)


def show(findings: Findings) -> Iterator[Section]:
    """The change of the output over the hue circle."""
    rows = findings.of("equivariance")
    if not rows or any("change" not in row for row in rows):
        return
    lines = [
        (
            row["network"], f"{row['worst']:.1%}", f"{row['mean']:.1%}",
            MISSING if row["at_group_angles"] is None else f"{row['at_group_angles']:.0e}",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("network", "worst shift", "mean over the circle", "at the group's angles")
    first, last = rows[0], rows[-1]
    yield Section(
        "",
        f"A hue shift changes the output by up to {first['worst']:.0%} ({first['network']}), "
        f"against {last['worst']:.1%} ({last['network']}), and "
        f"{last['at_group_angles'] or 0:.0e} at the group's own angles.",
        Table(columns, lines, "Ours: relative change of a random network's output"),
        plot(rows, sample_photo()),
        "Change of the pooled output of small random networks while a photo's hue shifts.",
        "equivariance",
    )


def sample_photo(height: int = 64) -> Tensor:
    """The photo of a flower that comes with scikit-learn, ``[1, 3, H, W]`` in [0, 1]."""
    # Not imported, which would take seconds: only its photo is needed.
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    with Image.open(Path(package.origin).parent / "datasets" / "images" / "flower.jpg") as image:
        photo = torch.tensor(np.array(image)).permute(2, 0, 1)[None] / 255
    size = height, round(height * photo.shape[3] / photo.shape[2])
    return F.interpolate(photo, size, mode="bilinear", antialias=True)


def build(spec: Spec, photo: Tensor, seed: int = 0) -> nn.Sequential:
    """A small random network in eval mode: three convolutions, then pooling to ``[B, 64]``.

    Batch statistics are those of the photo ``[B, 3, H, W]``: with the initial ones, the signal of
    a random network would fade from layer to layer.
    """
    layers = Layers(spec.rotations, spec.lifting)
    shape: dict[str, Any] = {"padding": 1, "bias": False}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        convolutions = [layers.lift(3, WIDTHS[0], 3, **shape)]
        for before, after in itertools.pairwise(WIDTHS):
            convolutions.append(layers.conv(before, after, 3, **shape))
    blocks: list[nn.Module] = []
    for width, convolution in zip(WIDTHS, convolutions, strict=True):
        blocks += [convolution, layers.norm(width), nn.ReLU(), layers.max_pool(2, 2)]
    if spec.rotations > 1:
        blocks.append(CosetMaxPool())
    network = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for block in network:
        if isinstance(block, nn.BatchNorm2d):
            block.momentum = None
    with torch.no_grad():
        network(photo)
    return network.eval()


def relative_change(network: Callable[[Tensor], Tensor], photo: Tensor, turns: Tensor) -> Tensor:
    r"""How far hue shifts move an output, :math:`\lVert f(T_t x) - f(x)\rVert / \lVert f(x)\rVert`.

    The photo is ``[1, 3, H, W]`` in [0, 1]; the shifts and their changes are ``[S]``.
    """
    with torch.no_grad():
        reference = network(photo).flatten()
        outputs = [
            network(shift_hue(photo.expand(len(part), -1, -1, -1), part)).flatten(1)
            for part in turns.split(12)
        ]
    return (torch.cat(outputs) - reference).norm(dim=1) / reference.norm()


def measure(spec: Spec, photo: Tensor, *, shifts: int = SHIFTS, seeds: int = SEEDS) -> Row:
    """Measure a network with several random weights at evenly spaced hue shifts.

    The row has the relative ``change`` of the output at every shift, its ``mean`` over the circle,
    its largest value there (``worst``), and its largest value at the angles of the group (None for
    a plain network). All are means over the draws.
    """
    turns = torch.arange(shifts) / shifts
    draws = [relative_change(build(spec, photo, seed), photo, turns) for seed in range(seeds)]
    change, steps = torch.stack(draws), turns * spec.rotations
    at_group = change[:, (steps - steps.round()).abs() < 1e-4]
    plain = spec.rotations == 1
    return {
        "network": spec.name,
        "rotations": spec.rotations,
        "lifting": None if plain else spec.lifting,
        "worst": float(change.amax(1).mean()),
        "mean": float(change.mean()),
        "at_group_angles": None if plain else float(at_group.amax(1).mean()),
        "change": [round(value, 9) for value in change.mean(0).tolist()],
    }


def plot(rows: Sequence[Row], photo: Tensor) -> Figure:
    """The change against the hue shift, under a strip of shifted photos."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    strip, curves = figure.subplots(2, 1, height_ratios=(1, 6.2))
    _draw_strip(strip, photo)
    for row, colour in zip(rows, COLOURS, strict=False):
        # Close the circle: 360 degrees is 0 degrees again.
        change = torch.tensor([*row["change"], row["change"][0]]).clamp_min(1e-8)
        degrees = torch.linspace(0, 360, len(change))
        curves.plot(degrees.numpy(), change.numpy(), color=colour, lw=2, label=row["network"])
    rounding = torch.finfo(torch.float32).eps
    curves.axhline(rounding, color="black", lw=0.8, ls=":")
    curves.text(75, 0.8 * rounding, "float32 rounding", ha="center", va="top", fontsize=9)
    curves.set(
        yscale="log",
        ylim=(2e-8, 3),
        xlim=(0, 360),
        xticks=range(0, 361, 30),
        xlabel="hue shift of the photo, degrees",
        ylabel="relative change of the output",
    )
    curves.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(rows), frameon=False)
    return figure


def _draw_strip(axes: Axes, photo: Tensor, copies: int = 12) -> None:
    """Square crops side by side, each shifted by the angle on the axis below it."""
    size = min(photo.shape[2:])
    left = (photo.shape[3] - size) // 2
    crops = photo[..., :size, left : left + size].expand(copies, -1, -1, -1)
    shifted = shift_hue(crops, (torch.arange(copies) + 0.5) / copies)
    strip = torch.cat(tuple(shifted.permute(0, 2, 3, 1)), dim=1)
    axes.imshow(strip.numpy(), aspect="auto")
    axes.axis("off")


def _run(job: Job, context: Context) -> list[Row]:
    photo = sample_photo()
    return [measure(spec, photo) for spec in DEMO]


EXPERIMENT = Experiment(
    id="equivariance",
    title="Equivariance of the layers",
    paper="",
    finding="A property of the layers, which needs no training; the paper proves it (section 3) "
    "and does not plot it.",
    what="random networks over the hue circle",
    full="seconds",
    quick="½ min",
    plan=lambda scope: [Job("equivariance", "equivariance", _run)],
    show=show,
)
