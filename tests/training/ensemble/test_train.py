"""Many seeds side by side against plain torch, one seed at a time."""

import dataclasses
import math
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.training.ensemble import dropping
from torch import Tensor, nn

from equicolor._random import permutation, uniform
from equicolor.color import shift_hue
from equicolor.data import (
    ColorMNIST,
    Digits,
    Split,
    biased_colormnist,
)
from equicolor.models.z2cnn import Z2CNN
from equicolor.training.ensemble import train
from equicolor.training.ensemble.runs import Recipe, Result
from equicolor.training.ensemble.train import StackedTrainer, train_many

CPU = torch.device("cpu")
PLAIN = Recipe("z2cnn", "z2cnn", {"width": 4, "dropout": 0.0}, epochs=2, batch_size=32)
EQUIVARIANT = Recipe("cecnn", "cecnn", {"width": 3, "dropout": 0.0}, epochs=2, batch_size=32)
DROPPING = Recipe("cecnn", "cecnn", {"width": 3}, epochs=2, batch_size=32)


def batch(data: ColorMNIST, recipe: Recipe, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """The images and labels of a step, by the definition of an epoch."""
    size = len(data.train.labels)
    steps = -(-size // recipe.batch_size)
    length = -(-size // steps)
    order = permutation(torch.tensor([seed]), train._SHUFFLE, step // steps, size)[0]
    order = torch.cat([order, order])[: steps * length]
    chosen = order[step % steps * length :][:length]
    return data.train.images[chosen], data.train.labels[chosen]


def trainer(recipe: Recipe, datasets: list[ColorMNIST], seeds: list[int]) -> StackedTrainer:
    made = StackedTrainer(recipe, list(product(datasets, seeds)), CPU)
    made.start_epoch(0)
    return made


@pytest.mark.parametrize("recipe", [PLAIN, EQUIVARIANT], ids=lambda recipe: recipe.model)
def test_first_losses_are_those_of_the_networks_alone(data: ColorMNIST, recipe: Recipe) -> None:
    seeds = [0, 5, 11]
    found = trainer(recipe, [data], seeds)._losses()
    for seed, loss in zip(seeds, found.tolist(), strict=True):
        images, labels = batch(data, recipe, seed, 0)
        logits = recipe.build(30, seed).train()(images)
        assert loss == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-5)


def test_a_build_is_fixed_by_its_seed_alone() -> None:
    torch.manual_seed(1)
    first = EQUIVARIANT.build(10, 3).state_dict()
    expected = torch.rand(2)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(2), expected)  # building leaves the global generator alone
    again, other = EQUIVARIANT.build(10, 3).state_dict(), EQUIVARIANT.build(10, 4).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


@pytest.fixture
def _double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute in float64 wherever the package would in float32."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("seeds", [[3], [3, 8]], ids=["one", "two"])
@pytest.mark.parametrize("recipe", [PLAIN, EQUIVARIANT], ids=lambda recipe: recipe.model)
def test_training_is_adam_with_one_cycle_and_dropout(
    data: ColorMNIST, recipe: Recipe, seeds: list[int], relative_error
) -> None:
    # So much decay and so large steps that leaving one out would show.
    options = {**recipe.options, "dropout": 0.2}
    recipe = dataclasses.replace(recipe, options=options, epochs=3, weight_decay=0.1, lr=0.01)
    made = trainer(recipe, [data], seeds)
    made.stacked = dataclasses.replace(made.stacked, dtype=torch.float64)
    train._train(made, None, 1, None)
    for run, seed in enumerate(seeds):
        network, losses = _train_plainly(recipe, data, seed)
        last = losses[-made.steps_per_epoch :]
        assert float(made.losses[run]) == pytest.approx(sum(last), rel=1e-9)
        state = made._state()
        for key, expected in network.state_dict().items():
            if key.endswith("num_batches_tracked"):
                continue
            assert state[key].dtype == torch.float64
            assert relative_error(state[key][run], expected) < 1e-9, key


def _train_plainly(recipe: Recipe, data: ColorMNIST, seed: int) -> tuple[Z2CNN, list[float]]:
    """The same batches and dropped channels in a plain loop: the network and its losses."""
    network = recipe.build(data.num_classes, seed).train()
    assert all("Dropout" in type(network.blocks[layer][3]).__name__ for layer in dropping.LAYERS)
    probability = recipe.options["dropout"]
    steps = recipe.epochs * -(-len(data.train.labels) // recipe.batch_size)
    assert steps >= 6
    optimizer = torch.optim.Adam(
        network.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, total_steps=steps)
    losses = []
    for step in range(steps):
        images, labels = batch(data, recipe, seed, step)
        shape = len(dropping.LAYERS), len(images), recipe.options["width"]
        numbers = uniform(torch.tensor([seed]), train._DROPOUT, step, math.prod(shape)).view(shape)
        dropping.drop(network, (numbers >= probability) / (1 - probability))
        optimizer.zero_grad()
        loss = F.cross_entropy(network(images.double()), labels)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        if step + 1 < steps:
            scheduler.step()
    return network, losses


def test_dropout_follows_the_stateless_numbers(data: ColorMNIST) -> None:
    made = trainer(DROPPING, [data], [0, 7])
    factors = made._dropout_factors()
    assert factors.shape == (4, made.batch, 2, 3)
    kept = factors > 0
    torch.testing.assert_close(factors[kept], torch.full_like(factors[kept], 1 / 0.7))
    spread = 0.46 / kept.numel() ** 0.5  # of the mean of so many
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=4 * spread)
    assert not torch.equal(factors[:, :, 0], factors[:, :, 1])
    alone = trainer(DROPPING, [data], [7])._dropout_factors()
    assert torch.equal(factors[:, :, 1], alone[:, :, 0])
    made.step_number += 1
    assert not torch.equal(made._dropout_factors(), factors)


def test_an_epoch_shows_every_image(data: ColorMNIST) -> None:
    made = trainer(PLAIN, [data], [0, 1])
    size = len(data.train.labels)
    assert made.steps_per_epoch * made.batch - size < made.steps_per_epoch
    for order in made.order:
        assert set(order.tolist()) == set(range(size))
    assert not torch.equal(made.order[0], made.order[1])
    first = made.order.clone()
    made.start_epoch(1)
    assert not torch.equal(made.order, first)


def test_weighted_loss_is_that_of_cross_entropy(data: ColorMNIST) -> None:
    recipe = dataclasses.replace(PLAIN, weighted=True)
    # The same images in other classes: class sizes, and so weights, differ between datasets.
    renamed = dataclasses.replace(data, train=Split(data.train.images, 29 - data.train.labels))
    assert not torch.equal(renamed.class_counts(), data.class_counts())
    losses = trainer(recipe, [data, renamed], [0, 1])._losses().tolist()
    runs = [(dataset, seed) for dataset in (data, renamed) for seed in (0, 1)]
    for (dataset, seed), loss in zip(runs, losses, strict=True):
        counts = dataset.class_counts()
        weight = counts.sum() / (30 * counts)  # paper, appendix B: N / (c n_i)
        images, labels = batch(dataset, recipe, seed, 0)
        logits = recipe.build(30, seed).train()(images)
        expected = F.cross_entropy(logits, labels, weight=weight)
        assert loss == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize(("epoch", "position"), [(0, 0), (0, 1), (1, 1)])
def test_jitter_shifts_every_image_by_its_own_hue(
    data: ColorMNIST, epoch: int, position: int
) -> None:
    recipe = dataclasses.replace(PLAIN, jitter=0.5)
    made = trainer(recipe, [data], [0, 1])
    assert position < made.steps_per_epoch
    made.start_epoch(epoch)
    step = epoch * made.steps_per_epoch + position
    made.step_number.fill_(step)
    for seed, loss in zip([0, 1], made._losses(), strict=True):
        images, labels = batch(data, recipe, seed, step)
        numbers = uniform(torch.tensor([seed]), train._JITTER, step, len(labels))[0]
        turns = (numbers - 0.5).tolist()  # ± half a turn
        assert min(turns) < -0.3
        assert max(turns) > 0.3
        pairs = zip(images, turns, strict=True)
        shifted = torch.stack([shift_hue(image, turn) for image, turn in pairs])
        logits = recipe.build(30, seed).train()(shifted)
        assert loss.item() == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-5)


def test_shuffle_jitter_and_dropout_draw_from_streams_of_their_own(
    data: ColorMNIST, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = []

    def recording(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def record(seeds: Tensor, stream: int, step: int | Tensor, size: int) -> Tensor:
            streams.append(stream)
            return draw(seeds, stream, step, size)

        return record

    monkeypatch.setattr(train, "permutation", recording(permutation))
    monkeypatch.setattr(train, "uniform", recording(uniform))
    trainer(dataclasses.replace(DROPPING, jitter=0.5), [data], [0])._losses()
    assert len(streams) == len(set(streams)) == 3


def test_gray_networks_see_the_mean_of_the_channels(data: ColorMNIST) -> None:
    recipe = dataclasses.replace(PLAIN, gray=True)
    (loss,) = trainer(recipe, [data], [2])._losses()
    images, labels = batch(data, recipe, 2, 0)
    logits = recipe.build(30, 2).train()(images.mean(1, keepdim=True).expand(-1, 3, -1, -1))
    assert loss.item() == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-5)
    (result,) = train_many(recipe, product([data], [2]))
    network = restore(recipe, result.state)
    gray = data.test.images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    assert accuracy(network, gray, data.test.labels) == pytest.approx(result.accuracy, abs=1e-3)


def restore(recipe: Recipe, state: dict[str, Tensor]) -> Z2CNN:
    network = recipe.build(30, 0)
    network.load_state_dict(state)
    return network.eval()


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    return 100 * (network(images).argmax(1) == labels).float().mean().item()


@pytest.mark.slow
def test_results_are_those_of_the_network_that_is_returned(data: ColorMNIST) -> None:
    recipe = dataclasses.replace(DROPPING, epochs=3, lr=0.01)
    results = train_many(recipe, product([data], [0, 1]))
    for result in results:
        network = restore(recipe, result.state)
        found = accuracy(network, *data.test)
        assert found == pytest.approx(result.accuracy, abs=1e-3)
        for index, value in enumerate(result.per_class):
            chosen = data.test.labels == index
            part = data.test.images[chosen], data.test.labels[chosen]
            assert accuracy(network, *part) == pytest.approx(value, abs=1e-3)
        # Two test images of each class: the mean over classes is the mean over images.
        assert sum(result.per_class) / 30 == pytest.approx(result.accuracy, abs=1e-3)


def same(first: Result, second: Result) -> bool:
    numbers = (first.accuracy, first.per_class, first.loss) == (
        second.accuracy,
        second.per_class,
        second.loss,
    )
    return numbers and all(torch.equal(first.state[key], second.state[key]) for key in first.state)


def test_the_same_seed_twice_gives_identical_numbers(data: ColorMNIST) -> None:
    once, again = (train_many(DROPPING, product([data], [0, 1])) for _ in range(2))
    assert all(same(first, second) for first, second in zip(once, again, strict=True))
    assert not torch.equal(once[0].state["classifier.weight"], once[1].state["classifier.weight"])


def test_a_run_does_not_depend_on_its_neighbours(data: ColorMNIST) -> None:
    pair, other = (train_many(DROPPING, product([data], seeds)) for seeds in ([0, 1], [1, 2]))
    left, right = pair[1], other[0]
    assert left.seed == right.seed == 1
    assert left.loss == pytest.approx(right.loss, abs=1e-4)
    initial = DROPPING.build(30, 1).state_dict()
    for key, value in left.state.items():
        if not key.endswith("0.bias") and value.is_floating_point():
            moved = float((value - initial[key]).norm())
            assert float((value - right.state[key]).norm()) < 0.02 * moved + 1e-6, key


def test_every_run_has_its_own_data_and_seed(digits: Digits) -> None:
    datasets = [
        biased_colormnist(sigma, digits, train_size=40, test_size=20) for sigma in (0.0, 1e6)
    ]
    results = train_many(PLAIN, product(datasets, [0, 1]))
    names = [(result.dataset, result.seed) for result in results]
    sharp, vague = "colormnist-biased-0", "colormnist-biased-1e+06"
    assert names == [(sharp, 0), (sharp, 1), (vague, 0), (vague, 1)]
    # Every run trains on its own dataset: the same seed differs between them.
    assert results[0].loss != results[2].loss
    alone = train_many(PLAIN, [(datasets[1], 0), (datasets[0], 1)])
    assert alone[0].loss == pytest.approx(results[2].loss, abs=1e-4)
    assert alone[1].loss == pytest.approx(results[1].loss, abs=1e-4)


def test_progress_and_checkpoint(data: ColorMNIST, tmp_path: Path) -> None:
    calls = []
    recipe = dataclasses.replace(PLAIN, epochs=3)
    checkpoint = tmp_path / "new" / "run.checkpoint"
    seen = []

    def progress(done: int, total: int | None) -> None:
        calls.append((done, total))
        seen.append(checkpoint.exists())

    runs = [(data, 0)]
    options = {"checkpoint": checkpoint, "checkpoint_every": 1, "progress": progress}
    (first,) = train_many(recipe, runs, **options)
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert seen == [False, True, True]
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
    (again,) = train_many(recipe, runs, **options)  # from the checkpoint alone
    assert len(calls) == 3
    assert (again.loss, again.per_class) == (first.loss, first.per_class)


def test_checkpoint_of_another_configuration_is_refused(data: ColorMNIST, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run.checkpoint"
    train._save(trainer(PLAIN, [data], [0]), checkpoint, 1)
    for recipe, seeds in ((dataclasses.replace(PLAIN, lr=0.5), [0]), (PLAIN, [1])):
        with pytest.raises(ValueError, match=r"run.checkpoint belongs to another configuration"):
            train_many(recipe, product([data], seeds), checkpoint=checkpoint)
    assert checkpoint.exists()


def _upside_down(split: Split) -> Split:
    return Split(split.images.flip(2), split.labels)  # the sum of all pixels stays


def _relabelled(split: Split) -> Split:
    return Split(split.images, split.labels.flip(0))


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("change", [_upside_down, _relabelled])
def test_checkpoint_of_other_data_is_refused(
    data: ColorMNIST, tmp_path: Path, part: str, change: Callable[[Split], Split]
) -> None:
    checkpoint = tmp_path / "run.checkpoint"
    train._save(trainer(PLAIN, [data], [0]), checkpoint, 1)
    # Name, source and seed say the same.
    other = dataclasses.replace(data, **{part: change(getattr(data, part))})
    with pytest.raises(ValueError, match=r"run.checkpoint belongs to another configuration"):
        train_many(PLAIN, product([other], [0]), checkpoint=checkpoint)
    assert checkpoint.exists()
    # The same data, drawn once more, are welcome.
    again = dataclasses.replace(data, **{part: Split(*(x.clone() for x in getattr(data, part)))})
    assert train._resume(trainer(PLAIN, [again], [0]), checkpoint) == 1


def test_a_diverged_run_stops_and_keeps_its_checkpoint(
    data: ColorMNIST, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "run.checkpoint"
    losses = StackedTrainer._losses

    def diverge(self: StackedTrainer) -> Tensor:
        value = losses(self)
        factor = torch.ones_like(value)
        factor[1] = float("nan") if self.step_number >= self.steps_per_epoch else 1.0
        return value * factor

    monkeypatch.setattr(StackedTrainer, "_losses", diverge)
    with pytest.raises(
        ValueError, match=r"training of seed 9 is no longer finite in epoch 2 .*good"
    ):
        train_many(PLAIN, product([data], [4, 9]), checkpoint=checkpoint, checkpoint_every=1)
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["epochs"] == 1
    assert all(value.isfinite().all() for value in saved["tensors"].values())


_SCRIPT = """
import os, signal
from pathlib import Path
from equicolor.data import load_mnist, longtailed_colormnist
from equicolor.training.ensemble.runs import Recipe
from equicolor.training.ensemble.train import train_many

def train(folder, victim=None):
    data = longtailed_colormnist(load_mnist(embedded=True), seed=1, largest=5, test_per_class=2)
    recipe = Recipe("cecnn", "cecnn", {"width": 3}, jitter=0.5, epochs=3, batch_size=32, lr=0.01)
    epochs = []

    def progress(done, total):
        epochs.append(done)
        if done == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    options = {"progress": progress, "checkpoint_every": 1}
    runs = [(data, 0), (data, 1)]
    results = train_many(recipe, runs, checkpoint=folder / "training.checkpoint", **options)
    return [(result.loss, result.per_class) for result in results], epochs
"""


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """As many as other processes get: sums of two threads are rounded differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread")
def test_a_killed_run_resumes_bit_by_bit(
    tmp_path: Path, start_script: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    code = f"import torch\ntorch.set_num_threads(1)\n{_SCRIPT}\ntrain({str(tmp_path / 'run')!r}, 2)"
    killed = start_script(code)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["training.checkpoint"]
    namespace: dict[str, Any] = {}
    exec(_SCRIPT, namespace)
    resumed, again = namespace["train"](tmp_path / "run")
    straight, epochs = namespace["train"](tmp_path / "whole")
    assert again == [2, 3]  # epoch 2 was not saved yet
    assert epochs == [1, 2, 3]
    assert resumed == straight
    assert len(resumed) == 2


def test_a_bfloat16_network_trains_alone(data: ColorMNIST) -> None:
    recipe = dataclasses.replace(EQUIVARIANT, precision="bfloat16", epochs=1)
    (rounded,) = train_many(recipe, [(data, 0)])
    (exact,) = train_many(dataclasses.replace(recipe, precision="float32"), [(data, 0)])
    assert rounded.loss != exact.loss
    assert rounded.loss == pytest.approx(exact.loss, rel=0.05)


def test_float32_is_float32_to_the_end(data: ColorMNIST, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn, seen = torch.backends.cudnn, []
    for name in ("step", "results"):
        method = getattr(StackedTrainer, name)

        def spy(self: StackedTrainer, method: Callable[..., Any] = method) -> Any:
            seen.append((cudnn.allow_tf32, cudnn.deterministic))
            return method(self)

        monkeypatch.setattr(StackedTrainer, name, spy)
    with cudnn.flags(enabled=True, deterministic=True, allow_tf32=True):
        train_many(dataclasses.replace(PLAIN, epochs=1), [(data, 0)])
        assert cudnn.allow_tf32
    assert set(seen) == {(False, True)}
