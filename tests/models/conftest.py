"""What the tests of the networks share."""

import pytest
import torch
from torch import nn


@pytest.fixture(scope="session")
def blotches():
    """Images of a few large random colours; averages over pixel noise would all be grey."""

    def make(batch, size, dtype=torch.float32):
        colours = torch.rand(batch, 3, 4, 4, dtype=dtype)
        return nn.functional.interpolate(colours, (size, size), mode="nearest")

    return make


@pytest.fixture(scope="session")
def shallow():
    """A ResNet with each kind of block once: exporters take as long as there are blocks."""

    def cut(network):
        for stage, blocks in enumerate(network.layers):
            del blocks[1 if stage else 2 :]
        return network

    return cut


@pytest.fixture(scope="session")
def count_parameters():
    """The number of trainable parameters."""
    return lambda network: sum(parameter.numel() for parameter in network.parameters())
