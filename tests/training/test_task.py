"""What a step of training is, against a plain loop of torch."""

import copy
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor.data.datasets import load_dataset
from equicolor.data.decoding import decode
from equicolor.data.loaders import ResidentLoader
from equicolor.models import CheckpointError, load_model
from equicolor.training.average import WeightAverage
from equicolor.training.fit import RunOptions, fit
from equicolor.training.losses import jensen_shannon
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.tally import NEVER, Counts, Tally
from equicolor.training.task import ClassificationTask

CHANGES = {
    "paper": {},
    "sgd": {"optimizer": "sgd", "schedule": "cosine", "lr": 0.05, "label_smoothing": 0.1},
    "adamw": {"optimizer": "adamw", "schedule": "constant", "weight_decay": 0.1, "clip": 0.5},
    "ema": {"ema": 0.8, "jitter": 0.5, "seed": 3},
    "js": {"augmix": "original", "js": True},
}


def plain_training(recipe: TrainingRecipe) -> nn.Module:
    """The same training as a loop that anybody can read."""
    raw = load_dataset(recipe.dataset, "train")
    decoded = decode(raw, short_side=recipe.short_side("train"))
    loader = ResidentLoader(
        decoded, recipe.augmentation, batch_size=recipe.batch_size, seed=recipe.seed, shuffle=True
    )
    network = recipe.build(3).train()
    average = copy.deepcopy(network).state_dict()
    options = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    optimizer = {
        "adam": lambda: torch.optim.Adam(network.parameters(), **options),
        "adamw": lambda: torch.optim.AdamW(network.parameters(), **options),
        "sgd": lambda: torch.optim.SGD(
            network.parameters(), momentum=0.9, nesterov=True, **options
        ),
    }[recipe.optimizer]()
    steps = recipe.epochs * len(loader)
    schedule = {
        "onecycle": lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, steps),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimizer, 1),
    }[recipe.schedule]()
    step = 0
    for epoch in range(recipe.epochs):
        loader.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            if recipe.js:
                views = network(images.flatten(0, 1)).unflatten(0, (3, -1))
                loss = F.cross_entropy(views[0], labels) + jensen_shannon(views, labels)
            else:
                smoothing = recipe.label_smoothing
                loss = F.cross_entropy(network(images), labels, label_smoothing=smoothing)
            loss.backward()
            if recipe.clip:
                nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
            optimizer.step()
            schedule.step()
            step += 1
            decay = min(recipe.ema, (1 + step) / (10 + step))
            for key, value in network.state_dict().items():
                average[key] = decay * average[key] + (1 - decay) * value
    if recipe.ema:
        average = {k: v.round() if "num_batches" in k else v for k, v in average.items()}
        counters = {k: v for k, v in network.state_dict().items() if "num_batches" in k}
        network.load_state_dict(average | counters)
    return network


@pytest.mark.parametrize(
    "change",
    ["paper", *(pytest.param(name, marks=pytest.mark.slow) for name in CHANGES if name != "paper")],
)
@pytest.mark.usefixtures("few_shifts")
def test_training_is_the_plain_loop(
    change: str, toy_recipe: TrainingRecipe, tmp_path: Path, relative_error
) -> None:
    recipe = dataclasses.replace(toy_recipe, epochs=2, **CHANGES[change])
    fit(recipe, tmp_path / "run", RunOptions(device="cpu"))
    found = load_model(tmp_path / "run" / "model.safetensors").state_dict()
    start = recipe.build(3).state_dict()
    for key, expected in plain_training(recipe).state_dict().items():
        moved = (expected - start[key]).double().norm()
        assert (found[key] - expected).double().norm() <= 2e-4 * moved + 1e-7, key


@pytest.mark.slow
@pytest.mark.usefixtures("few_shifts")
def test_augmentation_changes_what_is_learned(toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
    small = dataclasses.replace(
        toy_recipe, model="z2cnn", options={"width": 2}, size=28, resize=30, epochs=1
    )
    weights = []
    changes = [{}, {"jitter": 0.5}, {"gray": True}, {"augmix": "original"}, {"augmix": "full"}]
    for index, change in enumerate(changes):
        recipe = dataclasses.replace(small, **change)
        fit(recipe, tmp_path / str(index), RunOptions(device="cpu"))
        model = load_model(tmp_path / str(index) / "model.safetensors")
        weights.append([*model.parameters()][-1].sum().item())
    assert len(set(weights)) == 5


def test_a_continued_run_keeps_its_threads(toy_recipe, monkeypatch):
    saved, given = {}, []
    task = ClassificationTask(toy_recipe, toy_recipe.build(3))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    task.on_save_checkpoint(saved)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    task.on_load_checkpoint(saved)
    assert given == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("equicolor.training.task.cores", lambda: 8)
    task.on_load_checkpoint(saved)
    assert given == [5]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    with pytest.warns(UserWarning, match="torch uses 5 threads, as before in this run"):
        task.on_load_checkpoint(saved)
    monkeypatch.setattr("equicolor.training.task.cores", lambda: 2)
    with pytest.warns(UserWarning, match="in 5 threads, but has 2 cores here: torch uses 2 thr"):
        task.on_load_checkpoint(saved)
    assert given == [5, 5, 2]


def test_checkpoints_of_other_runs_are_refused(toy_recipe: TrainingRecipe) -> None:
    network = toy_recipe.build(3)
    saved: dict[str, object] = {}
    ClassificationTask(toy_recipe, network, {"images": 33}).on_save_checkpoint(saved)
    ClassificationTask(toy_recipe, network, {"images": 33}).on_load_checkpoint(saved)
    with pytest.raises(CheckpointError, match="another run: 34 images instead of 33"):
        ClassificationTask(toy_recipe, network, {"images": 34}).on_load_checkpoint(saved)
    other = dataclasses.replace(toy_recipe, lr=0.1)
    with pytest.raises(CheckpointError, match=r"lr 0\.1 instead of 0\.001"):
        ClassificationTask(other, network, {"images": 33}).on_load_checkpoint(saved)
    named = ClassificationTask(toy_recipe, network, {"images": 33, "class names": "ab12"})
    named.on_save_checkpoint(saved)
    with pytest.raises(CheckpointError, match=r"another run: other class names\. Choose"):
        ClassificationTask(toy_recipe, network, {"class names": "cd34"}).on_load_checkpoint(saved)
    with pytest.raises(CheckpointError, match="not written by equicolor"):
        ClassificationTask(toy_recipe, network).on_load_checkpoint({})


@pytest.mark.slow
def test_dropout_is_keyed_to_the_epoch(toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
    # A network that draws from torch's generator learns the same whatever was drawn before.
    recipe = dataclasses.replace(
        toy_recipe, model="z2cnn", options={"width": 2}, size=28, resize=30, epochs=2
    )
    weights = []
    for index in range(2):
        torch.manual_seed(index)
        state = torch.get_rng_state()
        fit(recipe, tmp_path / str(index), RunOptions(device="cpu"))
        assert torch.equal(torch.get_rng_state(), state)
        weights.append(load_model(tmp_path / str(index) / "model.safetensors").state_dict())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_batch_of_nothing_but_corrupt_images_is_no_divergence(
    toy_recipe: TrainingRecipe,
) -> None:
    for change in ({}, {"augmix": "original", "js": True, "label_smoothing": 0.1}):
        recipe = dataclasses.replace(toy_recipe, **change)
        task = ClassificationTask(recipe, recipe.build(3))
        trainer = SimpleNamespace(optimizers=[torch.optim.SGD(task.parameters(), 0.1)])
        task._trainer = cast("Any", trainer)
        trainer.global_step = 0
        shape = (3, 4, 3, 16, 16) if recipe.js else (4, 3, 16, 16)
        loss = task.training_step((torch.rand(shape), torch.full((4,), -1)), 0)
        assert loss.item() == 0
        loss.backward()
        assert all(p.grad is None or p.grad.abs().max() == 0 for p in task.parameters())
        assert int(task.tally.diverged) == NEVER
        assert task.tally.take().tolist() == [0, 0, 0]


class TestTally:
    def test_it_counts(self) -> None:
        torch.manual_seed(0)
        tally = Tally()
        logits, labels = torch.randn(5, 7, 4), torch.randint(4, (5, 7))
        labels[2, 3] = -1
        losses = torch.rand(5)
        for step in range(5):
            tally.add(losses[step], logits[step], labels[step], step + 1)
        hits = (logits.argmax(-1) == labels).sum().item()
        counts = Counts.of(tally.take().tolist())
        images = torch.tensor([7, 7, 6, 7, 7])
        assert counts.loss == pytest.approx((losses * images).sum().item() / 34)
        assert (counts.accuracy, counts.images) == (pytest.approx(100 * hits / 34), 34)
        assert int(tally.diverged) == NEVER
        assert tally.take().tolist() == [0, 0, 0]

    def test_it_remembers_the_first_bad_step(self) -> None:
        tally = Tally()
        for step, loss in enumerate([1.0, math.inf, math.nan, 2.0], start=7):
            tally.add(torch.tensor(loss), torch.eye(2), torch.tensor([0, 1]), step)
            if step == 7:
                assert int(tally.diverged) == NEVER
        tally.take()
        assert int(tally.diverged) == 8


class TestWeightAverage:
    def test_it_is_an_exponential_average(self) -> None:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
        average = WeightAverage(network, 0.7)
        assert not any(parameter.requires_grad for parameter in average.parameters())
        expected = {key: value.clone() for key, value in network.state_dict().items()}
        for step in range(1, 30):
            network(torch.randn(5, 3, dtype=torch.float64))
            with torch.no_grad():
                network[0].weight += torch.randn(2, 3)
            average.update(network, step)
            decay = min(0.7, (1 + step) / (10 + step))
            for key, value in network.state_dict().items():
                expected[key] = decay * expected[key] + (1 - decay) * value
        found = average.network.state_dict()
        assert found["1.num_batches_tracked"] == 29
        for key in expected:
            if "num_batches" not in key:
                torch.testing.assert_close(found[key], expected[key])

    def test_a_copy_that_was_moved_is_still_followed(self) -> None:
        network = nn.BatchNorm1d(2)
        average = WeightAverage(network, 0.5)
        network.double()
        average.double()
        network.running_mean += 1
        average.update(network, 1000)
        assert average.network.running_mean.tolist() == [0.5, 0.5]


def learning_rates(schedule: str, warmup: float, steps: int) -> list[float]:
    recipe = TrainingRecipe(
        "z2cnn", {"width": 2}, size=28, lr=0.5, optimizer="sgd", schedule=schedule, warmup=warmup
    )
    task = ClassificationTask(recipe, recipe.build(3))
    device = SimpleNamespace(root_device=torch.device("cpu"))
    trainer = SimpleNamespace(estimated_stepping_batches=steps, strategy=device)
    task._trainer = cast(Any, trainer)
    configured = cast(Any, task.configure_optimizers())
    if isinstance(configured, torch.optim.Optimizer):  # a constant rate
        return [configured.param_groups[0]["lr"]] * steps
    optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("schedule", ["onecycle", "cosine", "constant"])
def test_the_learning_rate_rises_for_the_share_of_steps_that_warmup_says(schedule: str) -> None:
    rates = learning_rates(schedule, 0.4, 20)
    top = rates.index(max(rates))
    assert top in (7, 8)  # 40 % of 20; the cycle counts its first step
    assert max(rates) == pytest.approx(0.5, rel=0.01)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[0] < 0.1
    if schedule == "constant":
        assert set(rates[top:]) == {0.5}
    else:
        assert rates[top:] == sorted(rates[top:], reverse=True)
        assert rates[-1] < 0.05


@pytest.mark.parametrize("schedule", ["onecycle", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 0.1, 0.999])  # none, one step, all ten
def test_schedules_take_any_warmup(schedule: str, warmup: float) -> None:
    assert max(learning_rates(schedule, warmup, 10)) == pytest.approx(0.5, rel=0.1)
