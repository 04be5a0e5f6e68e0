"""Rows of trained networks, grouped by network and training; names and styles of the groups."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from equicolor.data.datasets import DATASETS
from equicolor.models.widths import ARCHITECTURES, matched_widths
from equicolor.paper.rows import common, deviations, in_words, paper_settings, setting
from equicolor.results import Row

PAPER_DATASET = "flowers102"  # of the paper's figures and ablations
AUGMENTATIONS = ("none", "jitter 0.5", "augmix")  # the paper's, in its order
REDRAWN = "data drawn for every seed"
_AUGMENTATION_NAMES = {"jitter 0.5": "jitter", "augmix": "AugMix", "js": "JS loss"}
_POOL_NAMES = {"max": [], "avg": ["average pooling"], "none": ["flattened"]}
_KINDS = ("baseline", "ciconv", "ce", "other")  # in the order of the tables
# Name, colour and marker of the networks of ColorMNIST, in the paper's order.
TOY_NETWORKS = {
    "z2cnn": ("Z2CNN", "#d55e00", "s"),
    "z2cnn-gray": ("Z2CNN, grey input", "#7a7a7a", "v"),
    "cecnn": ("CECNN", "#0072b2", "o"),
    "cecnn-pooled": ("CECNN, coset pooling", "#009e73", "D"),
    "cecnn-2": ("CECNN, 2 layers", "#e69f00", "^"),
    "cecnn-4": ("CECNN, 4 layers", "#cc79a7", "P"),
    "cecnn-hsv6": ("CECNN, HSV, n = 6", "#56b4e9", "h"),
    "cecnn-hsv6-pooled": ("CECNN, HSV, n = 6, coset pooling", "#0072b2", "o"),
    "cecnn-hsv12": ("CECNN, HSV, n = 12", "#000000", "X"),
}
_LOOKS: dict[object, tuple[str, str]] = {
    "baseline": ("#d55e00", "s"),
    "ciconv": ("#e69f00", "^"),
    "other": ("#a65628", "p"),
    # Equivariant networks: by lifting and rotations if all stages are, else by the stages.
    ("rgb", 3): ("#0072b2", "o"),
    ("rgb", 6): ("#5e4fa2", "d"),
    ("rgb", 12): ("#c2185b", "*"),
    ("hsv", 3): ("#cc79a7", "h"),
    ("hsv", 6): ("#009e73", "D"),
    ("hsv", 12): ("#000000", "X"),
    1: ("#56b4e9", "<"),
    2: ("#3a9bdc", ">"),
    3: ("#2a5d8f", "P"),
}
_DASHES = {"none": "-", "jitter 0.5": "--", "augmix": ":", "weighted loss": ":"}


class Variant(NamedTuple):
    """A network and how it was trained, whatever the seed.

    Example:
        >>> Variant("ce", "resnet18", 12, "hsv", 4, "jitter 0.5").name
        'CE-ResNet-18 (HSV, n = 12) + jitter'
        >>> Variant("ce", "resnet44", 3, "rgb", 2).name, Variant("other", "cecnn-2").name
        ('CE-ResNet-44-2', 'CECNN, 2 layers')
    """

    kind: str  # "baseline", "ciconv" and "ce" are ResNets; "other" is any network
    network: str  # the plain architecture, such as "resnet18"
    # Of equivariant ResNets.
    rotations: int = 1
    lifting: str = ""
    ce_stages: int = 0
    augmentation: str = "none"  # as in the rows; several are joined by plus signs
    # How its training differs from the paper's and from other rows, in words.
    setting: str = ""
    pool: str = "max"  # how the rotations are pooled: "max", "avg" or "none" (flattened)
    gray: bool = False  # whether it sees only the mean of the channels
    redrawn: bool = False  # whether its ColorMNIST was drawn for every seed
    spatial: str = "p1"  # "p4" or "p4m" if turns or mirror images do not matter to it

    @property
    def full(self) -> bool:
        """Whether all stages are equivariant."""
        return self.ce_stages == all_stages(self.network)

    @property
    def in_paper(self) -> bool:
        """Whether the paper has networks of this kind."""
        if self.gray or self.spatial != "p1":
            return False
        if self.kind == "ce":
            return (self.rotations, self.lifting, self.pool) == (3, "rgb", "max")
        return self.kind in ("baseline", "ciconv")

    @property
    def network_name(self) -> str:
        """The network for legends and tables."""
        if self.network in TOY_NETWORKS:
            return TOY_NETWORKS[self.network][0]
        title = re.sub(r"^resnet(\d+)$", r"ResNet-\1", self.network)
        special = []
        if self.kind == "ciconv":
            title = f"CIConv-W {title}"
        elif self.kind == "ce":
            title = f"CE-{title}" + ("" if self.full else f"-{self.ce_stages}")
            if (self.rotations, self.lifting) != (3, "rgb"):
                special = [self.lifting.upper(), f"n = {self.rotations}"]
            special += _POOL_NAMES[self.pool]
        special += [self.spatial] * (self.spatial != "p1") + ["grey input"] * self.gray
        return title + (f" ({', '.join(special)})" if special else "")

    @property
    def circumstances(self) -> list[str]:
        """What sets its training and data apart from other rows, in words."""
        return [self.setting] * bool(self.setting) + [REDRAWN] * self.redrawn

    @property
    def name(self) -> str:
        """The network, its augmentation and its circumstances, for legends and tables."""
        parts = [] if self.augmentation == "none" else self.augmentation.split(" + ")
        names = [self.network_name, *(_AUGMENTATION_NAMES.get(part, part) for part in parts)]
        aside = f" ({', '.join(self.circumstances)})" if self.circumstances else ""
        return " + ".join(names) + aside

    @property
    def rank(self) -> tuple[Any, ...]:
        """Its place in the tables: by augmentation, then the paper's networks before ours."""
        augmentation = [*AUGMENTATIONS, self.augmentation].index(self.augmentation)
        return (
            augmentation, self.augmentation, not self.in_paper, self.gray,
            _KINDS.index(self.kind), self.lifting, self.rotations, self.ce_stages, self.network,
            self.pool != "max", self.pool, self.spatial, self.setting,
        )  # fmt: skip


def style(variant: Variant) -> dict[str, Any]:
    """Colour and marker for the network, grey for grey input, dashes for the augmentation."""
    look: object = variant.kind
    if variant.kind == "ce":
        look = (variant.lifting, variant.rotations) if variant.full else variant.ce_stages
    color, marker = _LOOKS.get(look, _LOOKS["other"])
    if variant.network in TOY_NETWORKS:
        _, color, marker = TOY_NETWORKS[variant.network]
    if variant.gray:
        color, marker = "#7a7a7a", "v" if variant.kind == "baseline" else marker
    return {
        "color": color,
        "marker": marker,
        "linestyle": _DASHES.get(variant.augmentation, "-."),
        "markerfacecolor": color if variant.augmentation == "none" else "white",
    }


def all_stages(network: str) -> int:
    """The number of stages of a ResNet."""
    digits = re.sub(r"\D", "", network)
    known = ARCHITECTURES.get(int(digits)) if digits else None
    return len(known.blocks) if known else 4


def by_variant(rows: Sequence[Row]) -> dict[Variant, list[Row]]:
    """Rows of one dataset of images, grouped by all but the seed, in the order of the tables.

    Rows whose training differs from the paper's, such as fewer epochs, are a group of their own,
    whose ``setting`` says what differs. Differences that all rows share are left out there: see
    :func:`shared_setting`. Two rows of a group with the same seed are refused.
    """
    groups: dict[Variant, list[Row]] = {}
    for row in rows:
        groups.setdefault(variant_of(row), []).append(row)
    shared, other_widths = common(rows), _other_widths(rows)
    split: dict[Variant, list[Row]] = {}
    for variant, group in groups.items():
        width = None if other_widths else _paper_width(variant)
        if width is None:
            widths = [row["width"] for row in group if row.get("width") is not None]
            width = max(widths, key=widths.count, default=None)
        for row in group:
            settings = {key: value for key, value in deviations(row).items() if key not in shared}
            if row.get("width") not in (None, width):
                settings["width"] = row["width"]
            split.setdefault(variant._replace(setting=in_words(settings)), []).append(row)
    for variant, group in split.items():
        for seed, count in Counter(row.get("seed") for row in group).items():
            if count > 1:
                raise ValueError(f"{count} rows of {variant.name} have the same seed, {seed}")
    return {variant: split[variant] for variant in sorted(split, key=lambda variant: variant.rank)}


def shared_setting(
    rows: Sequence[Row], *, beside_paper: bool = False, always: Sequence[str] = ()
) -> str:
    """How the training of all rows of a dataset differs from the paper's, in words for a title.

    With ``beside_paper``, the paper's settings stand beside them. The settings in ``always`` are
    named even if they are the paper's.
    """
    if not rows:
        return ""
    paper = paper_settings(rows[0].get("dataset", "")) if beside_paper else None
    named = {name: setting(rows[0], name) for name in always} | common(rows)
    widths = "other widths" if _other_widths(rows) else ""
    return ", ".join(filter(None, (in_words(named, instead_of=paper), widths)))


def _other_widths(rows: Sequence[Row]) -> bool:
    """Whether every row has a width, and it differs from the paper's."""
    pairs = [(row.get("width"), _paper_width(variant_of(row))) for row in rows]
    return all(None not in pair and pair[0] != pair[1] for pair in pairs)


def _paper_width(variant: Variant) -> int | None:
    """The channels of the first stage by the paper's rule; None if it is not one of our ResNets."""
    depth = re.fullmatch(r"resnet(\d+)", variant.network)
    if depth is None or int(depth[1]) not in ARCHITECTURES:
        return None
    stages = variant.ce_stages if variant.spatial == "p1" else all_stages(variant.network)
    group = variant.rotations, stages
    return matched_widths(int(depth[1]), *group, spatial=variant.spatial)[0]


def variant_of(row: Row) -> Variant:
    """The network of a row and its augmentation, without its other settings."""
    model, rotations = row["model"], row.get("rotations") or 1
    network = model.removeprefix("ce_").removeprefix("ciconv_").removesuffix("-gray")
    kind = "baseline" if re.fullmatch(r"resnet\d+", network) else "other"
    variant = Variant(
        "ciconv" if model.startswith("ciconv_") else kind,
        network,
        augmentation=row.get("augmentation") or "none",
        gray=model.endswith("-gray"),
        spatial=row.get("spatial") or "p1",
    )
    if rotations == 1:
        return variant
    stages = row.get("ce_stages")
    return variant._replace(
        kind="ce",
        rotations=rotations,
        lifting=row.get("lifting") or "rgb",
        ce_stages=all_stages(network) if stages is None else stages,
        pool=row.get("coset_pool") or "max",
    )


def datasets_of(rows: Sequence[Row]) -> list[str]:
    """The datasets that rows are about, in the order of the list of datasets."""
    names = dict.fromkeys(row["dataset"] for row in rows)
    return sorted(names, key=lambda name: [*DATASETS, name].index(name))


def dataset_title(dataset: str) -> str:
    """What a dataset is called in print."""
    return DATASETS[dataset].title if dataset in DATASETS else dataset


def figure_file(name: str, dataset: str) -> str:
    """The name of a figure's file; the paper's dataset is left out."""
    return name if dataset == PAPER_DATASET else f"{name}-{dataset}"
