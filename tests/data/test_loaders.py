"""Loaders: what an epoch shows, to how many processes, and that both data paths agree."""

import dataclasses
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from equicolor.data import loaders
from equicolor.data.augment import Augmentation
from equicolor.data.augmix import AugMix
from equicolor.data.decoding import decode
from equicolor.data.epochs import Epochs
from equicolor.data.images import CorruptImageError, ImageFile, ImageSet
from equicolor.data.loaders import (
    ResidentLoader,
    StreamingLoader,
    choose_data_path,
    evaluation_batch,
)

SIZES = ((40, 60), (75, 50), (33, 33), (48, 90), (64, 64), (30, 45), (50, 36))


@pytest.fixture(scope="module")
def image_set(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """Seven images of different sizes; the label is the number of the file."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    files = []
    for index, (height, width) in enumerate(SIZES):
        coarse = generator.integers(0, 256, (6, 8, 3), np.uint8)
        path = folder / f"{index}.png"
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(path)
        files.append(ImageFile(path))
    labels = torch.arange(len(files))
    return ImageSet("toy", "train", labels, tuple(map(str, labels.tolist())), tuple(files))


PLAIN = Augmentation(size=24, resize=32)
JITTERED = dataclasses.replace(PLAIN, jitter=0.5)
PADDED = Augmentation(size=32, crop="padded", resize=32)
MIXED = dataclasses.replace(PLAIN, augmix=AugMix(), views=3)


def both(image_set: ImageSet, augmentation: Augmentation, **options):
    short = 32
    resident = ResidentLoader(decode(image_set, short_side=short), augmentation, **options)
    streaming = StreamingLoader(image_set, augmentation, short_side=short, workers=0, **options)
    return resident, streaming


def epoch(loader, number: int = 0) -> tuple[Tensor, Tensor]:
    loader.set_epoch(number)
    images, labels = zip(*loader, strict=True)
    assert len(images) == len(loader)
    return torch.cat(images, -4), torch.cat(labels)


def images_at(epochs: Epochs, positions: Tensor) -> list[int]:
    return epochs.order(0)[positions % epochs.images].tolist()


class TestEpochs:
    def test_training_shows_every_image_and_fills_the_last_batch(self) -> None:
        epochs = Epochs(10, batch_size=4, seed=3, shuffle=True)
        shown = [images_at(epochs, epochs.positions(step)) for step in range(len(epochs))]
        assert [len(batch) for batch in shown] == [4, 4, 4]
        flat = [index for batch in shown for index in batch]
        assert sorted(flat[:10]) == list(range(10))
        assert flat[10:] == flat[:2]

    def test_a_batch_is_never_larger_than_the_dataset(self) -> None:
        epochs = Epochs(3, batch_size=8, shuffle=True)
        assert len(epochs) == 1
        assert sorted(images_at(epochs, epochs.positions(0))) == [0, 1, 2]

    def test_but_processes_still_share_it_equally(self) -> None:
        slices = [Epochs(3, 8, shuffle=True, rank=rank, world_size=2) for rank in (0, 1)]
        positions = [epochs.positions(0) for epochs in slices]
        assert torch.cat(positions).tolist() == [0, 1, 2, 3]
        shown = images_at(slices[0], torch.cat(positions))
        assert shown[3] == shown[0]
        # What is shown again is drawn anew.
        assert len(slices[0].numbers(0, torch.cat(positions), 1).unique()) == 4

    @pytest.mark.parametrize("world_size", [2, 4])
    @pytest.mark.parametrize("shuffle", [True, False])
    def test_processes_share_what_one_process_sees(self, world_size: int, shuffle: bool) -> None:
        options = {"batch_size": 8, "seed": 1, "shuffle": shuffle}
        alone = Epochs(19, **options)
        parts = [Epochs(19, **options, rank=r, world_size=world_size) for r in range(world_size)]
        for step in range(len(alone)):
            slices = [part.positions(step) for part in parts]
            joined = torch.cat(slices)
            assert torch.equal(joined.sort().values, alone.positions(step))
            if shuffle:
                assert torch.equal(joined, alone.positions(step))
            numbers = torch.cat([p.numbers(2, s, 5) for p, s in zip(parts, slices, strict=True)])
            assert torch.equal(numbers, alone.numbers(2, joined, 5))

    def test_epochs_and_seeds_differ(self) -> None:
        epochs, other = Epochs(50, 10, shuffle=True), Epochs(50, 10, seed=1, shuffle=True)
        positions = epochs.positions(0)
        assert not torch.equal(epochs.order(0), epochs.order(1))
        assert not torch.equal(epochs.order(0), other.order(0))
        assert not torch.equal(epochs.numbers(0, positions, 3), epochs.numbers(1, positions, 3))
        assert not torch.equal(epochs.numbers(0, positions, 3), other.numbers(0, positions, 3))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch_size": 6, "world_size": 4}, "batch_size must be a multiple of 4"),
            ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
            ({"images": 0, "batch_size": 4}, "images must be at least 1, got 0"),
            ({"batch_size": 4, "rank": 2, "world_size": 2}, r"rank must lie in \[0, 2\), got 2"),
        ],
    )
    def test_errors(self, options: dict[str, int], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Epochs(**{"images": 10, **options})

    def test_imagenet_is_not_too_large(self) -> None:
        assert len(Epochs(1_281_167, 256, shuffle=True)) == 5005


@pytest.mark.parametrize(
    ("device", "size", "images"),
    [("cuda", 224, 256), ("cpu", 224, 8), ("cpu", 112, 32), ("cpu", 28, 256), ("cpu", 2000, 1)],
)
def test_an_evaluation_takes_few_large_images_at_a_time_on_a_cpu(
    device: str, size: int, images: int
) -> None:
    assert evaluation_batch(device, size) == images


@pytest.mark.parametrize("augmentation", [PLAIN, JITTERED, PADDED, MIXED])
def test_both_paths_give_the_same_images(image_set: ImageSet, augmentation: Augmentation) -> None:
    loaders = both(image_set, augmentation, batch_size=4, shuffle=True, seed=5)
    for number in (0, 3):
        (first, labels), (second, again) = (epoch(loader, number) for loader in loaders)
        assert torch.equal(labels, again)
        assert (
            first.shape
            == second.shape
            == (*[3] * (augmentation.views > 1), 8, 3, *[first.shape[-1]] * 2)
        )
        difference = (255 * (first - second)).abs()
        if augmentation.jitter:
            # A level more or less turns the hue of a nearly grey pixel.
            assert difference.mean() < 0.5
            assert difference.quantile(0.99) < 4
        elif augmentation.augmix is not None:
            assert difference[0].max() < 2
            assert difference.mean() < 1.5  # its tables are steps: a level may become many
        else:
            assert difference.max() < 2


def test_evaluation_shows_every_image_once_without_chance(image_set: ImageSet) -> None:
    evaluation = JITTERED.evaluation()
    loaders = both(image_set, evaluation, batch_size=4)
    for loader in loaders:
        images, labels = epoch(loader)
        assert labels.tolist() == list(range(7))
        again, _ = epoch(loader, 9)
        assert torch.equal(images, again)
        assert [len(labels) for _, labels in loader] == [4, 3]
    first, second = (epoch(loader)[0] for loader in loaders)
    assert (255 * (first - second)).abs().max() < 2


@pytest.mark.parametrize("shuffle", [True, False])
def test_processes_share_the_batches_of_one(image_set: ImageSet, shuffle: bool) -> None:
    decoded = decode(image_set, short_side=32)
    options = {"batch_size": 4, "shuffle": shuffle, "seed": 2}
    augmentation = JITTERED if shuffle else JITTERED.evaluation()
    alone, labels = epoch(ResidentLoader(decoded, augmentation, **options), 1)
    parts = []
    for rank in range(2):
        loader = ResidentLoader(decoded, augmentation, **options, rank=rank, world_size=2)
        loader.set_epoch(1)
        parts.append(list(loader))
    if shuffle:
        steps = [torch.cat([part[step][0] for part in parts]) for step in range(2)]
        assert torch.equal(torch.cat(steps), alone)
    else:
        seen = torch.cat([labels for part in parts for _, labels in part])
        assert seen.sort().values.tolist() == labels.tolist()


def test_an_iterator_made_early_follows_the_epoch(image_set: ImageSet) -> None:
    loader, _ = both(image_set, PLAIN, batch_size=4, shuffle=True)
    early = iter(loader)  # as trainers do, before they say which epoch it is
    loader.set_epoch(4)
    images, _ = next(early)
    assert torch.equal(images, next(iter(loader))[0])
    loader.set_epoch(0)
    assert not torch.equal(images, next(iter(loader))[0])


def test_workers_give_what_one_process_gives(image_set: ImageSet) -> None:
    options = {"short_side": 32, "batch_size": 4, "shuffle": True}
    expected = StreamingLoader(image_set, JITTERED, workers=0, **options)
    workers = StreamingLoader(image_set, JITTERED, workers=2, **options)
    state = torch.get_rng_state()
    for number in (0, 1):  # workers live on from epoch to epoch
        assert torch.equal(epoch(workers, number)[0], epoch(expected, number)[0])
    assert torch.equal(torch.get_rng_state(), state)
    # Gone with its last reference: the garbage collector would end queues before workers.
    gone = weakref.ref(workers)
    gc.disable()
    try:
        del workers
        assert gone() is None
    finally:
        gc.enable()


def test_corrupt_images_are_named_or_skipped(image_set: ImageSet, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(image_set.files[2].read()[:100])
    files = (*image_set.files[:2], ImageFile(broken), *image_set.files[3:])
    damaged = dataclasses.replace(image_set, files=files)
    options = {"short_side": 32, "workers": 0, "batch_size": 4}
    with pytest.raises(CorruptImageError, match=r"broken\.png"):
        list(StreamingLoader(damaged, PLAIN, shuffle=True, **options))
    training = StreamingLoader(damaged, PLAIN, shuffle=True, skip_corrupt=True, **options)
    images, labels = epoch(training)
    assert len(labels) == 8  # static shapes
    assert images[labels == loaders.SKIPPED].abs().max() == 0
    assert 1 <= (labels == loaders.SKIPPED).sum() <= 2
    assert len(training.skipped) == 1
    testing = StreamingLoader(damaged, PLAIN.evaluation(), skip_corrupt=True, **options)
    assert epoch(testing)[1].tolist() == [0, 1, 3, 4, 5, 6]


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_workers_are_one_line(image_set: ImageSet, workers: int, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    for path, error in ((broken, CorruptImageError), (tmp_path / "gone.png", FileNotFoundError)):
        damaged = dataclasses.replace(image_set, files=(ImageFile(path), *image_set.files[1:]))
        loader = StreamingLoader(damaged, PLAIN.evaluation(), workers=workers, batch_size=4)
        with pytest.raises(error) as caught:
            list(loader)
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "DataLoader" not in str(caught.value)


def test_batches_without_any_whole_image(image_set: ImageSet, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    files = (*[ImageFile(broken)] * 4, *image_set.files[4:])
    damaged = dataclasses.replace(image_set, files=files)
    options = {"short_side": 32, "workers": 0, "batch_size": 4, "skip_corrupt": True}
    testing = StreamingLoader(damaged, PLAIN.evaluation(), **options)
    assert [labels.tolist() for _, labels in testing] == [[4, 5, 6]]


def test_the_data_path_follows_the_memory(
    image_set: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = sum(3 * h * w for h, w in decode(image_set, short_side=32).sizes.tolist())
    for memory, expected in ((2 * needed, "resident"), (2 * needed - 4, "streaming")):
        monkeypatch.setattr(loaders, "_memory", lambda device, memory=memory: memory)
        assert choose_data_path(image_set, "cpu", short_side=32) == expected
        assert choose_data_path(image_set, "cpu", data_path="streaming") == "streaming"
        assert choose_data_path(image_set, "cpu", data_path="resident") == "resident"
    with pytest.raises(ValueError, match="data_path must be one of 'auto', 'resident'"):
        choose_data_path(image_set, "cpu", data_path="gpu")


def test_this_computer_has_memory() -> None:
    assert loaders._memory(torch.device("cpu")) > 2**28


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("augmentation", [PLAIN, PADDED, MIXED])
def test_a_gpu_gives_the_same_images(image_set: ImageSet, augmentation: Augmentation) -> None:
    options = {"batch_size": 4, "shuffle": True, "seed": 5}
    expected, streaming = both(image_set, augmentation, **options)
    on_gpu = both(image_set, augmentation, **options, device="cuda")
    for number in (0, 1):
        for cpu, gpu in zip((expected, streaming), on_gpu, strict=True):
            images, labels = epoch(cpu, number)
            found, again = epoch(gpu, number)
            assert torch.equal(again.cpu(), labels)
            difference = (255 * (found.cpu() - images)).abs()
            assert difference.flatten(-4).quantile(0.99) < 2
    torch.cuda.set_sync_debug_mode("error")
    try:
        images, _ = next(iter(on_gpu[0]))  # without waiting for the device
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert images.flatten(0, -4).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_made_ahead_are_not_overwritten(image_set: ImageSet) -> None:
    decoded = decode(image_set, short_side=32)
    options = {"batch_size": 64, "shuffle": True}
    expected = ResidentLoader(decoded, PLAIN, **options)
    loader = ResidentLoader(decoded, PLAIN, **options, device="cuda")
    busy = torch.randn(4000, 4000, device="cuda")
    for number in range(20):
        loader.set_epoch(number)
        expected.set_epoch(number)
        (images, _), (wanted, _) = next(iter(loader)), next(iter(expected))
        for _ in range(5):  # the batch is read long after the next ones were made
            busy = busy @ busy / 4000
        kept = images + 0 * busy[0, 0]
        torch.testing.assert_close(kept.cpu(), wanted, atol=0.01, rtol=0)
