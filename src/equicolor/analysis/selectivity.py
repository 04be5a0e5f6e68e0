r"""Colour selectivity: how much of a unit's activation is lost when its images are grey.

The index of Rafegas and Vanrell (2018), which the paper averages over the units of a network
to say how much a dataset is about colour (section 4.2, figure 4).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._text import brief_repr
from equicolor.analysis.activations import (
    Batches,
    TopActivations,
    activations_at,
    select_images,
    top_activations,
)
from equicolor.light import LUMA
from equicolor.reporting.progress import Progress

GREYS = ("luma", "opponent")
# Opponent colours: intensity, red against green, yellow against blue.
_OPPONENT = ((1 / 1.5, 1 / 1.5, 1 / 1.5), (1.0, -1.0, 0.0), (0.5, 0.5, -1.0))
_OPPONENT_ORIGIN = (-1.0, 0.0, 0.0)
_SAMPLE = 1024  # images from which the principal axis of colours is found


def luma(images: Tensor) -> Tensor:
    """Images :math:`[..., 3, H, W]` whose three channels are all their luma."""
    _checks.rgb_images("luma", images)
    red, green, blue = images.unbind(-3)
    grey = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return grey.unsqueeze(-3).expand_as(images)


def grey_projection(images: Tensor) -> Callable[[Tensor], Tensor]:
    r"""A projection to grey: the first principal component of colours in opponent space.

    The space is :math:`o_1 = (R + G + B - 1.5)/1.5`, :math:`o_2 = R - G` and
    :math:`o_3 = (R + G - 2B)/2`. Colours are projected on the line through their mean along
    which they vary most, which for natural images is nearly the intensity. The line is fitted to
    the pixels of ``images`` :math:`[B, 3, H, W]`. The result is a function of images
    :math:`[..., 3, H, W]`, whose output is clipped to [0, 1].
    """
    _checks.image_batch("grey_projection", images)
    space = torch.tensor(_OPPONENT, dtype=torch.float64)
    origin = torch.tensor(_OPPONENT_ORIGIN, dtype=torch.float64)
    pixels = images.movedim(1, -1).flatten(0, -2).double().cpu() @ space.T + origin
    mean = pixels.mean(0)
    centred = pixels - mean
    _, axes = torch.linalg.eigh(centred.T @ centred)
    axis = axes[:, -1:]  # eigenvalues come in ascending order
    back = torch.linalg.inv(space)
    # Opponent space is affine in RGB, and so is the projection.
    matrix = back @ axis @ axis.T @ space
    shift = back @ (axis @ axis.T @ (origin - mean) + mean - origin)

    def project(images: Tensor) -> Tensor:
        # Sums of scaled channels, not a matrix product: autocast must not round colours.
        red, green, blue = images.unbind(-3)
        rows = [
            row[0] * red + row[1] * green + row[2] * blue + offset
            for row, offset in zip(matrix.tolist(), shift.tolist(), strict=True)
        ]
        return torch.stack(rows, -3).clamp(0, 1)

    return project


def selectivity_index(values: Tensor, grey: Tensor) -> Tensor:
    r"""The index :math:`\alpha = 1 - \sum_j a'_j / \sum_j a_j`.

    Args:
        values: activations :math:`a_j`, :math:`[..., N]`.
        grey: those without colour, :math:`a'_j`, of the same shape.

    Returns:
        :math:`[...]`: 1 for a unit that needs colour, 0 for one that ignores it, negative for
        one that responds more to grey; 0 for one that is never active.

    Example:
        >>> values = torch.tensor([[4.0, 2.0], [0.0, 0.0]])
        >>> selectivity_index(values, torch.tensor([[2.0, 1.0], [0.0, 0.0]])).tolist()
        [0.5, 0.0]
    """
    total = values.sum(-1)
    active = total > 0
    return torch.where(active, 1 - grey.sum(-1) / torch.where(active, total, 1), 0.0)


@dataclass(frozen=True, eq=False)
class Selectivity:
    """How colour selective the units of a network are.

    Attributes:
        layers: the index of every unit, float32 :math:`[C, n]`, by the name of the layer;
            n is 1 for ordinary layers.
        top: the activations on the images.
        grey: the activations on the same images made grey, :math:`[C, n, N]`.
    """

    layers: dict[str, Tensor]
    top: dict[str, TopActivations]
    grey: dict[str, Tensor]

    __repr__ = brief_repr

    @property
    def mean(self) -> float:
        """The mean over all units of all layers: the paper's score of a dataset."""
        return float(torch.cat([index.flatten() for index in self.layers.values()]).double().mean())

    def only(self, layers: Collection[str]) -> "Selectivity":
        """The selectivity of some of the layers."""
        return Selectivity(
            {name: self.layers[name] for name in layers},
            {name: self.top[name] for name in layers},
            {name: self.grey[name] for name in layers},
        )

    @property
    def units(self) -> int:
        """The number of units; every rotation counts."""
        return sum(index.numel() for index in self.layers.values())


def selectivity(
    network: nn.Module,
    batches: Batches,
    layers: Sequence[str] | None = None,
    *,
    top: int = 50,
    grey: str = "luma",
    found: Mapping[str, TopActivations] | None = None,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
) -> Selectivity:
    r"""The colour selectivity of every unit of a network.

    Of the :math:`N` images that excite a unit most, :math:`a_j` is its activation in the j-th,
    and :math:`a'_j` that at the same position when its receptive field is grey. A unit sees no
    pixel outside its receptive field, so the whole image can be made grey: one more pass over
    the data serves all units. (The receptive field of a unit behind global pooling, as in
    squeeze-and-excitation, *is* the whole image.)

    Args:
        network, layers, autocast: as in :func:`equicolor.analysis.top_activations`.
        batches: images of one size, or pairs of images and labels; read twice, and the same both
            times.
        top: the number of images :math:`N`.
        grey: ``"luma"``, or ``"opponent"`` for :func:`grey_projection` of the images.
        found: the result of :func:`equicolor.analysis.top_activations`, if there is one; it
            decides ``layers`` and ``top``.
        progress: called with (steps done, steps in all if known), for each of the two passes.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 2, 1, bias=False), nn.ReLU())
        >>> red_against_green, brightness = [1.0, -1.0, 0.0], [0.299, 0.587, 0.114]
        >>> weight = torch.tensor([red_against_green, brightness])
        >>> network[0].weight.data = weight.view(2, 3, 1, 1)
        >>> measured = selectivity(network, [torch.rand(20, 3, 8, 8)], top=10)
        >>> measured.layers["1"].round(decimals=4).abs().tolist()
        [[1.0], [0.0]]
    """
    _checks.one_of("grey", grey, GREYS)
    if found is None:
        found = top_activations(
            network, batches, layers, top=top, autocast=autocast, progress=progress
        )
    change = luma if grey == "luma" else grey_projection(_sample(batches, found))
    greyed = activations_at(network, batches, found, change, autocast=autocast, progress=progress)
    indices = {name: selectivity_index(tops.values, greyed[name]) for name, tops in found.items()}
    return Selectivity(indices, dict(found), greyed)


def _sample(batches: Batches, found: Mapping[str, TopActivations]) -> Tensor:
    """Some of the images that excite units, every fourth pixel of each."""
    numbers = torch.cat([tops.images.flatten() for tops in found.values()]).unique()
    places = torch.linspace(0, len(numbers) - 1, min(_SAMPLE, len(numbers))).long()
    parts = [images[..., ::4, ::4].cpu() for _, images in select_images(batches, numbers[places])]
    return torch.cat(parts)
