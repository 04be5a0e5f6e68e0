"""Gradients against float64, and the fixed run of training."""

import copy

import pytest
import torch
import torch.nn.functional as F

from equicolor.benchmark import precision
from equicolor.benchmark.cases import Settings
from equicolor.benchmark.networks import Configuration
from equicolor.benchmark.precision import (
    Trial,
    exact_gradient,
    examples,
    gradient_error,
    precision_rows,
    train,
)
from equicolor.benchmark.timing import Deadline

CPU = torch.device("cpu")
TRIAL = Trial(Configuration(3, 4), batch=8, size=32, classes=5, steps=3, noise=0.1)


def test_examples_are_the_same_for_everybody():
    first, again = (list(examples(TRIAL, 0, CPU, 3)) for _ in range(2))
    for (images, labels), (same_images, same_labels) in zip(first, again, strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)
        assert images.min() >= 0
        assert images.max() <= 1
    assert not torch.equal(first[0][0], first[1][0])
    assert not torch.equal(first[0][0], next(examples(TRIAL, 1, CPU, 1))[0])


def test_exact_gradient_is_that_of_autograd():
    network = TRIAL.network(0)
    images, labels = next(examples(TRIAL, 0, CPU, 1))
    reference = copy.deepcopy(network).double()
    F.cross_entropy(reference(images.double()), labels).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in reference.parameters()])
    found = exact_gradient(network, (images, labels), CPU)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_errors_grow_as_precision_falls():
    network, batch = TRIAL.network(0), next(examples(TRIAL, 0, CPU, 1))
    exact = exact_gradient(network, batch, CPU)
    for variant in ("dense", "cyclic"):
        single, half = (
            gradient_error(network, variant, batch, exact, Settings(CPU, precision=name))
            for name in ("fp32", "bf16")
        )
        assert 0 < single < 1e-4
        assert 100 * single < half < 1


def test_variants_start_from_the_same_weights_and_leave_them():
    network = TRIAL.network(0)
    before = copy.deepcopy(network.state_dict())
    dense, cyclic, again = (
        train(network, variant, TRIAL, 0, Settings(CPU))
        for variant in ("dense", "cyclic", "cyclic")
    )
    assert dense[0] == pytest.approx(cyclic[0], rel=1e-5)
    assert cyclic == again
    assert len(cyclic) == 3
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_task_can_be_learnt():
    trial = Trial(Configuration(3, 4), batch=16, size=32, classes=5, steps=30, noise=0.1, lr=0.01)
    losses = train(trial.network(0), "auto", trial, 0, Settings(CPU))
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


def test_rows_of_every_seed_and_variant():
    settings = Settings(CPU, precision="bf16")
    told = []
    rows = precision_rows(
        TRIAL,
        settings,
        variants=("dense", "auto"),
        seeds=(0, 1),
        progress=lambda: told.append(1),
    )
    assert [(row["seed"], row["variant"]) for row in rows] == [
        (0, "dense"),
        (0, "auto"),
        (1, "dense"),
        (1, "auto"),
    ]
    assert len(told) == 4
    for row in rows:
        assert row["final_loss"] == pytest.approx(sum(row["losses"]) / 3, abs=1e-3)
        assert 0 < row["gradient_error"] < 2
        assert (row["model"], row["width"], row["precision"]) == ("ce_resnet18", 4, "bf16")
        assert row["fused"] is False  # on a CPU


def test_a_time_limit_leaves_rows_out():
    clock = iter([0.0, 1.0, 99.0])
    rows = precision_rows(
        TRIAL,
        Settings(CPU),
        variants=("dense", "auto"),
        seeds=(0,),
        deadline=Deadline(10, lambda: next(clock)),
    )
    assert [row.get("problem") for row in rows] == [None, "left out: time limit"]


def test_out_of_memory_is_a_result(monkeypatch):
    def fail(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(precision, "train", fail)
    (row,) = precision_rows(TRIAL, Settings(CPU), variants=("dense",), seeds=(0,))
    assert row["problem"] == "out of memory"
    assert row["final_loss"] is None


def test_bad_trials():
    with pytest.raises(ValueError, match="rotations > 1"):
        Trial(Configuration(1))
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Trial(Configuration(3), steps=0)
