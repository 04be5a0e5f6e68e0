"""An equivariant stem beside a frozen one: nothing changes at first, and then only the stem."""

import copy

import pytest
import torch
from torch import nn

from equicolor.conversion import ConversionError, adapt
from equicolor.models import ciconv_resnet44, resnet44

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    ).eval()  # fmt: skip


@pytest.fixture
def images():
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (torch.rand(4, 3, 12, 12) - mean) / std


@pytest.mark.parametrize("training", [False, True])
def test_outputs_are_bitwise_the_originals(model, images, training):
    network = adapt(model, normalization=(MEAN, STD), image_size=12).train(training)
    with torch.no_grad():
        assert torch.equal(network(images), model(images))


def test_training_moves_the_adapter_alone(model, images):
    before = copy.deepcopy(model.state_dict())
    network = adapt(model, normalization="imagenet", image_size=12).train()
    assert not network.network[1].training  # statistics of frozen norms stay
    assert not network.network[3].training
    start = copy.deepcopy(network.state_dict())
    # every parameter is given to the optimizer: freezing must not depend on the user
    trained = [p for p in network.parameters() if p.requires_grad]
    assert {id(p) for p in trained} == {id(p) for p in network.adapter_parameters()}
    optimizer = torch.optim.SGD(trained, lr=1.0, weight_decay=0.1)
    labels = torch.arange(4)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
    after = network.state_dict()
    moved = {key for key in after if not torch.equal(after[key], start[key])}
    adapter = {key for key in after if ".adapter." in key or key.endswith("gate")}
    assert moved
    assert moved <= adapter
    assert "network.0.gate" in moved
    assert "network.0.adapter.4.pointwise_weight" in moved
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    with torch.no_grad():
        assert not torch.equal(network.eval()(images), model(images))


def test_state_and_copies_go_round(model, images):
    network = adapt(model, normalization="imagenet", image_size=12)
    nn.init.normal_(network.stem.gate)
    twin = copy.deepcopy(network)
    assert twin.stem is not network.stem
    assert twin.stem is twin.network[0]
    other = adapt(model, normalization="imagenet", image_size=12)
    other.load_state_dict(network.state_dict())
    with torch.no_grad():
        assert torch.equal(twin(images), network(images))
        assert torch.equal(other(images), network(images))
    twin.train()
    assert twin.stem.adapter.training
    assert not network.stem.adapter.training


def test_our_networks_take_images():
    model = resnet44(5, width=4).eval()
    network = adapt(model, "conv1", rotations=3, lifting="rgb", coset_pool="avg")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(network(images), model(images))


def test_what_is_no_stem_is_said(model):
    with pytest.raises(
        ConversionError, match=r"convolution of images with 3 channels, such as '0'"
    ):
        adapt(model, "1", normalization=None, image_size=12)
    with pytest.raises(ConversionError, match="nothing says how Sequential expects"):
        adapt(model)
    with pytest.raises(ConversionError, match="Linear has no convolution"):
        adapt(nn.Linear(12, 3), normalization=None, image_size=12)
    with pytest.raises(ConversionError, match="CIConvResNet has no convolution of images with 3"):
        adapt(ciconv_resnet44(5, width=4))
    with pytest.raises(ValueError, match="coset_pool must be one of"):
        adapt(model, coset_pool=None, normalization=None)


def test_images_that_are_not_normalised_as_said_are_refused(model):
    network = adapt(model, normalization=((0.0,), (1.0,)), image_size=12)
    with pytest.raises(ValueError, match="undoing that gives values from"):
        network(torch.randn(2, 3, 12, 12))
