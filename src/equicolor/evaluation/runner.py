"""Running a network, to judge it or to look into it."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.models import Network
from equicolor.nn import CEConv2d, capture, fold


class Runner:
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
        """Logits of images on the network's device, in the memory layout of ``like``."""
        images = images if self.dtype is None else images.to(self.dtype)
        if like is not None and like.is_contiguous(memory_format=torch.channels_last):
            images = images.contiguous(memory_format=torch.channels_last)
        if self._call is None:
            self._call = self._record(images)
        return check_logits(self._call(images), images)

    def run(self, images: Tensor) -> object:
        """The network's output for images of any device and dtype, without a CUDA graph."""
        device, dtype = self.device or images.device, self.dtype or images.dtype
        images = images.to(device, dtype, non_blocking=True)
        with nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast):
            result: object = self.model(images)
        return result

    def _record(self, images: Tensor) -> Callable[[Tensor], object]:
        if images.is_cuda and isinstance(self.model, Network):  # others may fail when recorded
            try:
                return capture(_folded(self.model), images, self.autocast)
            except (RuntimeError, TypeError) as error:
                warnings.warn(f"evaluating without CUDA graphs: {error}", stacklevel=2)
        return self.run


def check_logits(output: object, images: Tensor) -> Tensor:
    """Return a network's output for images ``[B, 3, H, W]`` if it is logits ``[B, C]``."""
    if isinstance(output, Tensor) and output.ndim == 2 and len(output) == len(images):
        return output
    got = list(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__}"
    raise ValueError(
        f"the network must give logits [{len(images)}, classes] for images {list(images.shape)}, "
        f"got {got}"
    )


def _folded(model: nn.Module) -> nn.Module:
    """A network in the fused form, or unchanged if it has none."""
    if not any(isinstance(layer, CEConv2d) for layer in model.modules()):
        return model  # folding batch norms into plain convolutions changes the rounding
    try:
        return fold(model, "fused")
    except ValueError:  # not made of stems and residual blocks
        return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put all modules of a network in eval mode, and each back into its mode afterwards."""
    before = [(module, module.training) for module in model.modules()]
    benchmark = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True  # all batches but the last have the same shape
    model.eval()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        for module, training in before:
            module.training = training
