"""Networks folded in the fused form, in Triton's interpreter or on a GPU."""

import copy
import io
from collections import Counter

import pytest
import torch
import torch.nn.functional as F

from equicolor.models.resnet import ResNet
from equicolor.models.widths import Architecture
from equicolor.nn import CEBatchNorm2d, CELiftConv2d, fold
from equicolor.nn._fused import blocks, conditions, first_layer, frozen
from equicolor.nn._fused.frozen import FrozenBlock, FrozenStem

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch's CUDA builds")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter cuts numbers to bfloat16 instead of rounding them.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
TOLERANCE = 1e-4 if DEVICE == "cuda" else 1e-5  # for float32


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
    counted(blocks.Filters, "of", "made")
    counted(frozen, "packed_columns", "made")
    return seen


def make(settle, *, widths=(5,), blocks=(1,), small=True, size=4, **options):
    """A settled ResNet of two rotations, which the interpreter mixes fast, and images for it."""
    bottleneck = options.pop("bottleneck", False)
    network = ResNet(
        Architecture(blocks, bottleneck, 8, small, 10),
        6,
        width=widths,
        **{"rotations": 2, **options},
    )
    images = F.interpolate(torch.rand(2, 3, 4, 4), (size, size))
    return settle(network, images, sees=1e-3).to(DEVICE), images.to(DEVICE)


NETWORKS = {
    "two rotations, full filters": {"separable": False, "blocks": (2, 1), "size": 6},
    "three, odd widths": {"rotations": 3, "widths": (3, 17), "coset_pool": "avg"},
    "three, hybrid, a stem that pools, hsv": {
        "rotations": 3,
        "ce_stages": 1,
        "small": False,
        "size": 20,
        "lifting": "hsv",
    },
    "three, bottleneck, flat": {
        "rotations": 3,
        "bottleneck": True,
        "widths": (2, 3),
        "coset_pool": None,
    },
    "six, hsv": {"rotations": 6, "widths": (4,), "blocks": (1,), "lifting": "hsv"},
    "turns": {"rotations": 3, "spatial": "p4", "widths": (3, 2)},
    "mirror images alone": {"rotations": 1, "spatial": "p4m", "widths": (1, 2)},
    "twelve, hsv": {"rotations": 12, "widths": (4,), "blocks": (1,), "lifting": "hsv"},
}


QUICK = "three, odd widths", "six, hsv"


@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS if name not in QUICK),
    ],
)
def test_folded_networks_equal_the_network(name, settle, relative_error, ordinary, calls):
    options = {"widths": (5, 7), "blocks": (1, 1)} | NETWORKS[name]
    network, images = make(settle, **options)
    calls.clear()
    folded = fold(network)
    stages = [module for module in folded.modules() if isinstance(module, FrozenBlock | FrozenStem)]
    assert len(stages) == 1 + sum(options["blocks"][: network.ce_stages])
    with torch.no_grad():
        expected = ordinary(network, images)
        for part in (images, images[:1]):
            assert relative_error(folded(part), expected[: len(part)]) < TOLERANCE
    assert calls["stem"] == 2
    assert calls["block"] == 2 * (len(stages) - 1)


@pytest.mark.slow
def test_half_precision_is_as_exact_as_the_network(settle, ordinary, calls):
    network, images = make(settle, widths=(16, 24), blocks=(1, 1), rotations=3)
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


@pytest.mark.slow
def test_filters_are_made_once_for_every_dtype(settle, calls):
    network, images = make(settle, widths=(5, 7), blocks=(1, 1), rotations=3)
    folded = fold(network)
    calls.clear()
    layers = 1 + 2 + 3  # lifting, two blocks, the shortcut of the second
    for half, made in ((False, 1), (False, 1), (True, 2), (False, 2), (True, 2)):
        with torch.autocast(DEVICE, HALF, enabled=half):
            folded(images)
        assert calls["made"] == made * layers
    with torch.no_grad():
        folded.get_submodule("conv1_stem").norm.bias.add_(1)
    folded(images)
    assert calls["made"] == 2 * layers + 1  # only those of the stem, in this dtype


@pytest.mark.slow
def test_norms_are_laid_out_once_for_every_number_of_pixels(settle, monkeypatch):
    network, images = make(settle, size=6)
    folded, repeated = fold(network), Counter()
    original = frozen.kernels().row_vectors

    def row_vectors(vectors, products):
        repeated["times"] += 1
        return original(vectors, products)

    monkeypatch.setattr(frozen.kernels(), "row_vectors", row_vectors)
    odd = images[:1, :, :5, :5]  # no two pixels share a row
    expected = [folded(images), folded(odd)]
    first = repeated["times"]
    for _ in range(2):
        assert torch.equal(folded(images), expected[0])
        assert torch.equal(folded(odd), expected[1])
    assert repeated["times"] == first > 0


@pytest.mark.slow
@pytest.mark.parametrize("assign", [False, True])
def test_another_state_is_followed(assign, settle, relative_error, ordinary):
    network, images = make(settle)
    other, _ = make(settle)
    folded, target = fold(network), fold(other)
    folded(images)
    state = target.state_dict()
    assert state.keys() == folded.state_dict().keys()
    folded.load_state_dict(state, assign=assign)
    assert relative_error(folded(images), ordinary(other, images)) < TOLERANCE
    with torch.no_grad():
        folded.get_parameter("linear.weight").mul_(2)
        folded.get_submodule("conv1_stem").norm.bias.add_(1)
        other.linear.weight.mul_(2)
        other.bn1.bias.add_(1)
    assert relative_error(folded(images), ordinary(other, images)) < TOLERANCE


def stem_of(channels):
    conv = CELiftConv2d(3, channels, 1, bias=False)
    return FrozenStem(conv, CEBatchNorm2d(channels), pool=False).requires_grad_(False).to(DEVICE)


@pytest.mark.slow
def test_other_weights_in_the_same_memory_are_not_mistaken():
    size, hues = 1 << 18, first_layer.Hues(1, 1)
    stem = stem_of(size)
    for value in range(20):
        stem.norm.running_mean = torch.full((size,), value + 0.5, device=DEVICE)
        stem._cached(torch.float32, hues)
        memory = stem.norm.running_mean.data_ptr()
        stem.norm.running_mean = torch.zeros(size, device=DEVICE)
        # One of these would probably lie there if the memory were free.
        others = [torch.full((size,), float(value), device=DEVICE) for _ in range(20)]
        there = [other for other in others if other.data_ptr() == memory]
        stem.norm.running_mean = (there or others)[0]
        (*_, layer) = stem._cached(torch.float32, hues)
        assert (layer.norm.vectors[0] == value).all()


def test_what_data_hides_is_seen_after_loading():
    stem, images = stem_of(4), torch.rand(1, 3, 4, 4, device=DEVICE)
    before = stem(images)
    stem.norm.bias.data.add_(1)
    assert torch.equal(stem(images), before)  # as documented
    stem.load_state_dict(stem.state_dict())
    assert not torch.equal(stem(images), before)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["network", "fold", "move", "copy"])
def test_changes_in_inference_mode_are_followed(where, settle, relative_error, ordinary):
    network, images = make(settle)

    if where == "network":
        with torch.inference_mode():
            network = copy.deepcopy(network)
    with torch.inference_mode(where == "fold"):
        folded = fold(network)
    with torch.inference_mode():
        if where == "move":
            folded.double().float()
        if where == "copy":
            folded = copy.deepcopy(folded)
    folded(images)
    with torch.inference_mode():
        for name in ("conv1_stem", "layers.0.0.conv1_block"):
            for parameter in folded.get_submodule(name).parameters():
                parameter.mul_(1.5)
    with torch.inference_mode():
        assert relative_error(folded(images), ordinary(folded, images)) < TOLERANCE
    stem = folded.get_submodule("conv1_stem")
    assert stem.conv.weight.is_inference() is (where == "copy")


@pytest.mark.slow
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
        assert stem._cache is None  # what follows from the weights is neither copied nor written
        assert relative_error(copied(images), expected) < TOLERANCE
    torch.testing.assert_close(folded.double()(images.double()), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_networks_stay_in_eval_mode_and_are_not_trained(settle):
    network, images = make(settle)
    folded = fold(network)
    before, state = folded(images), copy.deepcopy(folded.state_dict())
    folded.train()
    assert torch.equal(folded(images), before)
    assert all(torch.equal(value, state[name]) for name, value in folded.state_dict().items())
    assert not before.requires_grad
    assert not any(parameter.requires_grad for parameter in folded.parameters())


@pytest.mark.slow
def test_gradients_of_the_input(settle, relative_error, ordinary):
    network, images = make(settle)
    folded, exact = fold(network), copy.deepcopy(network).double()
    x, y = images.clone().requires_grad_(), images.double().requires_grad_()
    (actual,) = torch.autograd.grad(folded(x).square().sum(), x)
    (expected,) = torch.autograd.grad(exact(y).square().sum(), y)
    assert relative_error(actual, expected) < 1e-4
    with torch.no_grad():
        assert relative_error(folded(x), ordinary(network, images)) < TOLERANCE


@pytest.mark.slow
def test_gradients_of_weights(settle, relative_error, calls):
    network, images = make(settle)
    folded, exact = fold(network).requires_grad_(True), copy.deepcopy(network).double()
    calls.clear()
    folded(images).square().sum().backward()
    exact(images.double()).square().sum().backward()
    assert not calls["stem"] + calls["block"]
    stem = folded.get_submodule("conv1_stem")
    assert relative_error(stem.conv.weight.grad, exact.conv1.weight.grad) < 1e-4
    block = next(module for module in folded.modules() if isinstance(module, FrozenBlock))
    expected = exact.layers[0][0].bn2.bias.grad
    assert relative_error(block.layers[-1][1].bias.grad, expected) < 1e-4
    with torch.no_grad():
        folded(images)
    assert calls["stem"] == 1


@pytest.mark.slow
def test_elsewhere_the_numbers_are_the_same(settle, relative_error, ordinary, calls, monkeypatch):
    network, images = make(settle, widths=(5, 7), blocks=(1, 1))
    folded, expected = fold(network), ordinary(network, images)
    calls.clear()
    assert (
        relative_error(torch.compile(folded, backend="eager", fullgraph=True)(images), expected)
        < TOLERANCE
    )
    with torch.backends.cudnn.flags(enabled=False):  # torch cannot vmap cuDNN's batch norm
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


# What inference does not need


@pytest.mark.parametrize("gradients", [True, False])
def test_taps_are_kept_for_gradients_alone(gradients, monkeypatch):
    kept = []
    kernels = first_layer.kernels("pool_kernels")
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
