"""Judging networks: hue sweeps, calibration, and reports for any network and images."""

from equicolor.evaluation.actions import ACTIONS, HUE_ACTIONS
from equicolor.evaluation.evaluate import ClassChange, Evaluation, evaluate
from equicolor.evaluation.hue_sweep import HueSweep, hue_shifts, hue_sweep
from equicolor.evaluation.images import prepare_image
from equicolor.evaluation.metrics import (
    Reliability,
    accuracy,
    negative_log_likelihood,
    per_class_accuracy,
    reliability,
)
from equicolor.evaluation.predict import Answer, Prediction, predict

__all__ = [
    "ACTIONS",
    "HUE_ACTIONS",
    "Answer",
    "ClassChange",
    "Evaluation",
    "HueSweep",
    "Prediction",
    "Reliability",
    "accuracy",
    "evaluate",
    "hue_shifts",
    "hue_sweep",
    "negative_log_likelihood",
    "per_class_accuracy",
    "predict",
    "prepare_image",
    "reliability",
]
