import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from equicolor.models import Cost, cecnn, cost, resnet18, resnet44, z2cnn
from equicolor.nn import CEConv2d, set_algorithm

# Executed GMACs of the paper's released code for one 224×224 image.
PAPER_CODE = (1.79, 5.42, 8.61, 11.07, 11.51)


def giga(algorithm, size=224, build=resnet18, **options):
    with torch.device("meta"):
        network = set_algorithm(build(**options), algorithm)
    return cost(network, size).macs / 1e9


@pytest.mark.slow
@pytest.mark.parametrize(("ce_stages", "expected"), list(enumerate(PAPER_CODE)))
def test_dense_cost_is_what_the_paper_code_executes(ce_stages, expected):
    rotations = 3 if ce_stages else 1
    assert round(giga("dense", rotations=rotations, ce_stages=ce_stages), 2) == expected


@pytest.mark.slow
def test_cyclic_cost_stays_near_the_plain_network():
    plain = PAPER_CODE[0]
    assert giga("cyclic", rotations=3) <= 3.2 * plain
    assert giga("cyclic", rotations=12, lifting="hsv") <= 8 * plain
    for ce_stages in (1, 2, 3):
        cyclic = giga("cyclic", rotations=3, ce_stages=ce_stages)
        assert cyclic < 0.65 * PAPER_CODE[ce_stages]


def test_mixing_is_counted():
    # A 3×3 layer of C channels at n = 3 is 4 convolutions, and two mixes of 4×3 per channel.
    channels, size = 8, 16
    layer = CEConv2d(channels, channels, 3, padding=1, bias=False, algorithm="cyclic")

    class OnFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, images):
            return self.layer(images.new_empty(1, channels, 3, size, size))

    pixels = size * size
    convolutions = 4 * channels * channels * 9 * pixels
    mixes = 2 * 4 * 3 * channels * pixels
    filters = 4 * 3 * channels * channels
    assert cost(OnFeatures(), size).macs == convolutions + mixes + filters


# Lifting layers have no algorithm: each lifting comes once.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "lifting"), [("dense", "rgb"), ("cyclic", "hsv"), ("auto", "rgb")]
)
def test_agrees_with_counting_a_real_run(algorithm, lifting, shallow):
    network = shallow(resnet44(3, rotations=4, width=3, lifting=lifting)).eval()
    set_algorithm(network, algorithm)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.rand(1, 3, 16, 16))
    assert cost(network, 16).macs == counter.get_total_flops() // 2


def test_a_count_by_hand():
    # One multiplication per weight and output position, batch norm and pooling not counted.
    width, sides = 5, (26, 24, 10, 8, 6, 4)
    convolutions = [
        (3 if layer == 0 else width) * width * 9 * s**2 for layer, s in enumerate(sides)
    ]
    expected = sum(convolutions) + width * width * 16 + width * 10
    network = z2cnn(10, width=width)
    assert cost(network, 28) == Cost(sum(p.numel() for p in network.parameters()), expected)


def test_batches_multiply():
    network = cecnn(10, width=2)
    assert cost(network, (4, 3, 28, 28)).macs == pytest.approx(4 * cost(network, 28).macs, rel=1e-3)
    assert cost(network, [1, 3, 28, 28]) == cost(network, 28)


def test_default_is_the_size_of_imagenet():
    network = resnet18(3, width=2)
    assert cost(network) == cost(network, 224)


def test_counting_does_not_change_the_network():
    network = cecnn(10, width=2).train()
    before = copy.deepcopy(network.state_dict())
    cost(network, 28)
    assert network.training
    assert {parameter.device.type for parameter in network.parameters()} == {"cpu"}
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype):
    network = cecnn(10, width=2)
    assert cost(copy.deepcopy(network).to(dtype), 28) == cost(network, 28)


def test_other_peoples_networks():
    network = nn.Sequential(nn.Conv2d(3, 2, 3, bias=False), nn.ReLU())
    assert cost(network, 4) == Cost(54, 54 * 4)
    assert cost(network, (4, 6)) == Cost(54, 54 * 8)
    assert cost(nn.ReLU(), 4) == Cost(0, 0)


@pytest.mark.parametrize("size", [0, -1, 2.5, "224", (3, 28, 28), [], (0, 3, 28, 28), None])
def test_bad_sizes(size):
    with pytest.raises(
        ValueError, match=r"input_size must be an int, \[H, W\] or \[B, 3, H, W\], got"
    ):
        cost(z2cnn(10, width=2), size)


def test_sizes_the_network_does_not_take():
    with pytest.raises(ValueError, match=r"Z2CNN does not take input \[1, 3, 40, 40\]: "):
        cost(z2cnn(10, width=2), 40)
