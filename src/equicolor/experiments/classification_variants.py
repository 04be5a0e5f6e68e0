"""Rows of the classification experiments grouped by network and training, with their names."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from equicolor.data.datasets import DATASETS
from equicolor.models.resnet import ARCHITECTURES
from equicolor.training.recipes import TrainingRecipe

__all__ = ["AUGMENTATIONS", "Variant", "by_variant", "dataset_title", "datasets_of", "most_common"]

Row = Mapping[str, Any]

AUGMENTATIONS = ("none", "jitter 0.5", "augmix")  # the paper's, in its order
# What may differ between runs of one variant beside the seed; a run that differs from most
# gets a line of its own. Rows that do not say are taken to follow the paper.
_SETTINGS = (
    "epochs", "batch_size", "optimizer", "lr", "weight_decay", "schedule", "label_smoothing",
    "ema", "clip", "size", "split_seed", "precision",
)  # fmt: skip
_USUAL = {name: getattr(TrainingRecipe(), name) for name in _SETTINGS}
_POOL_NAMES = {"max": [], "avg": ["average pooling"], "none": ["flattened"]}
_KINDS = ("baseline", "ciconv", "ce", "gray", "other")  # in the order of the tables


class Variant(NamedTuple):
    """A network and how it was trained: what runs of different seeds have in common.

    Attributes:
        kind: ``"baseline"``, ``"ciconv"``, ``"ce"``, ``"gray"`` or ``"other"``.
        network: the plain architecture, such as ``"resnet18"``.
        rotations, lifting, ce_stages: of equivariant networks; 1, ``""`` and 0 of others.
        augmentation: as in the rows.
        setting: what else differs from most runs, in words.
        pool: how the rotations are pooled: ``"max"``, ``"avg"`` or ``"none"`` (flattened).

    Example:
        >>> Variant("ce", "resnet18", 12, "hsv", 4, "jitter 0.5").name
        'CE-ResNet-18 (HSV, n = 12) + jitter'
        >>> Variant("ce", "resnet44", 3, "rgb", 2, "none").name
        'CE-ResNet-44-2'
    """

    kind: str
    network: str
    rotations: int
    lifting: str
    ce_stages: int
    augmentation: str
    setting: str = ""
    pool: str = "max"

    @property
    def full(self) -> bool:
        """Whether all stages are equivariant."""
        return self.ce_stages == all_stages(self.network)

    @property
    def in_paper(self) -> bool:
        """Whether the paper has networks of this kind."""
        if self.kind == "ce":
            return (self.rotations, self.lifting, self.pool) == (3, "rgb", "max")
        return self.kind in ("baseline", "ciconv")

    @property
    def network_name(self) -> str:
        """The network for legends and tables."""
        title = re.sub(r"^resnet(\d+)$", r"ResNet-\1", self.network)
        if self.kind == "gray":
            return f"{title} (grey input)"
        if self.kind == "ciconv":
            return f"CIConv-W {title}"
        if self.kind != "ce":
            return title
        hybrid = "" if self.full else f"-{self.ce_stages}"
        usual = (self.rotations, self.lifting) == (3, "rgb")
        special = [] if usual else [self.lifting.upper(), f"n = {self.rotations}"]
        special += _POOL_NAMES[self.pool]
        return f"CE-{title}{hybrid}" + (f" ({', '.join(special)})" if special else "")

    @property
    def training_name(self) -> str:
        """The augmentation and what else was special, for legends and tables."""
        if self.augmentation == "none":
            parts = []
        else:
            known = {"jitter 0.5": "jitter", "augmix": "AugMix", "js": "JS loss"}
            parts = [known.get(part, part) for part in self.augmentation.split(" + ")]
        return "".join(f" + {part}" for part in parts) + (f" ({self.setting})" * bool(self.setting))

    @property
    def name(self) -> str:
        """For legends and tables."""
        return self.network_name + self.training_name

    @property
    def rank(self) -> tuple[Any, ...]:
        """Its place in the tables: by augmentation, then as in the paper, then what is ours."""
        known = self.augmentation in AUGMENTATIONS
        group = AUGMENTATIONS.index(self.augmentation) if known else len(AUGMENTATIONS)
        return (
            group, "" if known else self.augmentation, not self.in_paper, _KINDS.index(self.kind),
            self.lifting, self.rotations, self.ce_stages, self.network, self.pool != "max",
            self.pool, self.setting,
        )  # fmt: skip


def all_stages(network: str) -> int:
    """How many stages a ResNet has.

    Example:
        >>> all_stages("resnet18"), all_stages("resnet44")
        (4, 3)
    """
    digits = re.sub(r"\D", "", network)
    known = ARCHITECTURES.get(int(digits)) if digits else None
    return len(known.blocks) if known else 4


def by_variant(rows: Sequence[Row]) -> dict[Variant, list[Row]]:
    """Rows of one dataset grouped by what they have in common beside the seed.

    Args:
        rows: with ``model``, ``rotations``, ``lifting``, ``ce_stages``, ``augmentation`` and
            ``seed``; what was trained otherwise than most, such as for fewer epochs, makes a
            group of its own.

    Returns:
        Groups in the order of the tables.

    Raises:
        ValueError: if a seed is there twice.

    Example:
        >>> row = {"model": "resnet18", "rotations": 1, "augmentation": "none", "original": 66.0}
        >>> [len(group) for group in by_variant([row | {"seed": 0}, row | {"seed": 1}]).values()]
        [2]
    """
    usual = {key: most_common([_USUAL | dict(row) for row in rows], key) for key in _SETTINGS}
    groups: dict[Variant, list[Row]] = {}
    for row in rows:
        groups.setdefault(_variant(row), []).append(row)
    split: dict[Variant, list[Row]] = {}
    for variant, group in groups.items():
        width = most_common(group, "width")  # which differs from network to network
        for row in group:
            setting = _setting(row, {**usual, "width": width})
            split.setdefault(variant._replace(setting=setting), []).append(row)
    for variant, group in split.items():
        for seed, count in Counter(row.get("seed") for row in group).items():
            if count > 1:
                raise ValueError(f"{count} rows of {variant.name} have the same seed, {seed}")
    return {variant: split[variant] for variant in sorted(split, key=lambda found: found.rank)}


def most_common(rows: Sequence[Row], key: str) -> Any:
    """The commonest value of a key, or None where rows do not say.

    Example:
        >>> most_common([{"epochs": 30}, {"epochs": 200}, {"epochs": 200}], "epochs")
        200
    """
    counted = Counter(repr(row[key]) for row in rows if row.get(key) is not None)
    if not counted:
        return None
    commonest = counted.most_common(1)[0][0]
    return next(row[key] for row in rows if repr(row.get(key)) == commonest)


def _setting(row: Row, usual: Mapping[str, Any]) -> str:
    parts = []
    for key, value in usual.items():
        own = row.get(key, _USUAL["size"] if key == "size" else None)
        if own is not None and own != value:
            plain = (
                f"{own} epochs"
                if key == "epochs"
                else f"{own} pixels"
                if key == "size"
                else f"{key.replace('_', ' ')} {own}"
            )
            parts.append(plain)
    return ", ".join(parts)


def _variant(row: Row) -> Variant:
    model, rotations = row["model"], row.get("rotations") or 1
    network = model.removeprefix("ce_").removeprefix("ciconv_").removesuffix("-gray")
    augmentation = row.get("augmentation") or "none"
    if rotations > 1:
        stages = row.get("ce_stages")
        stages = all_stages(network) if stages is None else stages
        lifting = row.get("lifting") or "rgb"
        pool = row.get("coset_pool") or "max"
        return Variant("ce", network, rotations, lifting, stages, augmentation, pool=pool)
    kind = "baseline" if re.fullmatch(r"resnet\d+", network) else "other"
    kind = "gray" if model.endswith("-gray") else kind
    kind = "ciconv" if model.startswith("ciconv_") else kind
    return Variant(kind, network, 1, "", 0, augmentation)


def datasets_of(rows: Sequence[Row]) -> list[str]:
    """The datasets that rows are about, in the order of the list of datasets.

    Example:
        >>> datasets_of([{"dataset": "mine"}, {"dataset": "flowers102"}, {"dataset": "cifar10"}])
        ['cifar10', 'flowers102', 'mine']
    """
    known = list(DATASETS)
    found = dict.fromkeys(row["dataset"] for row in rows)
    return sorted(found, key=lambda name: known.index(name) if name in known else len(known))


def dataset_title(dataset: str) -> str:
    """What a dataset is called in print.

    Example:
        >>> dataset_title("flowers102"), dataset_title("mine")
        ('Flowers-102', 'mine')
    """
    return DATASETS[dataset].title if dataset in DATASETS else dataset
