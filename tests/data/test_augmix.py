import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from equicolor.data.augmix import COLOUR_OPERATIONS, OPERATIONS, AugMix, apply_operations

ALL = OPERATIONS + COLOUR_OPERATIONS
SIZE = 36
LEVELS = [0.1, 0.9, 1.7, 2.5, 2.999, 6.0, 9.99]
SIGNED = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
BILINEAR = Image.Resampling.BILINEAR


def pillow(image, name, level):
    """The operation by the definitions of AugMix, with Pillow."""
    strength, sign = abs(level), math.copysign(1, level)

    def whole(maximum):
        return int(strength * maximum / 10)

    def real(maximum):
        return strength * maximum / 10

    def affine(*matrix):
        return image.transform(image.size, Image.Transform.AFFINE, matrix, BILINEAR)

    blends = {
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "brightness": ImageEnhance.Brightness,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in blends:
        return blends[name](image).enhance(real(1.8) + 0.1)
    third = image.size[0] / 3
    return {
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "posterize": lambda: ImageOps.posterize(image, 4 - whole(4)),
        "rotate": lambda: image.rotate(sign * whole(30), BILINEAR),
        "solarize": lambda: ImageOps.solarize(image, 256 - whole(256)),
        "shear_x": lambda: affine(1, sign * real(0.3), 0, 0, 1, 0),
        "shear_y": lambda: affine(1, 0, 0, sign * real(0.3), 1, 0),
        "translate_x": lambda: affine(1, 0, sign * whole(third), 0, 1, 0),
        "translate_y": lambda: affine(1, 0, 0, 0, 1, sign * whole(third)),
    }[name]()


def make_images(kind, size=SIZE):
    """8-bit levels ``[8, 3, size, size]`` in float32."""
    generator = torch.Generator().manual_seed(0)
    if kind == "noise":
        return torch.randint(0, 256, (8, 3, size, size), generator=generator).float()
    if kind == "flat":  # one level a channel, and two in half of the images
        levels = torch.randint(0, 256, (8, 3, 1, 1), generator=generator).float()
        images = levels.repeat(1, 1, size, size)
        images[4:, :, : size // 3] = 17
        return images
    coarse = torch.rand(8, 3, 3, 3, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic")
    return (40 + 160 * smooth).clamp(0, 255).round()


def to_pillow(levels):
    return Image.fromarray(levels.permute(1, 2, 0).to(torch.uint8).contiguous().numpy())


def from_pillow(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


@pytest.mark.parametrize("kind", ["smooth", "noise", "flat"])
@pytest.mark.parametrize("name", ALL)
def test_operations_are_pillows(name, kind):
    images = make_images(kind)
    for level in [*LEVELS, *(-x for x in LEVELS if name in SIGNED)]:
        operation = torch.full((8,), ALL.index(name))
        ours = apply_operations(images, operation, torch.full((8,), level).double(), full=True)
        expected = torch.stack([from_pillow(pillow(to_pillow(i), name, level)) for i in images])
        off = (ours - expected).abs()
        # Pillow cuts off fractions, so the last bit of an interpolated value can be a level.
        assert off.max() <= 1.01, level
        assert (off > 0.01).double().mean() < 0.03, level


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "posterize", "solarize"])
def test_tones_are_exact(name):
    for kind in ("smooth", "noise", "flat"):
        images = make_images(kind, 21)
        for level in LEVELS:
            operation = torch.full((8,), ALL.index(name))
            ours = apply_operations(images, operation, torch.full((8,), level).double(), full=True)
            expected = [from_pillow(pillow(to_pillow(image), name, level)) for image in images]
            assert torch.allclose(ours, torch.stack(expected), atol=1e-3)


def test_images_of_a_batch_are_changed_each_by_its_own_operation():
    images = make_images("noise").repeat(2, 1, 1, 1)[: len(ALL)]
    operations = torch.arange(len(ALL))
    levels = torch.linspace(-2, 3, len(ALL), dtype=torch.float64)
    together = apply_operations(images, operations, levels, full=True)
    for index in range(len(ALL)):
        one = slice(index, index + 1)
        assert torch.equal(
            together[one], apply_operations(images[one], operations[one], levels[one], full=True)
        )


def test_no_operation_leaves_the_levels_as_they_are():
    images = make_images("noise")
    nothing, levels = torch.full((8,), -1), torch.full((8,), 3.0, dtype=torch.float64)
    assert torch.equal(apply_operations(images, nothing, levels, full=True), images)


def slow_augmix(image, numbers, slots):
    """One image, one chain, one operation at a time, in Pillow."""
    width, most = 3, 3
    numbers = iter(numbers)
    exponentials = [-math.log1p(-next(numbers)) for _ in range(2 + width)]
    mix = exponentials[0] / (exponentials[0] + exponentials[1])
    weights = [e / sum(exponentials[2:]) for e in exponentials[2:]]
    depths = [1 + int(3 * next(numbers)) for _ in range(width)]
    table = [[[next(numbers) for _ in range(most)] for _ in range(width)] for _ in range(3)]
    total = 0
    for chain in range(width):
        changed = to_pillow(image)
        for slot in range(depths[chain]):
            which, level, sign = (table[part][chain][slot] for part in range(3))
            strength = 0.1 + (3 - 0.1) * level
            name = slots[int(len(slots) * which)]
            changed = pillow(changed, name, -strength if sign > 0.5 else strength)
        total = total + weights[chain] * from_pillow(changed)
    return ((1 - mix) * image + mix * total) / 255


@pytest.mark.parametrize("full", [False, True], ids=["original", "full"])
def test_the_whole_is_what_pillow_does_image_by_image(full):
    augmix = AugMix(full=full)
    images = make_images("smooth")
    numbers = torch.rand(8, augmix.numbers)
    ours = augmix(images / 255, numbers)
    for image, row, result in zip(images, numbers.tolist(), ours, strict=True):
        expected = slow_augmix(image, row, ALL if full else OPERATIONS)
        assert (result - expected).abs().mean() < 0.3 / 255
        # A level lost early in a chain can grow in later ones (equalize stretches).
        assert ((result - expected).abs() > 4 / 255).double().mean() < 0.005


def moments(values):
    return values.double().mean().item(), values.double().var().item()


@pytest.fixture(scope="module")
def draw():
    generator = torch.Generator().manual_seed(0)
    return AugMix().draw(torch.rand(60_000, AugMix().numbers, generator=generator))


def test_mixes_are_beta_one_one(draw):
    mean, variance = moments(draw.mix)
    assert mean == pytest.approx(1 / 2, abs=0.005)
    assert variance == pytest.approx(1 / 12, rel=0.02)
    # Uniform: every tenth holds a tenth.
    tenths = torch.histc(draw.mix, 10, 0, 1) / len(draw.mix)
    assert torch.allclose(tenths, torch.full((10,), 0.1), atol=0.006)


def test_weights_are_dirichlet_one(draw):
    assert torch.allclose(draw.weights.sum(1), torch.ones(60_000))
    for chain in draw.weights.unbind(1):
        mean, variance = moments(chain)
        assert mean == pytest.approx(1 / 3, abs=0.004)
        assert variance == pytest.approx(1 / 18, rel=0.02)
        # Marginals are Beta(1, 2): half of the mass is below 1 - sqrt(1/2).
        assert (chain < 1 - math.sqrt(0.5)).double().mean().item() == pytest.approx(0.5, abs=0.01)
    covariance = torch.cov(draw.weights.T)
    assert covariance[0, 1].item() == pytest.approx(-1 / 36, rel=0.04)


def test_chains_are_uniformly_long_from_one_to_three(draw):
    used = draw.operations >= 0
    shares = used.sum(2).flatten().bincount(minlength=4) / used[..., 0].numel()
    assert shares[0] == 0
    assert torch.allclose(shares[1:], torch.full((3,), 1 / 3), atol=0.006)
    # A chain has its operations at its start.
    assert used[:, :, 0].all()
    assert (used[:, :, 1] | ~used[:, :, 2]).all()


@pytest.mark.parametrize(("full", "count"), [(False, 9), (True, 13)])
def test_operations_are_uniform(full, count):
    augmix = AugMix(full=full)
    draw = augmix.draw(torch.rand(30_000, augmix.numbers))
    used = draw.operations[draw.operations >= 0]
    shares = used.bincount() / len(used)
    assert torch.allclose(shares, torch.full((count,), 1 / count), atol=0.004)


def test_levels_are_uniform_up_to_the_severity_in_both_directions(draw):
    strength = draw.levels.abs()
    assert strength.amin().item() == pytest.approx(0.1, abs=1e-4)
    assert 2.999 < strength.amax().item() < 3
    mean, variance = moments(strength)
    assert mean == pytest.approx(1.55, abs=0.01)
    assert variance == pytest.approx(2.9**2 / 12, rel=0.02)
    assert (draw.levels < 0).double().mean().item() == pytest.approx(0.5, abs=0.005)


def test_parts_of_a_draw_are_independent(draw):
    lengths = (draw.operations >= 0).sum(2)
    columns = [draw.mix, draw.weights[:, 0], lengths[:, 0], lengths[:, 1]]
    columns += [draw.operations[:, 0, 0], draw.operations[:, 1, 0], draw.levels[:, 0, 0]]
    correlation = torch.corrcoef(torch.stack([c.double() for c in columns])).fill_diagonal_(0)
    assert correlation.abs().max() < 0.02


def test_extreme_numbers_are_harmless():
    augmix = AugMix()
    images = torch.rand(2, 3, SIZE, SIZE)
    for value in (0.0, 1 - 2**-24):
        mixed = augmix(images, torch.full((2, augmix.numbers), value))
        assert torch.isfinite(mixed).all()
        assert 0 <= mixed.min() <= mixed.max() <= 1 + 1e-6


def test_images_must_be_square():
    message = r"AugMix needs square images \[B, 3, s, s\], got \[1, 3, 8, 9\]"
    with pytest.raises(ValueError, match=message):
        AugMix()(torch.rand(1, 3, 8, 9), torch.rand(1, 35))
