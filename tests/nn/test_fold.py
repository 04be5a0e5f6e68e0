"""Folded networks compute the same with nothing but torch's own modules."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from equicolor.models import cecnn, resnet18, resnet44, resnet50, z2cnn
from equicolor.models.resnet import ResNet
from equicolor.nn import (
    CEAdaptiveAvgPool2d,
    CEAvgPool2d,
    CEBatchNorm2d,
    CEConv2d,
    CEDropout2d,
    CELiftConv2d,
    CEMaxPool2d,
    CosetAvgPool,
    CosetFlatten,
    CosetMaxPool,
    fold,
)
from equicolor.nn.batched import BatchedCosetPool, HueLift

FORMS = ("dense", "cyclic")
each_form = pytest.mark.parametrize("form", FORMS)

NETWORKS = {
    "z2cnn": lambda: z2cnn(5, width=3),
    "cecnn": lambda: cecnn(5, width=3),
    "cecnn hsv max": lambda: cecnn(5, width=3, rotations=4, lifting="hsv", coset_pool="max"),
    "cecnn hybrid avg": lambda: cecnn(5, width=3, rotations=5, ce_layers=3, coset_pool="avg"),
    "resnet18": lambda: resnet18(5, width=3),
    "resnet18 n=3": lambda: resnet18(5, rotations=3, width=3),
    "resnet18 n=3 hsv": lambda: resnet18(5, rotations=3, width=3, lifting="hsv"),
    "resnet18 hsv avg": lambda: resnet18(5, rotations=4, lifting="hsv", coset_pool="avg", width=3),
    "resnet18 hybrid": lambda: resnet18(5, rotations=3, ce_stages=2, width=3),
    "resnet18 full filters": lambda: resnet18(5, rotations=3, separable=False, width=3),
    "resnet44 flat": lambda: resnet44(5, rotations=3, coset_pool=None, width=2),
    "resnet44 hsv, not normalised": lambda: resnet44(
        5, rotations=6, lifting="hsv", width=2, normalize=False
    ),
    "resnet50": lambda: resnet50(5, rotations=3, ce_stages=3, width=2),
}


@pytest.fixture
def check(settle, relative_error):
    """Fold a network on images ``[4, 3, size, size]``, compare, and return the folded one."""

    def check(network, form="auto", *, size=16, dtype=torch.float32, bound=1e-5):
        images = F.interpolate(torch.rand(4, 3, 4, 4, dtype=dtype), (size, size))
        network = settle(network.to(dtype), images, sees=1e-3)
        folded = fold(network, form)
        assert isinstance(folded, fx.GraphModule)
        assert not folded.training
        with torch.no_grad():
            assert relative_error(folded(images), network(images)) <= bound
            # Another batch size: nothing of the example may be baked in.
            assert relative_error(folded(images[:1]), network(images[:1])) <= bound
        assert_plain(folded)
        return folded

    return check


def assert_plain(folded):
    """Nothing of this package is left, in modules or in functions."""
    for module in folded.modules():
        assert not type(module).__module__.startswith("equicolor"), type(module)
    for node in folded.graph.nodes:
        if node.op == "call_function":
            assert not node.target.__module__.startswith("equicolor"), node


def count(folded, kind):
    return sum(isinstance(module, kind) for module in folded.modules())


class Head(nn.Module):
    """Whatever comes after the equivariant part."""

    def __init__(self, features, pool=None, *, channels):
        super().__init__()
        self.features, self.pool = features, pool or CosetMaxPool()
        self.linear = nn.Linear(channels, 5)

    def forward(self, images):
        return self.linear(self.pool(self.features(images)).mean((2, 3)))


@each_form
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, form, check):
    sizes = {"cnn": 28, "resnet18": 48, "resnet44": 16, "resnet50": 64}
    size = next(size for kind, size in sizes.items() if kind in name)
    network = NETWORKS[name]()
    if isinstance(network, ResNet):  # each kind of block once, and the first stage one after it
        for stage, blocks in enumerate(network.layers):
            del blocks[1 if stage else 2 :]
    folded = check(network, form, size=size, bound=1e-4)
    assert count(folded, nn.BatchNorm2d) == 0


@pytest.mark.parametrize("form", ["auto", *FORMS])
def test_float64(form, check):
    check(cecnn(5, width=3, rotations=4), form, size=28, dtype=torch.float64, bound=1e-12)


def test_the_dense_form_is_one_convolution_a_layer(check):
    folded = check(cecnn(5, width=3), "dense", size=28)
    assert count(folded, nn.Conv2d) == 7
    assert folded.get_submodule("blocks.1.0_conv").weight.shape == (9, 9, 3, 3)
    assert not any(node.target == "permute" for node in folded.graph.nodes)


def test_the_cyclic_form_is_one_convolution_a_product(check):
    folded = check(cecnn(5, width=3, rotations=6), "cyclic", size=28)
    assert count(folded, nn.Conv2d) == 1 + 6 * 8
    assert folded.get_submodule("blocks.1.0_product0").weight.shape == (3, 3, 3, 3)


@pytest.mark.parametrize(("rotations", "dense"), [(2, True), (3, True), (6, False), (12, False)])
def test_auto_is_dense_for_few_rotations(rotations, dense):
    folded = fold(cecnn(5, width=2, rotations=rotations))
    assert (count(folded, nn.Conv2d) == 7) is dense


@torch.no_grad()
def test_auto_stays_in_the_range_of_float16(relative_error):
    lift, conv = CELiftConv2d(3, 4, 3, rotations=12), CEConv2d(4, 4, 3, rotations=12)
    for layer, scale in (lift, 3000), (conv, 0.01):
        layer.weight.abs_().mul_(scale)  # features of some thousands; their sums overflow
    network = nn.Sequential(lift, nn.ReLU(), conv, CosetMaxPool()).half()
    images = torch.rand(2, 3, 9, 9).half()
    actual = fold(network)(images).double()
    assert relative_error(actual, network.double()(images.double())) <= 2e-2


def test_the_original_is_unchanged(settle):
    network = cecnn(5, width=3).train()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    fold(network)
    assert network.training
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert network.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_training_the_original_does_not_change_the_copy(check):
    network = cecnn(5, width=3)
    folded = check(network, size=28)
    images = torch.rand(2, 3, 28, 28)
    before = folded(images)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    assert torch.equal(folded(images), before)
    assert not any(parameter.requires_grad for parameter in folded.parameters())


# Layers


@each_form
@pytest.mark.parametrize(
    "options",
    [
        {"groups": 2},
        {"groups": 4, "bias": False},
        {"dilation": 2, "padding": 2},
        {"stride": 2, "padding": 1},
        {"stride": (1, 2), "padding": (0, 1)},
        {"padding": "same", "dilation": (1, 2)},
        {"padding": "valid"},
        {"padding": 1, "padding_mode": "circular"},
        {"padding": (1, 2), "padding_mode": "reflect"},
        {"padding": "same", "padding_mode": "replicate"},
        {"separable": False, "groups": 2, "padding": 1},
    ],
    ids=str,
)
def test_hidden_layers(options, form, check):
    features = nn.Sequential(
        CELiftConv2d(3, 4, 3, rotations=4),
        nn.ReLU(),
        CEConv2d(4, 8, 3, rotations=4, **options),
        CEBatchNorm2d(8),
        nn.ReLU(),
    )
    folded = check(Head(features, channels=8), form)
    assert count(folded, nn.BatchNorm2d) == 0


@each_form
@pytest.mark.parametrize("lifting", ["rgb", "hsv"])
@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 3, "bias": False},
        {"dilation": 2, "padding": 1, "padding_mode": "circular"},
        {"padding": "same", "padding_mode": "reflect"},
    ],
    ids=str,
)
def test_lifting_layers(options, lifting, form, check):
    lift = CELiftConv2d(3, 4, 3, rotations=5, lifting=lifting, **options)
    check(Head(nn.Sequential(lift, CEBatchNorm2d(4), nn.ReLU()), channels=4), form)


COLORS = [(0, 0, 0), (1, 1, 1), (0.3, 0.3, 0.3), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)]


@each_form
@pytest.mark.parametrize("rotations", [1, 3])
def test_shifts_by_thirds_of_a_turn_go_into_the_filters(rotations, form, relative_error):
    images = torch.rand(2, 3, 9, 8, dtype=torch.float64) * 2 - 0.5
    images[0, :, 0, : len(COLORS)] = torch.tensor(COLORS, dtype=torch.float64).T
    lift = CELiftConv2d(3, 4, 3, rotations=rotations, lifting="hsv").double()
    network = nn.Sequential(lift, CosetFlatten())
    folded = fold(network, form)
    assert count(folded, nn.Conv2d) == 1
    assert folded.get_submodule("0_conv").weight.shape == (4 * rotations, 3, 3, 3)
    assert not any("amax" in str(node.target) for node in folded.graph.nodes)
    with torch.no_grad():
        assert relative_error(folded(images), network(images)) < 1e-13


@pytest.mark.parametrize(
    ("form", "lifting", "shape"),
    [
        ("dense", "rgb", (16, 3, 3, 3)),
        ("cyclic", "rgb", (16, 3, 3, 3)),
        ("dense", "hsv", (16, 12, 3, 3)),  # every hue and its own filters
        ("cyclic", "hsv", (4, 3, 3, 3)),  # all hues in the batch
    ],
)
def test_lifting_is_one_convolution(form, lifting, shape, check):
    lift = CELiftConv2d(3, 4, 3, rotations=4, lifting=lifting)
    folded = check(Head(lift, channels=4), form, dtype=torch.float64, bound=1e-12)
    assert count(folded, nn.Conv2d) == 1
    assert folded.get_submodule("features_conv").weight.shape == shape


class Layouts(fx.Interpreter):
    """Runs a network; the convolutions whose input is not in channels_last memory."""

    def __init__(self, module):
        super().__init__(module)
        self.copied = []

    def call_module(self, target, args, kwargs):
        if isinstance(self.fetch_attr(target), nn.Conv2d) and not args[0].is_contiguous(
            memory_format=torch.channels_last
        ):
            self.copied.append(target)
        return super().call_module(target, args, kwargs)


@each_form
@pytest.mark.parametrize("lifting", ["rgb", "hsv"])
def test_channels_last_stays(lifting, form):
    network = cecnn(5, width=3, rotations=4, lifting=lifting)
    folded = fold(network, form).to(memory_format=torch.channels_last)
    images = torch.rand(2, 3, 28, 28).to(memory_format=torch.channels_last)
    layouts = Layouts(folded)
    layouts.run(images)
    # Hues are stacked beside the colours: a copy of the images, not of the features.
    expected = ["blocks.0.0_conv"] if (form, lifting) == ("dense", "hsv") else []
    assert layouts.copied == expected


@pytest.mark.parametrize(("rotations", "lifting"), [(6, "hsv"), (7, "hsv"), (12, "rgb")])
def test_half_precision_networks_mix_as_exactly_as_the_layers(rotations, lifting):
    network = nn.Sequential(
        CELiftConv2d(3, 16, 3, rotations=rotations, lifting=lifting, bias=False),
        nn.ReLU(),
        CEConv2d(16, 16, 3, rotations=rotations, algorithm="cyclic", bias=False),
        CosetFlatten(),
    ).bfloat16()
    images = torch.rand(4, 3, 12, 12).bfloat16()
    exact = copy.deepcopy(network).double()(images.double())
    error = (network(images) - exact).norm()
    assert (fold(network, "cyclic")(images) - exact).norm() < 1.1 * error


@each_form
@pytest.mark.parametrize("takes", ["images", "normalized"])
def test_half_precision_networks_normalise_the_hues(takes, form):
    lift = HueLift(4, mean=[0.5] * 3, std=[0.25] * 3, takes=takes)
    network = nn.Sequential(lift, nn.Conv2d(3, 4, 3), BatchedCosetPool(4)).eval().bfloat16()
    images = torch.rand(2, 3, 6, 6).bfloat16()
    folded = fold(network, form)(images)
    torch.testing.assert_close(folded, network(images), rtol=0.02, atol=0.02)


@each_form
@pytest.mark.parametrize("lifting", ["rgb", "hsv"])
def test_autocast_does_not_round_the_folded_weights(lifting, form):
    network = cecnn(5, width=3, lifting=lifting)
    expected = fold(network, form).state_dict()
    with torch.autocast("cpu", torch.bfloat16):
        actual = fold(network, form).state_dict()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_autocast_mixes_as_exactly_as_the_layers(relative_error):
    network = resnet18(5, rotations=12, width=8).cuda().eval()
    images = torch.rand(8, 3, 64, 64, device="cuda")
    exact = copy.deepcopy(network).double()(images.double())
    folded = fold(network, "cyclic")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        error = relative_error(network(images), exact)
        assert relative_error(folded(images), exact) < 1.5 * error


@each_form
def test_learnable_lifting(form, check):
    lift = CELiftConv2d(3, 4, 3, rotations=4, learnable=True)
    with torch.no_grad():
        lift.transformation_matrix.add_(0.2 * torch.randn(3, 3))
    features = nn.Sequential(lift, CEBatchNorm2d(4), nn.ReLU(), CEConv2d(4, 4, 3, rotations=4))
    check(Head(features, channels=4), form)


@each_form
@pytest.mark.parametrize(
    "pool",
    [
        CEMaxPool2d(3, 2, padding=1),
        CEAvgPool2d(2, count_include_pad=False),
        CEAdaptiveAvgPool2d(3),
        CEAdaptiveAvgPool2d((2, None)),
    ],
    ids=str,
)
def test_spatial_pooling(pool, form, check):
    features = nn.Sequential(CELiftConv2d(3, 4, 3), nn.ReLU(), pool, CEConv2d(4, 4, 1))
    check(Head(features, channels=4), form)


@each_form
@pytest.mark.parametrize(
    ("pool", "channels"), [(CosetMaxPool(), 4), (CosetAvgPool(), 4), (CosetFlatten(), 16)]
)
@pytest.mark.parametrize("lifting", ["rgb", "hsv"])
def test_coset_pooling(pool, channels, lifting, form, check):
    features = nn.Sequential(
        CELiftConv2d(3, 4, 3, rotations=4, lifting=lifting), CEConv2d(4, 4, 3, rotations=4)
    )
    check(Head(features, pool, channels=channels), form)


@each_form
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norms_that_follow_no_convolution(affine, form, check):
    features = nn.Sequential(
        CELiftConv2d(3, 4, 3),
        CEMaxPool2d(2),
        CEBatchNorm2d(4, affine=affine),  # before its convolution: pre-activation
        nn.ReLU(),
        CEConv2d(4, 4, 3),
    )
    folded = check(Head(features, channels=4), form)
    assert count(folded, nn.BatchNorm2d) == 1


@each_form
def test_batch_norms_without_affine_parameters(form, check):
    features = nn.Sequential(CELiftConv2d(3, 4, 3), CEBatchNorm2d(4, affine=False), nn.ReLU())
    assert count(check(Head(features, channels=4), form), nn.BatchNorm2d) == 0


@each_form
@pytest.mark.parametrize(
    "activation",
    [nn.GELU(), nn.SiLU(), nn.LeakyReLU(0.2), nn.ReLU(inplace=True), nn.Tanh(), CEDropout2d(0.5)],
    ids=str,
)
def test_elementwise_modules(activation, form, check):
    features = nn.Sequential(CELiftConv2d(3, 4, 3), activation, CEConv2d(4, 4, 3))
    check(Head(features, channels=4), form)


@each_form
@pytest.mark.parametrize(
    "function", [F.softplus, partial(F.dropout, training=False)], ids=["softplus", "dropout"]
)
def test_elementwise_functions(function, form, check):
    check(Returned(lambda net, x, images: function(x)), form)


# Graphs


class Shared(nn.Module):
    """A convolution used twice, each time with a batch norm of its own."""

    def __init__(self):
        super().__init__()
        self.lift, self.conv = CELiftConv2d(3, 4, 3), CEConv2d(4, 4, 3, padding=1)
        self.first, self.second = CEBatchNorm2d(4), CEBatchNorm2d(4)

    def forward(self, images):
        x = self.lift(images)
        return self.second(self.conv(F.relu(self.first(self.conv(x)))))


class TwoUsers(nn.Module):
    """A convolution whose output goes to a batch norm and around it."""

    def __init__(self):
        super().__init__()
        self.lift, self.conv = CELiftConv2d(3, 4, 3), CEConv2d(4, 4, 3, padding=1)
        self.norm = CEBatchNorm2d(4)

    def forward(self, images):
        y = self.conv(self.lift(images))
        return self.norm(y).relu() + y


class SharedNorm(nn.Module):
    """One batch norm after two convolutions."""

    def __init__(self):
        super().__init__()
        self.lift = CELiftConv2d(3, 4, 3)
        self.one, self.two = CEConv2d(4, 4, 3, padding=1), CEConv2d(4, 4, 1)
        self.norm = CEBatchNorm2d(4)

    def forward(self, images):
        x = self.lift(images)
        return torch.mul(self.norm(self.one(x)), torch.sigmoid(self.norm(self.two(x))))


class Dense(nn.Module):
    """Concatenated channels, as in a DenseNet, with numbers and operators in between."""

    def __init__(self):
        super().__init__()
        self.lift, self.conv = CELiftConv2d(3, 3, 3), CEConv2d(3, 5, 3, padding=1)
        self.norm, self.last = CEBatchNorm2d(8), CEConv2d(8, 4, 1)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, images):
        x = self.lift(images)
        y = torch.cat([x, 0.5 * self.conv(F.relu(x))], 1)
        y = y + torch.cat((-x, self.conv(x)), dim=1) - 0.1
        return self.last(self.scale * self.norm(y).relu())


class InPlace(nn.Module):
    """Statements that change their operand and drop the result."""

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.lift, self.conv = CELiftConv2d(3, 4, 3), CEConv2d(4, 4, 3)
        self.norm = CEBatchNorm2d(4)

    def forward(self, images):
        x = self.norm(self.lift(images))
        x.relu_()
        y = self.conv(x)
        y += 0.3
        F.relu(y, inplace=True)
        self.relu(z := self.conv(y))
        return z


@each_form
@pytest.mark.parametrize(
    ("features", "norms"), [(Shared, 2), (TwoUsers, 1), (SharedNorm, 0), (Dense, 1), (InPlace, 0)]
)
def test_graphs(features, norms, form, check):
    folded = check(Head(features(), channels=4), form)
    assert count(folded, nn.BatchNorm2d) == norms


class Users(nn.Module):
    """A user's own network: two symmetries, a plain branch, and a custom block."""

    class Block(nn.Module):
        def __init__(self, channels, rotations):
            super().__init__()
            self.conv = CEConv2d(channels, channels, 3, padding=1, rotations=rotations)
            self.norm = CEBatchNorm2d(channels)

        def forward(self, x):
            return F.relu(x + self.norm(self.conv(x)))

    def __init__(self):
        super().__init__()
        self.coarse = nn.Sequential(CELiftConv2d(3, 4, 3, rotations=3), self.Block(4, 3))
        self.fine = nn.Sequential(
            CELiftConv2d(3, 2, 3, rotations=6, lifting="hsv"), self.Block(2, 6)
        )
        self.plain = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
        self.max, self.flat = CosetMaxPool(), CosetFlatten()
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(21, 5))

    def forward(self, images):
        coarse, fine = self.max(self.coarse(images)), self.flat(self.fine(images * 0.5))
        return self.head(torch.cat([coarse, fine, self.plain(images)], 1))


@each_form
def test_a_users_own_network(form, check):
    folded = check(Users(), form)
    assert count(folded, nn.BatchNorm2d) == 0


@pytest.mark.slow
def test_folded_networks_compile(check):
    folded = check(cecnn(5, width=2, rotations=4, lifting="hsv"), "cyclic", size=28)
    images = torch.rand(3, 3, 28, 28)
    compiled = torch.compile(folded, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), folded(images))


# Refusals


class Returned(nn.Module):
    """Applies a function to features and ends the equivariant part."""

    def __init__(self, function):
        super().__init__()
        self.lift, self.pool, self.function = CELiftConv2d(3, 4, 3), CosetMaxPool(), function
        self.fine = CELiftConv2d(3, 4, 3, rotations=1)
        self.gain = nn.Parameter(torch.rand(4, 1, 1, 1))

    def forward(self, images):
        return self.pool(self.function(self, self.lift(images), images))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda net, x, images: x.mean((3, 4), keepdim=True), r"what mean \(node 'mean'\) does"),
        (lambda net, x, images: torch.flip(x, (2,)), "what flip"),
        (lambda net, x, images: x[:, :2], "what getitem"),
        (lambda net, x, images: torch.cat([x, x], 2), "what cat"),
        (lambda net, x, images: torch.cat([x, x]), "what cat"),
        (lambda net, x, images: x.permute(0, 1, 2, 4, 3), "what permute"),
        # Would be broadcast, over dimensions that folded features do not have:
        (lambda net, x, images: x * net.gain, r"combine features only .* mul \(node"),
        (lambda net, x, images: x + images.mean(), "combine features only"),
        (lambda net, x, images: x + net.fine(images), "combine features only"),
    ],
)
@each_form
def test_what_fold_cannot_understand_is_refused(function, message, form):
    with pytest.raises(ValueError, match=message):
        fold(Returned(function), form)


class Gated(nn.Module):
    """Multiplies features of four channels by those of one, after a concatenation."""

    def __init__(self):
        super().__init__()
        self.lift, self.pool = CELiftConv2d(3, 2, 3), CosetMaxPool()
        self.gate, self.scale = CEConv2d(4, 1, 1), CEConv2d(4, 4, 1)

    def forward(self, images):
        x = self.lift(images)
        x = torch.cat(tensors=[x, x], dim=1)
        return self.pool(self.scale(x).sigmoid() * x * self.gate(x).sigmoid())


@each_form
def test_channels_that_are_broadcast(form, check):
    check(Gated(), form)


@pytest.mark.parametrize("module", [nn.Conv3d(4, 4, 1), nn.PReLU(4), nn.LayerNorm(6)], ids=str)
def test_modules_that_fold_does_not_know_are_refused(module):
    network = nn.Sequential(CELiftConv2d(3, 4, 3), module, CosetMaxPool())
    with pytest.raises(ValueError, match=rf"fold cannot tell what {type(module).__name__} \(node"):
        fold(network)


@each_form
def test_networks_that_return_features_are_refused(form):
    network = nn.Sequential(CELiftConv2d(3, 4, 3), nn.ReLU())
    with pytest.raises(ValueError, match=r"ends its equivariant part.*this one returns features"):
        fold(network, form)


@each_form
def test_batch_norms_without_running_statistics_are_refused(form):
    norm = CEBatchNorm2d(4, track_running_stats=False)
    network = nn.Sequential(CELiftConv2d(3, 4, 3), norm, CosetMaxPool())
    with pytest.raises(ValueError, match="batch norms with running statistics; 1 has track"):
        fold(network, form)


def test_hidden_layers_on_images_are_refused():
    with pytest.raises(ValueError, match="fold found CEConv2d on images, not features"):
        fold(nn.Sequential(CEConv2d(3, 4, 3), CosetMaxPool()))


def test_unknown_forms_are_refused():
    with pytest.raises(ValueError, match=r"form must be one of 'auto', .*'fused'; got 'fft'"):
        fold(z2cnn(3, width=2), "fft")
