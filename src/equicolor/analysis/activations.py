"""The images that excite every unit of a network most, found in one pass over the data.

A unit is a channel, or one rotation of a channel. In every image, only the position where it is
most active counts. Only activations, positions and the numbers of images are stored, so memory
does not grow with the data.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import length_hint

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._random import uniform
from equicolor._text import brief_repr
from equicolor.analysis.layers import Layer, find_layers
from equicolor.analysis.taps import run_tapped
from equicolor.color import shift_hue
from equicolor.data.loaders import ResidentLoader
from equicolor.reporting.progress import Progress

_STREAM = 7  # of random numbers; nothing else about images uses it
# Images [B, 3, H, W] in [0, 1], or pairs of images and labels; the same in every pass.
Batches = Iterable[Tensor | tuple[Tensor, Tensor]]
_Tables = tuple[Tensor, ...]  # values, images and positions [C, n, N], on the device


@dataclass(frozen=True, eq=False)
class TopActivations:
    """The strongest activations of every unit of a layer, strongest first.

    There are :math:`C` channels with :math:`n` rotations each. For each unit :math:`N` images are
    kept, or all if there are fewer.

    Attributes:
        layer: the layer of the units.
        values: float32 :math:`[C, n, N]`; negative activations count as 0.
        images: the numbers of the images in the order of the data, int64 :math:`[C, n, N]`. Of
            images that excite a unit equally, the first come first.
        positions: int64 :math:`[C, n, N]`, positions in the image: ``row * W + column``.
    """

    layer: Layer
    values: Tensor
    images: Tensor
    positions: Tensor

    __repr__ = brief_repr

    @property
    def alive(self) -> Tensor:
        """Whether a unit was active in any image, bool :math:`[C, n]`."""
        return self.values[..., 0] > 0


def images_of(batch: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """The images of a batch with or without labels."""
    return batch if isinstance(batch, Tensor) else batch[0]


@dataclass(frozen=True, eq=False)
class RandomHues:
    """Batches of images, every image with its hue shifted by a random angle.

    The images that excite a rotation of a unit depend on the data: few flowers are green or
    cyan, so the rotation that looks for these hues finds others. Among images in random hues,
    every rotation finds what it looks for. The shift of an image depends on its number and the
    seed, not on the batches.

    Args:
        batches: images :math:`[B, 3, H, W]` in [0, 1], or pairs of images and labels.
        seed: of the hues.

    Example:
        >>> images = torch.rand(4, 3, 2, 2)
        >>> whole = next(iter(RandomHues([images])))
        >>> parts = list(RandomHues([images[:3], images[3:]]))
        >>> torch.equal(torch.cat(parts), whole), torch.equal(whole, images)
        (True, False)
    """

    batches: Batches
    seed: int = 0

    def __iter__(self) -> Iterator[Tensor]:
        first = 0
        for batch in self.batches:
            images = images_of(batch)
            yield self.shift(images, torch.arange(first, first + len(images)))
            first += len(images)

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]  # a TypeError if they have no length

    def shift(self, images: Tensor, numbers: Tensor) -> Tensor:
        """Shift the hues of images by their numbers, int64 :math:`[B]` on the CPU."""
        if not len(images):
            return images
        turns = uniform(torch.tensor([self.seed]), _STREAM, 0, int(numbers.max()) + 1)[0, numbers]
        return shift_hue(images, turns.to(images.device, images.dtype))


@torch.no_grad()
def top_activations(
    network: nn.Module,
    batches: Batches,
    layers: Sequence[str] | None = None,
    *,
    top: int = 50,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
) -> dict[str, TopActivations]:
    """Find the images that excite the units of some layers most, in one pass.

    Args:
        network: takes images :math:`[B, 3, H, W]` in [0, 1]; run in eval mode.
        batches: images of one size, or pairs of images and labels.
        layers: names as of :func:`equicolor.analysis.find_layers`; by default all
            nonlinearities.
        top: how many images to keep for each unit, :math:`N`.
        autocast: compute with torch's autocast to this dtype.
        progress: called with (batches done, batches in all if known).

    Returns:
        By the name of the layer, in the order of execution, on the CPU.

    Example:
        >>> red = nn.Conv2d(3, 1, 1, bias=False)
        >>> red.weight.data = torch.tensor([1.0, -1.0, 0.0]).view(1, 3, 1, 1)
        >>> images = torch.zeros(4, 3, 2, 2)
        >>> images[2, 0, 1, 0] = 0.75  # a red spot in the third image
        >>> found = top_activations(nn.Sequential(red, nn.ReLU()), [images], top=1)["1"]
        >>> [x.item() for x in (found.values, found.images, found.positions)]
        [0.75, 2, 2]
    """
    _checks.positive_int("top", top)
    total = length_hint(batches) or None
    watched: dict[str, Layer] = {}
    tables: dict[str, _Tables] = {}
    first = 0  # the number of the batch's first image
    size: tuple[int, ...] = ()

    def receive(name: str, output: object) -> None:
        features = watched[name].features(output, len(images))
        tables[name] = _strongest(tables.get(name), features, first, top)

    for done, batch in enumerate(batches, start=1):
        images = images_of(batch)
        if not len(images):  # for example if all of them were corrupt
            continue
        _checks.images_in_range("top_activations", images)
        height, width = images.shape[-2:]
        if not watched:
            size = height, width
            watched = find_layers(network, (height, width), layers)
        if (height, width) != size:
            raise ValueError(
                f"images must all have the size of the first, {list(size)}, got "
                f"{[height, width]}: positions would not be comparable"
            )
        run_tapped(network, images, watched, receive, autocast)
        first += len(images)
        if progress:
            progress(done, total)
    if not watched:
        raise ValueError("batches holds no images")
    for name, (values, *_) in tables.items():
        if not bool(values.isfinite().all()):  # both sort first, so none is lost
            raise ValueError(
                f"layer {name} gives NaN or infinity for some images: check the weights and the "
                "images"
            )
    return {
        name: TopActivations(layer, *(table.cpu() for table in tables[name]))
        for name, layer in watched.items()
    }


def _strongest(before: _Tables | None, features: Tensor, first: int, top: int) -> _Tables:
    """The ``top`` strongest activations before and in the features of images from ``first`` on."""
    values, positions = features.flatten(3).max(-1)
    numbers = torch.arange(first, first + len(values), device=values.device)
    numbers = numbers.view(-1, 1, 1).expand_as(positions)
    # The images of a unit along the last axis, in order: the sort is stable, so that of equal
    # activations the first come first.
    tables = [x.movedim(0, -1) for x in (values.float().clamp(min=0), numbers, positions)]
    if before is not None:
        tables = [torch.cat(pair, -1) for pair in zip(before, tables, strict=True)]
    order = tables[0].argsort(dim=-1, descending=True, stable=True)[..., :top]
    return tuple(table.gather(-1, order) for table in tables)


def select_images(batches: Batches, which: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some of the images, in batches.

    Images that a loader holds decoded are gathered; otherwise all batches are read. ``which`` are
    numbers in the order of the data, int64 ``[M]`` on the CPU, sorted and all different. Yields
    pairs of numbers ``[B]``, on the CPU, and images ``[B, 3, H, W]``. Raises a ValueError at the
    end if some images are missing.
    """
    if isinstance(batches, RandomHues):
        for numbers, images in select_images(batches.batches, which):
            yield numbers, batches.shift(images, numbers)
        return
    if isinstance(batches, ResidentLoader) and not batches.epochs.shuffle:
        for part in which.split(batches.epochs.batch_size):
            indices = part.to(batches.device)
            numbers = batches.epochs.numbers(0, indices, batches.augmentation.numbers)
            yield part, batches.images(indices, numbers)
        return
    first = end = 0
    for batch in batches:
        images = images_of(batch)
        places = torch.searchsorted(which, torch.tensor([first, first + len(images)]))
        start, end = places.tolist()
        part = which[start:end]
        if len(part):
            chosen = images[(part - first).to(images.device)]
            _checks.images_in_range("the second pass", chosen)
            yield part, chosen
        first += len(images)
        if end == len(which):
            return
    if end < len(which):
        raise ValueError(
            f"batches gave {end} of the {len(which)} images it gave before: it is read twice, so "
            "take a list or a loader instead of a generator"
        )


@torch.no_grad()
def activations_at(
    network: nn.Module,
    batches: Batches,
    found: Mapping[str, TopActivations],
    change: Callable[[Tensor], Tensor],
    *,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """The activations of units at known images and positions after a change of the images.

    Args:
        network, batches, autocast, progress: as in :func:`top_activations`.
        found: the result of :func:`top_activations`: units, images and positions.
        change: from images ``[B, 3, H, W]`` to images of the same shape.

    Returns:
        For every layer float32 :math:`[C, n, N]` on the CPU; negative activations count as 0.

    Example:
        >>> network, images = nn.Sequential(nn.Conv2d(3, 2, 1)), torch.rand(4, 3, 2, 2)
        >>> found = top_activations(network, [images], top=3)
        >>> same = activations_at(network, [images], found, lambda images: images)
        >>> torch.equal(same["0"], found["0"].values)
        True
    """
    which = torch.cat([tops.images.flatten() for tops in found.values()]).unique()
    values = {name: torch.zeros_like(tops.values) for name, tops in found.items()}
    # The entries of every layer, sorted by the number of their image.
    sorted_images = {name: tops.images.flatten().sort() for name, tops in found.items()}
    numbers = which

    def receive(name: str, output: object) -> None:
        tops, (of_image, order) = found[name], sorted_images[name]
        features = tops.layer.features(output, len(numbers)).flatten(3)
        ends = torch.stack((numbers[0], numbers[-1] + 1))
        start, end = torch.searchsorted(of_image, ends)
        entries = order[start:end]
        image = torch.searchsorted(numbers, of_image[start:end])
        channel, rotation, _ = torch.unravel_index(entries, tops.values.shape)
        places = image, channel, rotation, tops.positions.flatten()[entries]
        activations = features[tuple(place.to(features.device) for place in places)]
        values[name].view(-1)[entries] = activations.float().clamp(min=0).cpu()

    done = 0
    for numbers, images in select_images(batches, which):
        run_tapped(network, change(images), found, receive, autocast)
        done += len(numbers)
        if progress:
            progress(done, len(which))
    return values
