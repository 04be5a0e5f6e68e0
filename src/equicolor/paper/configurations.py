"""The cost of networks: the paper's Table 4 (appendix C.3), with operations counted as executed.

The paper's parameter counts are right. Its MACs are not those that its code executes: they come
from a counter, for a batch of two, that counts the pointwise part of a separable filter as if it
had no spatial extent (:func:`paper_macs` reproduces every number).
"""

import copy
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table as RichTable
from torch import Tensor, nn

from equicolor.models import cost, create_model, list_models, load_network
from equicolor.models.facts import network_facts
from equicolor.models.loading import is_foreign
from equicolor.nn import set_algorithm
from equicolor.paper.experiment import Context, Experiment, Job
from equicolor.paper.rows import Findings
from equicolor.reporting.html import Section
from equicolor.reporting.progress import tracked
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import Row


class Configuration(NamedTuple):
    """A network of the paper's Table 4 with the paper's numbers, or one of ours without them."""

    model: str
    ce_stages: int
    width: int | None = None
    parameters_m: float | None = None
    macs_g: float | None = None  # of a batch of two
    rotations: int = 3
    lifting: str = "rgb"


PAPER = (
    Configuration("resnet18", 0, 64, 11.69, 3.59),
    Configuration("resnet18", 1, 63, 11.38, 5.66),
    Configuration("resnet18", 2, 63, 11.57, 7.37),
    Configuration("resnet18", 3, 61, 11.54, 8.80),
    Configuration("resnet18", 4, 55, 11.79, 10.32),
    Configuration("resnet44", 0, 32, 2.64, 0.78),
    Configuration("resnet44", 1, 31, 2.51, 1.23),
    Configuration("resnet44", 2, 30, 2.50, 1.63),
    Configuration("resnet44", 3, 27, 2.60, 1.83),
)
# Not in the paper: twelve hues, exact for HSV shifts.
BEYOND = (
    Configuration("resnet18", 4, rotations=12, lifting="hsv"),
    Configuration("resnet44", 3, rotations=12, lifting="hsv"),
)


def measure(network: str, *, input_size: int | None = None, **options: Any) -> Row:
    """Parameters and executed multiply-accumulates of a network, dense and cyclic, as a row.

    The network is a name of :func:`equicolor.models.list_models`, built with the ``options``, or
    anything that :func:`equicolor.models.load_network` takes; no weights are downloaded. By default
    images have the size that the network is for. ``width`` is that of the first stage.
    """
    model = _build(network, options)
    size = getattr(model, "image_size", 224) if input_size is None else input_size
    dense, cyclic = (cost(set_algorithm(model, name), size) for name in ("dense", "cyclic"))
    facts = network_facts(model)
    spatial = {"spatial": facts["spatial"]} if "spatial" in facts else {}
    return {
        "model": facts["model"],
        **spatial,
        "ce_stages": facts["ce_stages"],
        "rotations": facts["rotations"] or 1,
        "lifting": facts["lifting"],
        "width": facts["width"],
        "input_size": size,
        "parameters": dense.parameters,
        "macs_dense": dense.macs,
        "macs_cyclic": cyclic.macs,
    }


def _build(network: str, options: dict[str, Any]) -> nn.Module:
    path = Path(network)
    if network in list_models() or not (path.exists() or path.suffix or ":" in network):
        with torch.device("meta"):  # only shapes are needed
            return create_model(network, **options)  # an unknown name raises
    if options:
        raise ValueError(
            f"{', '.join(options)} can be chosen for a name of 'equicolor models'; {network} is "
            "already built"
        )
    return load_network(network, pretrained=not is_foreign(network))


def paper_macs(network: nn.Module, input_size: int) -> int:
    """The MACs that the paper reports, by the rule of its counter; not those that are executed.

    torchinfo multiplies a convolution's ``weight`` and ``bias`` by the output positions, rotations
    included. It takes any other parameter with "weight" in its name for that of a recurrent layer
    and multiplies it by batch and channels, so ``pointwise_weight`` counts as if images had one
    pixel. The count is for a batch of two.

    Example:
        >>> from equicolor.models import resnet44
        >>> round(paper_macs(resnet44(rotations=3), 32) / 1e9, 2)
        1.83
    """
    total = 0

    def count(module: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal total
        positions = math.prod(output.shape[2:]) if "Conv" in type(module).__name__ else 1
        for name, parameter in module.named_parameters(recurse=False):
            times = positions if name in ("weight", "bias") else output.shape[1]
            total += len(output) * times * parameter.numel()

    ghost = copy.deepcopy(network).to("meta").eval()
    for module in ghost.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        ghost(torch.empty(2, 3, input_size, input_size, device="meta"))
    return total


def run(console: Console | None = None) -> list[Row]:
    """Measure the networks of the paper and of :data:`BEYOND`; a console shows progress.

    Returns:
        Rows of :func:`measure` with the paper's columns (None where it has none), by model.
    """
    rows = []
    networks = sorted([*PAPER, *BEYOND], key=lambda each: each.model)
    for network in tracked(networks, "counting", console):
        options: dict[str, Any] = {"ce_stages": network.ce_stages}
        if network.ce_stages:
            options |= {"rotations": network.rotations, "lifting": network.lifting}
        row = measure(network.model, **options)
        published = {"paper_parameters_m": network.parameters_m, "paper_macs_g": network.macs_g}
        rows.append(row | published)
    return rows


def show(findings: Findings) -> list[Section]:
    """Table 4, and the executed multiply-accumulates as bars."""
    rows = findings.of("configurations")
    if not rows:
        return []
    caption = "Multiply-accumulates executed for one image, against the plain network's."
    numbers = report_table(rows)
    return [Section("", headline(rows), numbers, plot(rows), caption, "configurations")]


def table(rows: Iterable[Row]) -> RichTable:
    """The rows of :func:`run` for the terminal; × means multiples of the plain network."""
    title = "Parameters, and GMACs executed for one image (paper's GMACs: batch of two)"
    result = RichTable(title=title, box=None, pad_edge=False)
    names = ("network", "CE", "n", "width", "params", "paper", "dense", "×", "cyclic", "×", "paper")
    for name in names:
        result.add_column(name, justify="left" if name == "network" else "right", no_wrap=True)
    plain: dict[str, int] = {}
    for row in rows:
        *network, published, parameters, published_macs, dense, cyclic = _cells(row)
        macs = plain.setdefault(row["model"], row["macs_dense"])
        times = [f"{row[key] / macs:.1f}" for key in ("macs_dense", "macs_cyclic")]
        cells = [f"{parameters}M", published, dense, times[0], cyclic, times[1], published_macs]
        result.add_row(*network, *cells)
    return result


def report_table(rows: Iterable[Row]) -> Table:
    """The rows of :func:`run` for reports, the paper's columns beside ours."""
    columns = (
        "network", "CE stages", "rotations", "width", "M parameters, paper", "ours",
        "GMACs, paper (batch of two)", "executed, dense", "executed, cyclic",
    )  # fmt: skip
    lines = [[cell or MISSING for cell in _cells(row)] for row in rows]
    return Table(columns, lines, "Parameters and multiply-accumulates for one image")


def _cells(row: Row) -> list[str]:
    """The cells of a row: network, parameters in millions, multiply-accumulates in billions."""
    numbers = (
        row["paper_parameters_m"], row["parameters"] / 1e6, row["paper_macs_g"],
        row["macs_dense"] / 1e9, row["macs_cyclic"] / 1e9,
    )  # fmt: skip
    network = [row["model"], str(row["ce_stages"]), _rotations(row), str(row["width"])]
    return network + ["" if number is None else f"{number:.2f}" for number in numbers]


def _rotations(row: Row) -> str:
    return f"{row['rotations']} hsv" if row["lifting"] == "hsv" else str(row["rotations"])


def plot(rows: Sequence[Row]) -> Figure:
    """Executed multiply-accumulates in multiples of the plain network's, dense and cyclic."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        group = [row for row in rows if row["model"] == model]
        plain = next(row["macs_dense"] for row in group if row["rotations"] == 1)
        for index, (algorithm, color) in enumerate((("dense", "#d55e00"), ("cyclic", "#0072b2"))):
            heights = [row[f"macs_{algorithm}"] / plain for row in group]
            places = [place + 0.38 * index - 0.19 for place in range(len(group))]
            bars = axes.bar(places, heights, 0.36, color=color, label=f"{algorithm} algorithm")
            axes.bar_label(bars, fmt="%.1f", fontsize=8)
        names = [
            "plain" if row["rotations"] == 1 else f"CE-{row['ce_stages']}\nn = {_rotations(row)}"
            for row in group
        ]
        axes.set_xticks(range(len(group)), names, fontsize=8)
        axes.set_title(model, fontsize=10)
    panels[0].set_ylabel("multiply-accumulates, × plain")
    panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def headline(rows: Sequence[Row]) -> str:
    """One sentence: ResNet-18, fully equivariant, against the plain one."""
    rows = [row for row in rows if row["model"] == "resnet18"]
    networks = {(row["ce_stages"], row["rotations"]): row for row in rows}
    plain, three, twelve = (networks[key] for key in ((0, 1), (4, 3), (4, 12)))

    def times(row: Row, algorithm: str) -> str:
        return f"{row[f'macs_{algorithm}'] / plain['macs_dense']:.1f}"

    return (
        f"A fully equivariant ResNet-18 executes {times(three, 'dense')} times the plain "
        f"network's multiply-accumulates at 3 hues, {times(three, 'cyclic')} with the cyclic "
        f"algorithm; at 12 hues {times(twelve, 'dense')} and {times(twelve, 'cyclic')}."
    )


def summary(row: Row) -> str:
    """A row of :func:`measure` in words."""
    size, dense, cyclic = row["input_size"], row["macs_dense"], row["macs_cyclic"]
    macs = f"{dense / 1e9:.3g} G"
    lifted = f", {row['lifting']} lifting" if row["lifting"] else ""
    if dense != cyclic:
        macs = f"{macs} dense, {cyclic / 1e9:.3g} G cyclic ({dense / cyclic:.1f} times fewer)"
    return (
        f"parameters: {row['parameters']:,}\n"
        f"multiply-accumulates executed for one {size}×{size} image{lifted}: {macs}"
    )


def _run(job: Job, context: Context) -> list[Row]:
    return run(context.console)


EXPERIMENT = Experiment(
    id="configurations",
    title="Configurations",
    paper="Table 4",
    finding="Networks of about equal parameters; their multiply-accumulates grow by 1.6 to 2.9 "
    "times. The MACs come from a counter and are not those executed: see the documentation.",
    what="parameters and multiply-accumulates",
    full="seconds",
    quick="½ min",
    plan=lambda scope: [Job("configurations", "configurations", _run)],
    show=show,
)
