"""Which network to train on some images: ``equicolor train DATASET --advise``.

It measures how well colour tells the classes apart and how long a training step takes. It trains
nothing and writes nothing.
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

_IMAGES = 1000  # images whose colours are measured
_SHORT_SIDE = 64  # pixels of their short side
_SMALL = 48  # pixels; images up to this size get CIFAR's network
_SHIFTS = 37  # hue shifts at which a trained network is tested
_EPOCHS = (200, 100, 50)  # what a proposal for a CPU may have
_CPU_HOURS = 2.0  # what a proposal for a CPU should not exceed
_CLEAR = 2.0  # standard errors above which a gain from hues counts
_FEWEST = 5  # images per class; with fewer, nothing is concluded
# With fewer images, the paper's batches make less than 32 steps an epoch, and smaller ones are
# better.
_FEW_IMAGES = 32 * 256
_DECISIVE = 0.5  # share of the errors that hues remove if they are nearly the label


class Proposal(NamedTuple):
    """A recipe and what it is for."""

    when: str  # the case it is for
    why: str  # the reason to choose it
    recipe: TrainingRecipe  # how to train on the device that was measured
    seconds: float  # estimated for training and testing
    full: TrainingRecipe  # how to train on a GPU, without smaller images or fewer epochs

    @property
    def shortened(self) -> bool:
        """Whether a CPU gets smaller images or fewer epochs."""
        return self.recipe != self.full

    @property
    def remedy(self) -> str:
        """What else makes a shortened recipe faster, if it still takes hours."""
        if not self.shortened or self.seconds <= 3600 * _CPU_HOURS:
            return ""
        fewer = "fewer --rotations, or " * ("rotations" in self.recipe.options)
        return f" To train faster, use {fewer}a GPU."


class Advice(NamedTuple):
    """What was measured, and what follows from it."""

    facts: str  # the images and the device, in words
    hues: HueStatistics  # how well colour tells the classes apart
    finding: str  # the same in words
    proposals: tuple[Proposal, ...]  # what to run
    skip_corrupt: bool = False  # whether corrupt images were left out, and the commands do so
    read: int = 0  # how many images were read
    skipped: tuple[str, ...] = ()  # what is wrong with each image that was left out

    def lines(self) -> Iterator[str]:
        """The advice as lines to print."""
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
            "How well colour tells the classes apart: a tiny classifier of histograms, "
            f"cross-validated on {hues.images:,} images, all classes weighted equally; guessing "
            f"gets {hues.chance:.1f} %."
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
            yield f"  Training and testing take about {roughly(proposal.seconds)}.{proposal.remedy}"
            if proposal.shortened:
                yield f"  On a GPU: {command(proposal.full)}{skip}"
        yield ""
        if any(proposal.shortened for proposal in self.proposals):
            yield (
                "Images are smaller and epochs fewer where a run would take more than "
                f"{_CPU_HOURS:g} hours on this CPU."
            )
        yield (
            "Times follow from a measured step of each network on this device, with augmentation. "
            "'Which network?' in the documentation has the results behind the reasons, and what to "
            "do with a network that you already have."
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
        device: the device to train on.
        split_seed: the seed of the split, for a folder without one; only training images are
            measured.
        skip_corrupt: leave corrupt images out instead of raising CorruptImageError. Only images
            that are read are checked: up to 1,000 for training, and as many for testing.
    """
    device = torch.device(device)
    images, test = (load_dataset(dataset, split, seed=split_seed) for split in ("train", "test"))
    sample, tested = (some_images(each, min(_IMAGES, len(each))) for each in (images, test))
    on_corrupt = "skip" if skip_corrupt else "error"
    corrupt_test = find_corrupt(tested, on_corrupt=on_corrupt)  # they would stop a run
    decoded = decode(sample, short_side=_SHORT_SIDE, on_corrupt=on_corrupt)
    hues, side = hue_statistics(decoded), _median_side(sample)
    plain = dataclasses.replace(
        _plain_recipe(dataset, side),
        split_seed=split_seed,
        precision=choose_precision("auto", cuda=device.type == "cuda"),
    )
    if len(images) < _FEW_IMAGES:
        plain = dataclasses.replace(plain, batch_size=64)
    proposals = []
    for when, why, full in _cases(plain, hues):
        recipe, seconds = _affordable(full, decoded, device, len(images), len(test))
        proposals.append(Proposal(when, why, recipe, seconds, full))
    return Advice(
        _facts(images, side, device),
        hues,
        _finding(hues),
        tuple(proposals),
        skip_corrupt=skip_corrupt,
        read=len(sample) + len(tested),
        skipped=decoded.skipped + corrupt_test,
    )


def _median_side(images: ImageSet) -> int:
    """The median of the short sides of images whose headers are intact."""
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
        f"{' to '.join(sizes)}, short sides of {side} pixels (median); "
        f"{device_name(device)}{threads}."
    )


def _too_few(hues: HueStatistics) -> bool:
    return hues.images < _FEWEST * hues.classes


def _hues_help(hues: HueStatistics) -> bool:
    """Whether hues help to tell the classes apart, beyond chance."""
    return hues.gain > max(1, _CLEAR * hues.error) and not _too_few(hues)


def _hues_decide(hues: HueStatistics) -> bool:
    """Whether hues are nearly the label: they remove half of the errors made without them."""
    return _hues_help(hues) and hues.gain >= _DECISIVE * (100 - hues.without_hue)


def _finding(hues: HueStatistics) -> str:
    if _hues_decide(hues):
        return "Here the hues nearly give the class away: they are the label, or stand for it."
    if _hues_help(hues):
        return "Here the hues help to tell the classes apart, as other features do."
    if _too_few(hues):
        return (
            f"{counted(hues.images, 'image')} of {hues.classes} classes are too few to measure "
            "this. The proposals assume that hues help little."
        )
    return (
        "Here histograms give no sign that the hues help to tell the classes apart. With so many "
        f"images, a gain of less than {max(1, _CLEAR * hues.error):.0f} points would not show."
    )


def _plain_recipe(dataset: str, side: int) -> TrainingRecipe:
    """A plain network for images with this median side, which are not enlarged much."""
    if find_dataset(dataset).kind == "small" or side > 224:
        return default_recipe(dataset)
    if side <= _SMALL:
        return default_recipe(dataset, "resnet44")
    size = max(64, side // 32 * 32)
    return dataclasses.replace(default_recipe(dataset), size=size, resize=usual_resize(size))


def _cases(plain: TrainingRecipe, hues: HueStatistics) -> Iterator[tuple[str, str, TrainingRecipe]]:
    """The case, the reason and the recipe of each proposal."""
    options = {"rotations": 12, "lifting": "hsv"}
    exact = dataclasses.replace(plain, model=f"ce_{plain.model}", options=options)
    jittered = dataclasses.replace(plain, jitter=JITTER)
    if _hues_decide(hues):
        yield (
            "If the network should name the hue (ripe or not, red or green)",
            "A plain network can use the hues; with hue jitter it could not.",
            plain,
        )
        yield (
            "The same, if some colours are rare",
            "Twelve hues share their shapes, so that rare colours are learnt from common ones; "
            "--coset-pool none keeps the hues apart for the classifier.",
            dataclasses.replace(exact, options={**options, "coset_pool": None}),
        )
    if _hues_help(hues):
        yield (
            "If hues may shift and must not change the answer",
            "Twelve exact hues, pooled, with AugMix: on Flowers-102 the best of the networks that "
            "were trained with three seeds, on shifted and on original hues.",
            dataclasses.replace(exact, augmix="original"),
        )
        yield (
            "The same, for less time",
            "A colour-invariant first layer and hue jitter: as good there, with one seed, but "
            "nothing is exact.",
            dataclasses.replace(jittered, model=f"ciconv_{plain.model}"),
        )
    else:
        yield (
            "If hues may shift and must not change the answer",
            "A plain network with hue jitter: where colour helps little, as on Caltech-101, "
            "it is as good as equivariant networks, at no extra cost.",
            jittered,
        )
        yield (
            "The same, if the answer must be equal at twelve hues by construction",
            "Twelve exact hues, pooled.",
            exact,
        )
    if not _hues_decide(hues):
        yield (
            "If hues will not shift",
            "A plain network can use the hues.",
            plain,
        )


def command(recipe: TrainingRecipe) -> str:
    """The command that trains a recipe; it leaves the precision to the device.

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
    for name in ("jitter", "size", "epochs", "batch_size", "split_seed"):
        value = getattr(recipe, name)
        if value != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _affordable(
    recipe: TrainingRecipe, decoded: Decoded, device: torch.device, train: int, test: int
) -> tuple[TrainingRecipe, float]:
    """The recipe and its time; on a CPU with smaller images and fewer epochs if it takes hours."""
    for smaller in _smaller(recipe):
        per_image = measure_seconds(smaller, decoded, device)
        # A pass without gradients takes a third of a step.
        testing = per_image * test * _SHIFTS / 3
        for epochs in _EPOCHS:
            seconds = per_image * train * epochs + testing
            shortened = dataclasses.replace(smaller, epochs=epochs)
            if seconds <= 3600 * _CPU_HOURS or device.type != "cpu":
                return shortened, seconds
    return shortened, seconds


def _smaller(recipe: TrainingRecipe) -> Iterator[TrainingRecipe]:
    yield recipe
    for size in (128, 64):
        if recipe.crop == "resized" and size < recipe.size:
            yield dataclasses.replace(recipe, size=size, resize=usual_resize(size))


def measure_seconds(
    recipe: TrainingRecipe, decoded: Decoded, device: torch.device | str = "cpu"
) -> float:
    """The seconds per image of a training step on a device.

    On a CPU the batches are smaller than the recipe's. On a GPU the step is not recorded as a CUDA
    graph, so training will be faster.
    """
    device = torch.device(device)
    batch = recipe.batch_size if device.type == "cuda" else _cpu_batch(recipe.size)
    batch = min(batch, len(decoded))
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

    # The first step includes one-time preparation, on a GPU for this size of a batch.
    images, labels = next(iter(loader))
    first = batch if device.type == "cuda" else 2
    step(images[:first], labels[:first])
    _wait(device)
    start = time.perf_counter()
    images, labels = next(iter(loader))  # augmentation is timed, too
    step(images, labels)
    _wait(device)
    return (time.perf_counter() - start) / len(labels)


def _cpu_batch(size: int) -> int:
    """Images that an equivariant network trains on in about a second on one core."""
    return max(4, min(16, 16 * 64**2 // size**2))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
