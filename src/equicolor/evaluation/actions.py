"""What sweeps do to images: hue shifts, changes of light and tone, turns and mirror images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equicolor import _checks
from equicolor.color import compose, decompose, rotate_hue
from equicolor.groups import SpatialGroup
from equicolor.light import cast_light, change_brightness, change_gamma, change_saturation

Change = Callable[[float | Tensor], Tensor]  # from a value to the changed images

CAST_STRENGTH = 0.3  # gains of 0.7 to 1.3


@dataclass(frozen=True)
class Action:
    """A change of images whose strength or direction is a number, the value."""

    label: str  # its name in tables and figures
    unit: str  # of its values, in the plural
    low: float  # the first value of a sweep
    high: float  # the last one
    # From images [B, 3, H, W] to a function from a value to the changed images, so that work that
    # all values share is done once.
    change: Callable[[Tensor], Change]
    show: Callable[[float], str]  # formats a value
    cyclic: bool = False  # the values are angles in turns
    doubling: bool = False  # the values of a sweep have equal ratios, not equal differences
    whole: bool = False  # the values are whole numbers, and a sweep takes all of them

    def spaced(self, count: int) -> Tensor:
        """``count`` values over the range, both ends included, float64."""
        if self.whole:
            return torch.arange(self.low, self.high + 1, dtype=torch.float64)
        steps = torch.arange(count, dtype=torch.float64) / (count - 1)
        if self.doubling:
            return self.low * (self.high / self.low) ** steps
        return steps * (self.high - self.low) + self.low


def _shift_hsv(images: Tensor) -> Change:
    hue, chroma, low = decompose(images)  # shared by all shifts
    return lambda turns: compose(hue + turns, chroma, low)


_P4M = SpatialGroup("p4m")


def _turn(images: Tensor) -> Change:
    def change(element: float | Tensor) -> Tensor:
        if float(element) % 1:
            raise ValueError(
                f"turn expects whole numbers from 0 to {_P4M.order - 1}, got {float(element):g}"
            )
        return _P4M.transform(images, int(element)).contiguous()

    return change


def _in_turns(label: str, change: Callable[[Tensor], Change]) -> Action:
    """An action whose values are turns, over the whole circle."""
    return Action(
        label, "turns", -0.5, 0.5, change, lambda turns: f"{360 * turns:z.0f}°", cyclic=True
    )


# Hue shifts: equicolor.color explains the difference.
_HUE_SHIFTS: dict[str, Action] = {
    "hsv": _in_turns("HSV shift", _shift_hsv),
    "rgb": _in_turns("RGB rotation", lambda images: lambda turns: rotate_hue(images, turns)),
    "rgb-clip": _in_turns(
        "RGB rotation, clipped",
        lambda images: lambda turns: rotate_hue(images, turns, clip=True),
    ),
}
# See equicolor.light and equicolor.groups. All of these stay in [0, 1].
_OTHER_ACTIONS: dict[str, Action] = {
    "cast": _in_turns(
        f"light cast, {100 * CAST_STRENGTH:.0f} %",
        lambda images: lambda turns: cast_light(images, turns, CAST_STRENGTH, clip=True),
    ),
    "gamma": Action(
        "gamma", "gammas", 0.5, 2.0,
        lambda images: lambda gamma: change_gamma(images, gamma),
        lambda gamma: f"{gamma:.2f}",
        doubling=True,
    ),
    "brightness": Action(
        "brightness", "stops", -2.0, 2.0,
        lambda images: lambda stops: change_brightness(images, stops, clip=True),
        lambda stops: f"{stops:+z.1f} stops",
    ),
    "saturation": Action(
        "saturation", "factors", 0.0, 2.0,
        lambda images: lambda factor: change_saturation(images, factor, clip=True),
        lambda factor: f"× {factor:.2f}",
    ),
    "turn": Action(
        "turns and mirror images", "quarter turns, mirrored from 4 on", 0.0, _P4M.order - 1.0,
        _turn,
        lambda element: f"{90 * (element % 4):.0f}°{', mirrored' * (element >= 4)}",
        whole=True,
    ),
}  # fmt: skip
_ALL_ACTIONS = _HUE_SHIFTS | _OTHER_ACTIONS
HUE_ACTIONS, ACTIONS = tuple(_HUE_SHIFTS), tuple(_ALL_ACTIONS)


def action_named(name: str) -> Action:
    """The action with a name.

    Example:
        >>> gamma = action_named("gamma")
        >>> gamma.label, gamma.spaced(3).tolist()
        ('gamma', [0.5, 1.0, 2.0])
    """
    return _ALL_ACTIONS[_checks.one_of("action", name, ACTIONS)]


def action_values(
    actions: Sequence[str], shifts: int | Sequence[float] | Tensor = 37
) -> dict[str, Tensor]:
    """The values at which actions are swept, float64 :math:`[K]` for each.

    Args:
        actions: some of :data:`ACTIONS`.
        shifts: how many values, over the whole range of each action; or the values themselves,
            if all actions have the same unit.

    Example:
        >>> {name: values.tolist() for name, values in action_values(["hsv", "gamma"], 3).items()}
        {'hsv': [-0.5, 0.0, 0.5], 'gamma': [0.5, 1.0, 2.0]}
        >>> action_values(["brightness"], [-1.0, 1.0])["brightness"].tolist()
        [-1.0, 1.0]
    """
    named = {name: action_named(name) for name in actions}
    units = list(dict.fromkeys(action.unit for action in named.values()))
    if isinstance(shifts, (int, float)):
        if _checks.positive_int("shifts", shifts) < 2:
            raise ValueError("shifts must be at least 2, to span from end to end; got 1")
    elif len(units) > 1:
        raise ValueError(
            f"shifts must be a number for actions whose values are {' and '.join(units)}, "
            f"got {shifts!r}"
        )
    return {name: _values(action, shifts) for name, action in named.items()}


def check_turns(what: str, turns: Sequence[float]) -> None:
    """Refuse hue shifts beyond a whole turn: degrees, taken as turns, would change nothing."""
    beyond = [each for each in turns if not abs(each) <= 1]
    if beyond:
        raise ValueError(
            f"{what} are in turns, from -1 to 1: 120 degrees are 1/3; got {beyond[0]:g}"
        )


def _values(action: Action, shifts: int | Sequence[float] | Tensor) -> Tensor:
    if isinstance(shifts, (int, float)):
        return action.spaced(int(shifts))
    values = torch.as_tensor(shifts, dtype=torch.float64, device="cpu").detach()
    if values.ndim != 1 or not len(values) or not values.isfinite().all():
        raise ValueError(
            f"shifts must be a number or a list of finite {action.unit}, got {shifts!r}"
        )
    if action.cyclic:
        check_turns("shifts", values.tolist())
    change = action.change(torch.zeros(1, 3, 1, 1))
    for value in values.tolist():
        change(value)  # refuses bad values; in a sweep, values are tensors, which go unchecked
    return values
