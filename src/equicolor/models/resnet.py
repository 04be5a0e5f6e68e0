"""ResNets, plain, colour-equivariant and hybrid, from one implementation (paper, section 4.2)."""

import inspect
import itertools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor, nn

from equicolor import _checks
from equicolor.models import layers
from equicolor.models.layers import Layers, Normalize
from equicolor.models.registry import Network, register_model
from equicolor.models.widths import (
    ARCHITECTURES,
    Architecture,
    Width,
    block_convolutions,
    resolve_widths,
)
from equicolor.nn import _fused


class Block(nn.Module):
    """A residual block: two 3×3 convolutions, or 1×1, 3×3, 1×1 for a bottleneck.

    The shortcut's 1×1 convolution spans the group in full; those of a bottleneck are
    separable, as in the paper authors' networks.
    """

    def __init__(
        self, in_channels: int, width: int, stride: int, *, bottleneck: bool, layers: Layers
    ) -> None:
        super().__init__()
        convolutions = block_convolutions(in_channels, width, bottleneck)
        self.depth, self.out_channels = len(convolutions), convolutions[-1][1]
        for index, (inputs, outputs, kernel) in enumerate(convolutions, start=1):
            step = stride if index == self.depth - 1 else 1  # at the first 3×3 convolution
            conv = layers.conv(
                inputs, outputs, kernel, stride=step, padding=kernel // 2, bias=False
            )
            self.add_module(f"conv{index}", conv)
            self.add_module(f"bn{index}", layers.norm(outputs))
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != self.out_channels:
            full = layers._replace(separable=False)
            project = full.conv(in_channels, self.out_channels, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, layers.norm(self.out_channels))
        self.relu = nn.ReLU()
        self.followed = False  # whether the next layer is another equivariant block

    def forward(self, x: Tensor) -> Tensor:
        """Features, or feature maps of a plain network, to the same kind."""
        pairs: list[Any] = [
            (getattr(self, f"conv{index}"), getattr(self, f"bn{index}"))
            for index in range(1, self.depth + 1)
        ]
        if _fused.applies(self, x):
            shortcut: Any = tuple(self.shortcut) or None
            return _fused.residual_block(x, pairs, shortcut, followed=self.followed)
        y = x
        for index, (conv, norm) in enumerate(pairs, start=1):
            y = norm(conv(y))
            if index < self.depth:
                y = self.relu(y)
        return self.relu(y + self.shortcut(x))


def stem(images: Tensor, conv: Any, norm: Any, relu: nn.Module, pool: nn.Module) -> Tensor:
    """The first layers of a network, from images to features; ``pool`` may be the identity."""
    if _fused.stem_applies(images, conv, norm, relu, pool):
        return _fused.stem(images, conv, norm, pool=not isinstance(pool, nn.Identity))
    return pool(relu(norm(conv(images))))


class ResNet(Network):
    """A ResNet whose first ``ce_stages`` stages are equivariant; plain for a group of one.

    Takes images in [0, 1] and normalises them itself: per channel if plain, with one mean
    and standard deviation for all channels if equivariant, which commutes with both hue
    actions. State-dict names are those of the paper authors' code. The options are those of
    :func:`resnet18`.
    """

    in_channels = 3

    def __init__(
        self,
        architecture: Architecture,
        num_classes: int = 1000,
        *,
        rotations: int = 1,
        ce_stages: int | None = None,
        separable: bool = True,
        coset_pool: str | None = "max",
        width: Width = None,
        lifting: str = "rgb",
        normalize: bool = True,
        spatial: str = "p1",
    ) -> None:
        super().__init__()
        _checks.positive_int("num_classes", num_classes)
        for option, value in (("separable", separable), ("normalize", normalize)):
            if not isinstance(value, bool):
                raise TypeError(f"{option} must be True or False, got {value!r}")
        layers.check_group(rotations, lifting, coset_pool, spatial)
        equivariant, plain = Layers(rotations, lifting, separable, spatial), Layers()
        stages = len(architecture.blocks)
        self.ce_stages = _equivariant_stages(architecture, equivariant, ce_stages)
        if rotations == 1:
            harmless = "max" if equivariant.plain else coset_pool
            layers.check_plain(
                ce_stages=(ce_stages, None, self.ce_stages),
                separable=(separable, True),
                coset_pool=(coset_pool, harmless),
                lifting=(lifting, "rgb"),
            )
        layers.check_hybrid("ce_stages", self.ce_stages, stages, coset_pool, spatial)
        group = rotations, self.ce_stages, separable, spatial
        widths = resolve_widths(architecture, width, *group)
        self.resolved = {"ce_stages": self.ce_stages, "width": widths}
        self.image_size = _image_size(architecture, spatial)
        mean, std = layers.IMAGENET if rotations == 1 else layers.SCALAR
        self.normalize: nn.Module = Normalize(mean, std) if normalize else nn.Identity()
        channels = widths[0]
        # Padding 1 for the 7×7 stem is what the released checkpoints were trained with.
        kernel, stride = (3, 1) if architecture.small_images else (7, 2)
        self.conv1 = equivariant.lift(
            self.in_channels, channels, kernel, stride=stride, padding=1, bias=False
        )
        self.bn1 = equivariant.norm(channels)
        self.relu = nn.ReLU()
        pools = not architecture.small_images
        self.max_pool: nn.Module = equivariant.max_pool(3, 2, 1) if pools else nn.Identity()
        self.layers = nn.ModuleList()
        for stage, (count, width) in enumerate(zip(architecture.blocks, widths, strict=True)):
            blocks = nn.Sequential()
            for index in range(count):
                block = Block(
                    channels,
                    width,
                    stride=2 if stage and not index else 1,
                    bottleneck=architecture.bottleneck,
                    layers=equivariant if stage < self.ce_stages else plain,
                )
                blocks.append(block)
                channels = block.out_channels
            self.layers.append(blocks)
        blocks_of_stages: list[Any] = [*self.layers[: self.ce_stages]]
        for block in [block for stage in blocks_of_stages for block in stage][:-1]:
            block.followed = True
        self.coset_pool = equivariant.coset_pool(coset_pool)
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(channels * (rotations if coset_pool is None else 1), num_classes)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], *args: Any) -> None:
        super()._load_from_state_dict(state_dict, *args)
        if isinstance(self.normalize, Normalize):
            self.normalize.leave_meta(state_dict)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in [0, 1] to logits ``[B, num_classes]``."""
        x = stem(self.normalize(images), self.conv1, self.bn1, self.relu, self.max_pool)
        for stage, blocks in enumerate(self.layers, start=1):
            x = blocks(x)
            if stage == self.ce_stages:
                fused = _fused.pool_applies(self.coset_pool, x)
                x = _fused.coset_max(x) if fused else self.coset_pool(x)
        return self.linear(self.avg_pool(x).flatten(1))


def _image_size(architecture: Architecture, spatial: str) -> int:
    """The size of the images that a network is designed for.

    With a spatial group, it is the next size at which every layer with a stride treats both
    borders alike. Such a layer maps 2h - 1 pixels to h; the stem, with 7×7 filters and a padding
    of 1, maps 2h + 3 pixels to h.
    """
    small = architecture.small_images
    usual, halvings = (32, 2) if small else (224, 4)
    if spatial == "p1":
        return usual
    sizes = ((last << halvings) + 1 for last in itertools.count())
    return next(size for size in (h if small else 2 * h + 3 for h in sizes) if size >= usual)


def _equivariant_stages(architecture: Architecture, layers: Layers, ce_stages: int | None) -> int:
    """How many stages are equivariant: all by default, none for a group of one."""
    stages, rotations = len(architecture.blocks), layers.rotations
    if isinstance(ce_stages, bool) or not isinstance(ce_stages, int | None):
        raise TypeError(f"ce_stages must be None or an int, got {ce_stages!r}")
    if rotations > 1 and ce_stages == 0:
        raise ValueError(
            f"ce_stages=0 leaves no stage for rotations={rotations}: take 1 to {stages} "
            f"stages, or the plain network, {architecture.name} without rotations"
        )
    if layers.plain:
        return 0
    return stages if ce_stages is None else ce_stages


P = ParamSpec("P")
N = TypeVar("N", bound=ResNet)


def resnet_builder(
    name: str, network: Callable[Concatenate[Architecture, P], N], documentation: str
) -> Callable[P, N]:
    """Register the builder of a network; its depth and defaults follow from its name."""
    depth = int(name.partition("resnet")[2])
    architecture = ARCHITECTURES[depth]
    defaults = {"num_classes": architecture.reference_classes}
    if name.startswith("ce_"):
        defaults["rotations"] = 3
    signature = inspect.signature(network)
    _, *parameters = signature.parameters.values()
    build_signature = signature.replace(
        parameters=[p.replace(default=defaults.get(p.name, p.default)) for p in parameters],
        return_annotation=network,
    )

    def build(*args: P.args, **kwargs: P.kwargs) -> N:
        if name.startswith("ce_") and kwargs["rotations"] == 1:
            raise ValueError(
                f"{name} is equivariant, rotations=1 is not: take {architecture.name}, or "
                "rotations above 1, such as 6"
            )
        return network(architecture, *args, **kwargs)

    build.__name__ = build.__qualname__ = name
    build.__module__ = network.__module__
    build.__doc__ = documentation.format(depth=depth, name=name, stages=len(architecture.blocks))
    build.__signature__ = build_signature  # type: ignore[attr-defined]
    return register_model(build)


_DOCUMENTATION = """ResNet-{depth}: plain for one rotation, colour-equivariant for more.

    Args:
        num_classes: outputs.
        rotations: hues of the equivariant stages; 1 is a plain network, which refuses the
            options of equivariant stages and a name that begins with ``ce_``.
        ce_stages: equivariant stages, counted from the input; None means all {stages}.
        separable: whether equivariant filters are the product of a spatial and a hue part.
        coset_pool: ``"max"`` or ``"avg"`` over the hues where the equivariant stages end;
            None (full networks only) keeps the hues apart for the classifier.
        width: None takes the widths that match the parameters of the plain network,
            ``"fast"`` rounds them to suit tensor cores; an int is the width of the first
            stage, doubled from stage to stage; a sequence gives every stage.
        lifting: ``"rgb"`` (the paper) or ``"hsv"`` (exact for HSV hue shifts).
        normalize: take images in [0, 1] and normalise them inside.
        spatial: ``"p4"`` makes the network invariant to quarter turns, ``"p4m"`` also to mirror
            images, with any number of rotations; all stages are equivariant then. It is exact for
            images of its ``image_size``, see docs/space.md.

    Returns:
        A network from images ``[B, 3, H, W]`` to logits ``[B, num_classes]``.

    Example:
        >>> import torch
        >>> from equicolor.models import {name}
        >>> {name}(10, rotations=3, width=4)(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

resnet18 = resnet_builder("resnet18", ResNet, _DOCUMENTATION)
resnet34 = resnet_builder("resnet34", ResNet, _DOCUMENTATION)
resnet44 = resnet_builder("resnet44", ResNet, _DOCUMENTATION)
resnet50 = resnet_builder("resnet50", ResNet, _DOCUMENTATION)
resnet101 = resnet_builder("resnet101", ResNet, _DOCUMENTATION)
resnet152 = resnet_builder("resnet152", ResNet, _DOCUMENTATION)
ce_resnet18 = resnet_builder("ce_resnet18", ResNet, _DOCUMENTATION)
ce_resnet34 = resnet_builder("ce_resnet34", ResNet, _DOCUMENTATION)
ce_resnet44 = resnet_builder("ce_resnet44", ResNet, _DOCUMENTATION)
ce_resnet50 = resnet_builder("ce_resnet50", ResNet, _DOCUMENTATION)
ce_resnet101 = resnet_builder("ce_resnet101", ResNet, _DOCUMENTATION)
ce_resnet152 = resnet_builder("ce_resnet152", ResNet, _DOCUMENTATION)
