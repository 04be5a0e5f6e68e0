import dataclasses
import itertools

import pytest
import torch

from equicolor._random import uniform
from equicolor.color import shift_hue
from equicolor.data.augment import Augmentation
from equicolor.data.augmix import AugMix
from equicolor.data.crops import centre_boxes, random_resized_boxes, resample

SIZE = 16
SMALL = {"size": SIZE, "resize": 20}


@pytest.fixture
def batch():
    """Images of different sizes and as many numbers as any augmentation takes."""
    images = torch.randint(0, 256, (6, 3, 30, 34), dtype=torch.uint8)
    sizes = torch.tensor([[30, 34], [20, 20], [30, 20], [17, 30], [25, 25], [30, 30]])
    return images, sizes, torch.rand(6, 200)


def apply(augmentation, images, sizes, numbers):
    """Boxes, then pixels, then colours, as loaders do it."""
    boxes = augmentation.boxes(sizes, numbers)
    crops = resample(images, sizes, boxes, augmentation.size, dtype=augmentation.dtype)
    return augmentation.finish(crops, numbers)


def run(augmentation, batch):
    images, sizes, numbers = batch
    return apply(augmentation, images, sizes, numbers[:, : augmentation.numbers])


def test_images_have_one_size_and_are_contiguous(batch):
    result = run(Augmentation(**SMALL, jitter=0.3, augmix=AugMix(), gray=True), batch)
    assert result.shape == (6, 3, SIZE, SIZE)
    assert result.is_contiguous()


def test_hue_jitter_is_shift_hue_image_by_image(batch):
    plain = run(Augmentation(**SMALL), batch)
    jittered = run(Augmentation(**SMALL, jitter=0.4), batch)
    turns = 0.4 * (2 * batch[2][:, 23] - 1)
    for image, before, turn in zip(jittered, plain, turns.tolist(), strict=True):
        assert torch.allclose(image, shift_hue(before, turn), atol=2e-6)
    assert (jittered - plain).abs().amax((1, 2, 3)).amin() > 0.01


def test_hue_shifts_are_uniform():
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1).expand(1000, 3, 1, 1)
    augmentation = Augmentation(size=1, resize=1, jitter=0.25)
    numbers = torch.zeros(1000, augmentation.numbers)
    numbers[:, 23] = (torch.arange(1000) + 0.5) / 1000
    shifted = augmentation.finish(red, numbers)
    turns = torch.linspace(-0.25, 0.25, 2001)[1::2]
    assert torch.allclose(shifted, shift_hue(red, turns), atol=1e-5)


def test_grey_is_the_mean_repeated(batch):
    colour = run(Augmentation(**SMALL), batch)
    grey = run(Augmentation(**SMALL, gray=True), batch)
    assert torch.equal(grey, colour.mean(1, keepdim=True).expand_as(colour))


def test_crops_do_not_depend_on_what_else_is_switched_on(batch):
    images, sizes, numbers = batch
    for crop in ("resized", "padded", "centre"):
        plain = Augmentation(**SMALL, crop=crop, flip=False)
        boxes = plain.boxes(sizes, numbers[:, : plain.numbers])
        for jitter, augmix, views in ((0.5, None, 1), (0.0, AugMix(), 1), (0.1, AugMix(), 3)):
            more = dataclasses.replace(plain, jitter=jitter, augmix=augmix, views=views)
            assert torch.equal(more.boxes(sizes, numbers[:, : more.numbers]), boxes)
        flipped = dataclasses.replace(plain, flip=True)
        both = flipped.boxes(sizes, numbers[:, : flipped.numbers])
        assert torch.equal(both[:, [0, 2]].sort(1).values, boxes[:, [0, 2]])
    # Nor do hue shifts depend on AugMix: with chains of no share, nothing else is left.
    still = torch.cat((numbers[:, :24], torch.zeros(6, 200)), 1)
    still[:, 25] = 0.5  # the clean image's share of the Beta draw; its first number is 0
    plain, mixed = (Augmentation(**SMALL, jitter=0.4, augmix=a) for a in (None, AugMix()))
    assert torch.allclose(run(plain, (images, sizes, still)), run(mixed, (images, sizes, still)))


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 23),
        ({"flip": False}, 22),
        ({"flip": False, "crop": "centre"}, 0),
        ({"crop": "padded"}, 23),
        ({"jitter": 0.1, "flip": False}, 24),
        ({"augmix": AugMix()}, 24 + AugMix().numbers),
        ({"augmix": AugMix(), "views": 3}, 24 + 2 * AugMix().numbers),
    ],
)
def test_numbers_are_as_many_as_are_needed(options, count, batch):
    augmentation = Augmentation(**SMALL, **options)
    assert augmentation.numbers == count
    assert run(augmentation, batch).shape[-3:] == (3, SIZE, SIZE)
    # Without its last number it does not run.
    _, sizes, numbers = batch
    if count:
        with pytest.raises(ValueError, match=rf"numbers must have shape \[6, {count}\]"):
            augmentation.finish(torch.rand(6, 3, SIZE, SIZE), numbers[:, : count - 1])
        with pytest.raises(ValueError, match=rf"numbers must have shape \[6, {count}\]"):
            augmentation.boxes(sizes, numbers[:, : count - 1])


@pytest.mark.parametrize("crop", ["resized", "padded", "centre"])
@pytest.mark.parametrize("gray", [False, True], ids=["colour", "grey"])
def test_test_images_get_no_training_augmentation(crop, gray, batch):
    """Whatever is switched on for training, test images are centre crops and nothing else."""
    images, sizes, numbers = batch
    resize = SIZE if crop == "padded" else 20
    expected = resample(images, sizes, centre_boxes(sizes, SIZE, resize), SIZE)
    if gray:
        expected = expected.mean(1, keepdim=True).expand_as(expected)
    mixes = ((None, 1), (AugMix(), 1), (AugMix(full=True), 3))
    for flip, jitter, (augmix, views) in itertools.product((False, True), (0.0, 0.5), mixes):
        train = Augmentation(
            **SMALL, crop=crop, flip=flip, jitter=jitter, gray=gray, augmix=augmix, views=views
        )
        test = train.evaluation()
        assert test.numbers == 0
        for _ in range(2):  # no randomness of its own either
            assert torch.equal(apply(test, images, sizes, numbers[:, :0]), expected)
        assert test.evaluation() == test
        if flip or jitter or augmix or crop != "centre":
            assert not torch.equal(run(train, batch).expand(views, *expected.shape)[-1], expected)


def test_evaluation_leaves_small_images_as_they_are():
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    sizes = torch.tensor([[32, 32]] * 4)
    test = Augmentation(size=32, crop="padded").evaluation()
    assert torch.equal(apply(test, images, sizes, torch.empty(4, 0)), images / 255)


def test_three_views_share_all_but_the_mix(batch):
    augmentation = Augmentation(**SMALL, jitter=0.5, augmix=AugMix(), views=3)
    images, sizes, numbers = batch
    numbers = numbers[:, : augmentation.numbers]
    views = apply(augmentation, images, sizes, numbers)
    assert views.shape == (3, 6, 3, SIZE, SIZE)
    clean = dataclasses.replace(augmentation, augmix=None, views=1)
    assert torch.equal(views[0], run(clean, batch))
    single = dataclasses.replace(augmentation, views=1)
    assert torch.equal(views[1], run(single, batch))
    # The second mix is drawn from the numbers that follow.
    second = torch.cat((numbers[:, :24], numbers[:, 24 + AugMix().numbers :]), 1)
    assert torch.equal(views[2], apply(single, images, sizes, second))
    assert (views[1] - views[2]).abs().amax((1, 2, 3)).amin() > 0.01


def test_images_are_a_function_of_seed_and_place_alone():
    """An image gets the same augmentation whatever batch it is in."""
    augmentation = Augmentation(**SMALL, jitter=0.5, augmix=AugMix())
    images = torch.randint(0, 256, (8, 3, 20, 24), dtype=torch.uint8)
    sizes = torch.tensor([[20, 24]] * 8)
    numbers = uniform(torch.arange(8), 3, 5, augmentation.numbers)
    whole = apply(augmentation, images, sizes, numbers)
    parts = slice(0, 4), slice(4, 8)
    halves = [apply(augmentation, images[p], sizes[p], numbers[p]) for p in parts]
    assert torch.allclose(whole, torch.cat(halves), atol=1e-6)


def test_random_resized_crops_are_what_their_numbers_say(batch):
    _, sizes, numbers = batch
    augmentation = Augmentation(**SMALL, flip=False)
    expected = random_resized_boxes(sizes, numbers[:, :22])
    assert torch.equal(augmentation.boxes(sizes, numbers[:, :22]), expected)


def test_half_precision_is_near(batch):
    kinds = torch.float32, torch.float16
    full, half = (run(Augmentation(**SMALL, dtype=kind), batch) for kind in kinds)
    assert 0 < (full - half).abs().max() < 1 / 3 / 255


@pytest.mark.slow
def test_compiles_in_one_graph(batch):
    augmentation = Augmentation(**SMALL, jitter=0.5, augmix=AugMix(full=True), gray=True)
    images, sizes, numbers = batch
    numbers = numbers[:, : augmentation.numbers]
    compiled = torch.compile(apply, fullgraph=True, backend="aot_eager")
    expected = apply(augmentation, images, sizes, numbers)
    assert torch.allclose(compiled(augmentation, images, sizes, numbers), expected, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_runs_on_a_gpu_without_waiting_for_it(batch):
    augmentation = Augmentation(**SMALL, jitter=0.5, augmix=AugMix(full=True), views=3)
    on_gpu = [tensor.cuda() for tensor in batch]
    run(augmentation, on_gpu)  # whatever waits in the first call of a kernel
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = run(augmentation, on_gpu)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # A crop is the same to rounding; a chain may lose a level of 255 here and win one there.
    off = (result.cpu() - run(augmentation, batch)).abs()
    assert off[0].max() < 1e-4
    assert off.mean() < 0.1 / 255


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "center"}, "crop must be one of 'resized', 'padded', 'centre'; got 'center'"),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"resize": 200}, "resize must be at least size=224, got 200"),
        ({"jitter": 0.6}, r"jitter must lie in \[0, 0.5\] turns, got 0.6"),
        ({"views": 2}, "views must be 1, or 3 for the Jensen-Shannon loss; got 2"),
        ({"views": 3}, "views=3 needs augmix"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**options)
