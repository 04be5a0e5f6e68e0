import math

import numpy as np
import pytest
import torch
from PIL import Image

from equicolor.data import crops
from equicolor.data.crops import (
    centre_boxes,
    flip_boxes,
    padded_crop_boxes,
    random_resized_boxes,
    resample,
)

# Heights and widths of odd kinds: square, wide, tall, tiny.
SIZES = [(40, 40), (33, 61), (57, 23), (9, 12)]
PADDED = (64, 70)  # what they are padded to


def make_images(*, noise):
    """8-bit images in the corner of a larger canvas, whose rest must not be seen."""
    canvas = torch.full((len(SIZES), 3, *PADDED), 77, dtype=torch.uint8)
    for image, (height, width) in zip(canvas, SIZES, strict=True):
        if noise:
            values = torch.randint(0, 256, (3, height, width))
        else:
            coarse = torch.rand(1, 3, 4, 4)
            values = 255 * torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
        image[:, :height, :width] = values.to(torch.uint8)
    return canvas, torch.tensor(SIZES)


def as_pillow(image, size):
    height, width = (int(side) for side in size)
    return Image.fromarray(image[:, :height, :width].permute(1, 2, 0).contiguous().numpy())


def as_levels(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).double()


def boxes_within(sizes):
    """Boxes from a few pixels to the whole image, at fractions of pixels."""
    numbers = torch.rand(len(sizes), 4, dtype=torch.float64)
    height, width = sizes.double().unbind(1)
    left, top = 0.4 * numbers[:, 0] * width, 0.4 * numbers[:, 1] * height
    right, bottom = (1 - 0.4 * numbers[:, 2]) * width, (1 - 0.4 * numbers[:, 3]) * height
    return torch.stack((left, top, right, bottom), 1)


def slow_resample(image, size, box, out):
    """The filter by its definition, one pixel at a time, in Python's floats."""

    def weights(start, stop, extent):
        low, scale = min(start, stop), abs(stop - start) / out
        support = max(scale, 1.0)
        rows = []
        for index in range(out):
            centre = low + (index + 0.5) * scale
            row = [max(0.0, 1 - abs(x + 0.5 - centre) / support) for x in range(extent)]
            total = sum(row)
            rows.append([w / total if total else 0.0 for w in row])
        return torch.tensor(rows[::-1] if start > stop else rows, dtype=torch.float64)

    height, width = size
    left, top, right, bottom = box
    rows, columns = weights(top, bottom, height), weights(left, right, width)
    pixels = image[:, :height, :width].double() / 255
    return torch.einsum("ih,chw,jw->cij", rows, pixels, columns)


@pytest.mark.parametrize("out", [3, 16, 40, 90])
@pytest.mark.parametrize("noise", [False, True], ids=["smooth", "noise"])
def test_resampling_is_pillows_to_one_level(out, noise):
    images, sizes = make_images(noise=noise)
    for boxes in (boxes_within(sizes), torch.tensor([[0, 0, w, h] for h, w in SIZES])):
        ours = 255 * resample(images, sizes, boxes, out)
        for index, box in enumerate(boxes.tolist()):
            image = as_pillow(images[index], sizes[index])
            expected = as_levels(image.resize((out, out), Image.Resampling.BILINEAR, box=box))
            assert (ours[index].round() - expected).abs().max() <= 1
            # Pillow rounds twice, which is no more than a level off and unbiased.
            assert (ours[index] - expected).mean().abs() < 0.15 or out == 3


@pytest.mark.parametrize("out", [3, 16, 90])
def test_resampling_follows_its_formula(out):
    images, sizes = make_images(noise=True)
    boxes = boxes_within(sizes)
    boxes[1] = boxes[1, [2, 1, 0, 3]]  # left and right swapped
    boxes[2] = boxes[2, [0, 3, 2, 1]]  # top and bottom swapped
    boxes[3] = torch.tensor([-3.3, -2.0, 30.0, 11.5])  # leaves the image
    kinds = torch.float32, torch.float64
    ours, exact = (resample(images, sizes, boxes, out, dtype=kind) for kind in kinds)
    assert (ours.dtype, exact.dtype) == (torch.float32, torch.float64)
    for index, box in enumerate(boxes.tolist()):
        expected = slow_resample(images[index], SIZES[index], box, out)
        assert (ours[index].double() - expected).abs().max() < 1e-6
        assert (exact[index] - expected).abs().max() < 1e-12


@pytest.mark.parametrize(
    "boxes",
    [torch.tensor([[0.3, 1.2, 20.1, 22.7]]), torch.tensor([[3, 1, 43, 41]])],
    ids=["fractions", "padded"],
)
def test_flips_are_exact(boxes):
    images, sizes = make_images(noise=True)
    plain = resample(images[:1], sizes[:1], boxes, 24)
    horizontal = resample(images[:1], sizes[:1], boxes[:, [2, 1, 0, 3]], 24)
    vertical = resample(images[:1], sizes[:1], boxes[:, [0, 3, 2, 1]], 24)
    assert torch.equal(horizontal, plain.flip(-1))
    assert torch.equal(vertical, plain.flip(-2))
    assert not torch.equal(horizontal, plain)


def test_padded_crops_are_exactly_slices_of_the_padded_image():
    images = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8)
    sizes = torch.tensor([[32, 32]]).expand(50, 2)
    boxes = padded_crop_boxes(sizes, torch.rand(50, 2), 32, 4)
    cut = resample(images, sizes, boxes, 32)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4)).float() / 255
    for crop, image, (left, top, _, _) in zip(cut, padded, boxes.long().tolist(), strict=True):
        assert torch.equal(crop, image[:, top + 4 : top + 36, left + 4 : left + 36])
    assert boxes[:, :2].amin() == -4
    assert boxes[:, :2].amax() == 4


def test_padded_crops_are_at_every_place_alike():
    numbers = (torch.arange(9 * 100) + 0.5) / 900
    sizes = torch.tensor([[32, 40]]).expand(900, 2)
    boxes = padded_crop_boxes(sizes, torch.stack((numbers, numbers.flip(0)), 1), 32, 4)
    left, top, right, bottom = boxes.unbind(1)
    assert (top + 4).long().bincount().tolist() == [100] * 9
    assert (left + 4).long().bincount(minlength=17).amin() >= 52
    assert left.amax() == 12
    assert torch.equal(right - left, torch.full((900,), 32.0, dtype=torch.float64))
    assert torch.equal(bottom - top, right - left)


@pytest.mark.parametrize(("size", "resize"), [(224, 256), (224, 232), (32, 32), (33, 50)])
def test_centre_crops_are_those_of_resizing_first(size, resize):
    # 3 : 4 and worse, so that long sides are cut to whole numbers and halves are rounded.
    shapes = [(resize, resize), (300, 401), (257, 190), (resize, resize + 1), (resize + 3, resize)]
    height, width = max(s[0] for s in shapes), max(s[1] for s in shapes)
    images = torch.zeros(len(shapes), 3, height, width, dtype=torch.uint8)
    for image, (h, w) in zip(images, shapes, strict=True):
        image[:, :h, :w] = torch.randint(0, 256, (3, h, w))
    sizes = torch.tensor(shapes)
    boxes = centre_boxes(sizes, size, resize)
    ours = (255 * resample(images, sizes, boxes, size)).round()
    for image, (h, w), crop in zip(images, shapes, ours, strict=True):
        short, long = min(h, w), max(h, w)
        other = int(resize * long / short)
        new = (resize, other) if w < h else (other, resize)
        resized = as_pillow(image, (h, w)).resize(new, Image.Resampling.BILINEAR)
        left, top = round((new[0] - size) / 2), round((new[1] - size) / 2)
        expected = as_levels(resized.crop((left, top, left + size, top + size)))
        assert (crop - expected).abs().max() <= 1
    assert (boxes >= 0).all()
    assert (boxes[:, [3, 2]] <= sizes).all()  # so Pillow takes them too


def test_centre_crops_of_fitting_images_are_untouched():
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    sizes = torch.tensor([[32, 32]] * 2)
    assert torch.equal(resample(images, sizes, centre_boxes(sizes, 32, 32), 32), images / 255)


def slow_random_resized(height, width, numbers, scale):
    """The random-resized crop of one image, try by try."""
    ratio = (3 / 4, 4 / 3)
    for attempt in range(10):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * numbers[attempt])
        logs = [math.log(r) for r in ratio]
        aspect = math.exp(logs[0] + (logs[1] - logs[0]) * numbers[10 + attempt])
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = math.floor(numbers[20] * (height - h + 1))
            left = math.floor(numbers[21] * (width - w + 1))
            return [left, top, left + w, top + h], attempt
    if width / height < ratio[0]:
        w, h = width, round(width / ratio[0])
    elif width / height > ratio[1]:
        w, h = round(height * ratio[1]), height
    else:
        w, h = width, height
    left, top = (width - w) // 2, (height - h) // 2
    return [left, top, left + w, top + h], None


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.9, 1.0)])
def test_random_resized_crops_take_the_first_try_that_fits(scale, monkeypatch):
    monkeypatch.setattr(crops, "SCALE", scale)
    shapes = [(256, 256), (256, 341), (500, 256), (7, 5), (100, 1000), (1000, 30)] * 60
    sizes, numbers = torch.tensor(shapes), torch.rand(len(shapes), 22)
    boxes = random_resized_boxes(sizes, numbers)
    attempts = set()
    for box, (height, width), row in zip(boxes.tolist(), shapes, numbers.tolist(), strict=True):
        expected, attempt = slow_random_resized(height, width, row, scale)
        assert box == expected
        attempts.add(attempt)
    assert {0, 1, 2, None} <= attempts


def test_random_resized_crops_have_the_right_distribution(monkeypatch):
    # In a huge square of which at most a quarter is taken, the first try always fits.
    monkeypatch.setattr(crops, "SCALE", (0.05, 0.25))
    sizes = torch.tensor([[4000, 4000]]).expand(20_000, 2)
    left, top, right, bottom = random_resized_boxes(sizes, torch.rand(20_000, 22)).unbind(1)
    width, height = right - left, bottom - top
    area, log_ratio = width * height / 4000**2, (width / height).log()
    assert area.mean().item() == pytest.approx(0.15, abs=0.002)
    assert area.var().item() == pytest.approx(0.2**2 / 12, rel=0.03)
    limit = math.log(4 / 3)
    assert log_ratio.mean().item() == pytest.approx(0, abs=0.006)
    assert log_ratio.var().item() == pytest.approx((2 * limit) ** 2 / 12, rel=0.03)
    assert log_ratio.abs().amax() < limit + 0.01
    for corner, side in ((left, width), (top, height)):
        place = corner / (4000 - side)
        assert place.mean().item() == pytest.approx(0.5, abs=0.01)
        assert place.var().item() == pytest.approx(1 / 12, rel=0.03)


def test_random_resized_crops_fall_back_to_the_centre(monkeypatch):
    # No box of such an area fits, so every try fails.
    monkeypatch.setattr(crops, "SCALE", (5.0, 6.0))
    sizes = torch.tensor([[100, 1000], [1000, 100], [100, 120]])
    numbers = torch.rand(3, 22)
    boxes = random_resized_boxes(sizes, numbers)
    assert boxes.tolist() == [[433, 0, 566, 100], [0, 433, 100, 566], [0, 0, 120, 100]]


def test_flips_follow_their_number():
    boxes = torch.rand(4, 4, dtype=torch.float64)
    flipped = flip_boxes(boxes, torch.tensor([0.0, 0.49, 0.5, 0.99]))
    assert torch.equal(flipped[:2], boxes[:2, [2, 1, 0, 3]])
    assert torch.equal(flipped[2:], boxes[2:])


def test_half_precision_stays_within_a_third_of_a_level():
    images, sizes = make_images(noise=True)
    boxes = boxes_within(sizes)
    exact = resample(images, sizes, boxes, 24)
    half = resample(images, sizes, boxes, 24, dtype=torch.float16)
    assert half.dtype == torch.float32
    assert 0 < (half - exact).abs().max() < 1 / 3 / 255


def test_autocast_does_not_round_images():
    images, sizes = make_images(noise=True)
    boxes = boxes_within(sizes)
    with torch.autocast("cpu", torch.bfloat16):
        inside = resample(images, sizes, boxes, 24)
    assert torch.equal(inside, resample(images, sizes, boxes, 24))


def test_an_image_is_resampled_alike_in_any_batch_and_canvas():
    images, sizes = make_images(noise=True)
    boxes = boxes_within(sizes)
    together = resample(images, sizes, boxes, 24)
    for index, (height, width) in enumerate(SIZES):
        alone = images[index : index + 1, :, :height, :width]
        one = slice(index, index + 1)
        assert torch.allclose(resample(alone, sizes[one], boxes[one], 24), together[one], atol=3e-7)
