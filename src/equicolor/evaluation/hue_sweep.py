"""Accuracy under hue shifts: how much a network's answers depend on the hue of an image.

The test images are shifted by many angles, and the network is run each time (paper,
section 4.2). The counts stay on the device until the end, so that a GPU never waits.
"""

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.color import compose, decompose, rotate_hue
from equicolor.evaluation.asker import Asker, evaluating
from equicolor.reporting.progress import Progress

__all__ = ["ACTIONS", "HueSweep", "hue_shifts", "hue_sweep", "sweep_actions"]

Batches = Iterable[tuple[Tensor, Tensor]]
_Shift = Callable[[Tensor], Tensor]  # turns, a tensor of no dimensions, to shifted images

_SAME = 9  # decimals of turns in which equal shifts agree
_MARGIN = 0.01  # how far resampling may carry an image out of [0, 1]


def _hsv(images: Tensor) -> _Shift:
    hue, chroma, low = decompose(images)  # shared by all shifts
    return lambda turns: compose(hue + turns, chroma, low)


# What a hue shift does to images; see equicolor.color for the difference.
_MAKE_SHIFT: dict[str, Callable[[Tensor], _Shift]] = {
    "hsv": _hsv,
    "rgb": lambda images: lambda turns: rotate_hue(images, turns),
    "rgb-clip": lambda images: lambda turns: rotate_hue(images, turns, clip=True),
}
ACTIONS = tuple(_MAKE_SHIFT)


@dataclass(frozen=True, eq=False)
class HueSweep:
    """What a network answers when the hue of the images is shifted, counted per class.

    Attributes:
        action: ``"hsv"``, ``"rgb"`` or ``"rgb-clip"``.
        shifts: turns, float64 :math:`[K]`.
        counts: images of every class, int64 :math:`[C]`.
        correct_original: how many of them are recognised as they are, int64 :math:`[C]`.
        correct: how many are recognised under every shift, int64 :math:`[K, C]`.
        changed: how many get another answer than they do untouched, int64 :math:`[K, C]`.

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

    @property
    def original(self) -> float:
        """Accuracy on the untouched images, in percent."""
        return float(100 * self.correct_original.sum() / self.counts.sum())

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
        """Positions of the shifts that differ: the two ends of the default sweep are one."""
        first: dict[float, int] = {}
        for position, turns in enumerate(self.shifts.tolist()):
            first.setdefault(round(turns % 1, _SAME) % 1, position)
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
        """Points every class loses on average over the distinct shifts, float64 :math:`[C]`."""
        return self.original_per_class - self.mean_per_class


def hue_shifts(shifts: int | Sequence[float] | Tensor = 37) -> Tensor:
    """A number of hue shifts from -0.5 to 0.5 turns, or the shifts themselves.

    Args:
        shifts: a number of equally spaced shifts, both ends included as in the paper, or
            the shifts themselves.

    Returns:
        Turns, float64 :math:`[K]`.

    Example:
        >>> hue_shifts(5).tolist()
        [-0.5, -0.25, 0.0, 0.25, 0.5]
    """
    if isinstance(shifts, (int, float)):
        if _checks.positive_int("shifts", shifts) < 2:
            raise ValueError("shifts must be at least 2, to span from -0.5 to 0.5; got 1")
        return torch.arange(shifts, dtype=torch.float64) / (int(shifts) - 1) - 0.5
    turns = torch.as_tensor(shifts, dtype=torch.float64, device="cpu").detach()
    if turns.ndim != 1 or not len(turns) or not turns.isfinite().all():
        raise ValueError(f"shifts must be a number or a list of finite turns, got {shifts!r}")
    return turns


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
        batches: pairs of images and labels :math:`[B]`, gone through once. They are moved
            to the model's device; channels-last images stay so.
        shifts: a number of shifts from -0.5 to 0.5 turns, or the shifts themselves.
        action: ``"hsv"`` (:func:`equicolor.color.shift_hue`), ``"rgb"``
            (:func:`equicolor.color.rotate_hue`, which may leave [0, 1]) or ``"rgb-clip"``.
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
    actions: Sequence[str] = ACTIONS,
    *,
    autocast: torch.dtype | None = None,
    progress: Progress | None = None,
    on_original: Callable[[Tensor, Tensor], None] | None = None,
) -> dict[str, HueSweep]:
    """Sweep several actions in one pass over the images; see :func:`hue_sweep`.

    ``on_original`` is called with every batch's logits on the untouched images and its labels,
    both on the model's device.
    """
    for action in actions:
        _checks.one_of("action", action, ACTIONS)
    all_turns = hue_shifts(shifts)
    passes = 1 + len(actions) * len(all_turns)
    total = len(batches) * passes if isinstance(batches, Sized) else None
    ask = Asker(model, autocast)
    counts: Tensor | None = None
    problems: list[Tensor] = []  # a batch each
    turns: tuple[Tensor, ...] = ()  # on the device, one by one
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
            images, labels = ask.place(images, labels)
            exact = images if images.dtype == torch.float64 else images.float()
            logits = ask(images)
            count_pass()
            if on_original:
                on_original(logits, labels)
            classes = logits.shape[1]
            problems.append(_problems(images, labels, logits))
            if counts is None:
                _refuse(problems, classes)  # early: a sweep may take minutes
                shape = 3, passes, classes
                counts = torch.zeros(shape, dtype=torch.int64, device=logits.device)
                turns = all_turns.to(exact).unbind()
            answers = [logits.argmax(1)]
            for action in actions:
                shift = _MAKE_SHIFT[action](exact)
                for turn in turns:
                    logits = ask(shift(turn), like=images)
                    count_pass()
                    problems[-1][2] += logits.isnan().any(1).sum()
                    answers.append(logits.argmax(1))
            _count(counts, torch.stack(answers), labels)
    if counts is None:
        raise ValueError("batches holds no images")
    _refuse(problems, classes)
    untouched, *swept = counts.cpu().split([1, *[len(all_turns)] * len(actions)], dim=1)
    of_class, original, _ = untouched[:, 0]
    return {
        action: HueSweep(action, all_turns, of_class, original, correct, changed)
        for action, (_, correct, changed) in zip(actions, swept, strict=True)
    }


def _problems(images: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    """How many images are not in [0, 1], labels have no output, and answers are NaN: ``[3]``."""
    outside = ((images < -_MARGIN) | (images > 1 + _MARGIN)).flatten(1).any(1)
    unknown = (labels < 0) | (labels >= logits.shape[1])
    return torch.stack([each.sum() for each in (outside, unknown, logits.isnan().any(1))])


def _refuse(problems: Sequence[Tensor], classes: int) -> None:
    """Raise an error if the counts would mean nothing; waits for the device."""
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
    may go anywhere: they are refused at the end.
    """
    kinds = torch.ones_like(answers), answers == labels, answers != answers[0]
    labels = labels.clamp(0, counts.shape[2] - 1)
    counts.index_add_(2, labels, torch.stack([kind.long() for kind in kinds]))
