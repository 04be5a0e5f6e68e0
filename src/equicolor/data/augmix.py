"""AugMix (Hendrycks et al., 2020), a whole batch at a time, on the device of the images.

An image is mixed with ``width`` copies of itself, each changed by a chain of one to three
random operations. One set of kernels does the different operations of all images:

* **geometric** operations are affine maps: one resampling with a matrix for each image;
* **tone** operations are functions of one channel's value: one lookup in a table of 256 entries
  for each image and channel;
* **blends** mix in a grey or smoothed copy (only in the full set of operations).

Operations equal Pillow's, level by level: images have 8 bits within a chain. Random numbers are
arguments.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor import _checks

__all__ = ["COLOUR_OPERATIONS", "OPERATIONS", "AugMix", "apply_operations"]

OPERATIONS = (
    "autocontrast", "equalize", "posterize", "rotate", "solarize",
    "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
# Left out by default: robustness benchmarks use them as corruptions.
COLOUR_OPERATIONS = ("color", "contrast", "brightness", "sharpness")
ALL = OPERATIONS + COLOUR_OPERATIONS
WEAKEST = 0.1  # levels are uniform from here to the severity, of at most 10
STRONGEST = 10.0
IDENTITY = -1


class Draw(NamedTuple):
    """The random choices for a batch: ``W`` chains of up to ``D`` operations for each image.

    Attributes:
        mix: the chains' share of the result ``[B]``.
        weights: each chain's share of that ``[B, W]``; their sum is 1.
        depths: operations of each chain ``[B, W]``.
        operations: indices into ``OPERATIONS + COLOUR_OPERATIONS``, and -1 after the end of a
            chain, ``[B, W, D]``.
        levels: strengths ``[B, W, D]``; a negative one reverses the direction of an operation.
    """

    mix: Tensor
    weights: Tensor
    depths: Tensor
    operations: Tensor
    levels: Tensor


@dataclass(frozen=True)
class AugMix:
    """Mix images with chains of random operations on them.

    Attributes:
        width: chains.
        depth: fewest and most operations of a chain, uniform in between.
        alpha: the chains' weights follow Dirichlet(alpha), their share of the result
            Beta(alpha, alpha). A whole number: its gamma variables are then sums of ``alpha``
            exponential ones, which uniform numbers give without rejection.
        severity: levels are uniform in [0.1, severity); 10 is the strongest there is.
        full: also draw colour, contrast, brightness and sharpness.

    Example:
        >>> augmix = AugMix()
        >>> images = torch.rand(4, 3, 32, 32)
        >>> augmix(images, torch.rand(4, augmix.numbers)).shape
        torch.Size([4, 3, 32, 32])
    """

    width: int = 3
    depth: tuple[int, int] = (1, 3)
    alpha: float = 1.0
    severity: float = 3.0
    full: bool = False

    def __post_init__(self) -> None:
        _checks.positive_int("width", self.width, at_most=_checks.MOST["width"])
        low, high = _checks.int_pair("depth", self.depth, minimum=1)
        if low > high:
            raise ValueError(f"depth must be two numbers in order, got {self.depth}")
        if self.alpha < 1 or self.alpha != int(self.alpha):
            raise ValueError(f"alpha must be a whole number of at least 1, got {self.alpha}")
        if not WEAKEST <= self.severity <= STRONGEST:
            raise ValueError(
                f"severity must lie in [{WEAKEST}, {STRONGEST:g}], got {self.severity}"
            )

    @property
    def numbers(self) -> int:
        """Uniform numbers an image needs.

        In this order: 2 · alpha for the mix, width · alpha for the weights, width depths, and
        three times width · (most operations): operations, levels, directions.
        """
        return (2 + self.width) * int(self.alpha) + self.width * (1 + 3 * self.depth[1])

    def draw(self, numbers: Tensor) -> Draw:
        """Turn uniform numbers ``[B, numbers]`` into the choices for each image."""
        if numbers.ndim != 2 or numbers.shape[1] != self.numbers:
            raise ValueError(f"AugMix needs numbers [B, {self.numbers}], got {list(numbers.shape)}")
        batch, most = len(numbers), self.depth[1]
        alpha, slots = int(self.alpha), self.width * most
        parts = 2 * alpha, self.width * alpha, self.width, slots, slots, slots
        mix, weights, depths, which, levels, signs = numbers.double().split(parts, 1)
        first, second = _gammas(mix, alpha).unbind(1)
        gammas = _gammas(weights, alpha)
        span = self.depth[1] - self.depth[0] + 1
        depth = self.depth[0] + (span * depths).long()
        count = len(ALL if self.full else OPERATIONS)
        operations = (count * which).long().view(batch, self.width, most)
        ended = torch.arange(most, device=numbers.device) >= depth[..., None]
        level = WEAKEST + (self.severity - WEAKEST) * levels
        level = torch.where(signs > 0.5, -level, level).view(batch, self.width, most)
        return Draw(
            mix=(first / (first + second)).float(),
            weights=(gammas / gammas.sum(1, keepdim=True)).float(),
            depths=depth,
            operations=torch.where(ended, IDENTITY, operations),
            levels=level,
        )

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """Mix images with their chains.

        Args:
            images: square RGB images ``[B, 3, s, s]`` in [0, 1].
            numbers: uniform numbers ``[B, numbers]``.

        Returns:
            Images of the same shape.
        """
        draw = self.draw(numbers)
        batch = len(images)
        # All chains form one larger batch: fewer and larger kernels.
        chains = _to_levels(images).repeat_interleave(self.width, 0)
        for slot in range(self.depth[1]):
            operations, levels = draw.operations[..., slot], draw.levels[..., slot]
            chains = apply_operations(chains, operations.flatten(), levels.flatten(), self.full)
        chains = chains.view(batch, self.width, *images.shape[1:]) / 255
        shares = draw.mix[:, None] * draw.weights
        mixed = (chains * shares[..., None, None, None]).sum(1)
        return ((1 - draw.mix[:, None, None, None]) * images + mixed).to(images.dtype)


def _gammas(numbers: Tensor, alpha: int) -> Tensor:
    """Gamma(alpha) variables from ``alpha`` uniform numbers each, never all zero."""
    exponentials = -torch.log1p(-numbers).view(len(numbers), -1, alpha)
    return exponentials.sum(-1).clamp(min=1e-30)


def _to_levels(images: Tensor) -> Tensor:
    """Images in [0, 1] as whole numbers from 0 to 255, in float32."""
    _checks.image_batch("AugMix", images)
    if images.shape[2] != images.shape[3]:
        raise ValueError(f"AugMix needs square images [B, 3, s, s], got {list(images.shape)}")
    return (255 * images.float()).round().clamp(0, 255)


def apply_operations(images: Tensor, operations: Tensor, levels: Tensor, full: bool) -> Tensor:
    """Change each image by one operation.

    Args:
        images: ``[B, 3, s, s]`` of 8-bit levels, 0 to 255.
        operations: indices ``[B]`` into ``OPERATIONS + COLOUR_OPERATIONS``, or -1 for none.
        levels: float64 strengths ``[B]`` from 0 to 10. Rotations go up to 30°, shears to 0.3,
            translations to a third of the image, posterize down to 0 bits from 4, solarize
            from threshold 256 down to 0; colour, contrast, brightness and sharpness blend with
            0.1 to 1.9 of the image. A negative level turns, shears or shifts the other way.
        full: whether there may be colour operations.
    """
    selected = {name: operations == index for index, name in enumerate(ALL)}
    moved = _move(images, selected, levels)
    still = operations < 0
    for name in ("autocontrast", "equalize", "posterize", "solarize", *COLOUR_OPERATIONS):
        still = still | selected[name]
    images = torch.where(_per_image(still), images, moved)
    images = _look_up(images, selected, levels.abs(), full)
    return _blend(images, selected, levels.abs()) if full else images


def _move(images: Tensor, selected: dict[str, Tensor], levels: Tensor) -> Tensor:
    """Rotate, shear or translate; pixels from outside the image are black, as in Pillow."""
    size = images.shape[-1]
    sign, strength, none = levels.sign(), levels.abs(), torch.zeros_like(levels)

    def amount(name: str, maximum: float, whole: bool) -> Tensor:
        value = strength * maximum / 10
        return torch.where(selected[name], sign * (value.floor() if whole else value), none)

    angle = -amount("rotate", 30, whole=True) * math.pi / 180
    cos, sin, centre = angle.cos(), angle.sin(), size / 2
    # Where an output pixel (x, y) comes from: (a x + b y + c, d x + e y + f).
    b = sin + amount("shear_x", 0.3, whole=False)
    d = -sin + amount("shear_y", 0.3, whole=False)
    c = centre - (cos + sin) * centre + amount("translate_x", size / 3, whole=True)
    f = centre - (cos - sin) * centre + amount("translate_y", size / 3, whole=True)
    a, b, c, d, e, f = (value.float()[:, None, None] for value in (cos, b, c, d, cos, f))
    pixel = torch.arange(size, device=images.device) + 0.5
    x, y = pixel, pixel[:, None]
    # F.affine_grid may compute in TF32, which is too coarse for coordinates.
    source_x, source_y = a * x + b * y + c, d * x + e * y + f
    grid = torch.stack((source_x, source_y), -1) * (2 / size) - 1
    moved = F.grid_sample(images, grid, "bilinear", "border", align_corners=False)
    inside = (source_x >= 0) & (source_x < size) & (source_y >= 0) & (source_y < size)
    # Pillow truncates; a hundredth is added so that rounding does not lower whole levels.
    return (moved + 0.01).floor() * inside[:, None]


def _look_up(images: Tensor, selected: dict[str, Tensor], strength: Tensor, full: bool) -> Tensor:
    """Map each channel's levels by a table: the tone operations, and the identity."""
    index = images.flatten(2).long()
    low, high = index.amin(2, keepdim=True), index.amax(2, keepdim=True)
    value = torch.arange(256, device=images.device, dtype=torch.float64)
    strength = strength[:, None, None]

    # A tensor quotient: torch computes 255 / x as 255 · (1 / x), which rounds differently.
    scale = value[-1] / (high - low).clamp(min=1)
    stretched = (value * scale - low * scale).floor().clamp(0, 255)
    tables = {"autocontrast": torch.where(high > low, stretched, value)}

    one = torch.ones((), dtype=torch.int32, device=images.device).expand(index.shape)
    histogram = torch.zeros(*index.shape[:2], 256, dtype=torch.int32, device=images.device)
    histogram = histogram.scatter_add(2, index, one).long()
    step = (index.shape[2] - histogram.gather(2, high)) // 255
    below = histogram.cumsum(2) - histogram
    equalized = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255).double()
    tables["equalize"] = torch.where(step > 0, equalized, value)

    coarse = 2 ** (4 + (strength * 4 / 10).floor())
    tables["posterize"] = (value / coarse).floor() * coarse
    threshold = 256 - (strength * 256 / 10).floor()
    tables["solarize"] = torch.where(value < threshold, value, 255 - value)
    if full:
        factor = strength * 1.8 / 10 + 0.1
        tables["brightness"] = (factor * value).clamp(0, 255).floor()
        mean = (_luma(images).double().mean((1, 2, 3)) + 0.5).floor()[:, None, None]
        tables["contrast"] = (mean + factor * (value - mean)).clamp(0, 255).floor()

    table = value.expand(*index.shape[:2], 256)
    for name, entries in tables.items():
        table = torch.where(selected[name][:, None, None], entries, table)
    return table.float().gather(2, index).view(images.shape)


def _blend(images: Tensor, selected: dict[str, Tensor], strength: Tensor) -> Tensor:
    """Move images towards (or, above 1, away from) their grey or smoothed copies."""
    other = torch.where(_per_image(selected["color"]), _luma(images), _smooth(images))
    factor = _per_image(strength * 1.8 / 10 + 0.1).float()
    blended = (other + factor * (images - other)).clamp(0, 255).floor()
    return torch.where(_per_image(selected["color"] | selected["sharpness"]), blended, images)


def _luma(images: Tensor) -> Tensor:
    """Pillow's grey ``[B, 1, s, s]``, in its 16-bit fixed-point arithmetic."""
    red, green, blue = images.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 2**15) >> 16).float()[:, None]


def _smooth(images: Tensor) -> Tensor:
    """Pillow's smoothing: 5/13 of a pixel and 1/13 of each neighbour; borders are unchanged."""
    if images.shape[-1] < 3:
        return images
    inner = images[..., 1:-1, 1:-1]
    # Sums of whole numbers are exact; a convolution might round to TF32.
    rows = images[..., :-2, :] + images[..., 1:-1, :] + images[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * inner
    smooth = (total / 13 + 0.5).floor()
    middle = torch.cat((images[..., 1:-1, :1], smooth, images[..., 1:-1, -1:]), -1)
    return torch.cat((images[..., :1, :], middle, images[..., -1:, :]), -2)


def _per_image(values: Tensor) -> Tensor:
    """Values ``[B]`` that broadcast against images."""
    return values[:, None, None, None]
