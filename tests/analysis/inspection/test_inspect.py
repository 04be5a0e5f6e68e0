"""A page about a network: its numbers, which are those of the experiments, and what is left out."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import equicolor
from equicolor.analysis import layers_left_out
from equicolor.analysis.inspection import page
from equicolor.analysis.inspection.inspect import inspect
from equicolor.data.images import ImageSet
from equicolor.evaluation.diagnose import Subject
from equicolor.models import cecnn
from equicolor.models.selector import hue_selector
from equicolor.nn import CEConv2d, CELiftConv2d, CosetMaxPool
from equicolor.paper.neuron_features import measure_and_draw


class Transformer(nn.Module):
    """Patches as a map, and from there on tokens ``[B, N, C]``."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
            for _ in range(blocks)
        )

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).mT
        for block in self.blocks:
            tokens = tokens + block(tokens)
        return self.head(tokens.mean(1))


def subject_of(network: nn.Module, images: Tensor) -> Subject:
    labels = torch.arange(len(images)) % 2
    pixels = (255 * images).byte()
    image_set = ImageSet("toy", "test", labels, ("apple", "banana"), pixels=pixels)
    facts = {"dataset": "toy", "split": "test", "size": images.shape[-1]}
    other = "the network has other outputs"
    return Subject(network.eval(), image_set, [(images, labels)], facts, None, class_mismatch=other)


@pytest.mark.parametrize("option", ["top", "units", "measured_units"])
def test_wrong_numbers_are_refused_before_the_network_runs(option: str) -> None:
    network = Transformer(1)
    network.register_forward_pre_hook(lambda *_: pytest.fail("the network ran"))
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        inspect(subject_of(network, torch.rand(4, 3, 16, 16)), **{option: 0})


@pytest.mark.parametrize("class_mismatch", ["", "the network has other outputs"])
def test_corrupt_images_are_not_counted(class_mismatch: str) -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.rand(4, 3, 8, 8)
    subject = dataclasses.replace(subject_of(network, images), class_mismatch=class_mismatch)
    subject.batches[0] = images[:3], torch.tensor([0, 1, 0])  # the last one could not be decoded
    found = inspect(subject, top=2, units=1, shifts=2)
    assert found.images == found.summary()["images"] == 3


class Branches(nn.Module):
    """One channel sees single pixels, the next one 5 × 5."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide, self.relu = nn.Conv2d(3, 1, 1), nn.Conv2d(3, 1, 5), nn.ReLU()
        for layer in (self.narrow, self.wide):
            nn.init.constant_(layer.bias, 5.0)  # both are active

    def forward(self, images: Tensor) -> Tensor:
        maps = torch.cat((self.narrow(images)[..., 2:-2, 2:-2], self.wide(images)), 1)
        return self.relu(maps).mean((2, 3))


def test_the_field_of_a_layer_is_that_of_its_widest_channel() -> None:
    found = inspect(subject_of(Branches(), torch.rand(4, 3, 12, 12)), top=2, units=2)
    assert [row["receptive_field"] for row in found.rows()] == [[5, 5]]
    text = next(each.text for each in page.sections(found) if each.title.startswith("Neuron"))
    assert "Its receptive field is at most 5 × 5 pixels; black" in text


def test_own_networks_are_tested_over_their_own_rotations() -> None:
    """Nothing but its layers says how many rotations a network of the user's own has."""
    for lifting in ("hsv", "rgb"):
        network = nn.Sequential(
            CELiftConv2d(3, 4, 3, rotations=6, lifting=lifting),
            nn.ReLU(),
            CosetMaxPool(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        found = inspect(subject_of(network, torch.rand(4, 3, 8, 8)), top=2, units=1)
        assert (found.rotations, found.action) == (6, lifting)
        assert max(found.equivariance.values()) < 1e-5


def test_canonicalised_networks_are_tested_over_the_rotations_of_the_selector() -> None:
    """Whatever is inside: here, thirds of a turn about the grey axis."""
    select = hue_selector(rotations=4, size=16, width=2)
    network = equicolor.canonicalize(cecnn(2, width=2), select=select, rotations=4)
    network.fit(torch.rand(16, 3, 28, 28), epochs=1)
    found = inspect(subject_of(network, torch.rand(4, 3, 28, 28)), top=2, units=1)
    assert (found.rotations, found.action) == (4, "hsv")
    assert max(found.equivariance.values()) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        (1, "Left out: 1 layer that gives no map [B, C, H, W], blocks.0.2 [B, 16, 16]."),
        (
            3,
            "Left out: 3 layers that give no map [B, C, H, W], from blocks.0.2 [B, 16, 16] to "
            "blocks.2.2 [B, 16, 16].",
        ),
    ],
)
def test_layers_without_a_map_are_reported_as_left_out(
    blocks: int, sentence: str, tmp_path: Path
) -> None:
    found = inspect(subject_of(Transformer(blocks), torch.rand(4, 3, 16, 16)), top=2, units=1)
    assert [row["layer"] for row in found.rows()] == ["patches"]
    assert page.headline(found).endswith(f"over 8 units. {sentence}")
    written, numbers = page.write(found, tmp_path / "page.html")
    assert written.read_text().count(sentence) == 3  # at the top, at the selectivity and the table
    expected = {f"blocks.{block}.2": [1, 16, 16] for block in range(blocks)}
    assert json.loads(numbers.read_text())["network"]["left_out"] == expected


def test_warnings_are_on_the_page(tmp_path: Path) -> None:
    subject = subject_of(Transformer(1), torch.rand(4, 3, 16, 16))
    subject.facts["warnings"] = ["warning: 3 of 4 test images are training images of run: a, b, c"]
    written, _ = page.write(inspect(subject, top=2, units=1), tmp_path / "page.html")
    assert "Warning: 3 of 4 test images are training images of run: a, b, c." in written.read_text()


def test_nothing_is_left_out_of_maps_or_where_layers_are_named() -> None:
    images = torch.rand(4, 3, 16, 16)
    maps = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for network, layers in ((maps.append(nn.Linear(4, 5)), None), (Transformer(1), ["patches"])):
        found = inspect(subject_of(network, images), layers=layers, top=2, units=1)
        assert found.summary()["left_out"] == {}
        assert "Left out" not in page.headline(found)


def test_what_is_left_out_without_modules_for_nonlinearities() -> None:
    """Norms in their place, then other layers of tokens with weights; not the answers."""
    network = Transformer(1)
    network.blocks[0][2] = nn.Identity()
    assert layers_left_out(network, 16) == {"blocks.0.0": [1, 16, 8]}
    network.blocks[0][0] = nn.Identity()
    assert layers_left_out(network, 16) == {"blocks.0.1": [1, 16, 16], "blocks.0.3": [1, 16, 8]}
    flattened = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 9))
    assert layers_left_out(flattened, 16) == {}
    assert layers_left_out(flattened.append(nn.ReLU()), 16) == {"4": [1, 9]}


@pytest.mark.slow
@pytest.mark.parametrize("measured", [2, 48])
def test_hues_of_rows_are_those_of_the_experiment(measured: int) -> None:
    """Whatever else is drawn, in frames of one size, against one background."""
    lift = CELiftConv2d(3, 6, 5, rotations=3, bias=False)
    lift.weight.data[1:] -= lift.weight.data[1:].mean(1, keepdim=True)  # these see colour alone
    network = nn.Sequential(
        lift, nn.ReLU(), CEConv2d(6, 6, 3, 2, rotations=3, bias=False), nn.ReLU(), CosetMaxPool()
    )
    images = torch.rand(12, 3, 11, 11) * torch.tensor([1.0, 0.8, 0.4]).view(3, 1, 1)
    subject = subject_of(network.append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten()), images)
    found = inspect(subject, top=4, units=2, measured_units=measured)
    rows, _ = measure_and_draw(network, subject.batches, top=4, measured_units=measured)
    assert [row["layer"] for row in rows] == [row["layer"] for row in found.rows()] == ["1", "3"]
    for row, expected in zip(found.rows(), rows, strict=True):
        assert row["hue_channels"] >= 2
        for key in ("hue_deviation", "hue_deviation_data", "hue_channels"):
            assert row[key] == expected[key]
