"""Training without launching kernels one by one: a network recorded as CUDA graphs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["capture"]


def capture(
    network: nn.Module, images: Tensor, dtype: torch.dtype | None = None
) -> Callable[[Tensor], Tensor]:
    """Record a network's forward and backward pass, to be replayed for every batch.

    A step of an equivariant network launches a thousand kernels, which takes the processor
    longer than it takes a fast GPU to run them. What comes back computes what the network
    does, gradients included, but launches two graphs instead. It calls the network itself for
    other shapes than that of ``images``, and where the network evaluates or no gradients are
    wanted.

    The network is not changed. Its parameters must stay where they are, so update them in
    place, as optimizers do; and its gradients live in the memory of the graph, so clear them
    after every step with ``zero_grad(set_to_none=True)``, torch's default: they do not add up.

    Args:
        network: in training mode, on a GPU; images to one tensor.
        images: of the shape, dtype and memory format that will come.
        dtype: of autocast, which is recorded too; None for no autocast.

    Example:
        >>> from equicolor.models import ce_resnet18
        >>> network = ce_resnet18(10, width="fast").cuda()  # doctest: +SKIP
        >>> images = torch.rand(256, 3, 224, 224, device="cuda")  # doctest: +SKIP
        >>> step = capture(network, images, torch.bfloat16)  # doctest: +SKIP
        >>> step(images).sum().backward()  # doctest: +SKIP
        >>> capture(nn.Conv2d(3, 4, 3), torch.rand(1, 3, 8, 8))
        Traceback (most recent call last):
            ...
        ValueError: CUDA graphs need images on a GPU, got a tensor on cpu
    """
    if not images.is_cuda:
        raise ValueError(f"CUDA graphs need images on a GPU, got a tensor on {images.device}")
    if not network.training:
        raise ValueError("capture() records training: expected network.train(), got eval mode")
    kept = [(buffer, buffer.clone()) for buffer in network.buffers()]
    numbers = torch.cuda.get_rng_state(images.device)
    # A module of its own, since torch gives the one it records another forward method.
    recorded = _Calls(network)
    # The nodes that take the gradients are those of the recording, and its stream is not that
    # of the replays: torch waits where it must, and would warn that it does.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    with torch.autocast("cuda", dtype, enabled=dtype is not None, cache_enabled=False):
        # Warming up runs the network, more than once where cuDNN tries its algorithms.
        torch.cuda.make_graphed_callables(recorded, (images.clone(),), allow_unused_input=True)
    with torch.no_grad():
        for buffer, before in kept:
            buffer.copy_(before)
    torch.cuda.set_rng_state(numbers, images.device)
    wanted = _kind(images)

    def call(images: Tensor) -> Tensor:
        replayed = torch.is_grad_enabled() and network.training and _kind(images) == wanted
        result: Tensor = (recorded if replayed else network)(images)
        return result

    return call


class _Calls(nn.Module):
    """A module that calls another."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """What the other gives."""
        result: Tensor = self.network(images)
        return result


def _kind(images: Tensor) -> tuple[object, ...]:
    return images.shape, images.dtype, images.device, images.requires_grad
