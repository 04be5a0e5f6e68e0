"""AugMix (Hendrycks et al., 2020), a whole batch at a time, on the device of the images.

An image is mixed with three copies of itself, each changed by a chain of one to three
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
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor import _checks

GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
OPERATIONS = (
    "autocontrast", "equalize", "posterize", "rotate", "solarize",
    "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip
# Left out by default: robustness benchmarks use them as corruptions.
COLOUR_OPERATIONS = ("color", "contrast", "brightness", "sharpness")
ALL = OPERATIONS + COLOUR_OPERATIONS
WIDTH = 3  # chains
DEPTH = 3  # the most operations of a chain; the least is one
WEAKEST, STRONGEST = 0.1, 3.0  # levels; Pillow's operations go up to 10


class Draw(NamedTuple):
    """The random choices for a batch: three chains of up to three operations for each image."""

    mix: Tensor  # [B]: the chains' share of the result, uniform
    weights: Tensor  # [B, 3]: each chain's share of that, from Dirichlet(1)
    operations: Tensor  # [B, 3, 3]: indices into ALL; -1 after the end of a chain
    levels: Tensor  # [B, 3, 3]: strengths; a negative one reverses the direction of an operation


@dataclass(frozen=True)
class AugMix:
    """Mix images with chains of random operations on them.

    Example:
        >>> augmix = AugMix()
        >>> images = torch.rand(4, 3, 32, 32)
        >>> augmix(images, torch.rand(4, augmix.numbers)).shape
        torch.Size([4, 3, 32, 32])
    """

    full: bool = False  # also draw colour, contrast, brightness and sharpness
    numbers: ClassVar[int] = 2 + 2 * WIDTH + 3 * WIDTH * DEPTH  # uniform numbers per image

    def draw(self, numbers: Tensor) -> Draw:
        """Turn uniform numbers ``[B, numbers]`` into the choices for each image."""
        slots = WIDTH * DEPTH
        parts = numbers.double().split((2, WIDTH, WIDTH, slots, slots, slots), 1)
        mix, weights, lengths, which, levels, signs = parts
        first, second = _exponentials(mix).unbind(1)
        shares = _exponentials(weights)
        length = 1 + (DEPTH * lengths).long()
        count = len(ALL if self.full else OPERATIONS)
        operations = (count * which).long().view(-1, WIDTH, DEPTH)
        ended = torch.arange(DEPTH, device=numbers.device) >= length[..., None]
        level = WEAKEST + (STRONGEST - WEAKEST) * levels
        return Draw(
            mix=(first / (first + second)).float(),
            weights=(shares / shares.sum(1, keepdim=True)).float(),
            operations=torch.where(ended, -1, operations),
            levels=torch.where(signs > 0.5, -level, level).view(-1, WIDTH, DEPTH),
        )

    def __call__(self, images: Tensor, numbers: Tensor) -> Tensor:
        """Mix square images ``[B, 3, s, s]`` in [0, 1] with their chains.

        Uniform ``numbers`` ``[B, numbers]`` make the choices. Returns the same shape.
        """
        _checks.image_batch("AugMix", images)
        batch, _, height, width = images.shape
        if height != width:
            raise ValueError(f"AugMix needs square images [B, 3, s, s], got {list(images.shape)}")
        draw = self.draw(numbers)
        levels = (255 * images.float()).round().clamp(0, 255)
        # All chains form one larger batch: fewer and larger kernels.
        chains = levels.repeat_interleave(WIDTH, 0)
        for slot in range(DEPTH):
            operations, strengths = draw.operations[..., slot], draw.levels[..., slot]
            chains = apply_operations(chains, operations.flatten(), strengths.flatten(), self.full)
        chains = chains.view(batch, WIDTH, *images.shape[1:]) / 255
        shares = draw.mix[:, None] * draw.weights
        mixed = (chains * shares[..., None, None, None]).sum(1)
        return ((1 - _per_image(draw.mix)) * images + mixed).to(images.dtype)


def _exponentials(numbers: Tensor) -> Tensor:
    """Exponential variables from uniform numbers, never all zero."""
    return (-torch.log1p(-numbers)).clamp(min=1e-30)


def apply_operations(images: Tensor, operations: Tensor, levels: Tensor, full: bool) -> Tensor:
    """Change each image ``[B, 3, s, s]`` of 8-bit levels, 0 to 255, by one operation.

    The ``operations`` ``[B]`` are indices into ``ALL``, or -1 for none; only with ``full`` are
    there colour operations. The ``levels`` are float64 strengths ``[B]`` from 0 to 10. Rotations
    go up to 30°, shears to 0.3, translations to a third of the image, posterize down to 0 bits
    from 4, solarize from threshold 256 down to 0; colour, contrast, brightness and sharpness blend
    with 0.1 to 1.9 of the image. A negative level turns, shears or shifts the other way.
    """
    selected = {name: operations == index for index, name in enumerate(ALL)}
    geometric = torch.stack([selected[name] for name in GEOMETRIC]).any(0)
    images = torch.where(_per_image(geometric), _move(images, selected, levels), images)
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
    # Pillow truncates; 0.01 keeps rounding errors from lowering whole levels.
    return (moved + 0.01).floor() * inside[:, None]


def _look_up(images: Tensor, selected: dict[str, Tensor], strength: Tensor, full: bool) -> Tensor:
    """Map each channel's levels by a table: the tone operations, and the identity."""
    index = images.flatten(2).long()
    low, high = index.amin(2, keepdim=True), index.amax(2, keepdim=True)
    value = torch.arange(256, device=images.device, dtype=torch.float64)
    strength = strength[:, None, None]

    # A quotient of tensors: torch computes 255 / x as 255 · (1 / x), which rounds differently.
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
