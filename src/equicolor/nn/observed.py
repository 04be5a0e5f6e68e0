"""Whether operations run as they are called, so that a kernel of our own may take their place."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules import module as module_hooks

__all__ = ["counting", "is_recorded", "is_watched"]

_counting = False


def is_recorded(tensors: Sequence[Tensor] = ()) -> bool:
    """Whether operations are recorded or transformed: traced, vmapped, differentiated forwards.

    Args:
        tensors: what goes in, where many gradients may be computed at once.

    Example:
        >>> is_recorded(), torch.vmap(lambda x: x * is_recorded())(torch.ones(2)).tolist()
        (False, [1.0, 1.0])
    """
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        # torch.autograd.grad(..., is_grads_batched=True)
        or any(map(torch._C._functorch.is_legacy_batchedtensor, tensors))
    )


def is_watched(*, modules: bool = False) -> bool:
    """Whether someone sees every operation and may change it; inside :func:`counting` no one does.

    Args:
        modules: or every call of a module.

    Example:
        >>> from torch.utils.flop_counter import FlopCounterMode
        >>> with FlopCounterMode(display=False):
        ...     is_watched()
        True
    """
    if _counting:
        return False
    hooks = modules and bool(module_hooks._has_any_global_hook())
    return torch._C._len_torch_dispatch_stack() > 0 or hooks


@contextmanager
def counting() -> Iterator[None]:
    """Let kernels run though operations are watched, by someone who only counts torch's own.

    Example:
        >>> from torch.utils.flop_counter import FlopCounterMode
        >>> with counting(), FlopCounterMode(display=False):
        ...     is_watched()
        False
    """
    global _counting
    before, _counting = _counting, True
    try:
        yield
    finally:
        _counting = before
