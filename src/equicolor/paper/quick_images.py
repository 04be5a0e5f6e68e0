"""Small folders of images for quick runs: coloured digits, written as PNG files.

Real photographs do not ship with any package, so quick runs of the experiments on real images
use what does: MNIST digits, coloured as in the biased ColorMNIST of the paper. In one folder a
digit has its own hue, more or less, as flowers have; in the other the hue says nothing. They
go through the very same code as photographs: files, decoding, augmentation, training, sweep.
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
    """A folder of coloured digits: its title, the spread of hues in degrees, numbers of images."""

    title: str
    sigma: float
    train: int = 600
    test: int = 200


_REVISION = 2  # to raise when the images change
IMAGES = {
    "coloured-digits": QuickImages("digits, each with its own hue (σ = 24°)", 24.0),
    "any-hue-digits": QuickImages("digits of any hue", 1e6),
}


def quick_note(datasets: Sequence[str]) -> str:
    """A sentence for the report if datasets are made up; empty if none is."""
    quick = [IMAGES[dataset] for dataset in datasets if dataset in IMAGES]
    if not quick:
        return ""
    return (
        f"A quick run, on made-up images: {', and '.join(each.title for each in quick)}; "
        f"{quick[0].train} for training, with narrow networks and few epochs. It shows that "
        "everything runs; differences of ten points mean nothing."
    )


def write_images(name: str, folder: Path | str) -> Path:
    """Write one of :data:`IMAGES` to ``folder/name``, unless it is there; returns that path.

    It has ``train/`` and ``test/``, and a folder for each digit in both.
    """
    about, place = IMAGES[name], Path(folder) / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_name(f".{name}.lock")):  # others may start at the same time
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
