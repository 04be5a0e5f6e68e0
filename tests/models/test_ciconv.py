import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor.models import (
    ciconv_resnet18,
    ciconv_resnet44,
    cost,
    create_model,
    load_model,
    resnet18,
    resnet44,
    save_model,
)
from equicolor.models.ciconv import CIConv2d, color_invariant
from equicolor.models.export import export
from equicolor.nn import fold

MODEL = [[0.06, 0.63, 0.27], [0.3, 0.04, -0.35], [0.34, -0.6, 0.17]]


def slow_invariant(images, scale):
    """W by its definition: two-dimensional kernels, one plane at a time."""
    sigma = 2 ** scale.clamp(-2.5, 2.5)
    radius = math.ceil(3 * 2**2.5 + 0.5)
    x = torch.arange(-radius, radius + 1, dtype=images.dtype)
    y = x[:, None]
    bell = torch.exp(-(x**2 + y**2) / (2 * sigma**2))
    gauss = bell / bell.sum()
    gauss_x, gauss_y = -x * bell, -y * bell
    gauss_x, gauss_y = gauss_x / gauss_x.abs().sum(), gauss_y / gauss_y.abs().sum()

    def filtered(plane, kernel):
        return F.conv2d(plane[:, None], kernel[None, None], padding=radius)

    planes = [sum(w * images[:, c] for c, w in enumerate(row)) for row in MODEL]
    edges = sum(filtered(p, gauss_x) ** 2 + filtered(p, gauss_y) ** 2 for p in planes)
    w2 = edges / (filtered(planes[0], gauss) + 1e-5) ** 2
    return F.instance_norm(torch.log(w2 + 1e-5))


def one_pixel_at_a_time(image, scale):
    """The same without a convolution, for one image ``[3, H, W]``, in Python's floats."""
    sigma, radius = 2**scale, 18
    height, width = image.shape[1:]
    taps = range(-radius, radius + 1)
    bell = {(i, j): math.exp(-(i * i + j * j) / (2 * sigma**2)) for i in taps for j in taps}
    total = sum(bell.values())
    edge = sum(abs(j) * value for (_, j), value in bell.items())
    logs = []
    for row in range(height):
        for column in range(width):
            gx, gy, mean = [0.0] * 3, [0.0] * 3, 0.0
            for i in range(max(-radius, -row), min(radius, height - 1 - row) + 1):
                for j in range(max(-radius, -column), min(radius, width - 1 - column) + 1):
                    pixel = image[:, row + i, column + j].tolist()
                    planes = [sum(w * v for w, v in zip(m, pixel, strict=True)) for m in MODEL]
                    mean += bell[i, j] / total * planes[0]
                    for k, plane in enumerate(planes):
                        gx[k] += -j * bell[i, j] / edge * plane
                        gy[k] += -i * bell[i, j] / edge * plane
            w2 = sum(v * v for v in gx + gy) / (mean + 1e-5) ** 2
            logs.append(math.log(w2 + 1e-5))
    logs = torch.tensor(logs, dtype=torch.float64).view(1, height, width)
    return (logs - logs.mean()) / (logs.var(correction=0) + 1e-5).sqrt()


@pytest.mark.parametrize(
    ("scale", "size"),
    [
        *((scale, (9, 7)) for scale in (-9.0, -2.5, -1.3, 0.0, 0.7, 2.5, 4.0)),
        *((scale, size) for scale in (-1.3, 2.5) for size in ((23, 41), (40, 40))),
    ],
)
def test_agrees_with_its_formulas(scale, size, relative_error, tolerance):
    images = torch.rand(2, 3, *size, dtype=torch.float64)
    scale = torch.tensor([scale], dtype=torch.float64)
    expected = slow_invariant(images, scale)
    assert relative_error(color_invariant(images, scale), expected) < tolerance[torch.float64]
    single = color_invariant(images.float(), scale.float())
    assert single.dtype == torch.float32
    assert relative_error(single, expected) < 1e-4


def test_agrees_with_loops_over_pixels(relative_error):
    image = torch.rand(3, 7, 6, dtype=torch.float64)
    for scale in (-1.0, 1.5):
        ours = color_invariant(image[None], torch.tensor([scale]))[0]
        assert relative_error(ours, one_pixel_at_a_time(image, scale)) < 1e-9


def test_gradients_by_image_and_scale(relative_error):
    images = (0.2 + 0.6 * torch.rand(2, 3, 6, 5, dtype=torch.float64)).requires_grad_()
    scale = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(color_invariant, (images, scale))
    # And the same as the slow one's, on a larger image.
    images = torch.rand(2, 3, 20, 24, dtype=torch.float64, requires_grad=True)
    probe = torch.rand(2, 1, 20, 24, dtype=torch.float64)
    gradients = [
        torch.autograd.grad((function(images, scale) * probe).sum(), (images, scale))
        for function in (color_invariant, slow_invariant)
    ]
    for ours, expected in zip(*gradients, strict=True):
        assert relative_error(ours, expected) < 1e-10


def test_the_scale_is_clamped():
    images = torch.rand(1, 3, 16, 16)
    layer = CIConv2d()
    assert layer.scale.item() == 0
    with torch.no_grad():
        layer.scale.fill_(7.0)
    assert torch.equal(layer(images), color_invariant(images, torch.tensor([2.5])))


def test_output_is_normalised_one_image_at_a_time(relative_error):
    images = torch.rand(3, 3, 20, 20)
    out = CIConv2d()(images)
    assert out.shape == (3, 1, 20, 20)
    assert out.mean((1, 2, 3)).abs().max() < 1e-5
    assert torch.allclose(out.var((1, 2, 3), correction=0), torch.ones(3), atol=1e-3)
    assert relative_error(CIConv2d()(images[1:2]), out[1:2]) < 1e-5


def test_invariance_to_the_brightness_of_the_light(relative_error):
    # Away from the floors of 1e-5, dimmer light gives the same edges.
    images = 0.2 + 0.8 * torch.rand(1, 3, 24, 24, dtype=torch.float64)
    bright, dim = (color_invariant(f * images, torch.zeros(1)) for f in (1.0, 0.5))
    assert relative_error(dim, bright) < 1e-3


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_flat_images_are_harmless(value):
    images = torch.full((1, 3, 12, 12), value, requires_grad=True)
    layer = CIConv2d()
    layer(images).square().sum().backward()
    assert torch.isfinite(images.grad).all()
    assert torch.isfinite(layer.scale.grad).all()


def test_autocast_and_half_precision_do_not_round_inside(relative_error):
    images = torch.rand(2, 3, 16, 16)
    layer = CIConv2d()
    exact = layer(images)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(images), exact)
    rounded = layer.bfloat16()(images.bfloat16())
    assert rounded.dtype == torch.bfloat16
    again = color_invariant(images.bfloat16().float(), torch.zeros(1))
    assert relative_error(rounded, again) < 5e-3


@pytest.mark.parametrize(
    ("ours", "plain", "kernel"), [(ciconv_resnet18, resnet18, 7), (ciconv_resnet44, resnet44, 3)]
)
def test_networks_are_the_plain_ones_with_one_channel_in(ours, plain, kernel, count_parameters):
    with torch.device("meta"):
        network, reference = ours(), plain()
    first = reference.conv1.weight
    assert network.conv1.weight.shape == (first.shape[0], 1, kernel, kernel)
    less = first.numel() * 2 // 3 - 1  # two channels of the stem, but for the scale
    assert count_parameters(network) == count_parameters(reference) - less
    assert isinstance(network.normalize, nn.Identity)
    assert network.image_size == reference.image_size
    kept = {k: v.shape for k, v in network.state_dict().items() if k != "conv1.weight"}
    assert kept.pop("ciconv.scale") == (1,)
    assert kept == {k: v.shape for k, v in reference.state_dict().items() if k != "conv1.weight"}


@pytest.mark.parametrize("name", ["ciconv_resnet18", "ciconv_resnet44"])
def test_configurations_and_files_round_trip(name, tmp_path):
    network = create_model(name, num_classes=5, width=4).eval()
    with torch.no_grad():
        network.ciconv.scale.fill_(0.8)
    config = json.loads(json.dumps(network.config))
    assert create_model(config.pop("model"), **config).config == network.config
    loaded = load_model(save_model(network, tmp_path / "net.safetensors"))
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(images), network(images))
    assert loaded.config == network.config


@pytest.mark.slow
def test_networks_learn_their_scale():
    network = ciconv_resnet44(4, width=4)
    images, labels = torch.rand(8, 3, 16, 16), torch.arange(8) % 4
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        loss = F.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert network.ciconv.scale.item() != 0


def test_folding_keeps_the_layer(settle, relative_error):
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    network = settle(ciconv_resnet18(5, width=4).double(), images)
    folded = fold(network)
    assert relative_error(folded(images), network(images)) < 1e-10
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())


@pytest.mark.slow
def test_exports(settle, shallow, tmp_path):
    network = settle(shallow(ciconv_resnet44(5, width=4)), torch.rand(4, 3, 16, 16))
    report = export(network, tmp_path / "net.pt2", "exported-program", input_size=16)
    assert report.relative_error < 1e-4


@pytest.mark.slow
def test_compiles_in_one_graph(relative_error):
    layer = CIConv2d()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    images = torch.rand(2, 3, 16, 16)
    compiled(images).square().sum().backward()
    assert relative_error(compiled(images), layer(images)) < 1e-6
    with torch.autocast("cpu", torch.bfloat16):
        assert relative_error(compiled(images), layer(images)) < 1e-6


def test_costs_are_counted():
    assert cost(ciconv_resnet44(10, width=4), 16).macs > 0


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="invariant must be one of 'W'; got 'H'"):
        CIConv2d("H")
    with pytest.raises(ValueError, match=r"color_invariant expects a batch of RGB images"):
        CIConv2d()(torch.rand(3, 8, 8))
    with pytest.raises(ValueError, match=r"color_invariant expects one scale, got \[2\]"):
        color_invariant(torch.rand(1, 3, 8, 8), torch.zeros(2))
    with pytest.raises(ValueError, match="width needs 4 numbers, one a stage; got"):
        ciconv_resnet18(10, width=[1, 2])
