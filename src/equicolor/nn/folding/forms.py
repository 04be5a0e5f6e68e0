"""The two forms of a folded network that contain torch modules only."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.folding.plain import conv2d, mix, turns_back
from equicolor.nn.folding.rewriter import Rewriter
from equicolor.nn.functional import dense_filters, in_every_hue
from equicolor.nn.pooling import CosetFlatten, CosetMaxPool


class DenseRewriter(Rewriter):
    """Writes every layer as one convolution of all rotations.

    Features are ``[B, C * n, H, W]``, channel-major, so that flattening costs nothing.
    """

    cyclic = False

    def enter(self, x: Any, rotations: int) -> Any:
        return x.unflatten(0, (rotations, -1)).permute(1, 2, 0, 3, 4).flatten(1, 2)

    def leave(self, x: Any, module: CEConv2d) -> Any:
        parts = x.unflatten(1, (module.out_channels, module.rotations))
        return parts.permute(2, 0, 1, 3, 4).flatten(0, 1)

    def lift(self, node: fx.Node, module: CELiftConv2d, x: Any) -> Any:
        n, matrices = module.rotations, module._transformations()
        if matrices is not None:
            weight = in_every_hue(module.weight.squeeze(2), matrices).transpose(0, 1)
            return self._conv(node, module, weight, x)
        # Hues lie beside the channels; the filters of a rotation see only their own hue.
        turns = turns_back(n, module.weight, 2)
        hues = self.shifted(node, x.unsqueeze(1), n, turns, 1)  # [B, n, 3, H, W]
        same = torch.eye(n, device=module.weight.device, dtype=module.weight.dtype)
        weight = torch.einsum("kl,ochw->oklchw", same, module.weight[:, :, 0]).flatten(2, 3)
        return self._conv(node, module, weight, hues.flatten(1, 2))

    def conv(self, node: fx.Node, module: CEConv2d, x: Any) -> Any:
        bank = dense_filters(module.weight, module.pointwise_weight, module.rotations)
        return self._conv(node, module, bank.movedim(0, 1).flatten(2, 3), x)

    def _conv(self, node: fx.Node, module: CEConv2d | CELiftConv2d, weight: Tensor, x: Any) -> Any:
        """Write a convolution with filters ``[O, n, I, kh, kw]``."""
        bias = None if module.bias is None else module.bias.repeat_interleave(module.rotations)
        conv = conv2d(module, weight.flatten(0, 1), bias, module.groups)
        return self.call(node, "conv", conv, x)

    def coset(self, module: nn.Module, x: Any, n: int) -> Any:
        if isinstance(module, CosetFlatten):
            return x.clone()  # as eager mode copies: x may be changed in place
        features = x.unflatten(1, (-1, n))
        return features.amax(2) if isinstance(module, CosetMaxPool) else features.mean(2)


class CyclicRewriter(Rewriter):
    """Writes every hidden layer as some convolutions between two mixes of the rotations.

    Features are ``[n * B, C, H, W]``, rotation-major, in channels_last memory.
    """

    cyclic = True

    def enter(self, x: Any, rotations: int) -> Any:
        return x

    def leave(self, x: Any, module: CEConv2d) -> Any:
        return x

    def lift(self, node: fx.Node, module: CELiftConv2d, x: Any) -> Any:
        n, matrices = module.rotations, module._transformations()
        if matrices is None:
            colors = x.permute(0, 2, 3, 1).unsqueeze(-1).unsqueeze(-1).unsqueeze(0)
            hues = self.shifted(node, colors, n, turns_back(n, module.weight, 5), 0)
            images = hues.flatten(-3).flatten(0, 1).permute(0, 3, 1, 2)
            return self.plain(node, module, images)
        weight = in_every_hue(module.weight.squeeze(2), matrices).flatten(0, 1)
        bias = None if module.bias is None else module.bias.repeat(n)
        lifted = self.call(node, "conv", conv2d(module, weight, bias, 1), x)
        features = lifted.permute(0, 2, 3, 1).unflatten(3, (n, module.out_channels))
        return features.permute(3, 0, 1, 2, 4).flatten(0, 1).permute(0, 3, 1, 2)

    def conv(self, node: fx.Node, module: CEConv2d, x: Any) -> Any:
        def plain(weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
            return conv2d(module, weight, bias, module.groups)

        pixels = x.permute(0, 2, 3, 1).unflatten(0, (module.rotations, -1))
        mixed = mix(self.buffer(node, "analysis", module.analysis), pixels, 1, 0)
        images = mixed.permute(0, 1, 4, 2, 3)  # of [r, b, h, w, c]
        products = self.products(node, module, images, plain)
        pixels = torch.cat(products).permute(0, 2, 3, 1).unflatten(0, (len(products), -1))
        synthesis = self.buffer(node, "synthesis", module.synthesis)
        out = mix(synthesis, pixels, 0, 0)  # [n, b, h, w, c]
        return out.flatten(0, 1).permute(0, 3, 1, 2)

    def coset(self, module: nn.Module, x: Any, n: int) -> Any:
        features = x.unflatten(0, (n, -1))
        if isinstance(module, CosetFlatten):
            return features.permute(1, 2, 0, 3, 4).flatten(1, 2)
        return features.amax(0) if isinstance(module, CosetMaxPool) else features.mean(0)
