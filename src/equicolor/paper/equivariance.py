"""What a hue shift does to the output of small random networks, over the whole hue circle.

No training: equivariance is a property of the layers, so random weights show it. A plain
network and colour-equivariant ones of the same shape look at one photo while its hue goes
round the circle; the curve is how far the pooled output moves. An equivariant network must
not move at all at the angles of its group, and little between them when the group is fine.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from torch import Tensor, nn

from equicolor._files import output_folder, written_aside
from equicolor.color import shift_hue
from equicolor.nn import CEBatchNorm2d, CEConv2d, CELiftConv2d, CEMaxPool2d, CosetMaxPool
from equicolor.reporting.progress import tracked
from equicolor.results import write_results

__all__ = [
    "DEMO",
    "HueResponse",
    "Spec",
    "build",
    "headline",
    "measure",
    "plot",
    "relative_change",
    "response",
    "run",
    "sample_photo",
    "table",
]

WIDTHS = (16, 32, 64)
SHIFTS = 72  # every 5 degrees, so that the angles of n = 3, 6 and 12 are among them
SEEDS = 3
COLOURS = ("#555555", "#d1700f", "#b7a1d8", "#1f77b4")
PICTURE, SUMMARY = "equivariance.png", "summary.json"


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


@dataclass(frozen=True)
class HueResponse:
    """How far the output of a network moves with the hue of its input.

    Args:
        spec: the network.
        turns: hue shifts ``[S]``, evenly over the circle from 0.
        change: relative change of the output ``[draws, S]``, a row for each random draw.
    """

    spec: Spec
    turns: Tensor
    change: Tensor

    @property
    def mean(self) -> float:
        """The mean over the circle and the draws."""
        return float(self.change.mean())

    @property
    def worst(self) -> float:
        """The largest change on the circle, averaged over the draws."""
        return float(self.change.amax(1).mean())

    @property
    def at_group(self) -> float | None:
        """Like :attr:`worst`, but at the angles of the group alone; None for a plain network."""
        if self.spec.rotations == 1:
            return None
        steps = self.turns * self.spec.rotations
        return float(self.change[:, (steps - steps.round()).abs() < 1e-4].amax(1).mean())

    def row(self) -> dict[str, Any]:
        """The numbers as a flat JSON object."""
        return {
            "network": self.spec.name,
            "rotations": self.spec.rotations,
            "lifting": None if self.spec.rotations == 1 else self.spec.lifting,
            "worst": self.worst,
            "mean": self.mean,
            "at_group_angles": self.at_group,
        }


def sample_photo(height: int = 64) -> Tensor:
    """The photo of a flower that comes with scikit-learn, ``[1, 3, H, W]`` in [0, 1].

    Args:
        height: the height to scale it to; the width follows.

    Example:
        >>> sample_photo(32).shape
        torch.Size([1, 3, 32, 48])
    """
    # Imported here: only the photo needs scikit-learn.
    from sklearn.datasets import load_sample_image

    photo = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1)[None] / 255
    size = height, round(height * photo.shape[3] / photo.shape[2])
    return F.interpolate(photo, size, mode="bilinear", antialias=True)


def build(spec: Spec, photo: Tensor, seed: int = 0) -> nn.Sequential:
    """A small random network in eval mode: three convolutions, then pooling to ``[B, 64]``.

    Batch statistics are those of the photo; untouched ones would leave the signal of a
    random network to fade from layer to layer.

    Args:
        spec: which network.
        photo: images ``[B, 3, H, W]`` to take the batch statistics from.
        seed: of the weights.

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


def measure(spec: Spec, photo: Tensor, *, shifts: int = SHIFTS, seeds: int = SEEDS) -> HueResponse:
    """Measure a network over the hue circle.

    Args:
        spec: the network.
        photo: one image ``[1, 3, H, W]`` in [0, 1].
        shifts: the number of shifts, evenly over the circle.
        seeds: the number of random draws of the network.

    Example:
        >>> plain = measure(Spec("plain"), torch.rand(1, 3, 16, 16), shifts=6, seeds=2)
        >>> plain.change.shape, plain.worst > 0.01
        (torch.Size([2, 6]), True)
    """
    turns = torch.arange(shifts) / shifts
    draws = [relative_change(build(spec, photo, seed), photo, turns) for seed in range(seeds)]
    return HueResponse(spec, turns, torch.stack(draws))


def response(row: Mapping[str, Any]) -> HueResponse:
    """What a row with the whole curve says, as one draw: the mean over all draws.

    Args:
        row: of :meth:`HueResponse.row`, and the mean change at every shift under ``change``.

    Example:
        >>> row = {"network": "plain", "rotations": 1, "lifting": None, "change": [0.0, 0.5]}
        >>> response(row).turns.tolist()
        [0.0, 0.5]
    """
    spec = Spec(row["network"], row["rotations"], row["lifting"] or "rgb")
    change = torch.tensor([row["change"]])
    return HueResponse(spec, torch.arange(change.shape[1]) / change.shape[1], change)


def plot(responses: Sequence[HueResponse], photo: Tensor) -> Figure:
    """Draw the change against the hue shift, under a strip of shifted photos.

    Args:
        responses: from :func:`measure`, in the order of :data:`DEMO`.
        photo: the photo they were measured on.

    Example:
        >>> photo = torch.rand(1, 3, 16, 16)
        >>> figure = plot([measure(Spec("plain"), photo, shifts=6, seeds=1)], photo)
        >>> len(figure.axes)
        2
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    strip, curves = figure.subplots(2, 1, height_ratios=(1, 6.2))
    _draw_strip(strip, photo)
    for response, colour in zip(responses, COLOURS, strict=False):
        # Close the circle: 360 degrees is 0 degrees again.
        degrees = 360 * torch.cat((response.turns, torch.ones(1)))
        change = torch.cat((response.change, response.change[:, :1]), 1).clamp_min(1e-8)
        line = degrees.numpy(), change.mean(0).numpy()
        curves.plot(*line, color=colour, lw=2, label=response.spec.name)
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
    figure.legend(loc="outside upper center", ncols=len(responses), frameon=False)
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


def table(responses: Sequence[HueResponse]) -> Table:
    """The numbers as a table for the terminal."""
    result = Table(title="Change of a network's output under a hue shift of its input")
    result.add_column("network")
    for name in ("worst shift", "mean over the circle", "at the group's angles"):
        result.add_column(name, justify="right")
    for response in responses:
        exact = "" if response.at_group is None else f"{response.at_group:.1e}"
        result.add_row(response.spec.name, f"{response.worst:.1%}", f"{response.mean:.1%}", exact)
    return result


def headline(responses: Sequence[HueResponse]) -> str:
    """One sentence: the first network against the last."""
    first, last = responses[0], responses[-1]
    return (
        f"A hue shift changes the output by up to {first.worst:.0%} ({first.spec.name}) "
        f"against {last.worst:.1%} ({last.spec.name}), "
        f"and {last.at_group:.0e} at the group's own angles."
    )


def run(output: Path | str) -> list[HueResponse]:
    """Measure :data:`DEMO`, then write ``equivariance.png`` and ``summary.json`` to a folder.

    Args:
        output: the folder; created if missing. Other files in it are left alone.

    Returns:
        What was measured.
    """
    output = output_folder(output)
    responses = _measure_and_draw(output / PICTURE)
    write_results(
        output / SUMMARY,
        [response.row() for response in responses],
        experiment="equivariance",
        photo="flower.jpg",
        seeds=list(range(SEEDS)),
        shifts=SHIFTS,
    )
    return responses


def _measure_and_draw(path: Path) -> list[HueResponse]:
    photo = sample_photo()
    responses = [measure(spec, photo) for spec in tracked(DEMO, "measuring")]
    with written_aside(path) as partial:
        plot(responses, photo).savefig(partial, dpi=100, format=path.suffix[1:] or None)
    return responses


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the picture alone, for the documentation."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--output", type=Path, required=True, help=f"folder for {PICTURE}")
    path = output_folder(parser.parse_args(arguments).output) / PICTURE
    _measure_and_draw(path)
    print(path)


if __name__ == "__main__":
    main()
