"""From a case to something that can be called: one step of training or inference."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from equicolor.benchmark.cases import Case, Settings
from equicolor.benchmark.variants import apply_variant
from equicolor.nn import capture, fold
from equicolor.nn._fused.frozen import made_by

__all__ = [
    "Call", "Prepared", "Step", "adam", "called", "is_recorded", "loss_of", "placed", "prepare",
    "update",
]  # fmt: skip

Call = Callable[..., Tensor]
Step = Callable[[], object]


class Prepared(NamedTuple):
    """A case that is ready to run.

    Attributes:
        step: what is timed.
        eager: the same without ``torch.compile``, whose graphs cannot be looked into.
        resident: bytes of weights, optimizer state and inputs, which stay between steps.
        module: the network or layer.
    """

    step: Step
    eager: Step
    resident: Callable[[], int]
    module: nn.Module


def prepare(case: Case, settings: Settings) -> Prepared:
    """Build a case on its device.

    Args:
        case: what to run.
        settings: where and how.

    Example:
        >>> case = Case(lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8), mode="training")
        >>> ready = prepare(case, Settings(torch.device("cpu")))
        >>> ready.step() is None, ready.resident()  # weights and images
        (True, 1984)
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = case.build()
        inputs = _inputs(case.shape).to(settings.device)
    if case.mode == "folded":
        module = fold(module.eval(), case.form)  # on the CPU, where "auto" is never fused
    else:
        module = apply_variant(module, case.variant)
    module = placed(module, settings).train(case.mode == "training")
    fast = called(module, case.variant, settings, recorded=case.recorded)
    eager = called(module, case.variant, replace(settings, compile=False))

    def resident() -> int:
        made = tree_leaves(made_by(module))
        return _bytes([inputs, *module.parameters(), *module.buffers(), *made])

    if case.mode != "training":
        return Prepared(
            _inference(fast, inputs, settings),
            _inference(eager, inputs, settings),
            resident,
            module,
        )
    if case.classes is None:
        wanted = [inputs.requires_grad_(), *module.parameters()]
        return Prepared(
            _layer_training(fast, wanted, settings),
            _layer_training(eager, wanted, settings),
            resident,
            module,
        )
    labels = torch.arange(case.shape[0], device=settings.device) % case.classes
    optimizer = adam(module, settings)

    def with_optimizer() -> int:
        moments = (value for state in optimizer.state.values() for value in state.values())
        return resident() + _bytes([labels, *moments])

    batch = inputs, labels
    return Prepared(
        _training(fast, batch, optimizer, settings),
        _training(eager, batch, optimizer, settings),
        with_optimizer,
        module,
    )


def placed(module: nn.Module, settings: Settings) -> nn.Module:
    """A module on the device of a run, in channels_last memory.

    Example:
        >>> placed(nn.Conv2d(3, 4, 3), Settings(torch.device("cpu"))).weight.stride()
        (27, 1, 9, 3)
    """
    module = module.to(settings.device)
    return module.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


def called(module: nn.Module, variant: str, settings: Settings, *, recorded: bool = False) -> Call:
    """What is called instead of a module: itself, compiled, or recorded when it is called first.

    Our own kernels are not compiled but, where others are, recorded by
    :func:`equicolor.nn.capture`; ``recorded`` has torch.compile do so with others.
    """
    if is_recorded(variant, settings):
        dtype = torch.bfloat16 if settings.precision == "bf16" else None
        kept: Call | None = None

        def replayed(images: Tensor) -> Tensor:
            nonlocal kept
            if kept is None:
                kept = capture(module, images, dtype)
            return kept(images)

        return replayed
    if not settings.compile or variant == "fused":
        return module
    # dynamic=False: the shapes of one case must not make those of the next symbolic.
    mode = "reduce-overhead" if is_recorded(variant, settings, recorded) else "default"
    return torch.compile(module, dynamic=False, mode=mode)


def is_recorded(variant: str, settings: Settings, recorded: bool = False) -> bool:
    """Whether a case is recorded as CUDA graphs.

    Example:
        >>> is_recorded("fused", Settings(torch.device("cuda"), compile=True))
        True
    """
    wanted = variant == "fused" or recorded
    return wanted and settings.compile and settings.device.type == "cuda"


def adam(module: nn.Module, settings: Settings, lr: float = 1e-3) -> torch.optim.Adam:
    """The optimizer of a run: one kernel for all parameters on a GPU."""
    fused = True if settings.device.type == "cuda" else None  # None leaves the choice to torch
    return torch.optim.Adam(module.parameters(), lr=lr, fused=fused)


def loss_of(network: Call, images: Tensor, labels: Tensor, settings: Settings) -> Tensor:
    """Cross-entropy of a batch, the network in the precision of a run, the loss in float32."""
    with settings.autocast():
        logits = network(images)
    return F.cross_entropy(logits.float(), labels)


def update(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Backward pass and step; gradients go at the end, so that they do not stay in between."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _inputs(shape: tuple[int, ...]) -> Tensor:
    """Random images or features, as the layers of this package keep them in memory."""
    if len(shape) == 5:  # [n, B, H, W, C]
        batch, channels, rotations, height, width = shape
        return torch.rand(rotations, batch, height, width, channels).permute(1, 4, 0, 2, 3)
    return torch.rand(shape).to(memory_format=torch.channels_last)


def _inference(network: Call, images: Tensor, settings: Settings) -> Step:
    def step() -> None:
        with torch.no_grad(), settings.autocast():
            network(images)

    return step


def _layer_training(layer: Call, wanted: Sequence[Tensor], settings: Settings) -> Step:
    """Gradients by the input, which is the first wanted, and by the weights."""
    gradient: Tensor | None = None

    def step() -> None:
        nonlocal gradient
        with settings.autocast():
            outputs = layer(wanted[0])
        if gradient is None:  # made once: writing it is not the layer's work
            gradient = torch.ones_like(outputs)
        # Not autograd.grad, which torch's counter of operations does not bear.
        outputs.backward(gradient)
        for tensor in wanted:
            tensor.grad = None

    return step


def _training(
    network: Call,
    batch: tuple[Tensor, Tensor],
    optimizer: torch.optim.Optimizer,
    settings: Settings,
) -> Step:
    return lambda: update(loss_of(network, *batch, settings), optimizer)


def _bytes(values: Iterable[object]) -> int:
    """Memory of distinct tensors."""
    tensors = {id(value): value for value in values if isinstance(value, Tensor)}
    return sum(tensor.nbytes for tensor in tensors.values())
