"""The images to judge a network on, prepared as it expects them."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._text import enumerated
from equicolor.data.augment import Augmentation
from equicolor.data.decoding import decode
from equicolor.data.images import ImageSet
from equicolor.data.loaders import ResidentLoader, StreamingLoader, choose_data_path
from equicolor.evaluation.hue_sweep import Batches
from equicolor.models import Network
from equicolor.models.facts import network_facts
from equicolor.models.foreign import ForeignNetwork
from equicolor.models.registry import Origin, usual_resize
from equicolor.reporting.progress import Progress

__all__ = [
    "OtherClassesError",
    "Preparation",
    "check_outputs",
    "choose_preparation",
    "count_outputs",
    "load_batches",
    "match_classes",
    "some_images",
    "try_images",
]


class OtherClassesError(ValueError):
    """The network was trained on other classes than those of the images.

    Attributes:
        reason: the message without the advice.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. If they are the same under other names, in the same order, go on with "
            "--classes-by-index"
        )
        self.reason = reason


class Preparation(NamedTuple):
    """How test images are cut: the short side is resized, then a square centre is cropped."""

    size: int
    resize: int


def choose_preparation(
    network: nn.Module,
    kind: str = "large",
    *,
    size: int | None = None,
    resize: int | None = None,
) -> Preparation:
    """How to cut test images for a network, where ``size`` and ``resize`` do not say it.

    What the network knows of its training comes first, then the size it was made for.
    ``"small"`` images, such as CIFAR's, are not cropped.

    Example:
        >>> from equicolor.models import resnet18, resnet44
        >>> choose_preparation(resnet18(10)), choose_preparation(resnet44(10), "small")
        (Preparation(size=224, resize=256), Preparation(size=32, resize=32))
        >>> choose_preparation(resnet18(10), size=112)
        Preparation(size=112, resize=128)
    """
    if size is None:
        origin = network.origin if isinstance(network, Network) else Origin()
        size = origin.image_size or int(getattr(network, "image_size", 224))
        if resize is None and origin.dataset:  # trained so, whatever the images are now
            resize = origin.resize
        if resize is None and isinstance(network, (ForeignNetwork, Network)) and kind != "small":
            resize = network.resize
    if resize is None:
        resize = size if kind == "small" else usual_resize(size)
    _checks.positive_int("size", size)
    return Preparation(size, _checks.positive_int("resize", resize))


def try_images(network: nn.Module, size: int, batch: int = 2) -> object:
    """What a network makes of black images of a size.

    Raises:
        ValueError: if it cannot take them, with the reason.
    """
    tensor = next(network.parameters(), torch.empty(0))
    images = torch.zeros(batch, 3, size, size, device=tensor.device, dtype=tensor.dtype)
    try:
        with torch.no_grad():
            return network(images)
    # With these, torch and other libraries refuse a shape.
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        usual = getattr(network, "image_size", None)
        raise ValueError(
            f"{network_facts(network)['model']} cannot take images of {size} × {size} pixels"
            f"{'' if usual in (None, size) else f' (it was made for {usual} × {usual})'}: {reason}"
        ) from error


def count_outputs(network: nn.Module, size: int) -> int:
    """The number of classes a network in eval mode gives logits for.

    Example:
        >>> from equicolor.models import z2cnn
        >>> count_outputs(z2cnn(30).eval(), 28)
        30
    """
    logits = try_images(network, size)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != 2:
        came = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise ValueError(
            f"the network must give logits [2, classes] for images {[2, 3, size, size]}, got {came}"
        )
    return logits.shape[1]


def check_outputs(network: nn.Module, images: ImageSet, size: int) -> None:
    """Refuse a network whose outputs are not the classes of the images."""
    outputs = count_outputs(network, size)
    if outputs != len(images.class_names):
        raise ValueError(
            f"the network has {outputs} outputs, but {images.name} has "
            f"{len(images.class_names)} classes: it was trained on something else"
        )


def match_classes(network: nn.Module, images: ImageSet) -> ImageSet:
    """Images whose labels number the classes as the network does.

    If the network does not know the names of its classes, the order is taken on trust.

    Raises:
        OtherClassesError: if the names differ, with the first that do.

    Example:
        >>> from equicolor.models import z2cnn
        >>> network = z2cnn(2)
        >>> network.class_names = ("cat", "dog")
        >>> pixels = torch.zeros(3, 3, 8, 8, dtype=torch.uint8)
        >>> toy = ImageSet("toy", "test", torch.tensor([0, 0, 1]), ("dog", "cat"), pixels=pixels)
        >>> match_classes(network, toy).labels.tolist()
        [1, 1, 0]
    """
    names = network.class_names if isinstance(network, Network) else ()
    theirs = images.class_names
    if not names or names == theirs:
        return images
    if sorted(names) != sorted(theirs) or len(set(names)) != len(names):
        pairs = [f"{a!r} and {b!r}" for a, b in zip(names, theirs, strict=False) if a != b]
        raise OtherClassesError(
            f"the network was trained on other classes than those of {images.name}: "
            f"{enumerated(pairs, 3)}"
        )
    number = torch.tensor([names.index(name) for name in theirs])
    return replace(images, labels=number[images.labels], class_names=names)


def some_images(images: ImageSet, count: int) -> ImageSet:
    """So many images, evenly from every class, in their order.

    Example:
        >>> pixels = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
        >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
        >>> toy = ImageSet("toy", "test", labels, ("a", "b"), pixels=pixels)
        >>> some_images(toy, 3).labels.tolist()
        [0, 0, 1]
    """
    if not 1 <= count <= len(images):
        raise ValueError(f"count must lie between 1 and {len(images)}, got {count}")
    by_class = images.labels.argsort(stable=True)
    places = (torch.arange(count) * len(images) + len(images) // 2) // count
    numbers = by_class[places].sort().values
    return replace(
        images,
        labels=images.labels[numbers],
        files=tuple(images.files[index] for index in numbers.tolist()) if images.files else (),
        pixels=None if images.pixels is None else images.pixels[numbers],
    )


def load_batches(
    images: ImageSet,
    preparation: Preparation,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    skip_corrupt: bool = False,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Batches:
    """Test images ``[B, 3, s, s]`` in [0, 1] with their labels ``[B]``, on a device.

    They are decoded first, and stay in the device's memory, if they fit into it; otherwise
    they are decoded batch by batch.

    Args:
        images: of :func:`equicolor.data.datasets.load_dataset`.
        preparation: how to cut them.
        batch_size: images in a batch.
        device: where to.
        skip_corrupt: leave out images that cannot be decoded.
        cache: the folder that keeps decoded images for the next time, if any.
        progress: called with (images decoded, images in all).

    Example:
        >>> pixels = torch.zeros(3, 3, 40, 30, dtype=torch.uint8)
        >>> toy = ImageSet("toy", "test", torch.tensor([0, 1, 1]), ("a", "b"), pixels=pixels)
        >>> batches = load_batches(toy, Preparation(28, 32), batch_size=2)
        >>> [list(images.shape) for images, _ in batches]
        [[2, 3, 28, 28], [1, 3, 28, 28]]
    """
    size, resize = preparation
    centre = Augmentation(size=size, crop="centre", resize=resize, flip=False)
    if choose_data_path(images, device, short_side=resize) == "streaming":
        return StreamingLoader(
            images,
            centre,
            short_side=resize,
            skip_corrupt=skip_corrupt,
            batch_size=batch_size,
            device=device,
        )
    decoded = decode(
        images,
        short_side=resize,
        cache=cache,
        progress=progress,
        on_corrupt="skip" if skip_corrupt else "error",
    )
    return ResidentLoader(decoded, centre, batch_size=batch_size, device=device)
