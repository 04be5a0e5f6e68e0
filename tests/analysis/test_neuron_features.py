"""Neuron features against a loop over crops; rows of units with known colours."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import equicolor
from equicolor.analysis import (
    RandomHues,
    find_layers,
    first_filters,
    hue_rows,
    layer_equivariance,
    neuron_features,
    top_activations,
)
from equicolor.analysis.activations import select_images
from equicolor.analysis.hue_rows import chroma, mean_colour
from equicolor.color import rotate_hue, shift_hue
from equicolor.models import cecnn, resnet44
from equicolor.nn import CELiftConv2d
from equicolor.testing import equivariance_error


def slow_feature(images, tops, channel, rotation, *, margin):
    """The definition, with images padded by so much that no frame leaves them."""
    padded = F.pad(images, (margin,) * 4)
    total, weights = 0, 0.0
    values = tops.values[channel, rotation]
    for value, image, position in zip(
        values.tolist(),
        tops.images[channel, rotation].tolist(),
        tops.positions[channel, rotation].tolist(),
        strict=True,
    ):
        top, left, bottom, right = (
            end + margin for end in tops.layer.field.frame(channel, position)
        )
        weight = value / float(values[0])
        total = total + weight * padded[image, :, top:bottom, left:right]
        weights += weight
    return total / weights


@pytest.mark.parametrize("rotations", [1, 3])
def test_features_are_weighted_means_of_crops(rotations, settle):
    network = resnet44(4, width=2, rotations=rotations)
    images = torch.rand(9, 3, 32, 32)
    settle(network, images)
    layer = "layers.1.0.relu#1"
    tops = top_activations(network, [images], [layer], top=5)[layer]
    drawn = neuron_features(network, [images[:4], images[4:]], layer, [2, 0], top=5, crops=2)
    assert drawn.channels == (2, 0)
    size = tops.layer.field.size()
    assert drawn.features.shape == (2, rotations, 3, *size)
    assert drawn.crops.shape == (2, rotations, 2, 3, *size)
    for unit, channel in enumerate(drawn.channels):
        for rotation in range(rotations):
            if not tops.alive[channel, rotation]:
                assert not drawn.features[unit, rotation].any()
                continue
            expected = slow_feature(images, tops, channel, rotation, margin=80)
            torch.testing.assert_close(drawn.features[unit, rotation], expected)
            top, left, *_ = tops.layer.field.frame(
                channel, int(tops.positions[channel, rotation, 0])
            )
            strongest = F.pad(images[tops.images[channel, rotation, 0]], (80,) * 4)
            crop = strongest[:, top + 80 : top + 80 + size[0], left + 80 : left + 80 + size[1]]
            torch.testing.assert_close(drawn.crops[unit, rotation, 0], crop)
    torch.testing.assert_close(drawn.values, tops.values[[2, 0], :, :2])


def test_limited_frames_are_the_middle():
    network = nn.Sequential(nn.Conv2d(3, 2, 5, padding=2), nn.ReLU())
    images = torch.rand(6, 3, 9, 9)
    whole = neuron_features(network, [images], "1").features
    middle = neuron_features(network, [images], "1", limit=3).features
    torch.testing.assert_close(middle, whole[..., 1:4, 1:4])


def test_bad_units():
    network, images = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()), torch.rand(2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"channels of '1', 0 to 1; got \[2\]"):
        neuron_features(network, [images], "1", [2])
    with pytest.raises(ValueError, match="rows must be one of 'dataset', 'orbit'"):
        neuron_features(network, [images], "1", rows="both")


@pytest.fixture
def red_spots():
    """One unit of six rotations that looks for a red spot; images with a spot of one hue each."""
    layer = CELiftConv2d(3, 1, 3, rotations=6, lifting="hsv", bias=False)
    weight = torch.zeros(1, 3, 1, 3, 3)
    weight[0, :, 0, 1, 1] = torch.tensor([1.0, -0.5, -0.5])
    layer.weight.data = weight
    hues = torch.rand(120)
    spot = torch.tensor([0.9, 0.2, 0.2]).view(1, 3, 1, 1)
    images = torch.full((120, 3, 7, 7), 0.5)
    images[:, :, 3:4, 3:4] = shift_hue(spot.expand(120, 3, 1, 1), hues)
    return nn.Sequential(layer, nn.ReLU()), images


def test_rows_of_a_known_unit_have_the_hues_of_its_rotations(red_spots):
    network, images = red_spots
    drawn = neuron_features(network, [images], "1", top=8)
    measured = hue_rows(drawn.features)
    expected = torch.tensor([0.0, 60.0, 120.0, 180.0, 240.0, 300.0])
    off = (measured.hues[0] - expected + 180) % 360 - 180
    assert float(off.abs().max()) < 10  # the hues nearest in 120 random ones
    assert measured.median_deviation() < 10
    assert float(measured.deviations[0, 0]) == pytest.approx(0, abs=1e-3)


def test_orbit_rows_are_one_image_in_all_hues(red_spots):
    network, images = red_spots
    drawn = neuron_features(network, [images], "1", top=8, rows="orbit", action="hsv")
    for k in range(1, 6):
        for rank in range(3):
            turned = shift_hue(drawn.crops[0, 0, rank], k / 6)
            torch.testing.assert_close(drawn.crops[0, k, rank], turned, atol=1e-5, rtol=0)
    assert hue_rows(drawn.features).median_deviation() < 1
    # They are the strongest of all rotations.
    tops = top_activations(network, [images], ["1"], top=8)["1"]
    strongest = tops.values.flatten().sort(descending=True).values[:3]
    torch.testing.assert_close(drawn.values[0, 0], strongest)


def test_random_hues_undo_the_bias_of_the_data(red_spots):
    """Where all spots are red, every rotation takes red; in random hues each finds its own."""
    network, _ = red_spots
    images = torch.full((200, 3, 7, 7), 0.5)
    images[:, :, 3, 3] = torch.tensor([0.9, 0.2, 0.2]) + 0.1 * torch.rand(200, 3)
    batches = list(images.split(64))
    biased = hue_rows(neuron_features(network, batches, "1", top=8).features)
    assert biased.median_deviation() > 50
    assert biased.hues[0, 3].isnan()  # the opposite hue excites nothing
    fair = hue_rows(neuron_features(network, RandomHues(batches), "1", top=8).features)
    assert fair.median_deviation() < 10
    other = hue_rows(neuron_features(network, RandomHues(batches, seed=1), "1", top=8).features)
    assert not torch.equal(other.hues, fair.hues)


def test_rotations_that_are_never_active_have_no_hue():
    """Their rows are black, on any background; they change nothing for the others."""
    grey = torch.full((1, 1, 3, 4, 4), 0.2)
    red = grey + torch.tensor([0.6, 0.0, 0.0]).view(3, 1, 1)
    rows = torch.cat([rotate_hue(red, k / 3) for k in range(3)], 1).repeat(2, 1, 1, 1, 1)
    rows += torch.tensor([0.0, 0.2, 0.0]).view(3, 1, 1)
    rows[1] = 0
    background = mean_colour(rows)
    torch.testing.assert_close(background, mean_colour(rows[:1]))
    measured = hue_rows(rows, background)
    assert measured.median_deviation() < 0.01
    for each in (measured.hues, measured.differences, measured.deviations):
        assert each[1].isnan().all()
        assert not each[0].isnan().any()
    rows[0, 1:] = 0
    assert math.isnan(hue_rows(rows, background).median_deviation())


def test_random_hues_are_those_of_the_image_and_not_of_the_batch():
    images = torch.rand(7, 3, 4, 4)
    everything = torch.cat(list(RandomHues(list(images.split(3)))))
    chosen = torch.tensor([1, 2, 6])
    selected = list(select_images(RandomHues(list(images.split(2))), chosen))
    torch.testing.assert_close(torch.cat([part for _, part in selected]), everything[chosen])
    value, low = images.amax(1), images.amin(1)
    torch.testing.assert_close(everything.amax(1), value)
    torch.testing.assert_close(everything.amin(1), low)


def test_hues_count_by_chroma():
    """A pale area of another hue moves the hue of an image by what it is worth."""
    image = torch.full((1, 2, 3, 1, 2), 0.5)
    image[0, :, :, 0, 0] = torch.tensor([1.0, 0.0, 0.0])
    image[0, 1, :, 0, 0] = torch.tensor([0.0, 1.0, 0.0])
    image[0, :, :, 0, 1] = torch.tensor([0.5, 0.5, 0.55])  # a little blue
    measured = hue_rows(image)
    vector = 1 + 0.05 * math.e ** complex(0, -2 * math.pi / 3)
    angle = math.degrees(math.atan2(vector.imag, vector.real)) % 360
    assert float(measured.hues[0, 0]) == pytest.approx(angle, abs=1e-3)
    clean = hue_rows(image, background=torch.tensor([0.25, 0.25, 0.275]))
    assert float(clean.hues[0, 0]) == pytest.approx(0, abs=1e-3)


def test_rows_are_compared_pixel_by_pixel():
    """The mean colour of a red spot on cyan is grey, and that of images on grass is green."""
    shape = torch.zeros(2, 3, 4, 4)
    shape[0, 0, 1:3, 1:3], shape[0, 1:, 0] = 0.5, 0.5
    shape[1] = 0.3 * torch.rand(3, 4, 4)
    rows = torch.stack([rotate_hue(shape, k / 3) for k in range(3)], 1)
    grass = torch.tensor([0.0, 0.4, 0.1])
    on_grass = rows + grass.view(3, 1, 1)
    assert hue_rows(on_grass).median_deviation() > 30
    assert hue_rows(on_grass, background=grass).median_deviation() < 0.01
    # What all rows have in common is what they are on.
    assert hue_rows(on_grass, background=mean_colour(on_grass)).median_deviation() < 0.01
    mirrored = hue_rows(rows.flip(1).roll(1, 1))
    torch.testing.assert_close(mirrored.differences[:, 1:], torch.tensor([[-120.0, 120]] * 2))
    assert mirrored.median_deviation() == pytest.approx(120, abs=1e-3)


def test_rotating_colours_turns_chroma():
    images = torch.rand(2, 3, 4, 4)
    turned = chroma(rotate_hue(images, 0.2))
    expected = chroma(images) * torch.polar(torch.tensor(1.0), torch.tensor(2 * math.pi * 0.2))
    torch.testing.assert_close(turned, expected)


@pytest.mark.parametrize("lifting", ["rgb", "hsv"])
def test_filters_answer_like_the_layer(lifting):
    network = cecnn(width=4, rotations=6, lifting=lifting)
    found = first_filters(network)
    assert (found.layer, found.lifting) == ("blocks.0.0", lifting)
    assert found.images.shape == (4, 6, 3, 3, 3)
    assert 0 <= float(found.images.min()) <= float(found.images.max()) <= 1 + 1e-6
    if lifting == "rgb":  # convolution with the drawn filters is the layer, up to scale
        images = torch.rand(2, 3, 8, 8)
        layer = network.blocks[0][0]
        filters = (found.images - 0.5).flatten(0, 1)
        drawn = F.conv2d(images, filters).unflatten(1, (4, 6))
        expected = layer(images) - layer.bias.view(1, -1, 1, 1, 1)
        ratio = expected / drawn
        torch.testing.assert_close(
            ratio, ratio[:1, :, :1, :1, :1].expand_as(ratio), rtol=1e-2, atol=1e-3
        )


def test_filters_of_plain_networks():
    assert first_filters(resnet44(width=4)).images.shape == (4, 1, 3, 3, 3)
    assert first_filters(nn.Sequential(nn.Flatten(), nn.Linear(3, 2))) is None
    by_colour = nn.Conv2d(3, 6, 1, groups=3)  # two filters of each colour
    drawn = first_filters(nn.Sequential(by_colour)).images
    assert ((drawn != 0.5).flatten(1).nonzero()[:, 1]).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("lifting", ["rgb", "hsv"])
def test_layer_equivariance_is_that_of_the_network_cut_there(make_network, lifting, smooth_images):
    network = make_network(4, lifting, head="max").double().eval()
    images = smooth_images(2, 12, 12)
    layers = find_layers(network, 12, ["2", "6", "8"])
    for action in ("rgb", "hsv"):
        errors = layer_equivariance(network, images, layers, rotations=4, action=action)
        for name, error in errors.items():
            cut = network[: int(name) + 1]
            expected = equivariance_error(cut, images, 4, action)
            assert error == pytest.approx(expected, rel=1e-6, abs=1e-13)
        assert (max(errors.values()) < 1e-10) == (action == lifting)


@pytest.mark.slow
@pytest.mark.parametrize("lifting", ["rgb", "hsv"])
def test_converted_networks_are_looked_at_like_ours(lifting, settle):
    """They keep their rotations in the batch."""
    images = torch.rand(4, 3, 32, 32)
    plain = resnet44(4, width=2)
    for blocks in plain.layers:
        del blocks[1:]
    settle(plain, images)
    network = equicolor.convert(plain, rotations=3, lifting=lifting)
    layers = find_layers(network, 32)
    inner = [layer for layer in layers.values() if layer.channels > 1]
    assert {layer.rotations for layer in inner} == {3}
    assert not any(layer.field.unknown for layer in inner)
    errors = layer_equivariance(network, images, layers, rotations=3, action=lifting)
    assert max(errors.values()) < 1e-4
    filters = first_filters(network)
    assert filters.lifting == lifting
    torch.testing.assert_close(filters.images[:, 0], first_filters(plain).images[:, 0])
    drawn = neuron_features(network, [images], "network.layers.0", [1], top=2)
    assert drawn.features.shape[:2] == (1, 3)
