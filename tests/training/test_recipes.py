"""Recipes: the cells of the paper's tables, and what a recipe refuses."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
import torch
from tests.other_values import other_value

from equicolor.data.datasets import DATASETS
from equicolor.models.registry import Origin
from equicolor.training.fields import settings
from equicolor.training.recipes import (
    COMPARED_KEYS,
    ROW_KEYS,
    UNPUBLISHED_KEYS,
    TrainingRecipe,
    default_recipe,
    find_recipe,
    named_recipe,
    recipes,
)

SMALL = [name for name, info in DATASETS.items() if info.kind == "small"]
ALL = recipes()


def paper_cells() -> list[str]:
    """Every cell of Tables 1 and 3 that has a number."""
    cells = []
    for dataset in DATASETS:
        stages = range(1, 4 if dataset in SMALL else 5)
        networks = ["baseline", "ciconv-w", "gray", *(f"ce-{stage}" for stage in stages)]
        cells += [f"{dataset}/{n}{a}" for n, a in itertools.product(networks, ("", "+jitter"))]
        cells += [f"{dataset}/baseline+augmix", f"{dataset}/ce-{stages[-1]}+augmix"]
    return cells


def test_every_cell_of_the_paper_has_a_recipe() -> None:
    assert set(paper_cells()) <= set(recipes())
    assert not any("ce-4" in name for name in recipes("cifar10"))


@pytest.mark.slow
def test_beyond_the_paper() -> None:
    augmentations = ("", "+jitter", "+augmix")
    for dataset, n, suffix in itertools.product(DATASETS, (3, 6, 12), augmentations):
        recipe = find_recipe(f"{dataset}/hsv-{n}{suffix}")
        assert recipe.options == {"rotations": n, "lifting": "hsv"}


@pytest.mark.parametrize("name", ALL)
def test_recipes_follow_the_papers_protocol(name: str) -> None:
    recipe = ALL[name]
    small = recipe.dataset in SMALL
    assert (recipe.epochs, recipe.batch_size, recipe.lr) == (200, 256, 1e-3)
    assert (recipe.weight_decay, recipe.optimizer, recipe.schedule) == (1e-5, "adam", "onecycle")
    assert recipe.model.endswith("resnet44" if small else "resnet18")
    assert recipe.jitter == (0.5 if name.endswith("+jitter") else 0)
    assert recipe.augmix == ("original" if name.endswith("+augmix") else "")
    train = recipe.augmentation
    assert (train.size, train.crop, train.flip) == (32 if small else 224, recipe.crop, True)
    assert recipe.crop == ("padded" if small else "resized")
    test = train.evaluation()
    assert (test.crop, test.jitter, test.flip, test.augmix) == ("centre", 0, False, None)
    assert (test.size, test.resize) == ((32, 32) if small else (224, 256))


@pytest.mark.parametrize("name", [name for name in recipes("cifar10") if "+" not in name])
def test_recipes_build_what_they_are_called(name: str) -> None:
    recipe = find_recipe(name)
    with torch.device("meta"):
        config = recipe.build(10).config
    network = name.partition("/")[2]
    kind, _, number = network.partition("-")
    assert config["num_classes"] == 10
    if kind == "ce":
        assert (config["rotations"], config["ce_stages"]) == (3, int(number))
        assert config["lifting"] == "rgb"
    elif kind == "hsv":
        assert (config["rotations"], config["lifting"]) == (int(number), "hsv")
    elif kind == "ciconv":
        assert config["model"] == "ciconv_resnet44"
    else:
        assert config["rotations"] == 1
    assert recipe.gray == (network == "gray")


def test_names_of_augmentations() -> None:
    names = {
        "none": {},
        "jitter 0.5": {"jitter": 0.5},
        "augmix": {"augmix": "original"},
        "augmix full": {"augmix": "full"},
        "jitter 0.1 + augmix": {"jitter": 0.1, "augmix": "original"},
        "augmix + js": {"augmix": "original", "js": True},
    }
    for expected, options in names.items():
        assert TrainingRecipe(**options).augmentation_name == expected
    assert TrainingRecipe(augmix="original", js=True).augmentation.views == 3


def test_operations_of_augmix() -> None:
    for augmix, full in (("original", False), ("full", True)):
        mix = TrainingRecipe(augmix=augmix).augmentation.augmix
        assert mix is not None
        assert mix.full == full
    assert TrainingRecipe().augmentation.augmix is None


def test_rows_and_their_keys_follow_from_the_fields() -> None:
    recipe = TrainingRecipe(jitter=0.25, epochs=7, finetune="runs/first/model.safetensors")
    row = recipe.row()
    assert set(row) == set(ROW_KEYS)
    assert (row["augmentation"], row["epochs"], row["finetuned"]) == ("jitter 0.25", 7, "first")
    assert set(COMPARED_KEYS) == set(ROW_KEYS) - {"augmentation", "resize", "seed"}
    assert set(UNPUBLISHED_KEYS) == {"split_seed", "precision"}
    # Every field is told, but for those that decide nothing or that the network tells.
    silent = {"model", "options", "dataset", "finetune", "finetune_digest", "gray", "compile"}
    mixed = {"jitter", "augmix", "js"}  # the augmentation
    fields = {field.name for field in dataclasses.fields(TrainingRecipe)}
    assert fields - silent - mixed == set(ROW_KEYS) - {"augmentation", "finetuned"}


def test_different_recipes_have_different_folders(tmp_path: Path) -> None:
    base = TrainingRecipe(augmix="full")
    changed = [dataclasses.replace(base, **{name: other_value(name)}) for name in settings(base)]
    for name in ("a", "b"):
        (tmp_path / name / "pets" / "class").mkdir(parents=True)
    changed += [
        dataclasses.replace(base, **change)
        for change in (
            {"model": "resnet34"}, {"dataset": "stl10"}, {"options": {"width": [4, 8, 16, 32]}},
            {"options": {"width": 4}}, {"model": "ce_resnet18", "options": {"rotations": 3}},
            {"dataset": str(tmp_path / "a" / "pets")}, {"dataset": str(tmp_path / "b" / "pets")},
            {"finetune": "a/net"}, {"finetune": "a/net", "finetune_digest": "ab"},
        )
    ]  # fmt: skip
    names = [recipe.folder_name for recipe in [base, *changed]]
    assert len(set(names)) == len(names), names
    assert all(len(name) < 80 for name in names)
    assert default_recipe("cifar10").folder_name == "cifar10-resnet44-seed0"
    small = TrainingRecipe(size=112, resize=128, optimizer="sgd", weight_decay=0.0, seed=3)
    assert small.folder_name == "flowers102-resnet18-size112-sgd-wd0-seed3"


def test_folders_are_stored_by_their_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / "pets" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    spellings = ("pets", "pets/", "./pets", "../" + tmp_path.name + "/pets")
    found = {TrainingRecipe(dataset=spelling).dataset for spelling in spellings}
    assert found == {str(tmp_path / "pets")}
    assert default_recipe("pets").dataset == find_recipe("ce-2", "./pets").dataset
    recipe = TrainingRecipe(dataset="pets")
    monkeypatch.chdir("/")
    assert TrainingRecipe.from_json(recipe.to_json()) == recipe
    assert TrainingRecipe(dataset="cifar10").dataset == "cifar10"


def test_checkpoints_are_stored_by_their_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = TrainingRecipe(finetune="nets/../net.safetensors")
    assert recipe.finetune == str(tmp_path / "net.safetensors")
    text = recipe.to_json()
    monkeypatch.chdir("/")
    assert TrainingRecipe.from_json(text) == recipe
    assert recipe.differences(TrainingRecipe(finetune=str(tmp_path / "net.safetensors"))) == []
    older = TrainingRecipe.from_json(text.replace(str(tmp_path) + "/", ""))  # a relative path
    assert recipe.differences(older) == [
        f"finetune /net.safetensors instead of {tmp_path / 'net.safetensors'}"
    ]
    # but it is the network that counts, as far as it is known
    known = [dataclasses.replace(each, finetune_digest="ab") for each in (recipe, older)]
    assert known[0].differences(known[1]) == []
    assert recipe.differences(known[1])
    assert known[0].differences(dataclasses.replace(known[0], finetune_digest="cd"))


def test_a_dataset_is_not_a_folder_that_was_moved(tmp_path: Path) -> None:
    gone = TrainingRecipe(dataset=str(tmp_path / "gone" / "cifar10"))
    moved = dataclasses.replace(gone, dataset=str(tmp_path / "here" / "cifar10"))
    assert gone.differences(moved) == []
    (named,) = gone.differences(dataclasses.replace(gone, dataset="cifar10"))
    assert named.startswith("dataset cifar10 instead of ")


def test_what_a_trained_network_knows_of_its_images(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "pets" / name).mkdir(parents=True)
    recipe = TrainingRecipe(dataset=str(tmp_path / "pets"), split_seed=3, size=64, resize=80)
    assert recipe.origin == Origin(64, 80, "pets", 3)
    (tmp_path / "pets").rename(tmp_path / "moved")
    assert recipe.origin.dataset == "pets"
    small = TrainingRecipe("resnet44", dataset="cifar10", size=32, resize=40, crop="padded")
    assert small.origin == Origin(32, 32, "cifar10", 0)  # which are not cropped


def test_a_build_is_fixed_by_its_seed_alone() -> None:
    recipe = TrainingRecipe("resnet44", {"width": 2}, size=32)
    torch.manual_seed(1)
    first = recipe.build(3).linear.weight
    expected = torch.rand(2)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(2), expected)  # building leaves the global generator alone
    assert torch.equal(first, recipe.build(3).linear.weight)
    other = dataclasses.replace(recipe, seed=1).build(3).linear.weight
    assert not torch.equal(first, other)


def test_json_round_trip_and_differences() -> None:
    recipe = TrainingRecipe("ce_resnet18", {"width": (4, 8, 16, 32)}, jitter=0.25)
    again = TrainingRecipe.from_json(recipe.to_json())
    assert recipe.differences(again) == []  # although JSON has no tuples
    changed = dataclasses.replace(again, lr=0.1, options={"width": 4})
    assert recipe.differences(changed) == [
        "options {'width': 4} instead of {'width': [4, 8, 16, 32]}",
        "lr 0.1 instead of 0.001",
    ]
    contents = json.loads(recipe.to_json())
    with pytest.raises(ValueError, match="momentum"):
        TrainingRecipe.from_json(json.dumps(contents | {"momentum": 1}))
    del contents["warmup"]  # as written before there was this setting
    assert recipe.differences(TrainingRecipe.from_json(json.dumps(contents))) == []
    for nothing in ({}, []):
        with pytest.raises(ValueError, match="not a training recipe"):
            TrainingRecipe.from_json(json.dumps(nothing))
    del contents["model"]
    with pytest.raises(ValueError, match=r"it lacks model$"):
        TrainingRecipe.from_json(json.dumps(contents))


def test_networks_of_small_images_get_them() -> None:
    recipe = default_recipe("flowers102", "ce_resnet44")
    assert (recipe.size, recipe.resize, recipe.crop) == (32, 36, "resized")
    assert default_recipe("cifar10", "resnet18").crop == "padded"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "resnet19"}, "unknown model 'resnet19'; did you mean 'resnet18'"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be an int, got float"),
        ({"optimizer": "lion"}, "optimizer must be one of 'adam', 'adamw', 'sgd'; got 'lion'"),
        ({"schedule": "step"}, "schedule must be one of 'onecycle', 'cosine'"),
        ({"precision": "16"}, "precision must be one of 'float32', 'bfloat16'; got '16'"),
        ({"precision": "bf16"}, "got 'bf16', which is called 'bfloat16' now"),
        ({"precision": "32"}, "got '32', which is called 'float32' now"),
        ({"lr": float("nan")}, "lr must be finite, got nan"),
        ({"lr": 0.0}, "lr must be greater than 0"),
        ({"clip": -1.0}, "clip must be at least 0, got -1"),
        ({"ema": 1.0}, "ema must be less than 1, got 1.0"),
        ({"jitter": 0.7}, "jitter must be at most 0.5"),
        ({"label_smoothing": 1.0}, "label_smoothing must be less than 1, got 1.0"),
        ({"js": True}, "needs augmix"),
        ({"augmix": "colour"}, "augmix must be one of '', 'original', 'full'; got 'colour'"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 2**32}, "seed must be at most 4,294,967,295"),
        ({"seed": 1.5}, "seed must be an int, got float"),
        ({"split_seed": -3}, "split_seed must be at least 0"),
        ({"size": 300}, "resize must be at least size=300"),
        ({"size": 32_000, "resize": 36_571}, "resize must be at most 32,768, got 36571"),
        ({"crop": "centre"}, "crop must be one of 'resized', 'padded'; got 'centre'"),
        ({"options": {"num_classes": 3}}, "num_classes comes from the dataset"),
    ],
)
def test_bad_recipes(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingRecipe(**options)


def test_folders_of_runs_are_utf8(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "pets\udce9" / name).mkdir(parents=True)
    recipe = TrainingRecipe(dataset=str(tmp_path / "pets\udce9"))
    assert recipe.folder_name.startswith("pets?-resnet18-seed0-")


def test_unknown_recipes_name_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"'flowers102/ce-3\+jiter'; did you mean 'flowers102/ce-3\+jitter'"
    ):
        find_recipe("flowers102/ce-3+jiter")
    with pytest.raises(ValueError, match="'cifar10/ce-4'; did you mean 'cifar10/ce-3'"):
        find_recipe("ce-4", "cifar10")
    with pytest.raises(ValueError, match="unknown dataset 'cifar'"):
        find_recipe("ce-3", "cifar")
    assert find_recipe("cifar10/ce-3", "cifar10") == find_recipe("ce-3", "cifar10")


def test_names_of_the_tables_keep_their_recipes() -> None:
    for name, recipe in recipes("flowers102").items():
        found = named_recipe(name.partition("/")[2], "flowers102")
        assert found == (name.partition("/")[2], recipe)


@pytest.mark.parametrize(
    ("name", "dataset", "canonical"),
    [
        ("rgb-3", "flowers102", "ce-4"),
        ("rgb-3", "cifar10", "ce-3"),
        ("hsv-1", "cifar10", "baseline"),
        ("rgb-1+jitter-0.5", "flowers102", "baseline+jitter"),
        ("baseline+jitter-0", "flowers102", "baseline"),
        ("rgb-3+jitter-0.20", "flowers102", "ce-4+jitter-0.2"),
        ("rgb-3+jitter+flatten", "flowers102", "ce-4+flatten+jitter"),
        ("hsv-5+augmix", "flowers102", "hsv-5+augmix"),
        ("hsv-24+augmix+jitter", "flowers102", "hsv-24+jitter+augmix"),
    ],
)
def test_equal_recipes_have_one_name(name: str, dataset: str, canonical: str) -> None:
    found = named_recipe(name, dataset)
    assert found[0] == canonical
    assert named_recipe(canonical, dataset) == found


def test_what_a_name_changes() -> None:
    plain = find_recipe("baseline", "flowers102")
    ten = named_recipe("rgb-10", "flowers102")[1]
    assert plain.differences(ten) == [
        "model ce_resnet18 instead of resnet18",
        "options {'rotations': 10, 'lifting': 'rgb'} instead of {}",
    ]
    flat = named_recipe("ce-4+flatten+jitter-0.1", "flowers102")[1]
    assert flat.options == {"rotations": 3, "ce_stages": 4, "coset_pool": None}
    assert flat.jitter == 0.1
    both = find_recipe("flowers102/ce-4+jitter+augmix")
    assert (both.jitter, both.augmix) == (0.5, "original")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hvs-12", "unknown recipe 'flowers102/hvs-12'; did you mean"),
        ("ce-4+jiter", "unknown recipe 'flowers102/ce-4\\+jiter'; did you mean"),
        ("ce-4+jitter+jitter-0.1", "unknown recipe"),
        ("baseline+flatten", "baseline has no rotations to pool"),
        ("gray+avg", "gray has no rotations to pool"),
        ("ciconv-w+p4", "ciconv_resnet18 has no option 'spatial'"),
        ("ce-2+p4", "spatial='p4' needs ce_stages=4"),
        ("ce-2+flatten", "a hybrid network .* pools over its hues"),
        ("hsv-1001", "rotations must be at most 1,000"),
        ("cifar10/ce-2", "unknown recipe"),
    ],
)
def test_bad_names_are_refused(name: str, message: str) -> None:
    for full, dataset in ((name, "flowers102"), (f"flowers102/{name}", None)):
        with pytest.raises(ValueError, match=message):
            find_recipe(full, dataset)
