"""What a conversion costs and gains: the work of ``equicolor convert``."""

import contextlib
import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from equicolor.conversion.convert import convert
from equicolor.conversion.supported import ConversionError
from equicolor.data.datasets import find_dataset, load_dataset
from equicolor.evaluation.diagnose import diagnose
from equicolor.evaluation.evaluate import Evaluation
from equicolor.evaluation.images import choose_preparation
from equicolor.models.checkpoints import checkpoint_file, load_model, save_model
from equicolor.models.cost import cost
from equicolor.models.loading import load_network
from equicolor.models.registry import Network
from equicolor.models.tensor_files import WEIGHTS
from equicolor.nn import fold
from equicolor.reporting.tables import Table

COST_COLUMNS = "network", "parameters", "MACs of an image", "time of 8 images"
_REPEATS = 5
_EVERY = 3  # of the 37 shifts, 10 degrees apart, every third is shown
_SUFFIX = ".safetensors"
_SOURCES = (
    f"a checkpoint of equicolor (*{_SUFFIX}), a folder that holds {WEIGHTS}, timm:NAME or "
    "torchvision:NAME"
)
_IN_PYTHON = "use equicolor.convert in Python, and keep the state_dict() of what it returns"


def check_names(source: str | Path, output: Path, data: str | None = None) -> None:
    """Refuse a source, output or dataset that cannot be used, before anything is computed.

    The code of a network in a Python file is not run.
    """
    if output.suffix not in ("", _SUFFIX):
        raise ValueError(f"a checkpoint is written as *{_SUFFIX}, got {output}")
    if output.is_dir():
        raise IsADirectoryError(f"{output} is a folder; name the file to write")
    if ".py" in (Path(source).suffix, Path(str(source).rpartition(":")[0]).suffix):
        raise ConversionError(
            f"the network of {source} could not be built again from a checkpoint, so none can be "
            f"written: {_IN_PYTHON}. This command takes {_SOURCES}"
        )
    refuse_source(source, output)
    if data is not None:
        load_dataset(data, "test")


def refuse_source(source: str | Path, output: Path) -> None:
    """Refuse to replace the network that is read: it would be lost, or judged as its own result."""
    file = checkpoint_file(source)
    if file.exists() and output.exists() and file.samefile(output):
        raise ValueError(f"{output} is the given network itself: write elsewhere with --output")


def convert_source(
    source: str | Path,
    output: Path,
    *,
    pretrained: bool = True,
    size: int | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> list[tuple[str, ...]]:
    """Convert a network by name, write the checkpoint ``output``, and count what it costs.

    Costs are counted at ``size``, by default the network's own, and the checkpoint keeps it. The
    other options are those of :func:`equicolor.convert`. Returns the rows of a table of costs.
    """
    network = load_network(source, pretrained=pretrained)
    converted = convert(network, image_size=size, **options)
    if not isinstance(converted, Network) or not converted.config:
        raise ConversionError(
            f"{source} could not be built again from a checkpoint, so none is written: {_IN_PYTHON}"
        )
    save_model(converted, output)
    name = f"converted: {converted.rotations} hues, {converted.config['lifting']}"
    networks = {"before": network, name: converted}
    with contextlib.suppress(ValueError):  # not every network can be folded
        networks["converted, folded"] = fold(converted)
    return cost_rows(cost_report(networks, converted.image_size, device=device))


def hue_table(
    source: str | Path,
    output: Path,
    data: str,
    *,
    pretrained: bool = True,
    device: torch.device | str = "cpu",
) -> tuple[Table, str]:
    """Accuracy under HSV hue shifts before and after, as a table and in one line.

    ``output`` is the checkpoint that :func:`convert_source` wrote. Both networks see the same
    images, cut as that file says, so that ``equicolor evaluate`` agrees.
    """
    size, resize = choose_preparation(load_model(output), find_dataset(data).kind)
    options: dict[str, Any] = {"actions": ["hsv"], "size": size, "resize": resize, "device": device}
    before = diagnose(source, data, pretrained=pretrained, **options)
    after = diagnose(output, data, split_seed=before.facts["split_seed"], **options)
    columns = ("accuracy in %", "before", "converted")
    return Table(columns, hue_columns(before, after)), headline(before, after, "conversion")


def headline(before: Evaluation, after: Evaluation, change: str) -> str:
    """What a change of a network does to its accuracy, in one line."""
    return (
        f"{before.original:.2f} % before and {after.original:.2f} % after {change} on "
        f"{before.facts['dataset']}; {before.sweeps['hsv'].mean:.2f} % and "
        f"{after.sweeps['hsv'].mean:.2f} % on average over hue shifts"
    )


def hue_columns(before: Evaluation, after: Evaluation) -> list[tuple[str, ...]]:
    """The cells of a table of two networks under hue shifts, a line each."""
    degrees = before.sweeps["hsv"].shifts.mul(360).round().int().tolist()[::_EVERY]
    names = ["original", "mean over hue shifts", *(f"shifted by {angle}°" for angle in degrees)]
    return list(zip(names, _column(before), _column(after), strict=True))


def _column(evaluation: Evaluation) -> list[str]:
    sweep = evaluation.sweeps["hsv"]
    numbers = [evaluation.original, sweep.mean, *sweep.accuracy.tolist()[::_EVERY]]
    return [f"{value:.2f}" for value in numbers]


class NetworkCost(NamedTuple):
    """What one network costs."""

    name: str  # for the table
    parameters: int
    macs: int  # of one image
    milliseconds: float | None  # of a batch, the median of a few; None where it was not timed


def cost_report(
    networks: Mapping[str, nn.Module],
    input_size: int = 224,
    *,
    device: torch.device | str = "cpu",
    batch: int = 8,
    timed: bool = True,
) -> list[NetworkCost]:
    """Count and time networks; they are not changed.

    Args:
        networks: by name, such as ``{"before": model, "after": convert(model)}``.
        input_size: height and width of the images.
        device: where to take the time.
        batch: images at once.
        timed: whether to take the time.

    Returns:
        One entry a network.

    Example:
        >>> from equicolor.conversion import convert
        >>> from equicolor.models import z2cnn
        >>> plain = z2cnn(10)
        >>> before, after = cost_report({"before": plain, "after": convert(plain)}, 28, timed=False)
        >>> before.parameters, after.parameters
        (25570, 32770)
    """
    costs = []
    for name, network in networks.items():
        duration = _milliseconds(network, input_size, device, batch) if timed else None
        costs.append(NetworkCost(name, *cost(network, input_size), duration))
    return costs


def cost_rows(costs: Sequence[NetworkCost]) -> list[tuple[str, ...]]:
    """The cells of a table, each number with its ratio to the first network's.

    Example:
        >>> cost_rows([NetworkCost("a", 2000, 10**9, 1.0), NetworkCost("b", 3000, 10**10, 5.0)])[1]
        ('b', '3,000 (1.50×)', '10.00 G (10.0×)', '5.0 ms (5.0×)')
    """
    first, rows = costs[0], []
    for each in costs:
        macs = f"{each.macs / 1e9:.2f} G" if each.macs >= 1e9 else f"{each.macs / 1e6:.2f} M"
        duration = "–" if each.milliseconds is None else f"{each.milliseconds:.1f} ms"
        cells = [f"{each.parameters:,}", macs, duration]
        if each is not first:
            if first.parameters:
                cells[0] += f" ({each.parameters / first.parameters:.2f}×)"
            if first.macs:
                cells[1] += f" ({each.macs / first.macs:.1f}×)"
            if each.milliseconds is not None and first.milliseconds is not None:
                cells[2] += f" ({each.milliseconds / first.milliseconds:.1f}×)"
        rows.append((each.name, *cells))
    return rows


def _milliseconds(network: nn.Module, size: int, device: torch.device | str, batch: int) -> float:
    network = copy.deepcopy(network).to(device).eval()
    # A network behind an interface has no parameters here.
    dtype = next((p.dtype for p in network.parameters()), torch.get_default_dtype())
    images = torch.rand(batch, 3, size, size, device=device, dtype=dtype)
    times = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        with torch.no_grad():
            network(images)
        if images.is_cuda:
            torch.cuda.synchronize(images.device)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])  # the first call warms up
