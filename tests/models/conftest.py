"""What the tests of the networks share."""

import pytest
import torch
from torch import nn

from equicolor.nn import CEConv2d


@pytest.fixture(scope="session")
def blotches():
    """Images of a few large random colours; averages over pixel noise would all be grey."""

    def make(batch, size, dtype=torch.float32):
        colours = torch.rand(batch, 3, 4, 4, dtype=dtype)
        return nn.functional.interpolate(colours, (size, size), mode="nearest")

    return make


@pytest.fixture(scope="session")
def settle():
    """Give a network the batch statistics of some images and random affine parameters.

    Fresh batch norms are the identity in eval mode, and in a network without fitting ones the
    signal fades from layer to layer until the logits hardly depend on the image.
    """

    def settle(network, images):
        def take_statistics(norm, inputs):
            dims = [dim for dim in range(inputs[0].ndim) if dim != 1]
            var, mean = torch.var_mean(inputs[0], dims)
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(var.clamp(min=0.1 * var.mean()))  # dead channels stay dead

        hooks = []
        for module in network.eval().modules():
            if isinstance(module, CEConv2d) and module.separable:
                # Products of two numbers of the default size are far smaller than either.
                nn.init.uniform_(module.pointwise_weight, -1, 1)
            if isinstance(module, nn.BatchNorm2d):
                if module.affine:
                    nn.init.uniform_(module.weight, 0.5, 1.5)
                    nn.init.uniform_(module.bias, -0.5, 0.5)
                hooks.append(module.register_forward_pre_hook(take_statistics))
        with torch.no_grad():
            network(images)
            for hook in hooks:
                hook.remove()
            logits = network(images)
        assert (logits - logits.mean(0)).norm() > 0.01 * logits.norm(), "the network sees nothing"
        return network

    return settle


@pytest.fixture(scope="session")
def count_parameters():
    """The number of trainable parameters."""
    return lambda network: sum(parameter.numel() for parameter in network.parameters())
