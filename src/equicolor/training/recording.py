"""Networks recorded for training on a GPU, compiled before where that pays."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from equicolor.nn import CEConv2d, CELiftConv2d, capture

# Compiling a ResNet takes half a minute or more, and saves milliseconds of a step.
COMPILED_STEPS = 10_000


def record(
    network: nn.Module, images: Tensor, dtype: torch.dtype | None, steps: int
) -> Callable[[Tensor], Tensor]:
    """A network recorded as CUDA graphs for a training of so many steps.

    A plain network is compiled before if the training is long. Equivariant ones have kernels of
    their own, which a compiler does not see through. ``images`` are the first batch; batches of
    another shape run neither recorded nor compiled.
    """
    equivariant = any(isinstance(one, CEConv2d | CELiftConv2d) for one in network.modules())
    if equivariant or steps < COMPILED_STEPS:
        return capture(network, images, dtype)
    compiled: Any = torch.compile(network, dynamic=False)
    recorded, shape = capture(compiled, images, dtype), images.shape

    def call(images: Tensor) -> Tensor:
        return (recorded if images.shape == shape and network.training else network)(images)

    return call
