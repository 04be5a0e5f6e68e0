"""Fine-tuning: what is taken over from the earlier training, and what is said about it."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from equicolor.data.datasets import load_dataset
from equicolor.models import Network, load_model, save_model
from equicolor.training import fit as fitting
from equicolor.training.finetuning import finetune_recipe, finetune_remarks, finetune_seen
from equicolor.training.fit import RunOptions, fit
from equicolor.training.pretrained import load_pretrained
from equicolor.training.recipes import TrainingRecipe

NAMES = ("disc", "ring")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders without a split of their own."""
    root = tmp_path_factory.mktemp("images") / "shapes"
    for name in NAMES:
        (root / name).mkdir(parents=True)
        for index in range(15):
            Image.fromarray(np.full((8, 8, 3), index, np.uint8)).save(root / name / f"{index}.png")
    return root


@pytest.fixture
def run(shapes: Path, tmp_path: Path) -> Path:
    """What a training leaves behind."""
    recipe = TrainingRecipe(
        "resnet18", {"width": 2}, dataset=str(shapes), split_seed=3, size=24, resize=27,
        batch_size=8, seed=5, flip=False, epochs=7, lr=0.5,
    )  # fmt: skip
    network = recipe.build(2)
    network.class_names, network.origin = NAMES, recipe.origin
    save_model(network, tmp_path / "run" / "model.safetensors")
    (tmp_path / "run" / "recipe.json").write_text(recipe.to_json())
    return tmp_path / "run"


def files(recipe: TrainingRecipe, split: str) -> set[str]:
    images = load_dataset(recipe.dataset, split, seed=recipe.split_seed)
    return {str(file) for file in images.files}


def remarks(recipe: TrainingRecipe, names: tuple[str, ...] = NAMES) -> list[str]:
    return [*finetune_remarks(recipe, names, finetune_seen(recipe))]


def head(network: Network) -> torch.Tensor:
    return network.get_parameter("linear.weight")


def test_split_and_images_are_those_of_the_run(run: Path, shapes: Path) -> None:
    before = TrainingRecipe.from_json((run / "recipe.json").read_text())
    recipe = finetune_recipe(str(shapes), run)
    assert not files(recipe, "test") & files(before, "train")
    kept = ("split_seed", "size", "resize", "crop", "flip", "batch_size", "seed")
    assert [getattr(recipe, name) for name in kept] == [getattr(before, name) for name in kept]
    assert (recipe.epochs, recipe.lr) == (20, 1e-4)
    assert finetune_recipe(str(shapes), run / "model.safetensors").size == 24


def test_a_file_alone_knows_split_and_size(run: Path, shapes: Path, tmp_path: Path) -> None:
    copy = shutil.copy(run / "model.safetensors", tmp_path / "copy.safetensors")
    recipe = finetune_recipe(str(shapes), copy)
    assert (recipe.split_seed, recipe.size, recipe.resize) == (3, 24, 27)
    assert recipe.batch_size == 256


def test_padded_crops_are_kept_on_the_same_images_only(run: Path, shapes: Path) -> None:
    before = TrainingRecipe.from_json((run / "recipe.json").read_text())
    padded = dataclasses.replace(before, crop="padded")
    recipe = finetune_recipe(str(shapes), run, like=padded)
    assert (recipe.crop, recipe.size, recipe.resize) == ("padded", 24, 27)
    recipe = finetune_recipe("flowers102", run, like=padded)
    assert (recipe.crop, recipe.size, recipe.resize) == ("resized", 24, 24)


def test_another_dataset_has_its_own_split(run: Path) -> None:
    recipe = finetune_recipe("flowers102", run)
    assert (recipe.split_seed, recipe.size, recipe.resize) == (0, 24, 27)
    small = finetune_recipe("cifar10", run)
    assert (small.crop, small.size, small.split_seed) == ("padded", 32, 0)


def test_an_own_split_seed_is_warned_about(run: Path, shapes: Path) -> None:
    recipe = finetune_recipe(str(shapes), run)
    assert remarks(recipe) == []
    other = dataclasses.replace(recipe, split_seed=4)
    before = TrainingRecipe.from_json((run / "recipe.json").read_text())
    tested = files(other, "test")
    seen = len(tested & files(before, "train"))
    (remark,) = remarks(other)
    warning = f"warning: {seen} of {len(tested)} test images are training images of {run}: disc/"
    assert remark.startswith(warning)


def test_a_split_of_their_own_needs_no_warning(run: Path, shapes: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(shapes, tmp_path / "shapes" / split)
    recipe = finetune_recipe(str(tmp_path / "shapes"), run)
    assert recipe.split_seed == 0
    assert remarks(recipe) == []


def test_classifiers_of_other_classes_are_drawn_anew(run: Path, shapes: Path) -> None:
    before = load_model(run / "model.safetensors")
    recipe = finetune_recipe(str(shapes), run)
    for names in (NAMES, None):
        assert torch.equal(head(recipe.build(2, names)), head(before))
    other = recipe.build(2, ("cat", "dog"))
    assert not torch.equal(head(other), head(before))
    kept = [key for key in before.state_dict() if not key.startswith("linear")]
    assert all(torch.equal(other.state_dict()[key], before.state_dict()[key]) for key in kept)
    assert other.training
    (remark,) = remarks(recipe, ("cat", "dog"))
    assert remark == f"{run} has other classes: its classifier is drawn anew, with 2 outputs"
    (remark,) = remarks(recipe, ("cat", "dog", "eel"))
    assert remark.startswith(f"{run} has another number of classes: its classifier is drawn anew")


def test_the_seed_draws_the_classifier(run: Path, shapes: Path) -> None:
    recipe = finetune_recipe(str(shapes), run)
    first, again = (head(recipe.build(2, ("cat", "dog"))) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(
        first, head(dataclasses.replace(recipe, seed=6).build(2, ("cat", "dog")))
    )


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("base", [".", "model.safetensors"])
def test_the_network_to_begin_with_is_not_replaced(
    run: Path, shapes: Path, tmp_path: Path, base: str, overwrite: bool
) -> None:
    before = (run / "model.safetensors").read_bytes()
    (tmp_path / "link").symlink_to(run)
    recipe = finetune_recipe(str(shapes), run / base)
    for folder in (run, tmp_path / "link"):
        with pytest.raises(ValueError, match=rf"^{folder} holds the network to fine-tune: choose"):
            fit(recipe, folder, overwrite=overwrite)
    assert {path.name for path in run.iterdir()} == {"model.safetensors", "recipe.json"}
    assert (run / "model.safetensors").read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("few_shifts")
def test_the_network_to_begin_with_may_disappear_meanwhile(
    run: Path, shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = fitting.train

    def train_and_delete(*arguments: Any) -> int:
        epochs = train(*arguments)
        shutil.rmtree(run)
        return epochs

    monkeypatch.setattr(fitting, "train", train_and_delete)
    recipe = dataclasses.replace(finetune_recipe(str(shapes), run), epochs=1, precision="float32")
    options = RunOptions(device="cpu", cache=tmp_path / "cache")
    state = torch.get_rng_state()
    assert fit(recipe, tmp_path / "further", options) is not None
    assert torch.equal(torch.get_rng_state(), state)
    network = load_model(tmp_path / "further" / "model.safetensors")
    assert (network.class_names, network.config["width"]) == (NAMES, [2, 4, 8, 16])


def test_another_network_under_the_same_path_is_refused(run: Path) -> None:
    with pytest.raises(ValueError, match="is not the network that the run began with"):
        load_pretrained(run, 2, digest="0" * 16)
