"""Listening to the layers of a network while it runs.

A layer is one call of a module: ``layers.0.1.relu`` if it is called once in a pass, and
``layers.0.1.relu#1``, ``layers.0.1.relu#2`` and so on if it is called several times, as the
ReLU of a residual block is.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.evaluation.runner import Runner, evaluating

TIMES = "#"


@contextmanager
def tapped(
    network: nn.Module, layers: Collection[str], receive: Callable[[str, Any], None]
) -> Iterator[None]:
    """Call ``receive`` with the name and output of each of some layers, in every pass."""
    counts: Counter[str] = Counter()

    def listen(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            counts[name] += 1
            for layer in (name, f"{name}{TIMES}{counts[name]}"):
                if layer in layers:
                    receive(layer, output)

        return hook

    handles = [network.register_forward_pre_hook(lambda *_: counts.clear())]
    for name in dict.fromkeys(layer.partition(TIMES)[0] for layer in layers):
        handles.append(network.get_submodule(name).register_forward_hook(listen(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_tapped(
    network: nn.Module,
    images: Tensor,
    layers: Collection[str],
    receive: Callable[[str, Any], None],
    autocast: torch.dtype | None = None,
) -> None:
    """Run a network in eval mode on images ``[B, 3, H, W]``, and listen as :func:`tapped`."""
    _checks.image_batch(type(network).__name__, images)
    with evaluating(network), tapped(network, layers, receive):
        Runner(network, autocast).run(images)
