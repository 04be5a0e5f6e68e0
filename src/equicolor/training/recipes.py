"""How a network is trained on real images, as data; and a recipe for each cell of the paper.

A :class:`TrainingRecipe` fixes everything that decides what a run learns; where it runs is in
:class:`~equicolor.training.run_options.RunOptions`. :func:`recipes` lists one for every cell of
the paper's Tables 1 and 3 and for networks beyond the paper.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from equicolor import _checks
from equicolor._files import short_name
from equicolor._text import did_you_mean
from equicolor.data.augment import Augmentation
from equicolor.data.augmix import AugMix
from equicolor.data.datasets import DATASETS, canonical_dataset, find_dataset
from equicolor.devices import PRECISIONS
from equicolor.models.registry import Network, Origin, create_model, get_builder, usual_resize
from equicolor.models.tensor_files import name_of_file
from equicolor.training.fields import check, setting, settings
from equicolor.training.pretrained import load_pretrained

JITTER = 0.5  # turns: the whole circle, as in the paper
FINETUNING = {"epochs": 20, "lr": 1e-4}  # a tenth of the paper's

_image = functools.partial(setting, panel="Images")
_augmentation = functools.partial(_image, row="augmentation", compared=False)


@dataclass(frozen=True)
class TrainingRecipe:
    """Everything that decides what a training run learns; the defaults are the paper's.

    A field describes itself, see :class:`equicolor.training.fields.Setting`.

    Attributes:
        model: a name of :func:`equicolor.models.list_models`.
        options: the builder's arguments besides ``num_classes``.
        dataset: a name, or the path of a folder of class folders, which is made absolute.
        finetune: the checkpoint to begin from, or the folder of a run; its path is made absolute.
            ``model`` is then the checkpoint's, and there are no options. None begins from scratch.
        finetune_digest: of the network in that checkpoint, so that a replaced checkpoint is
            noticed; empty accepts any.
    """

    model: str = "resnet18"
    options: dict[str, Any] = field(default_factory=dict)
    dataset: str = "flowers102"
    finetune: str | None = None
    finetune_digest: str = ""

    crop: str = _image(
        "resized",
        "resized (random area and ratio), or padded (small shifts) for images that already have "
        "the size.",
        usual="resized; padded for CIFAR",
        choices=("resized", "padded"),
    )
    # The short side of test images before their centre is cropped. Larger training images are
    # decoded to twice that.
    resize: int = setting(256, at_least=1, compared=False)
    flip: bool = _image(
        True, flags={"no_flip": (False, "No mirror images: for digits, letters, arrows.")}
    )
    jitter: float = _augmentation(
        0.0, "Hue jitter in turns; 0.5 is any hue.", at_least=0, at_most=0.5
    )
    gray: bool = _image(False, "Train on grey images.", row=None, compared=False)
    # AugMix with the operations of its authors, or in full.
    augmix: str = _augmentation(
        "",
        choices=("", "original", "full"),
        short="augmix-",
        flags={
            "augmix": ("original", "Use AugMix."),
            "augmix_full": ("full", "AugMix with operations that change colour, too."),
        },
    )
    js: bool = _augmentation(False, "AugMix's Jensen-Shannon loss.")
    epochs: int = setting(200, "Times through the images.", at_least=1)
    size: int = _image(
        224,
        "Height and width of the images.",
        usual="224; 32 for CIFAR; the network's when finetuning",
        at_least=1,
    )
    batch_size: int = setting(
        256,
        "Images in a batch of all devices.",
        usual="256; the run's when finetuning",
        at_least=1,
        short="batch",
    )
    # With "onecycle" torch also moves the momentum, and Adam's first beta, from 0.95 down to
    # 0.85 while the learning rate rises, and back.
    optimizer: str = setting(
        "adam", "adam, adamw or sgd (with Nesterov momentum 0.9).", choices=("adam", "adamw", "sgd")
    )
    lr: float = setting(1e-3, "Highest learning rate.", above=0)
    weight_decay: float = setting(1e-5, "Weight decay, of all parameters.", at_least=0, short="wd")
    schedule: str = setting(
        "onecycle",
        "onecycle (also of the momentum), cosine or constant.",
        choices=("onecycle", "cosine", "constant"),
    )
    warmup: float | None = setting(
        None,
        "Share of the steps until the highest learning rate.",
        usual="0.3 for onecycle, else 0",
        at_least=0,
        below=1,
    )
    label_smoothing: float = setting(
        0.0, "Probability spread over all classes.", at_least=0, below=1, short="smooth"
    )
    ema: float = setting(
        0.0, "Keep an average of the weights, with this decay.", usual="none", at_least=0, below=1
    )
    clip: float = setting(0.0, "Largest norm of the gradient.", usual="none", at_least=0)
    split_seed: int = _image(
        0,
        "Seed of the split, for a dataset that comes without one.",
        usual="0; the run's when finetuning",
        at_least=0,
        at_most=_checks.MOST["seed"],
        published=False,
        short="split",
    )
    precision: str = setting(
        "bfloat16",
        "float32 or bfloat16.",
        usual="bfloat16 on a GPU, else float32",
        choices=PRECISIONS,
        published=False,
    )
    compile: bool = setting(False, "Use torch.compile.", decides=False)
    seed: int = setting(
        0,
        "Seed of everything random.",
        usual="0; the run's when finetuning",
        at_least=0,
        compared=False,
    )

    def __post_init__(self) -> None:
        """Refuse what cannot be trained, before anything is loaded."""
        object.__setattr__(self, "dataset", canonical_dataset(self.dataset))
        if self.finetune is not None:
            path = Path(self.finetune).expanduser().resolve()
            object.__setattr__(self, "finetune", str(path))
        check(self)
        get_builder(self.model)
        if "num_classes" in self.options:
            raise ValueError("num_classes comes from the dataset: leave it out of the options")
        if self.finetune is not None and self.options:
            raise ValueError(
                "a checkpoint to fine-tune comes with its options: leave them out, got "
                f"{', '.join(self.options)}"
            )
        if self.js and not self.augmix:
            raise ValueError(
                "js, the Jensen-Shannon loss, compares views of AugMix: it needs augmix"
            )
        _ = self.augmentation  # which checks size and resize together

    def row(self) -> dict[str, Any]:
        """The recipe in a result row, without the network and the dataset."""
        row = {"augmentation": self.augmentation_name}
        for name, about in settings(self).items():
            if about.decides and about.row == name:
                row[name] = getattr(self, name)
        if self.finetune is not None:
            row["finetuned"] = name_of_file(self.finetune)
        return row

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
        """The short side that larger images are decoded to; None keeps their size.

        Training images keep twice the size of test images: crops of a small part stay sharp, and
        large photographs do not fill the memory.
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
    def folder_name(self) -> str:
        """A name for the folder of a run, with every setting that is not the default.

        No two recipes have the same name. A digest at the end stands for the path of a folder of
        images, and for the network that is fine-tuned.

        Example:
            >>> TrainingRecipe("ce_resnet18", {"rotations": 12}, jitter=0.5, lr=0.1).folder_name
            'flowers102-ce_resnet18-n12-jitter0.5-lr0.1-seed0'
        """
        parts = [find_dataset(self.dataset).name.replace(":", "-")]
        digested = [self.dataset] if self.dataset not in DATASETS else []
        if self.finetune is None:
            usual = asdict(default_recipe(self.dataset, self.model))
            parts.append(self.model)
        else:
            path = Path(self.finetune)
            usual = asdict(default_recipe(self.dataset)) | FINETUNING
            parts += ["finetune", path.name if path.is_dir() else path.stem]
            digested.append(self.finetune_digest or self.finetune)
        if self.crop == "resized":
            usual["resize"] = usual_resize(self.size)
        parts += [
            _OPTION_NAMES.get(name, name + "{}").format(_in_folder_name(value))
            for name, value in self.options.items()
        ]
        for name, about in settings(self).items():
            value = getattr(self, name)
            if value != usual[name] and name != "seed":
                before = about.short if about.short is not None else name * (not about.choices)
                parts.append(_in_folder_name(value, before))
        # TensorBoard and safetensors take no path that is not UTF-8.
        readable = "-".join(parts).encode(errors="replace").decode()
        name = f"{short_name(readable)}-seed{self.seed}"
        if not digested:
            return name
        return f"{name}-{hashlib.sha256(json.dumps(digested).encode()).hexdigest()[:6]}"

    @property
    def origin(self) -> Origin:
        """What the trained network records of its images."""
        test = self.augmentation.evaluation()
        try:
            name = find_dataset(self.dataset).name
        except (OSError, ValueError):  # a folder that is elsewhere now
            name = Path(self.dataset).name
        return Origin(test.size, test.resize, name, self.split_seed)

    def build(self, num_classes: int, class_names: Sequence[str] | None = None) -> Network:
        """The network, initialised from the seed or loaded; torch's own generator stays as it was.

        A loaded network gets a new classifier if its classes differ in number or, as far as they
        are known, in name.
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
        """The recipe of :meth:`to_json`; raises ValueError for anything else.

        A recipe may lack settings that are newer than its file.
        """
        try:
            contents = json.loads(text)
        except RecursionError:
            raise ValueError("not a training recipe: it is nested without end") from None
        names = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(contents.keys() - names) if isinstance(contents, dict) else [contents]
        if unknown:
            raise ValueError(f"not a training recipe: it holds {unknown!r:.100}")
        if lacking := [name for name in ("model", "options", "dataset") if name not in contents]:
            raise ValueError(f"not a training recipe: it lacks {', '.join(lacking)}")
        return cls(**contents)

    def differences(self, other: "TrainingRecipe") -> list[str]:
        """What another recipe does differently, in words."""
        # Through JSON, which has no tuples.
        mine, theirs = json.loads(self.to_json()), json.loads(other.to_json())
        if self.finetune_digest and self.finetune_digest == other.finetune_digest:
            del mine["finetune"]  # the same network, wherever it lies
        before, now = Path(self.dataset), Path(other.dataset)  # datasets have no absolute names
        folders = before.is_absolute() and now.is_absolute()
        if folders and before.name == now.name and not before.exists():
            del mine["dataset"]  # the folder was moved; its images are compared one by one
        return [
            f"{key} {theirs[key]} instead of {mine[key]}"
            for key in mine
            if mine[key] != theirs[key]
        ]


# How options of networks are written in folder names; others are written as NAME and VALUE.
_OPTION_NAMES = {
    "rotations": "n{}", "lifting": "{}", "ce_stages": "{}stages", "coset_pool": "pool-{}",
    "spatial": "{}",
}  # fmt: skip


def _in_folder_name(value: Any, name: str = "") -> str:
    """A value, after its name, in the name of a folder."""
    if isinstance(value, bool):
        return name if value else f"no{name}"
    if isinstance(value, (list, tuple)):
        return name + ".".join(map(str, value))
    return name + str(value).removesuffix(".0")


_ROW_SETTINGS = {
    about.row: about for about in settings(TrainingRecipe).values() if about.decides and about.row
}
# The keys of a row that a recipe decides, besides the network's and the dataset's. Rows that agree
# in all of them were trained in the same way. A missing value means the paper's setting.
ROW_KEYS = (*_ROW_SETTINGS, "finetuned")
# Keys that may differ from the paper's in runs of one network with one augmentation.
COMPARED_KEYS = (*(key for key, about in _ROW_SETTINGS.items() if about.compared), "finetuned")
# Keys whose value the paper does not give.
UNPUBLISHED_KEYS = tuple(key for key, about in _ROW_SETTINGS.items() if not about.published)


def default_recipe(dataset: str, model: str | None = None) -> TrainingRecipe:
    """The paper's recipe for a network on a dataset, or on a folder of class folders.

    CIFAR gets padded crops and, by default, ResNet-44. Others get ResNet-18 and random-resized
    crops, of 224 pixels or of the size that the network was designed for.
    """
    if find_dataset(dataset).kind == "small":
        model = "resnet44" if model is None else model
        return TrainingRecipe(model, dataset=dataset, size=32, resize=32, crop="padded")
    model = "resnet18" if model is None else model
    size = _image_size(model)
    return TrainingRecipe(model, dataset=dataset, size=size, resize=usual_resize(size))


@functools.cache
def _image_size(model: str) -> int:
    """The size of images that a network was designed for."""
    with torch.device("meta"):
        return create_model(model).image_size


def recipes(dataset: str | None = None) -> dict[str, TrainingRecipe]:
    """The recipes of a dataset, or of a folder of class folders, or of all datasets, by name.

    A name is ``DATASET/NETWORK``, ``DATASET/NETWORK+jitter`` or ``DATASET/NETWORK+augmix``.
    The networks are ``baseline``, ``ce-1`` to ``ce-4`` (that many equivariant stages; CIFAR's
    network has three), ``ciconv-w`` and ``gray``, each of the paper; and ``hsv-3``, ``hsv-6``
    and ``hsv-12``, lifted exactly for HSV hue shifts with that many rotations.
    """
    return {name: find_recipe(name, each) for name, each in _listed(dataset).items()}


def _listed(dataset: str | None) -> dict[str, str]:
    """The names of :func:`recipes`, each with its dataset; making the recipes takes longer."""
    listed: dict[str, str] = {}
    for each in DATASETS if dataset is None else [dataset]:
        plain, title = default_recipe(each), find_dataset(each).name
        for network in _networks(plain.model):
            suffixes = ("", "+jitter") if network in _NO_AUGMIX else ("", "+jitter", "+augmix")
            listed |= dict.fromkeys((f"{title}/{network}{suffix}" for suffix in suffixes), each)
    return listed


_NO_AUGMIX = ("ciconv-w", "gray")  # the paper trains only the others with AugMix
_STAGES = {"resnet18": 4, "resnet44": 3}


def _networks(plain: str) -> dict[str, dict[str, Any]]:
    """The fields in which each network's recipe differs from the plain ResNet's."""
    networks: dict[str, dict[str, Any]] = {"baseline": {}}
    for stages in range(1, _STAGES[plain] + 1):
        hybrid = {"rotations": 3, "ce_stages": stages}
        networks[f"ce-{stages}"] = {"model": f"ce_{plain}", "options": hybrid}
    networks["ciconv-w"] = {"model": f"ciconv_{plain}"}
    networks["gray"] = {"gray": True}
    for rotations in (3, 6, 12):
        networks[f"hsv-{rotations}"] = _in_all_stages(plain, "hsv", rotations)
    return networks


def _in_all_stages(plain: str, lifting: str, rotations: int) -> dict[str, Any]:
    return {"model": f"ce_{plain}", "options": {"rotations": rotations, "lifting": lifting}}


_GROUP = re.compile(r"(rgb|hsv)-([1-9]\d*)")
# A change of a network or of its training. The kinds are in the order of canonical names.
_CHANGE = re.compile(
    r"(?P<spatial>p4m?)|(?P<pool>flatten|avg)"
    r"|(?P<jitter>jitter(?:-(?:0(?:\.\d+)?|1(?:\.0+)?))?)|(?P<augmix>augmix)"
)


def find_recipe(name: str, dataset: str | None = None) -> TrainingRecipe:
    """The recipe that :func:`named_recipe` finds."""
    return named_recipe(name, dataset)[1]


def named_recipe(name: str, dataset: str | None = None) -> tuple[str, TrainingRecipe]:
    """The canonical name of a network, which equal recipes share, and its recipe.

    A name is that of a network of :func:`recipes`, or ``rgb-6`` or ``hsv-6``, equivariant in all
    stages with that many rotations; and changes joined by plus signs. ``+p4`` and ``+p4m`` are
    invariant to turns and mirror images, too, ``+flatten`` and ``+avg`` replace the maximum over
    the rotations, ``+jitter-0.2`` shifts hues by up to 0.2 turns, and ``+augmix`` adds AugMix.
    Canonical names have them in this order. ``DATASET/`` comes first, unless the dataset is given.

    Raises:
        ValueError: if there is no such recipe, with the nearest names of :func:`recipes`; and if
            the network does not take a change.

    Example:
        >>> named_recipe("flowers102/rgb-3+jitter-0.5")[0], named_recipe("hsv-1", "cifar10")[0]
        ('ce-4+jitter', 'baseline')
    """
    place = name.partition("/")[0] if dataset is None else dataset
    if dataset is None and place not in DATASETS:
        raise _unknown(name, dataset)
    plain = default_recipe(place)
    network, *texts = name.removeprefix(f"{find_dataset(place).name}/").split("+")
    known = _network(network, plain.model)
    if known is None:
        raise _unknown(name, dataset)
    network, fields = known
    changes: dict[str, str] = {}
    for text in texts:
        match = _CHANGE.fullmatch(text)
        if match is None or str(match.lastgroup) in changes:
            raise _unknown(name, dataset)
        changes[str(match.lastgroup)] = text
    options = dict(fields.get("options", {}))
    if "spatial" in changes:
        options["spatial"] = changes["spatial"]
    if "pool" in changes:
        if "rotations" not in options:
            raise ValueError(
                f"{network} has no rotations to pool: +{changes['pool']} does not apply to it"
            )
        options["coset_pool"] = None if changes["pool"] == "flatten" else changes["pool"]
    fields = fields | {"options": options}
    if "jitter" in changes:
        fields["jitter"] = turns = float(changes["jitter"].partition("-")[2] or JITTER)
        changes["jitter"] = "jitter" if turns == JITTER else f"jitter-{turns:g}" * bool(turns)
    if "augmix" in changes:
        fields["augmix"] = "original"
    recipe = dataclasses.replace(plain, **fields)
    if network not in _networks(plain.model) or {"spatial", "pool"} & changes.keys():
        with torch.device("meta"):  # refuses what the network does not take
            recipe.build(2)
    parts = network, *(changes.get(kind, "") for kind in _CHANGE.groupindex)
    return "+".join(filter(None, parts)), recipe


def _network(name: str, plain: str) -> tuple[str, dict[str, Any]] | None:
    """The canonical name of a network, and the fields in which it differs from the plain ResNet."""
    if group := _GROUP.fullmatch(name):
        lifting, rotations = group[1], int(group[2])
        if (lifting, rotations) == ("rgb", 3):
            name = f"ce-{_STAGES[plain]}"
        elif rotations == 1:
            name = "baseline"
        else:
            return name, _in_all_stages(plain, lifting, rotations)
    networks = _networks(plain)
    return (name, networks[name]) if name in networks else None


def _unknown(name: str, dataset: str | None) -> ValueError:
    if dataset is not None and "/" not in name:
        name = f"{find_dataset(dataset).name}/{name}"
    hint = did_you_mean(name.lower(), _listed(dataset), "it is DATASET/NETWORK")
    return ValueError(f"unknown recipe {name!r}; {hint}")
