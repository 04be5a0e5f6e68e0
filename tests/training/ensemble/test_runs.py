"""What is trained on coloured digits: what is refused, and what counts as the same."""

import dataclasses
import math
from itertools import product
from typing import Any

import pytest

from equicolor.data import ColorMNIST, Digits, biased_colormnist
from equicolor.training.ensemble.runs import Recipe, check_runs, identity
from equicolor.training.ensemble.train import train_many

PLAIN = Recipe("z2cnn", "z2cnn", {"width": 4, "dropout": 0.0}, epochs=2, batch_size=32)


def test_bad_input_is_refused(digits: Digits, data: ColorMNIST) -> None:
    with pytest.raises(ValueError, match="at least one dataset and seed to train for, got none"):
        train_many(PLAIN, [])
    pair = [biased_colormnist(0.0, digits, train_size=size, test_size=10) for size in (20, 30)]
    with pytest.raises(ValueError, match=r"need equally many training images, got \[20, 30\]"):
        train_many(PLAIN, product(pair, [0]))
    pair = [biased_colormnist(0.0, digits, train_size=20, test_size=size) for size in (10, 12)]
    with pytest.raises(ValueError, match=r"need equally many test images, got \[10, 12\]"):
        train_many(PLAIN, product(pair, [0]))
    with pytest.raises(ValueError, match=r"need equally many classes, got \[10, 30\]"):
        check_runs([(dataclasses.replace(data, train=pair[0].train, test=pair[0].test), 0),
                    (pair[0], 0)])  # fmt: skip
    with pytest.raises(ValueError, match="seed 3 would train on colormnist-longtailed twice"):
        train_many(PLAIN, [(data, 3), (data, 3)])
    with pytest.raises(ValueError, match="checkpoint_every must be at least 1, got 0"):
        train_many(PLAIN, [(data, 0)], checkpoint_every=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "resnet18"}, "network must be one of 'z2cnn', 'cecnn'; got 'resnet18'"),
        ({"precision": "16"}, "precision must be one of"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 2, got 0"),
        ({"batch_size": 1}, "batch_size must be at least 2, got 1"),
        ({"jitter": -3.0}, "jitter must be at least 0, got -3"),
        ({"lr": math.nan}, "lr must be finite, got nan"),
        ({"weight_decay": math.inf}, "weight_decay must be finite, got inf"),
    ],
)
def test_recipes_of_nothing_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PLAIN, **change)


def test_a_default_that_is_written_out_is_the_same_configuration(data: ColorMNIST) -> None:
    written = dataclasses.replace(Recipe("z2cnn"), options={"width": 20})
    assert identity(written, [(data, 0)]) == identity(Recipe("z2cnn"), [(data, 0)])
    other = dataclasses.replace(written, options={"width": 21})
    assert identity(other, [(data, 0)]) != identity(written, [(data, 0)])
