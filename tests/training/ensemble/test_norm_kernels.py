"""The Triton kernels against the same formulas in torch, in Triton's interpreter or on a GPU."""

import pytest
import torch
from torch import Tensor

from equicolor.training.ensemble import network

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch's CUDA builds")

from equicolor.training.ensemble import norm_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# hues, channels, networks, lanes a network, pixels a side, batch, dropout
SHAPES = {
    "flat network": (3, 5, 2, 32, 6, 7, True),
    "last layer": (3, 17, 3, 64, 1, 9, False),
    "plain network": (1, 20, 3, 32, 4, 5, True),
    "lanes that fill no tile": (2, 3, 1, 8, 3, 2, True),
    "rows over several programs": (2, 3, 2, 8, 13, 3, True),
    "several tiles a program": (2, 3, 2, 8, 13, 3, True),
}


def inputs(name: str, dtype: torch.dtype) -> tuple[int, list[Tensor], Tensor | None, Tensor]:
    """Hues, differentiable arguments, dropout factors and the gradient that comes back."""
    n, channels, networks, lanes, side, batch, dropped = SHAPES[name]
    # A mean away from zero, since sums of squares must not cancel.
    y = torch.randn(batch, networks * lanes, side, side) + 4
    y[:, torch.arange(networks * lanes) % lanes >= n * channels] = 0
    y = y.to(dtype).to(memory_format=torch.channels_last)
    weight, shift = torch.rand(networks, channels) + 0.5, torch.randn(networks, channels)
    factors = (torch.rand(batch, networks * lanes) > 0.3) / 0.7 if dropped else None
    gradient = torch.randn_like(y)
    arguments = [value.to(DEVICE) for value in (y, weight, shift)]
    return n, arguments, None if factors is None else factors.to(DEVICE), gradient.to(DEVICE)


@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_equal_the_reference(
    name: str, relative_error, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "several tiles a program":
        monkeypatch.setattr(norm_kernels, "_PROGRAMS", 4)
    n, arguments, factors, gradient = inputs(name, torch.float32)
    both = []
    for function in (network.norm_and_cut, norm_kernels.norm_and_cut):
        leaves = [value.clone().requires_grad_() for value in arguments]
        out, mean, var = function(*leaves, factors, n)
        both.append((out, mean, var, *torch.autograd.grad(out, leaves, gradient)))
    names = "out", "mean", "var", "gradient of y", "gradient of weight", "gradient of shift"
    for what, expected, got in zip(names, *both, strict=True):
        assert relative_error(got, expected) < 1e-4, what


def test_half_precision_differs_by_its_rounding_alone(relative_error) -> None:
    n, (y, weight, shift), factors, _ = inputs("flat network", torch.bfloat16)
    out, _, _ = norm_kernels.norm_and_cut(y, weight, shift, factors, n)
    expected, _, _ = network.norm_and_cut(y.float(), weight, shift, factors, n)
    assert out.dtype == torch.bfloat16
    assert relative_error(out.float(), expected) < 2**-8


def test_spare_lanes_stay_empty() -> None:
    n, (y, weight, shift), factors, gradient = inputs("flat network", torch.float32)
    y.requires_grad_()
    out, _, _ = norm_kernels.norm_and_cut(y, weight, shift, factors, n)
    (back,) = torch.autograd.grad(out, y, gradient)
    spare = torch.arange(y.shape[1]) % 32 >= 15
    assert not out[:, spare].any()
    assert not back[:, spare].any()
