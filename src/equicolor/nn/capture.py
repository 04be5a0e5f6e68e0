"""Networks recorded as CUDA graphs, which launch all their kernels at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equicolor.nn._fused import streams
from equicolor.nn._fused.frozen import cached_tensors

_WARM_UP = 3  # calls: kernels are compiled, and cuDNN tries its algorithms


def capture(
    network: nn.Module, images: Tensor, dtype: torch.dtype | None = None
) -> Callable[[Tensor], Tensor]:
    """Record a network as CUDA graphs, for training or inference according to its mode.

    A step of an equivariant network launches hundreds of kernels. If they are small, launching them
    takes the processor longer than the GPU needs to run them. The returned function computes what
    the network computes, but launches one or two graphs instead. For images of another shape, and
    in another mode than the recorded one, it calls the network itself. The network is not changed.
    Call the function from one thread at a time: all calls use the same memory for images and
    results. Other threads may use the GPU, but not while a training step is recorded.

    **In training mode**, the forward and the backward pass are recorded, for calls with
    gradients. Update parameters in place, as optimizers do: the graph reads them where they are.
    Gradients lie in the memory of the graph and do not add up, so clear them after every step
    with ``zero_grad(set_to_none=True)``, torch's default. Record again after changing which
    parameters are trained, or the mode of a layer.

    **In eval mode**, only the forward pass is recorded, without gradients; results are new
    tensors. Images of other shapes go to the network itself, also in ``dtype`` and without
    gradients; images that require gradients go there as they are. Record again after changing
    the weights, moving the network or loading a state: the graph reads the old weights.

    Args:
        network: a network on a GPU that maps images to one tensor.
        images: an example with the shape, dtype and memory format of later batches.
        dtype: the dtype of autocast, which is recorded too; None for no autocast.

    Example:
        >>> from equicolor.models import ce_resnet18
        >>> from equicolor.nn import fold
        >>> network = ce_resnet18(10, width="fast").cuda()  # doctest: +SKIP
        >>> images = torch.rand(256, 3, 224, 224, device="cuda")  # doctest: +SKIP
        >>> step = capture(network, images, torch.bfloat16)  # doctest: +SKIP
        >>> step(images).sum().backward()  # doctest: +SKIP
        >>> predict = capture(fold(network), images, torch.bfloat16)  # doctest: +SKIP
        >>> labels = predict(images).argmax(1)  # doctest: +SKIP
        >>> capture(nn.Conv2d(3, 4, 3), torch.rand(1, 3, 8, 8))
        Traceback (most recent call last):
            ...
        ValueError: CUDA graphs need images on a GPU, got a tensor on cpu
    """
    if not images.is_cuda:
        raise ValueError(f"CUDA graphs need images on a GPU, got a tensor on {images.device}")
    record = _training if network.training else _inference
    try:
        return record(network, images, dtype)
    except BaseException:
        streams.forget(images.device)
        raise


def _training(
    network: nn.Module, images: Tensor, dtype: torch.dtype | None
) -> Callable[[Tensor], Tensor]:
    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    random_state = torch.cuda.get_rng_state(images.device)
    # Wrapped, since torch replaces the forward method of the module that it records.
    recorded = nn.Sequential(network)
    # Gradients are accumulated by nodes of the recording, whose stream is not that of the
    # replays. Torch synchronises where it must, but would warn about it.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    autocast = torch.autocast("cuda", dtype, enabled=dtype is not None, cache_enabled=False)
    try:
        with torch.cuda.device(images.device), autocast:
            # This runs the network several times to warm up, which changes buffers.
            torch.cuda.make_graphed_callables(recorded, (images.clone(),), allow_unused_input=True)
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        torch.cuda.set_rng_state(random_state, images.device)
    kind = _kind(images)

    def call(images: Tensor) -> Tensor:
        replays = torch.is_grad_enabled() and network.training and _kind(images) == kind
        return (recorded if replays else network)(images)

    return call


def _inference(
    network: nn.Module, images: Tensor, dtype: torch.dtype | None
) -> Callable[[Tensor], Tensor]:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(images.device)
    # A tensor made in inference mode could not be overwritten outside of it.
    with torch.inference_mode(False), torch.cuda.device(images.device):
        inputs = images.detach().clone()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), _evaluating(dtype):
            for _ in range(_WARM_UP):
                network(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        # Other threads, such as those that load images, may use the GPU during the recording.
        record = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")
        with record, _evaluating(dtype):
            outputs: Tensor = network(inputs)
    if not isinstance(outputs, Tensor):
        raise TypeError(f"capture() needs a network that returns a tensor, got {type(outputs)}")
    kind = _kind(inputs)
    # The graph reads this memory, even if the network is deleted or changed.
    weights = [tensor.detach() for tensor in (*network.parameters(), *network.buffers())]
    memory = [weights, cached_tensors(network)]

    def call(images: Tensor) -> Tensor:
        assert memory  # a reference, which keeps it alive as long as this function
        if network.training or (images.requires_grad and torch.is_grad_enabled()):
            result: Tensor = network(images)
        elif _kind(images.detach()) == kind:
            inputs.copy_(images)
            graph.replay()
            result = outputs.clone()
        else:
            with _evaluating(dtype):
                result = network(images)
        return result

    return call


@contextmanager
def _evaluating(dtype: torch.dtype | None) -> Iterator[None]:
    """No gradients, and autocast without its cache if there is a dtype."""
    autocast = torch.autocast("cuda", dtype, enabled=dtype is not None, cache_enabled=False)
    with torch.no_grad(), autocast:
        yield


def _kind(images: Tensor) -> tuple[object, ...]:
    """What must be as recorded for the graph to be replayed."""
    return images.shape, images.dtype, images.device, images.requires_grad
