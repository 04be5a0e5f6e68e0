"""The images to judge a network on, prepared as the network expects them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._text import enumerated
from equicolor.data.augment import Augmentation
from equicolor.data.crops import centre_boxes, resample
from equicolor.data.decoding import decode
from equicolor.data.images import ImageFile, ImageSet, to_rgb
from equicolor.data.loaders import (
    ResidentLoader,
    StreamingLoader,
    choose_data_path,
    evaluation_batch,
)
from equicolor.data.packing import shrink
from equicolor.evaluation.hue_sweep import Batches
from equicolor.evaluation.runner import Runner, check_logits
from equicolor.models import Network
from equicolor.models.facts import network_facts
from equicolor.models.foreign import ForeignNetwork
from equicolor.models.loading import is_foreign, named_by_library
from equicolor.models.registry import GrayInput, Origin, class_names_of, usual_resize
from equicolor.reporting.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image


class OtherClassesError(ValueError):
    """The network's outputs are not the classes of the images; ``reason`` leaves out the advice."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}{advice}")
        self.reason = reason


class Preparation(NamedTuple):
    """How test images are cut: the short side is resized, then a square centre is cropped."""

    size: int
    resize: int


def choose_preparation(
    network: nn.Module, kind: str = "large", *, size: int | None = None, resize: int | None = None
) -> Preparation:
    """How to cut test images for a network, if ``size`` and ``resize`` are not given.

    The sizes of its training come first, then those it was made for. ``"small"`` images, such as
    CIFAR's, are not cropped.
    """
    if size is None:
        origin = network.origin if isinstance(network, Network) else Origin()
        size = origin.image_size or int(getattr(network, "image_size", 224))
        if resize is None and origin.dataset:  # as in training, even for another kind of images
            resize = origin.resize
        if resize is None and isinstance(network, (ForeignNetwork, Network)) and kind != "small":
            resize = network.resize
    if resize is None:
        resize = size if kind == "small" else usual_resize(size)
    _checks.positive_int("size", size)
    return Preparation(size, _checks.positive_int("resize", resize))


def prepare_image(
    image: "str | Path | Image",
    network: nn.Module | None = None,
    *,
    size: int | None = None,
    resize: int | None = None,
) -> Tensor:
    """Turn a file, or an image of Pillow, into the tensor that a network takes.

    The short side is resized and the centre cropped, as ``equicolor evaluate`` does it. There is
    no normalisation here: networks of this package, and those of
    :func:`equicolor.models.load_network`, normalise images themselves.

    Args:
        image: a path, or an image of Pillow in any mode but floating point.
        network: decides the sizes: those it was trained with, else those it was made for. Without
            a network, 224 are cut from 256.
        size: height and width of the result.
        resize: the short side before the crop, at least ``size``.

    Returns:
        RGB in [0, 1], float32 :math:`[3, s, s]` on the CPU.

    Raises:
        CorruptImageError: if the file is not a whole image.
        OSError: if there is no such file.

    Example:
        >>> from PIL import Image
        >>> from equicolor.models import cecnn
        >>> red = prepare_image(Image.new("RGB", (40, 30), "red"), cecnn())
        >>> red.shape, red.amax((1, 2)).tolist()
        (torch.Size([3, 28, 28]), [1.0, 0.0, 0.0])
    """
    size, resize = choose_preparation(
        nn.Identity() if network is None else network, size=size, resize=resize
    )
    if resize < size:
        raise ValueError(f"resize must be at least size={size}, got {resize}")
    decoded = ImageFile(Path(image)).decode() if isinstance(image, (str, Path)) else to_rgb(image)
    pixels = torch.from_numpy(np.array(shrink(decoded, resize))).movedim(2, 0)[None]
    sizes = torch.tensor([pixels.shape[2:]])
    return resample(pixels, sizes, centre_boxes(sizes, size, resize), size)[0]


def try_images(network: nn.Module, size: int, batch: int = 2) -> object:
    """The output for black images of a size; a ValueError says why the network cannot take them."""
    try:
        with torch.no_grad():
            return Runner(network, None).run(torch.zeros(batch, 3, size, size))
    # The errors with which torch and other libraries refuse a shape.
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        usual = getattr(network, "image_size", None)
        raise ValueError(
            f"{network_facts(network)['model']} cannot take images of {size} × {size} pixels"
            f"{'' if usual in (None, size) else f' (it was made for {usual} × {usual})'}: {reason}"
        ) from error


def count_outputs(network: nn.Module, size: int) -> int:
    """The number of classes a network in eval mode gives logits for."""
    batch = torch.empty(2, 3, size, size, device="meta")
    return check_logits(try_images(network, size), batch).shape[1]


def match_classes(
    network: nn.Module, images: ImageSet, size: int, *, by_index: bool = False
) -> ImageSet:
    """The images, with labels in the order of the outputs of a network in eval mode.

    If the network does not know the names of its classes, has those of timm or torchvision, or
    with ``by_index``, the two orders are assumed to be the same. The network is tried on images
    of this ``size``.

    Raises:
        OtherClassesError: if the number of outputs or the names differ.
    """
    outputs, class_names = count_outputs(network, size), images.class_names
    if outputs != len(class_names):
        raise OtherClassesError(
            f"the network has {outputs} outputs, but {images.name} has {len(class_names)} classes",
            ": it was trained on something else",
        )
    names = class_names_of(network)
    if by_index or not names or names == class_names or _has_library_names(network):
        return images
    if sorted(names) != sorted(class_names) or len(set(names)) != len(names):
        pairs = [f"{a!r} and {b!r}" for a, b in zip(names, class_names, strict=False) if a != b]
        raise OtherClassesError(
            f"the network was trained on other classes than those of {images.name}: "
            f"{enumerated(pairs, 3)}",
            ". If they are the same classes in the same order, under other names, use "
            "--classes-by-index",
        )
    number = torch.tensor([names.index(name) for name in class_names])
    return replace(images, labels=number[images.labels], class_names=names)


def _has_library_names(network: nn.Module) -> bool:
    """Whether the names of a network's classes are those of timm or torchvision."""
    if isinstance(network, GrayInput):
        network = network.network
    if isinstance(network, Network):
        return named_by_library(network.config, network.origin)
    return isinstance(network, ForeignNetwork) and is_foreign(network.name)


def some_images(images: ImageSet, count: int) -> ImageSet:
    """``count`` images, evenly from every class, in their order.

    Example:
        >>> pixels = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
        >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
        >>> toy = ImageSet("toy", "test", labels, ("a", "b"), pixels=pixels)
        >>> some_images(toy, 3).labels.tolist()
        [0, 0, 1]
    """
    return subset(images, spread_over_classes(images.labels, count))


def spread_over_classes(labels: Tensor, count: int) -> Tensor:
    """The positions of ``count`` images, evenly from every class, in their order, int64.

    Example:
        >>> spread_over_classes(torch.tensor([1, 0, 0, 1]), 2).tolist()
        [2, 3]
    """
    by_class = labels.argsort(stable=True)
    places = (torch.arange(count) * len(labels) + len(labels) // 2) // count
    return by_class[places].sort().values


def subset(images: ImageSet, numbers: Tensor) -> ImageSet:
    """The images with some numbers, int64 ``[M]``."""
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
    batch_size: int | None = None,
    device: torch.device | str = "cpu",
    skip_corrupt: bool = False,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Batches:
    """Test images ``[B, 3, s, s]`` in [0, 1] with their labels ``[B]``, on a device.

    The size of batches is that of :func:`~equicolor.data.loaders.evaluation_batch` by default.
    Images that fit into the device's memory are decoded first and stay there; others are
    decoded batch by batch. ``cache`` is the folder that keeps decoded images for the next time;
    ``progress`` is called with (images decoded, images in all).
    """
    size, resize = preparation
    batch_size = evaluation_batch(device, size) if batch_size is None else batch_size
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
