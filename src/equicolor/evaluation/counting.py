"""The parts of a hue sweep: run a network, and count its answers on the device."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.models import Network
from equicolor.nn import CEConv2d, capture, fold

__all__ = ["Asker", "SweepCounts", "evaluating"]

_MARGIN = 0.01  # how far resampling may carry an image out of [0, 1]


class Asker:
    """A network that takes images of any device and dtype.

    On a GPU, networks of this package are recorded as CUDA graphs at the first call: a sweep runs
    them hundreds of times, and for small images most of the time would go into launching kernels.
    Equivariant networks are folded first where the fused form gives the same numbers.
    """

    def __init__(self, model: nn.Module, autocast: torch.dtype | None) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        self.model, self.autocast = model, autocast
        self.device = tensors[0].device if tensors else None
        self.dtype = floating[0].dtype if floating else None
        self._call: Callable[[Tensor], object] | None = None

    def place(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Check a batch and move it to the network's device."""
        _checks.image_batch("hue_sweep", images)
        labels = torch.as_tensor(labels)
        if labels.shape != images.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"hue_sweep expects one whole number per image as labels, "
                f"[{len(images)}], got {labels.dtype} {list(labels.shape)}"
            )
        device = images.device if self.device is None else self.device
        return (
            images.to(device, non_blocking=True),
            labels.to(device, torch.int64, non_blocking=True),
        )

    def __call__(self, images: Tensor, *, like: Tensor | None = None) -> Tensor:
        """Logits of images, which are brought into the memory layout of ``like``."""
        images = images if self.dtype is None else images.to(self.dtype)
        if like is not None and like.is_contiguous(memory_format=torch.channels_last):
            images = images.contiguous(memory_format=torch.channels_last)
        if self._call is None:
            self._call = self._recorded(images)
        logits = self._call(images)
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
            came = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"hue_sweep expects a network that gives logits [{len(images)}, classes] for "
                f"images {list(images.shape)}, got {came}"
            )
        return logits

    def _recorded(self, images: Tensor) -> Callable[[Tensor], object]:
        if images.is_cuda and isinstance(self.model, Network):  # others may not allow it
            try:
                return capture(_folded(self.model), images, self.autocast)
            except (RuntimeError, TypeError) as error:
                warnings.warn(f"evaluates without CUDA graphs: {error}", stacklevel=2)
        return self._ask

    def _ask(self, images: Tensor) -> object:
        kind = images.device.type
        with nullcontext() if self.autocast is None else torch.autocast(kind, self.autocast):
            answer: object = self.model(images)
        return answer


def _folded(model: nn.Module) -> nn.Module:
    """A network in the fused form, or as it is."""
    if not any(isinstance(layer, CEConv2d) for layer in model.modules()):
        return model  # folding batch norms into plain convolutions changes the rounding
    try:
        return fold(model, "fused")
    except ValueError:  # not made of stems and residual blocks
        return model


class SweepCounts:
    """Counts on the device; a further class holds labels the network has no output for."""

    def __init__(self, shape: tuple[int, int], logits: Tensor) -> None:
        self.classes = logits.shape[1]

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=logits.device)

        self.counts, self.original = zeros(self.classes + 1), zeros(self.classes + 1)
        self.correct, self.changed = (zeros(*shape, self.classes + 1) for _ in range(2))
        self.outside, self.undefined = zeros(), zeros()
        self.untouched = zeros(0)  # answers to the current batch

    def start(self, images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Count a batch of untouched images, and put unknown labels into the further class."""
        valid = (labels >= 0) & (labels < self.classes)
        labels = torch.where(valid, labels, self.classes)
        self.outside += ((images < -_MARGIN) | (images > 1 + _MARGIN)).flatten(1).any(1).sum()
        self.undefined += logits.isnan().any(1).sum()
        self.untouched = logits.argmax(1)
        self.counts.index_add_(0, labels, torch.ones_like(labels))
        self.original.index_add_(0, labels, (self.untouched == labels).long())
        return labels

    def add(self, where: tuple[int, int], logits: Tensor, labels: Tensor) -> None:
        """Count the same batch under a shift."""
        self.undefined += logits.isnan().any(1).sum()
        answers = logits.argmax(1)
        self.correct[where].index_add_(0, labels, (answers == labels).long())
        self.changed[where].index_add_(0, labels, (answers != self.untouched).long())

    def refuse(self) -> None:
        """Raise an error if the counts mean nothing; waits for the device."""
        outside, unknown, undefined = torch.stack(
            (self.outside, self.counts[-1], self.undefined)
        ).tolist()
        if outside:
            raise ValueError(
                f"hue_sweep expects images in [0, 1], but {outside} are not; normalisation "
                "belongs into the network, so that hues are shifted before it"
            )
        if unknown:
            raise ValueError(
                f"the network has {self.classes} outputs, but {unknown} labels lie outside "
                f"0 to {self.classes - 1}: are its classes those of the images?"
            )
        if undefined:
            raise ValueError(f"the network's logits are NaN for {undefined} images")

    def results(self) -> tuple[Tensor, ...]:
        """Images ``[C]``, correct answers without and with shifts, changed answers; on the CPU."""
        tensors = self.counts, self.original, self.correct, self.changed
        return tuple(tensor[..., : self.classes].cpu() for tensor in tensors)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every part of a network in eval mode, and back into its mode afterwards."""
    before = [(module, module.training) for module in model.modules()]
    benchmark = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True  # all batches but the last have one shape
    model.eval()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        for module, training in before:
            module.training = training
