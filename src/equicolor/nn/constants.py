"""Buffers that are computed, not learned: not in the state dict, and always exact."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn


class DerivedConstants(nn.Module):
    """A module whose buffers follow from its options.

    They are computed again whenever the module changes dtype or device, or loads a state dict.
    So a network that is moved from float32 to float64 is exact to float64, and one that was made
    on the meta device gets real constants with its real weights.
    """

    def _constants(self) -> dict[str, Tensor]:
        """The constants by buffer name, in float64 on the CPU."""
        raise NotImplementedError

    def _reference(self) -> Tensor:
        """A tensor whose device and dtype the constants take."""
        # Not self.weight: reading a parametrized weight runs user code.
        return next(itertools.chain(self.parameters(), self.buffers()), torch.empty(0))

    def leave_meta(self, state_dict: Mapping[str, Tensor]) -> None:
        """Move constants from the meta device to that of a state dict.

        For modules without weights: load_state_dict(assign=True) does not tell them the device.
        """
        if self._reference().is_meta and state_dict:
            self._reset_constants(next(iter(state_dict.values())).device)

    def _reset_constants(self, device: torch.device | None = None) -> None:
        like = self._reference()
        device = like.device if device is None else device
        half = like.dtype in (torch.float16, torch.bfloat16)
        dtype = torch.float32 if half else like.dtype
        for name, value in self._constants().items():
            self.register_buffer(name, value.to(device=device, dtype=dtype), persistent=False)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._reset_constants()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        # load_state_dict(assign=True) can move a meta module to a real device.
        self._reset_constants()
