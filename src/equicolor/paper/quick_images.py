"""Small folders of images for quick runs: coloured digits, written as PNG files.

No package ships real photographs, so quick runs of the experiments on real images use MNIST
digits, coloured as in the biased ColorMNIST of the paper. In one folder every digit has about its
own hue, as flowers have; in the other the hue is random. They go through the same code as
photographs: files, decoding, augmentation, training, sweep.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock
from PIL import Image

from equicolor.data import biased_colormnist, load_mnist


class QuickImages(NamedTuple):
    """A folder of coloured digits."""

    title: str
    sigma: float  # spread of the hues in degrees
    train: int = 600  # numbers of images
    test: int = 200


_REVISION = 2  # to be raised when the images change
IMAGES = {
    "coloured-digits": QuickImages("digits, each with its own hue (σ = 24°)", 24.0),
    "any-hue-digits": QuickImages("digits of any hue", 1e6),
}


def quick_note(datasets: Sequence[str]) -> str:
    """A paragraph for the report if some datasets are made up, else an empty text."""
    quick = [IMAGES[dataset] for dataset in datasets if dataset in IMAGES]
    if not quick:
        return ""
    return (
        f"A quick run, on made-up images: {', and '.join(each.title for each in quick)}; "
        f"{quick[0].train} for training, with narrow networks and few epochs. It shows that "
        "everything runs; differences of ten points mean nothing."
    )


def write_images(name: str, folder: Path | str) -> Path:
    """Write one of :data:`IMAGES` to ``folder/name``, unless it exists; returns that path.

    It has ``train/`` and ``test/`` with a folder for each digit.
    """
    about, place = IMAGES[name], Path(folder) / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_name(f".{name}.lock")):  # another process may start at the same time
        done = place / f".revision-{_REVISION}"
        if done.exists():
            return place
        shutil.rmtree(place, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(dir=place.parent))
        digits = load_mnist(embedded=True)
        data = biased_colormnist(about.sigma, digits, train_size=about.train, test_size=about.test)
        for split, (images, labels) in (("train", data.train), ("test", data.test)):
            for class_name in data.class_names:
                (partial / split / class_name).mkdir(parents=True)
            pixels = (255 * images).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
            for index, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
                folder_of_class = partial / split / data.class_names[label]
                Image.fromarray(image).save(folder_of_class / f"{index:04}.png")
        (partial / done.name).touch()
        partial.rename(place)
    return place
