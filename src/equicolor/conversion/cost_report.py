"""What a conversion costs: parameters, multiply-accumulates and time, before and after."""

import copy
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from equicolor.models.cost import cost

__all__ = ["NetworkCost", "cost_report", "cost_rows"]

_REPEATS = 5


@dataclass(frozen=True)
class NetworkCost:
    """What one network costs.

    Attributes:
        name: for the table.
        parameters: how many.
        macs: multiply-accumulates of one image.
        milliseconds: of a batch, the median of a few; None where it was not timed.
    """

    name: str
    parameters: int
    macs: int
    milliseconds: float | None


def cost_report(
    networks: dict[str, nn.Module],
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
    found = []
    for name, network in networks.items():
        parameters, macs = cost(network, input_size)
        took = _milliseconds(network, input_size, torch.device(device), batch) if timed else None
        found.append(NetworkCost(name, parameters, macs, took))
    return found


def cost_rows(costs: Sequence[NetworkCost]) -> list[tuple[str, ...]]:
    """The cells of a table, each number with its ratio to the first network's.

    Example:
        >>> cost_rows([NetworkCost("a", 2000, 10**9, 1.0), NetworkCost("b", 3000, 10**10, 5.0)])[1]
        ('b', '3,000 (1.50×)', '10.00 G (10.0×)', '5.0 ms (5.0×)')
    """
    first = costs[0]
    rows = []
    for each in costs:
        cells = [f"{each.parameters:,}", _macs(each.macs), "–"]
        ratios = [f"{each.parameters / first.parameters:.2f}×", f"{each.macs / first.macs:.1f}×"]
        if each.milliseconds is not None and first.milliseconds is not None:
            cells[2] = f"{each.milliseconds:.1f} ms"
            ratios.append(f"{each.milliseconds / first.milliseconds:.1f}×")
        if each is not first:
            cells = [
                *(f"{a} ({b})" for a, b in zip(cells, ratios, strict=False)),
                *cells[len(ratios) :],
            ]
        rows.append((each.name, *cells))
    return rows


def _macs(number: int) -> str:
    return f"{number / 1e9:.2f} G" if number >= 1e9 else f"{number / 1e6:.2f} M"


def _milliseconds(network: nn.Module, size: int, device: torch.device, batch: int) -> float:
    network = copy.deepcopy(network).to(device).eval()
    tensor = next(network.parameters())
    images = torch.rand(batch, 3, size, size, device=device, dtype=tensor.dtype)
    times = []
    with torch.no_grad():
        for _ in range(_REPEATS + 1):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start = time.perf_counter()
            network(images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])  # the first call warms up
