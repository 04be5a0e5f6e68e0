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
from equicolor.evaluation.networks import ForeignNetwork, GrayInput, load_network

__all__ = [
    "ACTIONS",
    "ClassChange",
    "Evaluation",
    "ForeignNetwork",
    "GrayInput",
    "HueSweep",
    "Reliability",
    "accuracy",
    "evaluate",
    "hue_shifts",
    "hue_sweep",
    "load_network",
    "negative_log_likelihood",
    "per_class_accuracy",
    "reliability",
]
