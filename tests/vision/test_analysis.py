"""Receptive fields of other libraries' networks, against gradients."""

import pytest
import torch
from torch import nn

from equicolor.analysis import find_layers, selectivity
from equicolor.analysis.taps import tapped

for library in ("torchvision", "timm"):
    pytest.importorskip(library, reason="torchvision or timm is missing; 'make vision' has both")

from tests.vision.families import TIMM, TORCHVISION  # noqa: E402

NETWORKS = {
    **{f"torchvision {name}": build for name, build in TORCHVISION.items()},
    **{f"timm {name}": build for name, build in TIMM.items()},
}
SIZE = 64


def smooth(network):
    """The same network with a gradient everywhere: nothing shut, no single winner, no zeros."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.lower() in ("relu", "relu6", "silu", "hardswish", "gelu"):
                setattr(module, name, nn.Softplus())
            elif isinstance(child, nn.MaxPool2d):
                window = child.kernel_size, child.stride, child.padding
                setattr(module, name, nn.AvgPool2d(*window, ceil_mode=child.ceil_mode))
            elif isinstance(child, nn.BatchNorm2d):
                child.running_var.uniform_(0.5, 1.5)
                nn.init.uniform_(child.weight, 0.5, 1.5)
    return network.double().eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_fields_are_where_gradients_are(name):
    network = smooth(NETWORKS[name]())
    layers = find_layers(network, SIZE)
    names = list(layers)
    for layer_name in dict.fromkeys((names[0], names[len(names) // 2], names[-1])):
        layer, outputs = layers[layer_name], {}
        assert not layer.field.unknown
        images = torch.rand(1, 3, SIZE, SIZE, dtype=torch.float64, requires_grad=True)
        with tapped(network, [layer_name], outputs.__setitem__):
            network(images)
        features = layer.features(outputs[layer_name], 1).flatten(3)
        for position in (0, layer.height * layer.width // 2, layer.height * layer.width - 1):
            (gradient,) = torch.autograd.grad(
                features[0, 0, 0, position], images, retain_graph=True
            )
            rows, columns = (gradient[0].abs().sum(0) > 0).nonzero().unbind(1)
            seen = int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1
            assert layer.field.box(0, position) == seen


@pytest.mark.parametrize("name", ["torchvision resnet", "timm convnext"])
def test_selectivity_of_their_units(name):
    network = NETWORKS[name]().eval()
    measured = selectivity(network, [torch.rand(8, 3, SIZE, SIZE)], top=3)
    assert measured.units == sum(layer.numel() for layer in measured.layers.values()) > 100
    assert -1 < measured.mean < 1
