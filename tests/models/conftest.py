"""What the tests of the networks share."""

import pytest
from torch import nn


@pytest.fixture(scope="session")
def randomize_norms():
    """Give batch norms statistics as training would; fresh ones are the identity in eval mode."""

    def randomize(network):
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 1.5)
        return network.eval()

    return randomize


@pytest.fixture(scope="session")
def count_parameters():
    """The number of trainable parameters."""
    return lambda network: sum(parameter.numel() for parameter in network.parameters())
