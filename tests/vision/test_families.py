"""Every family of convolutional networks converts exactly, and stays equivariant when trained."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor.color import rotate_hue, shift_hue
from equicolor.conversion import convert
from equicolor.nn import fold
from equicolor.nn.batched import BatchedCEConv2d

for library in ("torchvision", "timm"):
    pytest.importorskip(library, reason="torchvision or timm is missing; 'make vision' has both")

from tests.vision.families import (  # noqa: E402
    FAMILIES,
    normalization,
    normalize,
    randomize,
)

N, SIZE = 4, 32
# The scope puts the tests of a family side by side: each is built and converted by one worker.
everyone = pytest.mark.parametrize("family", FAMILIES, scope="module")


@functools.cache
def made(family):
    """A network with random weights and fitting statistics."""
    torch.manual_seed(0)
    images = F.interpolate(torch.rand(6, 3, 8, 8, dtype=torch.float64), SIZE)
    return randomize(FAMILIES[family]().double(), images)


@functools.cache
def converted(family, coset_pool, rotations=N, lifting="hsv"):
    """Its conversion, which verifies itself once a family: the tests compare it again."""
    how = {"normalization": normalization(family), "image_size": SIZE}
    how["verify"] = coset_pool is None
    return convert(made(family), rotations, lifting, coset_pool=coset_pool, **how)


@pytest.fixture
def images(smooth_images):
    """Images of coloured blocks off the seams of the hexcone: small, but not grey on average."""
    return F.interpolate(smooth_images(2, 8, 8, dtype=torch.float64), SIZE)


def mixed(network):
    """The network with random hue filters, near enough to the identity for a signal to survive."""
    network = copy.deepcopy(network)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, BatchedCEConv2d):
                module.pointwise_weight.add_(0.5 * torch.randn_like(module.pointwise_weight))
    return network


@everyone
def test_hue_k_is_the_original_on_the_shifted_image(family, images, relative_error):
    before = copy.deepcopy(made(family).state_dict())
    network = converted(family, None)
    for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        original, x = copy.deepcopy(made(family)).to(dtype), images.to(dtype)
        with torch.no_grad():
            shifted = [normalize(shift_hue(x, -k / N), original) for k in range(N)]
            expected = torch.stack([original(image) for image in shifted], 1)
            found = copy.deepcopy(network).to(dtype)(x)
        assert relative_error(found, expected) < limit
    spread = expected - expected.mean(1, keepdim=True)
    assert spread.norm() > 1e-3 * expected.norm(), "the network sees no colour"
    after = made(family).state_dict()
    assert all(torch.equal(before[key], value) for key, value in after.items())


@everyone
def test_pooled_networks_are_invariant(family, images, relative_error):
    # A turn for each: that hues move by all of them is tested before pooling, above.
    for m, pool in enumerate(("max", "avg", "confidence"), 1):
        network = converted(family, "confidence" if pool == "confidence" else "max")
        for module in network.modules():
            if hasattr(module, "kind"):
                module.kind = pool
        with torch.no_grad():
            shifted = network(shift_hue(images, m / N))
            assert relative_error(shifted, network(images)) < 1e-10


@everyone
def test_mixed_hues_stay_equivariant_and_fold(family, images, relative_error):
    plain = converted(family, None)
    network = mixed(plain)
    with torch.no_grad():
        unmixed, found = plain(images), network(images)
        assert relative_error(fold(plain)(images), unmixed) < 1e-10
        assert relative_error(found, unmixed) > 1e-3
        shifted = network(shift_hue(images, 1 / N))
        assert relative_error(shifted, found.roll(1, 1)) < 1e-10
        assert relative_error(shifted, found) > 1e-4, "the network sees no colour"
        for form in ("dense", "cyclic"):
            folded = fold(network, form)
            assert relative_error(folded(images), found) < 1e-10
        # a state dict goes into another conversion of the same network
        other = copy.deepcopy(plain)
        other.load_state_dict(network.state_dict())
        assert torch.equal(other(images), found)
    libraries = {type(m).__module__.partition(".")[0] for m in folded.modules() if m is not folded}
    allowed = {"torch"} | ({"timm", "equicolor"} if "TensorFlow" in family else set())
    assert libraries <= allowed
    norms = [name for name, m in folded.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert not norms or "densenet" in family  # where norms come before convolutions


# Those with linear layers, stochastic depth, lists of features and groups; the other families are
# made of the same layers, in the same kind of code.
@pytest.mark.parametrize("name", ["convnext", "efficientnet", "densenet", "resnext"])
def test_whole_graphs_compile(name, images, relative_error):
    torch._dynamo.reset()
    network = converted(f"torchvision {name}", "max")
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert relative_error(compiled(images), network(images)) < 1e-12


def test_rgb_lifting_rotates(images, relative_error):
    family = "torchvision mobilenet_v2"
    network, x = mixed(converted(family, None, 5, "rgb")), 0.2 + 0.6 * images
    with torch.no_grad():
        found = network(x)
        assert relative_error(network(rotate_hue(x, 2 / 5)), found.roll(2, 1)) < 1e-10
        assert relative_error(network(shift_hue(x, 2 / 5)), found.roll(2, 1)) > 1e-3


@pytest.mark.parametrize(
    "family", ["torchvision efficientnet", "timm mobilenet_v3", "torchvision convnext"]
)
def test_training_moves_hue_filters_and_keeps_the_symmetry(family, images, relative_error):
    network = copy.deepcopy(converted(family, "max")).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    before = {name: value.clone() for name, value in network.named_parameters()}
    for _ in range(3):
        optimizer.zero_grad()
        network(images).square().mean().backward()
        optimizer.step()
    filters = [name for name in before if "pointwise" in name]
    now = dict(network.named_parameters())
    moved = [name for name in filters if (now[name] - before[name])[:, :, 1:].any()]
    assert len(moved) > 0.8 * len(filters)  # some units never fire
    for training in (True, False):
        network.train(training)
        twin = copy.deepcopy(network)
        with torch.no_grad():
            torch.manual_seed(9)  # dropout and stochastic depth draw the same in both
            expected = network(images)
            torch.manual_seed(9)
            assert relative_error(twin(shift_hue(images, 1 / N)), expected) < 1e-9
