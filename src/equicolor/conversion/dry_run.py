"""Run a network once without computing anything, and note which of its modules run when."""

import contextlib
import copy
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = [
    "BATCH",
    "DROPOUTS",
    "DryRun",
    "RunError",
    "dry_run",
    "ghost_of",
    "own_random_numbers",
    "tensors_of",
    "training_run",
]

BATCH = 2  # more than one, so that nothing is broadcast that should not be
# In train mode: divisible by many numbers, so that code can split the batch and be noticed.
_TRAINING_BATCH = 480
DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout",
    "feature_alpha_dropout",
)  # fmt: skip
_DRAWS = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal",
    "normal_", "uniform_", "random_", "bernoulli", "bernoulli_", "binomial", "poisson",
    "multinomial", "exponential_", "geometric_", "log_normal_", "cauchy_", "gumbel_softmax",
    "rrelu", "rrelu_", "fractional_max_pool2d", "fractional_max_pool3d",
}  # fmt: skip
_SPLITS = {"split", "split_with_sizes", "chunk", "tensor_split", "unbind"}


class RunError(ValueError):
    """A network that does not take images.

    Attributes:
        reason: the message without its advice.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; if it needs another size, pass image_size")
        self.reason = reason


class Call(NamedTuple):
    """When a call of a module began and ended; beginnings and ends are counted together."""

    start: int
    end: int


class Draw(NamedTuple):
    """A call of a function that draws random numbers, in the code of a module."""

    path: str
    function: str
    when: int  # counted as the beginnings and ends of calls


class Norm(NamedTuple):
    """A batch normalisation, or a split of the batch, in the code of a module."""

    path: str
    shape: list[int]  # of its input, or of the first part
    when: int


@dataclass
class DryRun:
    """What happened in one pass through a network.

    Attributes:
        batch: the number of images.
        calls: of every module that was called, by its path.
        attention: paths of the modules that computed attention.
        draws: of random numbers; in eval mode, calls of dropout functions.
        norms: calls of functions that normalise batches or split them.
        inputs: the shapes of what a module was called with, one for every call.
        outputs: the shapes of the tensors that came out.
    """

    batch: int = BATCH
    calls: dict[str, list[Call]] = field(default_factory=dict)
    attention: list[str] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    inputs: dict[str, list[list[int]]] = field(default_factory=dict)
    outputs: list[list[int]] = field(default_factory=list)


def dry_run(model: nn.Module, size: int) -> DryRun:
    """Follow images of height and width ``size`` through a network in eval mode.

    The network is not changed. It runs on the meta device, where nothing is computed, or, if its
    code does not run there, on its own device.

    Raises:
        RunError: if the network does not take such images.

    Example:
        >>> run = dry_run(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), 8)
        >>> run.outputs, run.calls["0"][0].end < run.calls["1"][0].start
        ([[2, 4, 6, 6]], True)
    """
    return _run(model, size, training=False)


def training_run(model: nn.Module, size: int) -> DryRun | None:
    """Follow images through a network in train mode; None if it wants more than images there.

    Example:
        >>> run = training_run(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.1)), 8)
        >>> run.draws[0].path, run.draws[0].function
        ('1', 'dropout')
    """
    try:
        return _run(model, size, training=True)
    except RunError:
        return None


@contextlib.contextmanager
def own_random_numbers(model: nn.Module) -> Iterator[None]:
    """Restore random states afterwards: Python's, NumPy's, torch's on the CPU and the network's."""
    devices = {tensor.device for tensor in model.parameters() if tensor.is_cuda}
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng([device.index for device in devices]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _run(model: nn.Module, size: int, *, training: bool) -> DryRun:
    tensor = next(itertools.chain(model.parameters(), model.buffers()), torch.empty(0))
    dtype = tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()
    batch = _TRAINING_BATCH if training else BATCH
    images = torch.empty(batch, 3, size, size, dtype=dtype, device="meta")
    with own_random_numbers(model):
        try:
            return _follow(ghost_of(model).train(training), images)
        except RunError:
            if tensor.is_meta:
                raise
        images = torch.rand(BATCH, 3, size, size, dtype=dtype, device=tensor.device)
        return _follow(copy.deepcopy(model).train(training), images)


def ghost_of(model: nn.Module) -> nn.Module:
    """A copy of a network on the meta device that never held the numbers."""
    memo: dict[int, Any] = {}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = empty
    return copy.deepcopy(model, memo)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def _follow(model: nn.Module, images: Tensor) -> DryRun:
    watch = _Watch(model)
    watch.run.batch = len(images)
    with torch.no_grad(), watch:
        try:
            outputs = model(images)
        except Exception as error:  # whatever the network's own code does
            where = f" in {watch.stack[-1]!r}" if watch.stack and watch.stack[-1] else ""
            reason = str(error).partition("\n")[0]
            raise RunError(
                f"{type(model).__name__} does not take images {list(images.shape)}: {reason}{where}"
            ) from error
    watch.run.outputs = [list(tensor.shape) for tensor in tensors_of(outputs)]
    return watch.run


class _Watch(TorchFunctionMode):
    """Notes the calls of modules, and of functions that matter, while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.run = model, DryRun()
        self.stack: list[str] = []
        self._starts: list[int] = []
        self._ticks = itertools.count()
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        for path, module in self.model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._begin(path)))
            self._handles.append(module.register_forward_hook(self._end(path)))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def _begin(self, path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.stack.append(path)
            self._starts.append(next(self._ticks))
            for tensor in itertools.islice(tensors_of(args), 1):
                self.run.inputs.setdefault(path, []).append(list(tensor.shape))

        return hook

    def _end(self, path: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.stack.pop()
            call = Call(self._starts.pop(), next(self._ticks))
            self.run.calls.setdefault(path, []).append(call)

        return hook

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        path = self.stack[-1] if self.stack else ""
        if name in ("scaled_dot_product_attention", "multi_head_attention_forward"):
            self.run.attention.append(path)
        elif name == "batch_norm":
            self.run.norms.append(Norm(path, list(args[0].shape), next(self._ticks)))
        elif name in _DRAWS or (
            name in DROPOUTS and (kwargs["p"] if "p" in kwargs else args[1] if args[1:] else 0.5)
        ):
            self.run.draws.append(Draw(path, name, next(self._ticks)))
        result = func(*args, **kwargs)
        if name in _SPLITS:
            whole, part = next(tensors_of([args, kwargs])), result[0]
            shape = [1, *part.shape] if part.shape == whole.shape[1:] else list(part.shape)
            if len(whole) % self.run.batch == 0 and shape[0] != len(whole):
                self.run.norms.append(Norm(path, shape, next(self._ticks)))
        return result
