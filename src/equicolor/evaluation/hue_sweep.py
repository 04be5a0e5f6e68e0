"""Accuracy under hue shifts: how much a network's answers depend on the hue of an image.

The hues of the test images are shifted by many angles, and the network is run each time (paper,
section 4.2). Other actions than hue shifts, such as coloured light, are swept in the same way.
The counts stay on the device until the end, so that a GPU never waits.
"""

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._text import counted
from equicolor.evaluation.actions import HUE_ACTIONS, action_named, action_values
from equicolor.evaluation.runner import Runner, evaluating
from equicolor.reporting.progress import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Batches = Iterable[tuple[Tensor, Tensor]]

_DECIMALS = 9  # in which equal shifts agree


@dataclass(frozen=True, eq=False)
class HueSweep:
    """A network's answers to images with shifted hues, counted per class.

    For another action than a hue shift, ``shifts`` are the values of that action.

    Attributes:
        action: one of :data:`equicolor.evaluation.ACTIONS`.
        shifts: turns, or values in the unit of the action, float64 :math:`[K]`.
        counts: images of every class, int64 :math:`[C]`.
        correct_original: how many of them are recognised untouched, int64 :math:`[C]`.
        correct: how many are recognised under every shift, int64 :math:`[K, C]`.
        changed: how many get another answer than untouched, int64 :math:`[K, C]`.

    Example:
        >>> class Red(nn.Module):  # class 1: more red than green
        ...     def forward(self, images):
        ...         red, green, _ = images.mean((2, 3)).unbind(1)
        ...         return torch.stack((green, red), 1)
        >>> reds = torch.tensor([0.9, 0.1, 0.1]).view(1, 3, 1, 1).expand(4, 3, 8, 8)
        >>> sweep = hue_sweep(Red(), [(reds, torch.ones(4).long())], shifts=[0.0, 1 / 3])
        >>> sweep.original, sweep.accuracy.tolist(), sweep.mean
        (100.0, [100.0, 0.0], 50.0)
    """

    action: str
    shifts: Tensor
    counts: Tensor
    correct_original: Tensor
    correct: Tensor
    changed: Tensor

    def __repr__(self) -> str:
        worst, action = int(self.accuracy.argmin()), action_named(self.action)
        return (
            f"HueSweep({self.action!r}, {len(self.shifts)} {action.unit}, "
            f"{counted(int(self.counts.sum()), 'image')}: original {self.original:.1f} %, mean "
            f"{self.mean:.1f} %, lowest {float(self.accuracy[worst]):.1f} % at "
            f"{action.show(float(self.shifts[worst]))})"
        )

    def plot(self, axes: "Axes | None" = None, *, label: str | None = None) -> "Axes":
        """Draw the accuracy over the hue shift in degrees, or over the values of the action.

        A dotted line is the accuracy on the untouched images. Needs matplotlib.

        Args:
            axes: matplotlib's, to draw the curves of several networks into one figure; by default
                those of a new figure, which a notebook shows.
            label: what the legend calls the curve; by default the action.

        Returns:
            The axes, with :attr:`~matplotlib.axes.Axes.figure` to save.

        Example:
            >>> from equicolor.models import z2cnn
            >>> batches = [(torch.rand(4, 3, 28, 28), torch.arange(4))]
            >>> axes = hue_sweep(z2cnn(), batches, 3).plot(label="plain")
            >>> axes = hue_sweep(z2cnn(), batches, 3).plot(axes, label="another")
            >>> [text.get_text().partition(",")[0] for text in axes.get_legend().get_texts()]
            ['plain', 'another']
        """
        from equicolor.evaluation.figures import plot_sweep  # imports matplotlib

        return plot_sweep(self, axes, label=label)

    @property
    def original(self) -> float:
        """Accuracy on the untouched images, in percent."""
        return float(100 * self.correct_original.sum().double() / self.counts.sum())

    @property
    def accuracy(self) -> Tensor:
        """Accuracy under every shift in percent, float64 :math:`[K]`."""
        return 100 * self.correct.sum(1).double() / self.counts.sum()

    @property
    def mean(self) -> float:
        """Mean accuracy over all shifts, in percent; the paper's hue-shifted accuracy."""
        return float(self.accuracy.mean())

    @property
    def distinct(self) -> list[int]:
        """Positions of the distinct shifts: the two ends of the default sweep are one."""
        cyclic = action_named(self.action).cyclic
        first: dict[float, int] = {}
        for position, value in enumerate(self.shifts.tolist()):
            same = round(value % 1, _DECIMALS) % 1 if cyclic else round(value, _DECIMALS)
            first.setdefault(same, position)
        return list(first.values())

    @property
    def mean_distinct(self) -> float:
        """Mean accuracy over the distinct shifts, in percent."""
        return float(self.accuracy[self.distinct].mean())

    @property
    def per_class(self) -> Tensor:
        """Accuracy of every class under every shift in percent, float64 :math:`[K, C]`.

        NaN for classes without images, here and below.
        """
        return 100 * self.correct.double() / self.counts

    @property
    def original_per_class(self) -> Tensor:
        """Accuracy of every class on the untouched images in percent, float64 :math:`[C]`."""
        return 100 * self.correct_original.double() / self.counts

    @property
    def predictions_changed(self) -> Tensor:
        """Percent of a class's images with another answer than untouched, :math:`[K, C]`."""
        return 100 * self.changed.double() / self.counts

    @property
    def mean_per_class(self) -> Tensor:
        """Mean accuracy of every class over the distinct shifts in percent, :math:`[C]`."""
        return self.per_class[self.distinct].mean(0)

    @property
    def mean_changed(self) -> Tensor:
        """Mean of :attr:`predictions_changed` over the distinct shifts, :math:`[C]`."""
        return self.predictions_changed[self.distinct].mean(0)

    @property
    def drop(self) -> Tensor:
        """Points that every class loses on average over the distinct shifts, :math:`[C]`."""
        return self.original_per_class - self.mean_per_class


def hue_shifts(shifts: int | Sequence[float] | Tensor = 37) -> Tensor:
    """Hue shifts in turns, from a number of shifts or the shifts themselves.

    Args:
        shifts: a number of equally spaced shifts from -0.5 to 0.5, both ends included as in
            the paper, or the shifts themselves.

    Returns:
        Turns, float64 :math:`[K]`.

    Example:
        >>> hue_shifts(5).tolist()
        [-0.5, -0.25, 0.0, 0.25, 0.5]
    """
    return action_values(("hsv",), shifts)["hsv"]


def hue_sweep(
    model: nn.Module,
    batches: Batches,
    shifts: int | Sequence[float] | Tensor = 37,
    action: str = "hsv",
    *,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
) -> HueSweep:
    """Measure the accuracy of a network on images with shifted hues.

    Args:
        model: maps images :math:`[B, 3, H, W]` in [0, 1] to logits :math:`[B, C]`. It is put
            in eval mode, and back into the mode it was in at the end.
        batches: pairs of images and labels :math:`[B]`, read once. They are moved to the
            model's device; channels-last images stay so.
        shifts: a number of shifts from -0.5 to 0.5 turns, or the shifts themselves in turns,
            from -1 to 1; for other actions than hue shifts, a number of values over the range
            below, or the values.
        action: ``"hsv"`` (:func:`equicolor.color.shift_hue`), ``"rgb"``
            (:func:`equicolor.color.rotate_hue`, which may leave [0, 1]) or ``"rgb-clip"``;
            ``"cast"`` (:func:`equicolor.light.cast_light` of strength 0.3, light of all hues in
            turns), ``"gamma"`` (from 0.5 to 2, in equal ratios), ``"brightness"`` (from -2 to 2
            stops) or ``"saturation"`` (factors from 0 to 2), all of :mod:`equicolor.light`
            and clipped to [0, 1]; ``"turn"``, the elements 0 to 7 of
            :class:`equicolor.groups.SpatialGroup` ``"p4m"``, whatever number is asked for.
        autocast: compute with torch's autocast to this dtype; hues are shifted outside it.
        progress: called with (passes through the network done, passes in all if known).

    Returns:
        Accuracy on the untouched images and under every shift, with the counts.

    Example:
        >>> from equicolor.models import z2cnn
        >>> batches = [(torch.rand(4, 3, 28, 28), torch.arange(4))]
        >>> sweep = hue_sweep(z2cnn(), batches, action="rgb")
        >>> len(sweep.shifts), len(sweep.distinct), sweep.per_class.shape
        (37, 36, torch.Size([37, 10]))
    """
    sweeps = sweep_actions(model, batches, shifts, (action,), autocast=autocast, progress=progress)
    return sweeps[action]


@torch.no_grad()
def sweep_actions(
    model: nn.Module,
    batches: Batches,
    shifts: int | Sequence[float] | Tensor = 37,
    actions: Sequence[str] = HUE_ACTIONS,
    *,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
    on_original: Callable[[Tensor, Tensor], None] | None = None,
) -> dict[str, HueSweep]:
    """Sweep several actions in one pass over the images; see :func:`hue_sweep`.

    ``on_original`` is called with every batch's logits on the untouched images and its labels,
    both on the model's device.
    """
    values = action_values(actions, shifts)
    sizes = [1, *map(len, values.values())]
    passes = sum(sizes)
    total = len(batches) * passes if isinstance(batches, Sized) else None
    runner = Runner(model, autocast)
    counts: Tensor | None = None
    problems: list[Tensor] = []  # a batch each
    on_device: dict[str, Sequence[float | Tensor]] = {}  # the values, one by one
    classes = done = 0

    def count_pass() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    with evaluating(model):
        for images, labels in batches:
            if not len(images):  # for example if all of them were corrupt
                continue
            images, labels = runner.place(images, labels)
            exact = images if images.dtype == torch.float64 else images.float()
            logits = runner(images)
            count_pass()
            if on_original:
                on_original(logits, labels)
            classes = logits.shape[1]
            problems.append(_problems(images, labels, logits))
            if counts is None:
                _refuse(problems, classes)  # now, because a sweep may take minutes
                shape = 3, passes, classes
                counts = torch.zeros(shape, dtype=torch.int64, device=logits.device)
                on_device = {name: _unbound(name, each, exact) for name, each in values.items()}
            answers = [logits.argmax(1)]
            for action in values:
                change = action_named(action).change(exact)
                for value in on_device[action]:
                    logits = runner(change(value), like=images)
                    count_pass()
                    problems[-1][2] += logits.isnan().any(1).sum()
                    answers.append(logits.argmax(1))
            _count(counts, torch.stack(answers), labels)
    if counts is None:
        raise ValueError("batches holds no images")
    _refuse(problems, classes)
    untouched, *swept = counts.cpu().split(sizes, dim=1)
    of_class, original, _ = untouched[:, 0]
    return {
        action: HueSweep(action, values[action], of_class, original, correct, changed)
        for action, (_, correct, changed) in zip(values, swept, strict=True)
    }


def _unbound(action: str, values: Tensor, images: Tensor) -> Sequence[float | Tensor]:
    """Values one by one, on the device of the images; as numbers if Python has to read them."""
    numbers: list[float] = values.tolist()
    return numbers if action_named(action).whole else values.to(images).unbind()


def _problems(images: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    """The numbers of images outside [0, 1], labels without an output, and NaN answers: ``[3]``."""
    outside = ((images < -_checks.MARGIN) | (images > 1 + _checks.MARGIN)).flatten(1).any(1)
    unknown = (labels < 0) | (labels >= logits.shape[1])
    return torch.stack([each.sum() for each in (outside, unknown, logits.isnan().any(1))])


def _refuse(problems: Sequence[Tensor], classes: int) -> None:
    """Raise an error if there are problems; waits for the device."""
    outside, unknown, undefined = torch.stack(tuple(problems)).sum(0).tolist()
    if outside:
        raise ValueError(
            f"hue_sweep expects images in [0, 1], but {outside} are not; normalisation "
            "belongs into the network, so that hues are shifted before it"
        )
    if unknown:
        raise ValueError(
            f"the network has {classes} outputs, but {unknown} labels lie outside "
            f"0 to {classes - 1}: are its classes those of the images?"
        )
    if undefined:
        raise ValueError(f"the network's logits are NaN for {undefined} images")


def _count(counts: Tensor, answers: Tensor, labels: Tensor) -> None:
    """Add a batch to ``counts``: images, right and changed answers ``[3, passes, classes]``.

    ``answers`` are ``[passes, B]``, the first to the untouched images. Labels without an output
    are clamped here, and refused at the end.
    """
    kinds = torch.ones_like(answers), answers == labels, answers != answers[0]
    labels = labels.clamp(0, counts.shape[2] - 1)
    counts.index_add_(2, labels, torch.stack([kind.long() for kind in kinds]))
