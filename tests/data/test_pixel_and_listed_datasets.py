"""The files inside each layout: both forms of a dataset, and damaged files."""

import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data import trees
from tests.data.trees import TREES

from equicolor.data.datasets import load_dataset
from equicolor.data.pixel_datasets import restricted_unpickle

# CIFAR


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_pickles_and_binary_batches_agree(name: str, tmp_path: Path) -> None:
    build = getattr(trees, name)
    assert build(tmp_path / "pickles") == build(tmp_path / "binary", binary=True)
    for split in ("train", "test"):
        first, second = (
            load_dataset(name, split, root=tmp_path / form) for form in ("pickles", "binary")
        )
        assert torch.equal(first.pixels, second.pixels)
        assert torch.equal(first.labels, second.labels)
        assert first.class_names == second.class_names
        assert first.pixels.shape[1:] == (3, 32, 32)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "pickles"])
def test_cifar_pixels_are_where_they_belong(binary: bool, tmp_path: Path) -> None:
    trees.cifar10(tmp_path, binary=binary)
    train = load_dataset("cifar10", "train", root=tmp_path)
    assert np.array_equal(train.pixels[5].numpy(), trees.small(5))


def test_the_form_that_is_whole_counts(tmp_path: Path) -> None:
    expected = trees.cifar10(tmp_path, binary=True)
    trees.cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    assert load_dataset("cifar10", "test", root=tmp_path).labels.tolist() == expected.test


def test_stl10_columns_become_rows(tmp_path: Path) -> None:
    trees.stl10(tmp_path)
    train = load_dataset("stl10", "train", root=tmp_path)
    assert np.array_equal(train.pixels[1].numpy(), trees.small(len("train") * 2000 + 1, 96))
    assert train.pixels.is_contiguous()


@pytest.mark.parametrize(
    ("name", "file", "record"),
    [
        ("cifar10", "cifar-10-batches-bin/data_batch_2.bin", 3073),
        ("cifar100", "cifar-100-binary/train.bin", 3074),
        ("stl10", "stl10_binary/train_X.bin", 27648),
    ],
)
@pytest.mark.parametrize("keep", [0, -1])
def test_truncated_batches_are_named(
    name: str, file: str, record: int, keep: int, tmp_path: Path
) -> None:
    binary = {} if name == "stl10" else {"binary": True}
    getattr(trees, name)(tmp_path, **binary)
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:keep])
    message = rf"{path} is truncated: .* no whole number of records of {record} bytes"
    with pytest.raises(ValueError, match=message):
        load_dataset(name, "train", root=tmp_path)


def test_a_batch_that_lacks_whole_images_is_named(tmp_path: Path) -> None:
    trees.cifar10(tmp_path, binary=True)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[:-3073])
    with pytest.raises(ValueError, match=r"data_batch_4 is damaged: it holds 3 images where .* 4"):
        load_dataset("cifar10", "train", root=tmp_path)


def test_stl10_labels_must_fit(tmp_path: Path) -> None:
    trees.stl10(tmp_path)
    path = tmp_path / "stl10_binary" / "test_y.bin"
    path.write_bytes(b"\x01")
    with pytest.raises(ValueError, match=r"test_X.bin holds 2 images and test_y.bin 1 labels"):
        load_dataset("stl10", "test", root=tmp_path)
    path.write_bytes(b"\x01\x0b")
    with pytest.raises(ValueError, match=r"test_y.bin is damaged: it has label 10, of 10 classes"):
        load_dataset("stl10", "test", root=tmp_path)


def test_label_outside_the_classes(tmp_path: Path) -> None:
    trees.cifar10(tmp_path, binary=True)
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(b"\x63" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"test_batch.bin is damaged: it has label 99"):
        load_dataset("cifar10", "test", root=tmp_path)


# Pickles


class Malicious:
    """A pickle that would call a function."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_malicious_pickles_are_refused(tmp_path: Path, protocol: int) -> None:
    trees.cifar10(tmp_path)
    marker = tmp_path / "marker"
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    attacks = [
        Malicious(exec, f"open({str(marker)!r}, 'w').close()"),
        Malicious(__import__, "os"),
        {"data": Malicious(eval, f"open({str(marker)!r}, 'w').close()"), "labels": [1]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": Malicious(np.save, str(marker), [1])},
    ]
    for attack in attacks:
        path.write_bytes(pickle.dumps(attack, protocol))
        with pytest.raises(ValueError, match=rf"{path} is refused: it asks for .*no batch needs"):
            load_dataset("cifar10", "train", root=tmp_path)
    assert not list(tmp_path.glob("marker*"))
    # The attack works where it is not refused.
    exec(f"open({str(marker)!r}, 'w').close()")
    assert marker.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_honest_pickles_of_any_protocol_are_read(tmp_path: Path, protocol: int) -> None:
    data = np.arange(12, dtype=np.uint8).reshape(3, 4)
    path = tmp_path / "batch"
    across = np.asfortranarray(data)
    path.write_bytes(pickle.dumps({b"data": data, "across": across, "labels": [1, 2]}, protocol))
    first, second, labels = restricted_unpickle(path, "data", "across", "labels")
    assert np.array_equal(first, data)
    assert np.array_equal(second, data)
    assert labels == [1, 2]


def test_batches_saved_again_as_bytes_are_read(tmp_path: Path) -> None:
    expected = trees.cifar10(tmp_path)
    for path in (tmp_path / "cifar-10-batches-py").iterdir():
        entries = pickle.loads(path.read_bytes(), encoding="bytes")
        if path.name == "batches.meta":
            entries = {b"label_names": [name.encode() for name in expected.class_names]}
        path.write_bytes(pickle.dumps(entries))
    assert load_dataset("cifar10", "train", root=tmp_path).class_names == expected.class_names


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "is refused"),
        (b"not a pickle", "is refused"),
        (pickle.dumps([1, 2]), "is damaged: expected a dict, got list"),
        (pickle.dumps({"data": 1}), "has no 'labels', only 'data'"),
        (
            pickle.dumps({"data": np.zeros((2, 3072)), "labels": [1, 2]}),
            r"is refused: it holds an array of 'f8', not of bytes",
        ),
        (
            pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}),
            r"is damaged: expected data \[N, 3072\] and .* got \[2, 3072\] and 1 labels of int64",
        ),
        (
            pickle.dumps({"data": np.array([None]), "labels": [1]}),
            r"is refused: it holds an array of 'O8', not of bytes",
        ),
    ],
    ids=["empty", "no pickle", "no dict", "no labels", "floats", "a label too few", "objects"],
)
def test_damaged_pickles_are_named(tmp_path: Path, contents: bytes, message: str) -> None:
    trees.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(contents)
    with pytest.raises(ValueError, match=f"{path} {message}"):
        load_dataset("cifar10", "test", root=tmp_path)


# Lists and tars


def test_flowers_in_tars_are_the_same_images(tmp_path: Path) -> None:
    assert trees.flowers102(tmp_path / "files") == trees.flowers102(tmp_path / "tars", tars=True)
    for split in ("train", "test"):
        files, tars = (
            load_dataset("flowers102", split, root=tmp_path / form) for form in ("files", "tars")
        )
        assert [file.read() for file in files.files] == [file.read() for file in tars.files]
        assert files.files[0].size == -1
        assert tars.files[0].path.name.startswith("jpg-")
    assert files.files[0].read() == trees.encoded(4)  # the first of tstid


def test_flowers_have_names_where_a_file_gives_them(tmp_path: Path) -> None:
    expected = trees.flowers102(tmp_path, names=True)
    assert load_dataset("flowers102", "test", root=tmp_path).class_names == expected.class_names


def test_compressed_tar_is_refused(tmp_path: Path) -> None:
    trees.flowers102(tmp_path, tars=True)
    path = tmp_path / "flowers-102" / "jpg-0.tar"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tmp_path / "flowers-102" / "setid.mat", "jpg/image_00001.jpg")
    with pytest.raises(ValueError, match=rf"{path} cannot be read as an uncompressed tar"):
        load_dataset("flowers102", "train", root=tmp_path)


@pytest.mark.parametrize("in_devkit", [True, False])
def test_labels_of_the_test_cars_lie_in_either_place(in_devkit: bool, tmp_path: Path) -> None:
    expected = trees.stanford_cars(tmp_path, labels_in_devkit=in_devkit)
    assert load_dataset("stanford_cars", "test", root=tmp_path).labels.tolist() == expected.test


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("flowers102", "flowers-102/setid.mat"),
        ("stanford_cars", "stanford_cars/devkit/cars_train_annos.mat"),
    ],
)
def test_damaged_mat_files_are_named(name: str, file: str, tmp_path: Path) -> None:
    TREES[name](tmp_path)
    path = tmp_path / file
    path.write_bytes(b"MATLAB 5.0 MAT-file, cut short")
    with pytest.raises(ValueError, match=rf"{path} cannot be read as a MATLAB file"):
        load_dataset(name, "train", root=tmp_path)


def test_exchanged_mat_files_are_named(tmp_path: Path) -> None:
    trees.flowers102(tmp_path)
    folder = tmp_path / "flowers-102"
    (folder / "setid.mat").write_bytes((folder / "imagelabels.mat").read_bytes())
    with pytest.raises(ValueError, match=r"setid.mat has no 'trnid'"):
        load_dataset("flowers102", "train", root=tmp_path)


def test_bad_line_of_a_list_is_named(tmp_path: Path) -> None:
    trees.oxford_pet(tmp_path)
    path = tmp_path / "oxford-iiit-pet" / "annotations" / "trainval.txt"
    path.write_text(path.read_text() + "Bengal_3 three\n")
    with pytest.raises(ValueError, match=rf"{path}, line 5: expected a name and a class, got"):
        load_dataset("oxford_pet", "train", root=tmp_path)


def test_imagenet_val_must_be_sorted_into_classes(tmp_path: Path) -> None:
    trees.imagenet(tmp_path)
    val = tmp_path / "imagenet" / "val"
    for path in sorted(val.rglob("*.JPEG")):
        path.rename(val / path.name)
    for folder in list(val.iterdir()):
        if folder.is_dir():
            folder.rmdir()
    with pytest.raises(FileNotFoundError, match=r"no imagenet/val/<synset>/"):
        load_dataset("imagenet", "train", root=tmp_path)
