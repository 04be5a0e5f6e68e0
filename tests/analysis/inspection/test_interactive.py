"""The interactive page without a browser: its data, its HTML and its size."""

import base64
import dataclasses
import html.parser
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import equicolor
from equicolor.analysis import find_layers, layers_left_out
from equicolor.analysis.inspection import interactive
from equicolor.analysis.inspection.turning import FeatureRows, TurnedHues, count_steps, turn_hues
from equicolor.color import shift_hue
from equicolor.data.images import ImageSet
from equicolor.evaluation.diagnose import Subject
from equicolor.evaluation.evaluate import evaluate
from equicolor.models import cecnn
from equicolor.models.foreign import ForeignNetwork

NAMES = ("apple", "banana", "</script><script>injected = true</script>")


def subject_of(network: nn.Module, images: Tensor, class_mismatch: str = "") -> Subject:
    labels = torch.arange(len(images)) % len(NAMES)
    image_set = ImageSet("toy", "test", labels, NAMES, pixels=(255 * images).byte())
    facts = {"dataset": "<b>toy</b>", "split": "test", "size": images.shape[-1]}
    batches = list(zip(images.split(4), labels.split(4), strict=True))
    return Subject(network.eval(), image_set, batches, facts, None, class_mismatch)


def turned(network: nn.Module, layers: list[str], images: Tensor, **options: Any) -> TurnedHues:
    found = find_layers(network, images.shape[-1], layers).values()
    return turn_hues(subject_of(network, images), list(found), **options)


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found is not None
    return dict(json.loads(found[1]))


def pixels(address: str) -> np.ndarray:
    kind, _, encoded = address.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))


class Tags(html.parser.HTMLParser):
    """The elements, their references, and whether they are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.references: list[str | None] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "input"):
            self.open.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def images() -> Tensor:
    return torch.rand(9, 3, 28, 28) * torch.tensor([1.0, 0.7, 0.3]).view(3, 1, 1)


def test_rows_roll_and_pooled_answers_stay(images: Tensor) -> None:
    network = cecnn(3, width=4, rotations=3, coset_pool="max")
    found = turned(network, ["blocks.0.2", "blocks.2.2"], images, steps=12, examples=3)
    assert [rows.name for rows in found.layers] == ["blocks.0.2", "blocks.2.2"]
    for rows in found.layers:
        assert rows.maps.shape[:4] == (3, 12, 3, 3)  # examples, angles, channels, rotations
        # A third of a turn rolls the rotations, also over the end of the angles.
        rolled = rows.maps.roll(-4, 1).int() - rows.maps.roll(1, 3).int()
        assert rolled.abs().max() <= 1
    moved = found.layers[0].maps[:, 1].int() - found.layers[0].maps[:, 0].int()
    assert moved.abs().max() > 20
    torch.testing.assert_close(found.logits, found.logits.roll(4, 1), rtol=1e-4, atol=1e-5)


def test_classes_have_the_names_that_the_network_knows(images: Tensor) -> None:
    known = ("tench", "goldfish")
    foreign = ForeignNetwork(cecnn(2, width=4), "timm:net", image_size=28, class_names=known)
    subject = subject_of(foreign, images, class_mismatch="other classes")
    assert turn_hues(subject, [], steps=2, examples=1).class_names == known
    subject.network.class_names = ()
    assert turn_hues(subject, [], steps=2, examples=1).class_names == ("output 0", "output 1")


def test_networks_show_the_same_images_whatever_the_order_of_their_classes(images: Tensor) -> None:
    first = subject_of(cecnn(3, width=2), images)
    number = torch.tensor([2, 0, 1])  # what match_classes does
    names = tuple(NAMES[place] for place in (1, 2, 0))
    image_set = dataclasses.replace(
        first.images, labels=number[first.images.labels], class_names=names
    )
    batches = [(batch, number[labels]) for batch, labels in first.batches]
    other = dataclasses.replace(first, images=image_set, batches=batches)
    for examples in range(1, 6):
        found = [turn_hues(each, [], steps=1, examples=examples) for each in (first, other)]
        assert torch.equal(found[0].images, found[1].images)
        assert found[0].labels == found[1].labels


def test_the_curve_is_drawn_from_minus_half_a_turn_to_half_a_turn(images: Tensor) -> None:
    subject = subject_of(cecnn(3, width=2), images)
    shifts = [0.75, -0.75, 0.5, -0.5, 1.0]
    judged = evaluate(subject.network, subject.batches, actions=["hsv"], shifts=shifts)
    found = turn_hues(subject, [], steps=1, examples=1, evaluation=judged)
    assert [turns for turns, _ in found.curve or ()] == [-0.5, -0.25, 0, 0.25, 0.5]


def test_examples_are_chosen_among_the_images_that_were_decoded(images: Tensor) -> None:
    subject = subject_of(cecnn(3, width=2), images)
    del subject.batches[1:]  # the other images are corrupt
    found = turn_hues(subject, [], steps=1, examples=1)
    assert len(found.labels) == len(found.images) == 1


def test_another_kind_of_network_shows_layers_of_its_own(images: Tensor) -> None:
    class Refusing(nn.Module):
        asked = 0

        def forward(self, images: Tensor) -> Tensor:
            self.asked += 1
            raise ValueError("the user's own")

    def network(*layers: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 4, 7, 7), *layers, nn.Flatten(), nn.Linear(64, 3))

    def layers_beside(other: nn.Module) -> list[str]:
        first = network(nn.ReLU())
        sheet = SimpleNamespace(layer=find_layers(first, 28, ["1"])["1"])
        inspection: Any = SimpleNamespace(sheets=[sheet], left_out={}, evaluation=None)
        subjects = subject_of(first, images), subject_of(other, images, class_mismatch="not asked")
        _, found = interactive.turn(subjects[0], inspection, subjects[1], examples=1)
        return [rows.name for rows in found.layers]

    assert layers_beside(network(nn.ReLU(), nn.ReLU())) == ["1"]
    assert layers_beside(network(nn.Flatten(2))) == ["0"]  # of tokens
    assert layers_beside(cecnn(3, width=2))[0] == "blocks.2.2"
    inspection: Any = SimpleNamespace(sheets=[], left_out={}, evaluation=None)
    one = subject_of(network(), images)
    for turned in interactive.turn(one, inspection, one, examples=1):
        assert turned.layers == []  # none was drawn
    refusing = Refusing()
    with pytest.raises(ValueError, match="the user's own"):
        layers_beside(refusing)
    assert refusing.asked == 1


def test_answers_and_images_are_those_of_shifted_images(images: Tensor) -> None:
    network = nn.Sequential(nn.Conv2d(3, 9, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network.append(nn.Linear(9, 3))
    found = turned(network, ["1"], images, steps=8, examples=3)
    # One image of each class: those in the middle of the three.
    assert found.labels == list(NAMES)
    for example, index in enumerate((3, 4, 5)):
        for step in range(8):
            shifted = shift_hue(images[index], step / 8)
            torch.testing.assert_close(found.logits[example, step], network(shifted[None])[0])
            difference = found.images[example, step] - 255 * shifted
            assert difference.abs().max() < 0.51
    (rows,) = found.layers
    assert rows.maps.shape == (3, 8, 8, 1, 24, 24)  # eight of nine channels, made smaller
    assert rows.maps.flatten(3).amax((1, 3)).eq(255).all()
    assert rows.maps.flatten(3).amin((1, 3)).eq(0).all()


def test_the_page_shows_what_was_computed(images: Tensor, tmp_path: Path) -> None:
    network = cecnn(3, width=4, rotations=4, lifting="hsv", coset_pool="max")
    subject = subject_of(network, images)
    judged = evaluate(network, subject.batches, class_names=NAMES, shifts=5, actions=["hsv"])
    found = turned(network, ["blocks.0.2"], images, steps=12, evaluation=judged)
    page = interactive.write(tmp_path / "page.html", [found]).read_text()
    data = data_of(page)
    assert (data["steps"], data["side"], len(data["examples"])) == (12, 28, 6)
    photos = pixels(data["examples"][2]["photos"]).astype(int)
    assert photos.shape == (2 * 32, 6 * 32, 3)  # frames of whole blocks
    frame = photos[32:60, 32:60]  # the eighth angle
    expected = found.images[2, 7].permute(1, 2, 0).numpy()
    assert np.abs(frame - expected).mean() < 12  # noise is the worst a JPEG can get
    (shown,) = data["networks"]
    assert shown["curve"] == [list(point) for point in zip(
        judged.sweeps["hsv"].shifts.tolist(), judged.sweeps["hsv"].accuracy.tolist(), strict=True
    )]  # fmt: skip
    layer = shown["layers"][0]
    size = layer["height"], layer["width"], layer["rotations"], len(layer["channels"])
    assert size == (24, 24, 4, 3)
    sheet = pixels(shown["examples"][1]["features"][0]).astype(int)
    tile = sheet[5 * 24 : 6 * 24, 6 * 24 : 7 * 24]  # sixth angle, second channel, third rotation
    assert np.abs(tile - found.layers[0].maps[1, 5, 1, 2].numpy()).max() <= 5  # of 32 greys
    strongest = found.layers[0].maps[1, 5].float().mean((-2, -1)).argmax(1)
    assert shown["examples"][1]["strongest"][0][5] == strongest.tolist()
    probabilities = found.logits[1, 5].softmax(0)
    answers = {answer["name"]: answer for answer in shown["examples"][1]["answers"]}
    assert list(answers) == sorted(NAMES, key=lambda name: -max(answers[name]["probabilities"]))
    for number, name in enumerate(NAMES):
        assert answers[name]["right"] == (name == found.labels[1])
        assert answers[name]["probabilities"][5] == pytest.approx(
            float(probabilities[number]), abs=1e-4
        )
        assert answers[name]["logits"][5] == pytest.approx(
            float(found.logits[1, 5, number]), abs=1e-2
        )
    best = shown["examples"][1]["best"][5]
    assert best["name"] == NAMES[int(probabilities.argmax())]


def test_names_are_not_read_as_html_and_nothing_is_loaded(images: Tensor, tmp_path: Path) -> None:
    network = cecnn(3, width=4, coset_pool="max")
    found = turned(network, ["blocks.0.2"], images, examples=3)
    page = interactive.write(tmp_path / "page.html", [found], provenance={"a": "<i>"}).read_text()
    tags = Tags(page)
    assert tags.tags.count("script") == 2  # the data and the program
    assert not {"b", "i", "link", "iframe", "object", "img"} & set(tags.tags)
    assert tags.references == []
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    names = set(re.findall(r"https?://[\w./]*", page))
    assert names == {"http://www.w3.org/2000/svg"}  # a name, which nobody asks for
    assert NAMES[2] not in page
    assert data_of(page)["examples"][2]["label"] == NAMES[2]


def test_the_answer_is_shown_even_if_its_class_is_not_listed() -> None:
    steps, classes = 12, 12
    logits = 9 * torch.eye(classes)[None]  # another class at every angle, all as likely
    logits[0, :, :6] *= 2  # but these are likelier
    names = tuple(f"class {number}" for number in range(classes))
    blank = torch.zeros(1, steps, 3, 8, 8, dtype=torch.uint8)
    found = TurnedHues("toy", blank, None, ["class 7"], [], logits, names, True, None)
    (example,) = interactive._network(found, interactive._shown_classes([found], found, 1), 8, 8)[
        "examples"
    ]
    assert [answer["name"] for answer in example["answers"]][-1] == "class 7"
    assert len(example["answers"]) == 6
    assert [best["name"] for best in example["best"]] == list(names)
    assert [best["right"] for best in example["best"]] == [name == "class 7" for name in names]


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    logits = torch.full((1, 12, 2), torch.nan)
    blank = torch.zeros(1, 12, 3, 8, 8, dtype=torch.uint8)
    found = TurnedHues("toy", blank, None, ["a"], [], logits, ("a", "b"), False, None)
    page = interactive.write(tmp_path / "page.html", [found]).read_text()
    answers = data_of(page)["networks"][0]["examples"][0]["answers"]
    assert answers[0]["logits"] == answers[0]["probabilities"] == [None] * 12


@pytest.mark.slow
def test_the_largest_page_stays_below_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise is what images compress worst. A sixth of the angles, and of the limit."""
    limit = interactive.LARGEST // 6
    monkeypatch.setattr(interactive, "LARGEST", limit)
    photos = torch.randint(256, (6, 6, 3, 160, 160), dtype=torch.uint8)
    maps = torch.randint(256, (6, 6, 3, 12, 24, 24), dtype=torch.uint8)
    layers = [FeatureRows(f"layer {number}", [0, 1, 2], maps) for number in range(2)]
    logits = torch.rand(6, 6, 1000)
    names = tuple(f"class {number} of many, with a long name" for number in range(1000))
    found = TurnedHues("toy", photos, photos, ["?"] * 6, layers, logits, names, False, None)
    path = interactive.write(tmp_path / "page.html", [found, found])
    assert limit / 6 < path.stat().st_size <= limit == 1_000_000
    data = data_of(path.read_text())
    assert len(data["examples"]) == len(data["networks"][1]["examples"]) >= 1


def test_a_page_that_cannot_be_small_enough_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interactive, "LARGEST", 20_000)
    blank = torch.zeros(1, 12, 3, 8, 8, dtype=torch.uint8)
    found = TurnedHues("t", blank, None, ["a"], [], torch.rand(1, 12, 2), ("a", "b"), True, None)
    with pytest.raises(ValueError, match="bytes for one example, more than 20,000"):
        interactive.write(tmp_path / "page.html", [found])
    assert not (tmp_path / "page.html").exists()


def test_angles_hold_the_rotations_of_all_networks() -> None:
    for rotations in ([3], [5], [1], [12], [13], [3, 4], [8, 3]):
        steps = count_steps(rotations)
        assert steps >= 36
        assert all(steps % each == 0 for each in rotations)
    assert count_steps([12, 11]) == 36  # 132 would be too many


class Transformer(nn.Module):
    """Patches of four pixels and a class token; tokens ``[B, 1 + 49, C]``."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.mix = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 8)
        self.act, self.head = nn.GELU(), nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).mT
        tokens = torch.cat((torch.zeros_like(tokens[:, :1]), tokens), 1)
        tokens = tokens + self.act(self.mix(tokens))
        return self.head(tokens[:, 1:].mean(1))


def test_tokens_are_shown_as_maps(images: Tensor, tmp_path: Path) -> None:
    network = Transformer()
    layers = list(find_layers(network, 28).values())
    tokens = layers_left_out(network, 28)
    assert tokens == {"act": [1, 50, 8]}
    subject = subject_of(network, images, "other outputs")
    found = turn_hues(subject, layers, tokens, steps=6, examples=2)
    assert [rows.name for rows in found.layers] == ["patches", "act"]
    rows = found.layers[1]
    assert rows.maps.shape == (2, 6, 8, 1, 7, 7)
    # Row 2, column 3 of the map is the token of that patch.
    with torch.no_grad():
        shifted = torch.stack([shift_hue(images[1], step / 6) for step in range(6)])
        tokens = network.patches(shifted).flatten(2).mT
        active = network.act(network.mix(tokens))[:, :, rows.channels].clamp(min=0)
    low, high = active.amin((0, 1)), active.amax((0, 1))
    expected = 255 * (active[:, 2 * 7 + 3] - low) / (high - low)
    wide = rows.maps[0, :, :, 0, 2, 3].float()
    assert (wide - expected)[:, high > 0.01].abs().max() < 1
    assert found.class_names[3] == "output 3"
    data = data_of(interactive.write(tmp_path / "page.html", [found]).read_text())
    assert not data["networks"][0]["judged"]
    assert data["networks"][0]["curve"] is None


def test_what_a_canonicalised_network_sees_stays(images: Tensor, tmp_path: Path) -> None:
    def warmth(batch: Tensor) -> Tensor:
        return (batch[:, 0] - batch[:, 2]).mean((1, 2))

    plain = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = equicolor.canonicalize(
        plain.append(nn.Linear(4, 3)), 6, select=warmth, normalization=None
    )
    found = turned(network, ["network.1"], images, steps=6, examples=2)
    assert found.natural is not None
    still = found.natural.int() - found.natural[:, :1].int()
    assert still.abs().float().mean() < 1
    assert (found.images.int() - found.images[:, :1].int()).abs().float().mean() > 20
    data = data_of(interactive.write(tmp_path / "page.html", [found]).read_text())
    assert data["networks"][0]["naturalSide"] == 28
    assert pixels(data["networks"][0]["examples"][0]["natural"]).shape == (32, 192, 3)
