"""ResNets, plain, colour-equivariant and hybrid, from one implementation (paper, section 4.2)."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from equicolor import _checks
from equicolor.models import layers, widths
from equicolor.models.registry import Network, register_model
from equicolor.nn import _fused


class Architecture(NamedTuple):
    """What tells one ResNet from another."""

    blocks: tuple[int, ...]  # per stage
    bottleneck: bool
    base_width: int  # of the plain network's first stage
    small_images: bool  # 3×3 stem without pooling, for CIFAR
    reference_classes: int  # the head that parameter counts are matched with


ARCHITECTURES = {
    18: Architecture((2, 2, 2, 2), False, 64, False, 1000),
    34: Architecture((3, 4, 6, 3), False, 64, False, 1000),
    44: Architecture((7, 7, 7), False, 32, True, 10),
    50: Architecture((3, 4, 6, 3), True, 64, False, 1000),
    101: Architecture((3, 4, 23, 3), True, 64, False, 1000),
    152: Architecture((3, 8, 36, 3), True, 64, False, 1000),
}


class Block(nn.Module):
    """A residual block: two 3×3 convolutions, or 1×1, 3×3, 1×1 for a bottleneck.

    The shortcut's 1×1 convolution spans the group in full; those of a bottleneck are
    separable, as in the paper authors' networks.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int,
        *,
        bottleneck: bool,
        rotations: int,
        separable: bool,
    ) -> None:
        super().__init__()
        out_channels = width * expansion(bottleneck)
        kernels = block_kernels(bottleneck)
        channels = in_channels
        for index, kernel in enumerate(kernels, start=1):
            out = out_channels if index == len(kernels) else width
            conv = layers.conv(
                channels,
                out,
                kernel,
                stride=stride if index == kernels.index(3) + 1 else 1,
                padding=kernel // 2,
                bias=False,
                rotations=rotations,
                separable=separable,
            )
            self.add_module(f"conv{index}", conv)
            self.add_module(f"bn{index}", layers.norm(out, rotations=rotations))
            channels = out
        self.depth = len(kernels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            project = layers.conv(
                in_channels,
                out_channels,
                1,
                stride=stride,
                bias=False,
                rotations=rotations,
                separable=False,
            )
            self.shortcut = nn.Sequential(project, layers.norm(out_channels, rotations=rotations))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Features, or images' feature maps, to the same kind."""
        pairs: list[Any] = [
            (getattr(self, f"conv{index}"), getattr(self, f"bn{index}"))
            for index in range(1, self.depth + 1)
        ]
        if _fused.applies(self, x):
            shortcut: Any = tuple(self.shortcut) or None
            return _fused.residual_block(x, pairs, shortcut)
        y = x
        for index, (conv, norm) in enumerate(pairs, start=1):
            y = norm(conv(y))
            if index < self.depth:
                y = self.relu(y)
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


def block_kernels(bottleneck: bool) -> tuple[int, ...]:
    """Kernel sizes of a block; the first 3×3 convolution has the stride."""
    return (1, 3, 1) if bottleneck else (3, 3)


def expansion(bottleneck: bool) -> int:
    """Output channels of a block over its width."""
    return 4 if bottleneck else 1


class ResNet(Network):
    """A ResNet whose first ``ce_stages`` stages are colour-equivariant.

    Takes images in [0, 1] and normalises them itself: per channel if plain, with one mean
    and standard deviation for all channels if equivariant, which commutes with both hue
    actions. State-dict names are those of the paper authors' code.

    Args:
        architecture: blocks, stem and base width.
        num_classes: outputs.
        stage_widths: channels of every stage.
        rotations, lifting, separable: of the equivariant layers.
        ce_stages: how many stages are equivariant, 0 for a plain network.
        coset_pool: ``"max"``, ``"avg"`` or None; see :class:`equicolor.models.z2cnn.Z2CNN`.
        normalize: whether to normalise the images.
        in_channels: 3, or what a layer before a plain network makes of the images.
    """

    def __init__(
        self,
        architecture: Architecture,
        num_classes: int,
        *,
        stage_widths: Sequence[int],
        rotations: int,
        ce_stages: int,
        separable: bool,
        coset_pool: str | None,
        lifting: str,
        normalize: bool,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        self.ce_stages = ce_stages
        self.image_size = 32 if architecture.small_images else 224
        bottleneck = architecture.bottleneck
        self.normalize: nn.Module = nn.Identity()
        if normalize and ce_stages:
            self.normalize = layers.Normalize(layers.SCALAR_MEAN, layers.SCALAR_STD)
        elif normalize:
            self.normalize = layers.Normalize(layers.IMAGENET_MEAN, layers.IMAGENET_STD)
        stem_rotations = rotations if ce_stages else 1
        # Padding 1 for the 7×7 stem is what the released checkpoints were trained with.
        kernel, stride = (3, 1) if architecture.small_images else (7, 2)
        self.conv1 = layers.lift(
            stage_widths[0],
            kernel,
            stride=stride,
            padding=1,
            bias=False,
            rotations=stem_rotations,
            lifting=lifting,
            in_channels=in_channels,
        )
        self.bn1 = layers.norm(stage_widths[0], rotations=stem_rotations)
        self.relu = nn.ReLU()
        self.max_pool: nn.Module = nn.Identity()
        if not architecture.small_images:
            self.max_pool = layers.max_pool(3, 2, 1, rotations=stem_rotations)
        stages, channels = [], stage_widths[0]
        for stage, (count, width) in enumerate(zip(architecture.blocks, stage_widths, strict=True)):
            n = rotations if stage < ce_stages else 1
            blocks = []
            for index in range(count):
                step = 2 if stage and not index else 1
                block = Block(
                    channels, width, step, bottleneck=bottleneck, rotations=n, separable=separable
                )
                channels = width * expansion(bottleneck)
                blocks.append(block)
            stages.append(nn.Sequential(*blocks))
        self.layers = nn.ModuleList(stages)
        self.coset_pool = layers.coset_pool(coset_pool) if ce_stages else nn.Identity()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        flat = ce_stages == len(stages) and coset_pool is None
        self.linear = nn.Linear(channels * (rotations if flat else 1), num_classes)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], *args: Any) -> None:
        super()._load_from_state_dict(state_dict, *args)
        if isinstance(self.normalize, layers.Normalize):
            self.normalize.follow(state_dict)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in [0, 1] to logits ``[B, num_classes]``."""
        x = self._stem(self.normalize(images))
        for stage, blocks in enumerate(self.layers, start=1):
            x = blocks(x)
            if stage == self.ce_stages:
                x = self.coset_pool(x)
        logits: Tensor = self.linear(self.avg_pool(x).flatten(1))
        return logits

    def _stem(self, images: Tensor) -> Tensor:
        conv: Any = self.conv1
        norm: Any = self.bn1
        if _fused.stem_applies(images, conv, norm, self.relu, self.max_pool):
            pool = not isinstance(self.max_pool, nn.Identity)
            return _fused.stem(images, conv, norm, pool=pool)
        features: Tensor = self.max_pool(self.relu(norm(conv(images))))
        return features


def _count(
    depth: int, stage_widths: Sequence[int], rotations: int, ce_stages: int, separable: bool
) -> int:
    """Parameters of a pooled network with the reference head, without building it."""
    blocks, bottleneck, _, small_images, classes = ARCHITECTURES[depth]
    kernels, channels = block_kernels(bottleneck), stage_widths[0]
    total = _conv_parameters(3, channels, 3 if small_images else 7, 1, separable)
    for stage, (count, width) in enumerate(zip(blocks, stage_widths, strict=True)):
        n = rotations if stage < ce_stages else 1
        out = width * expansion(bottleneck)
        through = [width] * (len(kernels) - 1)
        if stage or channels != out:
            total += _conv_parameters(channels, out, 1, n, False)
        for inputs in (channels, *[out] * (count - 1)):
            chain = zip((inputs, *through), (*through, out), kernels, strict=True)
            total += sum(_conv_parameters(i, o, kernel, n, separable) for i, o, kernel in chain)
        channels = out
    return total + channels * classes + classes


def _conv_parameters(
    inputs: int, outputs: int, kernel: int, rotations: int, separable: bool
) -> int:
    """Parameters of a convolution without bias and of the batch norm after it."""
    taps = kernel**2
    if rotations > 1:
        taps = taps + rotations if separable else taps * rotations
    return inputs * outputs * taps + 2 * outputs


@functools.cache
def matched_widths(
    depth: int, rotations: int, ce_stages: int, separable: bool = True
) -> tuple[int, ...]:
    """Stage widths at which an equivariant ResNet has about the plain one's parameters.

    They depend on the architecture alone, not on the number of classes, so that trained
    stages fit whatever the head.

    Args:
        depth: 18, 34, 44, 50, 101 or 152.
        rotations: the order n of the group.
        ce_stages: equivariant stages.
        separable: whether the filters are.

    Example:
        >>> matched_widths(18, 3, 4), matched_widths(18, 3, 2)
        ((55, 110, 221, 443), (63, 126, 252, 504))
    """
    if depth not in ARCHITECTURES:
        depths = ", ".join(map(str, ARCHITECTURES))
        raise ValueError(f"depth must be one of {depths}; got {depth!r}")
    architecture = ARCHITECTURES[depth]
    if not 0 <= ce_stages <= len(architecture.blocks):
        raise ValueError(
            f"ce_stages lies between 0 and {len(architecture.blocks)}, got {ce_stages}"
        )
    stages, base = len(architecture.blocks), architecture.base_width
    plain = widths.doubled(base, stages)
    if ce_stages == 0 or rotations == 1:
        return tuple(plain)
    if ce_stages == stages and not architecture.bottleneck:
        return tuple(widths.scaled(plain, rotations, separable=separable))

    def count(candidate: Sequence[int]) -> int:
        return _count(depth, candidate, rotations, ce_stages, separable)

    target = _count(depth, plain, 1, 0, separable)
    if ce_stages == stages:
        return tuple(
            widths.nearest_scaled(count, target, base, stages, rotations, separable=separable)
        )
    return tuple(widths.largest_within(count, target, stages))


def resolve_widths(
    depth: int,
    width: int | str | Sequence[int] | None,
    *,
    rotations: int,
    ce_stages: int,
    separable: bool = True,
) -> tuple[int, ...]:
    """The ``width`` argument of the builders as one width a stage.

    Example:
        >>> resolve_widths(18, 4, rotations=1, ce_stages=0)
        (4, 8, 16, 32)
    """
    stages = len(ARCHITECTURES[depth].blocks)
    if width is None:
        return matched_widths(depth, rotations, ce_stages, separable)
    if width == "fast":
        matched = matched_widths(depth, rotations, ce_stages, separable)
        how = rotations, ce_stages, separable
        return tuple(widths.friendly(matched, lambda candidate: _count(depth, candidate, *how)))
    if isinstance(width, str):
        raise ValueError(f"width must be None, 'fast', an int or one int a stage; got {width!r}")
    if isinstance(width, Sequence):
        if len(width) != stages:
            raise ValueError(f"width needs {stages} numbers, one a stage; got {list(width)}")
        return tuple(
            _checks.positive_int("width", value, at_most=_checks.MOST["width"]) for value in width
        )
    return tuple(
        widths.doubled(_checks.positive_int("width", width, at_most=_checks.MOST["width"]), stages)
    )


class ResNetBuilder(Protocol):
    """The signature of ``resnet18`` and its siblings."""

    def __call__(
        self,
        num_classes: int = ...,
        *,
        rotations: int = ...,
        ce_stages: int | None = None,
        separable: bool = True,
        coset_pool: str | None = "max",
        width: int | str | Sequence[int] | None = None,
        lifting: str = "rgb",
        normalize: bool = True,
    ) -> ResNet:
        """Build the network."""
        ...


def _builder(name: str, depth: int, default_rotations: int) -> ResNetBuilder:
    """A builder of one depth; ``ce_`` names differ from plain ones in their default alone."""
    architecture = ARCHITECTURES[depth]
    stages = len(architecture.blocks)

    def build(
        num_classes: int = architecture.reference_classes,
        *,
        rotations: int = default_rotations,
        ce_stages: int | None = None,
        separable: bool = True,
        coset_pool: str | None = "max",
        width: int | str | Sequence[int] | None = None,
        lifting: str = "rgb",
        normalize: bool = True,
    ) -> ResNet:
        _checks.positive_int("num_classes", num_classes, at_most=_checks.MOST["num_classes"])
        layers.check_group(rotations, lifting, coset_pool)
        if isinstance(ce_stages, bool) or not isinstance(ce_stages, int | None):
            raise TypeError(f"ce_stages must be None or an int, got {ce_stages!r}")
        if not 0 <= (ce_stages or 0) <= stages:
            raise ValueError(f"ce_stages of {name} lies between 0 and {stages}, got {ce_stages}")
        plain = name.removeprefix("ce_")
        if rotations > 1 and ce_stages == 0:
            raise ValueError(
                f"ce_stages=0 leaves no stage for rotations={rotations}: take 1 to {stages} "
                f"stages, or the plain network, {plain} without rotations"
            )
        if rotations == 1 and name != plain:
            raise ValueError(
                f"{name} is equivariant, rotations=1 is not: take {plain}, or rotations above 1, "
                "such as 6"
            )
        if rotations == 1:
            layers.check_plain(
                ce_stages=(ce_stages, None, 0),
                separable=(separable, True),
                coset_pool=(coset_pool, "max"),
                lifting=(lifting, "rgb"),
            )
            ce_stages = 0
        elif ce_stages is None:
            ce_stages = stages
        if coset_pool is None and 0 < ce_stages < stages:
            raise ValueError(
                f"a hybrid network (ce_stages={ce_stages} of {stages}) pools over its hues: "
                "coset_pool must be 'max' or 'avg', got None"
            )
        stage_widths = resolve_widths(
            depth, width, rotations=rotations, ce_stages=ce_stages, separable=separable
        )
        model = ResNet(
            architecture,
            num_classes,
            stage_widths=stage_widths,
            rotations=rotations,
            ce_stages=ce_stages,
            separable=separable,
            coset_pool=coset_pool,
            lifting=lifting,
            normalize=normalize,
        )
        model.resolved = {
            "rotations": rotations,
            "ce_stages": ce_stages,
            "width": list(stage_widths),
        }
        return model

    build.__name__ = build.__qualname__ = name
    build.__module__ = __name__
    build.__doc__ = _DOCUMENTATION.format(depth=depth, name=name, stages=stages)
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
        width: None matches the parameters of the plain network by the paper's rule,
            ``"fast"`` rounds that to what tensor cores like; an int is the width of the first
            stage, doubled from stage to stage; a sequence gives every stage.
        lifting: ``"rgb"`` (the paper) or ``"hsv"`` (exact for HSV hue shifts).
        normalize: take images in [0, 1] and normalise them inside.

    Returns:
        A network from images ``[B, 3, H, W]`` to logits ``[B, num_classes]``.

    Example:
        >>> import torch
        >>> from equicolor.models import {name}
        >>> {name}(10, rotations=3, width=4)(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

resnet18 = _builder("resnet18", 18, 1)
resnet34 = _builder("resnet34", 34, 1)
resnet44 = _builder("resnet44", 44, 1)
resnet50 = _builder("resnet50", 50, 1)
resnet101 = _builder("resnet101", 101, 1)
resnet152 = _builder("resnet152", 152, 1)
ce_resnet18 = _builder("ce_resnet18", 18, 3)
ce_resnet34 = _builder("ce_resnet34", 34, 3)
ce_resnet44 = _builder("ce_resnet44", 44, 3)
ce_resnet50 = _builder("ce_resnet50", 50, 3)
ce_resnet101 = _builder("ce_resnet101", 101, 3)
ce_resnet152 = _builder("ce_resnet152", 152, 3)
