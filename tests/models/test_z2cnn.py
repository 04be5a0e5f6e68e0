import numpy as np
import pytest
import torch
from torch import nn

from equicolor.models import cecnn, z2cnn
from equicolor.nn import CEConv2d, CEDropout2d, CELiftConv2d


def convolutions(network):
    kinds = nn.Conv2d | CEConv2d | CELiftConv2d
    return [module for module in network.modules() if isinstance(module, kinds)]


@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        (lambda: z2cnn(30), 25_990),
        (lambda: cecnn(30), 25_216 - 9),
        (lambda: cecnn(30, coset_pool="max"), 24_196 - 9),
    ],
    ids=["z2cnn", "flat", "pooled"],
)
def test_parameters_are_the_papers(build, parameters, count_parameters):
    assert count_parameters(build()) == parameters


@pytest.mark.parametrize(("ce_layers", "width"), [(2, 19), (4, 18)])
def test_hybrids_match_the_plain_network(ce_layers, width, count_parameters):
    network = cecnn(30, ce_layers=ce_layers, width=width, coset_pool="max")
    assert count_parameters(network) == pytest.approx(25_990, rel=0.08)


@pytest.mark.parametrize("ce_layers", range(1, 8))
@pytest.mark.parametrize("coset_pool", ["max", "avg"])
def test_hybrids(ce_layers, coset_pool):
    network = cecnn(5, width=3, rotations=4, ce_layers=ce_layers, coset_pool=coset_pool).eval()
    kinds = [type(module) for module in convolutions(network)]
    assert kinds == [CELiftConv2d] + [CEConv2d] * (ce_layers - 1) + [nn.Conv2d] * (7 - ce_layers)
    assert network(torch.rand(2, 3, 28, 28)).shape == (2, 5)


def test_flattening_widens_the_classifier():
    network = cecnn(5, width=3, rotations=4)
    assert network.classifier.in_features == 12
    assert network.eval()(torch.rand(2, 3, 28, 28)).shape == (2, 5)


def test_one_rotation_is_the_plain_network():
    plain, single = z2cnn(5, width=3), cecnn(5, width=3, rotations=1)
    assert single.state_dict().keys() == plain.state_dict().keys()
    single.load_state_dict(plain.state_dict())
    images = torch.rand(2, 3, 28, 28)
    assert torch.equal(single.eval()(images), plain.eval()(images))


def test_last_convolution_leaves_one_pixel():
    network, seen = z2cnn(5, width=3).eval(), []
    network.blocks[-1].register_forward_hook(lambda *io: seen.append(io[-1].shape))
    network(torch.rand(1, 3, 28, 28))
    assert seen == [(1, 3, 1, 1)]


@pytest.mark.parametrize("build", [z2cnn, cecnn])
def test_dropout_follows_the_layers_of_the_released_code(build):
    network = build(5, width=3, dropout=0.25)
    dropouts = [
        [m.p for m in block if isinstance(m, nn.Dropout2d | CEDropout2d)]
        for block in network.blocks
    ]
    assert dropouts == [[0.25], [], [0.25], [0.25], [0.25], [], []]
    images = torch.rand(2, 3, 28, 28)
    assert not torch.equal(network(images), network(images))
    silent = build(5, width=3, dropout=0.0)
    assert torch.equal(silent(images), silent(images))


def test_images_are_taken_as_they_are():
    # The paper's toy experiments do not normalise: the first layer sees the numbers given.
    network, seen = z2cnn(5, width=3).eval(), []
    network.blocks[0][0].register_forward_hook(lambda *io: seen.append(io[1][0]))
    images = torch.rand(1, 3, 28, 28)
    network(images)
    assert torch.equal(seen[0], images)


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (cecnn, {"ce_layers": 8}, "ce_layers must lie between 0 and 7, got 8"),
        (cecnn, {"ce_layers": 0}, "ce_layers must be at least 1, got 0"),
        (cecnn, {"ce_layers": 3}, r"hybrid network \(ce_layers=3 of 7\) pools over its hues"),
        (cecnn, {"coset_pool": "min"}, "coset_pool must be .*; got 'min'"),
        (cecnn, {"lifting": "lab"}, "lifting must be one of 'rgb', 'hsv'; got 'lab'"),
        (cecnn, {"rotations": 0}, "rotations must be at least 1, got 0"),
        (cecnn, {"rotations": 1, "coset_pool": "min"}, "coset_pool must be .*; got 'min'"),
        (cecnn, {"rotations": 1, "lifting": "hsv"}, "lifting='hsv' needs more than one rotation"),
        (z2cnn, {"width": 0}, "width must be at least 1, got 0"),
        (z2cnn, {"num_classes": 0}, "num_classes must be at least 1, got 0"),
        (z2cnn, {"dropout": 1.5}, "1.5"),
        (cecnn, {"dropout": 1.5}, "1.5"),
        # A checkpoint could not hold it:
        (cecnn, {"dropout": np.float32(0.25)}, r"must be a float .*, got np\.float32"),
    ],
)
def test_bad_options(build, options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
