"""Stems and residual blocks for inference: what depends on the weights alone is computed once.

In training, the fused path mixes, pads and packs a layer's filters, and turns its norm into
vectors, at every call. The modules here keep the results, for every dtype used, until the
weights change. :func:`equicolor.nn.fold` builds networks from these modules.

A change of the weights is noticed by their address and by torch's count of in-place changes.
Changes through ``.data`` are not counted: ``folded.load_state_dict(folded.state_dict())``
computes everything again.

Where the fused path does not apply (see ``conditions``), and where gradients are needed, the
layers inside are called one by one, with the same results.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from equicolor.nn._fused import blocks
from equicolor.nn._fused.blocks import Filters, Layer
from equicolor.nn._fused.conditions import applies, stem_applies
from equicolor.nn._fused.first_layer import lift_columns, norm_relu, packed_columns
from equicolor.nn._fused.layout import Products, compute_dtype, on_device_of
from equicolor.nn._fused.norm import Norm, kernels
from equicolor.nn.conv import CELiftConv2d
from equicolor.nn.norm import CEBatchNorm2d
from equicolor.nn.pooling import CEMaxPool2d


def made_by(network: nn.Module) -> list[object]:
    """The tensors that frozen modules computed: a CUDA graph keeps reading their memory."""
    frozen = (module for module in network.modules() if isinstance(module, _Frozen))
    return [module._made.by_dtype for module in frozen if module._made is not None]


class _Made(NamedTuple):
    """What was computed from weights, and how to tell whether they have changed."""

    stamps: list[tuple[int, int]]
    weights: list[Tensor]  # kept alive, so that their memory is not used for other weights
    by_dtype: dict[torch.dtype, Any]


class _Frozen(nn.Module):
    """A module that keeps what it computes from its weights; always in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self._made: _Made | None = None

    def _make(self, dtype: torch.dtype) -> Any:
        raise NotImplementedError

    def _ready(self, dtype: torch.dtype) -> Any:
        """The result of :meth:`_make`, computed if the dtype is new or the weights changed."""
        weights = _tensors(self)
        made, stamps = self._made, _stamps(weights)
        if made is None or stamps is None or made.stamps != stamps:
            # A recorded graph may still read the old tensors: replace, do not clear.
            made = self._made = _Made(stamps or [], [one.detach() for one in weights], {})
        if dtype not in made.by_dtype:
            made.by_dtype[dtype] = self._make(dtype)
        return made.by_dtype[dtype]

    def _is_differentiated(self, x: Tensor) -> bool:
        """Whether the input or the weights need gradients."""
        return torch.is_grad_enabled() and (
            x.requires_grad or any(one.requires_grad for one in _tensors(self))
        )

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode."""
        return super().train(False)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        self._made = None
        # Torch does not count changes of inference tensors, so no new ones are made here.
        inference = any(one.is_inference() for one in _tensors(self))
        with torch.inference_mode(inference and torch.is_inference_mode_enabled()):
            return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        # Copies and files do not need the cache.
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
        return filters, self.conv._transformations(), _Layer(None, _vectors(self.norm), {})

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to features ``[B, C, n, H', W']``."""
        fused = stem_applies(images, self.conv, self.norm, self.relu, self.pool)
        if not fused or self._is_differentiated(images):
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
            return _Layer(Filters.of(conv, dtype), _vectors(norm), {})

        shortcut = layer(self.shortcut) if len(self.shortcut) else None
        return [layer(modules) for modules in self.layers], shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[B, C, n, H, W]`` to features ``[B, C', n, H', W']``."""
        if applies(self, x) and not self._is_differentiated(x):
            with torch.no_grad():
                return blocks.block_of(x, *self._ready(compute_dtype(x)))
        first, *later = self.layers
        y = first(x)
        for layer in later:
            y = layer(y.relu())
        out: Tensor = (y + self.shortcut(x)).relu()
        return out


class _Layer(NamedTuple):
    """A :class:`~equicolor.nn._fused.blocks.BlockLayer` whose filters and norm are computed."""

    packed: Filters | None
    norm: Norm  # for one pixel
    norms: dict[int, Norm]  # by how many pixels share a row

    def filters(self, dtype: torch.dtype) -> Filters:
        assert self.packed is not None
        assert self.packed.tensor.dtype == dtype
        return self.packed

    def normalization(self, outputs: Products, n: int) -> Norm:
        pixels = kernels().pixels_in_a_row(outputs)
        if pixels not in self.norms:
            vectors = kernels().row_vectors(self.norm.vectors, outputs)
            self.norms[pixels] = self.norm._replace(vectors=vectors)
        return self.norms[pixels]


def _vectors(norm: CEBatchNorm2d) -> Norm:
    parameters = norm.weight, norm.bias
    statistics = norm.running_mean, norm.running_var
    vectors = kernels().channel_vectors(*parameters, *statistics, eps=norm.eps)
    return Norm(*parameters, vectors, training=False)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers; torch's iterators are many times slower."""
    found: list[Tensor | None] = []
    modules: list[nn.Module | None] = [module]
    while modules:
        if (one := modules.pop()) is not None:
            found += one._parameters.values()
            found += one._buffers.values()
            modules += one._modules.values()
    return [tensor for tensor in found if tensor is not None]


def _stamps(tensors: Sequence[Tensor]) -> list[tuple[int, int]] | None:
    """Numbers that change with the tensors; None for inference tensors, which have none."""
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]
