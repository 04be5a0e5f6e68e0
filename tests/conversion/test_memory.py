"""What lies in memory how: networks that were written with views convert, train and export."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor.color import shift_hue
from equicolor.conversion import convert
from equicolor.models.export import export
from equicolor.nn import fold, mixing
from equicolor.nn.batched import (
    BatchedCEConv2d,
    BatchedCELinear,
    BatchedCosetPool,
    BatchedDropout,
    BatchedStochasticDepth,
    HueLift,
)

LAST = torch.channels_last


class Usual(nn.Module):
    """The network of most tutorials."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(3, width // 2, 3, padding=1)
        self.second = nn.Conv2d(width // 2, width, 3, padding=1)
        self.hidden, self.head = nn.Linear(width * 16, 32), nn.Linear(32, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.head(F.relu(self.hidden(x.view(x.size(0), -1))))


def mixed(network):
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, BatchedCEConv2d):
                module.pointwise_weight.add_(0.3 * torch.randn_like(module.pointwise_weight))
    return network


@pytest.fixture(params=["products", "kernels"])
def mixing_as_on_gpus(request, monkeypatch):
    """On a GPU the mixing of hues is a kernel; Triton's interpreter runs it here."""
    if request.param == "kernels":
        pytest.importorskip("triton")
        monkeypatch.setattr(mixing, "DEVICES", ("cpu",))


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("n", [3, 6, 12])
def test_views_convert_train_and_fold(width, n, relative_error):
    original = Usual(width).double()
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    how = {"normalization": None, "image_size": 16}
    with torch.no_grad():
        found = convert(original, n, coset_pool=None, **how)(images)
        expected = torch.stack([original(shift_hue(images, -k / n)) for k in range(n)], 1)
        assert relative_error(found, expected) < 1e-10
    network = mixed(convert(original, n, **how))
    network(images).square().sum().backward()
    torch.optim.SGD(network.parameters(), 0.1).step()
    with torch.no_grad():
        expected = network.eval()(images)
        for form in ("dense", "cyclic"):
            assert relative_error(fold(network, form)(images), expected) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(("n", "suffix"), [(3, ".onnx"), (6, ".pt2")])
def test_views_are_exported(n, suffix, tmp_path):
    if suffix == ".onnx":
        pytest.importorskip("onnxruntime")
    network = mixed(convert(Usual(4), n, normalization=None, image_size=16))
    assert export(network, tmp_path / f"net{suffix}", input_size=16).relative_error < 1e-5


@pytest.mark.parametrize("algorithm", ["dense", "cyclic"])
@pytest.mark.parametrize("memory", [torch.contiguous_format, LAST])
@pytest.mark.usefixtures("mixing_as_on_gpus")
def test_convolutions_keep_the_memory_format(algorithm, memory):
    x = torch.rand(6, 4, 8, 8).contiguous(memory_format=memory).requires_grad_()
    layer = BatchedCEConv2d(4, 6, 3, stride=2, padding=1, rotations=3, algorithm=algorithm)
    y = layer(x)
    assert y.is_contiguous(memory_format=memory)
    y.square().sum().backward()
    assert x.grad.is_contiguous(memory_format=memory)
    other = LAST if memory is torch.contiguous_format else torch.contiguous_format
    torch.testing.assert_close(layer(x.detach().contiguous(memory_format=other)), y)
    # slices as what they are slices of
    assert BatchedCEConv2d(2, 6, 3, rotations=3, algorithm=algorithm)(x[:, ::2]).is_contiguous(
        memory_format=torch.contiguous_format
    )
    if memory is LAST:
        part = BatchedCEConv2d(2, 6, 3, rotations=3, algorithm=algorithm)(x[:, :2])
        assert part.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("memory", [torch.contiguous_format, LAST])
def test_other_layers_keep_the_memory_format(memory):
    x = torch.rand(6, 4, 8, 8).contiguous(memory_format=memory)
    layers = (
        BatchedDropout(0.5, rotations=3),
        BatchedDropout(0.5, rotations=3, channels=True),
        BatchedStochasticDepth(0.5, rotations=3),
        BatchedCosetPool(3, "max"),
        BatchedCosetPool(3, "avg"),
    )
    for layer in layers:
        assert layer(x).is_contiguous(memory_format=memory), layer
    for lifting in ("hsv", "rgb"):
        assert HueLift(3, lifting)(x[:, :3].contiguous(memory_format=memory)).is_contiguous(
            memory_format=memory
        )


@pytest.mark.parametrize("shape", [(6, 4), (6, 5, 4), (6, 5, 5, 4)])
@pytest.mark.parametrize("algorithm", ["dense", "cyclic"])
def test_linear_layers_give_contiguous_memory_as_torchs_do(shape, algorithm):
    layer = BatchedCELinear(4, 7, rotations=3, algorithm=algorithm)
    x = torch.rand(shape)
    assert layer(x).is_contiguous()
    transposed = torch.rand(shape[0], *reversed(shape[1:])).permute(
        0, *range(len(shape) - 1, 0, -1)
    )
    assert layer(transposed).is_contiguous()


@pytest.mark.parametrize("algorithm", ["dense", "cyclic"])
def test_channels_last_costs_no_copy_around_the_cyclic_algorithm(algorithm):
    x = torch.rand(6, 8, 8, 8).contiguous(memory_format=LAST)
    layer = BatchedCEConv2d(8, 8, 3, padding=1, rotations=3, algorithm=algorithm)
    with torch.no_grad(), torch.profiler.profile() as profile:
        layer(x)
    copies = sum(event.count for event in profile.key_averages() if event.key == "aten::copy_")
    with torch.no_grad(), torch.profiler.profile() as profile:
        super(BatchedCEConv2d, layer).forward(x.unflatten(0, (3, 2)).permute(1, 2, 0, 3, 4))
    inside = sum(event.count for event in profile.key_averages() if event.key == "aten::copy_")
    assert copies == inside + (algorithm == "dense")


def test_networks_in_channels_last_memory_stay_so():
    network = convert(Usual(16), 3, normalization=None, image_size=16)
    seen = []
    for layer in (network.network.first, network.network.second):
        layer.register_forward_hook(lambda module, args, output: seen.append(output))
    network(torch.rand(2, 3, 16, 16))
    assert all(output.is_contiguous() for output in seen)
    seen.clear()
    with pytest.raises(RuntimeError, match="view size"):  # as of the original network
        network(torch.rand(2, 3, 16, 16).contiguous(memory_format=LAST))
    assert len(seen) == 2
    assert all(output.is_contiguous(memory_format=LAST) for output in seen)


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x):
        x = self.second(self.first(x))
        flat = x.view(x.shape[0], -1)
        same = x.view_as(x).view((x.shape[0], -1)).view_as(flat)
        return same.view(torch.int32).view(torch.float32)


def test_every_kind_of_view_folds():
    network = mixed(convert(Views(), 6, normalization=None, image_size=8))
    images = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        for form in ("dense", "cyclic"):
            torch.testing.assert_close(fold(network, form)(images), network(images))
