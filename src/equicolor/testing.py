"""Measure equivariance: for the layers of this package and for your own.

A module is equivariant when transforming its input and then applying it gives the same
as applying it and then transforming the output. Images transform by a hue action,
features ``[B, C, n, H, W]`` by rolling their rotations, everything else (pooled maps,
logits) stays as it is, which is invariance.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.color import rotate_hue, shift_hue

__all__ = ["assert_equivariant", "equivariance_error"]

Action = Callable[[Tensor, float], Tensor]
ACTIONS: dict[str, Action] = {"rgb": rotate_hue, "hsv": shift_hue}


def equivariance_error(
    module: Callable[[Tensor], Tensor],
    images: Tensor,
    rotations: int = 3,
    action: str | Action = "rgb",
    *,
    output: str = "auto",
) -> float:
    r"""The worst relative equivariance error of a module over the hue group.

    .. math:: \max_m \frac{\lVert f(T_m x) - T'_m f(x) \rVert}{\lVert f(x) \rVert}

    Random layers see the same random numbers on both sides, and buffers such as batch
    statistics are put back, so measuring changes nothing.

    Args:
        module: a layer, a network, or any function of one tensor.
        images: RGB images :math:`[B, 3, H, W]`, or features :math:`[B, C, n, H, W]` for a
            hidden layer.
        rotations: the order :math:`n` of the group.
        action: what a hue shift does to an image: ``"rgb"`` rotates about the grey axis,
            ``"hsv"`` shifts the HSV hue, or your own function of (images, turns).
            Features roll whatever the action.
        output: ``"features"`` expects the output to roll, ``"invariant"`` to stay;
            ``"auto"`` takes five dimensions for features.

    Returns:
        The error; 0 for a single rotation.

    Example:
        >>> from equicolor.nn import CELiftConv2d
        >>> layer = CELiftConv2d(3, 4, 3, rotations=5, lifting="hsv").double()
        >>> images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
        >>> equivariance_error(layer, images, rotations=5, action="hsv") < 1e-12
        True
        >>> equivariance_error(layer, images, rotations=5, action="rgb") > 1e-3
        True
    """
    _checks.positive_int("rotations", rotations)
    _checks.one_of("output", output, ("auto", "features", "invariant"))
    transform = _input_action(images, rotations, action)
    with torch.no_grad(), _unchanged(module):
        reference = _seeded(module, images)
        _check_output(reference)
        rolls = reference.ndim == 5 if output == "auto" else output == "features"
        if rolls and (reference.ndim != 5 or reference.shape[2] != rotations):
            raise ValueError(
                f"expected features [B, C, {rotations}, H, W] from the module, got "
                f"{list(reference.shape)}; is rotations right? output='invariant' takes any shape"
            )
        worst = 0.0
        for m in range(1, rotations):
            expected = reference.roll(m, 2) if rolls else reference
            worst = max(worst, relative_deviation(_seeded(module, transform(images, m)), expected))
    return worst


def relative_deviation(actual: Tensor, expected: Tensor) -> float:
    """The norm of a difference over the norm of what was expected.

    Args:
        actual, expected: of one shape.

    Returns:
        The deviation; infinite if anything is NaN.

    Example:
        >>> relative_deviation(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]))
        0.1
    """
    # In float64: the norm of half-precision features can overflow to inf, and hide any error.
    scale = expected.double().norm().clamp_min(torch.finfo(torch.float64).tiny)
    error = (actual.double() - expected.double()).norm() / scale
    # A NaN must not pass for a small error, and max() would drop it.
    return float(error.nan_to_num(torch.inf))


def assert_equivariant(
    module: Callable[[Tensor], Tensor],
    images: Tensor,
    rotations: int = 3,
    action: str | Action = "rgb",
    *,
    output: str = "auto",
    tolerance: float = 1e-5,
) -> None:
    """Raise an ``AssertionError`` unless :func:`equivariance_error` is at most ``tolerance``.

    Args:
        module, images, rotations, action, output: as in :func:`equivariance_error`.
        tolerance: the largest relative error allowed; 1e-5 suits float32.

    Example:
        >>> from equicolor.nn import CELiftConv2d
        >>> assert_equivariant(CELiftConv2d(3, 4, 3, rotations=3), torch.rand(2, 3, 8, 8))
    """
    error = equivariance_error(module, images, rotations, action, output=output)
    if not error <= tolerance:
        name = type(module).__name__ if isinstance(module, nn.Module) else repr(module)
        label = action if isinstance(action, str) else getattr(action, "__name__", repr(action))
        raise AssertionError(
            f"{name} is not equivariant to {rotations} hue rotations (action {label!r}): "
            f"relative error {error:.2e}, allowed {tolerance:.2e}"
        )


def _input_action(
    images: Tensor, rotations: int, action: str | Action
) -> Callable[[Tensor, int], Tensor]:
    if isinstance(action, str):
        _checks.one_of("action", action, tuple(ACTIONS))
        action = ACTIONS[action]
    if not callable(action):
        raise TypeError(f"action must be 'rgb', 'hsv' or a function, got {action!r}")
    shift = action
    if isinstance(images, Tensor) and images.ndim == 5:
        _checks.features(f"equivariance_error(rotations={rotations})", images, rotations=rotations)
        return lambda x, m: x.roll(m, 2)
    _checks.image_batch("equivariance_error", images)
    return lambda x, m: shift(x, m / rotations)


def _check_output(y: object) -> None:
    if not isinstance(y, Tensor):
        raise TypeError(f"expected one Tensor from the module, got {type(y).__name__}")
    if not y.is_floating_point():
        raise TypeError(f"expected floating-point output from the module, got {y.dtype}")


def _seeded(module: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Run the module with the same random numbers every time."""
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(0)
        return module(x.clone())  # a module may work in place


@contextmanager
def _unchanged(module: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Put the buffers of a module back at the end, also those a module assigns anew."""
    owners = list(module.modules()) if isinstance(module, nn.Module) else []
    saved = [
        (owner, name, buffer, buffer.clone())
        for owner in owners
        for name, buffer in owner.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for owner, name, buffer, value in saved:
            setattr(owner, name, buffer.copy_(value))
