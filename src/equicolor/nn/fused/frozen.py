"""Stems and residual blocks for inference: what follows from the weights is made once.

On the fused path a layer's filters are mixed, padded and packed, and its norm becomes a few
vectors, at every call, as training must. Here they are kept, for the dtype that is computed in,
until the weights change. :func:`equicolor.nn.fold` makes networks of these modules.

Where the fused path cannot be taken (:mod:`equicolor.nn.fused.conditions`), and where gradients of
the input are wanted, the layers inside are called one by one, so the numbers are the same
everywhere.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from equicolor.nn.conv import CELiftConv2d
from equicolor.nn.fused import blocks
from equicolor.nn.fused.blocks import Filters, Layer
from equicolor.nn.fused.conditions import applies, stem_applies
from equicolor.nn.fused.first_layer import lift_columns, norm_relu, packed_columns
from equicolor.nn.fused.layout import Products, compute_dtype, on_device_of
from equicolor.nn.fused.norm import Norm, kernels
from equicolor.nn.norm import CEBatchNorm2d
from equicolor.nn.pooling import CEMaxPool2d

__all__ = ["FrozenBlock", "FrozenStem", "made_by"]


def made_by(network: nn.Module) -> list[object]:
    """What the frozen modules of a network have made: for those who read its memory later.

    Example:
        >>> made_by(nn.ReLU())
        []
    """
    return [module._made for module in network.modules() if isinstance(module, _Frozen)]


class _Frozen(nn.Module):
    """A module that keeps what it makes from its weights; always in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self._made: tuple[object, Any] | None = None

    def _make(self, dtype: torch.dtype) -> Any:
        raise NotImplementedError

    def _ready(self, dtype: torch.dtype) -> Any:
        """What was made, or is now: the first time, in another dtype, and after changes."""
        state = [dtype, *map(_stamp, self.parameters()), *map(_stamp, self.buffers())]
        if self._made is None or self._made[0] != state:
            self._made = state, self._make(dtype)
        return self._made[1]

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode."""
        return super().train(False)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        self._made = None
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        # Neither copies nor files need it.
        return {**self.__dict__, "_made": None}


class FrozenStem(_Frozen):
    """A lifting convolution, batch norm, ReLU and perhaps pooling, for inference.

    Args:
        conv: the convolution, without dilation.
        norm: the batch norm.
        pool: whether 3×3 max pooling with stride 2 follows.

    Example:
        >>> stem = FrozenStem(CELiftConv2d(3, 4, 3, bias=False), CEBatchNorm2d(4), pool=True)
        >>> stem(torch.rand(2, 3, 10, 10)).shape
        torch.Size([2, 4, 3, 4, 4])
    """

    def __init__(self, conv: CELiftConv2d, norm: CEBatchNorm2d, *, pool: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = conv, norm, nn.ReLU()
        self.pool = CEMaxPool2d(3, 2, 1) if pool else nn.Identity()
        self.eval()

    def _make(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, "_Layer"]:
        filters = packed_columns(self.conv, dtype)
        return filters, self.conv._transformations(), _Layer(None, _vectors(self.norm))

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to features ``[B, C, n, H', W']``."""
        fused = stem_applies(images, self.conv, self.norm, self.relu, self.pool)
        if not fused or _is_differentiated(images):
            features: Tensor = self.pool(self.relu(self.norm(self.conv(images))))
            return features
        with torch.no_grad(), on_device_of(images):
            filters, matrices, layer = self._ready(compute_dtype(images))
            lifted = lift_columns(images, self.conv, filters, matrices)
            norm = layer.normalization((lifted,), 1)
            pool = not isinstance(self.pool, nn.Identity)
            return norm_relu(lifted, norm, self.conv.rotations, pool=pool)


class FrozenBlock(_Frozen):
    """Convolutions and batch norms with ReLU between, plus the shortcut, and ReLU, for inference.

    Args:
        layers: at least one.
        shortcut: a layer of its own, or None for the identity.

    Example:
        >>> from equicolor.nn import CEConv2d
        >>> layer = CEConv2d(4, 4, 3, padding=1, bias=False), CEBatchNorm2d(4)
        >>> FrozenBlock([layer])(torch.rand(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 3, 8, 8])
    """

    def __init__(self, layers: Sequence[Layer], shortcut: Layer | None = None) -> None:
        super().__init__()
        self.depth = len(layers)
        for index, layer in enumerate(layers):
            self.add_module(f"layer{index}", nn.Sequential(*layer))
        self.shortcut = nn.Sequential(*shortcut or ())
        self.eval()

    @property
    def layers(self) -> list[nn.Sequential]:
        """The convolutions and norms in turn."""
        return [self.get_submodule(f"layer{index}") for index in range(self.depth)]  # type: ignore[misc]

    def _make(self, dtype: torch.dtype) -> tuple[list["_Layer"], "_Layer | None"]:
        def layer(modules: nn.Sequential) -> _Layer:
            conv: Any = modules[0]
            norm: Any = modules[1]
            return _Layer(Filters.of(conv, dtype), _vectors(norm))

        shortcut = layer(self.shortcut) if len(self.shortcut) else None
        return [layer(modules) for modules in self.layers], shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[B, C, n, H, W]`` to features ``[B, C', n, H', W']``."""
        if applies(self, x) and not _is_differentiated(x):
            with torch.no_grad(), on_device_of(x):
                return blocks.block_of(x, *self._ready(compute_dtype(x)))
        first, *later = self.layers
        y = first(x)
        for layer in later:
            y = layer(y.relu())
        out: Tensor = (y + self.shortcut(x)).relu()
        return out


class _Layer(NamedTuple):
    """What was made of a convolution and a norm, as blocks ask for it."""

    packed: Filters | None
    norm: Norm  # for one pixel

    def filters(self, dtype: torch.dtype) -> Filters:
        assert self.packed is not None
        assert self.packed.tensor.dtype == dtype
        return self.packed

    def normalization(self, outputs: Products, n: int) -> Norm:
        return self.norm._replace(vectors=kernels().row_vectors(self.norm.vectors, outputs))


def _vectors(norm: CEBatchNorm2d) -> Norm:
    parameters = norm.weight, norm.bias
    statistics = norm.running_mean, norm.running_var
    vectors = kernels().channel_vectors(*parameters, *statistics, eps=norm.eps)
    return Norm(*parameters, vectors, training=False)


def _stamp(tensor: Tensor) -> tuple[int, int]:
    """What changes with the numbers in a tensor."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _is_differentiated(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()
