"""Conversion of networks that are written with torch alone: ours, and a user's own."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import equicolor
from equicolor.color import shift_hue
from equicolor.conversion import ConversionError, Source, convert
from equicolor.conversion.report import cost_report, cost_rows
from equicolor.models import (
    CheckpointError,
    ce_resnet18,
    create_model,
    load_model,
    resnet18,
    resnet44,
    save_model,
    z2cnn,
)
from equicolor.models.export import export
from equicolor.models.registry import with_classes
from equicolor.models.widths import ARCHITECTURES
from equicolor.nn import fold
from equicolor.nn.batched import BatchedCEConv2d, BatchedCELinear, BatchedDropout

N = 4


class Own(nn.Module):
    """A network with two branches, a gate, dropout and a linear layer in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.left = nn.Conv2d(8, 8, 3, padding=1, groups=8, padding_mode="reflect")
        self.right = nn.Sequential(nn.Conv2d(8, 8, 1), nn.GroupNorm(2, 8))
        self.gate = nn.Linear(16, 16)
        self.drop = nn.Dropout2d(0.2)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 5)

    def forward(self, images):
        x = F.relu(self.stem(images))
        x = torch.cat([self.left(x), self.right(x)], 1)
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.head(self.drop(self.norm(x)).amax((2, 3)))


@pytest.fixture
def images(smooth_images):
    return F.interpolate(smooth_images(2, 8, 8), 32)


def mixed(network):
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, BatchedCEConv2d):
                module.pointwise_weight.add_(0.4 * torch.randn_like(module.pointwise_weight))
    return network


def shallow(network):
    """Each kind of block of a ResNet once: tracing takes as long as there are blocks."""
    for stage, blocks in enumerate(network.layers):
        del blocks[1 if stage else 2 :]
    return network


def small(classes=3):
    """A classifier of few layers: compilers and exporters take as long as there are layers."""
    first = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.3)
    last = nn.Conv2d(4, 4, 3, groups=4), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*first, *last, nn.Linear(4, classes))


def own(images, settle):
    return settle(Own().double(), images)


# --- what it computes ----------------------------------------------------------------------------


def test_a_users_own_network(images, settle, relative_error):
    original = own(images, settle)
    network = convert(original, N, coset_pool=None, normalization=None, image_size=32)
    assert isinstance(network.network.gate, BatchedCELinear)
    assert isinstance(network.network.drop, BatchedDropout)
    assert type(network.network.stem) is nn.Conv2d
    with torch.no_grad():
        expected = torch.stack([original(shift_hue(images, -k / N)) for k in range(N)], 1)
        assert relative_error(network(images), expected) < 1e-10
        mixed(network)
        found = network(images)
        assert relative_error(network(shift_hue(images, 1 / N)), found.roll(1, 1)) < 1e-10
        assert relative_error(found, expected) > 1e-2
        for form in ("dense", "cyclic"):
            assert relative_error(fold(network, form)(images), found) < 1e-10
    assert not any(isinstance(m, BatchedCEConv2d) for m in original.modules())


@pytest.mark.slow
@pytest.mark.parametrize("lifting", ["hsv", "rgb"])
def test_our_resnets_keep_their_normalisation(images, settle, lifting, relative_error):
    original = settle(shallow(resnet44(5, width=4)).double(), images)
    network = convert(original, 3, lifting, coset_pool=None)
    with torch.no_grad():
        expected = torch.stack([original(shift_hue(images, -k / 3)) for k in range(3)], 1)
        assert relative_error(network(images), expected) < 1e-10  # both liftings, at 120 degrees
        pooled = convert(original, 6)
        assert relative_error(pooled(shift_hue(images, 1 / 6)), pooled(images)) < 1e-10


@pytest.mark.slow
def test_hybrids(images, settle, relative_error):
    original = settle(shallow(resnet18(5, width=4)).double(), images)
    network = convert(original, N, until="layers.1")
    inside = [name for name, m in network.named_modules() if isinstance(m, BatchedCEConv2d)]
    assert {name.split(".")[2] for name in inside} == {"0", "1"}
    with torch.no_grad():
        mixed(network)
        found = network(images)
        assert relative_error(network(shift_hue(images, 1 / N)), found) < 1e-10
        assert relative_error(fold(network)(images), found) < 1e-10


@pytest.mark.slow
def test_weights_are_drawn_anew(images):
    original = shallow(resnet44(5, width=8))
    torch.manual_seed(1)
    network = convert(original, 3, init="random")
    layer = network.network.layers[0][0].conv1
    assert not layer.is_identity()
    assert layer.weight.abs().max() <= (8 * 9) ** -0.5  # as the plain layer is drawn
    drawn = torch.cat(
        [m.pointwise_weight.flatten() for m in network.modules() if isinstance(m, BatchedCEConv2d)]
    )
    assert abs(drawn.square().mean().item() - 1 / 3) < 0.02
    assert not torch.equal(network.network.conv1.weight, original.conv1.weight)
    assert not torch.equal(network.network.linear.head.weight, original.linear.weight)


def test_training_moves_hue_filters_and_keeps_the_symmetry(images, settle, relative_error):
    network = convert(own(images, settle), N, normalization=None, image_size=32).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    before = copy.deepcopy(network.state_dict())
    for _ in range(3):
        optimizer.zero_grad()
        network(images).square().mean().backward()
        optimizer.step()
    state = network.state_dict()
    filters = [name for name in state if "pointwise" in name]
    assert len(filters) == 3
    assert all((state[name] - before[name])[:, :, 1:].any() for name in filters)
    for training in (True, False):  # with shared dropout masks in training, too
        network.train(training)
        twin = copy.deepcopy(network)
        with torch.no_grad():
            torch.manual_seed(3)
            expected = network(images)
            torch.manual_seed(3)
            assert relative_error(twin(shift_hue(images, 1 / N)), expected) < 1e-10


def test_devices_dtypes_modes_and_frozen_weights_carry_over():
    original = Own().half().train()
    original.left.requires_grad_(False)
    network = convert(original, 3, normalization=None, image_size=32)
    assert network.training
    assert network.network.left.pointwise_weight.dtype == torch.float16
    assert not network.network.left.pointwise_weight.requires_grad
    assert network.network.gate.pointwise_weight.requires_grad
    assert network.lift.mean.dtype == torch.float32
    with torch.device("meta"):
        ghost = convert(shallow(resnet44(5, width=4)), 3)
    assert all(parameter.is_meta for parameter in ghost.parameters())


@pytest.mark.slow
def test_random_networks_without_norms_see_their_images():
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()]
    for _ in range(7):
        layers += [nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    plain = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    torch.manual_seed(0)
    plain.requires_grad_(False)
    network = convert(plain, N, init="random", normalization=None, image_size=32)
    assert all(parameter.requires_grad for parameter in network.parameters())
    images = torch.rand(8, 3, 1, 1).expand(8, 3, 32, 32)
    features = network.network[:-1](network.lift(images)).unflatten(0, (N, 8)).amax(0)
    assert features.std(0).mean() > 0.1 * features.mean()


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gamma = nn.Conv2d(4, 4, 3), nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x):
        return self.conv(x) * self.gamma


def test_parameters_that_are_not_drawn_are_named(recwarn):
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), Scaled(), nn.BatchNorm2d(4))
    convert(plain, 3, init="random", normalization=None, image_size=16)
    assert not [w for w in recwarn if "stay as they are" in str(w.message)]
    nn.init.normal_(plain[1].gamma)  # as if trained
    with pytest.warns(UserWarning, match=r"stay as they are: network\.1\.gamma"):
        convert(plain, 3, init="random", normalization=None, image_size=16)


@pytest.mark.slow
def test_modes_of_modules_are_kept():
    plain = shallow(resnet18(5, width=4)).train()
    plain.linear.eval()
    plain.layers[0].eval()
    network = convert(plain, 3)
    assert network.training
    for path, module in plain.named_modules():
        if path in dict(network.network.named_modules()):
            assert network.network.get_submodule(path).training == module.training, path


class ChannelAttention(nn.Module):
    """A convolution over neighbouring channels, as ECA-Net has it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x):
        gate = self.conv(x.mean((2, 3)).unsqueeze(1)).sigmoid()
        return x * gate.squeeze(1)[:, :, None, None]


def test_convolutions_over_channels_stay(images, relative_error):
    layers = nn.Conv2d(3, 8, 3), ChannelAttention(), nn.ReLU(), nn.Conv2d(8, 4, 3)
    network = convert(nn.Sequential(*layers).double(), N, normalization=None, image_size=32)
    assert type(network.network[1].conv) is nn.Conv1d
    with torch.no_grad():
        found = mixed(network)(images)
        assert relative_error(network(shift_hue(images, 1 / N)), found) < 1e-10


class TwoHeads(Own):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(16, 2)

    def forward(self, images):
        features = F.relu(self.right(self.stem(images))).mean((2, 3)).repeat(1, 2)
        return {"many": self.head(features), "two": self.other(features)}


def test_two_heads_are_pooled_at_their_outputs(images, relative_error):
    plain = TwoHeads().double().eval()
    for unused in ("left", "gate", "drop", "norm"):
        delattr(plain, unused)
    network = mixed(convert(plain, N, normalization=None, image_size=32))
    with torch.no_grad():
        found, shifted = network(images), network(shift_hue(images, 1 / N))
    assert (found["many"].shape, found["two"].shape) == ((2, 5), (2, 2))
    assert relative_error(shifted["two"], found["two"]) < 1e-10
    with pytest.raises(ValueError, match="does not end in one linear classifier"):
        network.reset_classifier(4)


@pytest.fixture
def short_resnet18(monkeypatch):
    """A ResNet-18 of one block a stage, which can be built again from a checkpoint."""
    short = ARCHITECTURES[18]._replace(blocks=(1, 1, 1, 1))
    monkeypatch.setitem(ARCHITECTURES, 18, short)


@pytest.mark.slow
@pytest.mark.usefixtures("short_resnet18")
def test_another_classifier(images, tmp_path):
    network = convert(resnet18(5, width=4).eval(), 3)
    network.reset_classifier(7)
    x = images.float()
    assert network(x).shape == (2, 7)
    loaded = load_model(save_model(network, tmp_path / "seven.safetensors"))
    assert torch.equal(loaded(x), network(x))
    hybrid = convert(resnet18(5, width=4), 3, until="layers.1")
    hybrid.reset_classifier(7)
    assert hybrid(x).shape == (2, 7)
    network.network.linear = nn.Linear(32, 7)
    with pytest.raises(RuntimeError, match=r"an output is \[6, 7\]: .*reset_classifier"):
        network(x)


# --- what it refuses -----------------------------------------------------------------------------


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.position = nn.Parameter(torch.zeros(64, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, images):
        x = self.stem(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.attention(x, x, x)[0].mean(1))


class Shared(nn.Module):
    """Uses a convolution before and after another one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.twice = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.middle = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, images):
        return self.twice(self.middle(self.twice(self.stem(images))))


class Unknown3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 1, 3)

    def forward(self, x):
        return self.conv(x.unsqueeze(1)).squeeze(1)


def _two_convolutions(*more):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), *more)


def _hooked():
    model = _two_convolutions()
    model[1].register_forward_hook(lambda module, args, output: 2 * output)
    return model


def _with_forward():
    model = _two_convolutions()
    model[1].forward = lambda x: x
    return model


def _tied():
    model = _two_convolutions(nn.Conv2d(4, 4, 3))
    model[2].weight = model[1].weight
    return model


def _spectral():
    model = _two_convolutions()
    nn.utils.spectral_norm(model[1])
    model(torch.rand(1, 3, 8, 8))  # from now on it cannot be copied
    return model


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Attentive(), {}, r"attention: MultiheadAttention: attention mixes places(.|\n)*adapt"),
        (Attentive(), {}, r"the network itself.*: its parameter position \[64, 8\] is of an unk"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.AlphaDropout(0.1)), {}, r"1: AlphaDropout: there is"),
        (ce_resnet18(3, width=4), {}, r"conv1: CELiftConv2d: it is colour-equivariant already"),
        (_two_convolutions(nn.Flatten(2), nn.LSTM(784, 4)), {}, r"3: LSTM: recurrent layers have"),
        (_two_convolutions(Unknown3d()), {}, r"2.conv: Conv3d: there are no hue filters for this"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5)), {}, "has no convolution"),
        (Own(), {"until": "rigth"}, r"until names no module of the network: 'rigth'; did you mean"),
        (Own(), {"until": "left"}, r"until='left' cannot end .*: data flows past"),
        (Own(), {"until": "stem"}, None),
        (Shared(), {"until": "middle"}, r"twice: Conv2d: it is used before and after the hues"),
        (Shared(), {"until": "twice"}, r"the network calls it 2 times"),
        (resnet18(3, width=4), {"until": "layers"}, r"never calls it; its parts are layers.0, lay"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.RReLU()), {}, r"1: RReLU: it draws random numbers"),
        (_hooked(), {}, r"1: Conv2d: it has hooks"),
        (_with_forward(), {}, r"1: Conv2d: it has hooks, or a method of its own"),
        (_tied(), {}, r"2: Conv2d: its weight is also '1.weight': tied"),
        (_spectral(), {}, r"1: Conv2d: its weight is computed by a hook"),
        (nn.Sequential(nn.Conv2d(3, 4, 40)), {}, r"does not take images \[2, 3, 32, 32\]: .*'0'"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(5)), {}, r"does not take images .*'1'"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:no layer of Own gets a filter")  # until="stem"
def test_what_cannot_be_converted_is_named(model, options, message):
    how = {"normalization": None, "image_size": 32, **options}
    if message is None:
        convert(model, N, **how)
        return
    with pytest.raises(ValueError, match=message):
        convert(model, N, **how)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotations": 0}, "rotations must be at least 1"),
        ({"lifting": "lab"}, "lifting must be one of"),
        ({"init": "zero"}, "init must be one of"),
        ({"coset_pool": "sum"}, "must be 'max', 'avg', 'confidence' or None, got 'sum'"),
        ({"until": "stem", "coset_pool": None}, "a hybrid .* pools its hues .* got None"),
        ({"until": "stem", "coset_pool": "confidence"}, "a hybrid .* got 'confidence'"),
        ({"match_parameters": True}, "it needs init='random'"),
        (
            {"normalization": "auto"},
            r"nothing says how Own expects .*ResNet18_Weights.*or None for",
        ),
        ({"normalization": 3}, "normalization must be 'imagenet', a pair"),
        ({"normalization": ((0.5,), (0.0,))}, "std must be positive"),
        ({"normalization": ((124, 116, 104), (58, 57, 57))}, "divide those of 8-bit images by 255"),
        ({"normalization": int}, "must be a member of int, such as int.DEFAULT; got the class"),
        ({"normalization": ("a", "b")}, "mean and std must be numbers, got 'a'"),
        ({"normalization": ((), ())}, r"mean and std must be numbers, got \(\)"),
        ({"takes": "normalized"}, "takes='normalized' needs the mean and std"),
        ({"source": "nowhere:net"}, "source must be equicolor:NAME, torchvision:NAME or timm:NAME"),
    ],
)
def test_bad_options(options, message):
    how = {"normalization": None, "image_size": 32, **options}
    with pytest.raises(ValueError, match=message):
        convert(Own(), **how)


def test_normalisation_comes_as_tensors_and_arrays_too():
    for kind in (torch.tensor, np.array):
        given = kind([0.25, 0.5, 0.75]), kind([0.5, 0.5, 0.25])
        network = convert(Own(), 3, normalization=given, image_size=32)
        assert network.lift.numbers == {"mean": (0.25, 0.5, 0.75), "std": (0.5, 0.5, 0.25)}


def test_networks_that_cannot_mix_are_warned_of():
    layers = nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    with pytest.warns(UserWarning, match="no layer of Sequential gets a filter over the hues"):
        convert(nn.Sequential(*layers), 3, normalization=None, image_size=16)


def test_wrong_images_are_refused():
    network = convert(Own(), N, normalization="imagenet", image_size=32)
    with pytest.raises(
        ValueError, match=r"got values from -1\.\d+ to 2\.\d+: leave out your own n"
    ):
        network(3.5 * torch.rand(2, 3, 32, 32) - 1.2)
    with pytest.raises(TypeError, match="divide 8-bit images by 255"):
        network(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))


# --- parameters, cost, checkpoints, export -------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "rotations"), [(lambda: resnet18(10, width=16), 3), (lambda: z2cnn(10), 6)]
)
@pytest.mark.usefixtures("short_resnet18")
def test_parameters_can_be_matched(build, rotations, tmp_path):
    original = build()
    network = convert(original, rotations, init="random", match_parameters=True).eval()
    found, target = (sum(p.numel() for p in each.parameters()) for each in (network, original))
    assert abs(found / target - 1) < 0.05
    loaded = load_model(save_model(network, tmp_path / "narrow.safetensors"))
    images = torch.rand(1, 3, 28, 28)
    with torch.no_grad():
        assert torch.equal(loaded(images), network(images))


def test_parameters_are_matched_before_a_classifier():
    segment = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1))
    with pytest.raises(ConversionError, match="ends in none"):
        convert(segment, 3, init="random", match_parameters=True, normalization=None)


@pytest.mark.slow
def test_costs_before_and_after():
    original = shallow(resnet44(10, width=4))
    costs = cost_report({"before": original, "after": convert(original, 3)}, 32, batch=1)
    before, after = costs
    assert before.parameters < after.parameters < 2 * before.parameters
    assert 3 * before.macs < after.macs < 10 * before.macs
    assert cost_rows(costs)[1][0] == "after"
    assert all("×" in cell for cell in cost_rows(costs)[1][1:])


def test_networks_without_parameters_are_costed():
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    costs = cost_report({"before": pool, "after": nn.Sequential(nn.Conv2d(3, 2, 1), pool)}, 8)
    before, after = cost_rows(costs)
    assert before[1] == "0"
    assert after[1] == "8"  # no ratio to none


@pytest.mark.slow
@pytest.mark.usefixtures("short_resnet18")
def test_checkpoints_and_other_heads(images, settle, tmp_path):
    original = settle(resnet18(5, width=4), images.float())
    network = mixed(convert(original, 4, until="layers.2", coset_pool="avg"))
    loaded = load_model(save_model(network, tmp_path / "net.safetensors"))
    assert loaded.config == network.config
    assert loaded.image_size == 224
    x = images.float()
    with torch.no_grad():
        assert torch.equal(loaded(x), network(x))
    other = with_classes(loaded, 7)
    assert other(x).shape == (2, 7)
    new, old = other.state_dict(), loaded.state_dict()
    assert [key for key in old if not torch.equal(old[key], new[key])] == [
        "network.linear.weight", "network.linear.bias",
    ]  # fmt: skip
    assert with_classes(loaded, 5) is loaded
    foreign = convert(Own(), normalization=None, image_size=32)
    with pytest.raises(TypeError, match="needs to know where this ConvertedNetwork comes from"):
        save_model(foreign, tmp_path / "own.safetensors")
    assert convert(z2cnn(3), source=Source("equicolor:z2cnn", {"num_classes": 3})).config


@pytest.mark.slow
def test_networks_that_would_be_built_differently_are_not_saved(tmp_path):
    plain = z2cnn(3, width=4)
    plain.blocks[3][0].dilation, plain.blocks[3][0].padding = (2, 2), (1, 1)
    network = convert(plain, 3)
    with pytest.raises(CheckpointError, match=r"was changed after it was built.*Source\(spec"):
        save_model(network, tmp_path / "other.safetensors")


class OneScore(Own):
    """Returns one number an image, without a dimension for classes."""

    def forward(self, images):
        return super().forward(images)[:, 0]


class FeaturesToo(Own):
    """Returns features before logits."""

    def forward(self, images):
        return images.mean((2, 3)), super().forward(images)


@pytest.mark.parametrize("make", [OneScore, FeaturesToo])
def test_classes_are_read_from_one_tensor_of_logits_alone(make):
    network = convert(make(), N, normalization=None, image_size=32, source="timm:x", verify=False)
    assert network.config["source_options"] == {}


def test_dictionaries_are_not_exported(tmp_path):
    plain = TwoHeads().eval()
    for unused in ("left", "gate", "drop", "norm"):
        delattr(plain, unused)
    network = convert(plain, 3, normalization=None, image_size=32)
    with pytest.raises(ValueError, match="returns a dict: wrap it in a module"):
        export(network, tmp_path / "two.onnx", input_size=32)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "exported-program", "torchscript"])
def test_exported_files_take_any_batch(to, tmp_path):
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    network = mixed(convert(small(), 3, normalization=None, image_size=16))
    report = export(network, tmp_path / "net", to, input_size=16)  # verified at batches 1 and 7
    assert report.relative_error < 1e-4


@pytest.mark.slow
def test_unfolded_networks_export_with_a_dynamic_batch():
    network = mixed(convert(small(), 3, normalization=None, image_size=16)).eval()
    program = torch.export.export(
        network, (torch.rand(2, 3, 16, 16),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    x = torch.rand(5, 3, 16, 16)
    torch.testing.assert_close(program.module()(x), network(x))


@pytest.mark.slow
def test_whole_graphs_compile(images):
    network = mixed(convert(small(), 3, normalization=None, image_size=32)).eval()
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        x = images.float()
        torch.testing.assert_close(compiled(x), network(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_class_names_and_grey_are_kept(tmp_path):
    plain = create_model("z2cnn", gray=True, num_classes=3, width=4).eval()
    plain.class_names = ("ash", "birch", "cedar")
    loaded = load_model(save_model(convert(plain, image_size=28), tmp_path / "new.safetensors"))
    assert loaded.class_names == plain.class_names
    images = torch.rand(2, 3, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images.flip(1)), plain(images), atol=1e-5, rtol=1e-5)


def test_the_package_offers_it():
    assert equicolor.convert is convert
    assert equicolor.adapt is equicolor.conversion.adapt
    with pytest.raises(AttributeError, match="has no attribute 'covnert'"):
        equicolor.covnert  # noqa: B018


def test_turns_are_refused_with_the_reason():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match=r"spatial='p4' exact: .* have not learnt .*resnet18\("):
        equicolor.convert(network, normalization=None, spatial="p4")
    with pytest.raises(ValueError, match="spatial must be one of"):
        equicolor.convert(network, normalization=None, spatial="p5")
