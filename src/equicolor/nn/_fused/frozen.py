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

from equicolor.devices import on_device_of
from equicolor.nn._fused import blocks
from equicolor.nn._fused.blocks import BlockLayer, Filters, Layer
from equicolor.nn._fused.conditions import applies, stem_applies
from equicolor.nn._fused.first_layer import Hues, lift_columns, norm_relu, packed_columns
from equicolor.nn._fused.layout import Products
from equicolor.nn._fused.norm import Norm, kernels, running_norm
from equicolor.nn.conv import CELiftConv2d
from equicolor.nn.functional import compute_dtype
from equicolor.nn.norm import CEBatchNorm2d
from equicolor.nn.pooling import CEMaxPool2d


def cached_tensors(network: nn.Module) -> list[object]:
    """The tensors that frozen modules computed: a CUDA graph keeps reading their memory."""
    frozen = (module for module in network.modules() if isinstance(module, _Frozen))
    return [module._cache.by_key for module in frozen if module._cache is not None]


class _Cache(NamedTuple):
    """What was computed from weights, and how to tell whether they have changed."""

    stamps: list[tuple[int, int]]
    weights: list[Tensor]  # kept alive, so that their memory is not used for other weights
    by_key: dict[Any, Any]


class _FrozenNorm:
    """A norm with running statistics, laid out once for every number of pixels in a row."""

    def __init__(self, norm: CEBatchNorm2d) -> None:
        self.norm = running_norm(norm)
        self.by_pixels: dict[int, Norm] = {}

    def __call__(self, outputs: Products, n: int) -> Norm:
        pixels = kernels().pixels_in_a_row(outputs)
        if pixels not in self.by_pixels:
            self.by_pixels[pixels] = self.norm.for_rows(outputs)
        return self.by_pixels[pixels]


class _Frozen(nn.Module):
    """A module that keeps what it computes from its weights; always in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self._cache: _Cache | None = None

    def _compute(self, *key: Any) -> Any:
        raise NotImplementedError

    def _cached(self, *key: Any) -> Any:
        """The result of :meth:`_compute`, computed if the key is new or the weights changed."""
        weights = _tensors(self)
        cache, stamps = self._cache, _stamps(weights)
        if cache is None or stamps is None or cache.stamps != stamps:
            # A recorded graph may still read the old tensors: replace, do not clear.
            cache = self._cache = _Cache(stamps or [], [one.detach() for one in weights], {})
        if key not in cache.by_key:
            cache.by_key[key] = self._compute(*key)
        return cache.by_key[key]

    def _is_differentiated(self, x: Tensor) -> bool:
        """Whether the input or the weights need gradients."""
        return torch.is_grad_enabled() and (
            x.requires_grad or any(one.requires_grad for one in _tensors(self))
        )

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode."""
        return super().train(False)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        self._cache = None
        # Torch does not count changes of inference tensors, so no new ones are made here.
        inference = any(one.is_inference() for one in _tensors(self))
        with torch.inference_mode(inference and torch.is_inference_mode_enabled()):
            return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        # Copies and files do not need the cache.
        return {**self.__dict__, "_cache": None}


class FrozenStem(_Frozen):
    """A lifting convolution without dilation, batch norm, ReLU and perhaps pooling, for inference.

    ``pool`` says whether 3×3 max pooling with stride 2 follows.
    """

    def __init__(self, conv: CELiftConv2d, norm: CEBatchNorm2d, *, pool: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = conv, norm, nn.ReLU()
        self.pool = CEMaxPool2d(3, 2, 1) if pool else nn.Identity()
        self.eval()

    def _compute(self, dtype: torch.dtype, hues: Hues) -> tuple[Tensor, _FrozenNorm]:
        return packed_columns(self.conv, dtype, hues), _FrozenNorm(self.norm)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to features ``[B, C, n, H', W']``."""
        fused = stem_applies(images, self.conv, self.norm, self.relu, self.pool)
        if not fused or self._is_differentiated(images):
            return self.pool(self.relu(self.norm(self.conv(images))))
        with torch.no_grad(), on_device_of(images):
            hues, n = Hues.of(self.conv, images), self.conv.rotations
            filters, norm = self._cached(compute_dtype(images), hues)
            lifted, beside = lift_columns(images, self.conv, filters, hues)
            pool = not isinstance(self.pool, nn.Identity)
            return norm_relu(lifted, norm((lifted,), 1), n, beside=beside, pool=pool)


class FrozenBlock(_Frozen):
    """:func:`equicolor.nn._fused.residual_block` as a module for inference."""

    def __init__(
        self, layers: Sequence[Layer], shortcut: Layer | None = None, *, followed: bool = False
    ) -> None:
        super().__init__()
        self.depth, self.followed = len(layers), followed
        for index, layer in enumerate(layers):
            self.add_module(f"layer{index}", nn.Sequential(*layer))
        self.shortcut = nn.Sequential(*shortcut or ())
        self.eval()

    @property
    def layers(self) -> list[nn.Sequential]:
        """The convolutions and norms in turn."""
        return [self.get_submodule(f"layer{index}") for index in range(self.depth)]  # type: ignore[misc]

    def _compute(self, dtype: torch.dtype) -> tuple[list[BlockLayer], BlockLayer | None]:
        def layer_of(conv: Any, norm: Any) -> BlockLayer:
            return BlockLayer(Filters.of(conv, dtype), _FrozenNorm(norm))

        shortcut = layer_of(*self.shortcut) if len(self.shortcut) else None
        return [layer_of(*modules) for modules in self.layers], shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[B, C, n, H, W]`` to features ``[B, C', n, H', W']``."""
        if applies(self, x) and not self._is_differentiated(x):
            with torch.no_grad():
                layers = self._cached(compute_dtype(x))
                return blocks.block_of(x, *layers, followed=self.followed)
        first, *later = self.layers
        y = first(x)
        for layer in later:
            y = layer(y.relu())
        return (y + self.shortcut(x)).relu()


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers; torch's iterators are many times slower."""
    tensors: list[Tensor | None] = []
    modules: list[nn.Module | None] = [module]
    while modules:
        if (one := modules.pop()) is not None:
            tensors += one._parameters.values()
            tensors += one._buffers.values()
            modules += one._modules.values()
    return [tensor for tensor in tensors if tensor is not None]


def _stamps(tensors: Sequence[Tensor]) -> list[tuple[int, int]] | None:
    """Numbers that change with the tensors; None for inference tensors, which have none."""
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]
