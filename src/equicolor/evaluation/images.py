"""The images to judge a network on, prepared as it expects them."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
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
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import recipe_of_run

__all__ = [
    "Preparation",
    "check_outputs",
    "choose_preparation",
    "count_outputs",
    "load_batches",
    "match_classes",
    "recipe_of_run",
    "some_images",
    "try_images",
]

_SHOWN = 3  # how many names an error shows


class Preparation(NamedTuple):
    """How test images are cut: the short side is resized, then the centre is cropped.

    Attributes:
        size: height and width of the crop.
        resize: the short side before it.
    """

    size: int
    resize: int


def choose_preparation(
    network: nn.Module,
    kind: str = "large",
    *,
    recipe: TrainingRecipe | None = None,
    size: int | None = None,
    resize: int | None = None,
) -> Preparation:
    """How to cut test images for a network, as far as that is not said.

    Args:
        network: its own size is the default, and what it was trained with if it knows that.
        kind: of the dataset; ``"small"`` images, such as CIFAR's, are not cropped.
        recipe: of the network's training, which goes before.
        size, resize: what is said; a ``size`` alone keeps the proportion of 224 to 256.

    Example:
        >>> from equicolor.models import resnet18, resnet44
        >>> choose_preparation(resnet18(10)), choose_preparation(resnet44(10), "small")
        (Preparation(size=224, resize=256), Preparation(size=32, resize=32))
        >>> choose_preparation(resnet18(10), size=112)
        Preparation(size=112, resize=128)
    """
    if size is None:
        own = network.origin if isinstance(network, Network) else Origin()
        origin = own if recipe is None else recipe.origin
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
    """What a network makes of black images.

    Args:
        network: in the mode it shall be tried in.
        size: height and width of the images.
        batch: how many.

    Raises:
        ValueError: if it cannot take them, with the reason.

    Example:
        >>> from equicolor.models import z2cnn
        >>> try_images(z2cnn(30).eval(), 28).shape
        torch.Size([2, 30])
    """
    tensor = next(network.parameters(), torch.empty(0))
    images = torch.zeros(batch, 3, size, size, device=tensor.device, dtype=tensor.dtype)
    try:
        with torch.no_grad():
            return network(images)
    # Torch's ways to say that shapes do not fit, and other libraries'.
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        made = getattr(network, "image_size", None)
        raise ValueError(
            f"{network_facts(network)['model']} cannot take images of {size} × {size} pixels"
            f"{'' if made in (None, size) else f' (it was made for {made} × {made})'}: {reason}"
        ) from error


def count_outputs(network: nn.Module, size: int) -> int:
    """How many classes a network tells apart.

    Args:
        network: in eval mode.
        size: height and width of the images.

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
    """Refuse a network whose outputs are not the classes of the images, before they are decoded.

    Args:
        network: in eval mode.
        images: what it shall be judged on.
        size: height and width of the images.
    """
    outputs = count_outputs(network, size)
    if outputs != len(images.class_names):
        raise ValueError(
            f"the network has {outputs} outputs, but {images.name} has "
            f"{len(images.class_names)} classes: it was trained on something else"
        )


def match_classes(network: nn.Module, images: ImageSet) -> ImageSet:
    """Images whose labels count the classes as the network does.

    Args:
        network: it may know the names of its classes; if not, the order is taken on trust.
        images: of as many classes.

    Returns:
        The images, their labels renumbered if the names are the same in another order.

    Raises:
        ValueError: if the names are others, with the first that differ.

    Example:
        >>> from equicolor.models import z2cnn
        >>> network = z2cnn(2)
        >>> network.class_names = ("cat", "dog")
        >>> pixels = torch.zeros(3, 3, 8, 8, dtype=torch.uint8)
        >>> toy = ImageSet("toy", "test", torch.tensor([0, 0, 1]), ("dog", "cat"), pixels=pixels)
        >>> match_classes(network, toy).labels.tolist()
        [1, 1, 0]
    """
    own = network.class_names if isinstance(network, Network) else ()
    theirs = images.class_names
    if not own or own == theirs:
        return images
    if sorted(own) != sorted(theirs) or len(set(own)) != len(own):
        pairs = [(a, b) for a, b in zip(own, theirs, strict=False) if a != b]
        shown = ", ".join(f"{a!r} and {b!r}" for a, b in pairs[:_SHOWN])
        raise ValueError(
            f"the network was trained on other classes than those of {images.name}: {shown}"
            f"{', …' if len(pairs) > _SHOWN else ''}. If they are the same under other names, in "
            "the same order, go on with --classes-by-index"
        )
    number = torch.tensor([own.index(name) for name in theirs])
    return replace(images, labels=number[images.labels], class_names=own)


def some_images(images: ImageSet, count: int) -> ImageSet:
    """So many images, evenly from every class, in their order.

    Args:
        images: at least as many.
        count: how many.

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
    chosen = by_class[places].sort().values
    return replace(
        images,
        labels=images.labels[chosen],
        files=tuple(images.files[index] for index in chosen.tolist()) if images.files else (),
        pixels=None if images.pixels is None else images.pixels[chosen],
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
    """Test images in batches, without any augmentation, on a device.

    They are decoded first and stay in the device's memory if they fit into it; else they are
    decoded batch by batch.

    Args:
        images: of :func:`equicolor.data.datasets.load_dataset`.
        preparation: how to cut them.
        batch_size: images in a batch.
        device: where to.
        skip_corrupt: leave out what cannot be decoded, instead of an error.
        cache: the folder that keeps decoded images for the next time, if any.
        progress: called with (images decoded, images in all).

    Returns:
        Batches for :func:`equicolor.evaluation.evaluate`, of images ``[B, 3, s, s]`` in [0, 1]
        and labels ``[B]``; to go through as often as needed.

    Example:
        >>> from equicolor.data.images import ImageSet
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
