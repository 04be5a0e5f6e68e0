"""Networks in training: whole graphs for torch.compile, and a loss that falls in bfloat16."""

import pytest
import torch
import torch.nn.functional as F

from equicolor.models import cecnn, z2cnn
from equicolor.models.resnet import ResNet
from equicolor.models.widths import Architecture
from equicolor.models.z2cnn import Z2CNN

pytestmark = [
    pytest.mark.slow,  # trainings, and compilers
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]


def resnet(classes, *, small=False, bottleneck=False, **options):
    """A ResNet with each kind of block once: tracing takes as long as there are blocks."""
    # The first bottleneck widens, so a shortcut that is the identity takes a second one.
    blocks = (2, 1) if bottleneck else (1, 1)
    return ResNet(Architecture(blocks, bottleneck, 2, small, 10), classes, **options)


FAMILIES = {
    "z2cnn": lambda: z2cnn(3, width=2),
    "cecnn flat": lambda: cecnn(3, width=2),
    "cecnn hsv": lambda: cecnn(3, width=2, rotations=4, lifting="hsv", coset_pool="max"),
    "cecnn hybrid": lambda: cecnn(3, width=2, ce_layers=3, coset_pool="avg"),
    "resnet18": lambda: resnet(3, width=2),
    "resnet18 hybrid hsv": lambda: resnet(3, rotations=4, ce_stages=1, width=2, lifting="hsv"),
    "resnet34": lambda: resnet(3, rotations=3, ce_stages=1, separable=False, width=2),
    "resnet44 flat": lambda: resnet(3, small=True, rotations=3, coset_pool=None, width=2),
    "resnet50 hybrid": lambda: resnet(3, bottleneck=True, rotations=3, ce_stages=1, width=2),
}

TRAINED = "cecnn hsv", "resnet18 hybrid hsv"  # forward and backward; of the others, forward alone


@pytest.fixture(autouse=True)
def _forget_compiled_graphs():
    torch._dynamo.reset()


def shallow(network):
    """A Z2CNN with each kind of block once."""
    if isinstance(network, Z2CNN):
        del network.blocks[3:-1]
        network.ce_layers = min(network.ce_layers, len(network.blocks))
    return network


def images_for(network, batch=2):
    # Of 16 pixels the four blocks of a shallow Z2CNN leave one.
    side = {28: 16, 32: 12, 224: 32}[network.image_size]
    return torch.rand(batch, 3, side, side)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in TRAINED])
def test_forward_compiles_without_graph_breaks(name, relative_error, tolerance):
    network = shallow(FAMILIES[name]()).eval()
    images = images_for(network)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    assert relative_error(compiled(images), network(images)) <= tolerance[torch.float32]


@pytest.mark.parametrize("name", TRAINED)
def test_training_steps_compile_without_graph_breaks(name, relative_error):
    network = shallow(FAMILIES[name]()).double().train()
    for module in network.modules():
        if hasattr(module, "p"):
            module.p = 0.0  # dropout draws differ between the two
    images, labels = images_for(network, 4).double(), torch.arange(4) % 3
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    parameters = list(network.parameters())
    # Joined: some gradients, as of a bias before a norm, are zero but for rounding.
    actual, expected = (
        torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, parameters)])
        for loss in (F.cross_entropy(function(images), labels) for function in (compiled, network))
    )
    assert relative_error(actual, expected) < 1e-8


def test_inference_compiles(settle, blotches, relative_error, tolerance):
    network = settle(shallow(cecnn(3, width=2, coset_pool="max")), blotches(4, 16))
    images = blotches(2, 16)
    with torch.no_grad():
        compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
        assert relative_error(compiled(images), network(images)) <= tolerance[torch.float32]


@pytest.mark.parametrize(
    "build",
    [
        lambda: z2cnn(4, width=8, dropout=0.0),
        lambda: cecnn(4, width=6, rotations=4, lifting="hsv", coset_pool="max", dropout=0.0),
        lambda: resnet(4, rotations=3, width=4),
        lambda: resnet(4, small=True, rotations=6, ce_stages=1, lifting="hsv", width=4),
    ],
    ids=["z2cnn", "cecnn hsv", "ce_resnet18", "ce_resnet44 hsv"],
)
def test_a_batch_is_learnt_in_bfloat16(build, blotches):
    network = build().train()
    side = {28: 28, 32: 16, 224: 32}[network.image_size]
    images, labels = blotches(8, side), torch.arange(8) % 4
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    # After 24 steps, the slowest would be at a quarter of its first loss.
    while len(losses) < 24 and (not losses or losses[-1] >= 0.5 * losses[0]):
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(images)
        loss = F.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert logits.dtype == torch.bfloat16
    assert all(torch.isfinite(torch.tensor(losses)))
    assert min(losses) < 0.5 * losses[0]
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())
