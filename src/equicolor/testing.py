"""Measure equivariance: for the layers of this package and for your own.

A module is equivariant if transforming its input and then applying it gives the same result as
applying it and then transforming the output. Images are transformed by a hue action, features
``[B, C, n, H, W]`` by rolling their rotations. Everything else (pooled maps, logits) must not
change, which is invariance. With a spatial group, images are also turned and mirrored: features
and maps ``[B, C, H, W]`` must turn with them, and logits must not change.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.color import rotate_hue, shift_hue
from equicolor.groups import SpatialGroup

__all__ = ["assert_equivariant", "equivariance_error"]

Action = Callable[[Tensor, float], Tensor]
Element = tuple[int, int]  # of the product of the hue group with a spatial group
ACTIONS: dict[str, Action] = {"rgb": rotate_hue, "hsv": shift_hue}


def equivariance_error(
    module: Callable[[Tensor], Tensor],
    images: Tensor,
    rotations: int = 3,
    action: str | Action = "rgb",
    *,
    output: str = "auto",
    spatial: str = "p1",
) -> float:
    r"""The worst relative equivariance error of a module over the group.

    .. math:: \max_m \frac{\lVert f(T_m x) - T'_m f(x) \rVert}{\lVert f(x) \rVert}

    Random layers get the same random numbers on both sides. Buffers such as batch statistics
    are restored, so measuring changes nothing.

    Args:
        module: a layer, a network, or any function of one tensor.
        images: RGB images :math:`[B, 3, H, W]`, or features :math:`[B, C, n, H, W]` for a
            hidden layer.
        rotations: the order :math:`n` of the group.
        action: what a hue shift does to an image: ``"rgb"`` rotates about the grey axis,
            ``"hsv"`` shifts the HSV hue, or your own function of (images, turns).
            Features are rolled for any action.
        output: ``"features"`` expects the output to roll, ``"invariant"`` to stay the same;
            ``"auto"`` takes an output of five dimensions for features.
        spatial: ``"p4"`` also turns the images by quarters, in every hue, and ``"p4m"`` mirrors
            them, too. Features are then :math:`[B, C m, n, H, W]`, see
            :class:`equicolor.groups.SpatialGroup`. Outputs of four dimensions are maps, which turn
            with the images.

    Returns:
        The error; 0 for a group of one element, and for images that no hue shift changes.

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
    group = SpatialGroup(spatial)
    transform = _input_action(images, rotations, action, group)
    if not images.numel():
        raise ValueError(f"expected at least one image, got {list(images.shape)}")
    with torch.no_grad(), _unchanged(module):
        reference = _seeded(module, images)
        _check_output(reference)
        rolls = reference.ndim == 5 if output == "auto" else output == "features"
        shape = list(reference.shape)
        if rolls and (len(shape) != 5 or shape[2] != rotations or shape[1] % group.order):
            channels = "C" if group.order == 1 else f"C * {group.order}"
            raise ValueError(
                f"expected features [B, {channels}, {rotations}, H, W] from the module, got "
                f"{shape}; is rotations right? output='invariant' takes any shape"
            )
        worst = 0.0
        for element in _elements(rotations, group):
            expected = _as_features(reference, element, group) if rolls else reference
            if not rolls and reference.ndim == 4:
                expected = group.transform(reference, element[1])
            actual = _seeded(module, transform(images, element))
            if actual.shape != expected.shape:
                return torch.inf
            worst = max(worst, relative_deviation(actual, expected))
    return worst


def _elements(rotations: int, group: SpatialGroup) -> list[Element]:
    """All elements of the product of hue rotations with a spatial group, but the identity."""
    return [(m, s) for s in range(group.order) for m in range(rotations)][1:]


def _as_features(x: Tensor, element: Element, group: SpatialGroup) -> Tensor:
    """What an element of the product does to features ``[B, C * m, n, H, W]``."""
    m, s = element
    return group.transform_features(x.roll(m, 2), s)


def relative_deviation(actual: Tensor, expected: Tensor) -> float:
    """The norm of the difference over the norm of ``expected``; infinite if anything is NaN."""
    # In float64: the norm of half-precision features can overflow, which would hide any error.
    scale = expected.double().norm().clamp_min(torch.finfo(torch.float64).tiny)
    error = (actual.double() - expected.double()).norm() / scale
    # NaN must not count as a small error, and max() would drop it.
    return float(error.nan_to_num(torch.inf))


def assert_equivariant(
    module: Callable[[Tensor], Tensor],
    images: Tensor,
    rotations: int = 3,
    action: str | Action = "rgb",
    *,
    output: str = "auto",
    tolerance: float = 1e-5,
    spatial: str = "p1",
) -> None:
    """Raise an ``AssertionError`` unless :func:`equivariance_error` is at most ``tolerance``.

    The message names the other action if the module is equivariant to that one, else the first
    submodule that breaks equivariance, even if the output does not depend on it. It says so if
    the cause is a normalisation of images that treats the three channels differently.

    Images that no hue shift changes, such as grey ones, test nothing: that is a ``ValueError``.

    Args:
        module, images, rotations, action, output, spatial: as in :func:`equivariance_error`.
        tolerance: the largest relative error allowed; 1e-5 suits float32.

    Example:
        >>> from equicolor.nn import CELiftConv2d
        >>> assert_equivariant(CELiftConv2d(3, 4, 3, rotations=3), torch.rand(2, 3, 8, 8))
    """
    error = equivariance_error(module, images, rotations, action, output=output, spatial=spatial)
    if not error <= tolerance:
        name = type(module).__name__ if isinstance(module, nn.Module) else repr(module)
        label = action if isinstance(action, str) else getattr(action, "__name__", repr(action))
        times = "" if spatial == "p1" else f" times {spatial}"
        raise AssertionError(
            f"{name} is not equivariant to {rotations} hue rotations{times} (action {label!r}): "
            f"relative error {error:.2e}, allowed {tolerance:.2e}"
            + _cause(module, images, rotations, action, output, tolerance, spatial)
        )
    if rotations > 1 and _without_hue(images, rotations, action):
        raise ValueError(
            "images without hue test nothing: no hue shift changes them; expected colours, or "
            "features that differ between rotations"
        )


@torch.no_grad()
def _without_hue(images: Tensor, rotations: int, action: str | Action) -> bool:
    """Whether no hue shift changes images or features by more than rounding."""
    transform = _input_action(images, rotations, action, SpatialGroup("p1"))
    rounding = 8 * torch.finfo(images.dtype).eps
    return all(
        relative_deviation(transform(images, (m, 0)), images) <= rounding
        for m in range(1, rotations)
    )


def _cause(
    module: Callable[[Tensor], Tensor],
    images: Tensor,
    rotations: int,
    action: str | Action,
    output: str,
    tolerance: float,
    spatial: str,
) -> str:
    """The end of the message: why a module is not equivariant, if a reason is found."""
    if not images.isfinite().all():
        return ". The images are not finite"

    # Errors of the module below must not hide that it is not equivariant.
    def is_equivariant(**changes: Any) -> bool:
        options = {"action": action, "output": output, "spatial": spatial} | changes
        return equivariance_error(module, images, rotations, **options) <= tolerance

    for other in ACTIONS if isinstance(action, str) and images.ndim == 4 else ():
        with suppress(Exception):
            if is_equivariant(action=other):
                return f". It is equivariant to the action {other!r}: pass action={other!r}"
    hint = ""
    subgroups = {"p1": {}, "p4": {"p1": "hue shifts"}, "p4m": {"p1": "hue shifts", "p4": "turns"}}
    for subgroup, what in subgroups[spatial].items():
        with suppress(Exception):
            if is_equivariant(spatial=subgroup) and (rotations > 1 or subgroup != "p1"):
                hint = f". It is equivariant to {what}, with spatial={subgroup!r}"
    if isinstance(module, nn.Module):
        with suppress(Exception):
            place = _first_break(module, images, rotations, action, tolerance, spatial)
            if place is not None:
                hint += _describe(place, module, images, tolerance)
    return hint


class _Place(NamedTuple):
    """The input or output of a module, and its value."""

    path: str
    parent: str
    is_input: bool
    value: Tensor


def _describe(place: _Place, module: nn.Module, images: Tensor, tolerance: float) -> str:
    """What breaks equivariance: a submodule, or code before or after one."""

    def name(path: str) -> str:
        kind = type(module.get_submodule(path)).__name__
        return f"{path!r} ({kind})" if path else kind

    culprit, part = name(place.path), module.get_submodule(place.path)
    if place.is_input:
        culprit = f"the code of {name(place.parent)}, before {culprit}"
    elif any(part.children()):
        culprit = f"the code of {culprit}, after its modules"
    elif not place.path:
        return ""  # the whole module, which the message names already
    numbers = _normalization(images, place.value, tolerance)
    if numbers is None:
        strided = not place.is_input and getattr(part, "stride", 1) not in (1, (1, 1))
        hint = "; with a stride, the image size must let it treat both borders alike"
        return f". The first to break it is {culprit}{hint if strided else ''}"
    mean, std = ([round(number, 4) for number in each.tolist()] for each in numbers)
    return (
        f". The first to break it is {culprit}: it normalises the three channels differently, by "
        f"mean {mean} and standard deviation {std}; use one mean and one standard deviation for "
        "all three"
    )


def _first_break(
    module: nn.Module,
    images: Tensor,
    rotations: int,
    action: str | Action,
    tolerance: float,
    spatial: str,
) -> _Place | None:
    """The first input or output of a submodule that is not transformed in an allowed way."""
    group = SpatialGroup(spatial)
    transform = _input_action(images, rotations, action, group)
    of_images = transform if images.ndim == 4 else None
    with torch.no_grad(), _unchanged(module):
        reference = _record(module, images)
        first = len(reference)
        for element in _elements(rotations, group):
            shifted = _record(module, transform(images, element))
            for index, (before, after) in enumerate(zip(reference[:first], shifted, strict=False)):
                allowed = _transformed(before.value, rotations, element, of_images, group)
                if not any(_agree(after.value, value, tolerance) for value in allowed):
                    first = index
                    break
    return reference[first] if first < len(reference) else None


def _agree(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    return actual.shape == expected.shape and relative_deviation(actual, expected) <= tolerance


def _record(module: nn.Module, images: Tensor) -> list[_Place]:
    """Run a module, and keep inputs and outputs of its submodules in the order of the calls."""
    places: list[_Place] = []
    callers: list[str] = []
    paths = {part: path for path, part in module.named_modules()}

    def keep(path: str, values: object, *, is_input: bool) -> None:
        parent = callers[-1] if callers else ""
        for value in values if isinstance(values, tuple) else (values,):
            if isinstance(value, Tensor) and value.is_floating_point():
                places.append(_Place(path, parent, is_input, value.clone()))  # may change in place

    def before(part: nn.Module, inputs: Any) -> None:
        if part is not module:
            keep(paths[part], inputs, is_input=True)
        callers.append(paths[part])

    def after(part: nn.Module, inputs: Any, outputs: Any) -> None:
        callers.pop()
        keep(paths[part], outputs, is_input=False)

    with ExitStack() as stack:
        for part in paths:
            stack.callback(part.register_forward_pre_hook(before).remove)
            stack.callback(part.register_forward_hook(after).remove)
        _seeded(module, images)
    return places


def _transformed(
    x: Tensor,
    rotations: int,
    element: Element,
    of_images: Callable[[Tensor, Element], Tensor] | None,
    group: SpatialGroup,
) -> Iterator[Tensor]:
    """The allowed transformations of a tensor inside a network: none, a hue shift, or a roll.

    ``of_images`` is the hue shift; None in a network that takes features.

    Rotations may be any dimension, or the outer or inner part of one, such as of flattened
    channels or of a batch. Where there is a spatial group, maps turn, and the elements of the
    group in their channels may be permuted.
    """
    m, s = element
    if of_images is not None and x.ndim == 4 and x.shape[1] == 3:
        yield of_images(x, element)
    turned = [x]
    if s and x.ndim >= 4:
        turned = [group.transform(x, s)]
        if x.shape[1] % group.order == 0:
            turned.append(group.transform_features(x, s))
    for y in turned:
        yield y
        for dim, size in enumerate(y.shape):
            if size and size % rotations == 0:
                yield y.unflatten(dim, (rotations, -1)).roll(m, dim).flatten(dim, dim + 1)
                yield y.unflatten(dim, (-1, rotations)).roll(m, dim + 1).flatten(dim, dim + 1)


def _normalization(
    images: Tensor, result: Tensor, tolerance: float
) -> tuple[Tensor, Tensor] | None:
    """Mean and standard deviation per channel if ``result`` is a normalisation of images."""
    if result.shape != images.shape or images.ndim != 4:
        return None
    x, y = (each.double().transpose(0, 1).flatten(1) for each in (images, result))
    centred = x - x.mean(1, keepdim=True)
    scale = (centred * y).sum(1) / centred.square().sum(1)
    shift = y.mean(1) - scale * x.mean(1)
    alike = torch.stack([scale, shift]).std(1).max() <= tolerance
    if alike or relative_deviation(scale[:, None] * x + shift[:, None], y) > tolerance:
        return None
    return -shift / scale, 1 / scale


def _input_action(
    images: Tensor, rotations: int, action: str | Action, group: SpatialGroup
) -> Callable[[Tensor, Element], Tensor]:
    if isinstance(action, str):
        _checks.one_of("action", action, tuple(ACTIONS))
        action = ACTIONS[action]
    if not callable(action):
        raise TypeError(f"action must be 'rgb', 'hsv' or a function, got {action!r}")
    shift = action
    if isinstance(images, Tensor) and images.ndim == 5:
        _checks.features(f"equivariance_error(rotations={rotations})", images, rotations=rotations)
        group.by_element(images)  # refuses other channels
        return lambda x, element: _as_features(x, element, group)
    _checks.image_batch("equivariance_error", images)
    return lambda x, element: group.transform(shift(x, element[0] / rotations), element[1])


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
    """Restore the buffers of a module at the end, also those that it assigned."""
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
