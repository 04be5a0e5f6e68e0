"""A network's features and answers for example images in all hues."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from equicolor import _checks
from equicolor.analysis.layers import Layer
from equicolor.analysis.taps import tapped
from equicolor.canonicalization.network import Canonicalized
from equicolor.color import shift_hue
from equicolor.evaluation.diagnose import Subject
from equicolor.evaluation.evaluate import Evaluation
from equicolor.evaluation.images import spread_over_classes
from equicolor.evaluation.runner import Runner, check_logits, evaluating
from equicolor.models.facts import network_facts, network_title
from equicolor.models.registry import class_names_of
from equicolor.reporting.progress import counting

PHOTO = 160  # pixels of an image at most
TILE = 24  # pixels of a feature map at most
_STEPS = 36  # angles at least
_MOST_STEPS = 60
_ROWS = 3  # channels of a layer with rotations
_PLAIN_ROWS = 8  # channels of a layer without
_BATCH = 12
_EXTRA_TOKENS = 5  # at most, before the patches: class, distillation, registers

# From the output of a layer and the number of images to features [B, C, n, H, W].
Reader = Callable[[object, int], Tensor]


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """Some channels of a layer, for E examples at K angles."""

    name: str
    channels: list[int]  # those that change most with the hue
    # uint8 [E, K, C, n, h, w]; 0 and 255 are the smallest and the largest activation of a channel
    # over all angles of an example. Negative activations count as 0.
    maps: Tensor

    @property
    def rotations(self) -> int:
        """The number of maps of a channel."""
        return self.maps.shape[3]


@dataclass(frozen=True, eq=False)
class TurnedHues:
    """A network's features and answers for E examples at K angles; see :func:`turn_hues`."""

    title: str  # of the network
    images: Tensor  # the examples with their hue shifted by k/K turns, uint8 [E, K, 3, s, s]
    # The images as a canonicalised network turns them back; None for other networks.
    natural: Tensor | None
    labels: list[str]  # the class of every example
    layers: list[FeatureRows]
    logits: Tensor  # float32 [E, K, O]
    class_names: tuple[str, ...]  # of the outputs
    judged: bool  # whether the outputs are the classes of the images
    # Hue shifts in turns with the accuracy in percent; None if it was not measured.
    curve: list[tuple[float, float]] | None


def count_steps(rotations: Sequence[int]) -> int:
    """A number of angles, 36 or more, that includes the rotations of all networks.

    If that would be more than 60, only the first network counts.

    Example:
        >>> count_steps([1]), count_steps([5]), count_steps([3, 8]), count_steps([7, 9])
        (36, 40, 48, 42)
    """
    common = math.lcm(*rotations)
    step = common if common <= _MOST_STEPS else rotations[0]
    return step * math.ceil(_STEPS / step)


@torch.no_grad()
def turn_hues(
    subject: Subject,
    layers: Sequence[Layer],
    tokens: Mapping[str, Sequence[int]] | None = None,
    *,
    steps: int = _STEPS,
    examples: int = 6,
    evaluation: Evaluation | None = None,
    console: Console | None = None,
) -> TurnedHues:
    """Show a network a few images in all hues, shifted as HSV.

    Args:
        subject: of :func:`equicolor.evaluation.diagnose.load_subject`.
        layers: of :func:`equicolor.analysis.find_layers`; their features are kept.
        tokens: of :func:`equicolor.analysis.layers_left_out`. Of the layers whose tokens are a
            square of patches, the middle and the last are kept as well.
        steps: how many angles :math:`K`, over the whole circle; see :func:`count_steps`.
        examples: how many images at most, evenly from all classes.
        evaluation: of the network; its curve under hue shifts is kept.
        console: shows progress; None shows nothing.
    """
    _checks.positive_int("steps", steps)
    _checks.positive_int("examples", examples)
    images, labels = _examples(subject, examples)
    readers: dict[str, Reader] = {layer.name: layer.features for layer in layers}
    readers |= _patch_readers(tokens or {})
    channels = _changing_channels(subject, images, readers)
    photos, natural, logits = [], [], []
    maps: dict[str, list[Tensor]] = {name: [] for name in channels}
    with counting(console, "turning hues") as progress:
        for done, image in enumerate(images):
            progress(done, len(images))
            shifted = _turned(image, steps)
            answers, features = _run(subject, shifted, readers, channels)
            photos.append(_pixels(shifted))
            logits.append(answers)
            if isinstance(subject.network, Canonicalized):
                natural.append(_pixels(subject.network.natural(shifted)))
            for name, rows in features.items():
                maps[name].append(_scaled(rows))
    return TurnedHues(
        title=network_title({**network_facts(subject.network), **subject.facts}),
        images=torch.stack(photos),
        natural=torch.stack(natural) if natural else None,
        labels=labels,
        layers=[FeatureRows(name, channels[name], torch.stack(maps[name])) for name in maps],
        logits=torch.stack(logits),
        class_names=_class_names(subject, logits[0].shape[1]),
        judged=not subject.class_mismatch,
        curve=None if evaluation is None else _curve(evaluation),
    )


def shrunk(maps: Tensor, side: int) -> Tensor:
    """Maps or images ``[..., h, w]``, averaged down to a side unless they are smaller."""
    height, width = maps.shape[-2:]
    scale = max(height, width) / side
    if scale <= 1:
        return maps
    size = max(round(height / scale), 1), max(round(width / scale), 1)
    flat = maps.float().reshape(-1, 1, height, width)
    return F.interpolate(flat, size, mode="area").view(*maps.shape[:-2], *size)


def _examples(subject: Subject, count: int) -> tuple[list[Tensor], list[str]]:
    """Images ``[3, H, W]`` and the names of their classes."""
    labels = torch.cat([labels for _, labels in subject.batches]).cpu()  # without corrupt images
    # Classes by name: another network on the page may number them differently.
    classes = subject.images.class_names
    ranks = torch.tensor([sorted(classes).index(name) for name in classes])
    positions = spread_over_classes(ranks[labels], min(count, len(labels))).tolist()
    images, names, start = [], [], 0
    for batch, numbers in subject.batches:
        for place in range(len(batch)):
            if start + place in positions:
                images.append(batch[place].float())
                names.append(classes[int(numbers[place])])
        start += len(batch)
        if start > positions[-1]:
            break
    return images, names


def _turned(image: Tensor, steps: int) -> Tensor:
    """An image ``[3, H, W]`` in as many hues as ``steps``, ``[K, 3, H, W]``."""
    turns = torch.arange(steps, device=image.device) / steps
    return shift_hue(image.expand(steps, -1, -1, -1), turns).clamp(0, 1)


def _patch_readers(tokens: Mapping[str, Sequence[int]]) -> dict[str, Reader]:
    """Readers of the middle and the last layer whose tokens are a square of patches."""
    squares = {}
    for name, shape in tokens.items():
        side = math.isqrt(shape[1])
        if len(shape) == 3 and shape[0] == 1 and side > 1 and shape[1] - side**2 <= _EXTRA_TOKENS:
            squares[name] = side
    names = list(squares)
    both = dict.fromkeys((names[len(names) // 2], names[-1])) if names else {}
    return {name: partial(_patches, squares[name]) for name in both}


def _patches(side: int, output: object, batch: int) -> Tensor:
    """Tokens ``[B, N, C]`` as features ``[B, C, 1, side, side]``; the patches come last."""
    assert isinstance(output, Tensor)
    patches: Tensor = output[:, -(side**2) :].mT.unflatten(2, (side, side))
    return patches.unsqueeze(2)


def _run(
    subject: Subject,
    images: Tensor,
    readers: Mapping[str, Reader],
    channels: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits ``[B, O]`` and shrunk features ``[B, C, n, h, w]`` of all channels or of some."""
    logits: list[Tensor] = []
    features: dict[str, list[Tensor]] = {name: [] for name in readers}
    batch = torch.empty(0)

    def receive(name: str, output: object) -> None:
        maps = readers[name](output, len(batch))
        maps = maps if channels is None else maps[:, channels[name]]
        features[name].append(shrunk(maps.float().clamp(min=0), TILE).cpu())

    runner = Runner(subject.network, subject.autocast)
    with evaluating(subject.network), tapped(subject.network, readers, receive):
        for batch in images.split(_BATCH):
            logits.append(check_logits(runner.run(batch), batch).float().cpu())
    return torch.cat(logits), {name: torch.cat(parts) for name, parts in features.items()}


def _changing_channels(
    subject: Subject, images: Sequence[Tensor], readers: Mapping[str, Reader]
) -> dict[str, list[int]]:
    """The channels of every layer that quarter turns of the hue change most, in this order."""
    changes: dict[str, Tensor] = {}
    rotations = {}
    for image in images:
        for name, maps in _run(subject, _turned(image, 4), readers)[1].items():
            # If nothing changes, as after coset pooling, the strongest channels count.
            change = maps.var(0).mean((1, 2, 3)) + 1e-3 * maps.square().mean((0, 2, 3, 4))
            changes[name] = changes.get(name, torch.zeros(())) + change
            rotations[name] = maps.shape[2]
    return {
        name: change.topk(min(_PLAIN_ROWS if rotations[name] == 1 else _ROWS, len(change)))
        .indices.tolist()
        for name, change in changes.items()
    }  # fmt: skip


def _scaled(maps: Tensor) -> Tensor:
    """Maps ``[K, C, n, h, w]`` as uint8, from the smallest activation of a channel to the largest.

    Differences below a hundredth of the largest are not stretched, so that rounding stays hidden.
    """
    maps = maps.nan_to_num()
    low, high = (each((0, 2, 3, 4), keepdim=True) for each in (maps.amin, maps.amax))
    spread = torch.maximum(high - low, 0.01 * high).clamp(min=1e-12)
    return ((maps - low) / spread * 255).round().byte()


def _pixels(images: Tensor) -> Tensor:
    return (shrunk(images, PHOTO).clamp(0, 1) * 255).round().byte().cpu()


def _class_names(subject: Subject, outputs: int) -> tuple[str, ...]:
    if not subject.class_mismatch:
        return subject.images.class_names
    names = class_names_of(subject.network)
    if len(names) == outputs:
        return names
    return tuple(f"output {number}" for number in range(outputs))


def _curve(evaluation: Evaluation) -> list[tuple[float, float]]:
    sweep = evaluation.sweeps["hsv"]
    turns = [each - round(each) for each in sweep.shifts.tolist()]  # half turns at most, both ways
    return sorted(zip(turns, sweep.accuracy.tolist(), strict=True))
