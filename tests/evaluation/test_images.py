"""Images prepared for a network, and evaluations from names."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from equicolor.data.datasets import MissingDataError, load_dataset
from equicolor.data.images import CorruptImageError
from equicolor.evaluation import hue_sweep
from equicolor.evaluation.compare import compare
from equicolor.evaluation.diagnose import diagnose, load_subject
from equicolor.evaluation.images import (
    Preparation,
    choose_preparation,
    count_outputs,
    load_batches,
    match_classes,
)
from equicolor.models import load_model, resnet18, resnet44, save_model
from equicolor.models.foreign import ForeignNetwork
from equicolor.models.registry import GrayInput, Origin
from equicolor.training.recipes import TrainingRecipe, default_recipe
from equicolor.training.run_folder import recipe_of_run

QUIET = Console(quiet=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of three classes and different sizes, with a split."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("ash", "birch", "cedar"):
            place = tmp_path / "trees" / split / name
            place.mkdir(parents=True)
            for index in range(3):
                height, width = rng.integers(30, 60, 2)
                pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.png")
    return tmp_path / "trees"


@pytest.fixture
def run_folder(tmp_path: Path, folder: Path) -> Path:
    """The folder of a training run."""
    recipe = TrainingRecipe(
        "resnet18",
        {"width": 4},
        dataset=str(folder),
        size=24,
        resize=28,
        jitter=0.5,
        epochs=7,
        seed=3,
    )
    run = tmp_path / "run"
    network = recipe.build(3)
    network.origin = recipe.origin
    save_model(network, run / "model.safetensors")
    (run / "recipe.json").write_text(recipe.to_json())
    return run


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# --- preparation -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (224, 256)),
        ({"size": 112}, (112, 128)),
        ({"resize": 230}, (224, 230)),
        ({"size": 100, "resize": 100}, (100, 100)),
        ({"kind": "small"}, (224, 224)),  # a large network on CIFAR: nothing is cut off
    ],
)
def test_preparation(options: dict, expected: tuple[int, int]) -> None:
    network = resnet18(10, width=4)
    assert choose_preparation(network, **({"kind": "large"} | options)) == expected


def test_preparation_of_other_networks() -> None:
    foreign = ForeignNetwork(nn.Flatten(), "x", image_size=288, resize=300)
    assert choose_preparation(foreign) == (288, 300)
    assert choose_preparation(foreign, "small") == (288, 288)
    assert choose_preparation(ForeignNetwork(nn.Flatten(), "x", image_size=32)) == (32, 36)
    assert choose_preparation(resnet44(10, width=4), "small") == (32, 32)
    assert choose_preparation(nn.Flatten()) == (224, 256)


def test_preparation_of_trained_networks() -> None:
    network = resnet18(10, width=4)
    network.origin = Origin(32, 36, "pets", 0)
    for kind in ("large", "small"):
        assert choose_preparation(network, kind) == (32, 36)
    assert choose_preparation(network, resize=40) == (32, 40)
    assert choose_preparation(network, size=64) == (64, 73)
    network.origin = TrainingRecipe(size=32, resize=32, crop="padded").origin
    assert choose_preparation(network) == (32, 32)


def test_training_and_testing_resize_alike() -> None:
    for model in ("resnet18", "resnet44"):
        recipe = default_recipe("flowers102", model)
        assert choose_preparation(recipe.build(3)) == (recipe.size, recipe.resize)


def test_images_that_are_too_small_are_named(folder: Path, tmp_path: Path) -> None:
    message = r"resnet18 cannot take images of 4 × 4 pixels \(it was made for 224 × 224\): .*6 x 6"
    network = resnet18(3, width=4).eval()
    with pytest.raises(ValueError, match=message):
        count_outputs(network, 4)
    path = save_model(network, tmp_path / "net.safetensors")
    for any_classes in (True, False):
        with pytest.raises(ValueError, match=message):
            load_subject(path, folder, size=4, any_classes=any_classes, console=QUIET)


def test_batches_are_the_centres_of_resized_images(folder: Path) -> None:
    image_set = load_dataset(str(folder), "test")
    batches = list(load_batches(image_set, Preparation(20, 24), batch_size=4))
    assert [len(labels) for _, labels in batches] == [4, 4, 1]
    images = torch.cat([images for images, _ in batches])
    assert torch.equal(torch.cat([labels for _, labels in batches]), image_set.labels)
    for image, file in zip(images, image_set.files, strict=True):
        raw_image = Image.open(file.path)
        size = [24 * side // min(raw_image.size) for side in raw_image.size]
        resized = raw_image.resize(size, Image.Resampling.BILINEAR)
        left, top = ((side - 20) / 2 for side in size)
        box = (round(left), round(top), round(left) + 20, round(top) + 20)
        expected = torch.from_numpy(np.asarray(resized.crop(box)).copy()).movedim(2, 0) / 255
        torch.testing.assert_close(image, expected, atol=1e-3, rtol=0)


def test_batches_are_as_large_as_the_device_likes(folder: Path) -> None:
    images = load_dataset(str(folder), "test")  # nine
    sizes = [len(labels) for _, labels in load_batches(images, Preparation(400, 400))]
    assert sizes == [2, 2, 2, 2, 1]


def test_batches_carry_no_augmentation(folder: Path) -> None:
    images = load_dataset(str(folder), "test")
    loader = load_batches(images, Preparation(20, 24), batch_size=9)
    (first, _), (second, _) = next(iter(loader)), next(iter(loader))
    assert torch.equal(first, second)


def test_outputs_are_checked_first(folder: Path) -> None:
    images = load_dataset(str(folder), "test")
    for by_index in (False, True):
        with pytest.raises(ValueError, match="the network has 5 outputs, but trees has 3 classes"):
            match_classes(resnet44(5, width=4), images, 32, by_index=by_index)


@pytest.mark.parametrize(
    ("answer", "came"),
    [
        (lambda images: {"logits": images.mean((2, 3))}, "a dict"),
        (lambda images: (images.mean((2, 3)),), "a tuple"),
        (lambda images: images.mean((1, 2, 3)), r"\[2\]"),
        (lambda images: images, r"\[2, 3, 28, 28\]"),
    ],
)
def test_networks_must_give_logits(answer, came: str) -> None:
    class Strange(nn.Module):
        def forward(self, images):
            return answer(images)

    expected = rf"must give logits \[2, classes\] for images \[2, 3, 28, 28\], got {came}"
    with pytest.raises(ValueError, match=expected):
        count_outputs(Strange(), 28)


def test_classes_are_matched_by_their_names(folder: Path) -> None:
    images = load_dataset(str(folder), "test")
    network = resnet44(3, width=4)
    assert match_classes(network, images, 32) is images  # the network has no names
    network.class_names = images.class_names
    assert match_classes(network, images, 32) is images
    network.class_names = ("cedar", "ash", "birch")
    for judge in (network, GrayInput(network)):
        matched = match_classes(judge, images, 32)
        named = [matched.class_names[label] for label in matched.labels]
        assert named == [images.class_names[label] for label in images.labels]
        assert matched.class_names == network.class_names
        assert matched.files == images.files
    network.class_names = ("ash", "beech", "cedar")
    message = "other classes than those of trees: 'beech' and 'birch'. If they .*--classes-by-index"
    with pytest.raises(ValueError, match=message):
        match_classes(network, images, 32)
    network.class_names = ("ash", "ash", "birch")
    with pytest.raises(ValueError, match="'ash' and 'birch', 'birch' and 'cedar'"):
        match_classes(network, images, 32)


def test_class_names_of_users_networks_count(folder: Path) -> None:
    images = load_dataset(str(folder), "test")

    def named(*names: str, library: str = "mine.py") -> ForeignNetwork:
        return ForeignNetwork(
            resnet44(3, width=4), f"{library}:net", image_size=32, class_names=names
        )

    for network in (named("cedar", "ash", "birch"), GrayInput(named("cedar", "ash", "birch"))):
        matched = match_classes(network, images, 32)
        assert matched.class_names == ("cedar", "ash", "birch")
    with pytest.raises(ValueError, match="other classes than those of trees"):
        match_classes(named("ash", "beech", "cedar"), images, 32)
    # What libraries call the classes of ImageNet is not what its folders are called.
    imagenet = named("tench", "goldfish", "shark", library="timm")
    for network in (imagenet, GrayInput(imagenet)):
        assert match_classes(network, images, 32) is images


def test_recipe_of_a_run(run_folder: Path, tmp_path: Path) -> None:
    for path in (run_folder, run_folder / "model.safetensors", str(run_folder)):
        recipe = recipe_of_run(path)
        assert recipe is not None
        assert (recipe.epochs, recipe.seed) == (7, 3)
    assert recipe_of_run(tmp_path) is None
    converted = run_folder / "converted.safetensors"
    converted.touch()
    assert recipe_of_run(converted) is None  # in the folder, but not made by the run
    assert recipe_of_run("timm:resnet18") is None
    (run_folder / "recipe.json").write_text('{"strange": 1}')
    with pytest.raises(ValueError, match=r"recipe.json is not the recipe of a training run"):
        recipe_of_run(run_folder)


# --- from names to an evaluation ---------------------------------------------------------------


def test_a_run_knows_its_data(run_folder: Path) -> None:
    result = diagnose(run_folder, shifts=3, actions=["hsv"], console=QUIET)
    (row,) = result.rows()
    assert result.images == 9
    assert result.class_names == ("ash", "birch", "cedar")
    assert {key: row[key] for key in ("dataset", "augmentation", "epochs", "seed", "split")} == {
        "dataset": "trees", "augmentation": "jitter 0.5", "epochs": 7, "seed": 3, "split": "test",
    }  # fmt: skip
    assert (row["size"], row["resize"], row["precision"]) == (24, 28, "float32")
    assert (row["model"], row["trained_on"], row["skipped"]) == ("resnet18", "trees", 0)


def test_actions_may_come_from_an_iterator(run_folder: Path) -> None:
    options: Any = {"shifts": 3, "console": QUIET}
    assert [*diagnose(run_folder, actions=iter(["hsv"]), **options).sweeps] == ["hsv"]
    networks = [run_folder, run_folder / "model.safetensors"]
    for each in compare(networks, actions=iter(["hsv"]), **options):
        assert [*each.evaluation.sweeps] == ["hsv"]


def test_a_run_matches_its_own_images_by_hand(run_folder: Path, folder: Path) -> None:
    network = load_model(run_folder / "model.safetensors")
    batches = load_batches(load_dataset(str(folder), "test"), Preparation(24, 28))
    by_hand = hue_sweep(network, batches, 5)
    result = diagnose(run_folder, shifts=5, actions=["hsv"], console=QUIET)
    assert torch.equal(result.sweeps["hsv"].correct, by_hand.correct)


@pytest.mark.slow
def test_grey_runs_are_judged_grey(run_folder: Path, folder: Path) -> None:
    plain = load_model(run_folder / "model.safetensors")
    network = GrayInput(plain).eval()
    save_model(network, run_folder / "model.safetensors")
    result = diagnose(run_folder, shifts=5, actions=["hsv"], console=QUIET)
    assert result.facts["model"] == "resnet18-gray"
    batches = load_batches(load_dataset(str(folder), "test"), Preparation(24, 28))
    # Images are shifted in colour, and what the network sees is grey.
    assert torch.equal(result.sweeps["hsv"].correct, hue_sweep(network, batches, 5).correct)
    (run_folder / "recipe.json").unlink()
    save_model(plain, run_folder / "model.safetensors")
    again = diagnose(
        run_folder, folder, gray=True, size=24, resize=28, shifts=5, actions=["hsv"], console=QUIET
    )
    assert torch.equal(again.sweeps["hsv"].correct, result.sweeps["hsv"].correct)


@pytest.mark.slow
def test_grey_networks_stay_grey_wherever_they_go(run_folder: Path, folder: Path) -> None:
    network = resnet44(3, width=4).eval()
    save_model(GrayInput(network), run_folder / "model.safetensors")
    (run_folder / "recipe.json").unlink()
    options = {"size": 24, "resize": 28, "shifts": 5, "actions": ["hsv"], "console": QUIET}
    result = diagnose(run_folder, folder, **options)
    assert result.facts["model"] == "resnet44-gray"
    batches = load_batches(load_dataset(str(folder), "test"), Preparation(24, 28))
    assert torch.equal(
        result.sweeps["hsv"].correct, hue_sweep(GrayInput(network), batches, 5).correct
    )
    again = diagnose(run_folder, folder, gray=True, **options)  # once is enough
    assert again.facts["model"] == "resnet44-gray"


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["shapes", "shapes/", "./shapes", "absolute", "Path"])
def test_no_training_image_is_tested_on(
    spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    for name in ("disc", "ring"):
        (tmp_path / "shapes" / name).mkdir(parents=True)
        for index in range(30):
            pixels = rng.integers(0, 256, (30, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "shapes" / name / f"{index}.png")
    monkeypatch.chdir(tmp_path)
    recipe = TrainingRecipe("resnet44", {"width": 4}, dataset="shapes", split_seed=5, size=24,
                            resize=28)  # fmt: skip
    network = recipe.build(2)
    network.origin = recipe.origin
    save_model(network, tmp_path / "run" / "model.safetensors")
    (tmp_path / "run" / "recipe.json").write_text(recipe.to_json())
    trained_on = set(load_dataset("shapes", "train", seed=5).files)
    data = {"absolute": str(tmp_path / "shapes"), "Path": Path("shapes")}.get(spelling, spelling)
    subject = load_subject("run", data, console=QUIET)
    assert len(subject.images) == 11
    assert not {file.path for file in subject.images.files} & {file.path for file in trained_on}
    assert subject.facts["split_seed"] == 5
    assert load_subject("run", data, split_seed=1, console=QUIET).facts["split_seed"] == 1
    monkeypatch.chdir("/")  # the run finds its data from any folder
    assert load_subject(tmp_path / "run", console=QUIET).facts["split_seed"] == 5


@pytest.mark.slow
def test_a_copied_network_is_judged_like_its_run(
    run_folder: Path, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "train", tmp_path / "shapes")  # without a split
    recipe = recipe_of_run(run_folder)
    assert recipe is not None
    recipe = dataclasses.replace(recipe, dataset=str(tmp_path / "shapes"), split_seed=5)
    (run_folder / "recipe.json").write_text(recipe.to_json())
    network = recipe.build(3)
    network.origin = recipe.origin
    save_model(network, run_folder / "model.safetensors")
    copy = shutil.copy(run_folder / "model.safetensors", tmp_path / "copy.safetensors")
    keys = ("size", "resize", "split_seed", "trained_on")
    for data, seed in ((tmp_path / "shapes", 5), (folder, 0)):
        for path in (run_folder, copy):
            facts = load_subject(path, data, console=QUIET).facts
            assert [facts[key] for key in keys] == [24, 28, seed, "shapes"]
    with pytest.raises(ValueError, match=r"say which data .*; it was trained on .*'shapes'$"):
        load_subject(copy, console=QUIET)


@pytest.mark.slow
def test_classes_of_the_training_are_those_judged(run_folder: Path, folder: Path) -> None:
    network = resnet44(3, width=4).eval()
    network.class_names = ("ash", "birch", "cedar")
    save_model(network, run_folder / "model.safetensors")
    options = {"actions": (), "console": QUIET}
    before = diagnose(run_folder, **options)
    # The same images under names that sort otherwise, in a folder elsewhere.
    turned = folder.parent / "turned"
    shutil.copytree(folder, turned)
    network.class_names = ("cedar", "birch", "ash")
    state = network.state_dict()
    for key in ("linear.weight", "linear.bias"):
        state[key].copy_(state[key].flip(0))
    save_model(network, run_folder / "model.safetensors")
    after = diagnose(run_folder, turned, **options)
    assert after.original == before.original
    assert after.class_names == ("cedar", "birch", "ash")
    assert after.per_class.tolist() == before.per_class.flip(0).tolist()
    for split in ("train", "test"):
        (turned / split / "ash").rename(turned / split / "oak")
    with pytest.raises(ValueError, match="other classes than those of turned: 'cedar' and 'birch'"):
        diagnose(run_folder, turned, **options)
    by_index = diagnose(run_folder, turned, classes_by_index=True, **options)
    assert by_index.class_names == ("birch", "cedar", "oak")


def test_other_data_than_the_run_was_trained_on(run_folder: Path, folder: Path) -> None:
    result = diagnose(run_folder, folder / "train", shifts=2, actions=(), console=QUIET)
    assert result.facts["dataset"] == "train"
    assert result.facts["trained_on"] == "trees"


def test_corrupt_images(run_folder: Path, folder: Path) -> None:
    broken = folder / "test" / "birch" / "1.png"
    broken.write_bytes(b"not an image")
    with pytest.raises(CorruptImageError, match=r"birch/1.png cannot be decoded"):
        diagnose(run_folder, actions=(), console=QUIET)
    result = diagnose(run_folder, actions=(), skip_corrupt=True, console=QUIET)
    assert (result.images, result.facts["skipped"]) == (8, 1)


def test_bfloat16_is_in_the_facts(run_folder: Path) -> None:
    result = diagnose(run_folder, actions=(), precision="bfloat16", console=QUIET)
    assert result.facts["precision"] == "bfloat16"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"actions": ["hue"]}, ValueError, "action must be one of"),
        ({"shifts": 1}, ValueError, "shifts must be at least 2"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        (
            {"precision": "half"},
            ValueError,
            "precision must be one of 'auto', 'float32', 'bfloat16'; got 'half",
        ),
        ({"split": "val"}, ValueError, "split must be one of 'train', 'test'; got 'val'"),
        ({"data": "flowers"}, ValueError, "unknown dataset 'flowers'; did you mean 'flowers102'"),
        ({"data": "./absent"}, MissingDataError, "no folder of images at absent"),
        ({"size": 30, "resize": 20}, ValueError, "resize must be at least size=30, got 20"),
        ({"cache": Path(__file__)}, NotADirectoryError, r"\(--cache\), but .*\.py is a file"),
    ],
)
def test_bad_options(run_folder: Path, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        diagnose(run_folder, console=QUIET, **options)


def test_data_are_needed_without_a_run(run_folder: Path) -> None:
    (run_folder / "recipe.json").unlink()
    with pytest.raises(ValueError, match=r"is not the folder of a training run: say which data"):
        diagnose(run_folder, console=QUIET)
