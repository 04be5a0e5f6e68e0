"""Networks that a careless fold would fold wrongly: each must come out equal or be refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.ao import quantization
from torch.ao.nn import qat
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, prune

from equicolor.models.export import export
from equicolor.nn import (
    CEBatchNorm2d,
    CEConv2d,
    CELiftConv2d,
    CosetFlatten,
    CosetMaxPool,
    fold,
)
from equicolor.nn.batched import BatchedCELinear, BatchedCosetPool, HueLift


class Clashing(nn.Module):
    """Has modules and buffers with names that fold would give to new ones."""

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


def norm_over_places():
    """A norm over dimension 1 after a linear layer, whose features are in the last one."""
    norm = nn.BatchNorm1d(4)
    nn.init.uniform_(norm.running_var, 0.3, 2)
    hues = HueLift(3), nn.Conv2d(3, 4, 1), nn.Flatten(2)
    return nn.Sequential(*hues, BatchedCELinear(144, 4, rotations=3), norm, BatchedCosetPool(3))


@pytest.mark.parametrize("form", ["dense", "cyclic"])
@pytest.mark.parametrize(
    "make",
    [Clashing, Tied, Augmented, FlattenedInPlace, Keywords, weight_normed, norm_over_places],
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


def mixed(conv=None, norm=None):
    """Equivariant and plain layers, with a batch norm that is folded into a plain convolution."""
    layers = CELiftConv2d(3, 4, 3), nn.ReLU(), CosetMaxPool()
    return nn.Sequential(*layers, conv or nn.Conv2d(4, 4, 3), norm or nn.BatchNorm2d(4))


def hooked(place, register="register_forward_hook"):
    network = nn.Sequential(mixed(), nn.ReLU())
    getattr(network.get_submodule(place), register)(lambda module, *values: None)
    return network


def with_forward(place, method="forward"):
    network = mixed()
    setattr(network.get_submodule(place), method, lambda x, *weights: 3 * x)
    return network


class Called(nn.Sequential):
    def __call__(self, x):
        return 3 * super().__call__(x)


class AlwaysTraining(nn.BatchNorm2d):
    def train(self, mode=True):
        return super().train(True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.Sequential(CELiftConv2d(3, 4, 3), Scaled(4, 4, 3), CosetMaxPool()),
            "fold knows CEConv2d, but '1' is a Scaled with a forward of its own",
        ),
        (Branching, "fold cannot trace Branching: "),
        (lambda: hooked("0.0"), r"fold would drop the hooks of '0.0' \(CELiftConv2d\); remove"),
        (lambda: hooked("0.1"), r"the hooks of '0.1' \(ReLU\)"),
        (lambda: hooked("0.3"), r"the hooks of '0.3' \(Conv2d\)"),
        (lambda: hooked("0.4"), r"the hooks of '0.4' \(BatchNorm2d\)"),
        (lambda: hooked("0"), r"the hooks of '0' \(Sequential\)"),
        (lambda: hooked(""), "the hooks of the Sequential itself"),
        (lambda: hooked("", "register_forward_pre_hook"), "the hooks of the Sequential itself"),
        (lambda: hooked("0.3", "register_full_backward_hook"), "the hooks of '0.3'"),
        (lambda: with_forward("0"), r"the forward that was assigned to '0' \(CELiftConv2d\)"),
        (lambda: with_forward("1"), r"the forward that was assigned to '1' \(ReLU\)"),
        (lambda: with_forward("3"), r"the forward that was assigned to '3' \(Conv2d\)"),
        (
            lambda: with_forward("3", "_conv_forward"),
            r"the _conv_forward that was assigned to '3' \(Conv2d\); write a class with that",
        ),
        (lambda: with_forward(""), "the forward that was assigned to the Sequential itself"),
        (lambda: Called(mixed()), "fold would drop Called.__call__"),
        (
            lambda: mixed(norm=AlwaysTraining(4)),
            r"'4' \(AlwaysTraining\) stays in train mode after Sequential.eval\(\)",
        ),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        fold(make())


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`:FutureWarning")
@pytest.mark.parametrize(
    ("compute", "make_permanent"),
    [
        (
            lambda conv: prune.l1_unstructured(conv, "weight", 0.5),
            lambda c: prune.remove(c, "weight"),
        ),
        (nn.utils.weight_norm, nn.utils.remove_weight_norm),
        (nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
    ],
    ids=["pruned", "weight norm", "spectral norm"],
)
def test_weights_of_hooks_are_refused_until_they_are_permanent(
    compute, make_permanent, tmp_path, relative_error
):
    network = mixed(compute(nn.Conv2d(4, 4, 3))).eval()
    message = r"hooks of '3' \(Conv2d\); remove them first \(torch.nn.utils has prune.remove, "
    with pytest.raises(ValueError, match=message):
        fold(network)
    with pytest.raises(ValueError, match=message):
        export(network, tmp_path / "network.pt2", "exported-program", input_size=12)
    make_permanent(network[3])
    images = torch.rand(2, 3, 12, 12)
    assert relative_error(fold(network)(images), network(images)) <= 1e-5


def test_hooks_of_all_modules_are_refused():
    handle = register_module_forward_hook(lambda module, inputs, output: None)
    with handle, pytest.raises(ValueError, match="fold found hooks for all modules"):
        fold(mixed())


class Bound(nn.Module):
    """Chooses one of its methods for its forward, as some networks of timm do."""

    def __init__(self):
        super().__init__()
        self.body = mixed()
        self.forward = self.twice

    def twice(self, x):
        return 2 * self.body(x)


def test_a_chosen_method_is_traced(relative_error):
    network, images = nn.Sequential(Bound(), nn.ReLU()).eval(), torch.rand(2, 3, 12, 12)
    assert relative_error(fold(network)(images), network(images)) <= 1e-5


def test_convolutions_that_round_their_weight_keep_their_norm(relative_error):
    settings = quantization.get_default_qat_qconfig("fbgemm")
    conv = qat.Conv2d(4, 4, 3, qconfig=settings)
    norm = nn.BatchNorm2d(4)
    nn.init.uniform_(norm.running_var, 0.3, 2)
    nn.init.uniform_(norm.weight, -2, 2)
    network, images = mixed(conv, norm), torch.rand(2, 3, 12, 12)
    network(images)  # lets the convolution see the range of its weight
    network.eval()
    assert relative_error(fold(network)(images), network(images)) <= 1e-5
