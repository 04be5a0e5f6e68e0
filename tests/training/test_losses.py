import math

import pytest
import torch
import torch.nn.functional as F

from equicolor.training.losses import cross_entropy, jensen_shannon


def slow_jensen_shannon(views, weight):
    """The definition in Python's floats, one image and class at a time."""
    total = 0.0
    for rows in zip(*(view.tolist() for view in views), strict=True):
        probabilities = []
        for row in rows:
            exponentials = [math.exp(value - max(row)) for value in row]
            probabilities.append([e / sum(exponentials) for e in exponentials])
        mean = [sum(column) / 3 for column in zip(*probabilities, strict=True)]
        for p in probabilities:
            total += sum(a * math.log(a / m) for a, m in zip(p, mean, strict=True) if a > 0) / 3
    return weight * total / len(views[0])


@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("weight", [12.0, 1.0])
def test_agrees_with_its_definition(spread, weight):
    views = [spread * torch.randn(5, 7, dtype=torch.float64) for _ in range(3)]
    expected = slow_jensen_shannon(views, weight)
    assert jensen_shannon(*views, weight).item() == pytest.approx(expected, rel=1e-10)
    single = jensen_shannon(*(view.float() for view in views), weight)
    assert single.item() == pytest.approx(expected, rel=1e-4)


def test_twelve_by_default_and_at_most_log_three():
    certain = 1000 * torch.eye(3)
    views = [certain[k].expand(4, 3) for k in range(3)]
    assert jensen_shannon(*views).item() == pytest.approx(12 * math.log(3), rel=1e-6)


def test_equal_views_cost_nothing_and_order_does_not_matter():
    a, b, c = torch.randn(3, 6, 9, dtype=torch.float64).unbind(0)
    assert jensen_shannon(a, a, a).abs().item() < 1e-14
    assert jensen_shannon(a, b, c).item() == pytest.approx(jensen_shannon(c, a, b).item())
    assert jensen_shannon(a, b, c) > 0


def test_gradients():
    views = [torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(jensen_shannon, views)
    huge = [(1e4 * torch.randn(3, 4)).requires_grad_() for _ in range(3)]
    jensen_shannon(*huge).backward()
    assert all(torch.isfinite(view.grad).all() for view in huge)


def test_half_precision_logits_are_computed_with_in_float32():
    views = [torch.randn(5, 7).bfloat16() for _ in range(3)]
    loss = jensen_shannon(*views)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, jensen_shannon(*(view.float() for view in views)))


def test_other_shapes_are_refused():
    with pytest.raises(
        ValueError, match=r"three times logits \[B, C\], got \[\[2, 3\], \[2, 3\], "
    ):
        jensen_shannon(torch.rand(2, 3), torch.rand(2, 3), torch.rand(2, 4))
    with pytest.raises(ValueError, match=r"got \[\[3\], \[3\], \[3\]\]"):
        jensen_shannon(*torch.rand(3, 3).unbind(0))


def test_images_that_do_not_count_change_nothing():
    views = [torch.randn(6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    counted = torch.tensor([True, False, True, True, False, True])
    some = jensen_shannon(*(view[counted] for view in views))
    masked = jensen_shannon(*views, counted=counted)
    assert masked.item() == pytest.approx(some.item(), rel=1e-12)
    masked.backward()
    assert all(view.grad[~counted].abs().max() == 0 for view in views)
    assert jensen_shannon(*views, counted=torch.zeros(6, dtype=torch.bool)).item() == 0
    everything = jensen_shannon(*views, counted=torch.ones(6, dtype=torch.bool))
    assert torch.equal(everything, jensen_shannon(*views))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_over_what_counts(smoothing):
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, -1, 3, 1, -1, 2])
    kept = labels >= 0
    found = cross_entropy(logits, labels, ignored=-1, label_smoothing=smoothing)
    expected = F.cross_entropy(logits[kept], labels[kept], label_smoothing=smoothing)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    nothing = cross_entropy(logits, labels.fill_(-1), ignored=-1, label_smoothing=smoothing)
    assert nothing.item() == 0
    nothing.backward()
    assert logits.grad.abs().max() == 0
