"""Single images: how they are cut, and how they are classified."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from equicolor.color import shift_hue
from equicolor.data import CorruptImageError, ImageSet
from equicolor.data.images import ImageFile
from equicolor.evaluation import predict, prepare_image
from equicolor.evaluation.images import Preparation, load_batches
from equicolor.evaluation.predict import find_images, prediction_table
from equicolor.models import cecnn
from equicolor.models.foreign import ForeignNetwork
from equicolor.models.registry import GrayInput


class Mean(nn.Module):
    """Class by the strongest colour, ten times as sure as the colours differ."""

    class_names = ("red", "green", "blue")
    image_size = 8

    def forward(self, images: Tensor) -> Tensor:
        return 10 * images.mean((2, 3))


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Wide, high and small images; grey of 16 bits, and one with an alpha channel."""
    rng = np.random.default_rng(0)
    paths = []
    for index, shape in enumerate(((70, 50), (50, 91), (12, 9))):
        paths.append(tmp_path / f"{index}.png")
        Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(paths[-1])
    paths.append(tmp_path / "grey.png")
    Image.fromarray(rng.integers(0, 2**16, (40, 40)).astype(np.uint16)).save(paths[-1])
    paths.append(tmp_path / "clear.png")
    Image.fromarray(rng.integers(0, 256, (33, 40, 4), dtype=np.uint8)).save(paths[-1])
    return paths


@pytest.mark.parametrize(("size", "resize"), [(28, 32), (16, 16), (40, 48)])
def test_images_are_cut_as_evaluate_cuts_them(photos: list[Path], size: int, resize: int) -> None:
    labels = torch.zeros(len(photos), dtype=torch.int64)
    images = ImageSet("toy", "test", labels, ("a",), files=[ImageFile(path) for path in photos])
    ((expected, _),) = load_batches(images, Preparation(size, resize))
    for path, image in zip(photos, expected, strict=True):
        torch.testing.assert_close(prepare_image(path, size=size, resize=resize), image)
        opened = prepare_image(Image.open(path), size=size, resize=resize)
        assert torch.equal(opened, prepare_image(str(path), size=size, resize=resize))


def test_the_network_decides_the_size(photos: list[Path]) -> None:
    network = cecnn()
    assert prepare_image(photos[0]).shape == (3, 224, 224)
    assert prepare_image(photos[0], network).shape == (3, 28, 28)
    network.origin = network.origin._replace(image_size=20, resize=20, dataset="toy")
    trained = prepare_image(photos[0], network)
    assert torch.equal(trained, prepare_image(photos[0], size=20, resize=20))


def test_images_that_cannot_be_prepared(tmp_path: Path, photos: list[Path]) -> None:
    with pytest.raises(ValueError, match="resize must be at least size=64, got 10"):
        prepare_image(photos[0], size=64, resize=10)
    with pytest.raises(ValueError, match="its pixels are fractions"):
        prepare_image(Image.new("F", (4, 4)))
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(CorruptImageError, match=r"text\.png cannot be decoded: it is in no format"):
        prepare_image(tmp_path / "text.png")
    with pytest.raises(FileNotFoundError):
        prepare_image(tmp_path / "absent.png")


def test_probabilities_are_the_softmax_of_the_logits(photos: list[Path]) -> None:
    network, turns = Mean().train(), (0.0, 1 / 3)
    predictions = predict(network, photos, turns=turns, top=2)
    assert network.training
    assert [each.image for each in predictions] == [str(path) for path in photos for _ in turns]
    assert [each.turns for each in predictions] == [*turns] * len(photos)
    for each in predictions:
        image = prepare_image(each.image, network)[None]
        logits = network(shift_hue(image, each.turns) if each.turns else image)
        expected = logits.softmax(1)[0].sort(descending=True)
        assert [answer.number for answer in each.answers] == expected.indices[:2].tolist()
        assert [answer.name for answer in each.answers] == [
            network.class_names[number] for number in expected.indices[:2]
        ]
        torch.testing.assert_close(
            torch.tensor([answer.probability for answer in each.answers]), expected.values[:2]
        )


def test_a_hue_shift_changes_the_answer_to_a_colour() -> None:
    red = Image.new("RGB", (10, 10), "red")
    predictions = predict(Mean(), [red], turns=(0, 1 / 3, 2 / 3), top=1)
    assert [each.answers[0].name for each in predictions] == ["red", "green", "blue"]
    assert [each.row()["hue"] for each in predictions] == [0, 120, 240]
    assert predictions[0].image == "0"


def test_tensors_are_taken_as_they_are() -> None:
    images = torch.rand(70, 3, 9, 7)  # more than a batch
    predictions = predict(Mean(), images, top=9)
    assert [each.image for each in predictions] == [str(number) for number in range(70)]
    assert [each.answers[0].number for each in predictions] == images.mean((2, 3)).argmax(
        1
    ).tolist()
    assert {len(each.answers) for each in predictions} == {3}


def test_names_of_wrapped_networks() -> None:
    foreign = ForeignNetwork(Mean(), "mine", image_size=8, class_names=Mean.class_names)
    images = torch.rand(1, 3, 8, 8)
    for network in (foreign, GrayInput(foreign)):
        assert {answer.name for answer in predict(network, images)[0].answers} == {
            "red",
            "green",
            "blue",
        }
    unnamed = predict(ForeignNetwork(Mean(), "mine", image_size=8), images)[0]
    assert all(answer.name == str(answer.number) for answer in unnamed.answers)


def test_what_cannot_be_predicted_is_refused(photos: list[Path], tmp_path: Path) -> None:
    network = Mean()
    with pytest.raises(ValueError, match="top must be at least 1, got 0"):
        predict(network, photos, top=0)
    with pytest.raises(ValueError, match=r"turns must be finite numbers, one or more; got \[\]"):
        predict(network, photos, turns=())
    with pytest.raises(
        ValueError, match=r"hue shifts are in turns, .* 120 degrees are 1/3; got 120"
    ):
        predict(network, photos, turns=(0, 120))
    with pytest.raises(ValueError, match="there are no images"):
        predict(network, [])
    with pytest.raises(ValueError, match=r"expects a batch of RGB images \[B, 3, H, W\]"):
        predict(network, torch.rand(3, 8, 8))
    with pytest.raises(ValueError, match=r"must give logits \[1, classes\] for images"):
        predict(nn.Identity(), torch.rand(1, 3, 8, 8))
    network.class_names = ("red", "green")
    with pytest.raises(ValueError, match="the network has 3 outputs, but names 2 classes"):
        predict(network, photos)
    with pytest.raises(ValueError, match=r"cecnn cannot take images of 200 × 200 pixels"):
        predict(cecnn(), photos, size=200)
    for bad in (torch.nan, torch.inf, -1.0, 2.0):
        images = torch.stack([torch.rand(3, 8, 8), torch.full((3, 8, 8), bad)])
        with pytest.raises(ValueError, match=r"predict expects images in \[0, 1\], but got values"):
            predict(Mean(), images)
        network = nn.Sequential(Mean(), nn.Threshold(0.1, bad))  # both without probabilities
        if not math.isfinite(bad):
            with pytest.raises(ValueError, match="logits are NaN or infinite for image 1"):
                predict(network, torch.stack([torch.ones(3, 8, 8), torch.zeros(3, 8, 8)]))


def test_one_path_and_any_iterable_will_do(photos: list[Path]) -> None:
    expected = predict(Mean(), photos, turns=[0.0, 0.25])
    assert predict(Mean(), iter(photos), turns=torch.tensor([0.0, 0.25])) == expected
    assert predict(Mean(), str(photos[0]), turns=(each / 4 for each in range(2))) == expected[:2]


def test_corrupt_images_are_left_out_if_asked(photos: list[Path], tmp_path: Path) -> None:
    cut = tmp_path / "cut.png"
    cut.write_bytes(photos[0].read_bytes()[:900])
    with pytest.raises(CorruptImageError, match=r"cut\.png cannot be decoded"):
        predict(Mean(), [photos[1], cut])
    predictions = predict(Mean(), [cut, photos[1]], on_corrupt="skip")
    assert [each.image for each in predictions] == [str(photos[1])]
    with pytest.raises(ValueError, match="all images are corrupt"):
        predict(Mean(), [cut], on_corrupt="skip")


def test_paths_are_files_folders_and_lines(
    photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{photos[1]}\n\n{tmp_path}\n"))
    (tmp_path / "notes.txt").touch()
    assert find_images([photos[0], "-"]) == [photos[0], photos[1], *sorted(photos)]
    with pytest.raises(ValueError, match="no path came on stdin: expected images or folders"):
        find_images(["-"])


def test_the_table_leaves_out_empty_columns() -> None:
    image = torch.rand(1, 3, 8, 8)
    assert prediction_table(predict(Mean(), image, top=1)).columns == ("image", "class", "%")
    table = prediction_table(predict(Mean(), image, turns=(0, -0.25)))
    assert table.columns == ("image", "hue", "class", "%", "then")
    assert [line[1] for line in table.rows] == ["0°", "-90°"]
