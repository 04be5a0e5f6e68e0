"""How well networks of coloured digits still read the digit when hues are shifted."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from equicolor.data import ColorMNIST
from equicolor.evaluation import hue_shifts, hue_sweep

__all__ = ["HUE_IMAGES", "HUE_SHIFTS", "best_known", "hue_curve"]

HUE_SHIFTS = hue_shifts(37)  # as the paper sweeps hues: the two ends are the same shift
HUE_IMAGES = 30  # of a class, on which the first seed is swept
_BATCH = 250


def hue_curve(
    network: nn.Module,
    data: ColorMNIST,
    shifts: int | Sequence[float] | Tensor = HUE_SHIFTS,
    *,
    classes: Sequence[int] | None = None,
    per_class: int | None = None,
) -> Tensor:
    """How often a network still reads the digit when the hue of the test images is shifted.

    Where the colour belongs to the class, as in the long-tailed experiment, a shift changes the
    right answer; the digit stays, so it is the digit alone that counts here.

    Args:
        network: maps images to logits of the dataset's classes.
        data: what to test on.
        shifts: hue shifts in turns, as for :func:`equicolor.evaluation.hue_sweep`.
        classes: only test images of these.
        per_class: only so many of each.

    Returns:
        Percent of digits read correctly, float64 ``[K]``.

    Example:
        >>> from equicolor.data import biased_colormnist, load_mnist
        >>> from equicolor.models import z2cnn
        >>> data = biased_colormnist(0.0, load_mnist(embedded=True), test_size=20)
        >>> hue_curve(z2cnn(), data, [0.0, 0.5]).shape
        torch.Size([2])
    """
    chosen = range(data.num_classes) if classes is None else classes
    kept = [torch.nonzero(data.test.labels == c).flatten()[:per_class] for c in chosen]
    images, labels = (part[torch.cat(kept)] for part in data.test)
    colors = data.num_classes // 10
    batches = zip(images.split(_BATCH), (labels // colors).split(_BATCH), strict=True)
    return hue_sweep(_DigitReader(network, colors), list(batches), shifts).accuracy


class _DigitReader(nn.Module):
    """A network that names digits in colours, asked for the digit in whatever colour."""

    def __init__(self, network: nn.Module, colors: int) -> None:
        super().__init__()
        self.network, self.colors = network, colors

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, 28, 28]`` to the highest logit of every digit, ``[B, 10]``."""
        highest: Tensor = self.network(images).unflatten(1, (-1, self.colors)).amax(2)
        return highest


def best_known(data: ColorMNIST) -> list[int]:
    """For every digit of the long-tailed dataset the class, so the colour, seen most often.

    Example:
        >>> from equicolor.data import load_mnist, longtailed_colormnist
        >>> data = longtailed_colormnist(load_mnist(embedded=True), test_per_class=1)
        >>> [data.class_names[index] for index in best_known(data)][:3]
        ['0 red', '1 blue', '2 blue']
    """
    colors = data.num_classes // 10
    best = data.class_counts().view(10, colors).argmax(1)
    return [int(color) + colors * digit for digit, color in enumerate(best)]
