"""How natural an image looks in every hue, as scores, and the angle of the best score.

A selector gives :math:`n` scores for an image: score :math:`k` says how natural it looks with
:math:`k/n` turns taken back. Shifting the hue of the image by :math:`1/n` rolls the scores by one,
so the place of the best score is an angle that moves along with the hue of the image.
"""

import torch
from torch import Tensor, fx, nn

from equicolor import _checks
from equicolor.models.layers import Layers
from equicolor.models.registry import Network
from equicolor.models.resnet import Block, stem
from equicolor.nn import CEAdaptiveAvgPool2d, CosetFlatten

_MODE_REACH = 1.5  # steps of the hue circle that a mode reaches from its best score
# Tracers, such as that of fold, must not look inside: it reads shapes.
fx.wrap("subsample")


class HueSelector(Network):
    r"""A small equivariant ResNet that scores every hue of an image; made by :func:`hue_selector`.

    Args:
        rotations: the number :math:`n` of hues.
        size: height and width that images are subsampled to.
        width: channels of the first layer.

    Example:
        >>> selector = HueSelector(rotations=6, size=32, width=4)
        >>> selector(torch.rand(2, 3, 48, 64)).shape
        torch.Size([2, 6])
    """

    def __init__(self, rotations: int, size: int, width: int) -> None:
        super().__init__()
        self.config = {
            "model": "hue_selector",
            "rotations": rotations,
            "size": size,
            "width": width,
        }
        self.rotations = _checks.positive_int("rotations", rotations)
        if rotations == 1:
            raise ValueError("rotations must be 2 or more, to compare hues; got 1")
        self.size = _checks.positive_int("size", size)
        _checks.positive_int("width", width)
        self.image_size = size
        layers = Layers(rotations, "hsv")
        self.conv1 = layers.lift(3, width, 5, stride=2, padding=2, bias=False)
        self.bn1, self.relu = layers.norm(width), nn.ReLU()
        self.max_pool = layers.max_pool(3, 2, 1)
        self.blocks = nn.Sequential(
            Block(width, 2 * width, 2, bottleneck=False, layers=layers),
            Block(2 * width, 4 * width, 2, bottleneck=False, layers=layers),
        )
        self.avg_pool, self.flatten = CEAdaptiveAvgPool2d(1), CosetFlatten()
        self.score = nn.Linear(4 * width, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in [0, 1] to scores ``[B, n]``."""
        small = subsample(images, self.size)
        features = self.blocks(stem(small, self.conv1, self.bn1, self.relu, self.max_pool))
        # The same weights score every hue; the blocks have compared it with the others.
        pooled = self.flatten(self.avg_pool(features)).flatten(1)
        by_hue = pooled.unflatten(1, (-1, self.rotations)).transpose(1, 2)
        return self.score(by_hue).squeeze(2)


def hue_selector(*, rotations: int = 12, size: int = 72, width: int = 32) -> HueSelector:
    """A :class:`HueSelector` with random weights.

    Example:
        >>> hue_selector(rotations=6).config["rotations"]
        6
    """
    return HueSelector(rotations, size, width)


def subsample(images: Tensor, size: int) -> Tensor:
    """Pixels on an even grid over the image: ``[B, 3, size, size]``.

    A mean of pixels would be smoother, but hue shifts do not commute with it.
    """
    # Torch's nearest-neighbour interpolation would first copy whole images in channels_last memory.
    rows, columns = (
        torch.arange(size, device=images.device) * side // size for side in images.shape[2:]
    )
    return images.index_select(2, rows).index_select(3, columns)


def find_modes(scores: Tensor, modes: int = 1) -> tuple[Tensor, Tensor]:
    r"""The best angles of scores over the hue circle, and how much of the probability is near each.

    The angle of a mode is the top of the parabola through its best score and the two beside it.
    That is exact for scores that fall off as the logarithm of a Gaussian, which selectors are
    trained for, and it is continuous: where two neighbours are equal, both give the angle between
    them. A further mode lies at least two places away from those before it.

    Args:
        scores: :math:`[B, n]`, logarithms of probabilities up to a constant; they may be infinite.
        modes: how many.

    Returns:
        Angles in turns from -0.5 to 0.5, and probabilities, both :math:`[B, modes]`.

    Example:
        >>> offset = (torch.arange(12) - 3.25 + 6) % 12 - 6
        >>> angles, probabilities = find_modes(-2 * offset.square().unsqueeze(0))
        >>> round(float(12 * angles), 3), bool(probabilities > 0.99)
        (3.25, True)
    """
    n = scores.shape[1]
    most = torch.finfo(scores.dtype).max / 8  # infinite scores would have no parabola
    scores = scores.clamp(-most, most)
    places = torch.arange(n, device=scores.device)
    near = torch.minimum(places, n - places) < _MODE_REACH  # of place 0
    mass, left = scores.softmax(1), scores  # of places that no mode has taken yet
    start: int | Tensor = 0
    angles, probabilities = [], []
    for _ in range(modes):
        best = left.argmax(1, keepdim=True)
        order = torch.remainder(best + places, n)  # from now on, the best is at place 0
        scores, mass, left = (each.gather(1, order) for each in (scores, mass, left))
        start = start + best
        before, top, after = scores[:, -1:], scores[:, :1], scores[:, 1:2]
        bend = before - 2 * top + after
        curved = bend < 0  # else there is no top in between: all equal, or beside another mode
        offset = (before - after) / (2 * torch.where(curved, bend, -1.0))
        angles.append((start + offset.clamp(-0.5, 0.5) * curved) / n)
        probabilities.append((mass * near).sum(1, keepdim=True))
        mass, left = mass.masked_fill(near, 0), left.masked_fill(near, -torch.inf)
    turns = torch.cat(angles, 1)
    return torch.remainder(turns + 0.5, 1) - 0.5, torch.cat(probabilities, 1)
