"""Make your own network colour-equivariant by swapping its layers.

The first convolution lifts the image to features over the hues, the others map such features to
each other, and pooling over the hues ends the equivariant part. Activations do not change.

    python examples/swap_layers.py
"""

import torch
from torch import nn

from equicolor.nn import CEBatchNorm2d, CEConv2d, CELiftConv2d, CEMaxPool2d, CosetMaxPool
from equicolor.testing import equivariance_error

HUES = 6


def plain() -> nn.Sequential:
    """An ordinary network."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def equivariant() -> nn.Sequential:
    """The same network, line by line."""
    return nn.Sequential(
        CELiftConv2d(3, 16, 3, padding=1, rotations=HUES, lifting="hsv"),
        CEBatchNorm2d(16),
        nn.ReLU(),
        CEMaxPool2d(2),
        CEConv2d(16, 32, 3, padding=1, rotations=HUES),
        nn.ReLU(),
        CosetMaxPool(),  # removes the dimension of the hues
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    images = torch.rand(8, 3, 32, 32)
    for name, network in {"plain": plain(), "equivariant": equivariant()}.items():
        error = equivariance_error(network.eval(), images, rotations=HUES, action="hsv")
        print(f"{name}: hue shifts by multiples of {360 // HUES}° change the logits by {error:.1e}")
