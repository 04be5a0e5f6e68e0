"""Run a network once without computing anything, and note which of its modules run when."""

import contextlib
import copy
import functools
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

BATCH = 2  # more than one, so that nothing is broadcast that should not be
# In train mode: divisible by many numbers, so that code that splits the batch runs.
_TRAINING_BATCH = 480
_ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}
DROPOUTS = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout",
    "feature_alpha_dropout",
}  # fmt: skip
_DRAWS = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal",
    "normal_", "uniform_", "random_", "bernoulli", "bernoulli_", "binomial", "poisson",
    "multinomial", "exponential_", "geometric_", "log_normal_", "cauchy_", "gumbel_softmax",
    "rrelu", "rrelu_", "fractional_max_pool2d", "fractional_max_pool3d",
}  # fmt: skip
_SPLITS = {"split", "split_with_sizes", "chunk", "tensor_split", "unbind"}


class RunError(ValueError):
    """The network does not take the images; ``reason`` is the message without its advice."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; if it needs another size, pass image_size")
        self.reason = reason


class Call(NamedTuple):
    """When a call of a module began and ended, in one count of all events of a run."""

    start: int
    end: int


class Operation(NamedTuple):
    """A call of a function that matters to conversion, in the code of a module."""

    kind: str  # "attention", "draw" of random numbers, or "part": a batch norm or a split
    path: str
    function: str
    shape: list[int]  # of the input; of a split, that of the first part
    when: int  # in the same count as calls


@dataclass
class DryRun:
    """What happened in one pass through a network; modules are known by their paths."""

    batch: int  # the number of images
    calls: dict[str, list[Call]] = field(default_factory=dict)
    inputs: dict[str, list[list[int]]] = field(default_factory=dict)  # the first shape of each call
    operations: list[Operation] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)  # shapes


def dry_run(model: nn.Module, size: int, *, training: bool = False) -> DryRun:
    """Follow images of height and width ``size`` through a network, which is not changed.

    A copy runs on the meta device, where nothing is computed. If the network's code does not run
    there, the copy runs on the device of the network.

    Raises:
        RunError: if the network does not take such images.
    """
    tensor = next(itertools.chain(model.parameters(), model.buffers()), torch.empty(0))
    dtype = tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()
    batch = _TRAINING_BATCH if training else BATCH
    with kept_random_states(model):
        try:
            images = torch.empty(batch, 3, size, size, dtype=dtype, device="meta")
            return _follow(meta_copy(model).train(training), images)
        except RunError:
            if tensor.is_meta:
                raise
        images = torch.rand(BATCH, 3, size, size, dtype=dtype, device=tensor.device)
        return _follow(copy.deepcopy(model).train(training), images)


@contextlib.contextmanager
def kept_random_states(model: nn.Module) -> Iterator[None]:
    """Restore random states: of Python, NumPy, and torch on the CPU and the network's devices."""
    devices = {tensor.device for tensor in model.parameters() if tensor.is_cuda}
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng([device.index for device in devices]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def meta_copy(model: nn.Module) -> nn.Module:
    """A copy of a network on the meta device, made without copying its numbers."""
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
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(item)


def _follow(model: nn.Module, images: Tensor) -> DryRun:
    recorder = _Recorder(DryRun(len(images)))
    for path, module in model.named_modules():  # the model is a copy, so the hooks may stay
        begin = functools.partial(recorder.begin, path)
        module.register_forward_pre_hook(begin, with_kwargs=True)
        module.register_forward_hook(functools.partial(recorder.end, path))
    with torch.no_grad(), recorder:
        try:
            outputs = model(images)
        except Exception as error:  # whatever the network's own code does
            path = recorder.stack[-1][0] if recorder.stack else ""
            where = f" in {path!r}" if path else ""
            reason = str(error).partition("\n")[0]
            raise RunError(
                f"{type(model).__name__} does not take images {list(images.shape)}: {reason}{where}"
            ) from error
    recorder.run.outputs = [list(tensor.shape) for tensor in tensors_of(outputs)]
    return recorder.run


class _Recorder(TorchFunctionMode):
    """Records calls of modules, through hooks, and of functions, as a context manager."""

    def __init__(self, run: DryRun) -> None:
        super().__init__()
        self.run = run
        self.stack: list[tuple[str, int]] = []  # path and start of unfinished calls
        self._ticks = itertools.count()

    def begin(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note the beginning of a module's call."""
        self.stack.append((path, next(self._ticks)))
        for tensor in itertools.islice(tensors_of([args, kwargs]), 1):
            self.run.inputs.setdefault(path, []).append(list(tensor.shape))

    def end(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        """Note the end of a module's call."""
        _, start = self.stack.pop()
        self.run.calls.setdefault(path, []).append(Call(start, next(self._ticks)))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "batch_norm" and _is_plain_batch_norm(*args, **kwargs):
            result = torch.empty_like(args[0])
        else:
            result = func(*args, **kwargs)
        if name in _ATTENTION:
            self._note("attention", name, [])
        elif name in _DRAWS:
            self._note("draw", name, [])
        elif name in DROPOUTS:
            if kwargs.get("p", args[1] if args[1:] else 0.5):
                self._note("draw", name, [])
        elif name == "batch_norm":
            self._note("part", name, list(result.shape))
        elif name in _SPLITS:
            whole, part = next(tensors_of([args, kwargs])), result[0]
            shape = [1, *part.shape] if part.shape == whole.shape[1:] else list(part.shape)
            if len(whole) % self.run.batch == 0 and shape[0] != len(whole):
                self._note("part", name, shape)
        return result

    def _note(self, kind: str, function: str, shape: list[int]) -> None:
        path = self.stack[-1][0] if self.stack else ""
        self.run.operations.append(Operation(kind, path, function, shape, next(self._ticks)))


def _is_plain_batch_norm(images: Any = None, *vectors: Any, **options: Any) -> bool:
    """Whether a batch norm on the meta device would succeed, with an output like its input.

    Running it there takes longer than all other layers of a network together.
    """
    if not isinstance(images, Tensor) or not images.is_meta or images.ndim < 2:
        return False
    channels = images.shape[1]
    tensors = [each for each in (*vectors, *options.values()) if isinstance(each, Tensor)]
    return images.numel() > channels and all(each.shape == (channels,) for each in tensors)
