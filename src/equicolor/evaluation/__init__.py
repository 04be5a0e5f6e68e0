"""Judging networks: hue sweeps, calibration, and reports on any network and images."""

from equicolor.evaluation.actions import ACTIONS, HUE_ACTIONS
from equicolor.evaluation.evaluate import ClassChange, Evaluation, evaluate
from equicolor.evaluation.hue_sweep import HueSweep, hue_shifts, hue_sweep
from equicolor.evaluation.metrics import (
    Reliability,
    accuracy,
    negative_log_likelihood,
    per_class_accuracy,
    reliability,
)

__all__ = [
    "ACTIONS",
    "HUE_ACTIONS",
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
