"""Decoding once: the pixels, the cache, and gathering."""

import errno
import os
import signal
import subprocess
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data import trees

from equicolor.data import data_root, packing
from equicolor.data.datasets import DATASETS, dataset_state, load_dataset
from equicolor.data.decoding import Decoded, decode, default_cache, estimated_bytes
from equicolor.data.images import CorruptImageError, ImageFile, ImageSet


@pytest.fixture
def image_set(tmp_path: Path) -> ImageSet:
    """20 training images of different sizes."""
    trees.folder(tmp_path / "toys", {"cat": 15, "dog": 10})
    return load_dataset(tmp_path / "toys", "train")


def reference(file: ImageFile, short_side: int | None = None) -> torch.Tensor:
    """What Pillow makes of a file, ``[3, h, w]``."""
    image = Image.open(file.path).convert("RGB")
    if short_side is not None and min(image.size) > short_side:
        scale = short_side / min(image.size)
        size = tuple(int(side * scale + 1e-9) for side in image.size)
        image = image.resize(size, Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).movedim(2, 0)


def same(first: Decoded, second: Decoded) -> bool:
    return all(
        torch.equal(getattr(first, name), getattr(second, name))
        for name in ("pixels", "offsets", "sizes", "labels")
    )


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("short_side", [None, 256, 30])
def test_pixels_are_pillows(
    image_set: ImageSet, tmp_path: Path, short_side: int | None, cached: bool
) -> None:
    cache = tmp_path / "cache" if cached else None
    decoded = decode(image_set, short_side=short_side, cache=cache)
    assert len(decoded) == len(image_set) == 20
    assert torch.equal(decoded.labels, image_set.labels)
    assert decoded.class_names == ("cat", "dog")
    for index, file in enumerate(image_set.files):
        expected = reference(file, short_side)
        assert torch.equal(decoded.image(index), expected)
        assert decoded.sizes[index].tolist() == list(expected.shape[1:])
        if short_side == 30:
            assert min(expected.shape[1:]) <= 30
    assert (decoded.height, decoded.width) == tuple(decoded.sizes.amax(0).tolist())


def test_batches_are_padded_at_right_and_bottom(image_set: ImageSet) -> None:
    decoded = decode(image_set)
    indices = torch.tensor([3, 19, 0, 3])
    images, sizes = decoded.batch(indices)
    assert images.dtype == torch.uint8
    assert images.shape == (4, 3, decoded.height, decoded.width)
    for image, index, (height, width) in zip(images, indices, sizes.tolist(), strict=True):
        expected = torch.zeros_like(image)
        expected[:, :height, :width] = decoded.image(int(index))
        assert torch.equal(image, expected)


def test_every_image_can_be_gathered(image_set: ImageSet) -> None:
    # The last one, too, whose rows are followed by the end of the buffer.
    decoded = decode(image_set)
    images, _ = decoded.batch(torch.arange(20))
    total = sum(int(decoded.image(index).long().sum()) for index in range(20))
    assert int(images.long().sum()) == total


def test_large_images_are_cut_one_by_one(image_set: ImageSet, monkeypatch) -> None:
    decoded, indices = decode(image_set), torch.tensor([3, 19, 0, 3])
    boxes = torch.tensor([[1.0, 2, 17, 18], [20, 0, 0, 20], [-4, -4, 12, 12], [3, 3, 9, 9]])
    expected = decoded.crops(indices, boxes, 16)
    monkeypatch.setattr("equicolor.data.decoding._SMALL", 0)
    monkeypatch.setattr(Decoded, "batch", None)
    torch.testing.assert_close(decoded.crops(indices, boxes, 16), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_gathering_never_asks_the_device(image_set: ImageSet) -> None:
    decoded = decode(image_set)
    indices = torch.tensor([5, 1, 7])
    compiled = torch.compile(decoded.batch, fullgraph=True, backend="eager")
    assert torch.equal(compiled(indices)[0], decoded.batch(indices)[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_gathering_on_the_gpu(image_set: ImageSet) -> None:
    decoded = decode(image_set)
    indices = torch.tensor([5, 1, 7])
    there, on_gpu = decoded.to("cuda"), indices.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        images, sizes = there.batch(on_gpu)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = decoded.batch(indices)
    assert torch.equal(images.cpu(), expected[0])
    assert torch.equal(sizes.cpu(), expected[1])


@pytest.mark.parametrize("name", ["cifar10", "stl10"])
def test_arrays_become_the_same_type(name: str, tmp_path: Path) -> None:
    trees.TREES[name](tmp_path)
    raw = load_dataset(name, "train", root=tmp_path)
    decoded = decode(raw)
    order = torch.arange(len(raw)).flip(0)
    images, sizes = decoded.batch(order)
    assert torch.equal(images, raw.pixels[order])
    assert sizes.unique(dim=0).tolist() == [list(raw.pixels.shape[2:])]
    assert torch.equal(decoded.labels, raw.labels)


def test_arrays_are_resized_as_files_are(tmp_path: Path) -> None:
    trees.stl10(tmp_path)
    images = load_dataset("stl10", "train", root=tmp_path)
    decoded = decode(images, short_side=40)
    for index in range(len(images)):
        image = Image.fromarray(images.pixels[index].movedim(0, 2).contiguous().numpy())
        expected = np.array(image.resize((40, 40), Image.Resampling.BILINEAR))
        assert np.array_equal(decoded.image(index).movedim(0, 2).numpy(), expected)


def test_rows_beyond_an_image_are_black() -> None:
    pixels = torch.arange(3 * (4 + 4 + 2), dtype=torch.uint8)  # with room for the longest row
    sizes = torch.tensor([[1, 4], [2, 2]])
    decoded = Decoded(pixels, torch.tensor([0, 12]), sizes, torch.tensor([0, 0]), ("a",))
    images, _ = decoded.batch(torch.tensor([1]))
    assert images[0, :, 1].T.tolist() == [[18, 19, 20], [21, 22, 23], [0, 0, 0], [0, 0, 0]]


# The cache


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are decoded, as it happens."""
    seen: list[Path] = []
    plain = ImageFile.decode

    def watched(file: ImageFile) -> Image.Image:
        seen.append(file.path)
        return plain(file)

    monkeypatch.setattr(ImageFile, "decode", watched)
    return seen


def test_second_call_decodes_nothing(
    image_set: ImageSet, tmp_path: Path, decodes: list[Path]
) -> None:
    calls: list[tuple[int, int]] = []
    first = decode(image_set, cache=tmp_path / "cache")
    assert len(decodes) == 20
    again = decode(image_set, cache=tmp_path / "cache", progress=lambda *call: calls.append(call))
    assert len(decodes) == 20
    assert calls == [(20, 20)]
    assert same(first, again)
    assert same(first, decode(image_set))


def test_what_is_mapped_can_be_changed_without_harm(image_set: ImageSet, tmp_path: Path) -> None:
    first = decode(image_set, cache=tmp_path)
    expected = first.pixels.clone()
    first.pixels.zero_()
    assert torch.equal(decode(image_set, cache=tmp_path).pixels, expected)


def test_other_sizes_and_changed_files_are_decoded_anew(
    image_set: ImageSet, tmp_path: Path, decodes: list[Path]
) -> None:
    cache = tmp_path / "cache"
    decode(image_set, cache=cache)
    decode(image_set, cache=cache, short_side=30)
    assert len(decodes) == 40
    file = image_set.files[4]
    file.path.write_bytes(trees.encoded(9999, suffix=file.path.suffix))
    changed = decode(image_set, cache=cache)
    assert torch.equal(changed.image(4), reference(file))


def test_progress_counts_images(image_set: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SHARD", 6)
    calls: list[tuple[int, int]] = []
    decode(image_set, workers=3, progress=lambda *call: calls.append(call))
    assert {total for _, total in calls} == {20}
    done = [count for count, _ in calls]
    assert (done[0], done[-1], len(done)) == (0, 20, 5)
    assert done == sorted(done)


@pytest.mark.slow
def test_killed_decoding_is_continued(
    image_set: ImageSet,
    tmp_path: Path,
    decodes: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    start_script: Callable[[str], "subprocess.CompletedProcess[str]"],
) -> None:
    code = f"""
        import os, signal
        from equicolor.data import packing
        from equicolor.data.datasets import load_dataset
        from equicolor.data.decoding import decode
        packing.SHARD = 3

        def kill(done, total):
            if done >= 9:
                os.kill(os.getpid(), signal.SIGKILL)

        image_set = load_dataset({str(tmp_path / "toys")!r}, "train")
        decode(image_set, cache={str(tmp_path / "cache")!r}, workers=1, progress=kill)
    """
    killed = start_script(textwrap.dedent(code))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    monkeypatch.setattr(packing, "SHARD", 3)
    # The line that was being written when the power went does not count.
    (journal,) = (tmp_path / "cache").rglob("*.jsonl")
    with journal.open("a") as file:
        file.write("[6, [")
    calls: list[tuple[int, int]] = []
    found = decode(image_set, cache=tmp_path / "cache", progress=lambda *call: calls.append(call))
    assert calls[0] == (9, 20)
    assert len(decodes) == 11
    assert same(found, decode(image_set))
    assert len(journal.read_text().splitlines()) == 7


def test_interrupted_decoding_is_continued(
    image_set: ImageSet, tmp_path: Path, decodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "SHARD", 2)

    def interrupt(done: int, total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(image_set, cache=tmp_path / "cache", workers=1, progress=interrupt)
    assert len(decodes) < 20
    assert same(decode(image_set, cache=tmp_path / "cache"), decode(image_set))


def test_processes_that_want_the_same_wait_for_the_first(
    image_set: ImageSet, tmp_path: Path, decodes: list[Path]
) -> None:
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(decode(image_set, cache=tmp_path / "cache")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decodes) == 20
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def damaged(contents: bytes, number: int) -> bytes:
    """A file that lost its end, a byte, or a run of bytes."""
    rng = np.random.default_rng(number)
    start = int(rng.integers(len(contents)))
    if number % 4 == 0:
        return contents[:start]
    length = 1 if number % 4 < 3 else int(rng.integers(1, 64))
    wrong = bytes(byte ^ int(rng.integers(1, 256)) for byte in contents[start : start + length])
    return contents[:start] + wrong + contents[start + length :]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["journal.jsonl", "pixels.u8"])
@pytest.mark.parametrize("number", range(8))
@pytest.mark.filterwarnings("ignore:the decoded images in .* are damaged")
def test_damaged_caches_are_made_again(
    image_set: ImageSet, tmp_path: Path, name: str, number: int, decodes: list[Path]
) -> None:
    first = decode(image_set)
    decode(image_set, cache=tmp_path / "cache")
    (path,) = (tmp_path / "cache").rglob(name)
    whole, before = path.read_bytes(), len(decodes)
    path.write_bytes(damaged(whole, number))
    assert same(decode(image_set, cache=tmp_path / "cache"), first)
    assert len(decodes) == before + len(image_set)
    assert path.read_bytes() == whole
    before = len(decodes)
    assert same(decode(image_set, cache=tmp_path / "cache"), first)
    assert len(decodes) == before


def test_shards_before_the_damage_are_not_decoded_again(
    image_set: ImageSet, tmp_path: Path, decodes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "SHARD", 3)
    first = decode(image_set, cache=tmp_path / "cache").pixels.clone()
    (path,) = (tmp_path / "cache").rglob("pixels.u8")
    contents = bytearray(path.read_bytes())
    contents[-100] ^= 1  # in the last shard but its room
    path.write_bytes(contents)
    message = r"the decoded images in .* are damaged \(.* checksums\) and made again"
    with pytest.warns(UserWarning, match=message):
        again = decode(image_set, cache=tmp_path / "cache")
    assert torch.equal(again.pixels, first)
    assert 20 < len(decodes) <= 20 + 5


def test_what_is_mapped_outlives_the_damage(image_set: ImageSet, tmp_path: Path) -> None:
    first = decode(image_set, cache=tmp_path / "cache")
    expected = first.pixels.clone()
    (path,) = (tmp_path / "cache").rglob("journal.jsonl")
    path.write_bytes(b"")
    decode(image_set, cache=tmp_path / "cache")
    assert torch.equal(first.pixels, expected)


@pytest.mark.parametrize(
    "line",
    [
        "5",
        "[[], [], 1]",
        "[[[1]], [], 0]",
        "[[], [[1]], 0]",
        "[[], [",
        "[[], [], Infinity]",
        "\udcff",
    ],
)
@pytest.mark.filterwarnings("ignore:the decoded images in .* are damaged")
def test_a_damaged_journal_does_not_count(image_set: ImageSet, tmp_path: Path, line: str) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(image_set, cache=tmp_path / "cache", workers=1, progress=interrupt)
    (pixels,) = (tmp_path / "cache").rglob("pixels.u8")
    journal = pixels.with_name("journal.jsonl")
    journal.write_text(line + "\n", errors="surrogateescape")
    assert same(decode(image_set, cache=tmp_path / "cache"), decode(image_set))


def test_a_full_disk_names_the_file(
    image_set: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> None:
        if os.fstat(number).st_size:  # not the empty journal
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*pixels\.u8'"):
        decode(image_set, cache=tmp_path / "cache")
    monkeypatch.undo()
    assert same(decode(image_set, cache=tmp_path / "cache"), decode(image_set))


def test_a_cache_whose_name_is_not_utf8(image_set: ImageSet, tmp_path: Path) -> None:
    for _ in range(2):
        assert same(decode(image_set, cache=tmp_path / "ca\udce9"), decode(image_set))


def test_default_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "equicolor" / "decoded"


# Corrupt images


@pytest.fixture(params=["header", "body"])
def corrupt(image_set: ImageSet, request: pytest.FixtureRequest) -> Path:
    """Damages one image, and says which."""
    path = image_set.files[7].path
    whole = path.read_bytes()
    path.write_bytes(b"nothing" if request.param == "header" else whole[: len(whole) * 2 // 3])
    return path


@pytest.mark.parametrize("cached", [True, False])
def test_corrupt_image_is_named(
    image_set: ImageSet, corrupt: Path, cached: bool, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" if cached else None
    for _ in range(2):
        with pytest.raises(CorruptImageError, match=rf"{corrupt} cannot be decoded"):
            decode(image_set, cache=cache)


@pytest.mark.parametrize("cached", [True, False])
def test_corrupt_image_is_skipped_on_request(
    image_set: ImageSet, corrupt: Path, cached: bool, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" if cached else None
    kept = [index for index in range(20) if index != 7]
    for _ in range(2):
        decoded = decode(image_set, cache=cache, on_corrupt="skip")
        assert len(decoded) == 19
        assert len(decoded.skipped) == 1
        assert decoded.skipped[0].startswith(str(corrupt))
        assert torch.equal(decoded.labels, image_set.labels[kept])
        images, sizes = decoded.batch(torch.arange(19))
        for place, index in enumerate(kept):
            height, width = sizes[place]
            expected = reference(image_set.files[index])
            assert torch.equal(images[place, :, :height, :width], expected)
    if cached:  # what one call skipped, another must not miss
        with pytest.raises(CorruptImageError, match=rf"{corrupt} cannot be decoded"):
            decode(image_set, cache=cache)


@pytest.mark.parametrize("cached", [True, False])
def test_nothing_but_corrupt_images(tmp_path: Path, cached: bool) -> None:
    (tmp_path / "a.jpg").write_bytes(b"nothing")
    files = (ImageFile(tmp_path / "a.jpg"),)
    images = ImageSet("toy", "train", torch.tensor([0]), ("a",), files)
    with pytest.raises(CorruptImageError, match=r"every image is corrupt, .*a.jpg"):
        decode(images, on_corrupt="skip", cache=tmp_path / "cache" if cached else None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_corrupt": "ignore"}, r"on_corrupt must be one of 'error', 'skip'; got 'ignore'"),
        ({"short_side": 0}, r"short_side must be at least 1, got 0"),
        ({"workers": 0}, r"workers must be at least 1, got 0"),
    ],
)
def test_bad_options_are_refused(
    image_set: ImageSet, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decode(image_set, **options)


def test_estimate(image_set: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = int(decode(image_set).sizes.prod(1).sum()) * 3
    assert estimated_bytes(image_set, None) == exact
    assert estimated_bytes(image_set, 10) < exact / 4
    monkeypatch.setattr("equicolor.data.decoding._SAMPLE", 10)
    assert estimated_bytes(image_set, None) == pytest.approx(exact, rel=0.3)


@pytest.mark.skipif("EQUICOLOR_DATA" not in os.environ, reason="Flowers-102: no EQUICOLOR_DATA")
def test_real_flowers_decode() -> None:
    if dataset_state(DATASETS["flowers102"]).missing:
        pytest.skip(f"no Flowers-102 in {data_root()}")
    train = load_dataset("flowers102", "train")
    some = ImageSet("some", "train", train.labels[:40], train.class_names, train.files[:40])
    decoded = decode(some, short_side=200)
    image = some.files[0].decode()
    width, height = image.size
    size = (int(200 * width / height), 200) if height < width else (200, int(200 * height / width))
    expected = np.array(image.resize(size, Image.Resampling.BILINEAR))
    assert np.array_equal(decoded.image(0).movedim(0, 2).numpy(), expected)
    assert estimated_bytes(some, 200) == int(decoded.sizes.prod(1).sum()) * 3
