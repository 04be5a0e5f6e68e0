"""An exponential average of a network's weights while it trains."""

import copy

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class WeightAverage(nn.Module):
    """A copy of a network whose weights follow the network's slowly.

    After step t the decay is ``min(decay, (1 + t) / (10 + t))``, so that the random initial
    weights are soon forgotten. Running statistics of batch norms are averaged, too. torch's
    ``AveragedModel`` reads a counter from the device in every step, which makes a GPU wait.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__()
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
