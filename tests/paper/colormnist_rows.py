"""Rows of the toy experiments, as tables and figures get them."""

from typing import Any

from equicolor.paper.colormnist import SIGMAS
from equicolor.results import Row


def longtailed_rows() -> list[Row]:
    """Two seeds of four models, a variant of each kind, in no particular order."""
    return [
        {
            "model": model,
            "dataset": "colormnist-longtailed",
            "augmentation": augmentation,
            "weighted": weighted,
            "seed": seed,
            "epochs": 1000,
            "original": accuracy + seed,
            "digits": "MNIST, full",
            "per_class": [accuracy + seed] * 30,
        }
        for seed in range(2)
        for model, augmentation, weighted, accuracy in (
            ("cecnn", "none", True, 90.0),
            ("cecnn-pooled", "none", False, 30.0),
            ("cecnn", "none", False, 91.0),
            ("z2cnn", "jitter 0.5", False, 28.0),
            ("z2cnn-gray", "none", False, 24.0),
            ("z2cnn", "none", False, 71.0),
        )
    ]


def biased_rows(**facts: Any) -> list[Row]:
    """Two seeds of three models at every σ, seeds and models a point apart; facts replace some."""
    return [
        {
            "model": model,
            "dataset": "colormnist-biased",
            "augmentation": "none",
            "weighted": False,
            "seed": seed,
            "epochs": 1500,
            "sigma": sigma,
            "original": 90.0 + seed + index,
            "digits": "MNIST, full",
            **facts,
        }
        for index, model in enumerate(("z2cnn", "cecnn", "z2cnn-gray"))
        for sigma in SIGMAS
        for seed in range(2)
    ]
