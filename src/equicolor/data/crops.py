"""Crops as boxes, and one function that cuts boxes out of a batch of images.

A crop of any kind is a **box** (left, top, right, bottom) in pixels of the source image; a flipped
crop has left and right swapped. :func:`resample` turns images and boxes into images with Pillow's
antialiased bilinear filter, as two batched matrix products. Nothing waits for the device, and
shapes depend only on the shapes of arguments, so a training step that crops can be compiled or
captured.
"""

import math

import torch
from torch import Tensor

SCALE = (0.08, 1.0)  # the area of a random-resized crop, relative to the image's
RATIO = (3 / 4, 4 / 3)  # its width over its height
TRIES = 10  # before it falls back to the centre
TOP, LEFT = 2 * TRIES, 2 * TRIES + 1  # places among its numbers, after areas and ratios


def resample(
    images: Tensor, sizes: Tensor, boxes: Tensor, size: int, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Cut boxes out of images and resize them, as ``PIL.Image.resize(box=...)`` does.

    The filter is Pillow's bilinear one, a triangle as wide as the reduction (and at least two
    pixels), so that smaller images are not aliased. At the borders of the box it also uses pixels
    beside the box, but none outside the image. Where there is no pixel, the result is 0: a box with
    integer corners and the size of the output is a crop padded with black.

    Args:
        images: uint8 ``[B, 3, H, W]``, each image in the top left corner.
        sizes: heights and widths ``[B, 2]`` of the images.
        boxes: left, top, right and bottom ``[B, 4]``, of any real numbers; swapping left and right
            (or top and bottom) flips the result.
        size: height and width of the result, ``[B, 3, size, size]`` in [0, 1].
        dtype: of the matrix products; the result has at least float32. The error is 1e-6 with
            float32 (a third of an 8-bit level if torch's matmul precision lets GPUs use TF32), and
            a third of a level with float16, which needs half the memory.
    """
    batch, _, height, width = images.shape
    exact = torch.promote_types(dtype, torch.float32)
    left, top, right, bottom = boxes.double().unbind(1)
    rows = _weights(top, bottom, sizes[:, 0], height, size, exact).to(dtype)
    columns = _weights(left, right, sizes[:, 1], width, size, exact).to(dtype)
    # [B, H, 3, W]: with the channels inside, each direction is a single product.
    pixels = images.transpose(1, 2).to(dtype, memory_format=torch.contiguous_format)
    with torch.autocast(images.device.type, enabled=False):
        narrow = torch.bmm(pixels.flatten(1, 2), columns.mT)  # rows first, as in Pillow
        small = torch.bmm(rows, narrow.view(batch, height, 3 * size))
    resized = small.view(batch, size, 3, size).transpose(1, 2).to(exact)
    return (resized / 255).clamp(0, 1).contiguous()


def _weights(
    start: Tensor, stop: Tensor, extent: Tensor, length: int, size: int, dtype: torch.dtype
) -> Tensor:
    """Pillow's filter ``[B, size, length]``: the weight of each pixel in each result."""
    low = torch.minimum(start, stop)[:, None]
    scale = (stop - start).abs()[:, None] / size
    position = torch.arange(size, device=start.device)
    # Mirroring the position instead of the formula makes flips exact to the last bit.
    position = torch.where((start > stop)[:, None], size - 1 - position, position)
    centre = low + (position + 0.5) * scale
    # Whole pixels and fractions are kept apart, so that float32 loses nothing near the centre,
    # where the filter is not zero, even in large images.
    whole = centre.floor()
    rest = (0.5 - (centre - whole)).to(dtype)[..., None]
    pixel = torch.arange(length, device=start.device, dtype=dtype)
    distance = (pixel - whole.to(dtype)[..., None] + rest).abs()
    support = scale.clamp(min=1).to(dtype)[..., None]
    weight = (1 - distance / support).clamp(min=0) * (pixel < extent[:, None, None])
    total = weight.sum(-1, keepdim=True)
    return weight / torch.where(total > 0, total, torch.ones_like(total))


def random_resized_boxes(sizes: Tensor, numbers: Tensor) -> Tensor:
    """Boxes of a random area and aspect ratio: the random-resized crop of torchvision.

    An area and the logarithm of a ratio are drawn ten times; the first box that fits into the
    image gets a random place. If none fits, the box is the largest one in the centre with an
    allowed ratio.

    ``sizes`` are heights and widths ``[B, 2]``, ``numbers`` uniform numbers ``[B, 22]``: ten areas,
    ten ratios, top and left.
    """
    height, width = sizes.double().unbind(1)
    numbers = numbers.double()
    area = (height * width)[:, None] * (SCALE[0] + (SCALE[1] - SCALE[0]) * numbers[:, :TRIES])
    logs = math.log(RATIO[0]), math.log(RATIO[1])
    ratios = (logs[0] + (logs[1] - logs[0]) * numbers[:, TRIES:TOP]).exp()
    # torch rounds halves to even, as Python does.
    widths, heights = (area * ratios).sqrt().round(), (area / ratios).sqrt().round()
    narrow = (widths > 0) & (widths <= width[:, None])
    fits = narrow & (heights > 0) & (heights <= height[:, None])
    first = fits.int().argmax(1, keepdim=True)
    fit = fits.any(1)
    fallback_width = torch.minimum(width, (height * RATIO[1]).round())
    fallback_height = torch.minimum(height, (width / RATIO[0]).round())
    box_width = torch.where(fit, widths.gather(1, first)[:, 0], fallback_width)
    box_height = torch.where(fit, heights.gather(1, first)[:, 0], fallback_height)
    free_x, free_y = width - box_width, height - box_height
    left = torch.where(fit, (numbers[:, LEFT] * (free_x + 1)).floor(), (free_x / 2).floor())
    top = torch.where(fit, (numbers[:, TOP] * (free_y + 1)).floor(), (free_y / 2).floor())
    return torch.stack((left, top, left + box_width, top + box_height), 1)


def padded_crop_boxes(sizes: Tensor, numbers: Tensor, size: int, padding: int) -> Tensor:
    """Square boxes at a random place of the padded image, as for CIFAR.

    ``sizes`` are heights and widths ``[B, 2]``, ``numbers`` uniform numbers ``[B, 2]``: top, left.
    """
    free = sizes.double() + 2 * padding - size
    top, left = ((numbers.double() * (free + 1)).floor() - padding).unbind(1)
    return torch.stack((left, top, left + size, top + size), 1)


def centre_boxes(sizes: Tensor, size: int, resize: int) -> Tensor:
    """The centre of images whose short side is first resized, as boxes of the originals.

    Rounding is torchvision's: the long side becomes ``int(resize * long / short)``, the
    corner ``round((side - size) / 2)`` with halves to even.
    """
    source = sizes.double()
    short = source.amin(1, keepdim=True)
    resized = torch.where(source == short, float(resize), (resize * source / short).floor())
    corner = ((resized - size) / 2).round()
    # Products before quotients, so that no rounding error moves a box out of its image.
    top, left = (corner * source / resized).unbind(1)
    bottom, right = ((corner + size) * source / resized).unbind(1)
    return torch.stack((left, top, right, bottom), 1)


def flip_boxes(boxes: Tensor, numbers: Tensor) -> Tensor:
    """Swap left and right of boxes ``[B, 4]`` where the number ``[B]`` is below a half."""
    left, top, right, bottom = boxes.unbind(1)
    flipped = torch.stack((right, top, left, bottom), 1)
    return torch.where((numbers < 0.5)[:, None], flipped, boxes)
