"""How a network is trained on real images, as data; and a recipe for each cell of the paper.

A :class:`TrainingRecipe` fixes everything that decides what a run learns. Where it runs (how
many devices, which data path) is not part of it. :func:`recipes` lists one for every cell of
the paper's Tables 1 and 3 and for networks beyond the paper.
"""

import dataclasses
import difflib
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from equicolor import _checks
from equicolor.data.augment import Augmentation
from equicolor.data.augmix import AugMix
from equicolor.data.datasets import DATASETS, canonical_dataset, find_dataset
from equicolor.models.registry import (
    Network,
    Origin,
    create_model,
    get_builder,
    usual_resize,
)
from equicolor.training.pretrained import load_pretrained

__all__ = [
    "TrainingRecipe", "chosen_precision", "default_recipe", "find_recipe", "recipes",
    "usual_precision",
]  # fmt: skip

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("onecycle", "cosine", "constant")
PRECISIONS = ("bf16", "32")
AUGMIXES = ("", "original", "full")
SEEDS = 2**32 - 1  # the largest: random numbers are a function of 32 bits of it
JITTER = 0.5  # turns: the whole circle, as in the paper


@dataclass(frozen=True)
class TrainingRecipe:
    """Everything that decides what a training run learns; the defaults are the paper's.

    Attributes:
        model: a name of :func:`equicolor.models.list_models`.
        options: the builder's arguments beside ``num_classes``.
        dataset: a name, or the path of a folder of class folders, which is made absolute.
        split_seed: of the split, for datasets that come without one.
        size: height and width of the images.
        crop: ``"resized"`` (random area and ratio) or ``"padded"`` (shifted, for small images).
        resize: the short side of test images before their centre is cropped; larger
            images are made so small in training too.
        flip: mirror half of the images.
        jitter: hue jitter in turns, drawn per image from ±jitter.
        gray: feed the mean of the channels.
        augmix: AugMix with its authors' settings: ``"original"`` with their operations, ``"full"``
            also with those that change colour, contrast, brightness and sharpness; or ``""``.
            True is ``"original"``, as in older recipes.
        js: with AugMix, the Jensen-Shannon loss over three views.
        epochs, batch_size: of training; the batch is that of all processes together.
        optimizer: ``"adam"``, ``"adamw"`` or ``"sgd"`` (Nesterov momentum 0.9). With
            ``"onecycle"`` torch's default also moves the momentum, and Adam's first beta, from
            0.95 down to 0.85 while the learning rate rises, and back.
        lr, weight_decay: of the optimizer; ``lr`` is the highest of the schedule.
        schedule: ``"onecycle"``, ``"cosine"`` or ``"constant"``, updated every step.
        label_smoothing: probability spread over all classes.
        clip: largest norm of the gradient; 0 for none.
        ema: decay of an exponential average of the weights, which is then what is kept and
            judged; 0 for none.
        precision: ``"bf16"`` (mixed) or ``"32"``.
        compile: use ``torch.compile``.
        seed: of initialisation, order and augmentation.
        finetune: the checkpoint to begin from, or the folder of a run; its path is made absolute.
            ``model`` is then the checkpoint's, and there are no options. None draws the network.
        finetune_digest: of the network in that checkpoint, so that another one under the same
            path is noticed; empty for any.

    Example:
        >>> recipe = TrainingRecipe("ce_resnet18", {"rotations": 12, "lifting": "hsv"}, jitter=0.5)
        >>> recipe.epochs, recipe.augmentation_name
        (200, 'jitter 0.5')
    """

    model: str = "resnet18"
    options: dict[str, Any] = field(default_factory=dict)
    dataset: str = "flowers102"
    split_seed: int = 0
    size: int = 224
    crop: str = "resized"
    resize: int = 256
    flip: bool = True
    jitter: float = 0.0
    gray: bool = False
    augmix: str = ""
    js: bool = False
    epochs: int = 200
    batch_size: int = 256
    optimizer: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 1e-5
    schedule: str = "onecycle"
    label_smoothing: float = 0.0
    clip: float = 0.0
    ema: float = 0.0
    precision: str = "bf16"
    compile: bool = False
    seed: int = 0
    finetune: str | None = None
    finetune_digest: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be trained, before anything is loaded."""
        object.__setattr__(self, "dataset", canonical_dataset(self.dataset))
        if self.finetune is not None:
            path = Path(self.finetune).expanduser().resolve()
            object.__setattr__(self, "finetune", str(path))
        older: dict[object, str] = {True: "original", False: ""}
        object.__setattr__(self, "augmix", older.get(self.augmix, self.augmix))
        get_builder(self.model)
        if "num_classes" in self.options:
            raise ValueError("num_classes is the dataset's: it does not belong into the options")
        if self.finetune is not None and self.options:
            raise ValueError(
                f"a checkpoint comes with its options: finetune takes none, got "
                f"{', '.join(self.options)}"
            )
        for name in ("epochs", "batch_size", "size", "resize"):
            _checks.positive_int(name, getattr(self, name))
        for name in ("seed", "split_seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= SEEDS:
                raise ValueError(f"{name} must be a whole number in [0, {SEEDS}], got {value!r}")
        _checks.one_of("crop", self.crop, ("resized", "padded"))
        _checks.one_of("augmix", self.augmix, AUGMIXES)
        _checks.one_of("optimizer", self.optimizer, OPTIMIZERS)
        _checks.one_of("schedule", self.schedule, SCHEDULES)
        _checks.one_of("precision", self.precision, PRECISIONS)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be positive, got {self.lr}")
        for name in ("weight_decay", "clip"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be at least 0, got {value}")
        _checks.probability("label_smoothing", self.label_smoothing)
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must lie in [0, 1), got {self.ema}")
        if self.js and not self.augmix:
            raise ValueError(
                "js, the Jensen-Shannon loss, compares views of AugMix: it needs augmix"
            )
        _ = self.augmentation  # which checks size, resize and jitter

    @property
    def augmentation(self) -> Augmentation:
        """What happens to training images; test images get its ``evaluation()``."""
        return Augmentation(
            size=self.size,
            crop=self.crop,
            resize=self.resize,
            flip=self.flip,
            jitter=self.jitter,
            gray=self.gray,
            augmix=AugMix(full=self.augmix == "full") if self.augmix else None,
            views=3 if self.js else 1,
        )

    def short_side(self, split: str) -> int | None:
        """What decoded images are made small to, if at all.

        Test images get the size that their centre is cut from. Training images keep twice
        that where they have it: crops of a small part stay sharp, and large photographs do not
        fill the memory.
        """
        if self.crop == "padded":
            return None
        return self.resize if split == "test" else 2 * self.resize

    @property
    def augmentation_name(self) -> str:
        """The colour augmentation in the words of result rows."""
        parts = [f"jitter {self.jitter:g}"] * bool(self.jitter)
        parts += ["augmix full" if self.augmix == "full" else "augmix"] * bool(self.augmix)
        parts += ["js"] * self.js
        return " + ".join(parts) or "none"

    @property
    def origin(self) -> Origin:
        """What the trained network will know of its images."""
        test = self.augmentation.evaluation()
        try:
            name = find_dataset(self.dataset).name
        except (OSError, ValueError):  # a folder that is elsewhere now
            name = Path(self.dataset).name
        return Origin(test.size, test.resize, name, self.split_seed)

    def build(self, num_classes: int, class_names: Sequence[str] | None = None) -> Network:
        """The network, freshly drawn from the seed; torch's own generator stays as it was.

        One that is fine-tuned is loaded; its classifier is drawn anew if the classes differ, in
        number or, as far as they are known, in name.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.finetune is not None:
                digest = self.finetune_digest
                return load_pretrained(self.finetune, num_classes, class_names, digest=digest)
            return create_model(self.model, num_classes=num_classes, **self.options)

    def to_json(self) -> str:
        """The recipe as text that :meth:`from_json` reads."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "TrainingRecipe":
        """Read a recipe.

        Example:
            >>> recipe = TrainingRecipe(epochs=3, options={"width": 4})
            >>> TrainingRecipe.from_json(recipe.to_json()) == recipe
            True
        """
        try:
            contents = json.loads(text)
        except RecursionError:
            raise ValueError("not a training recipe: it is nested without end") from None
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(contents, dict) or not contents.keys() <= known:
            strange = sorted(set(contents) - known) if isinstance(contents, dict) else contents
            raise ValueError(f"not a training recipe: it holds {strange!r:.100}")
        for name, default in asdict(cls()).items():
            value = contents.get(name, default)
            kinds = {float: (float, int), type(None): (str, type(None))}.get(
                type(default), (type(default),)
            )
            if type(value) not in kinds and (name, type(value)) != ("augmix", bool):
                raise ValueError(f"not a training recipe: its {name} is {value!r:.100}")
        return cls(**contents)

    def differences(self, other: "TrainingRecipe") -> list[str]:
        """What another recipe does differently, in words.

        Example:
            >>> TrainingRecipe().differences(TrainingRecipe(epochs=3))
            ['epochs 3 instead of 200']
        """
        # Through JSON, which has no tuples.
        mine, theirs = json.loads(self.to_json()), json.loads(other.to_json())
        if not self.finetune_digest:  # a run from before there were any
            del mine["finetune_digest"]
        elif self.finetune_digest == other.finetune_digest:
            del mine["finetune"]  # the same network, wherever it lies
        return [
            f"{key} {theirs[key]} instead of {mine[key]}"
            for key in mine
            if mine[key] != theirs[key]
        ]


def default_recipe(dataset: str, model: str | None = None) -> TrainingRecipe:
    """The paper's way to train a network on a dataset.

    Args:
        dataset: a name, or the path of a folder of class folders.
        model: the network; by default ResNet-44 for the 32-pixel images of CIFAR and ResNet-18
            for others.

    Returns:
        A recipe: padded crops for CIFAR, random-resized crops for others, of 224 pixels or of
        what the network was designed for.

    Example:
        >>> default_recipe("cifar10").model, default_recipe("stl10").model
        ('resnet44', 'resnet18')
        >>> default_recipe("stl10", "ce_resnet44").size
        32
    """
    if find_dataset(dataset).kind == "small":
        model = "resnet44" if model is None else model
        return TrainingRecipe(model, dataset=dataset, size=32, resize=32, crop="padded")
    model = "resnet18" if model is None else model
    size = _image_size(model)
    return TrainingRecipe(model, dataset=dataset, size=size, resize=usual_resize(size))


@functools.cache
def _image_size(model: str) -> int:
    """The images a network was designed for."""
    with torch.device("meta"):
        return create_model(model).image_size


def recipes(dataset: str | None = None) -> dict[str, TrainingRecipe]:
    """The recipes of a dataset, or of all, by name.

    A name is ``DATASET/NETWORK``, ``DATASET/NETWORK+jitter`` or ``DATASET/NETWORK+augmix``.
    The networks are ``baseline``, ``ce-1`` to ``ce-4`` (so many equivariant stages; CIFAR's
    network has three), ``ciconv-w`` and ``gray``, each of the paper; and ``hsv-3``, ``hsv-6``
    and ``hsv-12``, lifted exactly for HSV hue shifts with so many rotations.

    Args:
        dataset: a name, or the path of a folder of class folders; None for all names.

    Example:
        >>> found = recipes("flowers102")
        >>> len(found), found["flowers102/ce-2+jitter"].options
        (28, {'rotations': 3, 'ce_stages': 2})
    """
    named = DATASETS if dataset is None else [dataset]
    return {name: recipe for each in named for name, recipe in _of_dataset(each).items()}


def _of_dataset(dataset: str) -> dict[str, TrainingRecipe]:
    plain, title = default_recipe(dataset), find_dataset(dataset).name
    found = {}
    for network, change in _networks(plain.model).items():
        for suffix, augmentation in _AUGMENTATIONS.items():
            if suffix == "+augmix" and network in _NO_AUGMIX:
                continue
            changed = dataclasses.replace(plain, **change, **augmentation)
            found[f"{title}/{network}{suffix}"] = changed
    return found


_AUGMENTATIONS: dict[str, Mapping[str, Any]] = {
    "": {},
    "+jitter": {"jitter": JITTER},
    "+augmix": {"augmix": "original"},
}
_NO_AUGMIX = ("ciconv-w", "gray")  # the paper mixes only the baseline and equivariant networks


def _networks(plain: str) -> dict[str, dict[str, Any]]:
    """What tells each network's recipe from the plain ResNet's."""
    equivariant = f"ce_{plain}"
    found: dict[str, dict[str, Any]] = {"baseline": {}}
    for stages in range(1, _STAGES[plain] + 1):
        hybrid = {"rotations": 3, "ce_stages": stages}
        found[f"ce-{stages}"] = {"model": equivariant, "options": hybrid}
    found["ciconv-w"] = {"model": f"ciconv_{plain}"}
    found["gray"] = {"gray": True}
    for rotations in (3, 6, 12):
        exact = {"rotations": rotations, "lifting": "hsv"}
        found[f"hsv-{rotations}"] = {"model": equivariant, "options": exact}
    return found


_STAGES = {"resnet18": 4, "resnet44": 3}


def usual_precision(*, cuda: bool) -> str:
    """The precision to train in where none is asked for.

    Example:
        >>> usual_precision(cuda=True), usual_precision(cuda=False)
        ('bf16', '32')
    """
    return "bf16" if cuda else "32"


def chosen_precision(precision: str, *, cuda: bool) -> str:
    """One of :data:`PRECISIONS`: that asked for, or of ``"auto"`` the usual one.

    Example:
        >>> chosen_precision("auto", cuda=True), chosen_precision("32", cuda=True)
        ('bf16', '32')
    """
    _checks.one_of("precision", precision, ("auto", *PRECISIONS))
    return usual_precision(cuda=cuda) if precision == "auto" else precision


def find_recipe(name: str, dataset: str | None = None) -> TrainingRecipe:
    """A recipe by name.

    Args:
        name: one of :func:`recipes`; with a dataset, what comes before the slash may be left out.
        dataset: a name, or the path of a folder of class folders; None for all names.

    Raises:
        ValueError: if there is none, with the nearest names.

    Example:
        >>> find_recipe("hsv-12", "flowers102").options
        {'rotations': 12, 'lifting': 'hsv'}
        >>> find_recipe("hvs-12", "stl10")
        Traceback (most recent call last):
            ...
        ValueError: unknown recipe 'stl10/hvs-12'; did you mean 'stl10/hsv-12' or 'stl10/hsv-6'?
    """
    known = recipes(dataset)
    if dataset is not None and "/" not in name:
        name = f"{find_dataset(dataset).name}/{name}"
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "it is DATASET/NETWORK"
    raise ValueError(f"unknown recipe {name!r}; {hint}")
