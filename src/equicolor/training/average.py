"""An exponential average of a network's weights while it trains."""

import copy

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

__all__ = ["WeightAverage"]


class WeightAverage(nn.Module):
    """A copy of a network whose weights follow the network's slowly.

    After step t the decay is ``min(decay, (1 + t) / (10 + t))``, so that the random weights of
    the beginning are soon forgotten. Running statistics of batch norms are averaged too.
    torch's ``AveragedModel`` asks the device for its count in every step, which would make a GPU
    wait.

    Args:
        network: what to follow.
        decay: how much of the average stays from step to step, in (0, 1).

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(layer.weight)
        >>> average = WeightAverage(layer, 0.9)
        >>> _ = nn.init.ones_(layer.weight)
        >>> average.update(layer, step=1)
        >>> round(average.network.weight.item(), 4)  # 1 − 2/11
        0.8182
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__()
        if not 0 < decay < 1:
            raise ValueError(f"decay must lie in (0, 1), got {decay}")
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Move towards the network's weights after a step of the optimizer, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        pairs = list(zip(_tensors(self.network), _tensors(network), strict=True))
        floats = [pair for pair in pairs if pair[0].is_floating_point()]
        averages, values = map(list, zip(*floats, strict=True))
        get_ema_multi_avg_fn(decay)(averages, values, 0)
        for average, value in pairs:
            if not average.is_floating_point():  # a counter
                average.copy_(value)


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]
