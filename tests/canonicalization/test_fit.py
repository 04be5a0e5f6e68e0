"""Selectors trained on images without labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import equicolor
from equicolor.canonicalization import hue_selector
from equicolor.canonicalization.fit import collect, fit_selector
from equicolor.color import shift_hue
from equicolor.models import CheckpointError, z2cnn
from equicolor.models.selector import find_modes

N = 6


def skies(count, seed=0):
    """Blue above, green below, with a yellow sun somewhere: images of which the hue is known."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, 3, 32, 32)
    images[:, :, :16] = torch.tensor([0.3, 0.5, 0.9]).view(3, 1, 1)
    images[:, :, 16:] = torch.tensor([0.2, 0.6, 0.1]).view(3, 1, 1)
    for image in images:
        row, column = torch.randint(0, 26, (2,), generator=generator).tolist()
        image[:, row : row + 6, column : column + 6] = torch.tensor([0.9, 0.8, 0.2]).view(3, 1, 1)
    noise = 0.1 * (torch.rand(images.shape, generator=generator) - 0.5)
    return (images * (0.7 + 0.3 * torch.rand(count, 1, 1, 1, generator=generator)) + noise).clamp(
        0, 1
    )


def nothing(images):
    return images


@pytest.fixture(scope="module")
def fitted():
    model = equicolor.canonicalize(z2cnn(5), select=hue_selector(rotations=N, size=16, width=4))
    return model.fit(skies(64), epochs=40, batch_size=32, learning_rate=0.01)


def test_unseen_images_are_put_where_they_belong(fitted):
    images = skies(64, seed=1)
    with torch.no_grad():
        for turns in (0.0, 0.13, 0.5, -0.3):
            off = fitted.angle(shift_hue(images, turns)) - turns
            off = (torch.remainder(off + 0.5, 1) - 0.5).abs()
            assert (off < 0.5 / N).float().mean() > 0.9
            assert off.median() < 0.15 / N  # between the grid's points as well


def test_info_tells_of_the_training(fitted):
    assert fitted.info["fitted"]["images"] == 64
    assert fitted.fitted.loss < 1.3  # chance is log 6 = 1.79


def test_the_same_twice_and_another_seed():
    images = collect(skies(32), 16, nothing)
    weights = []
    for seed in (0, 0, 1):
        selector = hue_selector(rotations=N, size=16, width=4)
        fit_selector(selector, images, epochs=2, batch_size=16, seed=seed)
        weights.append(torch.cat([each.flatten() for each in selector.state_dict().values()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_an_interrupted_fit_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("equicolor.canonicalization.fit._SAVE_EVERY", 0.0)
    images = collect(skies(32), 16, nothing)
    settings = {"epochs": 4, "batch_size": 16}
    selectors = [hue_selector(rotations=N, size=16, width=4) for _ in range(2)]
    fit_selector(selectors[0], images, **settings)
    steps = []

    def stop_in_third_epoch(done, total):
        steps.append(done)
        if len(steps) == 5:
            raise KeyboardInterrupt

    file = tmp_path / "fit.ckpt"
    with pytest.raises(KeyboardInterrupt):
        fit_selector(
            selectors[1], images, **settings, checkpoint=file, progress=stop_in_third_epoch
        )
    fit_selector(
        selectors[1], images, **settings, checkpoint=file, progress=lambda d, _: steps.append(d)
    )
    assert steps == [1, 2, 3, 4, 5, 5, 6, 7, 8]
    for a, b in zip(*(each.state_dict().values() for each in selectors), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(CheckpointError, match="other images or settings"):
        fit_selector(selectors[1], images, epochs=5, checkpoint=file)


def test_batches_pairs_tensors_and_bytes_are_the_same_images():
    images = skies(32)
    expected = collect(images, 16, nothing)
    pairs = torch.utils.data.TensorDataset(images, torch.arange(32))
    loader = torch.utils.data.DataLoader(pairs, batch_size=10)
    for other in (
        loader,
        list(images.split(8)),
        iter(images.split(8)),
        (255 * images).round().byte(),
    ):
        assert torch.equal(collect(other, 16, nothing), expected)
    assert expected.dtype == torch.uint8
    assert expected.shape == (32, 3, 32, 32)


def test_a_folder_of_images_and_folders(tmp_path):
    for number, image in enumerate(skies(20)):
        folder = tmp_path / f"{number % 3}" / "deeper"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (255 * image).byte().movedim(0, 2).numpy().astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no image")
    model = equicolor.canonicalize(z2cnn(5), select=hue_selector(rotations=N, size=16, width=4))
    assert model.fit(tmp_path, epochs=1, batch_size=8).fitted.images == 20


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.rand(15, 3, 8, 8), "at least 16 images, got 15"),
        ([], "at least 16 images, got 0"),
        (255 * torch.rand(16, 3, 8, 8), r"images in \[0, 1\]"),
        (torch.full((16, 3, 8, 8), torch.nan), "nan"),
        (torch.rand(16, 1, 8, 8), "3, H, W"),
        (["photo.jpg"], "tensors, or pairs that begin with one; got str"),
        (None, "a dataset by name or a folder; got NoneType"),
        (torch.rand(16, 1, 8, 8).expand(16, 3, 8, 8), "all grey"),
    ],
)
def test_bad_images(images, words):
    model = equicolor.canonicalize(z2cnn(5), select=hue_selector(rotations=N, size=16, width=4))
    with pytest.raises((TypeError, ValueError), match=words):
        model.fit(images)


def test_folders_without_images(tmp_path):
    model = equicolor.canonicalize(z2cnn(5))
    with pytest.raises(ValueError, match="holds no images"):
        model.fit(tmp_path)
    with pytest.raises(NotADirectoryError, match="not a folder"):
        model.fit(tmp_path / "absent")


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"learning_rate": -1.0},
        {"learning_rate": "0.1"},
        {"seed": -1},
        {"seed": 2**70},
        {"seed": 1.5},
        {"seed": None},
        {"checkpoint": Path()},
    ],
)
def test_bad_settings(options):
    model = equicolor.canonicalize(z2cnn(5), select=hue_selector(rotations=N, size=16, width=4))
    steps = []
    with pytest.raises((TypeError, ValueError, OSError), match=next(iter(options))):
        model.fit(skies(16), progress=lambda *step: steps.append(step), **options)
    assert not steps  # nothing was trained in vain


def test_a_loss_that_is_no_number_ends_the_fit():
    model = equicolor.canonicalize(z2cnn(5), select=hue_selector(rotations=N, size=16, width=4))
    with pytest.raises(ValueError, match="smaller learning_rate"):
        model.fit(skies(16), epochs=4, batch_size=16, learning_rate=1e30)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_networks_of_another_dtype_are_fitted_as_those_of_float32(dtype):
    selectors = []
    for each in (torch.float32, dtype):
        selector = hue_selector(rotations=N, size=16, width=4)
        model = equicolor.canonicalize(z2cnn(5), select=selector).to(each)
        selectors.append(model.fit(skies(16), epochs=1, batch_size=16).selector.state_dict())
    for key, value in selectors[0].items():
        assert torch.equal(selectors[1][key], value.to(selectors[1][key].dtype))
    assert selectors[1]["score.weight"].dtype == dtype


def test_a_fit_that_ends_early_leaves_an_untrained_selector():
    def interrupt(done, total):
        raise KeyboardInterrupt

    images, options = skies(16), {"epochs": 2, "batch_size": 16}
    model = equicolor.canonicalize(z2cnn(5), select=hue_selector(rotations=N, size=16, width=4))
    for fitted_before in (False, True):
        if fitted_before:
            model.fit(images, **options).angle(images)
        with pytest.raises(KeyboardInterrupt):
            model.fit(images, **options, progress=interrupt)
        with pytest.raises(ValueError, match="not trained"):
            model.angle(images)
        assert model.info["fitted"] is None
    fitted = model.fit(images, **options).fitted
    with pytest.raises(ValueError, match="at least 16 images"):
        model.fit(images[:2])
    model.angle(images)  # nothing was drawn anew
    assert model.fitted == fitted


def test_a_fit_that_cannot_be_continued_leaves_the_selector_as_it_was(tmp_path):
    images, options = skies(16), {"batch_size": 16, "checkpoint": tmp_path / "fit.ckpt"}
    selector = hue_selector(rotations=N, size=16, width=4)
    model = equicolor.canonicalize(z2cnn(5), select=selector).bfloat16()
    angles = model.fit(images, epochs=1, **options).angle(images)
    with pytest.raises(CheckpointError, match="other images or settings"):
        model.fit(images, epochs=2, **options)
    assert model.selector.score.weight.dtype == torch.bfloat16
    assert torch.equal(model.angle(images), angles)


def test_a_fit_that_ends_early_keeps_torchs_random_numbers():
    def interrupt(done, total):
        raise KeyboardInterrupt

    model = equicolor.canonicalize(z2cnn(5), select=hue_selector(rotations=N, size=16, width=4))
    before = torch.random.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        model.fit(skies(16), epochs=1, batch_size=16, progress=interrupt)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_networks_that_need_no_training():
    with pytest.raises(ValueError, match="nothing to train"):
        equicolor.canonicalize(z2cnn(5), select="energy").fit(skies(16))


def test_all_of_a_crop_lies_within_the_image():
    from equicolor.canonicalization.fit import _random_views

    images = torch.arange(2 * 3 * 20 * 20).view(2, 3, 20, 20)
    random = torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    views = _random_views(images, random, 10)
    assert views.shape == (2, 3, 10, 10)
    for image, view in zip(images, views, strict=True):
        assert set(view[1].flatten().tolist()) <= set(image[1].flatten().tolist())
    whole = _random_views(images, torch.tensor([1.0, 0.0, 0.0, 0.0]).view(4, 1).expand(4, 2), 20)
    assert torch.equal(whole, images)
    mirrored = torch.tensor([1.0, 0.0, 0.0, 0.9]).view(4, 1).expand(4, 2)
    assert torch.equal(_random_views(images, mirrored, 20), images.flip(-1))


def test_modes_of_a_fitted_selector_are_probabilities(fitted):
    with torch.no_grad():
        _, probabilities = find_modes(fitted.scores(skies(16, seed=2)), 2)
    assert (probabilities.sum(1) <= 1 + 1e-6).all()
    assert probabilities[:, 0].median() > 0.8


def test_a_selector_sees_images_in_the_light_it_will_see_them_in():
    seen = []

    def prepare(images):
        seen.append(images)
        return torch.zeros_like(images)

    assert not collect(skies(16), 16, prepare).any()
    assert seen[0].shape == (16, 3, 32, 32)


def test_a_large_tensor_is_taken_in_parts():
    """As floating-point numbers, all of it may not fit into the memory."""
    counts = []

    def prepare(images):
        counts.append(len(images))
        return images

    images = torch.randint(256, (600, 3, 4, 4), dtype=torch.uint8)
    kept = collect(images, 2, prepare)
    assert torch.equal(kept, images)
    assert counts == [256, 256, 88]
