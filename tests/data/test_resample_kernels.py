"""Crops of packed images by a kernel are those of matrix products."""

import pytest
import torch

from equicolor.data.crops import resample
from equicolor.data.decoding import Decoded

pytest.importorskip("triton")
from equicolor.data import resample_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = [(20, 20), (17, 24), (23, 13), (9, 12), (11, 40)]


def decoded():
    images = [torch.randint(256, (h, w, 3), dtype=torch.uint8) for h, w in SIZES]
    lengths = torch.tensor([image.numel() for image in images])
    return Decoded(
        torch.cat([*(image.flatten() for image in images), torch.zeros(3 * 40).byte()]),
        lengths.cumsum(0) - lengths,
        torch.tensor(SIZES),
        torch.arange(len(SIZES)),
        ("a", "b", "c", "d", "e"),
    ).to(DEVICE)


BOXES = {  # of an image's sides, or in pixels
    "whole": ((0, 0, 1, 1), True),
    "flipped, at fractions of pixels": ((0.83, 0.11, 0.27, 0.93), True),
    "upside down and larger than life": ((0.4, 0.7, 0.6, 0.5), True),
    "padded with black": ((-3, -2, 6, 7), False),
    "beyond the image": ((200, 0, 209, 9), False),
}


CHOSEN = {9: [2, 3, 1, 1], 33: [4]}  # for each size: several tiles of one that is wider


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 9) for name in BOXES if name != "whole"),
        *(pytest.param("whole", size, marks=pytest.mark.slow) for size in CHOSEN),
    ],
)
def test_crops_are_those_of_matrix_products(name, size):
    raw, chosen = decoded(), CHOSEN[size]
    indices = torch.tensor(chosen, device=DEVICE)
    box, relative = BOXES[name]
    boxes = torch.tensor(box, dtype=torch.float64, device=DEVICE).repeat(len(chosen), 1)
    if relative:
        height, width = raw.sizes[indices].double().unbind(1)
        boxes = boxes * torch.stack([width, height, width, height], 1)
    made = resample_kernels.crops(raw.pixels, raw.offsets, raw.sizes, indices, boxes, size)
    images, sizes = raw.batch(indices)
    expected = resample(images, sizes, boxes, size, dtype=torch.float64)
    assert made.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(made.double(), expected, rtol=0, atol=2e-6)


def test_a_flip_is_exact():
    images, indices = decoded(), torch.arange(4, device=DEVICE)
    boxes = torch.tensor([[1.3, 2.1, 8.7, 8.9]], dtype=torch.float64, device=DEVICE).repeat(4, 1)
    packed = images.pixels, images.offsets, images.sizes, indices
    straight = resample_kernels.crops(*packed, boxes, 8)
    flipped = resample_kernels.crops(*packed, boxes[:, [2, 1, 0, 3]], 8)
    assert torch.equal(flipped, straight.flip(3))
