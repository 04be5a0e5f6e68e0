"""Time single hidden layers: plain, dense as in the paper, cyclic, and the automatic choice.

Shapes are those of the 3×3 layers of ResNet-18 (stage1 to stage4) and of the ColorMNIST network.
Without --width, equivariant layers have about the parameters of the plain layer.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from _timing import Case, Settings, Steps, parser, run, settings_of
from equicolor.models import widths
from equicolor.nn import CEConv2d
from equicolor.nn.algorithm import choose_algorithm
from equicolor.results import Row

SHAPES = ("stage1", "stage2", "stage3", "stage4", "colormnist")
VARIANTS = ("auto", "dense", "cyclic")
COLUMNS = ("name", "rotations", "width", "size", "variant", "algorithm", "mode", "ms", "over_plain",
           "dense_over", "over_best")  # fmt: skip


def shape_of(name: str, image_size: int) -> tuple[int, int]:
    """Channels of a plain layer, and height and width of its features."""
    if name == "colormnist":
        return 20, 26
    stage = int(name.removeprefix("stage"))
    size = (image_size + 2 - 7) // 2 + 1  # the first layer
    for _ in range(stage):  # pooling, and the stride of every later stage
        size = (size - 1) // 2 + 1
    return 64 * 2 ** (stage - 1), size


def cases(
    name: str,
    rotations: int,
    variants: Sequence[str],
    mode: str,
    width: int | None,
    settings: Settings,
) -> Iterator[Case]:
    """One layer in several variants, the plain one first."""
    plain, size = shape_of(name, settings.size)
    matched = widths.scaled([plain], rotations, separable=True)[0]
    if width is not None:  # of the first stage
        plain = matched = max(1, width * plain // 64)
    for variant in ("plain", *(variants if rotations > 1 else ())):
        n, channels = (1, plain) if variant == "plain" else (rotations, matched)
        row: Row = {"name": name, "rotations": n, "width": channels, "size": size}
        row |= {"variant": variant, "form": "eager", "mode": mode}
        if variant == "auto":
            filters = (channels, channels, 1, 3, 3)
            row["algorithm"] = choose_algorithm(n, filters, 1, settings.device.type)
        yield Case(row, partial(build, row, settings))


def build(row: Row, settings: Settings) -> Steps:
    """A layer on its device, with random features in the memory layout of the layers."""
    torch.manual_seed(0)
    channels, n, side = row["width"], row["rotations"], row["size"]
    layer: nn.Module
    if row["variant"] == "plain":
        layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        features = torch.rand(settings.batch, side, side, channels).permute(0, 3, 1, 2)
    else:
        layer = CEConv2d(channels, channels, 3, padding=1, bias=False, rotations=n)
        layer.algorithm = row["variant"]
        features = torch.rand(n, settings.batch, side, side, channels).permute(1, 4, 0, 2, 3)
    layer, features = settings.place(layer), features.to(settings.device)
    if row["mode"] == "forward":
        layer.eval()
        step = partial(forward, layer, features, settings)
    else:
        with torch.no_grad(), settings.autocast():  # made once: not part of the layer's time
            gradient = torch.ones_like(layer(features))
        step = partial(forward_backward, layer, features.requires_grad_(), gradient, settings)
    return Steps(step, lambda: step)


def forward(layer: nn.Module, features: Tensor, settings: Settings) -> None:
    """The output of a layer."""
    with torch.no_grad(), settings.autocast():
        layer(features)


def forward_backward(
    layer: nn.Module, features: Tensor, gradient: Tensor, settings: Settings
) -> None:
    """The output of a layer, and the gradients of its input and weights."""
    with settings.autocast():
        outputs = layer(features)
    outputs.backward(gradient)
    for tensor in (features, *layer.parameters()):
        tensor.grad = None


def main() -> None:
    """Run the script."""
    options = parser(__doc__)
    options.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    options.add_argument("--rotations", nargs="+", type=int, default=(3, 12))
    options.add_argument("--modes", nargs="+", choices=("training", "forward"),
                         default=("training", "forward"))  # fmt: skip
    options.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    options.add_argument("--width", type=int, help="channels of stage1, for all rotations")
    given = options.parse_args()
    settings = settings_of(given, batch={"cpu": 4, "cuda": 256})
    groups = (
        cases(name, n, given.variants, mode, given.width, settings)
        for mode in given.modes
        for name in given.shapes
        for n in given.rotations
    )
    run(groups, COLUMNS, settings)


if __name__ == "__main__":
    main()
