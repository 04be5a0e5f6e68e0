"""Whether something observes operations or modules, which faster ones would bypass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as module_hooks

_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
_counting = False


def is_traced() -> bool:
    """Whether torch.compile, an export or torch.jit.trace records operations."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def is_captured(tensor: Tensor) -> bool:
    """Whether a CUDA graph records operations on a tensor: nothing may wait for them then."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def is_transformed(tensors: Sequence[Tensor] = ()) -> bool:
    """Whether torch.jit.trace, torch.func or forward-mode gradients see operations on tensors."""
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        # torch.autograd.grad(..., is_grads_batched=True)
        or any(map(torch._C._functorch.is_legacy_batchedtensor, tensors))
    )


def is_watched(*, modules: bool = False) -> bool:
    """Whether a dispatch mode or, with ``modules``, a hook on all modules sees every operation.

    Always False inside :func:`counting`.
    """
    if _counting:
        return False
    hooks = modules and bool(module_hooks._has_any_global_hook())
    return torch._C._len_torch_dispatch_stack() > 0 or hooks


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has forward or backward hooks."""
    return any(getattr(module, name) for name in _HOOKS)


def is_untouched(module: nn.Module) -> bool:
    """Whether a module runs the methods of its class, without hooks."""
    return not assigned_methods(module) and not has_hooks(module)


def assigned_methods(module: nn.Module) -> list[str]:
    """Names of methods of the class that were assigned anew to this instance."""
    names = [name for name, value in vars(module).items() if callable(value)]
    return [name for name in names if callable(getattr(type(module), name, None))]


@contextmanager
def counting() -> Iterator[None]:
    """Let kernels run under a dispatch mode that only counts torch's operations."""
    global _counting
    before, _counting = _counting, True
    try:
        yield
    finally:
        _counting = before
