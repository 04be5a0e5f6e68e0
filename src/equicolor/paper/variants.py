"""Rows of networks trained on images, grouped by network and training, with their names."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from equicolor.data.datasets import DATASETS
from equicolor.models.widths import ARCHITECTURES, matched_widths
from equicolor.paper.settings import (
    common,
    deviations,
    in_words,
    most_common,
    paper_settings,
    setting,
)
from equicolor.results import Row

__all__ = [
    "AUGMENTATIONS", "PAPER_DATASET", "Variant", "all_stages", "by_variant", "dataset_title",
    "datasets_of", "figure_file", "shared_setting", "variant_of",
]  # fmt: skip

PAPER_DATASET = "flowers102"  # of the paper's figures and ablations
AUGMENTATIONS = ("none", "jitter 0.5", "augmix")  # the paper's, in its order
_POOL_NAMES = {"max": [], "avg": ["average pooling"], "none": ["flattened"]}
_KINDS = ("baseline", "ciconv", "ce", "other")  # in the order of the tables


class Variant(NamedTuple):
    """A network and how it was trained: what runs of different seeds have in common.

    Attributes:
        kind: ``"baseline"``, ``"ciconv"``, ``"ce"`` or ``"other"``.
        network: the plain architecture, such as ``"resnet18"``.
        rotations, lifting, ce_stages: of equivariant networks; 1, ``""`` and 0 of others.
        augmentation: as in the rows.
        setting: what differs from the paper's training and is not common to all rows, in words.
        pool: how the rotations are pooled: ``"max"``, ``"avg"`` or ``"none"`` (flattened).
        gray: whether it sees the mean of the channels alone.

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
    gray: bool = False

    @property
    def full(self) -> bool:
        """Whether all stages are equivariant."""
        return self.ce_stages == all_stages(self.network)

    @property
    def in_paper(self) -> bool:
        """Whether the paper has networks of this kind."""
        if self.gray:
            return False
        if self.kind == "ce":
            return (self.rotations, self.lifting, self.pool) == (3, "rgb", "max")
        return self.kind in ("baseline", "ciconv")

    @property
    def network_name(self) -> str:
        """The network for legends and tables."""
        title = re.sub(r"^resnet(\d+)$", r"ResNet-\1", self.network)
        special = []
        if self.kind == "ciconv":
            title = f"CIConv-W {title}"
        elif self.kind == "ce":
            title = f"CE-{title}" + ("" if self.full else f"-{self.ce_stages}")
            if (self.rotations, self.lifting) != (3, "rgb"):
                special = [self.lifting.upper(), f"n = {self.rotations}"]
            special += _POOL_NAMES[self.pool]
        special += ["grey input"] * self.gray
        return title + (f" ({', '.join(special)})" if special else "")

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
            group, "" if known else self.augmentation, not self.in_paper, self.gray,
            _KINDS.index(self.kind), self.lifting, self.rotations, self.ce_stages, self.network,
            self.pool != "max", self.pool, self.setting,
        )  # fmt: skip


def all_stages(network: str) -> int:
    """How many stages a ResNet has."""
    digits = re.sub(r"\D", "", network)
    known = ARCHITECTURES.get(int(digits)) if digits else None
    return len(known.blocks) if known else 4


def by_variant(rows: Sequence[Row]) -> dict[Variant, list[Row]]:
    """Rows of one dataset grouped by what they have in common beside the seed.

    Args:
        rows: with ``model``, ``rotations``, ``lifting``, ``ce_stages``, ``augmentation`` and
            ``seed``. Those that were trained otherwise than in the paper, such as for fewer
            epochs, make a group of their own, whose ``setting`` says what differs; what all of
            them have in common, :func:`shared_setting`, is left out there.

    Returns:
        Groups in the order of the tables.

    Raises:
        ValueError: if a seed is there twice.

    Example:
        >>> row = {"model": "resnet18", "rotations": 1, "augmentation": "none", "original": 66.0}
        >>> [len(group) for group in by_variant([row | {"seed": 0}, row | {"seed": 1}]).values()]
        [2]
        >>> full, small = row | {"epochs": 200}, row | {"epochs": 200, "size": 64}
        >>> [variant.name for variant in by_variant([full, small, small | {"seed": 1}])]
        ['ResNet-18', 'ResNet-18 (64 pixels)']
    """
    groups: dict[Variant, list[Row]] = {}
    for row in rows:
        groups.setdefault(variant_of(row), []).append(row)
    shared, other_widths = common(rows), _other_widths(rows)
    split: dict[Variant, list[Row]] = {}
    for variant, group in groups.items():
        paper = None if other_widths else _paper_width(variant)
        width = most_common(group, "width") if paper is None else paper
        for row in group:
            own = {key: value for key, value in deviations(row).items() if key not in shared}
            if row.get("width") not in (None, width):
                own["width"] = row["width"]
            split.setdefault(variant._replace(setting=in_words(own)), []).append(row)
    for variant, group in split.items():
        for seed, count in Counter(row.get("seed") for row in group).items():
            if count > 1:
                raise ValueError(f"{count} rows of {variant.name} have the same seed, {seed}")
    return {variant: split[variant] for variant in sorted(split, key=lambda found: found.rank)}


def shared_setting(
    rows: Sequence[Row], *, beside_paper: bool = False, also: Sequence[str] = ()
) -> str:
    """How all rows were trained otherwise than in the paper, in words; it belongs in a title.

    Args:
        rows: of one dataset.
        beside_paper: with the paper's settings.
        also: settings to name even if they are the paper's.

    Example:
        >>> row = {"model": "resnet18", "dataset": "flowers102", "size": 64}
        >>> shared_setting([row]), shared_setting([row], beside_paper=True)
        ('64 pixels', '64 pixels instead of 224')
        >>> shared_setting([row, row | {"size": 224}])
        ''
        >>> shared_setting([row], also=["epochs"])
        '200 epochs, 64 pixels'
    """
    if not rows:
        return ""
    paper = paper_settings(rows[0].get("dataset", "")) if beside_paper else None
    named = {name: setting(rows[0], name) for name in also} | common(rows)
    widths = "other widths" if _other_widths(rows) else ""
    return ", ".join(filter(None, (in_words(named, instead_of=paper), widths)))


def _other_widths(rows: Sequence[Row]) -> bool:
    """Whether no network is as wide as the paper's; each of them has a width of its own."""
    pairs = [(row.get("width"), _paper_width(variant_of(row))) for row in rows]
    return all(None not in pair and pair[0] != pair[1] for pair in pairs)


def _paper_width(variant: Variant) -> int | None:
    """The channels of the first stage by the paper's rule; None if it is no ResNet of ours."""
    depth = re.fullmatch(r"resnet(\d+)", variant.network)
    if depth is None or int(depth[1]) not in ARCHITECTURES:
        return None
    return matched_widths(int(depth[1]), variant.rotations, variant.ce_stages)[0]


def variant_of(row: Row) -> Variant:
    """The network of a row and its augmentation, whatever else it was trained with."""
    model, rotations = row["model"], row.get("rotations") or 1
    network = model.removeprefix("ce_").removeprefix("ciconv_").removesuffix("-gray")
    augmentation, gray = row.get("augmentation") or "none", model.endswith("-gray")
    if rotations > 1:
        stages = row.get("ce_stages")
        stages = all_stages(network) if stages is None else stages
        lifting = row.get("lifting") or "rgb"
        pool = row.get("coset_pool") or "max"
        ce = Variant("ce", network, rotations, lifting, stages, augmentation)
        return ce._replace(pool=pool, gray=gray)
    kind = "baseline" if re.fullmatch(r"resnet\d+", network) else "other"
    kind = "ciconv" if model.startswith("ciconv_") else kind
    return Variant(kind, network, 1, "", 0, augmentation, gray=gray)


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
    """What a dataset is called in print."""
    return DATASETS[dataset].title if dataset in DATASETS else dataset


def figure_file(name: str, dataset: str) -> str:
    """The name of a figure's file; the paper's dataset goes without saying.

    Example:
        >>> figure_file("selectivity", "flowers102"), figure_file("selectivity", "mine")
        ('selectivity', 'selectivity-mine')
    """
    return name if dataset == PAPER_DATASET else f"{name}-{dataset}"
