"""Streaming top-N and selectivity against loops over units and images."""

import pytest
import torch
from torch import nn

from equicolor.analysis import (
    activations_at,
    find_layers,
    layer_equivariance,
    neuron_features,
    selectivity,
    selectivity_index,
    top_activations,
)
from equicolor.analysis.activations import select_images
from equicolor.analysis.selectivity import grey_projection, luma
from equicolor.analysis.taps import tapped
from equicolor.color import shift_hue
from equicolor.data.augment import Augmentation
from equicolor.data.decoding import decode
from equicolor.data.images import ImageSet
from equicolor.data.loaders import ResidentLoader


@pytest.fixture
def network(make_network):
    return make_network(3, head="avg").double().eval()


@pytest.fixture
def images():
    return torch.rand(11, 3, 12, 12, dtype=torch.float64)


def features_of(network, layer, images):
    """Features ``[B, C, n, H, W]`` of one layer."""
    found = {}
    with torch.no_grad(), tapped(network, [layer], found.__setitem__):
        network(images)
    features = found[layer]
    return features if features.ndim == 5 else features.unsqueeze(2)


def slow_top(network, layer, images, top):
    """For every unit: sorted pairs of (activation, raw_image), one position an image."""
    everything = [features_of(network, layer, image[None])[0] for image in images]
    channels, rotations = everything[0].shape[:2]
    table = {}
    for c in range(channels):
        for k in range(rotations):
            peaks = [
                (max(0.0, float(features[c, k].max())), image)
                for image, features in enumerate(everything)
            ]
            table[c, k] = sorted(peaks, key=lambda peak: (-peak[0], peak[1]))[:top]
    return table, everything


@pytest.mark.parametrize("batch", [1, 4, 11])
def test_top_activations_are_those_of_a_loop(network, images, batch):
    found = top_activations(network, list(images.split(batch)), top=5)
    assert list(found) == ["2", "6"]
    for layer, tops in found.items():
        table, everything = slow_top(network, layer, images, 5)
        assert tops.values.shape == (*everything[0].shape[:2], 5)
        for (c, k), peaks in table.items():
            values, numbers = zip(*peaks, strict=True)
            torch.testing.assert_close(tops.values[c, k], torch.tensor(values))
            assert tops.images[c, k].tolist() == list(numbers)
            for value, image, position in zip(
                values, numbers, tops.positions[c, k].tolist(), strict=True
            ):
                there = float(everything[image][c, k].flatten()[position])
                assert max(there, 0) == pytest.approx(value)


def test_fewer_images_than_asked_for(network, images):
    found = top_activations(network, [images[:3]], ["2"], top=50)["2"]
    assert found.values.shape == (4, 3, 3)
    assert found.images.sort(-1).values.unique(dim=0).shape[0] == 1  # each image once


def test_nan_and_other_sizes_are_refused(network, images):
    with pytest.raises(ValueError, match=r"the size of the first, \[12, 12\], got \[8, 8\]"):
        top_activations(network, [images, images[..., :8, :8]])
    broken = images.clone()
    broken[-1, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="values from nan to nan"):
        top_activations(network, [broken])
    for bad in (torch.nan, torch.inf):
        next(network.parameters()).data.fill_(bad)
        with pytest.raises(ValueError, match="gives NaN or infinity for some images"):
            top_activations(network, [images])


def test_infinite_activations_are_refused(images):
    """They would make selectivity and neuron features NaN."""
    network = nn.Sequential(nn.Conv2d(3, 1, 1), nn.ReLU())
    network[0].weight.data.fill_(torch.finfo(torch.float32).max)
    with pytest.raises(ValueError, match="layer 1 gives NaN or infinity"):
        top_activations(network, [0.5 + images / 2])


@pytest.mark.parametrize(
    "look",
    [
        lambda network, images: top_activations(network, [images]),
        lambda network, images: selectivity(network, [images, images]),
        lambda network, images: neuron_features(network, [images], "2"),
        lambda network, images: layer_equivariance(network, images, find_layers(network, 12)),
        lambda network, images: selectivity(
            network, [images], found=top_activations(network, [images.clamp(0, 1)])
        ),
    ],
)
def test_images_outside_0_to_1_are_refused(look, network, images):
    look(network, images)
    for scaled, values in ((255 * images, "values from .* to 25"), (images - 1, "values from -1 ")):
        with pytest.raises(ValueError, match=rf"expects images in \[0, 1\], but got {values}"):
            look(network, scaled)


def test_selectivity_is_that_of_greyed_receptive_fields(network, images):
    """By definition: the receptive field of every unit is made grey in each of its images."""
    found = selectivity(network, [images[:6], images[6:]], top=4)
    for layer, index in found.layers.items():
        tops, field = found.top[layer], found.top[layer].layer.field
        for c in range(index.shape[0]):
            for k in range(index.shape[1]):
                colour = grey = 0.0
                for j in range(4):
                    image = images[tops.images[c, k, j]].clone()
                    position = int(tops.positions[c, k, j])
                    top, left, bottom, right = field.box(c, position)
                    crop = image[:, top:bottom, left:right]
                    red, green, blue = crop.clone()
                    crop[:] = 0.299 * red + 0.587 * green + 0.114 * blue
                    activation = features_of(network, layer, image[None])[0, c, k]
                    grey += max(0.0, float(activation.flatten()[position]))
                    colour += float(tops.values[c, k, j])
                expected = 1 - grey / colour if colour else 0.0
                assert float(index[c, k]) == pytest.approx(expected, abs=1e-5)
    units = torch.cat([index.flatten() for index in found.layers.values()])
    assert found.mean == pytest.approx(float(units.mean()))
    assert found.units == len(units)


def test_colour_only_and_grey_only_units():
    """A unit that subtracts a colour from another needs colour; one that adds them does not."""
    network = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.ReLU())
    weight = torch.zeros(3, 3, 3, 3)
    weight[0, 0], weight[0, 2] = 1, -1  # red without blue
    weight[1] = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)  # bright
    weight[1, :, 1:] *= -1  # … above dark: an edge of luma
    weight[2] = -1  # never active
    network[0].weight.data = weight
    index = selectivity(network, [torch.rand(30, 3, 10, 10)]).layers["1"]
    assert float(index[0]) > 0.99
    assert abs(float(index[1])) < 0.01
    assert float(index[2]) == 0


def test_index_of_silent_units_is_zero():
    values, grey = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[3.0, 0.0], [1.0, 0.0]])
    assert selectivity_index(values, grey).tolist() == [-0.5, 0.0]


def test_rotations_of_a_unit_like_the_same_images_in_other_hues(make_network):
    """On data with every image in every hue, rotation k has the images of 0, shifted."""
    network = make_network(4, "hsv").double().eval()
    images = torch.rand(5, 3, 12, 12, dtype=torch.float64)
    orbit = torch.cat([shift_hue(images, k / 4) for k in range(4)])  # number 5 k + i
    found = top_activations(network, [orbit], ["2", "6"], top=3)
    for tops in found.values():
        for k in range(1, 4):
            torch.testing.assert_close(tops.values[:, k], tops.values[:, 0])
            active = tops.values[:, 0] > 0
            assert active.any()
            turned = (tops.images[:, 0] + 5 * k) % 20
            assert torch.equal(tops.images[:, k][active], turned[active])
            assert torch.equal(tops.positions[:, k][active], tops.positions[:, 0][active])


def test_networks_that_keep_rotations_in_the_batch():
    """Features [n * B, C, H, W], rotation by rotation, are those of [B, C, n, H, W]."""

    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, images):
            return self.conv(torch.cat([shift_hue(images, -k / 3) for k in range(3)]))

    network, images = Folded(), torch.rand(6, 3, 8, 8)
    layer = find_layers(network, 8, ["conv"])["conv"]
    assert (layer.channels, layer.rotations, layer.field.size()) == (4, 3, (3, 3))
    tops = top_activations(network, [images[:4], images[4:]], ["conv"], top=2)["conv"]
    with torch.no_grad():
        for k in range(3):
            plain = network.conv(shift_hue(images, -k / 3)).flatten(2).amax(-1).clamp(min=0)
            torch.testing.assert_close(tops.values[:, k], plain.topk(2, 0).values.T)


def test_select_images_of_a_loader_are_those_of_its_batches():
    pixels = torch.randint(256, (9, 3, 20, 16)).byte()
    toy = ImageSet("toy", "test", torch.zeros(9).long(), ("a",), pixels=pixels)
    centre = Augmentation(size=8, crop="centre", resize=10, flip=False)
    loader = ResidentLoader(decode(toy), centre, batch_size=4)
    chosen = torch.tensor([0, 3, 5, 6, 8])
    everything = torch.cat([images for images, _ in loader])
    for batches in (loader, list(loader), [images for images, _ in loader]):
        selected = list(select_images(batches, chosen))
        assert torch.equal(torch.cat([numbers for numbers, _ in selected]), chosen)
        assert torch.equal(torch.cat([images for _, images in selected]), everything[chosen])


def test_batches_that_are_read_only_once_are_refused(network, images):
    once = iter([images])
    found = top_activations(network, once, ["2"], top=2)
    with pytest.raises(ValueError, match=r"batches gave 0 of the .* images it gave before"):
        activations_at(network, once, found, luma)
    with pytest.raises(ValueError, match="take a list or a loader instead of a generator"):
        neuron_features(network, (part for part in images.split(4)), "2")
    with pytest.raises(ValueError, match=r"batches gave 4 of the 11 images"):
        list(select_images([images[:4]], torch.arange(11)))
    with pytest.raises(ValueError, match="batches gave 0 of the"):
        selectivity(network, iter([images]), ["2"], grey="opponent")


def test_bad_input(network, images):
    with pytest.raises(ValueError, match="batches holds no images"):
        top_activations(network, [])
    with pytest.raises(ValueError, match="layers must name at least one layer, got none"):
        top_activations(network, [images], [])
    with pytest.raises(ValueError, match="top must be at least 1, got 0"):
        top_activations(network, [images], top=0)
    with pytest.raises(ValueError, match="grey must be one of 'luma', 'opponent'; got 'mean'"):
        selectivity(network, [images], grey="mean")


def test_opponent_grey_is_the_first_principal_component():
    images = torch.rand(4, 3, 16, 16, dtype=torch.float64)
    images = images * 0.2 + 0.6 * torch.rand(4, 1, 16, 16, dtype=torch.float64)  # mostly intensity
    space = torch.tensor([[1 / 1.5] * 3, [1, -1, 0], [0.5, 0.5, -1]], dtype=torch.float64)
    pixels = images.movedim(1, -1).reshape(-1, 3) @ space.T - torch.tensor([1.0, 0, 0])
    projected = grey_projection(images)(images)
    opponent = projected.movedim(1, -1).reshape(-1, 3) @ space.T - torch.tensor([1.0, 0, 0])
    mean = pixels.mean(0)
    _, _, axes = torch.linalg.svd(pixels - mean, full_matrices=False)
    expected = mean + ((pixels - mean) @ axes[0])[:, None] * axes[0]
    torch.testing.assert_close(opponent, expected, rtol=1e-8, atol=1e-8)
    assert float(axes[0].abs()[0]) > 0.9  # which is intensity, for these


def test_opponent_selectivity_of_colour_and_of_brightness():
    network = nn.Sequential(nn.Conv2d(3, 2, 1, bias=False), nn.ReLU())
    network[0].weight.data = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, 1.0]]).view(2, 3, 1, 1)
    images = 0.8 * torch.rand(20, 1, 8, 8) + 0.2 * torch.rand(20, 3, 8, 8)
    index = selectivity(network, [images], grey="opponent").layers["1"]
    assert float(index[0]) > 0.5
    assert abs(float(index[1])) < 0.05
