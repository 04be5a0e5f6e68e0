import math

import pytest
import torch
import torch.nn.functional as F

from equicolor.training.losses import cross_entropy, jensen_shannon

LABELS = torch.tensor([0, 1, 0, 2, 1, 0])


def slow_jensen_shannon(views):
    """The definition in Python's floats, one image and class at a time."""
    total = 0.0
    for rows in zip(*views.tolist(), strict=True):
        probabilities = []
        for row in rows:
            exponentials = [math.exp(value - max(row)) for value in row]
            probabilities.append([e / sum(exponentials) for e in exponentials])
        mean = [sum(column) / 3 for column in zip(*probabilities, strict=True)]
        for p in probabilities:
            total += sum(a * math.log(a / m) for a, m in zip(p, mean, strict=True) if a > 0) / 3
    return 12 * total / views.shape[1]


@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
def test_agrees_with_its_definition(spread):
    views = spread * torch.randn(3, 6, 7, dtype=torch.float64)
    expected = slow_jensen_shannon(views)
    assert jensen_shannon(views, LABELS).item() == pytest.approx(expected, rel=1e-10)
    assert jensen_shannon(views.float(), LABELS).item() == pytest.approx(expected, rel=1e-4)


def test_at_most_twelve_times_log_three():
    certain = 1000 * torch.eye(3)[:, None].expand(3, 6, 3)
    assert jensen_shannon(certain, LABELS).item() == pytest.approx(12 * math.log(3), rel=1e-6)


def test_equal_views_cost_nothing_and_order_does_not_matter():
    views = torch.randn(3, 6, 9, dtype=torch.float64)
    assert jensen_shannon(views[:1].expand(3, -1, -1), LABELS).abs().item() < 1e-14
    turned = jensen_shannon(views.roll(1, 0), LABELS)
    assert jensen_shannon(views, LABELS).item() == pytest.approx(turned.item())
    assert turned > 0


def test_gradients():
    views = torch.randn(3, 6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda views: jensen_shannon(views, LABELS), views)
    huge = (1e4 * torch.randn(3, 6, 4)).requires_grad_()
    jensen_shannon(huge, LABELS).backward()
    assert torch.isfinite(huge.grad).all()


def test_images_that_do_not_count_change_nothing():
    views = torch.randn(3, 6, 4, dtype=torch.float64, requires_grad=True)
    counted = torch.tensor([True, False, True, True, False, True])
    some = jensen_shannon(views[:, counted], LABELS[counted])
    masked = jensen_shannon(views, torch.where(counted, LABELS, -1))
    assert masked.item() == pytest.approx(some.item(), rel=1e-12)
    masked.backward()
    assert views.grad[:, ~counted].abs().max() == 0
    assert jensen_shannon(views, torch.full((6,), -1)).item() == 0


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_over_what_counts(smoothing):
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, -1, 3, 1, -1, 2])
    kept = labels >= 0
    found = cross_entropy(logits, labels, smoothing)
    expected = F.cross_entropy(logits[kept], labels[kept], label_smoothing=smoothing)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    nothing = cross_entropy(logits, labels.fill_(-1), smoothing)
    assert nothing.item() == 0
    nothing.backward()
    assert logits.grad.abs().max() == 0
