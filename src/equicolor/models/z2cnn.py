"""The seven-layer networks of the paper's toy experiments (section 4.1)."""

from torch import Tensor, nn

from equicolor import _checks
from equicolor.models import layers
from equicolor.models.layers import Layers
from equicolor.models.registry import Network, register_model

DEPTH = 7
DROPPING = (0, 2, 3, 4)  # layers with dropout behind them, as in the paper authors' code


class Z2CNN(Network):
    """Seven convolutions for 28×28 images, the first ``ce_layers`` of them equivariant.

    Every layer is convolution, batch norm and ReLU; dropout follows the first, third, fourth
    and fifth, 2×2 max pooling the second. The last convolution is 4×4 and leaves one pixel.
    Images are taken as they are. The options are those of :func:`cecnn`.
    """

    image_size = 28

    def __init__(
        self,
        num_classes: int,
        *,
        width: int,
        dropout: float,
        rotations: int = 1,
        ce_layers: int = 0,
        coset_pool: str | None = None,
        lifting: str = "rgb",
        spatial: str = "p1",
    ) -> None:
        super().__init__()
        _checks.positive_int("num_classes", num_classes)
        _checks.positive_int("width", width)
        layers.check_group(rotations, lifting, coset_pool, spatial)
        equivariant = Layers(rotations, lifting, spatial=spatial)
        if not 0 <= ce_layers <= DEPTH:
            raise ValueError(f"ce_layers must lie between 0 and {DEPTH}, got {ce_layers}")
        if not (isinstance(dropout, (int, float)) and 0 <= dropout < 1):
            raise ValueError(f"dropout must be a float from 0 to below 1, got {dropout!r}")
        self.ce_layers = 0 if equivariant.plain else ce_layers
        layers.check_hybrid("ce_layers", self.ce_layers, DEPTH, coset_pool, spatial)
        if rotations == 1:
            harmless = None if equivariant.plain else coset_pool
            layers.check_plain(
                ce_layers=(ce_layers, 0, DEPTH),
                coset_pool=(coset_pool, harmless),
                lifting=(lifting, "rgb"),
            )
        self.blocks = nn.ModuleList()
        for index in range(DEPTH):
            kind = equivariant if index < self.ce_layers else Layers()
            kernel = 4 if index == DEPTH - 1 else 3
            conv = kind.conv(width, width, kernel) if index else kind.lift(3, width, kernel)
            block = nn.Sequential(conv, kind.norm(width), nn.ReLU())
            if index in DROPPING:
                block.append(kind.dropout(dropout))
            if index == 1:
                block.append(kind.max_pool(2, 2))
            self.blocks.append(block)
        self.coset_pool = equivariant.coset_pool(coset_pool) if self.ce_layers else nn.Identity()
        flat = self.ce_layers == DEPTH and coset_pool is None
        self.classifier = nn.Linear(width * (rotations if flat else 1), num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, 28, 28]`` to logits ``[B, num_classes]``."""
        x = images
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == self.ce_layers - 1:
                x = self.coset_pool(x)
        return self.classifier(x.flatten(1))

    def reference_key(self, key: str) -> str:
        """The name of a state-dict entry in the paper authors' code."""
        part, _, rest = key.partition(".")
        if part == "classifier":
            return f"fc.{rest}"
        block, position, name = rest.split(".")
        index = int(block)
        if self.ce_layers == 0:
            return f"{'conv' if position == '0' else 'bn'}{index + 1}.{name}"
        if index < self.ce_layers:
            return f"ceconv_list.{index}.{position}.{name}"
        return f"conv2d_list.{index - self.ce_layers}.{position}.{name}"


@register_model
def z2cnn(num_classes: int = 10, *, width: int = 20, dropout: float = 0.3) -> Z2CNN:
    """The plain seven-layer network.

    Args:
        num_classes: outputs.
        width: channels of every layer.
        dropout: probability to drop a channel.

    Example:
        >>> import torch
        >>> z2cnn(30)(torch.rand(2, 3, 28, 28)).shape
        torch.Size([2, 30])
    """
    return Z2CNN(num_classes, width=width, dropout=dropout)


@register_model
def cecnn(
    num_classes: int = 10,
    *,
    width: int = 17,
    rotations: int = 3,
    ce_layers: int = 7,
    coset_pool: str | None = None,
    lifting: str = "rgb",
    dropout: float = 0.3,
    spatial: str = "p1",
) -> Z2CNN:
    """The colour-equivariant seven-layer network, full or hybrid.

    Args:
        num_classes: outputs.
        width: channels of every layer; 17 matches the parameters of ``z2cnn`` at 3 rotations.
        rotations: hues.
        ce_layers: equivariant layers, counted from the input.
        coset_pool: ``"max"``, ``"avg"``, or None to keep hue for the classifier.
        lifting: ``"rgb"`` or ``"hsv"``.
        dropout: probability to drop a channel.
        spatial: ``"p4"`` makes the network invariant to quarter turns, ``"p4m"`` also to mirror
            images; it needs a ``coset_pool``, and a smaller width for as many parameters.

    Example:
        >>> import torch
        >>> cecnn(10, rotations=6, coset_pool="max", lifting="hsv")(torch.rand(2, 3, 28, 28)).shape
        torch.Size([2, 10])
    """
    _checks.positive_int("ce_layers", ce_layers)
    return Z2CNN(
        num_classes,
        width=width,
        dropout=dropout,
        rotations=rotations,
        ce_layers=ce_layers,
        coset_pool=coset_pool,
        lifting=lifting,
        spatial=spatial,
    )
