"""Datasets by name and by folder, on made-up trees in the real layouts."""

import dataclasses
import os
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data import trees
from tests.data.trees import TREES, Expected

from equicolor.data import MissingDataError, data_root
from equicolor.data.datasets import (
    DATASETS,
    canonical_dataset,
    dataset_state,
    find_dataset,
    load_dataset,
)
from equicolor.data.images import ImageSet

# Made-up trees hold a few images of each dataset.
pytestmark = pytest.mark.filterwarnings("ignore:.* is incomplete")

Start = Callable[[str], "subprocess.CompletedProcess[str]"]


def contents(images: ImageSet) -> list[bytes]:
    """What tells images apart."""
    if images.pixels is not None:
        return [image.numpy().tobytes() for image in images.pixels]
    return [file.read() for file in images.files]


def check(name: str | Path, root: Path, expected: Expected) -> tuple[ImageSet, ImageSet]:
    train, test = (load_dataset(name, split, root=root) for split in ("train", "test"))
    assert train.labels.tolist() == expected.train
    assert test.labels.tolist() == expected.test
    assert train.class_names == test.class_names == expected.class_names
    assert (train.split, test.split) == ("train", "test")
    both = contents(train) + contents(test)
    assert len(set(both)) == len(both) == len(train) + len(test)  # nothing is in both parts
    return train, test


def test_every_dataset_has_a_tree() -> None:
    assert set(TREES) == set(DATASETS)


@pytest.mark.parametrize("name", TREES)
def test_both_parts_are_read(name: str, tmp_path: Path) -> None:
    expected = TREES[name](tmp_path)
    assert dataset_state(DATASETS[name], "/nowhere").missing
    train, _ = check(name, tmp_path, expected)
    assert train.name == name


@pytest.mark.parametrize("name", TREES)
def test_default_root_is_the_environments(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = TREES[name](tmp_path)
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    assert load_dataset(name, "test").labels.tolist() == expected.test


@pytest.mark.parametrize("name", TREES)
def test_missing_dataset_says_what_where_and_how(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError) as caught:
        load_dataset(name, "train", root=tmp_path)
    message, info = str(caught.value), DATASETS[name]
    assert message.startswith(f"{info.title} is not in {tmp_path}: no {info.folders[0]}/")
    assert info.page in message
    assert "set EQUICOLOR_DATA" in message
    assert (f"'equicolor datasets get {name}'" in message) == (info.torchvision is not None)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "victim"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_3"),
        ("cifar100", "cifar-100-python/meta"),
        ("flowers102", "flowers-102/setid.mat"),
        ("flowers102", "flowers-102/jpg/image_00012.jpg"),
        ("stl10", "stl10_binary/test_y.bin"),
        ("oxford_pet", "oxford-iiit-pet/annotations/test.txt"),
        ("oxford_pet", "oxford-iiit-pet/images/american_bulldog_8.jpg"),
        ("stanford_cars", "stanford_cars/cars_test_annos_withlabels.mat"),
        ("stanford_cars", "stanford_cars/devkit/cars_meta.mat"),
        ("stanford_cars", "stanford_cars/cars_train/00002.jpg"),
    ],
)
def test_incomplete_dataset_names_what_is_missing(name: str, victim: str, tmp_path: Path) -> None:
    TREES[name](tmp_path)
    (tmp_path / victim).unlink()
    with pytest.raises(MissingDataError, match=rf"is incomplete in .*: no {victim};"):
        load_dataset(name, "train", root=tmp_path)
    state = dataset_state(DATASETS[name], tmp_path)
    assert str(state) == f"incomplete: no {victim}"


def test_many_missing_images_are_counted(tmp_path: Path) -> None:
    trees.flowers102(tmp_path)
    for path in (tmp_path / "flowers-102" / "jpg").iterdir():
        path.unlink()
    with pytest.raises(
        MissingDataError, match=r"jpg/image_00001.jpg, .*jpg/image_00004.jpg and 8 more"
    ):
        load_dataset("flowers102", "train", root=tmp_path)


@pytest.mark.parametrize("name", TREES)
def test_state_of_a_complete_dataset(name: str, tmp_path: Path) -> None:
    info = DATASETS[name]
    assert dataset_state(info, tmp_path)[1:] == (0, False, "")
    TREES[name](tmp_path)
    state = dataset_state(info, tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert state.size == sum(path.stat().st_size for path in files)
    assert state.exists
    # Three class folders, or four images a batch, can be trained on, but are not the dataset.
    incomplete = info.layout.incomplete(tmp_path)
    assert state.missing == tuple(incomplete)
    if name in ("caltech101", "imagenet"):
        count = info.num_classes - 3
        assert str(state) == f"incomplete: no {count} of {info.num_classes} class folders"
    elif name == "breakhis":
        assert str(state) == "incomplete: no 1804 of 1820 images"
    elif incomplete:
        assert str(state).startswith(f"incomplete: no whole {info.folders[0]}/")
    else:
        assert str(state) == "complete"


def test_an_incomplete_dataset_is_used_with_a_warning(tmp_path: Path) -> None:
    trees.breakhis(tmp_path)
    with pytest.warns(UserWarning, match="BreaKHis in .* is incomplete: no 1804 of 1820 images"):
        load_dataset("breakhis", "train", root=tmp_path)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("name", "count"), [("cifar10", 4), ("cifar100", None), ("stl10", None)])
def test_truncated_batches_are_not_complete(
    name: str, count: int | None, binary: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "stl10":
        folder, record = tmp_path / "stl10_binary", 3 * 96 * 96
        folder.mkdir()
        layout = DATASETS["stl10"].layout
        sizes = {"train_X.bin": 5000 * record, "test_X.bin": 8000 * record}
        for part, size in (sizes | {"train_y.bin": 5000, "test_y.bin": 8000}).items():
            with (folder / part).open("wb") as file:
                file.truncate(size)  # of which the disk keeps nothing
        (folder / "class_names.txt").write_text("\n".join(trees.STL10))
        victims = ["test_X.bin", "train_y.bin"]
    else:
        expected = (trees.cifar10 if count else trees.cifar100)(tmp_path, binary=binary)
        layout = DATASETS[name].layout
        held = {"train": len(expected.train), "test": len(expected.test)}
        images = {batch: count or held[batch] for batch in layout.images}
        layout = dataclasses.replace(layout, images=images)
        folder = tmp_path / (layout.binaries if binary else layout.pickles)
        victims = [f"{batch}{'.bin' * binary}" for batch in images]
    info = dataclasses.replace(DATASETS[name], layout=layout)
    assert str(dataset_state(info, tmp_path)) == "complete"
    for victim in victims:
        path = folder / victim
        size = path.stat().st_size
        whole = path.read_bytes() if name != "stl10" else b""
        for kept in (0, size // 2, size - 1):
            os.truncate(path, kept)
            assert layout.incomplete(tmp_path) == [f"whole {folder.name}/{victim}"]
            assert (
                str(dataset_state(info, tmp_path)) == f"incomplete: no whole {folder.name}/{victim}"
            )
        if whole:
            path.write_bytes(whole)
        else:
            os.truncate(path, size)


def test_state_of_a_damaged_dataset(tmp_path: Path) -> None:
    trees.flowers102(tmp_path)
    (tmp_path / "flowers-102" / "setid.mat").write_bytes(b"nothing")
    state = dataset_state(DATASETS["flowers102"], tmp_path)
    assert state.missing
    assert str(state).startswith(f"damaged: {tmp_path / 'flowers-102' / 'setid.mat'} cannot be")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("flowers", "did you mean 'flowers102'"),
        ("CIFAR-10", "did you mean 'cifar10' or 'cifar100'"),
        ("oxford-pets", "did you mean 'oxford_pet'"),
        ("Stanford Cars", "did you mean 'stanford_cars'"),
        ("xyz", "known are cifar10, cifar100, flowers102"),
    ],
)
def test_unknown_names_get_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=rf"^unknown dataset '{name}'; {hint}"):
        load_dataset(name, "train")


def test_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"split must be one of 'train', 'test'; got 'val'"):
        load_dataset("cifar10", "val", root=tmp_path)


def test_facts_of_the_papers_datasets() -> None:
    facts = {name: (info.kind, info.num_classes) for name, info in DATASETS.items()}
    paper = {
        "cifar10": ("small", 10), "cifar100": ("small", 100), "flowers102": ("large", 102),
        "stl10": ("large", 10), "oxford_pet": ("large", 37), "caltech101": ("large", 101),
        "stanford_cars": ("large", 196), "imagenet": ("large", 1000),
    }  # fmt: skip
    assert facts | paper == facts
    assert {kind for kind, _ in facts.values()} == {"small", "large"}


# Folders


def test_folder_in_parts(tmp_path: Path) -> None:
    expected = trees.folder_in_parts(tmp_path / "pets")
    train, _ = check(tmp_path / "pets", Path("/nowhere"), expected)
    assert train.name == "pets"
    info = find_dataset(str(tmp_path / "pets"))
    assert (info.num_classes, info.kind) == (2, "large")


@pytest.mark.filterwarnings("ignore:.*train is trained on and val tested on")
def test_folder_with_val(tmp_path: Path) -> None:
    check(tmp_path, tmp_path, trees.folder_in_parts(tmp_path, test="val"))


def test_folder_is_split_in_every_class(tmp_path: Path) -> None:
    expected = trees.folder(tmp_path)
    assert (expected.train, expected.test) == ([0] * 8 + [1] * 4, [0, 0, 1])
    check(str(tmp_path), tmp_path, expected)
    assert find_dataset(tmp_path).num_classes == 2


@pytest.mark.parametrize("name", TREES)
def test_a_split_of_its_own_takes_no_seed(name: str, tmp_path: Path) -> None:
    TREES[name](tmp_path)
    if DATASETS[name].layout.split_by_seed:
        load_dataset(name, "test", root=tmp_path, seed=3)
    else:
        with pytest.raises(ValueError, match=f"{name} comes with its own split"):
            load_dataset(name, "test", root=tmp_path, seed=3)


@pytest.mark.parametrize("name", ["caltech101", "folder"])
def test_splits_depend_on_the_seed_alone(name: str, tmp_path: Path) -> None:
    if name == "folder":
        trees.folder(tmp_path / "folder", {"a": 40, "b": 30})
        dataset: str | Path = tmp_path / "folder"
    else:
        trees.caltech101(tmp_path)
        dataset = name
    splits = []
    for seed in (0, 0, 1):
        train, test = (
            load_dataset(dataset, split, root=tmp_path, seed=seed) for split in ("train", "test")
        )
        assert not set(train.files) & set(test.files)
        splits.append((train, test))
    first, again, other = ([list(part.files) for part in split] for split in splits)
    assert first == again
    assert first[1] != other[1]
    whole = [{*train.files, *test.files} for train, test in splits]
    assert whole[0] == whole[1] == whole[2]
    assert len(whole[0]) == (70 if name == "folder" else 19)


def test_split_does_not_follow_the_names(tmp_path: Path) -> None:
    trees.folder(tmp_path, {"a": 40, "b": 40})
    test = load_dataset(tmp_path, "test").files
    places = [sorted(int(f.path.stem) for f in test if f.path.parent.name == c) for c in "ab"]
    assert all(4 <= len(found) <= 14 for found in places)  # about a fifth
    assert places[0] != places[1]
    assert all(np.diff(found).max() > 1 for found in places)


def test_an_added_image_moves_no_other_one(tmp_path: Path) -> None:
    trees.folder(tmp_path, {"a": 20, "b": 20})
    before = {split: set(load_dataset(tmp_path, split).files) for split in ("train", "test")}
    for number in range(5):  # sorted before, between and behind the others
        for name in ("0", "1x", "z"):
            trees.write(tmp_path / "a" / f"{name}{number}.png", number)
            now = {split: set(load_dataset(tmp_path, split).files) for split in ("train", "test")}
            assert before["train"] <= now["train"]
            assert before["test"] <= now["test"]
            before = now


def test_small_classes_have_both_parts(tmp_path: Path) -> None:
    sizes = {f"class{index:02d}": 2 + index % 3 for index in range(30)}
    check(tmp_path, tmp_path, trees.folder(tmp_path, sizes))
    for split in ("train", "test"):
        assert len(load_dataset(tmp_path, split).labels.unique()) == 30


def test_a_folder_is_split_alike_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.folder(tmp_path / "pets")
    (tmp_path / "pets").rename(tmp_path / "moved")
    trees.folder(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    found = [
        [file.path.name for file in load_dataset(spelling, "test").files]
        for spelling in (tmp_path / "pets", tmp_path / "moved", "./moved", "pets/../pets")
    ]
    assert found[0] == found[1] == found[2] == found[3]


def test_dataset_names_come_before_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.folder(tmp_path / "cifar10")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingDataError, match="CIFAR-10 is not in"):
        load_dataset("cifar10", "train", root=tmp_path)
    assert len(load_dataset("./cifar10", "train")) == 12
    assert len(load_dataset(Path("cifar10"), "train")) == 12


def test_a_folder_called_like_a_dataset_is_none(tmp_path: Path) -> None:
    trees.folder(tmp_path / "cifar10")
    for spelling in (tmp_path / "cifar10", str(tmp_path / "cifar10")):
        assert find_dataset(spelling).name == "folder:cifar10"
        assert load_dataset(spelling, "train").name not in DATASETS
    assert find_dataset("cifar10").name == "cifar10"


def test_every_spelling_of_a_folder_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.folder(tmp_path / "pets")
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    place = str(tmp_path / "pets")
    spellings = ["pets", "pets/", "./pets", "pets/../pets", "~/pets", "link", Path("pets"), place]
    assert {canonical_dataset(spelling) for spelling in spellings} == {place}
    monkeypatch.chdir("/")
    assert canonical_dataset(place) == place
    monkeypatch.chdir(tmp_path)
    assert canonical_dataset("cifar10") == "cifar10"
    assert canonical_dataset("./cifar10") == canonical_dataset(Path("cifar10")) != "cifar10"
    assert canonical_dataset("flower") == "flower"  # neither: an error elsewhere
    assert canonical_dataset("./gone") == str(tmp_path / "gone")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    expected = trees.folder(tmp_path, {"car": 5, "ship": 5, "train": 5})
    check(tmp_path, tmp_path, expected)


def test_single_images_are_for_training(tmp_path: Path) -> None:
    expected = trees.folder(tmp_path, {"rare": 1, "usual": 2})
    assert (expected.train, expected.test) == ([0, 1], [1])
    check(tmp_path, tmp_path, expected)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, r"should hold a folder of images for every class, but holds none"),
        ({"cat": 3}, r"holds one class folder, 'cat'; a classifier needs two or more"),
        ({"cat": 1, "dog": 1}, r"no class of .* has a second image"),
    ],
    ids=["empty", "one class", "one image a class"],
)
def test_unfit_folders_are_refused(tmp_path: Path, sizes: dict[str, int], message: str) -> None:
    trees.folder(tmp_path, sizes)
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path, "test")


def test_loose_images_are_refused(tmp_path: Path) -> None:
    trees.write(tmp_path / "1.jpg", 1)
    with pytest.raises(ValueError, match=r"but holds 1 image outside any"):
        load_dataset(tmp_path, "train")


def test_empty_class_folder_is_named(tmp_path: Path) -> None:
    trees.folder(tmp_path)
    (tmp_path / "fish").mkdir()
    (tmp_path / "fish" / "notes.txt").touch()
    with pytest.raises(ValueError, match=rf"class folder {tmp_path / 'fish'} holds no images"):
        load_dataset(tmp_path, "train")


@pytest.mark.parametrize(("kept", "lacking"), [("train", "test"), ("test", "train")])
def test_class_folders_must_agree(tmp_path: Path, kept: str, lacking: str) -> None:
    trees.folder_in_parts(tmp_path)
    trees.write(tmp_path / kept / "fish" / "1.jpg", 1)
    message = rf"class folders of {tmp_path / kept} that {tmp_path / lacking} lacks: fish;"
    for split in ("train", "test"):
        with pytest.raises(ValueError, match=message):
            load_dataset(tmp_path, split)


def test_class_folders_that_are_spelled_otherwise_are_named(tmp_path: Path) -> None:
    trees.folder_in_parts(tmp_path)
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "Dog")
    with pytest.raises(ValueError, match=r"must have the same \(spelled otherwise: dog and Dog\)"):
        load_dataset(tmp_path, "train")


def test_folder_without_test_part(tmp_path: Path) -> None:
    trees.folder(tmp_path / "train")
    with pytest.raises(MissingDataError, match=rf"no {tmp_path / 'test'}/ \(or val/\)"):
        load_dataset(tmp_path, "train")


@pytest.mark.parametrize("name", ["/nowhere/pets", "./nothing", "~/nothing/here"])
def test_missing_folder(name: str) -> None:
    with pytest.raises(MissingDataError, match=r"no folder of images at /nowhere/pets|nothing"):
        load_dataset(name, "train")


def test_hidden_files_do_not_count(tmp_path: Path) -> None:
    expected = trees.folder(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "cat" / "._0.jpg").write_bytes(b"left by a file manager")
    (tmp_path / "cat" / ".cache").mkdir()
    (tmp_path / "cat" / ".cache" / "notes.txt").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(tmp_path, tmp_path, expected)


@pytest.mark.slow
def test_importing_needs_neither_pillow_nor_scipy(start_script: Start) -> None:
    code = (
        "import sys, equicolor.data.datasets, equicolor.data.decoding, equicolor.data.download; "
        "assert not {'PIL', 'scipy', 'torchvision'} & set(sys.modules)"
    )
    done = start_script(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif("EQUICOLOR_DATA" not in os.environ, reason="Flowers-102: no EQUICOLOR_DATA")
def test_real_flowers() -> None:
    if dataset_state(DATASETS["flowers102"]).missing:
        pytest.skip(f"no Flowers-102 in {data_root()}")
    train, test = (load_dataset("flowers102", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (2040, 6149)
    assert len(train.class_names) == 102
    assert torch.bincount(train.labels).tolist() == [20] * 102
    assert torch.bincount(test.labels, minlength=102).min() >= 20
    assert not set(train.files) & set(test.files)
    image = train.files[0].decode()
    assert image.mode == "RGB"
    assert min(image.size) >= 200


@pytest.mark.skipif("EQUICOLOR_DATA" not in os.environ, reason="CIFAR-10: no EQUICOLOR_DATA")
def test_real_cifar10() -> None:
    if dataset_state(DATASETS["cifar10"]).missing:
        pytest.skip(f"no CIFAR-10 in {data_root()}")
    train, test = (load_dataset("cifar10", split) for split in ("train", "test"))
    assert torch.bincount(train.labels).tolist() == [5000] * 10
    assert torch.bincount(test.labels).tolist() == [1000] * 10
    assert [train.class_names[label] for label in train.labels[:3]] == ["frog", "truck", "truck"]
    # The mean everybody normalises with: channels and their order are right.
    mean = train.pixels.double().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
