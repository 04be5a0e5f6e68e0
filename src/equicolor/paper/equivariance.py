"""What a hue shift does to the output of small random networks, over the whole hue circle.

No training: equivariance is a property of the layers, so random weights show it. A plain
network and colour-equivariant ones of the same shape see one photo in all hues; the curve is
how far the pooled output moves. The output of an equivariant network must not move at all at
the angles of its group, and only a little between them if the group is fine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from equicolor.color import shift_hue
from equicolor.nn import CEBatchNorm2d, CEConv2d, CELiftConv2d, CEMaxPool2d, CosetMaxPool
from equicolor.paper.experiment import Context, Experiment, Job, Scope
from equicolor.paper.rows import Findings
from equicolor.reporting.html import Section
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import Row

__all__ = [
    "DEMO", "EXPERIMENT", "Spec", "build", "measure", "plot", "relative_change", "rows",
    "sample_photo", "show",
]  # fmt: skip

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


def rows() -> list[Row]:
    """Measure the networks of :data:`DEMO`."""
    photo = sample_photo()
    return [measure(spec, photo) for spec in DEMO]


def show(findings: Findings) -> list[Section]:
    """The change of the output over the hue circle."""
    rows = findings.of("equivariance")
    if not rows or any("change" not in row for row in rows):
        return []
    lines = [
        (
            row["network"], f"{row['worst']:.1%}", f"{row['mean']:.1%}",
            MISSING if row["at_group_angles"] is None else f"{row['at_group_angles']:.0e}",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("network", "worst shift", "mean over the circle", "at the group's angles")
    first, last = rows[0], rows[-1]
    return [
        Section(
            "",
            f"A hue shift changes the output by up to {first['worst']:.0%} ({first['network']}), "
            f"against {last['worst']:.1%} ({last['network']}), and "
            f"{last['at_group_angles'] or 0:.0e} at the group's own angles.",
            Table(columns, lines, "Ours: relative change of a random network's output"),
            plot(rows, sample_photo()),
            "Change of the pooled output of small random networks while a photo's hue shifts.",
            "equivariance",
        )
    ]


def sample_photo(height: int = 64) -> Tensor:
    """The photo of a flower that comes with scikit-learn, ``[1, 3, H, W]`` in [0, 1]."""
    # Imported here: only the photo needs scikit-learn.
    from sklearn.datasets import load_sample_image

    photo = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1)[None] / 255
    size = height, round(height * photo.shape[3] / photo.shape[2])
    return F.interpolate(photo, size, mode="bilinear", antialias=True)


def build(spec: Spec, photo: Tensor, seed: int = 0) -> nn.Sequential:
    """A small random network in eval mode: three convolutions, then pooling to ``[B, 64]``.

    Batch statistics are those of the photo ``[B, 3, H, W]``. With the initial ones the signal of
    a random network would fade from layer to layer.

    Example:
        >>> photo = torch.rand(1, 3, 32, 48)
        >>> build(Spec("hsv, n = 6", 6, "hsv"), photo)(photo).shape
        torch.Size([1, 64])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = _plain_blocks() if spec.rotations == 1 else _equivariant_blocks(spec)
    network = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        network(photo)
    return network.eval()


def _plain_blocks() -> list[nn.Module]:
    blocks: list[nn.Module] = []
    for before, after in zip((3, *WIDTHS), WIDTHS, strict=False):
        blocks += [nn.Conv2d(before, after, 3, padding=1, bias=False)]
        blocks += [nn.BatchNorm2d(after, momentum=None), nn.ReLU(), nn.MaxPool2d(2)]
    return blocks


def _equivariant_blocks(spec: Spec) -> list[nn.Module]:
    n = spec.rotations
    blocks: list[nn.Module] = [
        CELiftConv2d(3, WIDTHS[0], 3, padding=1, bias=False, rotations=n, lifting=spec.lifting)
    ]
    for before, after in zip(WIDTHS, (*WIDTHS[1:], None), strict=True):
        blocks += [CEBatchNorm2d(before, momentum=None), nn.ReLU(), CEMaxPool2d(2)]
        if after is not None:
            blocks += [CEConv2d(before, after, 3, padding=1, bias=False, rotations=n)]
    return [*blocks, CosetMaxPool()]


def relative_change(
    network: Callable[[Tensor], Tensor], photo: Tensor, turns: Tensor, *, chunk: int = 12
) -> Tensor:
    r"""How far hue shifts move an output, :math:`\lVert f(T_t x) - f(x)\rVert / \lVert f(x)\rVert`.

    Args:
        network: any function of images.
        photo: one image :math:`[1, 3, H, W]` in [0, 1].
        turns: hue shifts :math:`[S]`.
        chunk: how many shifted photos go through the network at once.

    Returns:
        The change :math:`[S]` for every shift.

    Example:
        >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
        >>> relative_change(lambda x: x.mean((2, 3)), red, torch.tensor([0.0, 1 / 3])).tolist()
        [0.0, 1.4142135381698608]
    """
    with torch.no_grad():
        reference = network(photo).flatten()
        outputs = [
            network(shift_hue(photo.expand(len(part), -1, -1, -1), part)).flatten(1)
            for part in turns.split(chunk)
        ]
    change: Tensor = (torch.cat(outputs) - reference).norm(dim=1) / reference.norm()
    return change


def measure(spec: Spec, photo: Tensor, *, shifts: int = SHIFTS, seeds: int = SEEDS) -> Row:
    """Measure a network over the hue circle.

    Args:
        spec: the network.
        photo: one image ``[1, 3, H, W]`` in [0, 1].
        shifts: the number of shifts, evenly over the circle from 0.
        seeds: the number of random draws of the network.

    Returns:
        A row with the relative ``change`` of the output at every shift, its ``mean`` over the
        circle, its largest value there (``worst``) and at the angles of the group alone (None for
        a plain network). All are means over the draws.

    Example:
        >>> plain = measure(Spec("plain"), torch.rand(1, 3, 16, 16), shifts=6, seeds=2)
        >>> len(plain["change"]), plain["worst"] > 0.01, plain["at_group_angles"]
        (6, True, None)
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
    """The change against the hue shift, under a strip of shifted photos.

    Args:
        rows: of :func:`measure`, in the order of :data:`DEMO`.
        photo: what they were measured on.
    """
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
    """Square crops side by side, each shifted by the angle it stands above."""
    size = min(photo.shape[2:])
    left = (photo.shape[3] - size) // 2
    crops = photo[..., :size, left : left + size].expand(copies, -1, -1, -1)
    shifted = shift_hue(crops, (torch.arange(copies) + 0.5) / copies)
    strip = torch.cat(tuple(shifted.permute(0, 2, 3, 1)), dim=1)
    axes.imshow(strip.numpy(), aspect="auto")
    axes.axis("off")


def _plan(scope: Scope) -> list[Job]:
    return [Job("equivariance", "equivariance", _run)]


def _run(job: Job, context: Context) -> list[Row]:
    return rows()


EXPERIMENT = Experiment(
    id="equivariance",
    title="Equivariance of the layers",
    paper="",
    finding="A property of the layers, which needs no training; the paper proves it (section 3) "
    "and does not plot it.",
    what="random networks over the hue circle",
    full="seconds",
    quick="½ min",
    plan=_plan,
    show=show,
)
