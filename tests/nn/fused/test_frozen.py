"""Networks folded in the fused form, in Triton's interpreter or on a GPU."""

import copy
import io
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor.models import cecnn, resnet18
from equicolor.models.resnet import Architecture, ResNet
from equicolor.nn import CEBatchNorm2d, CEConv2d, CELiftConv2d, CosetMaxPool, fold
from equicolor.nn.fused import blocks, conditions, first_layer, frozen
from equicolor.nn.fused.frozen import FrozenBlock, FrozenStem

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch's CUDA builds")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter cuts numbers to bfloat16 instead of rounding them.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
TOLERANCE = 1e-4 if DEVICE == "cuda" else 1e-5  # for float32


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch):
    """The fused path on the CPU too, and convolutions that keep float32."""
    monkeypatch.setattr(conditions, "DEVICES", (DEVICE,))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def ordinary(monkeypatch):
    """Call a network on the ordinary path, in float64."""

    def call(network, images):
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(conditions, "DEVICES", ())
            return copy.deepcopy(network).double()(images.double())

    return call


@pytest.fixture
def calls(monkeypatch):
    """How often kernels were launched for a stem or a block, and filters made."""
    seen = Counter()

    def counted(module, name, key):
        original = getattr(module, name)

        def call(*arguments, **options):
            seen[key] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, call)

    counted(frozen, "lift_columns", "stem")
    counted(blocks, "block_of", "block")
    counted(blocks, "cyclic_filters", "made")
    counted(frozen, "packed_columns", "made")
    return seen


def make(settle, *, widths=(5, 7), blocks=(1, 1), small=True, size=8, **options):
    """A settled ResNet and images for it."""
    bottleneck = options.pop("bottleneck", False)
    network = ResNet(
        Architecture(blocks, bottleneck, 8, small, 10),
        6,
        stage_widths=widths,
        rotations=options.pop("rotations", 3),
        ce_stages=options.pop("ce_stages", len(widths)),
        separable=options.pop("separable", True),
        coset_pool=options.pop("coset_pool", "max"),
        lifting=options.pop("lifting", "rgb"),
        normalize=True,
    )
    assert not options
    images = F.interpolate(torch.rand(2, 3, 4, 4), (size, size))
    return settle(network, images, sees=1e-3).to(DEVICE), images.to(DEVICE)


NETWORKS = {
    "two rotations, full filters": {"rotations": 2, "separable": False},
    "three": {"blocks": (2, 1)},
    "three, a stem that pools, hsv": {"small": False, "size": 18, "lifting": "hsv"},
    "three, odd widths": {"widths": (3, 17), "coset_pool": "avg"},
    "three, hybrid": {"ce_stages": 1, "small": False, "size": 20},
    "three, bottleneck, flat": {"bottleneck": True, "widths": (2, 3), "coset_pool": None},
    "six, hsv": {"rotations": 6, "lifting": "hsv"},
    "twelve": {"rotations": 12, "widths": (5,), "blocks": (1,)},
    "twelve, hsv": {"rotations": 12, "widths": (4,), "blocks": (1,), "lifting": "hsv"},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_folded_networks_equal_the_network(name, settle, relative_error, ordinary, calls):
    network, images = make(settle, **NETWORKS[name])
    calls.clear()
    folded = fold(network)
    stages = [module for module in folded.modules() if isinstance(module, FrozenBlock | FrozenStem)]
    assert len(stages) == 1 + sum(NETWORKS[name].get("blocks", (1, 1))[: network.ce_stages])
    with torch.no_grad():
        expected = ordinary(network, images)
        for part in (images, images[:1]):
            assert relative_error(folded(part), expected[: len(part)]) < TOLERANCE
    assert calls["stem"] == 2
    assert calls["block"] == 2 * (len(stages) - 1)


def test_half_precision_is_as_exact_as_the_network(settle, ordinary, calls):
    network, images = make(settle, widths=(16, 24))
    exact = ordinary(network, images)
    folded = fold(network)

    def error(call):
        with torch.no_grad(), torch.autocast(DEVICE, HALF):
            return (call(images).double() - exact).norm() / exact.norm()

    assert error(folded) < 2 * error(network) + 1e-4
    assert error(folded) < 0.02
    # Weights in half precision: filters are mixed before they are rounded.
    half = copy.deepcopy(folded).to(HALF)
    result = half(images.to(HALF))
    assert result.dtype == HALF
    assert (result.double() - exact).norm() < 0.05 * exact.norm()


def test_filters_are_made_once_for_every_dtype(settle, calls):
    network, images = make(settle)
    folded = fold(network)
    calls.clear()
    layers = 1 + 2 * 2 + 1  # lifting, two blocks, the shortcut of the second
    for dtype, made in ((None, layers), (None, layers), (HALF, 2 * layers), (HALF, 2 * layers)):
        with torch.autocast(DEVICE, HALF, enabled=dtype is not None):
            folded(images)
        assert calls["made"] == made


@pytest.mark.parametrize("assign", [False, True])
def test_another_state_is_followed(assign, settle, relative_error, ordinary):
    network, images = make(settle)
    other, _ = make(settle)
    folded, wanted = fold(network), fold(other)
    folded(images)
    state = wanted.state_dict()
    assert state.keys() == folded.state_dict().keys()
    folded.load_state_dict(state, assign=assign)
    assert relative_error(folded(images), ordinary(other, images)) < TOLERANCE
    with torch.no_grad():
        folded.get_parameter("linear.weight").zero_()
        folded.get_submodule("conv1_stem").norm.bias.add_(1)
        other.linear.weight.zero_()
        other.bn1.bias.add_(1)
    assert relative_error(folded(images), ordinary(other, images)) < TOLERANCE


def test_copies_and_files(settle, relative_error, ordinary):
    network, images = make(settle, lifting="hsv")
    folded, expected = fold(network), ordinary(network, images)
    folded(images)
    file = io.BytesIO()
    torch.save(folded, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for copied in (copy.deepcopy(folded), loaded):
        stem = copied.get_submodule("conv1_stem")
        assert stem._made is None  # what follows from the weights is neither copied nor written
        assert relative_error(copied(images), expected) < TOLERANCE
    torch.testing.assert_close(folded.double()(images.double()), expected, rtol=1e-5, atol=1e-6)


def test_networks_stay_in_eval_mode_and_are_not_trained(settle):
    network, images = make(settle)
    folded = fold(network)
    before, state = folded(images), copy.deepcopy(folded.state_dict())
    folded.train()
    assert torch.equal(folded(images), before)
    assert all(torch.equal(value, state[name]) for name, value in folded.state_dict().items())
    assert not before.requires_grad
    assert not any(parameter.requires_grad for parameter in folded.parameters())


def test_gradients_of_the_input(settle, relative_error, ordinary):
    network, images = make(settle)
    folded, exact = fold(network), copy.deepcopy(network).double()
    x, y = images.clone().requires_grad_(), images.double().requires_grad_()
    (actual,) = torch.autograd.grad(folded(x).square().sum(), x)
    (expected,) = torch.autograd.grad(exact(y).square().sum(), y)
    assert relative_error(actual, expected) < 1e-4
    with torch.no_grad():
        assert relative_error(folded(x), ordinary(network, images)) < TOLERANCE


def test_elsewhere_the_numbers_are_the_same(settle, relative_error, ordinary, calls, monkeypatch):
    network, images = make(settle)
    folded, expected = fold(network), ordinary(network, images)
    calls.clear()
    assert (
        relative_error(torch.compile(folded, backend="eager", fullgraph=True)(images), expected)
        < TOLERANCE
    )
    assert relative_error(torch.func.vmap(folded)(images[None])[0], expected) < TOLERANCE
    seen = []
    block = next(module for module in folded.modules() if isinstance(module, FrozenBlock))
    hook = block.layer0[0].register_forward_hook(lambda *_: seen.append(True))
    assert relative_error(folded(images), expected) < TOLERANCE
    assert seen
    hook.remove()
    assert calls["block"] == 1  # the other one
    monkeypatch.setattr(conditions, "DEVICES", ())
    assert relative_error(folded(images), expected) < TOLERANCE
    assert calls["block"] == 1
    exported = torch.export.export(folded, (images,)).module()
    assert relative_error(exported(images), expected) < TOLERANCE


# Which networks


class Foreign(nn.Module):
    """A residual block as other libraries write it."""

    def __init__(self, channels):
        super().__init__()
        self.a = CEConv2d(channels, channels, 3, padding=1, bias=False)
        self.b = CEConv2d(channels, channels, 3, padding=2, dilation=2, bias=False)
        self.norm_a, self.norm_b = CEBatchNorm2d(channels), CEBatchNorm2d(channels)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        identity = x
        out = self.norm_b(self.b(F.relu(self.norm_a(self.a(x)), inplace=True)))
        out += identity
        return self.act(out)


def with_stem(*blocks, channels=5):
    stem = CELiftConv2d(3, channels, 3, bias=False), CEBatchNorm2d(channels), nn.ReLU()
    return nn.Sequential(*stem, *blocks, CosetMaxPool(), nn.Flatten(), nn.LazyLinear(4))


def test_blocks_are_known_by_what_they_compute(settle, relative_error, ordinary, calls):
    network, images = with_stem(Foreign(5), Foreign(5)), torch.rand(2, 3, 7, 6)
    network(images)
    network, images = settle(network, images, sees=1e-3).to(DEVICE), images.to(DEVICE)
    calls.clear()
    assert relative_error(fold(network)(images), ordinary(network, images)) < TOLERANCE
    assert calls["block"] == 2


class Shared(Foreign):
    """Both convolutions are the same one."""

    def __init__(self, channels):
        super().__init__(channels)
        self.b = self.a


class Overwritten(Foreign):
    """Adds to what comes in, in place, and gives that out too."""

    def forward(self, x):
        out = self.norm_b(self.b(self.act(self.norm_a(self.a(x)))))
        x += out
        return self.act(x) + x


class Watched(Foreign):
    """What comes in is changed before it is added."""

    def forward(self, x):
        out = self.norm_b(self.b(F.relu(self.norm_a(self.a(x)))))
        x.mul_(2)
        return F.relu(out + x)


class Scaled(Foreign):
    """The sum is not a plain one."""

    def forward(self, x):
        out = self.norm_b(self.b(F.relu(self.norm_a(self.a(x)))))
        return F.relu(torch.add(out, x, alpha=2))


@pytest.mark.parametrize("block", [Shared, Overwritten, Watched, Scaled])
def test_other_blocks_are_folded_in_the_other_forms(block, settle, relative_error, ordinary):
    network, images = with_stem(block(5)), torch.rand(2, 3, 7, 6)
    network(images)
    network, images = settle(network, images, sees=1e-3).to(DEVICE), images.to(DEVICE)
    folded = fold(network)
    assert not any(isinstance(module, FrozenBlock) for module in folded.modules())
    assert relative_error(folded(images), ordinary(network, images)) < 1e-4
    with pytest.raises(ValueError, match=r"form='fused' knows .*'3\.a' is in neither"):
        fold(network, "fused")


def test_hooks_of_activations_are_not_dropped(settle):
    network, _ = make(settle)
    network.layers[0][0].relu.register_forward_hook(lambda *_: None)
    assert not any(isinstance(module, FrozenStem) for module in fold(network).modules())


def test_only_networks_on_gpus_are_fused_by_themselves(monkeypatch):
    monkeypatch.setattr(conditions, "DEVICES", ("cuda",))
    network = resnet18(5, rotations=3, width=2)
    frozen_ = (FrozenBlock, FrozenStem)
    assert not any(isinstance(module, frozen_) for module in fold(network).modules())
    assert sum(isinstance(module, frozen_) for module in fold(network, "fused").modules()) == 9
    monkeypatch.setattr(conditions, "DEVICES", ("cpu",))
    assert not any(isinstance(module, frozen_) for module in fold(network.double()).modules())
    for other in (cecnn(5, width=2), resnet18(5, width=2)):
        assert not any(isinstance(module, frozen_) for module in fold(other).modules())


def test_stems_that_dilate_are_not_known():
    lift = CELiftConv2d(3, 4, 3, dilation=2, bias=False)
    network = nn.Sequential(lift, CEBatchNorm2d(4), nn.ReLU(), CosetMaxPool())
    with pytest.raises(ValueError, match="'0' is in neither"):
        fold(network, "fused")


# What inference does not need


@pytest.mark.parametrize("gradients", [True, False])
def test_taps_are_kept_for_gradients_alone(gradients, monkeypatch):
    kept = []
    kernels = first_layer._pool_kernels()
    original = kernels.norm_pool

    def norm_pool(*arguments, keep_taps):
        kept.append(keep_taps)
        out, taps = original(*arguments, keep_taps=keep_taps)
        assert (taps is not None) is keep_taps
        return out, taps

    monkeypatch.setattr(kernels, "norm_pool", norm_pool)
    conv, norm = CELiftConv2d(3, 4, 3, bias=False).to(DEVICE), CEBatchNorm2d(4).to(DEVICE)
    images = torch.rand(2, 3, 9, 8, device=DEVICE)
    with torch.set_grad_enabled(gradients):
        out = first_layer.stem(images, conv, norm.eval(), pool=True)
    assert kept == [gradients]
    expected = F.max_pool2d(norm(conv(images)).relu().flatten(1, 2), 3, 2, 1)
    torch.testing.assert_close(out.flatten(1, 2), expected, rtol=1e-4, atol=1e-4)
