"""Which network to train on some images: ``equicolor train DATASET --advise``.

What colour tells of the classes is measured, and so is the time of a step; nothing is trained and
nothing is written.
"""

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch

from equicolor._text import counted, roughly
from equicolor.data.datasets import find_dataset, load_dataset
from equicolor.data.decoding import Decoded, decode
from equicolor.data.hue_statistics import HueStatistics, hue_statistics
from equicolor.data.images import CorruptImageError, ImageSet, find_corrupt
from equicolor.data.loaders import ResidentLoader
from equicolor.data.packing import final_size
from equicolor.devices import choose_precision, device_name
from equicolor.evaluation.images import some_images
from equicolor.models.registry import usual_resize
from equicolor.training.losses import cross_entropy
from equicolor.training.recipes import JITTER, TrainingRecipe, default_recipe

_IMAGES = 1000  # whose colours are measured
_SHORT_SIDE = 64  # they are decoded to
_SMALL = 48  # pixels: up to here images are for the network of CIFAR
_SHIFTS = 37  # at which a trained network is judged
_EPOCHS = (200, 100, 50)  # that a proposal for a CPU may have
_CPU_HOURS = 2.0  # that a proposal for a CPU should not exceed
_CLEAR = 2.0  # standard errors from which on hues help
_FEWEST = 5  # images of a class, on average, below which nothing is measured
_DECIDES = 0.5  # of the errors without hues that hues mend, from which on they are the label


class Proposal(NamedTuple):
    """A recipe and what it is for."""

    when: str  # what has to be true for it
    why: str  # the reason to take it
    recipe: TrainingRecipe  # how to train on the device that was measured
    seconds: float  # for training and judging, as measured
    full: TrainingRecipe  # how to train on a GPU; a CPU may get smaller images or fewer epochs

    @property
    def shortened(self) -> bool:
        """Whether images are smaller or epochs fewer than usual, for a CPU."""
        return self.recipe != self.full

    @property
    def remedy(self) -> str:
        """What else makes it faster, if it takes hours even though it was shortened."""
        if not self.shortened or self.seconds <= 3600 * _CPU_HOURS:
            return ""
        fewer = "Fewer --rotations are faster, and so is" * ("rotations" in self.recipe.options)
        return f" {fewer or 'Faster is'} a GPU."


class Advice(NamedTuple):
    """What was measured, and what follows from it."""

    facts: str  # the images and the device, in words
    hues: HueStatistics  # what colour tells of the classes
    finding: str  # the same in words
    proposals: tuple[Proposal, ...]  # what to run
    skip_corrupt: bool = False  # whether corrupt images were left out, as the commands do then
    read: int = 0  # how many images were read
    skipped: tuple[str, ...] = ()  # what is wrong with those that were left out

    def lines(self) -> Iterator[str]:
        """All of it, to print."""
        hues, skip = self.hues, " --skip-corrupt" * self.skip_corrupt
        yield self.facts
        if self.skipped:
            yield (
                f"Left out {counted(len(self.skipped), 'corrupt image')} of {self.read:,} that "
                f"were read, the first because {self.skipped[0]}. The commands below leave corrupt "
                "images out, too."
            )
        yield ""
        yield (
            "What colour tells of the classes: a tiny classifier of histograms, cross-validated "
            f"on {hues.images:,} images, every class counted alike; guessing gets "
            f"{hues.chance:.1f} %."
        )
        yield f"  brightness, and colours up to a hue shift: {hues.without_hue:5.1f} %"
        yield (
            f"  the same, and the hues themselves:         {hues.with_hue:5.1f} %  "
            f"({hues.gain:+.1f} ± {hues.error:.1f} points)"
        )
        yield self.finding
        yield (
            "This cannot say whether hues will shift where the network is used, nor whether the "
            "hues belong to the classes or to the light, the camera or the background."
        )
        for proposal in self.proposals:
            yield ""
            yield f"{proposal.when}:"
            yield f"  {command(proposal.recipe)}{skip}"
            yield f"  {proposal.why}"
            yield f"  Training and judging take about {roughly(proposal.seconds)}.{proposal.remedy}"
            if proposal.shortened:
                yield f"  On a GPU: {command(proposal.full)}{skip}"
        yield ""
        if any(proposal.shortened for proposal in self.proposals):
            yield (
                "Images are smaller and epochs fewer than usual where a run would take more than "
                f"{_CPU_HOURS:g} hours on this CPU."
            )
        yield (
            "Times are measured: a step of each network on this device, with its augmentation. "
            "'Which network?' in the documentation has the results behind the reasons, and what to "
            "do with a network that you have already."
        )


def advise(
    dataset: str,
    *,
    device: torch.device | str = "cpu",
    split_seed: int = 0,
    skip_corrupt: bool = False,
) -> Advice:
    """Measure images and the device, and propose what to train.

    Args:
        dataset: a name, or a folder of class folders.
        device: where it would be trained.
        split_seed: of a folder without a split; only training images are measured.
        skip_corrupt: leave corrupt images out instead of raising CorruptImageError. They are found
            among the images that are read: up to 1,000 for training, and as many for testing.
    """
    device = torch.device(device)
    images, test = (load_dataset(dataset, split, seed=split_seed) for split in ("train", "test"))
    sample, tested = (some_images(each, min(_IMAGES, len(each))) for each in (images, test))
    on_corrupt = "skip" if skip_corrupt else "error"
    unreadable = find_corrupt(tested, on_corrupt=on_corrupt)  # which would stop a run
    decoded = decode(sample, short_side=_SHORT_SIDE, on_corrupt=on_corrupt)
    hues, side = hue_statistics(decoded), _median_side(sample)
    plain = dataclasses.replace(
        _plain_recipe(dataset, side),
        split_seed=split_seed,
        precision=choose_precision("auto", cuda=device.type == "cuda"),
    )
    proposals = []
    for when, why, recipe in _cases(plain, hues):
        fitting, seconds = _affordable(recipe, decoded, device, len(images), len(test))
        proposals.append(Proposal(when, why, fitting, seconds, recipe))
    return Advice(
        _facts(images, side, device),
        hues,
        _finding(hues),
        tuple(proposals),
        skip_corrupt=skip_corrupt,
        read=len(sample) + len(tested),
        skipped=decoded.skipped + unreadable,
    )


def _median_side(images: ImageSet) -> int:
    """The median of the shorter sides of images, by the headers that are intact."""
    sides = []
    for index in range(len(images)):
        with contextlib.suppress(CorruptImageError):
            sides.append(min(final_size(images, index, None)))
    return sorted(sides)[len(sides) // 2]


def _facts(images: ImageSet, side: int, device: torch.device) -> str:
    counts = images.labels.bincount(minlength=len(images.class_names))
    sizes = dict.fromkeys(f"{int(count):,}" for count in counts.aminmax())
    threads = f", {counted(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    return (
        f"{images.name}: {counted(len(images), 'image')} for training, {len(counts)} classes of "
        f"{' to '.join(sizes)}, shorter sides of {side} pixels (median); "
        f"{device_name(device)}{threads}."
    )


def _too_few(hues: HueStatistics) -> bool:
    return hues.images < _FEWEST * hues.classes


def _tell(hues: HueStatistics) -> bool:
    """Whether the hues tell something of the classes, beyond chance."""
    return hues.gain > max(1, _CLEAR * hues.error) and not _too_few(hues)


def _decide(hues: HueStatistics) -> bool:
    """Whether the hues are nearly the label: they mend half of the errors made without them."""
    return _tell(hues) and hues.gain >= _DECIDES * (100 - hues.without_hue)


def _finding(hues: HueStatistics) -> str:
    if _decide(hues):
        return "Here the hues nearly give the class away: they are the label, or stand for it."
    if _tell(hues):
        return "Here the hues help to tell the classes apart, beside other things."
    if _too_few(hues):
        return (
            f"{counted(hues.images, 'image')} of {hues.classes} classes are too few to measure "
            "that. The proposals are those for hues that tell little."
        )
    return (
        "Here histograms give no sign that the hues help to tell the classes apart. A gain of less "
        f"than {max(1, _CLEAR * hues.error):.0f} points would not show with so many images."
    )


def _plain_recipe(dataset: str, side: int) -> TrainingRecipe:
    """The plain network for images of a size, without enlarging them much."""
    if find_dataset(dataset).kind == "small" or side > 224:
        return default_recipe(dataset)
    if side <= _SMALL:
        return default_recipe(dataset, "resnet44")
    size = max(64, side // 32 * 32)
    return dataclasses.replace(default_recipe(dataset), size=size, resize=usual_resize(size))


def _cases(plain: TrainingRecipe, hues: HueStatistics) -> Iterator[tuple[str, str, TrainingRecipe]]:
    """When, why and how to train."""
    options = {"rotations": 12, "lifting": "hsv"}
    exact = dataclasses.replace(plain, model=f"ce_{plain.model}", options=options)
    jittered = dataclasses.replace(plain, jitter=JITTER)
    if _decide(hues):
        yield (
            "If the hues are what you want to be told (ripe or not, red or green)",
            "A plain network may use whatever the hues tell; with hue jitter it could not.",
            plain,
        )
        yield (
            "The same, if some colours are rare",
            "Twelve hues share their shapes, so that rare colours are learnt from common ones; "
            "--coset-pool none keeps the hues apart for the classifier.",
            dataclasses.replace(exact, options={**options, "coset_pool": None}),
        )
    if _tell(hues):
        yield (
            "If hues may shift and must not change the answer",
            "Twelve exact hues, pooled, with AugMix: the best on shifted and on original hues of "
            "what was trained three times on Flowers-102.",
            dataclasses.replace(exact, augmix="original"),
        )
        yield (
            "The same, for less time",
            "A colour-invariant first layer and hue jitter: as good there, of one seed, but "
            "nothing is exact.",
            dataclasses.replace(jittered, model=f"ciconv_{plain.model}"),
        )
    else:
        yield (
            "If hues may shift and must not change the answer",
            "A plain network with hue jitter: where colour tells little, as on Caltech-101, "
            "it does as well as equivariant ones, and costs nothing more.",
            jittered,
        )
        yield (
            "The same, if the answer must be equal at twelve hues by construction",
            "Twelve exact hues, pooled.",
            exact,
        )
    if not _decide(hues):
        yield (
            "If hues will not shift",
            "A plain network may use whatever the hues tell.",
            plain,
        )


def command(recipe: TrainingRecipe) -> str:
    """The command that trains a recipe; its precision is what the device takes by itself.

    Example:
        >>> command(TrainingRecipe("ce_resnet18", {"rotations": 12}, size=64, resize=73))
        'equicolor train flowers102 --model ce_resnet18 --rotations 12 --size 64'
    """
    usual = default_recipe(recipe.dataset)
    words = ["equicolor", "train", recipe.dataset]
    if recipe.model != usual.model:
        words += ["--model", recipe.model]
        usual = default_recipe(recipe.dataset, recipe.model)
    for name, value in recipe.options.items():
        words += [f"--{name.replace('_', '-')}", "none" if value is None else str(value)]
    words += ["--augmix"] * (recipe.augmix == "original")
    for name in ("jitter", "size", "epochs", "split_seed"):
        value = getattr(recipe, name)
        if value != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _affordable(
    recipe: TrainingRecipe, decoded: Decoded, device: torch.device, train: int, test: int
) -> tuple[TrainingRecipe, float]:
    """The recipe and its time; on a CPU with smaller images and fewer epochs if it takes hours."""
    tried: list[tuple[TrainingRecipe, float]] = []
    for smaller in _smaller(recipe):
        image = measure_seconds(smaller, decoded, device)
        # A pass without gradients takes a third of a step.
        judging = image * test * _SHIFTS / 3
        for epochs in _EPOCHS:
            seconds = image * train * epochs + judging
            tried.append((dataclasses.replace(smaller, epochs=epochs), seconds))
            if seconds <= 3600 * _CPU_HOURS or device.type != "cpu":
                return tried[-1]
    return tried[-1]


def _smaller(recipe: TrainingRecipe) -> Iterator[TrainingRecipe]:
    yield recipe
    for size in (128, 64):
        if recipe.crop == "resized" and size < recipe.size:
            yield dataclasses.replace(recipe, size=size, resize=usual_resize(size))


def measure_seconds(
    recipe: TrainingRecipe, decoded: Decoded, device: torch.device | str = "cpu"
) -> float:
    """How long a step of training takes on a device, for each image.

    The steps are those of the recipe, but in small batches on a CPU, and not recorded as CUDA
    graphs on a GPU, where training will be faster.
    """
    device = torch.device(device)
    batch = min(len(decoded), recipe.batch_size if device.type == "cuda" else _few(recipe.size))
    loader = ResidentLoader(
        decoded, recipe.augmentation, device=device, batch_size=batch, shuffle=True
    )
    network = recipe.build(len(decoded.class_names)).to(device).train()
    optimizer = torch.optim.Adam(network.parameters(), recipe.lr)
    autocast = torch.autocast(device.type, torch.bfloat16, recipe.precision == "bfloat16")

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with autocast:
            loss = cross_entropy(network(images).float(), labels, recipe.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    # The first prepares what is prepared once. A GPU also prepares for the size of a batch.
    images, labels = next(iter(loader))
    first = batch if device.type == "cuda" else 2
    step(images[:first], labels[:first])
    _wait(device)
    start = time.perf_counter()
    images, labels = next(iter(loader))  # with the time for its augmentation
    step(images, labels)
    _wait(device)
    return (time.perf_counter() - start) / len(labels)


def _few(size: int) -> int:
    """Images in a batch that take a second or so on a core; a plain network is faster."""
    return max(4, min(16, 16 * 64**2 // size**2))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
