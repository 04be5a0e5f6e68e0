"""Looking into a network while it runs.

A layer is one call of a module: ``layers.0.1.relu`` if it is called once in a pass, and
``layers.0.1.relu#1``, ``layers.0.1.relu#2`` and so on if it is called several times, as the
ReLU of a residual block is.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.evaluation.counting import Asker

__all__ = ["TIMES", "run", "tapped"]

TIMES = "#"


def run(network: nn.Module, images: Tensor, autocast: torch.dtype | None = None) -> Tensor:
    """Show a network images ``[B, 3, H, W]``; returns them in the network's device and dtype."""
    _checks.image_batch(type(network).__name__, images)
    ask = Asker(network, autocast)
    images = images.to(ask.device or images.device, ask.dtype or images.dtype, non_blocking=True)
    context = nullcontext() if autocast is None else torch.autocast(images.device.type, autocast)
    with context:
        network(images)
    return images


@contextmanager
def tapped(
    network: nn.Module, layers: Sequence[str], receive: Callable[[str, Any], None]
) -> Iterator[None]:
    """Call ``receive`` with the name and output of each of some layers, in every pass.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        >>> with tapped(network, ["1"], lambda name, output: print(name, list(output.shape))):
        ...     _ = network(torch.rand(2, 3, 8, 8))
        1 [2, 4, 6, 6]
    """
    counts: Counter[str] = Counter()
    modules = dict(network.named_modules())

    def listen(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            counts[name] += 1
            for layer in (name, f"{name}{TIMES}{counts[name]}"):
                if layer in layers:
                    receive(layer, output)

        return hook

    handles = [network.register_forward_pre_hook(lambda *_: counts.clear())]
    for name in dict.fromkeys(layer.partition(TIMES)[0] for layer in layers):
        handles.append(modules[name].register_forward_hook(listen(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
