"""Networks that conversion would get wrong are found out by trying, and others are not."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor.color import shift_hue
from equicolor.conversion import ConversionError, convert
from equicolor.conversion.network import as_taken
from equicolor.models import create_model
from equicolor.nn.batched import BatchedCEConv2d, HueLift

HOW = {"normalization": None, "image_size": 16}


def conv(inputs, outputs, **options):
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


class Net(nn.Module):
    """Two convolutions and a classifier; networks below change what happens in between."""

    def __init__(self, channels=4):
        super().__init__()
        self.first, self.second = conv(3, 4), conv(channels, 4)
        self.head = nn.Linear(4, 5)

    def trunk(self, x):
        return F.relu(self.second(F.relu(self.first(x)))).mean((2, 3))

    def forward(self, x):
        return self.head(self.trunk(x))


# --- views and parts of the batch ----------------------------------------------------------------


class Halves(Net):
    def forward(self, x):
        left, right = self.trunk(torch.cat(x.chunk(2, 3))).chunk(2)
        return self.head(left - right)


class Flips(Net):
    def forward(self, x):
        one, other = self.head(self.trunk(torch.cat([x, x.flip(-1)]))).chunk(2)
        return one + other


class MicroBatches(Net):
    def forward(self, x):
        return self.head(torch.cat([self.trunk(part) for part in x.chunk(2)]))


class SequenceFirst(Net):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Linear(4, 4)

    def trunk(self, x):
        tokens = F.relu(self.second(F.relu(self.first(x)))).flatten(2).permute(2, 0, 1)
        return F.relu(self.mlp(tokens)).mean(0)


class DropoutSequenceFirst(SequenceFirst):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Dropout(0.1)


# --- what compares the images of a batch ---------------------------------------------------------


class Neighbours(Net):
    def trunk(self, x):
        x = F.relu(self.first(x))
        return self.second(x + x.roll(1, 0)).mean((2, 3))


class MinibatchStd(Net):
    def __init__(self):
        super().__init__(channels=5)

    def trunk(self, x):
        x = F.relu(self.first(x))
        spread = x.std(0).mean().expand(len(x), 1, *x.shape[2:])
        return F.relu(self.second(torch.cat([x, spread], 1))).mean((2, 3))


class Whitened(Net):
    def trunk(self, x):
        features = super().trunk(x)
        return (features - features.mean(0)) / (features.std(0) + 1e-3)


class PastThePool(Net):
    def forward(self, x):
        features = self.trunk(x)
        return self.head(features) / features.norm()


class Silent(Neighbours):
    """The branch at fault starts at zero, as residual branches do."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(4, 1, 1))

    def trunk(self, x):
        x = F.relu(self.first(x))
        return (self.second(x) + self.gamma * x.roll(1, 0)).mean((2, 3))


class Vanishing(Neighbours):
    """Nothing of the image is left behind many layers that nobody trained."""

    def __init__(self):
        super().__init__()
        self.more = nn.Sequential(*(layer for _ in range(6) for layer in (conv(4, 4), nn.ReLU())))

    def trunk(self, x):
        x = F.relu(self.first(x))
        return self.second(self.more(x + x.roll(1, 0))).mean((2, 3))


# --- right in eval mode alone ---------------------------------------------------------------------


class InTraining(Net):
    """Does something to hidden features in training only."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4, 1, 1))

    def training_only(self, x):
        raise NotImplementedError

    def trunk(self, x):
        x = F.relu(self.first(x))
        return self.second(self.training_only(x) if self.training else x).mean((2, 3))


class NumPyMask(InTraining):
    def training_only(self, x):
        return x * torch.from_numpy(np.random.binomial(1, 0.5, x.shape)).to(x)  # noqa: NPY002


class Mixup(InTraining):
    def training_only(self, x):
        return 0.7 * x + 0.3 * x.flip(0)


class TwoInTraining(InTraining):
    """Takes no other number of images in training."""

    def training_only(self, x):
        return x + x.new_zeros(2, 1, 1, 1)


class MicroBatchesInTraining(MicroBatches):
    def forward(self, x):
        return super().forward(x) if self.training else self.head(self.trunk(x))


class GhostNorm(nn.BatchNorm2d):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        return torch.cat([nn.BatchNorm2d.forward(self, part) for part in x.split(64)])


class GhostNormByView(nn.BatchNorm2d):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        parts = x.view(-1, 16 * x.shape[1], *x.shape[2:])
        return F.batch_norm(parts, None, None, training=True).view(x.shape)


class GhostNormByHand(nn.Module):
    """Normalises parts of a batch in training, with no function for it."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        if not self.training:
            return x
        return torch.cat([part - part.mean() for part in self.parts(x)]).view(x.shape)


class LargeMicroBatches(InTraining):
    def trunk(self, x):
        parts = x.split(64) if self.training else [x]
        return torch.cat([Net.trunk(self, part) for part in parts])


WRONG = [
    (NumPyMask, {}, r"in train mode, once .*, features do not shift .*'second' \(Conv2d\), which"),
    (TwoInTraining, {}, r"and in train mode it fails: "),
    (Mixup, {}, r"in train mode, once its hue filters are trained, features do not shift"),
    (Halves, {}, r"hue k is not .*'second' \(Conv2d\), which gets \[12, 4, 16, 8\]"),
    (Flips, {}, r"hue k is not the original network .*'second' .* gets \[12, 4, 16, 16\]"),
    (MicroBatches, {}, r"does not keep the batch first: for 2 images 'second' sees \[1, 4, 16, 16"),
    (SequenceFirst, {"rotations": 4}, r"batch first: .*'mlp' sees \[256, 2, 4\], .*\[256, 8, 4\]"),
    (SequenceFirst, {"rotations": 3}, r"BatchedCELinear expects a batch of 3 .*'network.mlp'"),
    (DropoutSequenceFirst, {}, r"batch first: .*'mlp' sees .*\(BatchedDropout\) sees \[256, 6, 4"),
    (Neighbours, {}, r"hue k is not the original network .*'second' \(Conv2d\), which gets"),
    (MinibatchStd, {}, r"hue k is not the original network .*'second' \(Conv2d\), which gets"),
    (Whitened, {}, r"hue k is not the original network .*is the pool of the hues \(off by"),
    (PastThePool, {}, r"for grey images it does not give .*what comes after the pool of the hues"),
    (PastThePool, {"coset_pool": None}, r"hue k is not the original network"),
    (PastThePool, {"coset_pool": "confidence"}, r"hue k is not the original network"),
    (Mixup, {"coset_pool": "confidence"}, r"in train mode, once .*, features do not shift"),
    (Silent, {}, r"hue k is not the original network"),
    (Vanishing, {}, r"hue k is not the original network .*'more.0' \(Conv2d\)"),
    (Neighbours, {"until": "second"}, r"hue k is not the original network .*'second'"),
    (Neighbours, {"lifting": "rgb", "init": "random"}, r"hue k is not the original network"),
    (Neighbours, {"init": "random", "match_parameters": True}, r"hue k is not the original"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "message"), WRONG)
def test_wrong_networks_are_refused(make, options, message):
    with pytest.raises(ConversionError, match=rf"{make.__name__} .*{message}.*What works: "):
        convert(make(), **{"rotations": 3, **HOW, **options})


def test_images_are_normalised_on_their_own_device():
    """On a GPU, the trial of networks that take normalised images failed, and was left out."""
    lift = HueLift(3, mean=(0.5,), std=(0.5,), takes="normalized")
    assert as_taken(lift, torch.empty(2, 3, 4, 4, device="meta")).is_meta


def test_numbers_can_be_left_out():
    assert isinstance(convert(Halves(), 3, verify=False, **HOW).network.second, BatchedCEConv2d)
    with pytest.raises(ConversionError, match="does not keep the batch first"):
        convert(SequenceFirst(), 4, verify=False, **HOW)


# --- right ones, however unusual -----------------------------------------------------------------


class Interleaved(Net):
    def forward(self, x):
        views = torch.stack([x, x.flip(-1)], 1).flatten(0, 1)
        return self.head(self.trunk(views).unflatten(0, (-1, 2)).mean(1))


class Pixels(Net):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Linear(4, 4)

    def trunk(self, x):
        x = self.second(F.relu(self.first(x)))
        rows = F.relu(self.mlp(x.permute(0, 2, 3, 1).reshape(-1, 4)))
        return rows.view(len(x), -1, 4).mean(1)


class Compared(Net):
    """Compares images, but behind the network."""

    def forward(self, x):
        logits = super().forward(x)
        return logits @ logits.T


class Decision(InTraining):
    """Draws numbers for the whole batch."""

    def training_only(self, x):
        return x * (2 if random.random() < 0.5 else 3) + np.random.rand()  # noqa: NPY002


class OwnNorm(InTraining):
    """Compares all images in training, as batch norms do, and remembers."""

    def training_only(self, x):
        self.mean += x.mean((0, 2, 3)).view(-1, 1, 1)
        return (x - self.mean) / x.std((0, 2, 3), keepdim=True)


class MoreInTraining(Net):
    """Wants more than images in training."""

    def forward(self, x, targets=None):
        if self.training:
            assert len(targets) == len(x)
        return super().forward(x)


class Colourless(Net):
    def forward(self, x):
        return super().forward(x.mean(1, keepdim=True).expand(-1, 3, -1, -1))


class GeneralizedMean(Net):
    def __init__(self):
        super().__init__()
        self.p, self.shares = nn.Parameter(torch.full((1,), 3.0)), nn.Parameter(torch.ones(2))

    def trunk(self, x):
        x = F.relu(self.second(F.relu(self.first(x)))) + 1e-6
        low, high = x.pow(self.p).mean((2, 3)).pow(1 / self.p), x.amax((2, 3))
        return self.shares[0] * low + self.shares[1] * high


class OwnTensors(Net):
    """Makes a tensor without asking for a device or a dtype."""

    def trunk(self, x):
        grid = F.affine_grid(torch.eye(2, 3).repeat(len(x), 1, 1), list(x.shape), False)
        return super().trunk(F.grid_sample(x, grid, align_corners=False))


class DropPath(nn.Module):
    """Stochastic depth, as in timm."""

    drop_prob, scale_by_keep = 0.1, True

    def forward(self, x):
        return x * x.new_empty((len(x), 1, 1, 1)).bernoulli_(0.9) / 0.9 if self.training else x


class ByKeyword(Net):
    def __init__(self):
        super().__init__()
        self.path = DropPath()

    def trunk(self, x):
        x = self.first(x)
        return (x + self.path(x=self.second(x))).mean((2, 3))


class OneSize(Net):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4 * 256, 5)

    def forward(self, x):
        return self.head(F.relu(self.second(F.relu(self.first(x)))).flatten(1))


class NoTensors(Net):
    def forward(self, x):
        return [f"{value:.3f}" for value in super().forward(x).flatten().tolist()]


@pytest.mark.parametrize(
    "make",
    [
        *(Interleaved, Pixels, Compared, Colourless, GeneralizedMean, OwnTensors, OneSize),
        *(NoTensors, Decision, OwnNorm, MoreInTraining, ByKeyword),
    ],
)
@pytest.mark.parametrize("lifting", ["hsv", "rgb"])
def test_right_networks_convert(make, lifting):
    torch.manual_seed(1)
    network = convert(make(), 4, lifting, **HOW)
    assert isinstance(network.network.second, BatchedCEConv2d)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_rounding_of_deep_networks_is_no_fault(seed):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 16, 16), nn.ReLU()]
    for _ in range(30):
        layers += [nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    convert(nn.Sequential(*layers), 3, **HOW)


@pytest.mark.slow
def test_rounding_in_train_mode_is_no_fault():
    # Norms of few images enlarge rounding errors most where there is no colour.
    network = create_model("resnet44", gray=True, num_classes=3, width=4)
    convert(network, 3, image_size=32)


def test_behind_the_equivariant_part_anything_goes():
    convert(nn.Sequential(conv(3, 4), conv(4, 4), Whiten(), nn.Linear(4, 3)), 3, until="1", **HOW)
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    convert(nn.Sequential(conv(3, 4), conv(4, 4), norm), 3, until="1", **HOW)


class Whiten(nn.Module):
    def forward(self, x):
        x = x.mean((2, 3))
        return x / (x.std(0) + 1)


def test_trying_changes_nothing():
    torch.manual_seed(3)
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), conv(4, 4), nn.Dropout(0.5)).train()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    network = convert(model, 3, **HOW)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert network.training
    assert network.network[2].is_identity()
    assert torch.equal(network.network[1].running_var, torch.ones(4))


def test_trying_leaves_the_random_numbers_of_others():
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = random.random(), np.random.rand()  # noqa: NPY002
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    convert(Decision(), 3, **HOW)
    assert (random.random(), np.random.rand()) == expected  # noqa: NPY002


# --- refused by name, with advice that works -----------------------------------------------------


class FunctionalDropout(Net):
    def trunk(self, x):
        return F.dropout(super().trunk(x), 0.5) if self.training else super().trunk(x)


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x) if self.training else x


class Noisy(Net):
    def __init__(self):
        super().__init__()
        self.noise = Noise()

    def trunk(self, x):
        return self.noise(super().trunk(x))


class Gated(Net):
    def trunk(self, x):
        features = super().trunk(x)
        gate = torch.bernoulli(torch.full_like(features, 0.5)) if self.training else 1
        return features * gate


class NoisyLogits(Net):
    def forward(self, x):
        logits = super().forward(x)
        return logits + torch.randn_like(logits) if self.training else logits


class Auxiliary(Net):
    def __init__(self):
        super().__init__()
        self.aux = nn.Linear(4, 5)

    def forward(self, x):
        features = self.trunk(x)
        logits = self.head(features)
        return (logits, self.aux(features)) if self.training else logits


class Cosine(Net):
    def forward(self, x):
        return F.linear(F.normalize(self.trunk(x)), F.normalize(self.head.weight))


class TwoInputs(Net):
    def forward(self, x, mask, scale=1.0):
        return super().forward(x * mask) * scale


def _scripted():
    return torch.jit.trace(Net(), torch.rand(2, 3, 16, 16))


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (FunctionalDropout, r"itself\): FunctionalDropout: its code calls a dropout function"),
        (Noisy, r"  noise: Noise: its code draws random numbers \(randn_like\), which would"),
        (Gated, r"itself\): Gated: its code draws random numbers \(bernoulli\)"),
        (
            lambda: nn.Sequential(conv(3, 4), GhostNorm(4), conv(4, 4)),
            r"  1: GhostNorm: in training it gets parts of a batch, \[64, 4, 16, 16\] of 480",
        ),
        (
            lambda: nn.Sequential(conv(3, 4), GhostNormByView(4), conv(4, 4)),
            r"  1: GhostNormByView: in training it gets parts of a batch, \[30, 64, 16, 16\]",
        ),
        *(
            (
                lambda parts=parts: nn.Sequential(conv(3, 4), GhostNormByHand(parts), conv(4, 4)),
                rf"  1: GhostNormByHand: in training it gets parts of a batch, \[{size}, 4, 16",
            )
            for parts, size in [
                (lambda x: x.split(16), 16),
                (lambda x: torch.split(x, 16, dim=-4), 16),
                (lambda x: x.chunk(30), 16),
                (lambda x: torch.tensor_split(x, max(1, len(x) // 16)), 16),
                (lambda x: (torch.stack(x.unbind()[k : k + 16]) for k in range(0, len(x), 16)), 1),
            ]
        ),
        (MicroBatchesInTraining, r"  second: Conv2d: in training it gets parts of a batch, \[240"),
        (LargeMicroBatches, r"  second: Conv2d: in training it gets parts of a batch, \[64"),
        (Auxiliary, r"  aux: Linear: .*eval mode, only in training.*\n.*aux_logits=False"),
        (Cosine, r"  head: Linear: .*not called in eval mode: .*\n.*reads their weights, let it"),
        (TwoInputs, r"takes more than one input \(x, mask\).*wrap it in a module"),
        (_scripted, "was made by torch.jit.*convert the torch.nn.Module it was made from"),
        (lambda: torch.relu, "a torch.nn.Module is needed, got builtin_function_or_method"),
        (
            lambda: nn.Sequential(conv(3, 4), nn.BatchNorm2d(4, track_running_stats=False)),
            r"1: BatchNorm2d: it has no running statistics.*a batch norm that keeps them works",
        ),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 5)),
            r"has no convolution to convert\nWhat works: a network.*with an nn.Conv2d",
        ),
    ],
)
def test_refusals_say_what_works(make, message):
    with pytest.raises(ConversionError, match=message):
        convert(make(), 3, **HOW)


def test_the_advice_works():
    network = Auxiliary()
    network.aux = nn.Identity()
    convert(network, 3, **HOW)
    convert(NoisyLogits(), 3, **HOW)  # behind the pool
    images = torch.rand(2, 3, 16, 16)
    torch.manual_seed(0)
    drops = nn.Sequential(conv(3, 4), conv(4, 4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(1024, 3))
    network = convert(drops, 3, **HOW).train()
    both = []
    for x in (images, shift_hue(images, 1 / 3)):
        torch.manual_seed(0)
        both.append(network(x))
    torch.testing.assert_close(*both)
