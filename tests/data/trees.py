"""Small made-up datasets in the layouts of the real ones: ``TREES[name](root)`` makes one.

Every builder returns what a loader must find: the labels of both parts, in order, and the class
names. The images are random, of different sizes, and all different.
"""

import hashlib
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image


class Expected(NamedTuple):
    train: list[int]
    test: list[int]
    class_names: tuple[str, ...]


def pixels(number: int, height: int, width: int) -> np.ndarray:
    """A smooth random image, uint8 ``[H, W, 3]``."""
    coarse = np.random.default_rng(number).integers(0, 256, (3, 4, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encoded(number: int, *, suffix: str = ".jpg") -> bytes:
    """An image of its own size, 20 to 50 pixels, as a file."""
    height, width = np.random.default_rng(number).integers(20, 51, 2).tolist()
    file = io.BytesIO()
    kind = "PNG" if suffix == ".png" else "JPEG"
    Image.fromarray(pixels(number, height, width)).save(file, kind)
    return file.getvalue()


def write(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(number, suffix=path.suffix.lower()))


# CIFAR and STL-10


def small(number: int, side: int = 32) -> np.ndarray:
    """An image, channel by channel, uint8 ``[3, side, side]``."""
    return np.ascontiguousarray(pixels(number, side, side).transpose(2, 0, 1))


def python2_string(text: bytes) -> bytes:
    if len(text) < 256:
        return b"U" + bytes([len(text)]) + text
    return b"T" + struct.pack("<i", len(text)) + text


def python2_pickle(data: np.ndarray, labels: dict[str, list[int]]) -> bytes:
    """A batch as Python 2 pickled the real ones, opcode by opcode."""
    shape = b"".join(b"J" + struct.pack("<i", extent) for extent in data.shape)
    dtype = (
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01" + shape + b"\x86" + dtype + b"\x89" + python2_string(data.tobytes()) + b"tb"
    )
    entries = python2_string(b"data") + array
    for name, numbers in labels.items():
        listed = b"".join(b"K" + bytes([number]) for number in numbers)
        entries += python2_string(name.encode()) + b"](" + listed + b"e"
    return b"\x80\x02}(" + entries + b"u."


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = tuple(f"thing_{index}" for index in range(100))


def cifar10(root: Path, *, binary: bool = False, count: int = 4) -> Expected:
    """Five training batches and a test batch, ``count`` images each."""
    folder = root / ("cifar-10-batches-bin" if binary else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{index}" for index in range(1, 6)), "test_batch"]
    labels = np.arange(6 * count).reshape(6, count) * 7 % 10
    for batch, name in enumerate(names):
        data = np.stack([small(batch * count + index).ravel() for index in range(count)])
        if binary:
            records = np.concatenate([labels[batch, :, None].astype(np.uint8), data], 1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
        else:
            contents = python2_pickle(data, {"labels": labels[batch].tolist()})
            (folder / name).write_bytes(contents)
    if not binary:
        meta = {"label_names": list(CIFAR10), "num_vis": 3072}
        (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return Expected(labels[:5].ravel().tolist(), labels[5].tolist(), CIFAR10)


def cifar100(root: Path, *, binary: bool = False) -> Expected:
    folder = root / ("cifar-100-binary" if binary else "cifar-100-python")
    folder.mkdir(parents=True)
    parts = {"train": list(range(0, 100, 8)), "test": [99, 0, 50]}
    for name, fine in parts.items():
        coarse = [label // 5 for label in fine]
        start = len(name) * 1000
        data = np.stack([small(start + index).ravel() for index in range(len(fine))])
        if binary:
            both = np.array([coarse, fine], np.uint8).T
            (folder / f"{name}.bin").write_bytes(np.concatenate([both, data], 1).tobytes())
        else:
            contents = python2_pickle(data, {"coarse_labels": coarse, "fine_labels": fine})
            (folder / name).write_bytes(contents)
    if binary:
        (folder / "fine_label_names.txt").write_text("\n".join(CIFAR100) + "\n")
    else:
        meta = {"fine_label_names": list(CIFAR100), "coarse_label_names": ["some"] * 20}
        (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    return Expected(parts["train"], parts["test"], CIFAR100)


STL10 = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


def stl10(root: Path) -> Expected:
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    parts = {"train": [3, 9, 0], "test": [1, 2]}
    for name, labels in parts.items():
        images = [small(len(name) * 2000 + index, 96) for index in range(len(labels))]
        # The real files hold columns, not rows.
        columns = np.stack(images).transpose(0, 1, 3, 2)
        (folder / f"{name}_X.bin").write_bytes(columns.tobytes())
        (folder / f"{name}_y.bin").write_bytes(bytes(label + 1 for label in labels))
    (folder / "class_names.txt").write_text("\n".join(STL10) + "\n")
    (folder / "fold_indices.txt").write_text("0 1 2\n")
    return Expected(parts["train"], parts["test"], STL10)


# Images in files


def flowers102(root: Path, *, tars: bool = False, names: bool = False) -> Expected:
    """Three classes, twelve images; in ``jpg/``, or in two uncompressed tars."""
    import scipy.io

    folder = root / "flowers-102"
    folder.mkdir(parents=True)
    labels = np.arange(12, dtype=np.uint8) % 3 + 1
    parts = {"trnid": [7, 2, 3], "valid": [1, 12, 5], "tstid": [4, 6, 8, 9, 10, 11]}
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": labels[None]})
    scipy.io.savemat(
        folder / "setid.mat", {key: np.array([ids], np.uint16) for key, ids in parts.items()}
    )
    files = {f"jpg/image_{number:05d}.jpg": encoded(number) for number in range(1, 13)}
    if tars:
        for index in range(2):
            with tarfile.open(folder / f"jpg-{index}.tar", "w") as tar:
                for name, contents in list(files.items())[6 * index : 6 * index + 6]:
                    member = tarfile.TarInfo(name)
                    member.size = len(contents)
                    tar.addfile(member, io.BytesIO(contents))
    else:
        (folder / "jpg").mkdir()
        for name, contents in files.items():
            (folder / name).write_bytes(contents)
    class_names: tuple[str, ...] = ("1", "2", "3")
    if names:
        (folder / "cat_to_name.json").write_text('{"2": "rose", "1": "lily", "3": "aster"}')
        class_names = ("lily", "rose", "aster")
    train = [int(labels[number - 1]) - 1 for number in parts["trnid"] + parts["valid"]]
    test = [int(labels[number - 1]) - 1 for number in parts["tstid"]]
    return Expected(train, test, class_names)


def oxford_pet(root: Path) -> Expected:
    folder = root / "oxford-iiit-pet"
    (folder / "annotations").mkdir(parents=True)
    breeds = ("Abyssinian", "american_bulldog", "Bengal")
    parts = {"trainval": [(0, 100), (0, 101), (1, 7), (2, 1)], "test": [(2, 2), (1, 8), (0, 1)]}
    number = 3000
    for name, members in parts.items():
        lines = []
        for label, index in members:
            write(folder / "images" / f"{breeds[label]}_{index}.jpg", number)
            lines.append(f"{breeds[label]}_{index} {label + 1} {1 + (label == 1)} 1")
            number += 1
        (folder / "annotations" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (folder / "annotations" / "list.txt").write_text("#Image CLASS-ID SPECIES BREED ID\n")
    class_names = ("Abyssinian", "American Bulldog", "Bengal")
    return Expected([0, 0, 1, 2], [2, 1, 0], class_names)


def caltech101(root: Path) -> Expected:
    """Three classes of 10, 6 and 3 images, and the background, which does not count."""
    folder = root / "caltech101" / "101_ObjectCategories"
    sizes = {"Faces": 10, "accordion": 6, "yin_yang": 3, "BACKGROUND_Google": 5}
    for kind, (name, size) in enumerate(sizes.items()):
        for index in range(1, size + 1):
            write(folder / name / f"image_{index:04d}.jpg", 4000 + 100 * kind + index)
    names = {
        name: [f"{name}/image_{index:04d}.jpg" for index in range(1, size + 1)]
        for name, size in list(sizes.items())[:3]
    }
    return split_by_name(names, 0.33)


def split_by_name(files: dict[str, list[str]], share: float, seed: int = 0) -> Expected:
    """The split of class folders: names whose hash is small are tested on."""
    train, test = [], []
    for label, names in enumerate(files.values()):
        hashes = [hashlib.sha256(f"{seed} {name}".encode()).hexdigest() for name in names]
        held_out = sum(int(digest, 16) < share * 2**256 for digest in hashes)
        held_out = min(max(held_out, 1), len(names) - 1)
        train += [label] * (len(names) - held_out)
        test += [label] * held_out
    return Expected(train, test, tuple(files))


def stanford_cars(root: Path, *, labels_in_devkit: bool = False) -> Expected:
    import scipy.io

    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    class_names = ("AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Audi TT RS Coupe 2012")
    cells = np.array([class_names], dtype=object)
    scipy.io.savemat(folder / "devkit" / "cars_meta.mat", {"class_names": cells})
    parts = {"train": [2, 0, 1, 1], "test": [1, 0, 2]}
    for kind, (name, labels) in enumerate(parts.items()):
        rows = []
        for index, label in enumerate(labels, 1):
            write(folder / f"cars_{name}" / f"{index:05d}.jpg", 5000 + 100 * kind + index)
            rows.append((39, 116, 569, 375, label + 1, f"{index:05d}.jpg"))
        fields = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
        table = np.array([rows], dtype=[(field, object) for field in fields])
        place = folder / "devkit" / "cars_train_annos.mat"
        if name == "test":
            beside = folder / "devkit" if labels_in_devkit else folder
            place = beside / "cars_test_annos_withlabels.mat"
        scipy.io.savemat(place, {"annotations": table})
    return Expected(parts["train"], parts["test"], class_names)


def imagenet(root: Path) -> Expected:
    synsets = ("n01440764", "n01443537", "n02006656")
    for kind, synset in enumerate(synsets):
        for index in range(3):
            name = f"{synset}_{index}.JPEG"
            write(root / "imagenet" / "train" / synset / name, 6000 + 100 * kind + index)
        for index in range(2):
            name = f"ILSVRC2012_val_{10 * kind + index:08d}.JPEG"
            write(root / "imagenet" / "val" / synset / name, 6500 + 100 * kind + index)
    return Expected([0] * 3 + [1] * 3 + [2] * 3, [0] * 2 + [1] * 2 + [2] * 2, synsets)


def breakhis(root: Path) -> Expected:
    """Three benign cases and five malignant ones, two images each, at two magnifications."""
    benign = ["A-14-22549AB", "F-14-9133", "TA-14-3411F"]
    malignant = ["DC-14-12312", "DC-14-11031", "LC-14-15570C", "MC-14-18842", "PC-15-190EF"]
    cases = [f"B_{case}" for case in benign] + [f"M_{case}" for case in malignant]
    for number, case in enumerate(cases):
        for magnification in (40, 400):
            place = root / f"breakhis/BreaKHis_v1/SOB_{case}/{magnification}X"
            for index in (1, 2):
                file = place / f"SOB_{case}-{magnification}-{index:03d}.png"
                write(file, 9000 + 1000 * (magnification == 40) + 2 * number + index)
    # 30 % of three cases is one, of five two.
    return Expected([0] * 4 + [1] * 6, [0] * 2 + [1] * 4, ("benign", "malignant"))


def folder(path: Path, sizes: dict[str, int] | None = None, *, start: int = 7000) -> Expected:
    """Class folders with images; split 80 to 20."""
    sizes = {"cat": 10, "dog": 5} if sizes is None else sizes
    files = {
        name: [f"{name}/{index}{'.png' if index % 2 else '.jpg'}" for index in range(size)]
        for name, size in sizes.items()
    }
    for number, name in enumerate((name for names in files.values() for name in names), start):
        write(path / name, number)
    return split_by_name(files, 0.2)


def folder_in_parts(path: Path, *, test: str = "test") -> Expected:
    """``train/`` and ``test/`` with class folders."""
    folder(path / "train", {"cat": 3, "dog": 2})
    folder(path / test, {"cat": 1, "dog": 2}, start=7500)
    return Expected([0, 0, 0, 1, 1], [0, 1, 1], ("cat", "dog"))


TREES: dict[str, Callable[[Path], Expected]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "flowers102": flowers102,
    "stl10": stl10,
    "oxford_pet": oxford_pet,
    "caltech101": caltech101,
    "stanford_cars": stanford_cars,
    "imagenet": imagenet,
    "breakhis": breakhis,
}
