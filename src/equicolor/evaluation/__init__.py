"""Judging networks: hue sweeps, calibration, and reports on any network and images."""

from equicolor.evaluation.evaluate import ClassChange, Evaluation, evaluate
from equicolor.evaluation.hue_sweep import ACTIONS, HueSweep, hue_shifts, hue_sweep
from equicolor.evaluation.metrics import (
    Reliability,
    accuracy,
    negative_log_likelihood,
    per_class_accuracy,
    reliability,
)

__all__ = [
    "ACTIONS",
    "ClassChange",
    "Evaluation",
    "HueSweep",
    "Reliability",
    "accuracy",
    "evaluate",
    "hue_shifts",
    "hue_sweep",
    "negative_log_likelihood",
    "per_class_accuracy",
    "reliability",
]
