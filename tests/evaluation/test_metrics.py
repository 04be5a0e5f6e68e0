"""Metrics against loops over single images, and against torchmetrics where it agrees."""

import math

import pytest
import torch
from torch import Tensor

from equicolor.evaluation import (
    accuracy,
    negative_log_likelihood,
    per_class_accuracy,
    reliability,
)


@pytest.fixture
def answers() -> tuple[Tensor, Tensor]:
    """Logits that are right about half of the time; class 6 has no images."""
    labels = torch.randint(6, (400,))
    logits = torch.randn(400, 7, dtype=torch.float64)
    logits[torch.arange(400), labels] += 1.2
    return 1.5 * logits, labels


def slow_reliability(logits: Tensor, labels: Tensor, bins: int):
    """Images sorted into bins one by one."""
    counts, confidence, correct = [0] * bins, [0.0] * bins, [0] * bins
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        weights = [math.exp(value) for value in row]
        best = max(weights) / sum(weights)
        place = next(place for place in range(bins) if best <= (place + 1) / bins)
        counts[place] += 1
        confidence[place] += best
        correct[place] += row.index(max(row)) == label
    error = sum(abs(confidence[place] - correct[place]) for place in range(bins)) / len(labels)
    return counts, confidence, correct, 100 * error


def test_accuracy_matches_a_loop(answers) -> None:
    logits, labels = answers
    pairs = zip(logits.tolist(), labels.tolist(), strict=True)
    hits = [row.index(max(row)) == label for row, label in pairs]
    assert accuracy(logits, labels) == pytest.approx(100 * sum(hits) / 400)
    assert 40 < accuracy(logits, labels) < 80
    result = per_class_accuracy(logits, labels)
    assert result.shape == (7,)
    assert math.isnan(result[6])
    for label in range(6):
        members = [hit for hit, other in zip(hits, labels.tolist(), strict=True) if other == label]
        assert result[label].item() == pytest.approx(100 * sum(members) / len(members))


def test_likelihood_matches_a_loop(answers) -> None:
    total = 0.0
    for row, label in zip(*map(Tensor.tolist, answers), strict=True):
        total += math.log(sum(map(math.exp, row))) - row[label]
    assert negative_log_likelihood(*answers) == pytest.approx(total / 400)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_reliability_matches_a_loop(answers, bins: int) -> None:
    result = reliability(*answers, bins=bins)
    counts, confidence, correct, error = slow_reliability(*answers, bins)
    assert result.counts.tolist() == counts
    assert result.expected_error == pytest.approx(error)
    assert result.edges.tolist() == pytest.approx([100 * k / bins for k in range(bins + 1)])
    for place, count in enumerate(counts):
        if count:
            assert result.confidence[place].item() == pytest.approx(100 * confidence[place] / count)
            assert result.accuracy[place].item() == pytest.approx(100 * correct[place] / count)
        else:
            assert result.confidence[place].isnan()
            assert result.accuracy[place].isnan()


def test_certainty_belongs_to_the_last_bin() -> None:
    logits = torch.tensor([[1000.0, 0.0], [1000.0, 0.0], [0.0, 0.0]])
    result = reliability(logits, torch.tensor([0, 1, 1]), bins=10)
    assert result.counts.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 2]  # a half is in (0.4, 0.5]
    assert result.expected_error == pytest.approx(100 * (2 * 0.5 + 0.5) / 3)


@pytest.mark.slow
def test_torchmetrics_agrees_on_generic_answers(answers) -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification")
    logits, labels = answers
    classes = {"num_classes": 7}
    assert accuracy(logits, labels) == pytest.approx(
        100 * float(functional.multiclass_accuracy(logits, labels, average="micro", **classes))
    )
    per_class = functional.multiclass_accuracy(logits, labels, average=None, **classes)
    assert per_class_accuracy(logits, labels)[:6].tolist() == pytest.approx(
        (100 * per_class[:6]).tolist()
    )
    error = functional.multiclass_calibration_error(logits, labels, n_bins=15, **classes)
    assert reliability(logits, labels).expected_error == pytest.approx(100 * float(error), rel=1e-5)


@pytest.mark.parametrize(
    "metric", [accuracy, per_class_accuracy, negative_log_likelihood, reliability]
)
@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(0, 3), torch.zeros(0).long(), "at least one image"),
        (torch.zeros(4, 3), torch.zeros(3).long(), r"got \[4, 3\] and \[3\]"),
        (torch.zeros(4), torch.zeros(4).long(), r"got \[4\] and \[4\]"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "labels of 3 classes lie in 0 to 2, got 0 to 3"),
        (torch.zeros(2, 3), torch.tensor([-1, 0]), "got -1 to 0"),
        (torch.tensor([[0, torch.nan], [0, 1]]), torch.tensor([0, 1]), "NaN for 1 of 2 images"),
    ],
)
def test_bad_answers(metric, logits: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metric(logits, labels)


def test_infinite_logits_have_no_confidence() -> None:
    logits = torch.tensor([[torch.inf, 0.0], [0.0, -torch.inf]])
    with pytest.raises(ValueError, match=r"probabilities are NaN for 1 of 2 images: .* infinite"):
        reliability(logits, torch.tensor([0, 0]))
    assert reliability(logits[1:], torch.tensor([0])).expected_error == 0  # sure, and right
