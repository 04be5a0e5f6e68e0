"""Networks that a careless fold would fold wrongly: each must come out equal or be refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from equicolor.nn import (
    CEBatchNorm2d,
    CEConv2d,
    CELiftConv2d,
    CosetFlatten,
    CosetMaxPool,
    fold,
)


class Clashing(nn.Module):
    """Has names that the fold would like to give to what it adds."""

    def __init__(self):
        super().__init__()
        self.lift = CELiftConv2d(3, 4, 3, rotations=4, lifting="hsv")
        self.lift_conv = nn.Conv2d(4, 4, 3)
        self.pool = CosetMaxPool()
        self.register_buffer("lift_turns", torch.ones(7))

    def forward(self, x):
        return self.lift_conv(self.pool(self.lift(x))) + self.lift_turns.sum()


class Tied(nn.Module):
    """Reads the weight of a convolution whose batch norm could be folded into it."""

    def __init__(self):
        super().__init__()
        self.lift, self.pool = CELiftConv2d(3, 4, 3), CosetMaxPool()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        nn.init.uniform_(self.norm.running_var, 0.3, 2)

    def forward(self, x):
        hidden = self.norm(self.conv(self.pool(self.lift(x))))
        return F.conv_transpose2d(hidden, self.conv.weight, padding=1)


class Augmented(nn.Module):
    """Changes features in place under another name."""

    def __init__(self):
        super().__init__()
        self.lift, self.pool = CELiftConv2d(3, 4, 3), CosetMaxPool()

    def forward(self, x):
        hidden = self.lift(x)
        alias = hidden
        alias += 1.0
        alias *= 2.0
        return self.pool(hidden)


class FlattenedInPlace(nn.Module):
    """Changes flattened features in place and uses the features again."""

    def __init__(self):
        super().__init__()
        self.lift, self.pool, self.flat = CELiftConv2d(3, 4, 3), CosetMaxPool(), CosetFlatten()

    def forward(self, x):
        hidden = self.lift(x)
        return F.relu(self.flat(hidden), inplace=True).mean(1, keepdim=True) + self.pool(hidden)


class Keywords(nn.Module):
    """Calls layers by keyword, clamps and divides."""

    def __init__(self):
        super().__init__()
        self.lift, self.norm, self.pool = CELiftConv2d(3, 4, 3), CEBatchNorm2d(4), CosetMaxPool()
        nn.init.uniform_(self.norm.running_var, 0.3, 2)

    def forward(self, x):
        return self.pool(x=torch.clamp(self.norm(x=self.lift(images=x)), -0.5, 0.5) / 2)


def weight_normed():
    norm = CEBatchNorm2d(4)
    nn.init.uniform_(norm.running_var, 0.3, 2)
    return nn.Sequential(parametrizations.weight_norm(CELiftConv2d(3, 4, 3)), norm, CosetMaxPool())


@pytest.mark.parametrize("form", ["dense", "cyclic"])
@pytest.mark.parametrize(
    "make", [Clashing, Tied, Augmented, FlattenedInPlace, Keywords, weight_normed]
)
def test_folds_equal(make, form, relative_error):
    network = make().eval()
    images = torch.rand(3, 3, 12, 12)
    with torch.no_grad():
        expected = network(images)
        assert relative_error(fold(network, form)(images), expected) <= 1e-5
        # Folding works on a copy, parametrizations included.
        assert torch.equal(network(images), expected)


class Scaled(CEConv2d):
    def forward(self, x):
        return 2 * super().forward(x)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def hooked():
    network = nn.Sequential(CELiftConv2d(3, 4, 3), CEConv2d(4, 4, 3), CosetMaxPool())
    network[1].register_forward_hook(lambda module, inputs, output: 3 * output)
    return network


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.Sequential(CELiftConv2d(3, 4, 3), Scaled(4, 4, 3), CosetMaxPool()),
            "fold knows CEConv2d, but '1' is a Scaled with a forward of its own",
        ),
        (hooked, "fold would drop the forward hooks of '1'"),
        (Branching, "fold cannot trace Branching: "),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        fold(make())
